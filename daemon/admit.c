/*
 * Admission of a compress request.  Everything that a client said is checked
 * here against what it registered, before the first slice runs: the job that
 * leaves this file holds addresses and numbers that need no further check.
 *
 * The steps are in the order in which a refusal is most useful: the request
 * as a whole, then each group, then the queries that all groups share, then
 * the size of the answer.
 */
#include "daemon/admit.h"

#include "base/checked.h"
#include "base/limits.h"
#include "base/macros.h"
#include "daemon/cache.h"
#include "daemon/daemon.h"
#include "daemon/outputs.h"
#include "daemon/refuse.h"
#include "daemon/region.h"

#include <string.h>

/* cut() - the attachment by the counts of the body; a gate that miscounts is broken, not the client */
static bool cut(const struct ckv_record *record, const uint8_t *attachment, uint32_t bytes, struct ckv_compress_parts *ret_parts,
                struct ckv_record_status *status) {
        const struct ckv_record_compress *body = &record->body.compress;
        uint64_t groups = (uint64_t)body->group_count * sizeof(struct ckv_record_group);
        uint64_t policies = (uint64_t)body->policy_count * sizeof(struct ckv_record_policy);
        uint64_t timeline = body->has_timeline ? sizeof(struct ckv_record_timeline) : 0, lists = groups + policies + timeline;
        uint64_t words = body->query_layer_count, policy_sum = 0;

        if (body->group_count < 1 || body->group_count > CKV_LIMIT_GROUPS)
                return ckv_refuse(status, CKV_CODE_OUT_OF_RANGE, CKV_F_COMPRESS_GROUPS, CKV_D_COUNT, 1, CKV_LIMIT_GROUPS,
                                  body->group_count);
        if (lists + (uint64_t)body->word_count * sizeof(uint32_t) != bytes)
                return ckv_refuse(status, CKV_CODE_INTERNAL, CKV_F_NONE, CKV_D_INTERNAL, 0, 0, 0);
        *ret_parts = (struct ckv_compress_parts){
                .body = body,
                .groups = (const void *)attachment,
                .policies = (const void *)(attachment + groups),
                .timeline = body->has_timeline ? (const void *)(attachment + groups + policies) : NULL,
                .query_layers = (const void *)(attachment + lists),
                .words = (const uint32_t *)(const void *)(attachment + lists) + body->query_layer_count,
        };
        for (uint32_t i = 0; i < body->group_count; i++) {
                const struct ckv_record_group *g = &ret_parts->groups[i];

                words += (uint64_t)g->table_count + g->destination_count + 2 * (uint64_t)g->span_count + g->position_run_count +
                         g->chunk_length_count + g->given_run_count;
                policy_sum += g->policy_count;
        }
        if (words != body->word_count || policy_sum != body->policy_count)
                return ckv_refuse(status, CKV_CODE_INTERNAL, CKV_F_NONE, CKV_D_INTERNAL, 0, 0, 0);
        return true;
}

/* check_group() - lengths, and that no group comes twice */
static bool check_group(const struct ckv_request *request, const struct ckv_compress_parts *parts, uint32_t i,
                        struct ckv_record_status *status) {
        const struct ckv_record_group *g = &parts->groups[i];
        uint64_t rows_limit = request->session->daemon->options->rows;

        if (g->group >= request->cache->group_count)
                return ckv_refuse_at(status, CKV_CODE_OUT_OF_RANGE, CKV_F_GROUP_GROUP, i, 0, CKV_D_AT_MOST,
                                     request->cache->group_count - 1, g->group, 0);
        for (uint32_t k = 0; k < i; k++)
                if (parts->groups[k].group == g->group)
                        return ckv_refuse_at(status, CKV_CODE_INVALID_ARGUMENT, CKV_F_GROUP_GROUP, i, 0, CKV_D_GROUP_TWICE, g->group,
                                             0, 0);
        if (g->physical_len > rows_limit)
                return ckv_refuse_at(status, CKV_CODE_OUT_OF_RANGE, CKV_F_GROUP_PHYSICAL_LEN, i, 0, CKV_D_ROWS_OVER_LIMIT, rows_limit,
                                     g->physical_len, 0);
        if (parts->body->logical_len < g->physical_len)
                return ckv_refuse(status, CKV_CODE_INVALID_ARGUMENT, CKV_F_COMPRESS_LOGICAL_LEN, CKV_D_LOGICAL_LEN, g->physical_len,
                                  parts->body->logical_len, 0);
        return true;
}

