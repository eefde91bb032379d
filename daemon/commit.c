/*
 * What becomes of a request when its job comes back: planned, it is answered,
 * held, or committed; moved, it is answered.
 *
 * The decision that rows move is taken in one place, ckv_request_commit(), by
 * the loop alone.  Whatever could speak against it is looked at there, in the
 * order of reliability.md 8.2, and the last look is the swap of the control
 * slot's word, which the client's own swap to CANCELLED races against: a
 * request that was cancelled before it never writes, one that passed it is no
 * longer cancelled.
 *
 * The answer is made before that swap.  Nothing that can fail for lack of
 * memory stands between the first row that moves and the client's knowing it.
 */
#include "daemon/request.h"

#include "base/clock.h"
#include "base/macros.h"
#include "base/points.h"
#include "daemon/admit.h"
#include "daemon/answer.h"
#include "daemon/daemon.h"
#include "daemon/engine.h"
#include "daemon/refuse.h"
#include "kernels/cuda_types.h"
#include "kernels/steps.h"

#include <poll.h>
#include <string.h>

/* destination_fits() - COPY_OUT: is there room for what was kept? Known only now. */
static bool destination_fits(const struct ckv_job_group *group, uint32_t index, struct ckv_record_status *status) {
        if (!group->destination.entries || group->budget.kept_all != CKV_DROPPED)
                return true;
        for (uint32_t i = 0; i < group->kept_count; i++)
                if (group->kept[i].count > group->destination_rows)
                        return ckv_refuse_at(status, CKV_CODE_OUT_OF_RANGE, CKV_F_GROUP_DESTINATION, index, 0, CKV_D_DESTINATION_SHORT,
                                             group->destination_rows, group->kept[i].count, 0);
        return true;
}

/* process_lives() - the kernel is asked: the loop may have yet to hear of the engine's death */
static bool process_lives(const struct ckv_session *session) {
        struct pollfd died = { .events = POLLIN };

        if (session->side)
                return ckv_side_alive(session->side);
        if (!session->pid_source)
                return true;
        died.fd = sd_event_source_get_io_fd(session->pid_source);
        return poll(&died, 1, 0) == 0;
}

/* may_commit() - the last look before the first row moves; regions stay registered while a request uses them */
static bool may_commit(const struct ckv_request *request, struct ckv_record_status *status) {
        uint64_t now = ckv_now_nsec();

        if (now >= request->job->deadline_nsec)
                return ckv_refuse(status, CKV_CODE_EXPIRED, CKV_F_DEADLINE, CKV_D_DEADLINE_PASSED,
                                  (now - request->job->deadline_nsec) / CKV_NSEC_PER_USEC, 0, 0);
        if (request->claim.control && !ckv_control_owned(request->claim.control))
                return ckv_refuse(status, CKV_CODE_CONFLICT, CKV_F_COMPRESS_CONTROL_SLOT, CKV_D_CONTROL_FOREIGN, 0, 0, 0);
        if (!process_lives(request->session))
                return ckv_refuse(status, CKV_CODE_CANCELLED, CKV_F_NONE, CKV_D_SESSION_ENDING, 0, 0, 0);
        return ckv_request_intact(request, status);
}

/* moves_rows() - is there a row that is not yet where it belongs? */
static bool moves_rows(const struct ckv_request *request) {
        if (request->repairs)
                return request->job->steps.first < request->job->steps.count;
        for (uint32_t i = 0; i < request->job->group_count; i++) {
                const struct ckv_job_group *group = &request->job->groups[i];

                if (group->budget.kept_all != CKV_DROPPED)
                        continue;
                if (request->mode == CKV_MODE_COPY_OUT)
                        return true;
                for (uint32_t k = 0; k < group->kept_count; k++)
                        if (ckv_kept_stay(&group->kept[k]) < group->kept[k].count)
                                return true;
        }
        return false;
}

void ckv_request_end(struct ckv_request *request) {
        struct ckv_session *session = request->session;

        request->entry->running = NULL;
        request->entry->phase = request->phase;
        if (request->commit)
                request->commit->running = NULL;
        if (request->prev)
                request->prev->next = request->next;
        else
                session->requests = request->next;
        if (request->next)
                request->next->prev = request->prev;
        session->request_count--;
        ckv_request_free(request);
}

/* respond() - send, store, give everything back */
static void respond(struct ckv_request *request, struct ckv_answer *answer) {
        struct ckv_session *session = request->session;

        ckv_timeline_signal(&request->timeline);
        ckv_answer_send(&request->route, answer, false);
        CKV_POINT(answered);
        if (request->commit)
                ckv_hold_settle(request, answer);
        ckv_window_store(&session->window, request->commit ? request->commit : request->entry, answer);
        ckv_request_end(request);
        ckv_session_settle(session);
}

