/*
 * Sessions.  Who is calling comes from the kernel twice: the gate reads it
 * from the ZeroMQ connection, the core from the side connection; a session
 * belongs to one endpoint and one process, and its 128-bit token opens it from
 * there only.  A process is watched by a pidfd, the side connection's or the
 * session's own, which is opened before the token leaves, so that a token that
 * comes back proves that the pidfd is that process.
 */
#include "daemon/session.h"

#include "base/limits.h"
#include "base/log.h"
#include "base/macros.h"
#include "base/random.h"
#include "daemon/answer.h"
#include "daemon/cache.h"
#include "daemon/daemon.h"
#include "daemon/refuse.h"
#include "daemon/region.h"
#include "daemon/request.h"

#include <errno.h>
#include <string.h>
#include <sys/syscall.h>

/* Capability numbers of chunkkv.proto that this build has. */
enum {
        CAP_CUDA_IPC = 1, CAP_CUDA_VMM = 2, CAP_MEMFD = 3, CAP_POSIX_SHM = 4, CAP_CONTROL_PAGE = 5, CAP_HOLD = 6,
        CAP_COPY_OUT = 7, CAP_REPAIR = 8, CAP_TABLE_IN_REGION = 9,
        CAP_REPLY_IN_REGION = 10, CAP_SCORES = 11, CAP_LSE = 12, CAP_TIMELINE = 13,
};

uint64_t ckv_capabilities(const struct ckv_options *options) {
        static const uint8_t built[] = { CAP_MEMFD, CAP_CONTROL_PAGE, CAP_HOLD, CAP_COPY_OUT, CAP_REPAIR, CAP_TABLE_IN_REGION,
                                         CAP_REPLY_IN_REGION, CAP_SCORES, CAP_LSE, CAP_TIMELINE };
        uint64_t bits = 0;

        for (size_t i = 0; i < CKV_ARRAY_SIZE(built); i++)
                bits |= UINT64_C(1) << built[i];
        if (options->posix_shm)
                bits |= UINT64_C(1) << CAP_POSIX_SHM;
        if (ckv_options_cuda(options))
                bits |= UINT64_C(1) << CAP_CUDA_IPC | UINT64_C(1) << CAP_CUDA_VMM;
        return bits;
}

static bool check_hello(const struct ckv_options *options, const struct ckv_record_hello *hello, struct ckv_record_status *status) {
        if (hello->minor_min > 0)
                return ckv_refuse(status, CKV_CODE_UNSUPPORTED_VERSION, CKV_F_HELLO_MINOR, CKV_D_NO_MINOR, 0, 0, 0);
        if (hello->needs_count > CKV_ARRAY_SIZE(hello->needs))
                return ckv_refuse(status, CKV_CODE_INTERNAL, CKV_F_NONE, CKV_D_INTERNAL, 0, 0, 0);
        for (uint32_t i = 0; i < hello->needs_count; i++)
                if (hello->needs[i] >= 64 || !(ckv_capabilities(options) >> hello->needs[i] & 1))
                        return ckv_refuse_at(status, CKV_CODE_UNSUPPORTED, CKV_F_HELLO_NEEDS, i, 0, CKV_D_NO_CAPABILITY,
                                             hello->needs[i], 0, 0);
        return true;
}

static int on_process_died(sd_event_source *source, int fd, uint32_t revents, void *userdata) {
        (void)source;
        (void)fd;
        (void)revents;
        ckv_session_end(userdata);
        return 0;
}

