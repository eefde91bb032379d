/*
 * What does not go together: parameters among themselves, a policy with the
 * budget and the spans beside it, a policy with the request it came in.
 *
 * Each rule names the parameter to change and the one that it collides with,
 * so that whoever asked can be told what to do instead.  A parameter that is
 * set and would have no effect is refused only where it belongs to one method
 * (page, heavy, ...); a chunk length beside selector token is no harm.
 */
#include "kernels/policy_rules.h"

#define BIT(n) (1U << (n))
#define CLOSED (BIT(CKV_PROFILE_KVPRESS) | BIT(CKV_PROFILE_PAPER))

enum {
        SPANS_MAX = 1024,
        PARTS_ONE = 1000000,            /* millionths */
        CHUNK_MAX = 1024,
        CONTRAST_MAX = 256,
};

static const struct ckv_policy_fault no_fault;

static struct ckv_policy_fault fault(enum ckv_policy_fault_kind kind, enum ckv_policy_field field, uint64_t value, uint64_t low,
                                     uint64_t high) {
        return (struct ckv_policy_fault){ .kind = kind, .field = field, .value = value, .low = low, .high = high };
}

static struct ckv_policy_fault collides(enum ckv_policy_fault_kind kind, enum ckv_policy_field field, uint64_t value,
                                        enum ckv_policy_field other, uint64_t other_value) {
        return (struct ckv_policy_fault){
                .kind = kind, .field = field, .value = value, .other = other, .other_value = other_value,
        };
}

