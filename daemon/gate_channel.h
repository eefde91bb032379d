/*
 * Records to and from one gate: sequence numbers, rings, what waits to be
 * sent.  It knows no event loop and no process; daemon/gate_link.c drives it.
 */
#ifndef CKV_DAEMON_GATE_CHANNEL_H
#define CKV_DAEMON_GATE_CHANNEL_H

#include "ipc/ring.h"
#include "proto/records.h"

#include <stddef.h>
#include <stdint.h>

struct ckv_gate_outgoing;

struct ckv_gate_channel {
        int pair_fd;                    /* borrowed, non-blocking */
        struct ckv_ring *to_core, *to_gate;     /* borrowed; read and written here */
        uint64_t received, sent;        /* sequence of the last record in each direction */
        uint64_t reported;              /* position in to_core that the gate was told last */
        struct ckv_gate_outgoing *first, **last;        /* queue; *last is where the next one goes */
        uint64_t queued_bytes;
};

enum ckv_gate_channel_outcome {
        _CKV_GATE_CHANNEL_E_SUCCESS,
        CKV_GATE_CHANNEL_E_SOCKET_FULL, /* send: wait until the socket is writable */
        CKV_GATE_CHANNEL_E_RING_FULL,   /* send: wait until a record says that the gate has read on */
        CKV_GATE_CHANNEL_E_EMPTY,       /* recv: nothing there now */
        CKV_GATE_CHANNEL_E_CLOSED,      /* the gate has hung up */
        CKV_GATE_CHANNEL_E_BREACH,      /* recv: no right gate sends this */
};

/* ckv_gate_channel_init() - a fresh channel over a pair and two rings that nothing was sent through yet */
void ckv_gate_channel_init(struct ckv_gate_channel *channel, int pair_fd, struct ckv_ring *to_core, struct ckv_ring *to_gate);

/* ckv_gate_channel_deinit() - drop what waits; pair and rings are the caller's. Fine on a zeroed one. */
void ckv_gate_channel_deinit(struct ckv_gate_channel *channel);

/* ckv_gate_channel_queue() - append a record and a copy of its attachment. Return: 0, -ENOMEM, or -EMSGSIZE. */
int ckv_gate_channel_queue(struct ckv_gate_channel *channel, const struct ckv_record *record, const void *attachment, size_t bytes);

/**
 * ckv_gate_channel_flush() - send what waits, in order
 *
 * Return: 0: nothing waits any more; SOCKET_FULL, RING_FULL, CLOSED; or -errno.
 */
int ckv_gate_channel_flush(struct ckv_gate_channel *channel);

/* ckv_gate_channel_pass() - send a record without attachment ahead of all that waits. Return: as flush. */
int ckv_gate_channel_pass(struct ckv_gate_channel *channel, const struct ckv_record *record);

/**
 * ckv_gate_channel_recv() - one record, its envelope checked
 * @attachment: [CKV_ATTACHMENT_MAX_BYTES] receives the private copy of the record's attachment, ret_record->head.ring_bytes
 *              bytes of it
 * @ret_breach: with BREACH: what is wrong, a constant
 *
 * Checked are magic, version, type, sequence, that a connection is named where one must be, that the attachment lies
 * where it must, that the reported ring position can be true. Nothing of the body is.
 *
 * Return: 0, EMPTY, CLOSED, BREACH, or -errno.
 */
int ckv_gate_channel_recv(struct ckv_gate_channel *channel, struct ckv_record *ret_record, uint8_t *attachment,
                          const char **ret_breach);

/* ckv_gate_channel_unreported() - bytes of the gate's ring that were read and that it does not know to be free again */
uint64_t ckv_gate_channel_unreported(const struct ckv_gate_channel *channel);

#endif