/* fail_repair() - nothing was changed: whoever comes next can still go on from the slot */
static void fail_repair(struct ckv_request *request, const struct ckv_record_status *status) {
        struct ckv_record_status told = *status;
        struct ckv_answer answer;

        told.cache = request->claim.phase == CKV_PHASE_DONE ? CKV_CACHE_COMMITTED : CKV_CACHE_TORN_REPAIRABLE;
        request->phase = CKV_PHASE_FAILED;
        ckv_answer_init(&answer, &told);
        respond(request, &answer);
}

void ckv_request_fail(struct ckv_request *request, const struct ckv_record_status *status) {
        struct ckv_record_status cancelled;
        struct ckv_answer answer;

        if (request->repairs) {
                fail_repair(request, status);
                return;
        }
        ckv_slot_code(request, status->code);
        if (!ckv_slot_enter(request, status->code == CKV_CODE_CANCELLED ? CKV_PHASE_CANCELLED : CKV_PHASE_FAILED)) {
                ckv_refuse_cancelled(&cancelled);
                status = &cancelled;
                request->phase = CKV_PHASE_CANCELLED;
        }
        ckv_answer_init(&answer, status);
        respond(request, &answer);
}

void ckv_request_fail_cancelled(struct ckv_request *request) {
        struct ckv_record_status status;

        ckv_refuse_cancelled(&status);
        ckv_request_fail(request, &status);
}

/* torn() - rows have moved, and not all of them: the sequence must not be used any more */
static void torn(struct ckv_request *request, struct ckv_record_status *status) {
        struct ckv_answer answer;

        status->cache = CKV_CACHE_TORN;
        ckv_slot_code(request, status->code);
        (void)ckv_slot_enter(request, CKV_PHASE_TORN);
        request->phase = CKV_PHASE_TORN;
        ckv_answer_init(&answer, status);
        respond(request, &answer);
}

/* corrupts() - does this error of the driver mean that memory itself may be wrong? Then there is nothing to go on with. */
static bool corrupts(int code) {
        return code == CUDA_ERROR_ECC_UNCORRECTABLE || code == CUDA_ERROR_NVLINK_UNCORRECTABLE || code == CUDA_ERROR_CONTAINED;
}

/*
 * lost_in_move() - the device was lost while rows moved: how far they are says the progress word
 *
 * Where they can be gone on with, the slot stays in COMMITTING, as if this process had died in the move: the next daemon
 * repairs it.
 */
static void lost_in_move(struct ckv_request *request) {
        const struct ckv_job_steps *steps = &request->job->steps;
        struct ckv_record_status status;
        struct ckv_answer answer;

        ckv_refuse(&status, CKV_CODE_DEVICE_ERROR, CKV_F_NONE, CKV_D_MOVE_DEVICE_LOST, 0, 0, 0);
        status.driver_code = request->job->fail_code;
        if (request->mode == CKV_MODE_COPY_OUT) {
                ckv_request_fail(request, &status);
        } else if (steps->count == 0 || corrupts(request->job->fail_code)) {
                torn(request, &status);
        } else if (atomic_load_explicit(steps->done, memory_order_acquire) >= steps->count) {
                ckv_request_finish(request);
        } else {
                status.cache = CKV_CACHE_TORN_REPAIRABLE;
                ckv_answer_init(&answer, &status);
                respond(request, &answer);
        }
}

void ckv_request_hung(struct ckv_request *request, uint64_t seconds) {
        bool moves = request->job->stage == CKV_STAGE_MOVE;
        struct ckv_record_status status;
        struct ckv_answer answer;

        ckv_assert_loop_thread();
        ckv_refuse(&status, CKV_CODE_DEVICE_HUNG, CKV_F_NONE, moves ? CKV_D_MOVE_DEVICE_HUNG : CKV_D_DEVICE_HUNG, seconds, 0, 0);
        if (moves && request->mode == CKV_MODE_IN_PLACE && request->job->steps.count > 0) {
                /* as in lost_in_move(); where all steps are done, Repair finds that */
                status.cache = CKV_CACHE_TORN_REPAIRABLE;
        } else {
                bool torn = moves && request->mode == CKV_MODE_IN_PLACE;

                status.cache = torn ? CKV_CACHE_TORN : CKV_CACHE_CLEAN;
                ckv_slot_code(request, status.code);
                if (!ckv_slot_enter(request, torn ? CKV_PHASE_TORN : CKV_PHASE_FAILED) && !torn)
                        ckv_refuse_cancelled(&status);
        }
        ckv_timeline_signal(&request->timeline);
        ckv_answer_init(&answer, &status);
        ckv_answer_send(&request->route, &answer, false);
}

