/*
 * The event loop: one thread, and the descriptors of the core, of libzmq, of
 * its questions (ZAP) and of accept4().
 *
 * ZMQ_FD is edge-triggered and means "look at ZMQ_EVENTS", which every send and
 * every receive may change too.  So a turn sends first and receives last, and
 * sleeps only if the last receive found nothing (libzmq has then looked at all
 * that the descriptor told of) or ckv_router_ready() says no.  A turn takes at
 * most 64 messages and 64 records, so neither side can starve the other; and it
 * asks nobody who has not called, because each question is two system calls.
 *
 * Backpressure: while something waits to be sent to the core, nothing is read
 * from ZeroMQ.  The loop then sleeps until the pair has room (POLLOUT), or,
 * where it is the ring that is full, until the core sends a record, which says
 * how far it has read.
 *
 * What the gate has read of the core's ring it reports with every record; when
 * it has none to send, with a PONG: at once after a quarter of the ring, or
 * after 20 ms, because the core may be waiting for exactly that.
 */
#include "daemon/gate/loop.h"

#include "base/clock.h"
#include "base/error.h"
#include "base/macros.h"
#include "base/points.h"
#include "daemon/gate/decode.h"
#include "daemon/gate/encode.h"
#include "proto/access.h"
#include "proto/status.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <string.h>

enum {
        TURN_MAX = 64,                  /* messages, and records, of one turn */
        REPORT_MSEC = 20,
        PATIENCE_MSEC = 2,
};
#define SLOW_NSEC CKV_NSEC_PER_SEC      /* a peer that takes no reply for longer is shut down */

/* shed() - count and, not too often, say that something was dropped */
static void shed(struct ckv_gate *gate, uint64_t *counter) {
        uint64_t suppressed;

        ++*counter;
        if (ckv_log_allowed(&gate->shed_rate, ckv_now_nsec(), &suppressed))
                ckv_log(CKV_LOG_WARNING, GATE_SHED, "endpoint=%s messages=%" PRIu64 " replies=%" PRIu64, gate->endpoint,
                        gate->stats.dropped_messages, gate->stats.dropped_replies);
}

/*
 * send_patiently() - a full queue may only mean that libzmq's thread had no turn yet, so the first time a moment is waited
 * for it. Return: as ckv_router_send().
 */
static int send_patiently(struct ckv_gate *gate, const struct ckv_connection *connection, const void *reply, size_t bytes) {
        int r = ckv_router_send(&gate->router, connection, reply, bytes);

        if (r != CKV_ROUTER_E_SLOW || connection->slow_since_nsec)
                return r;
        (void)poll(NULL, 0, PATIENCE_MSEC);
        return ckv_router_send(&gate->router, connection, reply, bytes);
}

/* send_reply() - and what follows where it cannot be delivered. Return: 0 or -errno. */
static int send_reply(struct ckv_gate *gate, struct ckv_connection *connection, const void *reply, size_t bytes) {
        int r = send_patiently(gate, connection, reply, bytes);

        switch (r) {
        case 0:
                connection->slow_since_nsec = 0;
                return 0;
        case CKV_ROUTER_E_GONE:
                ckv_link_gone(&gate->link, connection->number);
                ckv_connections_forget(connection);
                return 0;
        case CKV_ROUTER_E_SLOW:
                if (!connection->slow_since_nsec)
                        connection->slow_since_nsec = ckv_now_nsec();
                shed(gate, &gate->stats.dropped_replies);
                return 0;
        default:
                return ckv_error_trace(r);
        }
}

static int refuse(struct ckv_gate *gate, struct ckv_connection *connection, const struct ckv_record_head *request,
                  const struct ckv_record_status *status) {
        struct ckv_record_head head = { .request_id = request->request_id, .generation = request->generation };
        _cleanup_free_ void *reply = NULL;
        size_t bytes;
        int r;

        memcpy(head.boot_id, gate->limits.boot_id, sizeof(head.boot_id));
        r = ckv_encode_status(&head, status, &reply, &bytes);
        if (r)
                return ckv_error_trace(r);
        return ckv_error_trace(send_reply(gate, connection, reply, bytes));
}

