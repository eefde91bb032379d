/*
 * A side connection: attaching, offering descriptors, noticing deaths.
 *
 * Which descriptor came is first-hand here.  Everything else is fixed: one
 * record of 96 bytes, at most one descriptor, and whoever breaks a rule is
 * disconnected, which ends its session.  A client that is merely wrong (an
 * unsealed memfd, a quota) gets a code and goes on.
 *
 * At most 64 records of one connection are handled in one turn of the loop.
 *
 * Not here: how connections come to be (daemon/side_accept.c), what a control
 * page is (daemon/control.c), CUDA descriptors, and reading of memory: only
 * regions do that.
 */
#include "daemon/side.h"

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "base/macros.h"
#include "base/random.h"
#include "daemon/control.h"
#include "daemon/closer.h"
#include "daemon/daemon.h"
#include "daemon/session.h"
#include "daemon/side_conn.h"
#include "ipc/seqpacket.h"
#include "proto/status.h"

#include <inttypes.h>
#include <poll.h>
#include <string.h>
#include <sys/pidfd.h>
#include <utlist.h>

enum { RECORDS_PER_TURN = 64 };

/* Lines of the log that clients can provoke, all connections together. */
static struct ckv_log_rate breach_rate;

struct ckv_side_conn *ckv_side_conn_free(struct ckv_side_conn *conn) {
        struct ckv_session *session = conn->session;

        /* the session may look at the connection once more, and must not find itself there */
        conn->session = NULL;
        if (session)
                ckv_session_end(session);
        ckv_side_offers_clear(&conn->offers);
        (void)ckv_control_unref(conn->control);
        sd_event_source_disable_unref(conn->expiry_source);
        sd_event_source_disable_unref(conn->process_source);
        sd_event_source_disable_unref(conn->socket_source);
        (void)ckv_close(conn->pidfd);
        (void)ckv_close(conn->fd);
        ckv_charge_deinit(&conn->charge);
        free(conn);
        return NULL;
}

/* conn_close() - the one way in which an accepted connection ends */
static void conn_close(struct ckv_side_conn *conn) {
        ckv_log(CKV_LOG_DEBUG, SIDE_CLOSED, "endpoint=%s uid=%" PRIu32 " pid=%" PRIu32, conn->endpoint->name, conn->peer.uid,
                conn->peer.pid);
        DL_DELETE(conn->endpoint->side_conns, conn);
        ckv_side_conn_free(conn);
}

/* discard() - a descriptor that is not wanted; close() of whatever it is may block, so not here */
static void discard(void *conn, int fd) {
        ckv_closer_close_received(((struct ckv_side_conn *)conn)->charge.tenant, CKV_CLOSER_UNKNOWN, fd);
}

static void breach(struct ckv_side_conn *conn, const char *why) {
        uint64_t suppressed;

        if (ckv_log_allowed(&breach_rate, ckv_now_nsec(), &suppressed))
                ckv_log(CKV_LOG_WARNING, SIDE_BREACH, "endpoint=%s uid=%" PRIu32 " pid=%" PRIu32 " why=\"%s\" suppressed=%" PRIu64,
                        conn->endpoint->name, conn->peer.uid, conn->peer.pid, why, suppressed);
        if (conn->session)
                ckv_side_notice(conn, CKV_SIDE_NOTICE_SESSION_ENDED, 0);
        conn_close(conn);
}

/* reply() - send an answer; a client that leaves no room for it has stopped reading. Return: false: the connection is gone. */
static bool reply(struct ckv_side_conn *conn, struct ckv_side *record, int send_fd) {
        int r;

        record->magic = CKV_SIDE_MAGIC;
        record->version = CKV_SIDE_VERSION;
        r = ckv_seqpacket_send(conn->fd, record, sizeof(*record), send_fd);
        if (r == 0)
                return true;
        if (r == CKV_SEQPACKET_E_AGAIN)
                breach(conn, "does not read its answers");
        else
                conn_close(conn);
        return false;
}

/* unused_zero() - are all fields zero except the first four and those named? */
static bool unused_zero(const struct ckv_side *record, bool kind_size, bool token, bool slots_bytes) {
        static const struct ckv_side zero;
        struct ckv_side rest = *record;

        rest.magic = 0;
        rest.version = rest.type = 0;
        rest.cookie = 0;
        if (kind_size) {
                rest.kind = 0;
                rest.size = 0;
        }
        if (token)
                memset(rest.token, 0, sizeof(rest.token));
        if (slots_bytes)
                rest.slots = rest.kept_bytes = 0;
        return memcmp(&rest, &zero, sizeof(rest)) == 0;
}

/* take_control() - the control page of ATTACH, if one came. Return: OK, or why not. */
static enum ckv_code take_control(struct ckv_side_conn *conn, const struct ckv_side *record, int fd) {
        if (fd < 0 && !record->slots && !record->kept_bytes)
                return CKV_CODE_OK;
        if (fd < 0 || !record->slots || !record->kept_bytes)
                return CKV_CODE_INVALID_ARGUMENT;
        return ckv_control_open(conn->endpoint->daemon, conn->charge.tenant, fd, record->slots, record->kept_bytes, &conn->control);
}