/* settle_answer() - what is known at the end only */
static void settle_answer(struct ckv_request *request) {
        struct ckv_record_result *result = &request->answer.record.body.result;
        struct ckv_record_group_result *groups = (void *)request->answer.attachment;

        result->status.cache = request->mode == CKV_MODE_PLAN ? CKV_CACHE_CLEAN : CKV_CACHE_COMMITTED;
        result->u.compressed.phase = request->phase;
        for (uint32_t i = 0; i < request->group_count; i++) {
                groups[i].bytes_moved = 0;
                for (uint32_t k = 0; k < request->groups[i].part_count; k++)
                        groups[i].bytes_moved += ckv_request_part(request, i, k)->bytes_moved;
        }
        ckv_answer_timing(request, result);
}

void ckv_request_finish(struct ckv_request *request) {
        bool moved = request->phase == CKV_PHASE_COMMITTING;
        struct ckv_answer answer;

        ckv_slot_code(request, CKV_CODE_OK);
        CKV_POINT(moved);
        if (!ckv_slot_enter(request, CKV_PHASE_DONE) && !moved) {
                ckv_request_fail_cancelled(request);
                return;
        }
        /* whatever a client wrote over the word meanwhile, the rows have moved */
        request->phase = CKV_PHASE_DONE;
        CKV_POINT(done);
        settle_answer(request);
        answer = request->answer;
        request->answer = (struct ckv_answer){ 0 };
        respond(request, &answer);
}

void ckv_request_move(struct ckv_request *request) {
        CKV_POINT(committing);
        if (request->commit)
                ckv_hold_moving(request);
        request->job->stage = CKV_STAGE_MOVE;
        ckv_engine_submit(request->session->daemon, request->job);
}

void ckv_request_commit(struct ckv_request *request) {
        bool moves = request->mode != CKV_MODE_PLAN && moves_rows(request);
        struct ckv_record_status status;

        if (ckv_answer_compressed(request, &request->answer)) {
                ckv_refuse(&status, CKV_CODE_NO_MEMORY, CKV_F_NONE, CKV_D_NO_MEMORY, 0, 0, 0);
                ckv_request_fail(request, &status);
                return;
        }
        /* where nothing is written it may be late, unless a Commit was waited for */
        if ((moves || request->commit) && !may_commit(request, &status)) {
                ckv_request_fail(request, &status);
                return;
        }
        CKV_POINT(may_commit);
        if (!moves) {
                /* the answer may lie in a region by now */
                if (request->reply_form == CKV_REPLY_IN_REGION && !ckv_request_intact(request, &status))
                        ckv_request_fail(request, &status);
                else
                        ckv_request_finish(request);
                return;
        }
        /* from here on the slot is in the hands of this daemon */
        if (request->repairs)
                memcpy(request->claim.page->boot_id, request->session->daemon->boot_id, sizeof(request->claim.page->boot_id));
        if (!ckv_slot_enter(request, CKV_PHASE_COMMITTING)) {
                ckv_request_fail_cancelled(request);
                return;
        }
        ckv_request_move(request);
}

/* selected() - the kept rows are known */
static void selected(struct ckv_request *request) {
        struct ckv_record_status status;

        for (uint32_t i = 0; i < request->job->group_count; i++)
                if (!destination_fits(&request->job->groups[i], ckv_request_group_of(request, i), &status)) {
                        ckv_request_fail(request, &status);
                        return;
                }
        if (!ckv_slot_select(request, &status)) {
                ckv_request_fail(request, &status);
                return;
        }
        CKV_POINT(kept_written);
        if (!ckv_slot_enter(request, CKV_PHASE_SELECTED)) {
                ckv_request_fail_cancelled(request);
                return;
        }
        CKV_POINT(selected);
        if (!request->hold)
                ckv_request_commit(request);
        else if (!ckv_hold_begin(request, &status))
                ckv_request_fail(request, &status);
}

void ckv_request_stage_done(struct ckv_request *request) {
        struct ckv_record_status status;

        ckv_assert_loop_thread();
        if (request->job->stage == CKV_STAGE_PLAN) {
                bool failed = ckv_plan_failed(request, &status);

                /* whatever came out of zeros in the place of lost pages */
                if (!request->cancelled && !ckv_request_intact(request, &status))
                        failed = true;
                if (failed)
                        ckv_request_fail(request, &status);
                else
                        selected(request);
                return;
        }
        if (request->job->outcome == CKV_JOB_DEVICE_LOST) {
                lost_in_move(request);
                return;
        }
        if (request->job->outcome != CKV_JOB_OK) {
                /* not begun: nothing was written */
                (void)ckv_plan_failed(request, &status);
                ckv_request_fail(request, &status);
                return;
        }
        /* pages that went while rows moved: what was read there were zeros */
        if (ckv_request_intact(request, &status))
                ckv_request_finish(request);
        else
                torn(request, &status);
}
