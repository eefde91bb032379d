/*
 * hold: a request that was selected waits, with everything it has, for a
 * Commit of the client, which compares kept_digest between ranks meanwhile.
 *
 * The Compress is answered with SELECTED at once and once.  The Commit has a
 * request id of its own and is answered when the rows have moved; from then on
 * a repeat of either is answered with what became of it.  A held request costs
 * its budgets, so it ends by itself: after --hold-ms, at its deadline, when
 * the client cancels by message or by the word, or dies.
 */
#include "daemon/request.h"

#include "base/clock.h"
#include "base/macros.h"
#include "base/points.h"
#include "daemon/answer.h"
#include "daemon/daemon.h"
#include "daemon/refuse.h"

/* over() - no Commit came. Return: false, as all refusals. */
static bool over(const struct ckv_session *session, enum ckv_field field, struct ckv_record_status *status) {
        return ckv_refuse(status, CKV_CODE_EXPIRED, field, CKV_D_HOLD_OVER, session->daemon->options->hold_ms, 0, 0);
}

static int on_over(sd_event_source *source, uint64_t usec, void *userdata) {
        struct ckv_request *request = userdata;
        struct ckv_record_status status;
        uint64_t now = ckv_now_nsec(), deadline = request->job->deadline_nsec;

        (void)source;
        (void)usec;
        if (now >= deadline)
                ckv_refuse(&status, CKV_CODE_EXPIRED, CKV_F_DEADLINE, CKV_D_DEADLINE_PASSED, (now - deadline) / CKV_NSEC_PER_USEC, 0, 0);
        else
                over(request->session, CKV_F_COMPRESS_HOLD, &status);
        ckv_hold_end(request, &status);
        return 0;
}

bool ckv_hold_begin(struct ckv_request *request, struct ckv_record_status *ret_status) {
        struct ckv_session *session = request->session;
        uint64_t now = ckv_now_nsec(), deadline = request->job->deadline_nsec;
        uint64_t usec = CKV_MIN(session->daemon->options->hold_ms * 1000, (deadline - CKV_MIN(now, deadline)) / CKV_NSEC_PER_USEC + 1);
        struct ckv_answer answer;

        if (sd_event_add_time_relative(session->daemon->event, &request->hold_timer, CLOCK_MONOTONIC, usec, 1000, on_over, request) < 0 ||
            ckv_answer_compressed(request, &answer)) {
                request->hold_timer = sd_event_source_disable_unref(request->hold_timer);
                return ckv_refuse(ret_status, CKV_CODE_NO_MEMORY, CKV_F_NONE, CKV_D_NO_MEMORY, 0, 0, 0);
        }
        ckv_answer_send(&request->route, &answer, false);
        ckv_window_store(&session->window, request->entry, &answer);
        request->entry->running = request;
        CKV_POINT(held);
        return true;
}

void ckv_hold_end(struct ckv_request *request, const struct ckv_record_status *status) {
        struct ckv_answer answer;

        ckv_slot_code(request, status->code);
        (void)ckv_slot_enter(request, CKV_PHASE_CANCELLED);
        request->phase = CKV_PHASE_CANCELLED;
        ckv_answer_init(&answer, status);
        ckv_timeline_signal(&request->timeline);
        ckv_window_store(&request->session->window, request->entry, &answer);
        ckv_request_end(request);
}

/* not_held() - why there is nothing to commit, and what became of the cache: an earlier Commit may have had its way */
static bool not_held(const struct ckv_session *session, const struct ckv_window_entry *target, struct ckv_record_status *status) {
        if (target->running) {
                ckv_refuse(status, CKV_CODE_CONFLICT, CKV_F_COMMIT_TARGET, CKV_D_NOT_HELD, target->id, target->running->phase, 0);
                if (target->running->phase == CKV_PHASE_COMMITTING)
                        status->cache = CKV_CACHE_PENDING;
                return false;
        }
        if (target->phase != CKV_PHASE_CANCELLED) {
                ckv_refuse(status, CKV_CODE_CONFLICT, CKV_F_COMMIT_TARGET, CKV_D_NOT_HELD, target->id, target->phase, 0);
                status->cache = target->answer->record.body.result.status.cache;
                return false;
        }
        if (target->answer->record.body.result.status.code == CKV_CODE_EXPIRED)
                return over(session, CKV_F_COMMIT_TARGET, status);
        return ckv_refuse(status, CKV_CODE_CANCELLED, CKV_F_COMMIT_TARGET, CKV_D_CANCELLED, 0, 0, 0);
}

bool ckv_hold_commit(struct ckv_session *session, const struct ckv_route *route, uint64_t target, struct ckv_window_entry *entry,
                     struct ckv_record_status *ret_status) {
        struct ckv_window_entry *held = ckv_window_find(&session->window, target);
        struct ckv_request *request;

        ckv_assert_loop_thread();
        if (!held || !held->is_compress)
                return ckv_refuse(ret_status, CKV_CODE_NOT_FOUND, CKV_F_COMMIT_TARGET, CKV_D_UNKNOWN_REQUEST, target, 0, 0);
        request = held->running;
        if (!request || !request->hold_timer)
                return not_held(session, held, ret_status);
        request->hold_timer = sd_event_source_disable_unref(request->hold_timer);
        request->route = *route;
        request->commit = entry;
        request->reply_form = CKV_REPLY_NO_SETS;        /* they went with SELECTED */
        entry->running = request;
        ckv_request_commit(request);
        return true;
}

void ckv_hold_moving(struct ckv_request *request) {
        struct ckv_record_result *told = &request->entry->answer->record.body.result;

        told->status.cache = CKV_CACHE_PENDING;
        told->u.compressed.phase = request->phase;
}

void ckv_hold_settle(struct ckv_request *request, const struct ckv_answer *answer) {
        const struct ckv_record_result *result = &answer->record.body.result;
        struct ckv_answer *stored = request->entry->answer, end;
        struct ckv_record_result *told = &stored->record.body.result;
        const struct ckv_record_group_result *from;
        struct ckv_record_group_result *to;

        if (result->status.code != CKV_CODE_OK) {
                ckv_answer_init(&end, &result->status);
                ckv_window_store(&request->session->window, request->entry, &end);
                return;
        }
        /* the sets stay; group results come first in both */
        told->status = result->status;
        told->u.compressed.phase = result->u.compressed.phase;
        from = (const void *)answer->attachment;
        to = (void *)stored->attachment;
        for (uint32_t i = 0; i < result->u.compressed.group_count; i++)
                to[i].bytes_moved = from[i].bytes_moved;
}