/*
 * check_budgets() - layers that share a table keep equally many rows, whatever their policies; only PyramidKV's budgets
 * (beta) are asked for because they differ. What the sequence is too short for is an outcome of the plan.
 */
static bool check_budgets(const struct ckv_request *request, uint32_t i, struct ckv_record_status *status) {
        struct ckv_budget first = { 0 }, budget;

        for (uint32_t k = 0; k < request->groups[i].part_count; k++) {
                const struct ckv_job_group *part = ckv_request_part(request, i, k);
                int r;

                if (request->groups[i].part_count < 2 || part->given || part->policy.beta)
                        return true;
                r = ckv_select_budget(&part->selection, NULL, &budget);
                if (r < 0)
                        return ckv_refuse(status, CKV_CODE_NO_MEMORY, CKV_F_NONE, CKV_D_NO_MEMORY, 0, 0, 0);
                if (r > 0)
                        return true;
                if (k == 0)
                        first = budget;
                else if (budget.budget != first.budget || budget.kept_all != first.kept_all || budget.raised != first.raised)
                        return ckv_refuse_at(status, CKV_CODE_INVALID_ARGUMENT, CKV_F_GROUP_POLICIES, i, 0, CKV_D_UNEQUAL_BUDGETS, k,
                                             budget.kept_all ? part->selection.rows : budget.budget,
                                             first.kept_all ? part->selection.rows : first.budget);
        }
        return true;
}

/* check_pages() - pages free the blocks of all layers, so all layers must keep the same */
static bool check_pages(const struct ckv_request *request, uint32_t i, struct ckv_record_status *status) {
        for (uint32_t k = 0; request->groups[i].part_count > 1 && k < request->groups[i].part_count; k++)
                if (ckv_request_part(request, i, k)->policy.selector == CKV_SELECTOR_PAGE)
                        return ckv_refuse_at(status, CKV_CODE_INVALID_ARGUMENT, CKV_F_POLICY_SELECTOR, i, k, CKV_D_PAGE_PARTS, 0, 0, 0);
        return true;
}

static bool admit_group(struct ckv_request *request, const struct ckv_compress_parts *parts, uint32_t i,
                        const struct ckv_record_policy *policies, const uint32_t **words, struct ckv_record_status *status) {
        const struct ckv_record_group *g = &parts->groups[i];
        const struct ckv_cache_group *cache_group;
        struct ckv_group_words w;

        w.table = *words;
        w.destination = w.table + g->table_count;
        w.spans = w.destination + g->destination_count;
        w.position_runs = w.spans + 2 * (size_t)g->span_count;
        w.chunk_lengths = w.position_runs + g->position_run_count;
        w.given_runs = w.chunk_lengths + g->chunk_length_count;
        *words = w.given_runs + g->given_run_count;

        if (!check_group(request, parts, i, status))
                return false;
        cache_group = &request->cache->groups[g->group];
        if (cache_group->aliased && request->mode != CKV_MODE_PLAN)
                return ckv_refuse(status, CKV_CODE_INVALID_ARGUMENT, CKV_F_COMPRESS_MODE, CKV_D_ALIASED, g->group, 0, 0);
        if (!ckv_admit_parts(request, g, policies, i, status))
                return false;
        for (uint32_t k = 0; k < request->groups[i].part_count; k++) {
                ckv_request_part(request, i, k)->want_mass = parts->body->want_kept_mass;
                if (!ckv_admit_policy(request, parts->body, g, &policies[k], (struct ckv_part){ i, k }, status))
                        return false;
        }
        if (!ckv_admit_lists(request, g, &w, i, status) ||
            !ckv_admit_tables(request, g, &w, i, cache_group->num_blocks, status))
                return false;
        ckv_parts_share(request, i);
        return ckv_admit_given(request, g, &w, i, status) && check_pages(request, i, status) && check_budgets(request, i, status);
}

