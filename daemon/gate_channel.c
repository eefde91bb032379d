/*
 * Records and attachments between core and gate.
 *
 * A gate may have been taken over by its clients, so the envelope of each
 * record is checked here, completely, before anybody looks at the rest.  An
 * attachment is copied out of the shared ring first and looked at afterwards,
 * because its writer can change it at any time.
 *
 * Sequence number and place in the ring are given at the moment of sending,
 * so that a record may pass the queue (a ping must: it makes the gate report
 * how far it has read, which is what a queue behind a full ring waits for).
 */
#include "daemon/gate_channel.h"

#include "base/error.h"
#include "base/macros.h"
#include "ipc/seqpacket.h"

#include <errno.h>
#include <string.h>

/* A record that waits, and its attachment. */
struct ckv_gate_outgoing {
        struct ckv_gate_outgoing *next;
        struct ckv_record record;
        uint32_t bytes;
        uint8_t attachment[];   /* [bytes] */
};

void ckv_gate_channel_init(struct ckv_gate_channel *channel, int pair_fd, struct ckv_ring *to_core, struct ckv_ring *to_gate) {
        *channel = (struct ckv_gate_channel){ .pair_fd = pair_fd, .to_core = to_core, .to_gate = to_gate };
        channel->last = &channel->first;
}

void ckv_gate_channel_deinit(struct ckv_gate_channel *channel) {
        while (channel->first) {
                struct ckv_gate_outgoing *item = channel->first;

                channel->first = item->next;
                free(item);
        }
        *channel = (struct ckv_gate_channel){ .pair_fd = -1 };
}

int ckv_gate_channel_queue(struct ckv_gate_channel *channel, const struct ckv_record *record, const void *attachment, size_t bytes) {
        struct ckv_gate_outgoing *item;

        if (bytes > CKV_ATTACHMENT_MAX_BYTES)
                return ckv_error_origin(-EMSGSIZE);
        item = malloc(sizeof(*item) + bytes);
        if (!item)
                return ckv_error_origin(-ENOMEM);
        *item = (struct ckv_gate_outgoing){ .record = *record, .bytes = (uint32_t)bytes };
        if (bytes > 0)
                memcpy(item->attachment, attachment, bytes);
        *channel->last = item;
        channel->last = &item->next;
        channel->queued_bytes += sizeof(*item) + bytes;
        return 0;
}

/* send_now() - complete a record and send it with its attachment. Return: as flush. */
static int send_now(struct ckv_gate_channel *channel, struct ckv_record *record, const void *attachment, uint32_t bytes) {
        struct ckv_ring *ring = channel->to_gate;
        uint64_t head = ring->head;
        uint32_t offset = 0;
        int r;

        if (bytes > 0) {
                void *place = ckv_ring_reserve(ring, bytes, &offset);

                if (!place)
                        return CKV_GATE_CHANNEL_E_RING_FULL;
                memcpy(place, attachment, bytes);
        }
        record->head.magic = CKV_RECORD_MAGIC;
        record->head.version = CKV_RECORD_VERSION;
        record->head.sequence = channel->sent + 1;
        record->head.ring_offset = offset;
        record->head.ring_bytes = bytes;
        record->head.ring_consumed = channel->to_core->head;

        r = ckv_seqpacket_send(channel->pair_fd, record, sizeof(*record), -1);
        if (r == 0) {
                channel->sent++;
                channel->reported = record->head.ring_consumed;
                return 0;
        }
        ring->head = head; /* nobody was told of the attachment */
        if (r == CKV_SEQPACKET_E_AGAIN)
                return CKV_GATE_CHANNEL_E_SOCKET_FULL;
        return r == CKV_SEQPACKET_E_CLOSED ? (int)CKV_GATE_CHANNEL_E_CLOSED : ckv_error_trace(r);
}

int ckv_gate_channel_flush(struct ckv_gate_channel *channel) {
        while (channel->first) {
                struct ckv_gate_outgoing *item = channel->first;
                int r = send_now(channel, &item->record, item->attachment, item->bytes);

                if (r)
                        return r > 0 ? r : ckv_error_trace(r);
                channel->first = item->next;
                if (!channel->first)
                        channel->last = &channel->first;
                channel->queued_bytes -= sizeof(*item) + item->bytes;
                free(item);
        }
        return 0;
}

int ckv_gate_channel_pass(struct ckv_gate_channel *channel, const struct ckv_record *record) {
        struct ckv_record copy = *record;

        return send_now(channel, &copy, NULL, 0);
}

/* take_attachment() - check where it lies and copy it out. Return: what is wrong, or NULL. */
static const char *take_attachment(struct ckv_gate_channel *channel, const struct ckv_record_head *head, uint8_t *attachment) {
        const void *place;

        if (head->ring_bytes == 0)
                return head->ring_offset == 0 ? NULL : "ring offset without an attachment";
        if (head->ring_bytes > CKV_ATTACHMENT_MAX_BYTES)
                return "attachment too long";
        place = ckv_ring_read(channel->to_core, head->ring_offset, head->ring_bytes);
        if (!place)
                return "attachment not where it must be";
        memcpy(attachment, place, head->ring_bytes);
        return NULL;
}

/* breach_find() - what is wrong with an envelope; NULL: nothing, and the attachment was copied */
static const char *breach_find(struct ckv_gate_channel *channel, const struct ckv_record_head *head, uint8_t *attachment) {
        if (head->magic != CKV_RECORD_MAGIC || head->version != CKV_RECORD_VERSION)
                return "wrong magic or version";
        if (head->type < CKV_RECORD_HELLO || head->type > CKV_RECORD_STATS)
                return "unknown type of record";
        if (head->sequence != channel->received + 1)
                return "wrong sequence number";
        if (head->connection == 0 && head->type != CKV_RECORD_PONG && head->type != CKV_RECORD_STATS)
                return "no connection number";
        if (!ckv_ring_consumed(channel->to_gate, head->ring_consumed))
                return "impossible position in the ring";
        return take_attachment(channel, head, attachment);
}

int ckv_gate_channel_recv(struct ckv_gate_channel *channel, struct ckv_record *ret_record, uint8_t *attachment,
                          const char **ret_breach) {
        struct ckv_record record;
        const char *breach = "malformed record";
        int r;

        r = ckv_seqpacket_recv(channel->pair_fd, &record, sizeof(record), NULL);
        if (r == CKV_SEQPACKET_E_AGAIN)
                return CKV_GATE_CHANNEL_E_EMPTY;
        if (r == CKV_SEQPACKET_E_CLOSED)
                return CKV_GATE_CHANNEL_E_CLOSED;
        if (r < 0)
                return ckv_error_trace(r);
        if (r == 0)
                breach = breach_find(channel, &record.head, attachment);
        if (breach) {
                *ret_breach = breach;
                return CKV_GATE_CHANNEL_E_BREACH;
        }
        channel->received++;
        *ret_record = record;
        return 0;
}

uint64_t ckv_gate_channel_unreported(const struct ckv_gate_channel *channel) {
        return channel->to_core->head - channel->reported;
}