/* watch_process() - a session without a side connection ends with its process */
static bool watch_process(struct ckv_session *session, struct ckv_record_status *status) {
        int r, pidfd = (int)syscall(SYS_pidfd_open, session->peer.pid, 0);

        if (pidfd < 0)
                return ckv_refuse(status, errno == ESRCH ? CKV_CODE_PERMISSION : CKV_CODE_NO_MEMORY, CKV_F_NONE,
                                  errno == ESRCH ? CKV_D_NOT_YOURS : CKV_D_NO_MEMORY, 0, 0, 0);
        r = sd_event_add_io(session->daemon->event, &session->pid_source, pidfd, EPOLLIN, on_process_died, session);
        if (r < 0) {
                (void)ckv_close(pidfd);
                return ckv_refuse(status, CKV_CODE_NO_MEMORY, CKV_F_NONE, CKV_D_NO_MEMORY, 0, 0, 0);
        }
        (void)sd_event_source_set_io_fd_own(session->pid_source, 1);
        return true;
}

/* free_memory() - caches, then regions; twice is fine */
static void free_memory(struct ckv_session *session) {
        while (session->caches) {
                struct ckv_cache *cache = session->caches;

                HASH_DELETE(hh, session->caches, cache);
                ckv_cache_free(cache);
        }
        while (session->regions) {
                struct ckv_region *region = session->regions;

                HASH_DELETE(hh, session->regions, region);
                ckv_region_free(region);
        }
}

/* free_session() - everything that it holds, in reverse order of how it came; fine on a half-built one */
static void free_session(struct ckv_session *session) {
        free_memory(session);
        ckv_window_deinit(&session->window);
        sd_event_source_unref(session->pid_source);
        ckv_charge_deinit(&session->charge);
        ckv_tenant_unref(session->tenant);
        free(session);
}

static bool new_session(struct ckv_endpoint *endpoint, const struct ckv_record *record, struct ckv_side_conn *side,
                        struct ckv_record_status *status, struct ckv_session **ret_session) {
        struct ckv_session *session = calloc(1, sizeof(*session));

        if (!session)
                return ckv_refuse(status, CKV_CODE_NO_MEMORY, CKV_F_NONE, CKV_D_NO_MEMORY, 0, 0, 0);
        session->daemon = endpoint->daemon;
        session->endpoint = endpoint;
        session->peer = (struct ckv_peer){ record->head.uid, record->head.gid, record->head.pid };
        if (ckv_tenant_ref(session->daemon, session->peer.uid, &session->tenant) || ckv_random(session->token, 16)) {
                free_session(session);
                return ckv_refuse(status, CKV_CODE_NO_MEMORY, CKV_F_NONE, CKV_D_NO_MEMORY, 0, 0, 0);
        }
        session->window.tenant = session->tenant;
        if (ckv_charge_init(&session->charge, session->tenant, CKV_SLOT_SESSIONS, 1)) {
                ckv_refuse_quota(status, session->tenant, CKV_SLOT_SESSIONS, 1, CKV_F_NONE);
                free_session(session);
                return false;
        }
        if (!side && !watch_process(session, status)) {
                free_session(session);
                return false;
        }
        HASH_ADD(hh, session->daemon->sessions, token, sizeof(session->token), session);
        if (!CKV_HASH_ADDED(session)) {
                free_session(session);
                return ckv_refuse(status, CKV_CODE_NO_MEMORY, CKV_F_NONE, CKV_D_NO_MEMORY, 0, 0, 0);
        }
        session->side = side;
        if (side)
                ckv_side_bind(side, session);
        *ret_session = session;
        return true;
}