/* new_job() - as many groups as there are policies: none at all is one of the default profile */
static bool new_job(struct ckv_request *request, const struct ckv_compress_parts *parts, struct ckv_record_status *status) {
        uint32_t count = 0;

        request->groups = calloc(parts->body->group_count, sizeof(*request->groups));
        if (!request->groups)
                return ckv_refuse(status, CKV_CODE_NO_MEMORY, CKV_F_NONE, CKV_D_NO_MEMORY, 0, 0, 0);
        request->group_count = parts->body->group_count;
        for (uint32_t i = 0; i < request->group_count; i++) {
                request->groups[i] = (struct ckv_request_group){
                        .first_part = count, .part_count = CKV_MAX(parts->groups[i].policy_count, 1u),
                        .table_form = parts->groups[i].table_form,
                };
                count += request->groups[i].part_count;
        }
        request->job = ckv_job_new(count);
        if (!request->job)
                return ckv_refuse(status, CKV_CODE_NO_MEMORY, CKV_F_NONE, CKV_D_NO_MEMORY, 0, 0, 0);
        return true;
}

/* check_device() - is there a kernel for it? A repair scores nothing any more, and moves what was moved before. */
static bool check_device(const struct ckv_request *request, struct ckv_record_status *status) {
        const struct ckv_backend_ops *ops = request->session->daemon->ops;
        enum ckv_policy_field field;
        uint32_t part;

        if (request->repairs || !ops->takes || ops->takes(request->job, &part, &field))
                return true;
        return ckv_policy_refuse_on_device(request, part, field, status);
}

bool ckv_admit(struct ckv_request *request, const struct ckv_record *record, const uint8_t *attachment, uint32_t bytes,
               struct ckv_record_status *ret_status) {
        const struct ckv_record_compress *body = &record->body.compress;
        static const struct ckv_record_policy of_default_profile;
        struct ckv_compress_parts parts;
        const struct ckv_record_policy *policies;
        const uint32_t *words;

        if (!cut(record, attachment, bytes, &parts, ret_status))
                return false;
        if (body->mode < CKV_MODE_PLAN || body->mode > CKV_MODE_COPY_OUT)
                return ckv_refuse(ret_status, CKV_CODE_INVALID_ARGUMENT, CKV_F_COMPRESS_MODE, CKV_D_ENUM, body->mode, 0, 0);
        if (body->reply_form > CKV_REPLY_NO_SETS)
                return ckv_refuse(ret_status, CKV_CODE_INVALID_ARGUMENT, CKV_F_COMPRESS_REPLY_FORM, CKV_D_ENUM, body->reply_form, 0, 0);
        request->mode = (enum ckv_mode)body->mode;
        request->reply_form = (enum ckv_reply_form)body->reply_form;
        request->logical_len = body->logical_len;
        request->cache = ckv_cache_find(request->session, body->cache_id);
        if (!request->cache)
                return ckv_refuse(ret_status, CKV_CODE_NOT_FOUND, CKV_F_COMPRESS_CACHE_ID, CKV_D_UNKNOWN_ID, body->cache_id, 0, 0);
        request->cache->request_uses++;
        if (!new_job(request, &parts, ret_status))
                return false;

        policies = parts.policies;
        words = parts.words;
        for (uint32_t i = 0; i < body->group_count; i++) {
                bool given = parts.groups[i].policy_count > 0;

                if (!admit_group(request, &parts, i, given ? policies : &of_default_profile, &words, ret_status))
                        return false;
                policies += parts.groups[i].policy_count;
        }
        /* intact: scores of a region with holes would be scores of zeros */
        if (!ckv_admit_queries(request, &parts, ret_status) || !ckv_admit_reply_slice(request, body, ret_status) ||
            !ckv_admit_timeline(request, &parts, ret_status) || !ckv_outputs_check(request, body, parts.groups, parts.timeline, ret_status) ||
            !ckv_request_intact(request, ret_status) ||
            !ckv_admit_reply_size(request, parts.groups, ret_status))
                return false;
        if (!check_device(request, ret_status))
                return false;
        request->job->owner = request;
        request->job->fair_key = request->session->peer.uid;
        request->job->deadline_nsec = record->head.deadline_ns;
        return true;
}
