/*
 * The gate's end of the way to the core: the pair, both rings, and what waits
 * to be sent.
 */
#ifndef CKV_GATE_LINK_H
#define CKV_GATE_LINK_H

#include "daemon/gate/connections.h"
#include "ipc/ring.h"
#include "proto/records.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A record on its way to the core, with room for its attachment. */
struct ckv_outgoing {
        struct ckv_record record;
        uint32_t attachment_bytes;
        uint8_t *attachment;            /* [CKV_ATTACHMENT_MAX_BYTES], 16-byte aligned */
};

/* ckv_outgoing_reset() - empty record, no attachment */
void ckv_outgoing_reset(struct ckv_outgoing *outgoing);

/* ckv_outgoing_append() - @bytes more of attachment, for the caller to write. Return: NULL if it would be too long. */
void *ckv_outgoing_append(struct ckv_outgoing *outgoing, size_t bytes);

struct ckv_link {
        int fd;
        struct ckv_ring to_core, to_gate;
        uint64_t sent, received;        /* sequence numbers */
        uint64_t reported;              /* position of to_gate that the core knows of */
        struct ckv_outgoing staged;     /* the one request on its way */
        bool staged_due;
        bool pong_due;
        bool stats_due;
        struct ckv_record_stats stats;  /* the newest counts, where they are due */
        uint32_t gone_count;
        uint32_t gone[CKV_CONNECTIONS_MAX + 1];         /* [gone_count] connections to report */
};

enum ckv_link_outcome {
        _CKV_LINK_E_SUCCESS,
        CKV_LINK_E_PAIR_FULL,           /* wait for room in the pair */
        CKV_LINK_E_RING_FULL,           /* wait for a record of the core that says it has read */
        CKV_LINK_E_EMPTY,               /* nothing to receive now */
        CKV_LINK_E_CLOSED,              /* the core is gone */
        CKV_LINK_E_MALFORMED,           /* the core sent what no right core sends */
};

/**
 * ckv_link_init() - take over the pair and map the rings
 * @pair, @ring_to_core, @ring_to_gate: the pair is owned by the link from here on, the rings are *NOT* consumed
 *
 * Return: 0 or -errno; ckv_link_deinit() is fine after both.
 */
int ckv_link_init(struct ckv_link *link, int pair, int ring_to_core, int ring_to_gate);
void ckv_link_deinit(struct ckv_link *link);

/* ckv_link_idle() - is nothing waiting to be sent? Only then may a request be staged. */
bool ckv_link_idle(const struct ckv_link *link);

/* ckv_link_submit() - send link->staged with the next flush; magic, version, sequence and ring fields are the link's */
void ckv_link_submit(struct ckv_link *link);

/* ckv_link_gone() - report a connection as gone; at most CKV_CONNECTIONS_MAX + 1 between two moments of idleness */
void ckv_link_gone(struct ckv_link *link, uint32_t connection);

/* ckv_link_stats() - send these counts; those before them, if they still wait, need not be sent */
void ckv_link_stats(struct ckv_link *link, const struct ckv_record_stats *stats);

/* ckv_link_pong() - answer CKV_RECORD_GATE_PING, or report what was read of the ring */
void ckv_link_pong(struct ckv_link *link);

/* ckv_link_unreported() - bytes of the core's ring that were read and that the core does not know of */
uint64_t ckv_link_unreported(const struct ckv_link *link);

/**
 * ckv_link_flush() - send what waits: the request first, then GONEs, then STATS, then a PONG
 *
 * Return: 0 when nothing waits any more; CKV_LINK_E_PAIR_FULL, CKV_LINK_E_RING_FULL, CKV_LINK_E_CLOSED; or -errno.
 */
int ckv_link_flush(struct ckv_link *link);

/**
 * ckv_link_recv() - one record of the core
 * @ret_attachment: [ring_bytes] in the ring, valid until the next record is sent; NULL if there is none
 *
 * Return: 0; CKV_LINK_E_EMPTY, CKV_LINK_E_CLOSED, CKV_LINK_E_MALFORMED; or -errno.
 */
int ckv_link_recv(struct ckv_link *link, struct ckv_record *ret_record, const void **ret_attachment);

#endif
