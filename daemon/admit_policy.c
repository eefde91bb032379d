/*
 * What layers are to be compressed by: policy and budget.  kernels/policy.c
 * knows what is legal by itself; this file turns a record into its words and
 * its refusals into the path of a field, and looks at what takes the cache to
 * judge: its layers, whether it has values, the mode of the request.
 */
#include "daemon/admit.h"

#include "base/macros.h"
#include "daemon/cache.h"
#include "daemon/daemon.h"
#include "daemon/refuse.h"

#include <math.h>

/* kernels/ and proto/ never include one another: here their numbers meet. */
static_assert((int)CKV_GIVEN_SINKS == (int)CKV_RECORD_GIVEN_SINKS && (int)CKV_GIVEN_RECENT == (int)CKV_RECORD_GIVEN_RECENT &&
              (int)CKV_GIVEN_MIN_TOKENS == (int)CKV_RECORD_GIVEN_MIN_TOKENS &&
              (int)CKV_GIVEN_CONTRAST_FIRST == (int)CKV_RECORD_GIVEN_CONTRAST_FIRST &&
              (int)CKV_GIVEN_CONTRAST_END == (int)CKV_RECORD_GIVEN_CONTRAST_END && (int)CKV_GIVEN_MUTE == (int)CKV_RECORD_GIVEN_MUTE,
              "bits of ckv_record_policy.given");
static_assert((int)CKV_F_POLICY_LAYER_REDUCE - (int)CKV_F_POLICY_PROFILE == (int)CKV_FIELD_LAYER_REDUCE - (int)CKV_FIELD_PROFILE,
              "proto/fields.def lists the fields of a policy in the order of enum ckv_policy_field");
static_assert((int)CKV_F_POLICY_GROUP_HEADS - (int)CKV_F_POLICY_PROFILE == (int)CKV_FIELD_GROUP_HEADS - (int)CKV_FIELD_PROFILE,
              "the same, half way");

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

static enum ckv_field field_of(enum ckv_policy_field field) {
        switch (field) {
        case CKV_FIELD_KEEP_RATIO:
                return CKV_F_GROUP_KEEP_RATIO;
        case CKV_FIELD_MAX_TOKENS:
                return CKV_F_GROUP_MAX_TOKENS;
        case CKV_FIELD_PROTECT:
                return CKV_F_GROUP_PROTECT;
        case CKV_FIELD_NONE:
                return CKV_F_GROUP_POLICIES;
        default:
                return (enum ckv_field)((int)CKV_F_POLICY_PROFILE + (int)field - (int)CKV_FIELD_PROFILE);
        }
}

/* refuse_fault() - a fault of kernels/policy.c as a status */
static bool refuse_fault(struct ckv_record_status *status, const struct ckv_policy_fault *fault, enum ckv_profile profile,
                         struct ckv_part part) {
        enum ckv_field field = field_of(fault->field);

        switch (fault->kind) {
        case CKV_FAULT_RANGE:
                return ckv_refuse_at(status, CKV_CODE_OUT_OF_RANGE, field, part.group, part.policy, CKV_D_RANGE, fault->low, fault->high,
                                     fault->value);
        case CKV_FAULT_EVEN:
                return ckv_refuse_at(status, CKV_CODE_INVALID_ARGUMENT, field, part.group, part.policy, CKV_D_ODD, fault->value, 0, 0);
        case CKV_FAULT_ENUM:
                return ckv_refuse_at(status, CKV_CODE_INVALID_ARGUMENT, field, part.group, part.policy, CKV_D_ENUM, fault->value, 0, 0);
        case CKV_FAULT_PROFILE:
                return ckv_refuse_at(status, CKV_CODE_INVALID_ARGUMENT, field, part.group, part.policy, CKV_D_PROFILE_FIXES, (uint64_t)profile, 0, 0);
        case CKV_FAULT_TOGETHER:
                return ckv_refuse_at(status, CKV_CODE_INVALID_ARGUMENT, field, part.group, part.policy, CKV_D_CHUNK_AT_SUM, 0, 0, 0);
        case CKV_FAULT_NONFINITE:
                return ckv_refuse_at(status, CKV_CODE_INVALID_ARGUMENT, field, part.group, part.policy, CKV_D_FINITE, 0, 0, 0);
        default:
                return ckv_refuse_at(status, CKV_CODE_UNSUPPORTED, field, part.group, part.policy, CKV_D_NOT_BUILT, 0, 0, 0);
        }
}

/* check_latent() - without V there is nothing to weigh by, and 1 / sqrt(d) is the scale of no latent attention */
static bool check_latent(const struct ckv_job_group *group, const struct ckv_record_group *record, struct ckv_part part,
                         struct ckv_record_status *status) {
        if (group->head_dim_v > 0 || record->given_run_count || record->scores_in.region_id)
                return true;
        if (group->policy.value_weight != CKV_WEIGHT_NONE)
                return ckv_refuse_at(status, CKV_CODE_INVALID_ARGUMENT, CKV_F_POLICY_VALUE_WEIGHT, part.group, part.policy, CKV_D_NOT_USED, 0, 0, 0);
        if (group->policy.scorer != CKV_SCORER_WINDOW)
                return true;
        if (group->policy.profile == CKV_PROFILE_KVPRESS || group->policy.profile == CKV_PROFILE_PAPER)
                return ckv_refuse_at(status, CKV_CODE_UNSUPPORTED, CKV_F_POLICY_PROFILE, part.group, part.policy, CKV_D_LATENT_PROFILE, 0, 0, 0);
        if (group->policy.scale == 0)
                return ckv_refuse_at(status, CKV_CODE_INVALID_ARGUMENT, CKV_F_POLICY_SCALE, part.group, part.policy, CKV_D_MISSING, 0, 0, 0);
        return true;
}

bool ckv_admit_policy(struct ckv_request *request, const struct ckv_record_group *group, const struct ckv_record_policy *policy,
                      struct ckv_part part, struct ckv_record_status *ret_status) {
        struct ckv_job_group *job_group = ckv_request_part(request, part.group, part.policy);
        uint32_t layers = request->cache->groups[group->group].layer_count;
        struct ckv_policy_fault fault;
        struct ckv_policy asked;

        policy_from_record(policy, &asked);
        asked.layer_first = 0;  /* admit_parts.c has made sense of it */
        if (!ckv_policy_resolve(&asked, &job_group->policy, &fault) ||
            (!group->given_run_count &&
             !ckv_policy_check_budget(&job_group->policy, group->keep_ratio, group->max_tokens, &fault)))
                return refuse_fault(ret_status, &fault, asked.profile, part);
        job_group->policy.layer_first = job_group->layers[0].number;
        if (job_group->policy.reuse > layers)
                return ckv_refuse_at(ret_status, CKV_CODE_OUT_OF_RANGE, CKV_F_POLICY_REUSE, part.group, part.policy, CKV_D_RANGE, 1,
                                     layers, job_group->policy.reuse);
        job_group->selection.keep_ratio = group->keep_ratio;
        job_group->selection.max_tokens = group->max_tokens;
        return check_latent(job_group, group, part, ret_status);
}