/* handle_attach() - Return: false: the connection is gone */
static bool handle_attach(struct ckv_side_conn *conn, const struct ckv_side *record, int fd) {
        struct ckv_side answer = { .type = CKV_SIDE_ATTACHED, .cookie = record->cookie };
        _cleanup_close_ int self = -1;

        if (conn->attached) {
                discard(conn, fd);
                breach(conn, "second ATTACH");
                return false;
        }
        if (!unused_zero(record, false, false, true)) {
                discard(conn, fd);
                breach(conn, "unused fields of ATTACH are not zero");
                return false;
        }
        self = pidfd_open(getpid(), 0);
        if (self < 0 || ckv_random(conn->token, sizeof(conn->token)))
                answer.code = CKV_CODE_NO_MEMORY;
        else
                answer.code = take_control(conn, record, fd);
        discard(conn, fd);
        if (answer.code != CKV_CODE_OK)
                return reply(conn, &answer, -1);
        conn->attached = true;
        memcpy(answer.boot_id, conn->endpoint->daemon->boot_id, sizeof(answer.boot_id));
        memcpy(answer.token, conn->token, sizeof(answer.token));
        answer.now_ns = ckv_now_nsec();
        ckv_log(CKV_LOG_DEBUG, SIDE_ATTACHED, "endpoint=%s uid=%" PRIu32 " pid=%" PRIu32 " slots=%" PRIu32, conn->endpoint->name,
                conn->peer.uid, conn->peer.pid, record->slots);
        return reply(conn, &answer, self);
}

static int on_expiry(sd_event_source *source, uint64_t usec, void *userdata);

/* expiry_arm() - be called when the oldest offer will be too old; @next_nsec 0: no offer */
static int expiry_arm(struct ckv_side_conn *conn, uint64_t next_nsec) {
        uint64_t usec = next_nsec / CKV_NSEC_PER_USEC + 1;
        int r;

        if (next_nsec == 0)
                return conn->expiry_source ? sd_event_source_set_enabled(conn->expiry_source, SD_EVENT_OFF) : 0;
        if (!conn->expiry_source)
                return sd_event_add_time(conn->endpoint->daemon->event, &conn->expiry_source, CLOCK_MONOTONIC, usec, 0, on_expiry, conn);
        r = sd_event_source_set_time(conn->expiry_source, usec);
        return r < 0 ? r : sd_event_source_set_enabled(conn->expiry_source, SD_EVENT_ONESHOT);
}

static int on_expiry(sd_event_source *source, uint64_t usec, void *userdata) {
        struct ckv_side_conn *conn = userdata;

        (void)source;
        (void)usec;
        (void)expiry_arm(conn, ckv_side_offers_expire(&conn->offers, ckv_now_nsec()));
        return 0;
}

/* handle_offer() - Return: false: the connection is gone */
static bool handle_offer(struct ckv_side_conn *conn, const struct ckv_side *record, int fd) {
        struct ckv_side answer = { .type = CKV_SIDE_OFFERED, .cookie = record->cookie };
        uint64_t now = ckv_now_nsec();

        if (fd < 0) {
                breach(conn, "OFFER without a descriptor");
                return false;
        }
        if (!unused_zero(record, true, false, false)) {
                discard(conn, fd);
                breach(conn, "unused fields of OFFER are not zero");
                return false;
        }
        answer.code = ckv_side_offer_add(&conn->offers, conn->charge.tenant, fd, record->kind, record->size, now, answer.token);
        /* without the timer it would still expire, when the next one is taken */
        (void)expiry_arm(conn, ckv_side_offers_expire(&conn->offers, now));
        return reply(conn, &answer, -1);
}

/* handle_withdraw() - Return: false: the connection is gone */
static bool handle_withdraw(struct ckv_side_conn *conn, const struct ckv_side *record, int fd) {
        struct ckv_side answer = { .type = CKV_SIDE_OFFERED, .cookie = record->cookie };

        if (fd >= 0 || !unused_zero(record, false, true, false)) {
                discard(conn, fd);
                breach(conn, "WITHDRAW with a descriptor, or unused fields are not zero");
                return false;
        }
        if (!ckv_side_offer_withdraw(&conn->offers, record->token, ckv_now_nsec()))
                answer.code = CKV_CODE_NOT_FOUND;
        memcpy(answer.token, record->token, sizeof(answer.token));
        return reply(conn, &answer, -1);
}

