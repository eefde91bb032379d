/*
 * A compress request: how it comes to be, what it holds, how it is cancelled.
 * What becomes of it when its job comes back from the backend is in
 * daemon/commit.c.
 */
#include "daemon/request.h"

#include "base/clock.h"
#include "base/macros.h"
#include "base/points.h"
#include "daemon/admit.h"
#include "daemon/cache.h"
#include "daemon/daemon.h"
#include "daemon/engine.h"
#include "daemon/mapped.h"
#include "daemon/refuse.h"
#include "daemon/region.h"

#include <errno.h>

/* add_mirror() - memory that is copied. Return: 0 or -ENOMEM. */
static int add_mirror(struct ckv_job *job, struct ckv_mirror *mirror) {
        struct ckv_mirror **more = realloc(job->mirrors, (job->mirror_count + 1) * sizeof(struct ckv_mirror *));

        if (!more)
                return -ENOMEM;
        job->mirrors = more;
        job->mirrors[job->mirror_count++] = mirror;
        return 0;
}

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
        return region->mapped->key.copied ? add_mirror(request->job, &region->mapped->mirror) : 0;
}

int ckv_request_pull(struct ckv_request *request, struct ckv_region *region, uint8_t *address, uint64_t bytes) {
        struct ckv_job *job = request->job;
        struct ckv_mirror_span *more;

        if (!region->mapped->key.copied)
                return 0;
        more = realloc(job->spans, (job->span_count + 1) * sizeof(*more));
        if (!more)
                return -ENOMEM;
        job->spans = more;
        job->spans[job->span_count++] = (struct ckv_mirror_span){ &region->mapped->mirror, address, bytes };
        return 0;
}

struct ckv_request *ckv_request_free(struct ckv_request *request) {
        if (!request)
                return NULL;
        ckv_assert_loop_thread();
        sd_event_source_disable_unref(request->hold_timer);
        ckv_answer_deinit(&request->answer);
        ckv_job_free(request->job);
        ckv_claim_release(&request->claim);
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

void ckv_request_link(struct ckv_request *request) {
        struct ckv_session *session = request->session;

        request->entry->running = request;
        request->entry->is_compress = true;
        request->next = session->requests;
        if (request->next)
                request->next->prev = request;
        session->requests = request;
        session->request_count++;
}

bool ckv_request_charge(struct ckv_request *request, uint64_t more, struct ckv_record_status *ret_status) {
        struct ckv_tenant *tenant = request->session->tenant;
        uint64_t bytes = more;

        for (uint32_t i = 0; request->job && i < request->job->group_count; i++) {
                const struct ckv_job_group *group = &request->job->groups[i];

                bytes += (uint64_t)group->layer_count * sizeof(*group->layers) + group->scores.in_count * sizeof(float) +
                         ckv_kept_bytes_bound(group);
                if (!group->shares_lists)
                        bytes += (uint64_t)group->selection.rows * ((group->selection.positions ? 8 : 4) +
                                                                    (group->destination.entries ? 4 : 0));
        }
        if (ckv_charge_init(&request->bytes_charge, tenant, CKV_SLOT_QUEUED_BYTES, bytes))
                return ckv_refuse_quota(ret_status, tenant, CKV_SLOT_QUEUED_BYTES, bytes, CKV_F_NONE);
        return true;
}

/* begin() - admitted: known to session and window, and to the client where it gave a slot */
static void begin(struct ckv_request *request) {
        ckv_request_link(request);
        if (!ckv_slot_open(request)) {
                ckv_request_fail_cancelled(request);
                return;
        }
        CKV_POINT(scoring);
        request->job->stage = CKV_STAGE_PLAN;
        ckv_engine_submit(request->session->daemon, request->job);
}

struct ckv_request *ckv_request_new(struct ckv_session *session, const struct ckv_route *route, struct ckv_window_entry *entry,
                                    struct ckv_record_status *ret_status) {
        struct ckv_request *request;

        ckv_assert_loop_thread();
        request = calloc(1, sizeof(*request));
        if (!request) {
                ckv_refuse(ret_status, CKV_CODE_NO_MEMORY, CKV_F_NONE, CKV_D_NO_MEMORY, 0, 0, 0);
                return NULL;
        }
        request->session = session;
        request->route = *route;
        request->entry = entry;
        request->arrived_nsec = ckv_now_nsec();
        if (ckv_charge_init(&request->requests_charge, session->tenant, CKV_SLOT_REQUESTS, 1)) {
                ckv_refuse_quota(ret_status, session->tenant, CKV_SLOT_REQUESTS, 1, CKV_F_NONE);
                return ckv_request_free(request);
        }
        return request;
}

bool ckv_request_start(struct ckv_session *session, const struct ckv_route *route, const struct ckv_record *record,
                       const uint8_t *attachment, uint32_t bytes, struct ckv_window_entry *entry,
                       struct ckv_record_status *ret_status) {
        const struct ckv_record_compress *body = &record->body.compress;
        struct ckv_request *request = ckv_request_new(session, route, entry, ret_status);

        if (!request)
                return false;
        request->hold = body->hold;
        request->single_pass = body->single_pass;
        if (!ckv_request_claim(request, body, ret_status) || !ckv_admit(request, record, attachment, bytes, ret_status) ||
            !ckv_request_charge(request, bytes, ret_status)) {
                /* what was read out of a region that is gone is zeros: that is what to say, not what is wrong with them */
                (void)ckv_request_intact(request, ret_status);
                ckv_request_free(request);
                return false;
        }
        begin(request);
        return true;
}

bool ckv_request_cancel(struct ckv_request *request) {
        struct ckv_record_status status;

        ckv_assert_loop_thread();
        if (request->phase == CKV_PHASE_COMMITTING)
                return false;
        if (request->hold_timer) {
                ckv_refuse_cancelled(&status);
                ckv_hold_end(request, &status);
                return true;
        }
        if (!request->cancelled) {
                request->cancelled = true;
                request->phase = CKV_PHASE_CANCELLED;
                ckv_engine_cancel(request->session->daemon, request->job);
        }
        return true;
}

void ckv_requests_cancel_all(struct ckv_session *session) {
        struct ckv_request *next;

        for (struct ckv_request *request = session->requests; request; request = next) {
                next = request->next;
                (void)ckv_request_cancel(request);
        }
}

bool ckv_request_intact(const struct ckv_request *request, struct ckv_record_status *ret_status) {
        for (uint32_t i = 0; i < request->region_count; i++)
                if (!ckv_region_intact(request->regions[i]))
                        return ckv_refuse(ret_status, CKV_CODE_REGION_LOST, CKV_F_NONE, CKV_D_REGION_LOST, request->regions[i]->id, 0,
                                          0);
        return true;
}