#define TOGETHER(field, value, other, other_value) \
        collides(CKV_FAULT_TOGETHER, CKV_FIELD_##field, (uint64_t)(value), CKV_FIELD_##other, (uint64_t)(other_value))

/* kvpress has a press for some scorers and selectors (R54); paper is chunks alone */
static struct ckv_policy_fault judge_profile(const struct ckv_policy *policy) {
        const uint32_t presses = BIT(CKV_SCORER_WINDOW) | BIT(CKV_SCORER_KNORM) | BIT(CKV_SCORER_KEYDIFF) | BIT(CKV_SCORER_LAGKV);
        const uint32_t selectors = BIT(CKV_SELECTOR_CHUNK) | BIT(CKV_SELECTOR_TOKEN) | BIT(CKV_SELECTOR_STREAMING) |
                                   BIT(CKV_SELECTOR_CHUNK_EG);
        bool kvpress = policy->profile == CKV_PROFILE_KVPRESS;

        if (!(CLOSED & BIT(policy->profile)))
                return no_fault;
        if (kvpress && !(presses & BIT(policy->scorer)))
                return fault(CKV_FAULT_UNSUPPORTED, CKV_FIELD_SCORER, policy->scorer, 0, 0);
        if (!((kvpress ? selectors : BIT(CKV_SELECTOR_CHUNK)) & BIT(policy->selector)))
                return fault(CKV_FAULT_UNSUPPORTED, CKV_FIELD_SELECTOR, policy->selector, 0, 0);
        if (policy->pool == CKV_POOL_LEAK)
                return fault(CKV_FAULT_PROFILE, CKV_FIELD_POOL, policy->pool, 0, 0);
        if (kvpress && policy->beta > 0 && policy->selector != CKV_SELECTOR_TOKEN)
                return fault(CKV_FAULT_PROFILE, CKV_FIELD_BETA, policy->beta, 0, 0);
        return no_fault;
}

/* What belongs to one selector, and what a selector can't do */
static struct ckv_policy_fault judge_selector(const struct ckv_policy *asked, const struct ckv_policy *policy) {
        enum ckv_selector selector = policy->selector;

        /* caller-given units differ in length, and a sum would simply prefer the long ones */
        if (selector == CKV_SELECTOR_CHUNK_AT && policy->unit_reduce == CKV_UNIT_SUM)
                return TOGETHER(UNIT_REDUCE, CKV_UNIT_SUM, SELECTOR, selector);
        if (selector == CKV_SELECTOR_CHUNK_EG && policy->chunk < 2)
                return fault(CKV_FAULT_RANGE, CKV_FIELD_CHUNK, policy->chunk, 2, CHUNK_MAX);
        if (selector == CKV_SELECTOR_CHUNK_EG && policy->spike_keep >= policy->chunk)
                return fault(CKV_FAULT_RANGE, CKV_FIELD_SPIKE_KEEP, policy->spike_keep, 1, policy->chunk - 1);
        if (selector == CKV_SELECTOR_STREAMING && policy->recent == 0 && policy->profile != CKV_PROFILE_KVPRESS)
                return fault(CKV_FAULT_RANGE, CKV_FIELD_RECENT, 0, 1, UINT32_MAX);
        if (selector == CKV_SELECTOR_H2O && policy->scorer != CKV_SCORER_WINDOW)
                return TOGETHER(SCORER, policy->scorer, SELECTOR, selector);
        if (selector == CKV_SELECTOR_H2O && (asked->given & CKV_GIVEN_RECENT))
                return TOGETHER(RECENT, asked->recent, SELECTOR, selector);
        if (selector == CKV_SELECTOR_H2O && policy->heavy + policy->recent_part > PARTS_ONE)
                return fault(CKV_FAULT_RANGE, CKV_FIELD_RECENT_PART, policy->recent_part, 0, PARTS_ONE - policy->heavy);
        if (selector != CKV_SELECTOR_H2O && asked->heavy)
                return TOGETHER(HEAVY, asked->heavy, SELECTOR, selector);
        if (selector != CKV_SELECTOR_H2O && asked->recent_part)
                return TOGETHER(RECENT_PART, asked->recent_part, SELECTOR, selector);
        if (selector == CKV_SELECTOR_PAGE && policy->page == 0)
                return collides(CKV_FAULT_MISSING, CKV_FIELD_PAGE, 0, CKV_FIELD_SELECTOR, (uint64_t)selector);
        if (selector == CKV_SELECTOR_PAGE && policy->layers != CKV_LAYERS_ONE)
                return TOGETHER(LAYERS, policy->layers, SELECTOR, selector);
        if (selector == CKV_SELECTOR_PAGE && policy->fill != CKV_FILL_NONE)
                return TOGETHER(FILL, policy->fill, SELECTOR, selector);
        if (selector != CKV_SELECTOR_PAGE && asked->page)
                return TOGETHER(PAGE, asked->page, SELECTOR, selector);
        return no_fault;
}

/* Sets of heads and of layers */
static struct ckv_policy_fault judge_sets(const struct ckv_policy *policy) {
        bool one = policy->layers == CKV_LAYERS_ONE;

        if (policy->layer_reduce == CKV_LAYER_TOP4 && !one)
                return TOGETHER(LAYER_REDUCE, policy->layer_reduce, LAYERS, policy->layers);
        if (policy->beta > 0 && one)
                return TOGETHER(BETA, policy->beta, LAYERS, policy->layers);
        if (policy->heads != CKV_HEADS_EACH)
                return no_fault;
        if (one)
                return TOGETHER(HEADS, policy->heads, LAYERS, policy->layers);
        if (policy->selector == CKV_SELECTOR_STREAMING)
                return TOGETHER(HEADS, policy->heads, SELECTOR, policy->selector);
        /* a layer has one length: its heads must keep equally many rows, and whole chunks alone don't add up to that */
        if (policy->fill == CKV_FILL_NONE && (policy->selector == CKV_SELECTOR_CHUNK || policy->selector == CKV_SELECTOR_CHUNK_AT))
                return TOGETHER(FILL, policy->fill, HEADS, policy->heads);
        return no_fault;
}

/* What only softmax weights of queries have */
static struct ckv_policy_fault judge_weights(const struct ckv_policy *asked, const struct ckv_policy *policy) {
        bool largest = policy->window_reduce == CKV_ROWS_MAX;
        bool first = (policy->given & CKV_GIVEN_CONTRAST_FIRST) != 0, end = (policy->given & CKV_GIVEN_CONTRAST_END) != 0;

        if (first && !end)
                return collides(CKV_FAULT_MISSING, CKV_FIELD_CONTRAST_END, 0, CKV_FIELD_CONTRAST_FIRST, policy->contrast_first);
        if (end && !first)
                return collides(CKV_FAULT_MISSING, CKV_FIELD_CONTRAST_FIRST, 0, CKV_FIELD_CONTRAST_END, policy->contrast_end);
        if (policy->contrast_end < policy->contrast_first)
                return fault(CKV_FAULT_RANGE, CKV_FIELD_CONTRAST_END, policy->contrast_end, policy->contrast_first, CONTRAST_MAX);
        if (largest && policy->scorer != CKV_SCORER_WINDOW)
                return TOGETHER(SCORER, policy->scorer, WINDOW_REDUCE, policy->window_reduce);
        if (policy->contrast_end > policy->contrast_first && policy->scorer != CKV_SCORER_WINDOW)
                return TOGETHER(SCORER, policy->scorer, CONTRAST_END, policy->contrast_end);
        if (policy->mute > 0 && policy->scorer != CKV_SCORER_WINDOW)
                return TOGETHER(SCORER, policy->scorer, MUTE, policy->mute);
        if (policy->pool == CKV_POOL_LEAK && policy->scorer != CKV_SCORER_WINDOW)
                return TOGETHER(SCORER, policy->scorer, POOL, policy->pool);
        if (largest && policy->selector == CKV_SELECTOR_H2O)
                return TOGETHER(WINDOW_REDUCE, policy->window_reduce, SELECTOR, policy->selector);
        if (largest && policy->norm != CKV_NORM_SUM)
                return TOGETHER(NORM, policy->norm, WINDOW_REDUCE, policy->window_reduce);
        if (!largest && asked->vote_rows)
                return TOGETHER(VOTE_ROWS, asked->vote_rows, WINDOW_REDUCE, policy->window_reduce);
        if (largest && policy->vote_rows > policy->window)
                return fault(CKV_FAULT_RANGE, CKV_FIELD_VOTE_ROWS, policy->vote_rows, 1, policy->window);
        return no_fault;
}

struct ckv_policy_fault ckv__policy_judge_together(const struct ckv_policy *asked, const struct ckv_policy *policy) {
        struct ckv_policy_fault found = judge_profile(policy);

        if (found.kind == CKV_FAULT_NONE)
                found = judge_selector(asked, policy);
        if (found.kind == CKV_FAULT_NONE)
                found = judge_sets(policy);
        if (found.kind == CKV_FAULT_NONE)
                found = judge_weights(asked, policy);
        return found;
}

bool ckv_policy_check_budget(const struct ckv_policy *policy, uint32_t keep_ratio, uint32_t max_tokens,
                             struct ckv_policy_fault *ret_fault) {
        bool kvpress = policy->profile == CKV_PROFILE_KVPRESS, h2o = policy->selector == CKV_SELECTOR_H2O;

        if (kvpress && max_tokens > 0)
                *ret_fault = fault(CKV_FAULT_PROFILE, CKV_FIELD_MAX_TOKENS, max_tokens, 0, 0);
        else if (h2o && keep_ratio > 0)
                *ret_fault = TOGETHER(KEEP_RATIO, keep_ratio, SELECTOR, policy->selector);
        else if (h2o && max_tokens > 0)
                *ret_fault = TOGETHER(MAX_TOKENS, max_tokens, SELECTOR, policy->selector);
        else if (keep_ratio > PARTS_ONE || (keep_ratio == 0 && max_tokens == 0 && !h2o))
                *ret_fault = fault(CKV_FAULT_RANGE, CKV_FIELD_KEEP_RATIO, keep_ratio, 1, PARTS_ONE);
        else
                return true;
        return false;
}

bool ckv_policy_check_spans(const struct ckv_policy *policy, uint64_t span_count, struct ckv_policy_fault *ret_fault) {
        if (span_count > 0 && (CLOSED & BIT(policy->profile)))
                *ret_fault = fault(CKV_FAULT_PROFILE, CKV_FIELD_PROTECT, span_count, 0, 0);
        else if (span_count > SPANS_MAX)
                *ret_fault = fault(CKV_FAULT_RANGE, CKV_FIELD_PROTECT, span_count, 0, SPANS_MAX);
        else
                return true;
        return false;
}

/* Rows that are scored here: with V, and with queries where the scorer reads them */
static struct ckv_policy_fault judge_inputs(const struct ckv_policy *policy, const struct ckv_policy_use *use) {
        uint32_t window = ckv_policy_window(policy, use->rows);

        if (policy->selector == CKV_SELECTOR_STREAMING || use->scores)
                return no_fault;
        if (policy->scorer == CKV_SCORER_GIVEN)
                return fault(CKV_FAULT_NO_SCORES, CKV_FIELD_SCORER, policy->scorer, 0, 0);
        if (!use->values && policy->value_weight != CKV_WEIGHT_NONE)
                return fault(CKV_FAULT_NO_VALUES, CKV_FIELD_VALUE_WEIGHT, policy->value_weight, 0, 0);
        if (!use->values && (policy->scorer == CKV_SCORER_LAGKV || policy->scorer == CKV_SCORER_VK_RATIO ||
                             policy->scorer == CKV_SCORER_DROP))
                return fault(CKV_FAULT_NO_VALUES, CKV_FIELD_SCORER, policy->scorer, 0, 0);
        if (!ckv_policy_reads_queries(policy) || use->rows == 0 || use->rows < policy->min_tokens || use->rows < window)
                return no_fault;
        if (policy->selector == CKV_SELECTOR_H2O && use->rows > CKV_H2O_ROWS_MAX)
                return fault(CKV_FAULT_TOO_LONG, CKV_FIELD_SELECTOR, use->rows, 0, CKV_H2O_ROWS_MAX);
        if (use->query_rows == 0)
                return fault(CKV_FAULT_NO_QUERIES, CKV_FIELD_SCORER, policy->scorer, window, 0);
        if (use->query_rows < window)
                return fault(CKV_FAULT_FEW_QUERIES, policy->selector == CKV_SELECTOR_H2O ? CKV_FIELD_SELECTOR : CKV_FIELD_WINDOW,
                             use->query_rows, window, 0);
        return no_fault;
}

bool ckv_policy_check_use(const struct ckv_policy *policy, const struct ckv_policy_use *use, struct ckv_policy_fault *ret_fault) {
        struct ckv_policy_fault found = no_fault;

        if (policy->selector == CKV_SELECTOR_PAGE && !use->plan)
                found = fault(CKV_FAULT_PLAN_ONLY, CKV_FIELD_SELECTOR, policy->selector, 0, 0);
        else if (policy->heads == CKV_HEADS_EACH && use->plan)
                found = fault(CKV_FAULT_NO_PLAN, CKV_FIELD_HEADS, policy->heads, 0, 0);
        else if (policy->heads == CKV_HEADS_EACH && use->in_place && use->slots)
                found = fault(CKV_FAULT_NO_SLOTS, CKV_FIELD_HEADS, policy->heads, 0, 0);
        else
                found = judge_inputs(policy, use);
        if (found.kind == CKV_FAULT_NONE)
                return true;
        *ret_fault = found;
        return false;
}
