/*
 * What a gate said of itself, and whom it had connected: for the log, and for
 * the line that says who was there when it died.
 */
#ifndef CKV_DAEMON_GATE_STATS_H
#define CKV_DAEMON_GATE_STATS_H

#include "base/log.h"
#include "proto/records.h"

#include <stdbool.h>
#include <stdint.h>

enum { CKV_GATE_UIDS_MAX = 16, CKV_GATE_UIDS_TEXT = CKV_GATE_UIDS_MAX * 11 + 4 };

struct ckv_gate_stats {
        struct ckv_record_stats last;           /* of the running gate; zero before its first */
        uint32_t uids[CKV_GATE_UIDS_MAX];       /* [uid_count] seen with the running gate, the newest last */
        uint32_t uid_count;
        struct ckv_log_rate rate;
};

/* ckv_gate_stats_reset() - a new gate: it has seen nobody */
void ckv_gate_stats_reset(struct ckv_gate_stats *stats);

/* ckv_gate_stats_note() - this user sent something; the one heard of longest ago makes room */
void ckv_gate_stats_note(struct ckv_gate_stats *stats, uint32_t uid);

/**
 * ckv_gate_stats_take() - a STATS record of the gate
 * @endpoint: name, for the log: one line when refusals or losses grew, not too often
 *
 * Return: false if no right gate sends this.
 */
bool ckv_gate_stats_take(struct ckv_gate_stats *stats, const char *endpoint, const struct ckv_record_stats *record);

/* ckv_gate_stats_uids() - "0,1000" of the users seen, "none" without any. Return: @ret_text. */
const char *ckv_gate_stats_uids(const struct ckv_gate_stats *stats, char ret_text[static CKV_GATE_UIDS_TEXT]);

#endif
