/*
 * The side socket: who may connect, and what a connection costs.
 *
 * The core accepts these connections itself, so who is calling is first-hand:
 * the kernel says it, and a pidfd watches the process from then on.  A
 * connection counts against its user from accept on, and one that is over the
 * limit, or of a user that the endpoint does not list, is told so and closed
 * before a byte of it is read.  What it says afterwards is daemon/side.c's
 * business.
 */
#include "daemon/side.h"

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "base/macros.h"
#include "daemon/daemon.h"
#include "daemon/side_conn.h"
#include "ipc/peer.h"
#include "ipc/seqpacket.h"
#include "proto/status.h"

#include <inttypes.h>
#include <string.h>
#include <sys/socket.h>
#include <utlist.h>

enum { ACCEPTS_PER_TURN = 16 };
enum { CONN_STRANGER = 1000 };  /* outcome of conn_new() beside those of ipc/peer.h and CKV_TENANT_E_QUOTA: said already */
/* Turns of accepting in a second: where descriptors run out the socket stays readable, and the loop must not spin. */
#define ACCEPT_TURNS_USEC UINT64_C(1000000)
enum { ACCEPT_TURNS = 100 };

/* Lines of the log that clients can provoke, all connections together. */
static struct ckv_log_rate refused_rate;

/* stranger_notice() - tell a process that the endpoint does not list why its connection ends; say so once for each user */
static void stranger_notice(struct ckv_endpoint *endpoint, int fd, const struct ckv_peer *peer) {
        const struct ckv_side record = {
                .magic = CKV_SIDE_MAGIC, .version = CKV_SIDE_VERSION, .type = CKV_SIDE_NOTICE,
                .kind = CKV_SIDE_NOTICE_SESSION_ENDED, .code = CKV_CODE_PERMISSION,
        };

        (void)ckv_seqpacket_send(fd, &record, sizeof(record), -1);
        ckv_breach_stranger(endpoint, peer->uid, peer->gid, peer->pid);
}

/* quota_notice() - tell a connection that is one too many why it ends; one that has no room for it learns nothing */
static void quota_notice(int fd, const struct ckv_tenant *tenant) {
        const struct ckv_side record = {
                .magic = CKV_SIDE_MAGIC, .version = CKV_SIDE_VERSION, .type = CKV_SIDE_NOTICE,
                .kind = CKV_SIDE_NOTICE_SESSION_ENDED, .code = CKV_CODE_QUOTA,
                .size = tenant->limit[CKV_SLOT_CONNECTIONS], .slots = (uint32_t)tenant->used[CKV_SLOT_CONNECTIONS],
        };

        (void)ckv_seqpacket_send(fd, &record, sizeof(record), -1);
}

/* conn_new() - know the peer, charge it, watch it. Return: 0, an outcome (refused, nothing left), or -errno. */
static int conn_new(struct ckv_endpoint *endpoint, int fd, struct ckv_side_conn *conn) {
        struct ckv_tenant *tenant;
        uid_t uid;
        gid_t gid;
        pid_t pid;
        int r;

        conn->endpoint = endpoint;
        conn->fd = fd;
        conn->pidfd = -1;
        r = ckv_peer_identify(fd, &uid, &gid, &pid, &conn->pidfd);
        if (r)
                return r;
        conn->peer = (struct ckv_peer){ .uid = uid, .gid = gid, .pid = (uint32_t)pid };
        if (!ckv_access_allows(endpoint->access.ranges, endpoint->access.count, uid, gid)) {
                stranger_notice(endpoint, fd, &conn->peer);
                return CONN_STRANGER;
        }

        r = ckv_tenant_ref(endpoint->daemon, conn->peer.uid, &tenant);
        if (r)
                return ckv_error_trace(r);
        r = ckv_charge_init(&conn->charge, tenant, CKV_SLOT_CONNECTIONS, 1);
        if (r == CKV_TENANT_E_QUOTA)
                quota_notice(fd, tenant);
        ckv_tenant_unref(tenant); /* the charge holds it now */
        if (r)
                return r;

        return ckv_side_conn_watch(conn);
}

/* conn_accept() - make a connection of an accepted socket, or drop it; @fd is consumed */
static void conn_accept(struct ckv_endpoint *endpoint, int fd) {
        struct ckv_side_conn *conn = calloc(1, sizeof(*conn));
        uint64_t suppressed;
        int r;

        if (!conn) {
                (void)ckv_close(fd);
                return;
        }
        r = conn_new(endpoint, fd, conn);
        if (r) {
                if (r != CONN_STRANGER && ckv_log_allowed(&refused_rate, ckv_now_nsec(), &suppressed))
                        ckv_log(CKV_LOG_WARNING, SIDE_REFUSED,
                                "endpoint=%s uid=%" PRIu32 " pid=%" PRIu32 " why=\"%s\" suppressed=%" PRIu64, endpoint->name,
                                conn->peer.uid, conn->peer.pid,
                                r < 0 ? strerror(-r) : conn->peer.pid ? "too many connections of this user" : "process is gone",
                                suppressed);
                ckv_side_conn_free(conn);
                return;
        }
        DL_APPEND(endpoint->side_conns, conn);
}

static int on_listening(sd_event_source *source, int fd, uint32_t revents, void *userdata) {
        (void)source;
        (void)revents;
        for (int i = 0; i < ACCEPTS_PER_TURN; i++) {
                int accepted = accept4(fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);

                if (accepted < 0)
                        /* nothing there, or no descriptors or memory left, which passes */
                        return 0;
                conn_accept(userdata, accepted);
        }
        return 0;
}

int ckv_side_listen(struct ckv_endpoint *endpoint) {
        int r;

        ckv_assert_loop_thread();
        r = sd_event_add_io(endpoint->daemon->event, &endpoint->side_source, endpoint->side_fd, EPOLLIN, on_listening, endpoint);
        if (r >= 0)
                r = sd_event_source_set_ratelimit(endpoint->side_source, ACCEPT_TURNS_USEC, ACCEPT_TURNS);
        return r < 0 ? ckv_error_origin(r) : 0;
}