bool ckv_session_hello(struct ckv_endpoint *endpoint, const struct ckv_record *record, struct ckv_record_status *ret_status,
                       struct ckv_session **ret_session) {
        const struct ckv_record_hello *hello = &record->body.hello;
        struct ckv_side_conn *side = NULL;

        ckv_assert_loop_thread();
        ckv_status_set(ret_status, CKV_CODE_OK, CKV_F_NONE, CKV_D_NONE, 0, 0, 0);
        if (endpoint->daemon->draining)
                return ckv_refuse(ret_status, CKV_CODE_DRAINING, CKV_F_NONE, CKV_D_DRAINING, 0, 0, 0);
        /* the gate has looked, but a gate may have been taken over */
        if (!ckv_access_allows(endpoint->access.ranges, endpoint->access.count, record->head.uid, record->head.gid)) {
                ckv_breach_stranger(endpoint, record->head.uid, record->head.gid, record->head.pid);
                return ckv_refuse(ret_status, CKV_CODE_PERMISSION, CKV_F_NONE, CKV_D_STRANGER, record->head.uid, record->head.gid, 0);
        }
        if (!check_hello(endpoint->daemon->options, hello, ret_status))
                return false;
        if (hello->has_attach_token) {
                const struct ckv_peer *peer;

                side = ckv_side_find(endpoint, hello->attach_token);
                if (!side)
                        return ckv_refuse(ret_status, CKV_CODE_NOT_FOUND, CKV_F_HELLO_ATTACH_TOKEN, CKV_D_UNKNOWN_TOKEN, 0, 0, 0);
                peer = ckv_side_peer(side);
                if (peer->uid != record->head.uid || peer->gid != record->head.gid || peer->pid != record->head.pid)
                        return ckv_refuse(ret_status, CKV_CODE_PERMISSION, CKV_F_HELLO_ATTACH_TOKEN, CKV_D_NOT_YOURS, 0, 0, 0);
                if (ckv_side_session(side)) {
                        /* a lost Welcome must not leak a session */
                        *ret_session = ckv_side_session(side);
                        return true;
                }
        }
        return new_session(endpoint, record, side, ret_status, ret_session);
}

struct ckv_session *ckv_session_find(struct ckv_endpoint *endpoint, const struct ckv_record *record,
                                     struct ckv_record_status *ret_status) {
        struct ckv_session *session;

        ckv_assert_loop_thread();
        HASH_FIND(hh, endpoint->daemon->sessions, record->head.token, sizeof(record->head.token), session);
        if (!session) {
                ckv_refuse(ret_status, CKV_CODE_SESSION_UNKNOWN, CKV_F_SESSION_TOKEN, CKV_D_UNKNOWN_SESSION, 0, 0, 0);
                return NULL;
        }
        if (session->endpoint != endpoint || session->peer.uid != record->head.uid || session->peer.gid != record->head.gid ||
            session->peer.pid != record->head.pid) {
                ckv_breach_foreign(&session->foreign, session->peer.uid, endpoint, record->head.uid, record->head.pid);
                ckv_refuse(ret_status, CKV_CODE_PERMISSION, CKV_F_SESSION_TOKEN, CKV_D_NOT_YOURS, 0, 0, 0);
                return NULL;
        }
        return session;
}

void ckv_session_settle(struct ckv_session *session) {
        struct ckv_record_status ok;
        struct ckv_route route;
        bool answer;

        if (!session->ending || session->request_count > 0)
                return;
        free_memory(session);
        if (session->import_count > 0)
                return;
        route = session->end_route;
        answer = session->answer_end;
        free_session(session);
        /* OK means that nothing of the client is touched any more, so it is said last */
        if (answer) {
                ckv_status_set(&ok, CKV_CODE_OK, CKV_F_NONE, CKV_D_NONE, 0, 0, 0);
                ckv_answer_send_status(&route, &ok);
        }
}

void ckv_session_end(struct ckv_session *session) {
        ckv_assert_loop_thread();
        if (session->ending)
                return;
        session->ending = true;
        HASH_DELETE(hh, session->daemon->sessions, session);
        if (session->side) {
                ckv_side_bind(session->side, NULL);
                session->side = NULL;
        }
        session->pid_source = sd_event_source_unref(session->pid_source);
        ckv_requests_cancel_all(session);
        ckv_session_settle(session);
}

void ckv_sessions_end_all(struct ckv_daemon *daemon) {
        while (daemon->sessions) {
                if (daemon->sessions->side)
                        ckv_side_notice(daemon->sessions->side, CKV_SIDE_NOTICE_SESSION_ENDED, 0);
                ckv_session_end(daemon->sessions);
        }
}
