/*
 * The users of a gate are known from two sides: it says who is connected when
 * that changes, and each of its records names a user.  Either may be a lie of a
 * gate that was taken over; the line in the log is a hint for an operator and
 * nothing is decided by it.
 *
 * A peer that kills its gate with its first bytes is named all the same: accept
 * wakes the gate's own thread, which reports the new user, and every known way
 * to abort libzmq takes a handshake of several steps after that.
 */
#include "daemon/gate_stats.h"

#include "base/clock.h"
#include "base/macros.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

void ckv_gate_stats_reset(struct ckv_gate_stats *stats) {
        stats->last = (struct ckv_record_stats){ 0 };
        stats->uid_count = 0;
}

void ckv_gate_stats_note(struct ckv_gate_stats *stats, uint32_t uid) {
        uint32_t at = 0;

        if (stats->uid_count > 0 && stats->uids[stats->uid_count - 1] == uid)
                return;
        while (at < stats->uid_count && stats->uids[at] != uid)
                at++;
        if (at == stats->uid_count && stats->uid_count < CKV_GATE_UIDS_MAX)
                stats->uid_count++;
        else
                /* move it, or the place of the oldest, to the end */
                memmove(&stats->uids[at % CKV_GATE_UIDS_MAX], &stats->uids[at % CKV_GATE_UIDS_MAX + 1],
                        (stats->uid_count - 1 - at % CKV_GATE_UIDS_MAX) * sizeof(stats->uids[0]));
        stats->uids[stats->uid_count - 1] = uid;
}

/* losses() - what an operator should hear of */
static uint64_t losses(const struct ckv_record_stats *stats) {
        uint64_t sum = stats->dropped_messages + stats->dropped_replies + stats->dropped_peers;

        for (int i = 0; i < CKV_REFUSED_N; i++)
                sum += stats->refused[i];
        return sum;
}

bool ckv_gate_stats_take(struct ckv_gate_stats *stats, const char *endpoint, const struct ckv_record_stats *record) {
        uint64_t suppressed;
        bool grew;

        if (record->uid_count > CKV_ARRAY_SIZE(record->uids) || record->uid_count > record->open)
                return false;
        for (uint32_t i = 0; i < record->uid_count; i++)
                ckv_gate_stats_note(stats, record->uids[i]);
        grew = losses(record) != losses(&stats->last);
        stats->last = *record;
        if (grew && ckv_log_allowed(&stats->rate, ckv_now_nsec(), &suppressed))
                ckv_log(CKV_LOG_NOTICE, GATE_STATS,
                        "endpoint=%s open=%" PRIu32 " refused_access=%" PRIu64 " refused_count=%" PRIu64 " refused_rate=%" PRIu64
                        " refused_descriptors=%" PRIu64 " dropped_messages=%" PRIu64 " dropped_replies=%" PRIu64
                        " dropped_peers=%" PRIu64 " suppressed=%" PRIu64,
                        endpoint, record->open, record->refused[CKV_REFUSED_ACCESS], record->refused[CKV_REFUSED_COUNT],
                        record->refused[CKV_REFUSED_RATE], record->refused[CKV_REFUSED_DESCRIPTORS], record->dropped_messages,
                        record->dropped_replies, record->dropped_peers, suppressed);
        return true;
}

const char *ckv_gate_stats_uids(const struct ckv_gate_stats *stats, char ret_text[static CKV_GATE_UIDS_TEXT]) {
        size_t length = 0;

        (void)snprintf(ret_text, CKV_GATE_UIDS_TEXT, "none");
        for (uint32_t i = 0; i < stats->uid_count; i++)
                length += (size_t)snprintf(ret_text + length, CKV_GATE_UIDS_TEXT - length, "%s%" PRIu32, i ? "," : "",
                                           stats->uids[i]);
        return ret_text;
}