/* handle() - one record; @fd is consumed. Return: false: the connection is gone. */
static bool handle(struct ckv_side_conn *conn, const struct ckv_side *record, int fd) {
        const char *why = NULL;

        if (record->magic != CKV_SIDE_MAGIC)
                why = "wrong magic";
        else if (record->version != CKV_SIDE_VERSION)
                why = "unknown version of the record";
        else if (record->type != CKV_SIDE_ATTACH && !conn->attached)
                why = "no ATTACH before it";
        if (!why)
                switch (record->type) {
                case CKV_SIDE_ATTACH:
                        return handle_attach(conn, record, fd);
                case CKV_SIDE_OFFER:
                        return handle_offer(conn, record, fd);
                case CKV_SIDE_WITHDRAW:
                        return handle_withdraw(conn, record, fd);
                default:
                        why = "unknown type of record";
                }
        discard(conn, fd);
        breach(conn, why);
        return false;
}

static int on_socket(sd_event_source *source, int fd, uint32_t revents, void *userdata) {
        struct ckv_side_conn *conn = userdata;

        (void)source;
        (void)fd;
        (void)revents;
        for (int i = 0; i < RECORDS_PER_TURN; i++) {
                struct ckv_side record;
                int received = -1, r;

                r = ckv_seqpacket_recv_discard(conn->fd, &record, sizeof(record), discard, conn,
                                               ckv_closer_stuck(conn->charge.tenant) ? NULL : &received);
                if (r == CKV_SEQPACKET_E_AGAIN)
                        return 0;
                if (r == CKV_SEQPACKET_E_MALFORMED) {
                        breach(conn, "not one record of 96 bytes with at most one descriptor");
                        return 0;
                }
                if (r < 0)
                        ckv_log(CKV_LOG_WARNING, SIDE_FAILED, "endpoint=%s uid=%" PRIu32 " pid=%" PRIu32 " errno=%d",
                                conn->endpoint->name, conn->peer.uid, conn->peer.pid, -r);
                if (r) {
                        conn_close(conn);
                        return 0;
                }
                if (!handle(conn, &record, received))
                        return 0;
        }
        return 0;
}

static int on_process_ended(sd_event_source *source, int fd, uint32_t revents, void *userdata) {
        (void)source;
        (void)fd;
        (void)revents;
        conn_close(userdata);
        return 0;
}

int ckv_side_conn_watch(struct ckv_side_conn *conn) {
        sd_event *event = conn->endpoint->daemon->event;
        int r = sd_event_add_io(event, &conn->socket_source, conn->fd, EPOLLIN, on_socket, conn);

        if (r >= 0)
                r = sd_event_add_io(event, &conn->process_source, conn->pidfd, EPOLLIN, on_process_ended, conn);
        return r < 0 ? ckv_error_origin(r) : 0;
}

void ckv_side_shutdown(struct ckv_endpoint *endpoint) {
        ckv_assert_loop_thread();
        endpoint->side_source = sd_event_source_disable_unref(endpoint->side_source);
        while (endpoint->side_conns)
                conn_close(endpoint->side_conns);
}

struct ckv_side_conn *ckv_side_find(struct ckv_endpoint *endpoint, const uint8_t token[static 16]) {
        struct ckv_side_conn *conn;

        ckv_assert_loop_thread();
        DL_FOREACH(endpoint->side_conns, conn)
                if (conn->attached && ckv_side_token_equal(conn->token, token))
                        return conn;
        return NULL;
}

const struct ckv_peer *ckv_side_peer(const struct ckv_side_conn *conn) {
        return &conn->peer;
}

void ckv_side_bind(struct ckv_side_conn *conn, struct ckv_session *session) {
        ckv_assert_loop_thread();
        assert(!session || !conn->session);
        conn->session = session;
}

struct ckv_session *ckv_side_session(const struct ckv_side_conn *conn) {
        return conn->session;
}

struct ckv_control *ckv_side_control(const struct ckv_side_conn *conn) {
        return conn->control;
}

bool ckv_side_alive(const struct ckv_side_conn *conn) {
        struct pollfd died = { .fd = conn->pidfd, .events = POLLIN };

        return poll(&died, 1, 0) == 0;
}

bool ckv_side_take(struct ckv_side_conn *conn, const uint8_t token[static 16], int *ret_fd, uint32_t *ret_kind, uint64_t *ret_size) {
        ckv_assert_loop_thread();
        return ckv_side_offer_take(&conn->offers, token, ckv_now_nsec(), ret_fd, ret_kind, ret_size);
}

void ckv_side_notice(struct ckv_side_conn *conn, enum ckv_side_notice notice, uint32_t region_id) {
        const struct ckv_side record = { .magic = CKV_SIDE_MAGIC, .version = CKV_SIDE_VERSION, .type = CKV_SIDE_NOTICE,
                                         .kind = notice, .region_id = region_id };

        ckv_assert_loop_thread();
        /* never closes: the caller holds the connection */
        (void)ckv_seqpacket_send(conn->fd, &record, sizeof(record), -1);
}

void ckv_side_notice_all(struct ckv_endpoint *endpoint, enum ckv_side_notice notice) {
        struct ckv_side_conn *conn;

        ckv_assert_loop_thread();
        DL_FOREACH(endpoint->side_conns, conn)
                if (conn->attached)
                        ckv_side_notice(conn, notice, 0);
}
