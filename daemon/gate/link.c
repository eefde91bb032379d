/*
 * Records to and from the core.
 *
 * The gate reads from ZeroMQ only while nothing waits here, so one place for a
 * request is enough: what does not fit the pair or the ring stays in ZeroMQ's
 * queues, and behind those in the clients.  From the core, on the contrary, the
 * gate always reads, whatever waits: if both sides stopped reading while they
 * cannot write, neither would go on.  What such reading makes the gate want to
 * say (a connection is gone, a ping is answered, a count has changed) is one
 * flag, one number a connection or one set of counts, so it is bounded too.
 *
 * A request goes before the GONE of its own connection, and a PONG last.
 */
#include "daemon/gate/link.h"

#include "base/error.h"
#include "base/macros.h"
#include "base/points.h"
#include "ipc/seqpacket.h"

#include <errno.h>
#include <string.h>

void ckv_outgoing_reset(struct ckv_outgoing *outgoing) {
        memset(&outgoing->record, 0, sizeof(outgoing->record));
        outgoing->attachment_bytes = 0;
}

void *ckv_outgoing_append(struct ckv_outgoing *outgoing, size_t bytes) {
        void *at = outgoing->attachment + outgoing->attachment_bytes;

        if (bytes > CKV_ATTACHMENT_MAX_BYTES - outgoing->attachment_bytes)
                return NULL;
        outgoing->attachment_bytes += (uint32_t)bytes;
        return at;
}

int ckv_link_init(struct ckv_link *link, int pair, int ring_to_core, int ring_to_gate) {
        int r;

        *link = (struct ckv_link){ .fd = pair };
        link->staged.attachment = malloc(CKV_ATTACHMENT_MAX_BYTES);
        if (!link->staged.attachment)
                return ckv_error_origin(-ENOMEM);
        r = ckv_ring_init(&link->to_core, ring_to_core, CKV_RING_BYTES, true);
        if (r)
                return ckv_error_trace(r);
        return ckv_error_trace(ckv_ring_init(&link->to_gate, ring_to_gate, CKV_RING_BYTES, false));
}

void ckv_link_deinit(struct ckv_link *link) {
        ckv_ring_deinit(&link->to_core);
        ckv_ring_deinit(&link->to_gate);
        free(link->staged.attachment);
        (void)ckv_close(link->fd);
        *link = (struct ckv_link){ .fd = -1 };
}

bool ckv_link_idle(const struct ckv_link *link) {
        return !link->staged_due && link->gone_count == 0 && !link->stats_due && !link->pong_due;
}

void ckv_link_submit(struct ckv_link *link) {
        link->staged_due = true;
}

void ckv_link_gone(struct ckv_link *link, uint32_t connection) {
        assert(link->gone_count < CKV_ARRAY_SIZE(link->gone));
        link->gone[link->gone_count++] = connection;
}

void ckv_link_stats(struct ckv_link *link, const struct ckv_record_stats *stats) {
        link->stats = *stats;
        link->stats_due = true;
}

void ckv_link_pong(struct ckv_link *link) {
        link->pong_due = true;
}

uint64_t ckv_link_unreported(const struct ckv_link *link) {
        return link->to_gate.head - link->reported;
}

/* send_record() - fill in what is the link's and send. Return: 0, CKV_LINK_E_PAIR_FULL, CKV_LINK_E_CLOSED or -errno. */
static int send_record(struct ckv_link *link, struct ckv_record *record) {
        int r;

        record->head.magic = CKV_RECORD_MAGIC;
        record->head.version = CKV_RECORD_VERSION;
        record->head.sequence = link->sent + 1;
        record->head.ring_consumed = link->to_gate.head;
        r = ckv_seqpacket_send(link->fd, record, sizeof(*record), -1);
        switch (r) {
        case 0:
                link->sent++;
                link->reported = record->head.ring_consumed;
                return 0;
        case CKV_SEQPACKET_E_AGAIN:
                return CKV_LINK_E_PAIR_FULL;
        case CKV_SEQPACKET_E_CLOSED:
                return CKV_LINK_E_CLOSED;
        default:
                return ckv_error_trace(r);
        }
}

static int send_staged(struct ckv_link *link) {
        struct ckv_outgoing *staged = &link->staged;
        struct ckv_record_head *head = &staged->record.head;

        /* ring_bytes says whether the attachment is in the ring already, waiting for room in the pair */
        if (staged->attachment_bytes > 0 && head->ring_bytes == 0) {
                void *to = ckv_ring_reserve(&link->to_core, staged->attachment_bytes, &head->ring_offset);

                if (!to)
                        return CKV_LINK_E_RING_FULL;
                memcpy(to, staged->attachment, staged->attachment_bytes);
                head->ring_bytes = staged->attachment_bytes;
        }
        return send_record(link, &staged->record);
}

int ckv_link_flush(struct ckv_link *link) {
        int r;

        if (link->staged_due) {
                r = send_staged(link);
                if (r)
                        return r;
                CKV_POINT(gate_sent);
                link->staged_due = false;
        }
        while (link->gone_count > 0) {
                struct ckv_record record = { .head = { .type = CKV_RECORD_GONE,
                                                       .connection = link->gone[link->gone_count - 1] } };

                r = send_record(link, &record);
                if (r)
                        return r;
                link->gone_count--;
        }
        if (link->stats_due) {
                struct ckv_record record = { .head = { .type = CKV_RECORD_STATS }, .body = { .stats = link->stats } };

                r = send_record(link, &record);
                if (r)
                        return r;
                link->stats_due = false;
        }
        if (link->pong_due) {
                struct ckv_record record = { .head = { .type = CKV_RECORD_PONG } };

                r = send_record(link, &record);
                if (r)
                        return r;
                link->pong_due = false;
        }
        return 0;
}

int ckv_link_recv(struct ckv_link *link, struct ckv_record *ret_record, const void **ret_attachment) {
        const void *attachment = NULL;
        struct ckv_record record;
        const struct ckv_record_head *head = &record.head;
        int r;

        r = ckv_seqpacket_recv(link->fd, &record, sizeof(record), NULL);
        if (r == CKV_SEQPACKET_E_AGAIN)
                return CKV_LINK_E_EMPTY;
        if (r == CKV_SEQPACKET_E_CLOSED)
                return CKV_LINK_E_CLOSED;
        if (r)
                return r > 0 ? CKV_LINK_E_MALFORMED : ckv_error_trace(r);

        if (head->magic != CKV_RECORD_MAGIC || head->version != CKV_RECORD_VERSION ||
            head->sequence != link->received + 1)
                return CKV_LINK_E_MALFORMED;
        if (!ckv_ring_consumed(&link->to_core, head->ring_consumed))
                return CKV_LINK_E_MALFORMED;
        if (head->ring_bytes > 0) {
                attachment = ckv_ring_read(&link->to_gate, head->ring_offset, head->ring_bytes);
                if (!attachment)
                        return CKV_LINK_E_MALFORMED;
        }
        link->received++;
        *ret_record = record;
        *ret_attachment = attachment;
        return 0;
}
