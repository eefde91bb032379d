/*
 * What layers are to be compressed by: policy and budget.  kernels/policy.c
 * knows what is legal; this file turns a record into its words, and tells it
 * what the request brings along.  What takes the cache to judge is judged here.
 */
#include "daemon/admit.h"

#include "base/macros.h"
#include "daemon/cache.h"
#include "daemon/daemon.h"
#include "daemon/refuse.h"

/* kernels/ and proto/ never include one another: here their numbers meet. */
static_assert((int)CKV_GIVEN_SINKS == (int)CKV_RECORD_GIVEN_SINKS && (int)CKV_GIVEN_RECENT == (int)CKV_RECORD_GIVEN_RECENT &&
              (int)CKV_GIVEN_MIN_TOKENS == (int)CKV_RECORD_GIVEN_MIN_TOKENS &&
              (int)CKV_GIVEN_CONTRAST_FIRST == (int)CKV_RECORD_GIVEN_CONTRAST_FIRST &&
              (int)CKV_GIVEN_CONTRAST_END == (int)CKV_RECORD_GIVEN_CONTRAST_END && (int)CKV_GIVEN_MUTE == (int)CKV_RECORD_GIVEN_MUTE,
              "bits of ckv_record_policy.given");
/* Every field that record and policy have in common, once for both directions. */
#define POLICY_ENUMS(X)                                                                                                          \
        X(profile) X(scorer) X(selector) X(pool) X(norm) X(heads) X(group_heads) X(value_weight) X(unit_reduce) X(layers) X(fill) \
        X(tight) X(join) X(window_reduce) X(layer_reduce)
#define POLICY_NUMBERS(X)                                                                                                        \
        X(given) X(layer_first) X(window) X(chunk) X(sinks) X(recent) X(min_tokens) X(pool_size) X(reuse) X(align) X(sliding)     \
        X(spike_keep) X(page) X(beta) X(heavy) X(recent_part) X(vote_rows) X(contrast_first) X(contrast_end) X(mute) X(scale)     \
        X(softcap)

static void policy_from_record(const struct ckv_record_policy *record, struct ckv_policy *ret_policy) {
        *ret_policy = (struct ckv_policy){ 0 };
#define X(name) ret_policy->name = (__typeof__(ret_policy->name))record->name;
        POLICY_ENUMS(X)
        POLICY_NUMBERS(X)
#undef X
}

void ckv_policy_to_record(const struct ckv_policy *policy, struct ckv_record_policy *ret_record) {
        *ret_record = (struct ckv_record_policy){ 0 };
#define X(name) ret_record->name = (uint8_t)policy->name;
        POLICY_ENUMS(X)
#undef X
#define X(name) ret_record->name = policy->name;
        POLICY_NUMBERS(X)
#undef X
}

/* check_latent() - 1 / sqrt(d) is the scale of no latent attention */
static bool check_latent(const struct ckv_job_group *group, const struct ckv_record_group *record, struct ckv_part part,
                         struct ckv_record_status *status) {
        if (group->head_dim_v > 0 || record->given_run_count || record->scores_in.region_id ||
            group->policy.scorer != CKV_SCORER_WINDOW)
                return true;
        if (group->policy.profile == CKV_PROFILE_KVPRESS || group->policy.profile == CKV_PROFILE_PAPER)
                return ckv_refuse_at(status, CKV_CODE_UNSUPPORTED, CKV_F_POLICY_PROFILE, part.group, part.policy,
                                     CKV_D_LATENT_PROFILE, 0, 0, 0);
        if (group->policy.scale == 0)
                return ckv_refuse_at(status, CKV_CODE_INVALID_ARGUMENT, CKV_F_POLICY_SCALE, part.group, part.policy, CKV_D_LATENT_SCALE,
                                     0, 0, 0);
        return true;
}

