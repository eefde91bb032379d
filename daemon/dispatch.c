/*
 * One record of a gate, from its head to the function that serves it.  The
 * order of checks is protocol.md 3: boot id, session, repeat, deadline, quota,
 * then what needs registered state; the first failure is the answer.
 *
 * Requests that change something are remembered by their id and answered once;
 * Ping and GetStatus only look, and are simply done again.
 */
#include "base/clock.h"
#include "base/fnv.h"
#include "base/limits.h"
#include "base/macros.h"
#include "daemon/answer.h"
#include "daemon/cache.h"
#include "daemon/daemon.h"
#include "daemon/gate_link.h"
#include "daemon/imported.h"
#include "daemon/mapped.h"
#include "daemon/refuse.h"
#include "daemon/region.h"
#include "daemon/request.h"

#include <errno.h>
#include <string.h>

/* One request on its way through this file. */
struct call {
        struct ckv_endpoint *endpoint;
        const struct ckv_record *record;
        const uint8_t *attachment;
        uint32_t bytes;
        struct ckv_route route;
        struct ckv_session *session;
        struct ckv_window_entry *entry;
        bool later;                             /* something else answers it */
};

static void serve_hello(struct call *call) {
        struct ckv_record_status status;
        struct ckv_session *session;

        if (ckv_session_hello(call->endpoint, call->record, &status, &session))
                ckv_answer_send_welcome(&call->route, session, &status);
        else
                ckv_answer_send_status(&call->route, &status);
}

/* outcome_of() - what is known of an earlier request. Return: false if nothing is. */
static bool outcome_of(const struct call *call, uint64_t target, struct ckv_outcome *ret_outcome) {
        const struct ckv_window_entry *entry = ckv_window_find(&call->session->window, target);

        if (!entry)
                return false;
        *ret_outcome = (struct ckv_outcome){ .target_request_id = target };
        if (entry->running) {
                ret_outcome->phase = entry->running->phase;
                ret_outcome->code = entry->running->cancelled ? CKV_CODE_CANCELLED : CKV_CODE_OK;
                ret_outcome->cache = entry->running->phase == CKV_PHASE_COMMITTING ? CKV_CACHE_PENDING : CKV_CACHE_CLEAN;
        } else {
                const struct ckv_record_result *result = &entry->answer->record.body.result;

                ret_outcome->code = result->status.code;
                ret_outcome->cache = result->status.cache;
                if (entry->phase)
                        ret_outcome->phase = entry->phase;
                else
                        ret_outcome->phase = result->status.code == CKV_CODE_OK ? CKV_PHASE_DONE : CKV_PHASE_FAILED;
        }
        return true;
}

static void serve_get_status(const struct call *call) {
        uint64_t target = call->record->body.target.target_request_id;
        struct ckv_record_status status;
        struct ckv_outcome outcome;

        if (target == 0) {
                ckv_answer_send_budgets(&call->route, call->session);
        } else if (outcome_of(call, target, &outcome)) {
                ckv_answer_send_outcome(&call->route, &outcome);
        } else {
                ckv_refuse(&status, CKV_CODE_NOT_FOUND, CKV_F_STATUS_TARGET, CKV_D_UNKNOWN_REQUEST, target, 0, 0);
                ckv_answer_send_status(&call->route, &status);
        }
}

/* cancel_early() - a Cancel that overtook its target, which comes over another connection. Return: NULL: it will not come. */
static struct ckv_window_entry *cancel_early(const struct call *call, uint64_t target) {
        struct ckv_window *window = &call->session->window;
        struct ckv_record_status status;
        struct ckv_window_entry *entry;
        struct ckv_answer answer;

        if (ckv_window_bar(window, target, &entry))
                return NULL;
        ckv_refuse_cancelled(&status);
        ckv_answer_init(&answer, &status);
        entry->is_compress = true;
        entry->phase = CKV_PHASE_CANCELLED;
        ckv_window_store(window, entry, &answer);
        return entry;
}

/* serve_cancel() - ends the target if it has not begun to write; says what became of it either way */
static void serve_cancel(const struct call *call) {
        uint64_t target = call->record->body.target.target_request_id;
        struct ckv_window_entry *entry = ckv_window_find(&call->session->window, target);
        struct ckv_record_status status;
        struct ckv_outcome outcome;

        if (entry && entry->running)
                (void)ckv_request_cancel(entry->running);
        else if (!entry)
                entry = cancel_early(call, target);
        if (entry && entry->is_compress && outcome_of(call, target, &outcome)) {
                ckv_answer_send_outcome(&call->route, &outcome);
                return;
        }
        ckv_refuse(&status, CKV_CODE_NOT_FOUND, CKV_F_CANCEL_TARGET, CKV_D_UNKNOWN_REQUEST, target, 0, 0);
        ckv_answer_send_status(&call->route, &status);
}

static void serve_end_session(const struct call *call) {
        call->session->answer_end = true;
        call->session->end_route = call->route;
        ckv_session_end(call->session);
}

