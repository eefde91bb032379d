/*
 * What a group is to be compressed by: policy, budget, protected spans,
 * positions, chunk lengths.  kernels/policy.c knows what is legal; this file
 * turns a record into its words and its refusals into the path of a field.
 */
#include "daemon/admit.h"

#include "base/limits.h"
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
                         uint32_t index) {
        enum ckv_field field = field_of(fault->field);

        switch (fault->kind) {
        case CKV_FAULT_RANGE:
                return ckv_refuse_at(status, CKV_CODE_OUT_OF_RANGE, field, index, 0, CKV_D_RANGE, fault->low, fault->high,
                                     fault->value);
        case CKV_FAULT_EVEN:
                return ckv_refuse_at(status, CKV_CODE_INVALID_ARGUMENT, field, index, 0, CKV_D_ODD, fault->value, 0, 0);
        case CKV_FAULT_ENUM:
                return ckv_refuse_at(status, CKV_CODE_INVALID_ARGUMENT, field, index, 0, CKV_D_ENUM, fault->value, 0, 0);
        case CKV_FAULT_PROFILE:
                return ckv_refuse_at(status, CKV_CODE_INVALID_ARGUMENT, field, index, 0, CKV_D_PROFILE_FIXES, (uint64_t)profile, 0, 0);
        case CKV_FAULT_TOGETHER:
                return ckv_refuse_at(status, CKV_CODE_INVALID_ARGUMENT, field, index, 0, CKV_D_CHUNK_AT_SUM, 0, 0, 0);
        case CKV_FAULT_NONFINITE:
                return ckv_refuse_at(status, CKV_CODE_INVALID_ARGUMENT, field, index, 0, CKV_D_FINITE, 0, 0, 0);
        default:
                return ckv_refuse_at(status, CKV_CODE_UNSUPPORTED, field, index, 0, CKV_D_NOT_BUILT, 0, 0, 0);
        }
}

/* take_positions() - runs (dropped, kept, ...) of positions to one position for each row */
static bool take_positions(struct ckv_selection *selection, const uint32_t *runs, uint32_t count, uint32_t logical_len, uint32_t index,
                           struct ckv_record_status *status) {
        uint64_t position = 0, rows = 0;
        uint32_t *positions;

        if (count % 2)
                return ckv_refuse_at(status, CKV_CODE_INVALID_ARGUMENT, CKV_F_GROUP_POSITION_RUNS, index, 0, CKV_D_EVEN_COUNT, count, 0, 0);
        positions = malloc(CKV_MAX(selection->rows, 1u) * sizeof(*positions));
        if (!positions)
                return ckv_refuse(status, CKV_CODE_NO_MEMORY, CKV_F_NONE, CKV_D_NO_MEMORY, 0, 0, 0);
        selection->positions = positions;
        for (uint32_t i = 0; i < count; i++) {
                if (runs[i] == 0 && i > 0)
                        return ckv_refuse_at(status, CKV_CODE_OUT_OF_RANGE, CKV_F_GROUP_POSITION_RUNS, index, 0, CKV_D_AT_LEAST, 1,
                                             0, 0);
                if (position + runs[i] > logical_len)
                        return ckv_refuse_at(status, CKV_CODE_OUT_OF_RANGE, CKV_F_GROUP_POSITION_RUNS, index, 0, CKV_D_AT_MOST,
                                             logical_len, position + runs[i], 0);
                for (uint32_t k = 0; i % 2 && k < runs[i]; k++) {
                        if (rows == selection->rows)
                                return ckv_refuse_at(status, CKV_CODE_OUT_OF_RANGE, CKV_F_GROUP_POSITION_RUNS, index, 0,
                                                     CKV_D_AT_MOST, selection->rows, rows + 1, 0);
                        positions[rows++] = (uint32_t)position + k;
                }
                position += runs[i];
        }
        if (rows < selection->rows)
                return ckv_refuse_at(status, CKV_CODE_OUT_OF_RANGE, CKV_F_GROUP_POSITION_RUNS, index, 0, CKV_D_AT_LEAST,
                                     selection->rows, rows, 0);
        return true;
}

