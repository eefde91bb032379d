/*
 * A compress request from admission to answer.
 *
 * The job passes through the backend twice: first it is planned, which only
 * reads; then, if the mode writes, it comes back here, and the loop alone
 * decides whether to commit.  Deadline, cancel, the end of the session and the
 * state of the memory are looked at in that one place; a request that was
 * cancelled before it will never write, one that passed it is no longer
 * cancelled.
 */
#include "daemon/request.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/macros.h"
#include "daemon/admit.h"
#include "daemon/answer.h"
#include "daemon/cache.h"
#include "daemon/daemon.h"
#include "daemon/engine.h"
#include "daemon/refuse.h"
#include "daemon/region.h"

#include <errno.h>

int ckv_request_use_region(struct ckv_request *request, struct ckv_region *region) {
        struct ckv_region **more;

        /* planes of neighbouring layers share regions: a look back finds nearly all repeats */
        for (uint32_t i = request->region_count; i > 0 && i + 8 > request->region_count; i--)
                if (request->regions[i - 1] == region)
                        return 0;
        more = realloc(request->regions, (request->region_count + 1) * sizeof(struct ckv_region *));
        if (!more)
                return -ENOMEM;
        request->regions = more;
        request->regions[request->region_count++] = region;
        region->request_uses++;
        return 0;
}

struct ckv_request *ckv_request_free(struct ckv_request *request) {
        if (!request)
                return NULL;
        ckv_assert_loop_thread();
        ckv_job_free(request->job);
        for (uint32_t i = 0; i < request->region_count; i++)
                request->regions[i]->request_uses--;
        free(request->regions);
        free(request->groups);
        if (request->cache)
                request->cache->request_uses--;
        ckv_charge_deinit(&request->bytes_charge);
        ckv_charge_deinit(&request->requests_charge);
        free(request);
        return NULL;
}

uint32_t ckv_request_group_of(const struct ckv_request *request, uint32_t part) {
        uint32_t i = 0;

        while (i + 1 < request->group_count && part >= request->groups[i + 1].first_part)
                i++;
        return i;
}

static void link_request(struct ckv_request *request) {
        struct ckv_session *session = request->session;

        request->next = session->requests;
        if (request->next)
                request->next->prev = request;
        session->requests = request;
        session->request_count++;
}

static void unlink_request(struct ckv_request *request) {
        struct ckv_session *session = request->session;

        if (request->prev)
                request->prev->next = request->next;
        else
                session->requests = request->next;
        if (request->next)
                request->next->prev = request->prev;
        session->request_count--;
}

/* charge() - one request, and the memory that its tables and lists take in the core */
static bool charge(struct ckv_request *request, uint32_t attachment_bytes, struct ckv_record_status *status) {
        struct ckv_tenant *tenant = request->session->tenant;
        uint64_t bytes = attachment_bytes;

        for (uint32_t i = 0; request->job && i < request->job->group_count; i++) {
                const struct ckv_job_group *group = &request->job->groups[i];

                bytes += (uint64_t)group->layer_count * sizeof(*group->layers) + group->scores.in_count * sizeof(float);
                if (!group->shares_lists)
                        bytes += (uint64_t)group->selection.rows * ((group->selection.positions ? 8 : 4) +
                                                                    (group->destination.entries ? 4 : 0));
        }
        if (ckv_charge_init(&request->bytes_charge, tenant, CKV_SLOT_QUEUED_BYTES, bytes))
                return ckv_refuse_quota(status, tenant, CKV_SLOT_QUEUED_BYTES, bytes, CKV_F_NONE);
        return true;
}