/* on_device() - is it about memory that the device thread opens? */
static bool on_device(const struct call *call) {
        uint32_t source = call->record->body.region.source;

        return call->endpoint->daemon->ops->import && (source == CKV_SOURCE_CUDA_IPC || source == CKV_SOURCE_CUDA_VMM);
}

/* unregister_region() - answered later where the device thread has to let go of it. Return: false with @ret_status. */
static bool unregister_region(struct call *call, struct ckv_record_status *ret_status) {
        struct ckv_region *region = ckv_region_find(call->session, call->record->body.id.id);
        struct ckv_imported *imported = region ? region->mapped->imported : NULL;

        if (!ckv_region_unregister(call->session, call->record->body.id.id, ret_status))
                return false;
        call->later = imported != NULL;
        if (imported)
                ckv_imported_answer(imported, &call->route, call->entry);
        return true;
}

/*
 * serve_register() - REGISTER_* and UNREGISTER_*: done at once, in the loop, but for device memory
 *
 * Return: true, call->later says whether it is answered by now; or false with @ret_status.
 */
static bool serve_register(struct call *call, struct ckv_answer *answer, struct ckv_record_status *ret_status) {
        struct ckv_record_result *result = &answer->record.body.result;
        uint32_t id = call->record->body.id.id;
        struct ckv_region *region;
        struct ckv_cache *cache;
        bool shared;

        switch (call->record->head.type) {
        case CKV_RECORD_REGISTER_REGION:
                if (on_device(call)) {
                        call->later = ckv_imported_begin(call->session, &call->route, call->record, call->attachment, call->bytes,
                                                         call->entry, ret_status);
                        return call->later;
                }
                if (!ckv_region_register(call->session, call->record, ret_status, &region, &shared))
                        return false;
                result->answer = CKV_ANSWER_REGION;
                result->u.region.region_id = region->id;
                result->u.region.shared = shared;
                return true;
        case CKV_RECORD_UNREGISTER_REGION:
                return unregister_region(call, ret_status);
        case CKV_RECORD_REGISTER_CACHE:
                if (!ckv_cache_register(call->session, call->record, call->attachment, call->bytes, ret_status, &cache))
                        return false;
                result->answer = CKV_ANSWER_CACHE;
                result->u.cache.cache_id = cache->id;
                result->u.cache.fast_path = cache->fast_path;
                return true;
        case CKV_RECORD_UNREGISTER_CACHE:
                return ckv_cache_unregister(call->session, id, ret_status);
        default:
                return ckv_refuse(ret_status, CKV_CODE_INTERNAL, CKV_F_NONE, CKV_D_INTERNAL, 0, 0, 0);
        }
}

static void answer_and_store(struct call *call, struct ckv_answer *answer) {
        ckv_answer_settle(call->session, &call->route, call->entry, answer);
}

/* start() - Compress, Commit, Repair: answered when the job is through. Return: false with @ret_status: refused. */
static bool start(const struct call *call, struct ckv_record_status *ret_status) {
        const struct ckv_record *record = call->record;

        if (record->head.type == CKV_RECORD_COMMIT)
                return ckv_hold_commit(call->session, &call->route, record->body.target.target_request_id, call->entry, ret_status);
        if (call->endpoint->daemon->draining)
                return ckv_refuse(ret_status, CKV_CODE_DRAINING, CKV_F_NONE, CKV_D_DRAINING, 0, 0, 0);
        if (record->head.type == CKV_RECORD_REPAIR)
                return ckv_repair_start(call->session, &call->route, record, call->attachment, call->bytes, call->entry, ret_status);
        return ckv_request_start(call->session, &call->route, record, call->attachment, call->bytes, call->entry, ret_status);
}

/* refused() - a request that was not begun: the outcome of its id */
static void refused(struct call *call, const struct ckv_record_status *status) {
        struct ckv_answer answer;

        if (call->record->head.type == CKV_RECORD_COMPRESS) {
                ckv_slot_refuse(call->session, &call->record->body.compress, status->code);
                call->entry->is_compress = true;
        }
        ckv_answer_init(&answer, status);
        answer_and_store(call, &answer);
}

static void serve_new(struct call *call) {
        struct ckv_record_status status;
        struct ckv_answer answer;
        bool good;

        ckv_status_set(&status, CKV_CODE_OK, CKV_F_NONE, CKV_D_NONE, 0, 0, 0);
        switch (call->record->head.type) {
        case CKV_RECORD_COMPRESS:
        case CKV_RECORD_COMMIT:
        case CKV_RECORD_REPAIR:
                if (!start(call, &status))
                        refused(call, &status);
                return;
        default:
                ckv_answer_init(&answer, &status);
                good = serve_register(call, &answer, &status);
                if (call->later)
                        return;
                if (!good)
                        ckv_answer_init(&answer, &status);
                answer_and_store(call, &answer);
                return;
        }
}

/* body_digest() - what makes two requests the same: type, body and attachment; not the deadline */
static uint64_t body_digest(const struct call *call) {
        uint64_t digest = ckv_fnv64(CKV_FNV64_INIT, &call->record->head.type, sizeof(call->record->head.type));

        digest = ckv_fnv64(digest, call->record->body.bytes, sizeof(call->record->body.bytes));
        return ckv_fnv64(digest, call->attachment, call->bytes);
}