/* check_each() - heads that keep different rows have no common positions */
static bool check_each(const struct ckv_job_group *group, const struct ckv_record_group *record, struct ckv_part part,
                       struct ckv_record_status *status) {
        if (group->policy.heads != CKV_HEADS_EACH || record->given_run_count)
                return true;
        if (record->position_run_count)
                return ckv_refuse_at(status, CKV_CODE_INVALID_ARGUMENT, CKV_F_POLICY_HEADS, part.group, part.policy,
                                     CKV_D_EACH_POSITIONS, 0, 0, 0);
        if (group->policy.sliding)
                return ckv_refuse_at(status, CKV_CODE_INVALID_ARGUMENT, CKV_F_POLICY_HEADS, part.group, part.policy,
                                     CKV_D_EACH_SLIDING, 0, 0, 0);
        return true;
}

/* check_page() - what is freed are blocks of the engine's */
static bool check_page(const struct ckv_job_group *group, uint32_t tokens_per_block, struct ckv_part part,
                       struct ckv_record_status *status) {
        if (group->policy.selector == CKV_SELECTOR_PAGE && group->policy.page % tokens_per_block)
                return ckv_refuse_at(status, CKV_CODE_INVALID_ARGUMENT, CKV_F_POLICY_PAGE, part.group, part.policy, CKV_D_PAGE_BLOCKS,
                                     tokens_per_block, group->policy.page, 0);
        return true;
}

/* check_use() - what the policy needs of this request: queries, values, scores, a mode that it can have */
static bool check_use(const struct ckv_request *request, const struct ckv_record_compress *body, const struct ckv_record_group *record,
                      struct ckv_part part, struct ckv_record_status *status) {
        const struct ckv_job_group *group = ckv_request_part(request, part.group, part.policy);
        const struct ckv_policy_use use = {
                .rows = group->selection.rows, .query_rows = body->has_queries ? body->query_rows : 0,
                .values = group->head_dim_v > 0, .scores = record->scores_in.region_id != 0,
                .plan = request->mode == CKV_MODE_PLAN, .in_place = request->mode == CKV_MODE_IN_PLACE,
                .slots = record->table_form == CKV_TABLE_TOKENS || record->table_form == CKV_TABLE_TOKEN_RUNS,
        };
        struct ckv_policy_fault fault;

        return record->given_run_count || ckv_policy_check_use(&group->policy, &use, &fault) ||
               ckv_policy_refuse(status, &fault, group->policy.profile, part);
}

bool ckv_admit_policy(struct ckv_request *request, const struct ckv_record_compress *body, const struct ckv_record_group *group,
                      const struct ckv_record_policy *policy, struct ckv_part part, struct ckv_record_status *ret_status) {
        struct ckv_job_group *job_group = ckv_request_part(request, part.group, part.policy);
        const struct ckv_cache_group *cache_group = &request->cache->groups[group->group];
        struct ckv_policy_fault fault;
        struct ckv_policy asked;

        policy_from_record(policy, &asked);
        asked.layer_first = 0;  /* admit_parts.c has made sense of it */
        if (asked.selector == CKV_SELECTOR_PAGE && asked.page == 0)
                asked.page = cache_group->tokens_per_block;
        if (!ckv_policy_resolve(&asked, &job_group->policy, &fault) ||
            (!group->given_run_count &&
             !ckv_policy_check_budget(&job_group->policy, group->keep_ratio, group->max_tokens, &fault)))
                return ckv_policy_refuse(ret_status, &fault, asked.profile, part);
        job_group->policy.layer_first = job_group->layers[0].number;
        if (job_group->policy.reuse > cache_group->layer_count)
                return ckv_refuse_at(ret_status, CKV_CODE_OUT_OF_RANGE, CKV_F_POLICY_REUSE, part.group, part.policy, CKV_D_RANGE, 1,
                                     cache_group->layer_count, job_group->policy.reuse);
        job_group->selection.keep_ratio = group->keep_ratio;
        job_group->selection.max_tokens = group->max_tokens;
        return check_latent(job_group, group, part, ret_status) && check_each(job_group, group, part, ret_status) &&
               check_page(job_group, cache_group->tokens_per_block, part, ret_status) &&
               check_use(request, body, group, part, ret_status);
}