bool ckv_request_start(struct ckv_session *session, const struct ckv_route *route, const struct ckv_record *record,
                       const uint8_t *attachment, uint32_t bytes, struct ckv_window_entry *entry,
                       struct ckv_record_status *ret_status) {
        struct ckv_request *request;

        ckv_assert_loop_thread();
        request = calloc(1, sizeof(*request));
        if (!request)
                return ckv_refuse(ret_status, CKV_CODE_NO_MEMORY, CKV_F_NONE, CKV_D_NO_MEMORY, 0, 0, 0);
        request->session = session;
        request->route = *route;
        request->entry = entry;
        request->arrived_nsec = ckv_now_nsec();
        if (ckv_charge_init(&request->requests_charge, session->tenant, CKV_SLOT_REQUESTS, 1)) {
                ckv_refuse_quota(ret_status, session->tenant, CKV_SLOT_REQUESTS, 1, CKV_F_NONE);
                ckv_request_free(request);
                return false;
        }
        if (!ckv_admit(request, record, attachment, bytes, ret_status) || !charge(request, bytes, ret_status)) {
                ckv_request_free(request);
                return false;
        }
        request->phase = CKV_PHASE_SCORING;
        request->job->stage = CKV_STAGE_PLAN;
        entry->running = request;
        entry->is_compress = true;
        link_request(request);
        ckv_engine_submit(session->daemon, request->job);
        return true;
}

bool ckv_request_cancel(struct ckv_request *request) {
        ckv_assert_loop_thread();
        if (request->phase == CKV_PHASE_COMMITTING)
                return false;
        if (!request->cancelled) {
                request->cancelled = true;
                request->phase = CKV_PHASE_CANCELLED;
                request->session->daemon->ops->cancel(request->session->daemon->backend, request->job);
        }
        return true;
}

void ckv_requests_cancel_all(struct ckv_session *session) {
        for (struct ckv_request *request = session->requests; request; request = request->next)
                (void)ckv_request_cancel(request);
}

/* plan_failed() - the outcome of CKV_STAGE_PLAN as a status. Return: true if it is a failure. */
static bool plan_failed(const struct ckv_request *request, struct ckv_record_status *status) {
        const struct ckv_job *job = request->job;
        const struct ckv_job_group *group = &job->groups[job->fail_group];
        uint32_t index = ckv_request_group_of(request, job->fail_group);
        uint64_t now = ckv_now_nsec();

        if (request->cancelled)
                return !ckv_refuse(status, CKV_CODE_CANCELLED, CKV_F_NONE, CKV_D_CANCELLED, 0, 0, 0);
        switch (job->outcome) {
        case CKV_JOB_OK:
                return false;
        case CKV_JOB_CANCELLED:
                return !ckv_refuse(status, CKV_CODE_CANCELLED, CKV_F_NONE, CKV_D_CANCELLED, 0, 0, 0);
        case CKV_JOB_EXPIRED:
                return !ckv_refuse(status, CKV_CODE_EXPIRED, CKV_F_DEADLINE, CKV_D_DEADLINE_PASSED,
                                   (now - CKV_MIN(now, job->deadline_nsec)) / CKV_NSEC_PER_USEC, 0, 0);
        case CKV_JOB_NONFINITE:
                return !ckv_refuse_at(status, CKV_CODE_NONFINITE_SCORE, group->scores.in ? CKV_F_GROUP_SCORES_IN : CKV_F_NONE, index, 0,
                                      CKV_D_NONFINITE, job->fail_layer, job->fail_unit, 0);
        case CKV_JOB_BUDGET:
                return !ckv_refuse_at(status, CKV_CODE_BUDGET_BELOW_PROTECTED,
                                      group->selection.max_tokens ? CKV_F_GROUP_MAX_TOKENS : CKV_F_GROUP_KEEP_RATIO, index, 0,
                                      CKV_D_BUDGET_UNDER_PROTECTED, group->budget.budget, group->budget.protected_rows, 0);
        case CKV_JOB_UNSUPPORTED:
                return !ckv_refuse_at(status, CKV_CODE_UNSUPPORTED, CKV_F_GROUP_PHYSICAL_LEN, index, 0, CKV_D_TOO_SHORT,
                                      group->selection.rows, group->policy.window, group->policy.chunk);
        case CKV_JOB_WINDOW_OVER_BUDGET:
                return !ckv_refuse_at(status, CKV_CODE_INVALID_ARGUMENT,
                                      group->selection.keep_ratio ? CKV_F_GROUP_KEEP_RATIO : CKV_F_GROUP_MAX_TOKENS, index, 0,
                                      CKV_D_BUDGET_UNDER_WINDOW, group->budget.budget, group->policy.window, 0);
        case CKV_JOB_SCORES_SIZE:
                return !ckv_refuse_at(status, CKV_CODE_INVALID_ARGUMENT,
                                      group->scores.in ? CKV_F_GROUP_SCORES_IN : CKV_F_GROUP_SCORES_OUT, index, 0, CKV_D_SCORES_SIZE,
                                      job->fail_need, group->scores.in ? group->scores.in_count * sizeof(float) : group->scores.out_bytes,
                                      0);
        case CKV_JOB_BAD_LSE:
                return !ckv_refuse(status, CKV_CODE_BAD_LSE, CKV_F_QUERIES_LSE, CKV_D_BAD_LSE, job->fail_layer, job->fail_unit, 0);
        case CKV_JOB_NO_MEMORY:
                break;
        }
        ckv_refuse(status, CKV_CODE_NO_MEMORY, CKV_F_NONE, CKV_D_NO_MEMORY, 0, 0, 0);
        status->retry_after_ms = CKV_RETRY_MS;
        return true;
}

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