static bool check_deadline(const struct call *call, struct ckv_record_status *status) {
        uint64_t now = ckv_now_nsec(), deadline = call->record->head.deadline_ns;

        if (deadline <= now)
                return ckv_refuse(status, CKV_CODE_EXPIRED, CKV_F_DEADLINE, CKV_D_DEADLINE_PASSED, (now - deadline) / CKV_NSEC_PER_USEC,
                                  0, 0);
        if (deadline - now > CKV_LIMIT_DEADLINE_SECONDS * CKV_NSEC_PER_SEC)
                return ckv_refuse(status, CKV_CODE_OUT_OF_RANGE, CKV_F_DEADLINE, CKV_D_DEADLINE_FAR, CKV_LIMIT_DEADLINE_SECONDS, 0, 0);
        return true;
}

/* serve_once() - requests that are executed at most once */
static void serve_once(struct call *call) {
        uint64_t id = call->record->head.request_id;
        struct ckv_record_status status;
        int r = ckv_window_enter(&call->session->window, id, body_digest(call), &call->entry);

        switch (r) {
        case 0:
                if (check_deadline(call, &status)) {
                        serve_new(call);
                        return;
                }
                /* a repeat would be later still, so the refusal may be remembered */
                break;
        case CKV_WINDOW_E_REPEAT:
                if (call->entry->barred && call->record->head.type == CKV_RECORD_COMPRESS)
                        ckv_slot_refuse(call->session, &call->record->body.compress, CKV_CODE_CANCELLED);
                if (call->entry->answered)
                        ckv_answer_send(&call->route, call->entry->answer, true);
                else if (call->entry->running)
                        call->entry->running->route = call->route;
                else if (call->entry->imported)
                        call->entry->imported->route = call->route;
                return;
        case CKV_WINDOW_E_CONFLICT:
                ckv_refuse(&status, CKV_CODE_CONFLICT, CKV_F_REQUEST_ID, CKV_D_ID_OTHER_BODY, id, 0, 0);
                break;
        case CKV_WINDOW_E_OLD:
                ckv_refuse(&status, CKV_CODE_CONFLICT, CKV_F_REQUEST_ID, CKV_D_ID_OLD, id,
                           ckv_window_lowest(&call->session->window), 0);
                break;
        case CKV_WINDOW_E_BUSY:
                ckv_refuse(&status, CKV_CODE_BUSY, CKV_F_REQUEST_ID, CKV_D_IN_USE, 1, 0, 0);
                status.retry_after_ms = CKV_RETRY_MS;
                break;
        default:
                ckv_refuse(&status, CKV_CODE_NO_MEMORY, CKV_F_NONE, CKV_D_NO_MEMORY, 0, 0, 0);
                break;
        }
        if (r == 0)
                refused(call, &status);
        else
                ckv_answer_send_status(&call->route, &status);
}

static void serve(struct call *call) {
        struct ckv_record_status status;

        if (call->record->head.type == CKV_RECORD_HELLO) {
                serve_hello(call);
                return;
        }
        if (memcmp(call->record->head.boot_id, call->endpoint->daemon->boot_id, sizeof(call->record->head.boot_id)) != 0) {
                ckv_refuse(&status, CKV_CODE_STALE_BOOT, CKV_F_BOOT_ID, CKV_D_STALE_BOOT, 0, 0, 0);
                ckv_answer_send_status(&call->route, &status);
                return;
        }
        call->session = ckv_session_find(call->endpoint, call->record, &status);
        if (!call->session) {
                ckv_answer_send_status(&call->route, &status);
                return;
        }
        switch (call->record->head.type) {
        case CKV_RECORD_PING:
        case CKV_RECORD_GET_STATUS:
        case CKV_RECORD_CANCEL:
        case CKV_RECORD_END_SESSION:
                if (!check_deadline(call, &status)) {
                        ckv_answer_send_status(&call->route, &status);
                        return;
                }
                break;
        default:
                serve_once(call);
                return;
        }
        if (call->record->head.type == CKV_RECORD_PING)
                ckv_answer_send_pong(&call->route, call->session);
        else if (call->record->head.type == CKV_RECORD_GET_STATUS)
                serve_get_status(call);
        else if (call->record->head.type == CKV_RECORD_CANCEL)
                serve_cancel(call);
        else
                serve_end_session(call);
}

void ckv_dispatch_record(struct ckv_endpoint *endpoint, uint64_t incarnation, const struct ckv_record *record,
                         const uint8_t *attachment, uint32_t attachment_bytes) {
        struct call call = {
                .endpoint = endpoint, .record = record, .attachment = attachment, .bytes = attachment_bytes,
                .route = {
                        .endpoint = endpoint, .incarnation = incarnation, .connection = record->head.connection,
                        .request_id = record->head.request_id, .generation = record->head.generation,
                },
        };

        ckv_assert_loop_thread();
        /* GONE, PONG and STATS concern the link; nothing here depends on a connection */
        if (record->head.type >= CKV_RECORD_HELLO && record->head.type <= CKV_RECORD_REPAIR)
                serve(&call);
}