/* handle_message() - one request: to the core, or back with a refusal. Return: 0 or -errno. */
static int handle_message(struct ckv_gate *gate, struct ckv_incoming *incoming) {
        static const struct ckv_record_head unread;
        struct ckv_outgoing *staged = &gate->link.staged;
        struct ckv_record_head *head = &staged->record.head;
        struct ckv_connection *connection;
        struct ckv_record_status status;
        size_t bytes = zmq_msg_size(&incoming->body);
        uint32_t gone;

        CKV_POINT(gate_message);
        connection =
                ckv_connections_touch(&gate->connections, incoming->id, incoming->id_bytes, &incoming->address, &gone);
        if (!connection)
                return ckv_error_origin(-EOVERFLOW);
        if (gone)
                ckv_link_gone(&gate->link, gone);
        connection->delimiter = incoming->delimiter;
        connection->key = ckv_accept_find(incoming->fd, &incoming->address);

        if (!incoming->one_frame) {
                ckv_status_set(&status, CKV_CODE_BAD_MESSAGE, CKV_F_NONE, CKV_D_ONE_FRAME, 0, 0, 0);
                return refuse(gate, connection, &unread, &status);
        }
        if (bytes > gate->limits.request_bytes) {
                ckv_status_set(&status, CKV_CODE_BAD_MESSAGE, CKV_F_NONE, CKV_D_TOO_LONG, gate->limits.request_bytes,
                               bytes, 0);
                return refuse(gate, connection, &unread, &status);
        }
        if (ckv_decode_request(&gate->limits, ckv_now_nsec(), zmq_msg_data(&incoming->body), bytes, staged, &status))
                return refuse(gate, connection, head, &status);

        head->connection = connection->number;
        head->uid = incoming->address.uid;
        head->gid = incoming->address.gid;
        head->pid = incoming->address.pid;
        CKV_POINT(gate_decoded);
        ckv_link_submit(&gate->link);
        return 0;
}

/*
 * pull_messages() - requests, as long as the core takes them
 * @ret_empty: the last call to the socket was a receive that found nothing
 *
 * Return: 0, an outcome of ckv_link_flush(), or -errno.
 */
static int pull_messages(struct ckv_gate *gate, bool *ret_empty) {
        *ret_empty = false;
        for (unsigned i = 0; i < TURN_MAX; i++) {
                struct ckv_incoming incoming;
                int r = ckv_link_flush(&gate->link);

                if (r)
                        return r;
                r = ckv_router_recv(&gate->router, &incoming);
                if (r == 0)
                        r = handle_message(gate, &incoming);
                else if (r == CKV_ROUTER_E_DROPPED)
                        shed(gate, &gate->stats.dropped_messages);
                ckv_incoming_deinit(&incoming);
                if (r == CKV_ROUTER_E_EMPTY) {
                        *ret_empty = true;
                        return 0;
                }
                if (r < 0)
                        return ckv_error_trace(r);
        }
        return ckv_link_flush(&gate->link);
}

static int handle_answer(struct ckv_gate *gate, const struct ckv_record *record, const void *attachment) {
        struct ckv_connection *connection = ckv_connections_find(&gate->connections, record->head.connection);
        _cleanup_free_ void *reply = NULL;
        size_t bytes;
        int r;

        CKV_POINT(gate_answer);
        r = ckv_encode_answer(record, attachment, gate->limits.reply_bytes, &reply, &bytes);
        if (r)
                return r > 0 ? CKV_LINK_E_MALFORMED : ckv_error_trace(r);
        /* it left since the request; the core keeps the answer for when it comes back */
        if (!connection)
                return 0;
        CKV_POINT(gate_encoded);
        r = send_reply(gate, connection, reply, bytes);
        CKV_POINT(gate_replied);
        return ckv_error_trace(r);
}

/* drop_slow() - shut down who does not read: what waits for it takes memory of the gate, and its answers are stored by the core */
static void drop_slow(struct ckv_gate *gate) {
        uint64_t now = ckv_now_nsec();

        for (size_t i = 0; i < CKV_CONNECTIONS_MAX; i++) {
                struct ckv_connection *connection = &gate->connections.entries[i];

                if (!connection->number || !connection->slow_since_nsec || now - connection->slow_since_nsec < SLOW_NSEC)
                        continue;
                gate->stats.dropped_peers += ckv_accept_drop(connection->key);
                connection->slow_since_nsec = 0;
        }
}

/* report() - tell the core what has changed since the last time */
static void report(struct ckv_gate *gate) {
        ckv_accept_look(&gate->stats);
        if (memcmp(&gate->stats, &gate->reported, sizeof(gate->stats)) == 0)
                return;
        gate->reported = gate->stats;
        ckv_link_stats(&gate->link, &gate->stats);
}

static bool limits_valid(const struct ckv_record_limits *limits) {
        return limits->request_bytes > 0 && limits->reply_bytes > 0 && limits->message_parts > 0 &&
               limits->groups > 0 && limits->planes > 0 && limits->rows > 0 &&
               limits->connections_per_uid > 0 && limits->access_count <= CKV_ACCESS_RANGES_MAX;
}

/* take_limits() - Return: 0 or CKV_LINK_E_MALFORMED. */
static int take_limits(struct ckv_gate *gate, const struct ckv_record *record, const void *attachment) {
        const struct ckv_record_limits *limits = &record->body.limits;

        if (!limits_valid(limits) || record->head.ring_bytes != limits->access_count * sizeof(struct ckv_record_access) ||
            !ckv_access_valid(attachment, limits->access_count))
                return CKV_LINK_E_MALFORMED;
        gate->limits = *limits;
        ckv_accept_configure(attachment, limits->access_count, limits->connections_per_uid);
        return 0;
}