uint32_t ckv_prefix_rows(const struct ckv_request *request, const struct ckv_record_group *group) {
        uint64_t block = request->cache->groups[group->group].tokens_per_block;
        uint64_t whole = (group->protect_prefix + block - 1) / block * block;

        return (uint32_t)CKV_MIN(whole, group->physical_len);
}

/* take_spans() - protected positions; protect_prefix becomes one more, over @prefix rows */
static bool take_spans(struct ckv_selection *selection, const struct ckv_record_group *group, const uint32_t *words, uint32_t prefix,
                       uint32_t index, struct ckv_record_status *status) {
        uint32_t count = group->span_count;
        struct ckv_policy_fault fault;
        struct ckv_span *spans;

        if (count > CKV_LIMIT_SPANS)
                return ckv_refuse_at(status, CKV_CODE_OUT_OF_RANGE, CKV_F_GROUP_PROTECT, index, 0, CKV_D_COUNT, 0, CKV_LIMIT_SPANS,
                                     count);
        if (group->protect_prefix > selection->rows)
                return ckv_refuse_at(status, CKV_CODE_OUT_OF_RANGE, CKV_F_GROUP_PROTECT_PREFIX, index, 0, CKV_D_AT_MOST,
                                     selection->rows, group->protect_prefix, 0);
        /* these profiles protect nothing: a prefix that others share would be overwritten */
        if (!group->given_run_count && !ckv_policy_check_spans(selection->policy, count > 0 || prefix > 0, &fault))
                return ckv_refuse_at(status, CKV_CODE_INVALID_ARGUMENT, count > 0 ? CKV_F_GROUP_PROTECT : CKV_F_GROUP_PROTECT_PREFIX,
                                     index, 0, CKV_D_PROFILE_FIXES, (uint64_t)selection->policy->profile, 0, 0);
        spans = calloc((size_t)count + 1, sizeof(*spans));
        if (!spans)
                return ckv_refuse(status, CKV_CODE_NO_MEMORY, CKV_F_NONE, CKV_D_NO_MEMORY, 0, 0, 0);
        selection->spans = spans;
        for (uint32_t i = 0; i < count; i++) {
                spans[i] = (struct ckv_span){ words[2 * i], words[2 * i + 1] };
                if (spans[i].count == 0)
                        return ckv_refuse_at(status, CKV_CODE_OUT_OF_RANGE, CKV_F_GROUP_PROTECT, index, i, CKV_D_AT_LEAST, 1, 0, 0);
        }
        selection->span_count = count;
        if (prefix) {
                uint32_t first = selection->positions ? selection->positions[0] : 0;
                uint32_t last = selection->positions ? selection->positions[prefix - 1] : prefix - 1;

                spans[selection->span_count++] = (struct ckv_span){ first, last - first + 1 };
        }
        return true;
}

/* take_chunk_lengths() - caller-given boundaries: lengths of at least 1 that add up to the rows */
static bool take_chunk_lengths(struct ckv_selection *selection, const struct ckv_policy *policy, const uint32_t *words, uint32_t count,
                               uint32_t index, struct ckv_record_status *status) {
        uint64_t sum = 0;
        uint32_t *lengths;

        if (policy->selector != CKV_SELECTOR_CHUNK_AT)
                return count == 0 || ckv_refuse_at(status, CKV_CODE_INVALID_ARGUMENT, CKV_F_GROUP_CHUNK_LENGTHS, index, 0,
                                                   CKV_D_NOT_USED, 0, 0, 0);
        for (uint32_t i = 0; i < count; i++) {
                if (words[i] == 0)
                        return ckv_refuse_at(status, CKV_CODE_OUT_OF_RANGE, CKV_F_GROUP_CHUNK_LENGTHS, index, 0, CKV_D_AT_LEAST, 1,
                                             0, 0);
                sum += words[i];
        }
        if (sum != selection->rows)
                return ckv_refuse_at(status, CKV_CODE_OUT_OF_RANGE, CKV_F_GROUP_CHUNK_LENGTHS, index, 0, CKV_D_RANGE,
                                     selection->rows, selection->rows, sum);
        lengths = malloc(CKV_MAX(count, 1u) * sizeof(*lengths));
        if (!lengths)
                return ckv_refuse(status, CKV_CODE_NO_MEMORY, CKV_F_NONE, CKV_D_NO_MEMORY, 0, 0, 0);
        for (uint32_t i = 0; i < count; i++)
                lengths[i] = words[i];
        selection->chunk_lengths = lengths;
        selection->chunk_length_count = count;
        return true;
}