bool ckv_request_intact(const struct ckv_request *request, struct ckv_record_status *ret_status) {
        for (uint32_t i = 0; i < request->region_count; i++)
                if (!ckv_region_intact(request->regions[i]))
                        return ckv_refuse(ret_status, CKV_CODE_REGION_LOST, CKV_F_NONE, CKV_D_REGION_LOST, request->regions[i]->id, 0,
                                          0);
        return true;
}

/* may_commit() - the last look before the first row moves */
static bool may_commit(const struct ckv_request *request, struct ckv_record_status *status) {
        uint64_t now = ckv_now_nsec();

        if (now >= request->job->deadline_nsec)
                return ckv_refuse(status, CKV_CODE_EXPIRED, CKV_F_DEADLINE, CKV_D_DEADLINE_PASSED,
                                  (now - request->job->deadline_nsec) / CKV_NSEC_PER_USEC, 0, 0);
        for (uint32_t i = 0; i < request->job->group_count; i++)
                if (!destination_fits(&request->job->groups[i], ckv_request_group_of(request, i), status))
                        return false;
        return ckv_request_intact(request, status);
}

static bool moves_rows(const struct ckv_request *request) {
        for (uint32_t i = 0; i < request->job->group_count; i++)
                if (request->job->groups[i].budget.kept_all == CKV_DROPPED)
                        return true;
        return false;
}

/* finish() - send, store, give everything back */
static void finish(struct ckv_request *request, struct ckv_answer *answer) {
        struct ckv_session *session = request->session;

        ckv_answer_send(&request->route, answer, false);
        ckv_window_store(&session->window, request->entry, answer);
        unlink_request(request);
        ckv_request_free(request);
        ckv_session_settle(session);
}

static void finish_with_status(struct ckv_request *request, const struct ckv_record_status *status) {
        struct ckv_answer answer;

        ckv_answer_init(&answer, status);
        finish(request, &answer);
}

static void finish_done(struct ckv_request *request) {
        struct ckv_record_status status;
        struct ckv_answer answer;

        request->phase = CKV_PHASE_DONE;
        if (ckv_answer_compressed(request, &answer)) {
                /* the rows have moved, only the lists of them are lost: say so truthfully */
                ckv_status_set(&status, CKV_CODE_NO_MEMORY, CKV_F_NONE, CKV_D_NO_MEMORY, 0, 0, 0);
                status.cache = request->mode == CKV_MODE_PLAN ? CKV_CACHE_CLEAN : CKV_CACHE_TORN;
                finish_with_status(request, &status);
                return;
        }
        finish(request, &answer);
}

void ckv_request_stage_done(struct ckv_request *request) {
        struct ckv_record_status status;

        ckv_assert_loop_thread();
        if (request->job->stage == CKV_STAGE_MOVE) {
                finish_done(request);
                return;
        }
        if (plan_failed(request, &status)) {
                finish_with_status(request, &status);
                return;
        }
        request->phase = CKV_PHASE_SELECTED;
        if (request->mode == CKV_MODE_PLAN || !moves_rows(request)) {
                finish_done(request);
                return;
        }
        if (!may_commit(request, &status)) {
                finish_with_status(request, &status);
                return;
        }
        request->phase = CKV_PHASE_COMMITTING;
        request->job->stage = CKV_STAGE_MOVE;
        ckv_engine_submit(request->session->daemon, request->job);
}