/* handle_record() - one record of the core. Return: 0, CKV_LINK_E_MALFORMED, or -errno. */
static int handle_record(struct ckv_gate *gate, const struct ckv_record *record, const void *attachment) {
        struct ckv_connection *connection;

        switch (record->head.type) {
        case CKV_RECORD_WELCOME:
        case CKV_RECORD_RESULT:
                return handle_answer(gate, record, attachment);
        case CKV_RECORD_DROP:
                connection = ckv_connections_find(&gate->connections, record->head.connection);
                if (connection)
                        ckv_connections_forget(connection);
                return 0;
        case CKV_RECORD_LIMITS:
                return take_limits(gate, record, attachment);
        case CKV_RECORD_GATE_PING:
                /* once a second, so it is the clock of the gate as well */
                drop_slow(gate);
                report(gate);
                ckv_link_pong(&gate->link);
                return 0;
        default:
                return CKV_LINK_E_MALFORMED;
        }
}

/* pull_records() - at most @most of them. Return: 0, an outcome of ckv_link_recv() but EMPTY, or -errno. */
static int pull_records(struct ckv_gate *gate, unsigned most) {
        for (unsigned i = 0; i < most; i++) {
                struct ckv_record record;
                const void *attachment;
                int r = ckv_link_recv(&gate->link, &record, &attachment);

                if (r == CKV_LINK_E_EMPTY)
                        return 0;
                if (r == 0)
                        r = handle_record(gate, &record, attachment);
                if (r)
                        return r;
        }
        return 0;
}

int ckv_gate_await_limits(struct ckv_gate *gate) {
        struct pollfd pair = { .fd = gate->link.fd, .events = POLLIN };

        while (gate->limits.request_bytes == 0) {
                int r;

                if (poll(&pair, 1, -1) < 0 && errno != EINTR)
                        return ckv_error_origin(-errno);
                r = pull_records(gate, 1);
                if (r)
                        return r;
        }
        return 0;
}

/* Who has called, of those that are not asked each time. */
struct callers {
        bool pair, zap;
};

/*
 * await() - sleep until there is something to do
 * @flushed: what ckv_link_flush() last said
 * @empty:   what pull_messages() said
 * @callers: those that were served in this turn; afterwards those to serve in the next
 */
static int await(struct ckv_gate *gate, int flushed, bool empty, struct callers *callers) {
        struct pollfd fds[] = {
                { .fd = gate->link.fd, .events = POLLIN },
                { .fd = gate->router.fd, .events = POLLIN },
                { .fd = gate->router.zap.fd, .events = POLLIN },
                { .fd = ckv_accept_event_fd(), .events = POLLIN },
        };
        int timeout = -1;

        if (flushed == CKV_LINK_E_PAIR_FULL)
                fds[0].events |= POLLOUT;
        if (!ckv_link_idle(&gate->link))
                fds[1].fd = -1;
        else if (!empty && ckv_router_ready(&gate->router))
                timeout = 0;
        *callers = (struct callers){ .zap = callers->zap && ckv_zap_ready(&gate->router.zap) };
        if (callers->zap)
                timeout = 0;
        if (timeout < 0 && ckv_link_unreported(&gate->link) > 0)
                timeout = REPORT_MSEC;

        switch (poll(fds, CKV_ARRAY_SIZE(fds), timeout)) {
        case 0:
                if (timeout > 0)
                        ckv_link_pong(&gate->link);
                return 0;
        case -1:
                return errno == EINTR ? 0 : ckv_error_origin(-errno);
        default:
                callers->pair = fds[0].revents != 0;
                callers->zap |= fds[2].revents != 0;
                if (fds[3].revents & POLLIN)
                        report(gate);
                return 0;
        }
}

int ckv_gate_serve(struct ckv_gate *gate) {
        struct callers callers = { true, true };

        for (;;) {
                bool empty;
                int r, flushed;

                r = callers.pair ? pull_records(gate, TURN_MAX) : 0;
                if (r)
                        return r;
                if (ckv_link_unreported(&gate->link) > CKV_RING_BYTES / 4)
                        ckv_link_pong(&gate->link);
                r = callers.zap ? ckv_zap_serve(&gate->router.zap) : 0;
                if (r)
                        return ckv_error_trace(r);
                flushed = pull_messages(gate, &empty);
                if (flushed < 0 || flushed == CKV_LINK_E_CLOSED)
                        return flushed;
                r = await(gate, flushed, empty, &callers);
                if (r)
                        return ckv_error_trace(r);
        }
}