/* check_latent() - without V there is nothing to weigh by, and 1 / sqrt(d) is the scale of no latent attention */
static bool check_latent(const struct ckv_job_group *group, const struct ckv_record_group *record, uint32_t index,
                         struct ckv_record_status *status) {
        if (group->head_dim_v > 0 || record->given_run_count || record->scores_in.region_id)
                return true;
        if (group->policy.value_weight != CKV_WEIGHT_NONE)
                return ckv_refuse_at(status, CKV_CODE_INVALID_ARGUMENT, CKV_F_POLICY_VALUE_WEIGHT, index, 0, CKV_D_NOT_USED, 0, 0, 0);
        if (group->policy.scorer != CKV_SCORER_WINDOW)
                return true;
        if (group->policy.profile == CKV_PROFILE_KVPRESS || group->policy.profile == CKV_PROFILE_PAPER)
                return ckv_refuse_at(status, CKV_CODE_UNSUPPORTED, CKV_F_POLICY_PROFILE, index, 0, CKV_D_LATENT_PROFILE, 0, 0, 0);
        if (group->policy.scale == 0)
                return ckv_refuse_at(status, CKV_CODE_INVALID_ARGUMENT, CKV_F_POLICY_SCALE, index, 0, CKV_D_MISSING, 0, 0, 0);
        return true;
}

bool ckv_admit_policy(struct ckv_request *request, const struct ckv_record_group *group, const struct ckv_record_policy *policy,
                      const struct ckv_group_words *words, uint32_t index, struct ckv_record_status *ret_status) {
        struct ckv_job_group *job_group = &request->job->groups[index];
        struct ckv_selection *selection = &job_group->selection;
        struct ckv_policy_fault fault;
        struct ckv_policy asked;

        policy_from_record(policy, &asked);
        /* the number of the first layer says the same as 0; a later one would need a second policy */
        if (asked.layer_first == job_group->layers[0].number)
                asked.layer_first = 0;
        if (!ckv_policy_resolve(&asked, &job_group->policy, &fault) ||
            (!group->given_run_count &&
             !ckv_policy_check_budget(&job_group->policy, group->keep_ratio, group->max_tokens, &fault)))
                return refuse_fault(ret_status, &fault, asked.profile, index);
        job_group->policy.layer_first = job_group->layers[0].number;
        if (job_group->policy.reuse > job_group->layer_count)
                return ckv_refuse_at(ret_status, CKV_CODE_OUT_OF_RANGE, CKV_F_POLICY_REUSE, index, 0, CKV_D_RANGE, 1,
                                     job_group->layer_count, job_group->policy.reuse);
        if (!check_latent(job_group, group, index, ret_status))
                return false;
        selection->keep_ratio = group->keep_ratio;
        selection->max_tokens = group->max_tokens;
        if (group->position_run_count &&
            !take_positions(selection, words->position_runs, group->position_run_count, request->logical_len, index, ret_status))
                return false;
        return take_spans(selection, group, words->spans, ckv_prefix_rows(request, group), index, ret_status) &&
               take_chunk_lengths(selection, &job_group->policy, words->chunk_lengths, group->chunk_length_count, index, ret_status);
}
