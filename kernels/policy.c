/*
 * From what a request asked to what will be done.
 *
 * One table has a line for each parameter: its name on the wire, where it
 * lies in the struct, its range, and which profiles keep it closed.  Another
 * has a line of defaults for each profile.  ckv_policy_resolve() walks the
 * first over the second, so that a parameter is added in one place, and a range
 * cannot be checked in one path and forgotten in another.
 *
 * What is legal alone and not together is policy_rules.c; bounds that need the
 * sequence are left to ckv_select_budget().
 */
#include "kernels/policy.h"

#include "base/macros.h"
#include "kernels/policy_rules.h"

#include <math.h>
#include <string.h>

#define BIT(n) (1U << (n))
#define CLOSED_KVPRESS BIT(CKV_PROFILE_KVPRESS)
#define CLOSED (CLOSED_KVPRESS | BIT(CKV_PROFILE_PAPER))
#define PARTS_ONE 1000000U       /* millionths */

enum {
        SPIKE_KEEP = 4,         /* default of chunk_eg, where the chunk is longer */
        ENTROPY_CHUNK = 10,     /* chunk_length of kvpress' EntropyGatedChunkKVPress */
        VOTE_ROWS = 8,          /* default of profile vote, where the window is longer */
        H2O_PART = 100000,      /* default of heavy and of recent_part, where the other leaves so much */
};

enum row_kind {
        ROW_ENUM,       /* 0 = of the profile; values 1 .. high */
        ROW_COUNT,      /* 0 = of the profile; low .. high */
        ROW_GIVEN,      /* a count that may be 0: set if its bit of ckv_policy.given is */
        ROW_REAL,       /* double, finite and not negative; 0 = none */
        ROW_OUTSIDE,    /* not a member of struct ckv_policy */
};

struct row {
        const char *name;
        size_t offset;
        enum row_kind kind;
        uint32_t low, high;
        uint32_t bit;           /* ROW_GIVEN */
        uint32_t closed;        /* a bit for each profile that does not allow it to be set */
};

#define ROW_AT(field) .name = #field, .offset = offsetof(struct ckv_policy, field)
#define ENUM(field, last, profiles) { ROW_AT(field), .kind = ROW_ENUM, .high = (last), .closed = (profiles) }
#define COUNT(field, least, most, profiles) \
        { ROW_AT(field), .kind = ROW_COUNT, .low = (least), .high = (most), .closed = (profiles) }
#define GIVEN(field, flag, most) { ROW_AT(field), .kind = ROW_GIVEN, .high = (most), .bit = (flag), .closed = CLOSED }
#define REAL(field) { ROW_AT(field), .kind = ROW_REAL, .closed = CLOSED }
#define OUTSIDE(word) { .name = (word), .kind = ROW_OUTSIDE }

static const struct row rows[_CKV_FIELD_N] = {
        [CKV_FIELD_NONE] = OUTSIDE(""),
        [CKV_FIELD_PROFILE] = ENUM(profile, CKV_PROFILE_VOTE, 0),
        [CKV_FIELD_SCORER] = ENUM(scorer, CKV_SCORER_GIVEN, 0),
        [CKV_FIELD_SELECTOR] = ENUM(selector, CKV_SELECTOR_PAGE, 0),
        [CKV_FIELD_LAYER_FIRST] = COUNT(layer_first, 1, UINT32_MAX, 0),
        [CKV_FIELD_WINDOW] = COUNT(window, 1, 256, 0),
        [CKV_FIELD_CHUNK] = COUNT(chunk, 1, 1024, 0),
        [CKV_FIELD_SINKS] = GIVEN(sinks, CKV_GIVEN_SINKS, 1024),
        [CKV_FIELD_RECENT] = GIVEN(recent, CKV_GIVEN_RECENT, UINT32_MAX),
        [CKV_FIELD_MIN_TOKENS] = GIVEN(min_tokens, CKV_GIVEN_MIN_TOKENS, UINT32_MAX),
        [CKV_FIELD_POOL] = ENUM(pool, CKV_POOL_LEAK, 0),
        [CKV_FIELD_POOL_SIZE] = COUNT(pool_size, 1, 31, 0),
        [CKV_FIELD_NORM] = ENUM(norm, CKV_NORM_SEEN, CLOSED),
        [CKV_FIELD_HEADS] = ENUM(heads, CKV_HEADS_EACH, CLOSED),
        [CKV_FIELD_VALUE_WEIGHT] = ENUM(value_weight, CKV_WEIGHT_L2, CLOSED),
        [CKV_FIELD_UNIT_REDUCE] = ENUM(unit_reduce, CKV_UNIT_MAX, CLOSED),
        [CKV_FIELD_LAYERS] = ENUM(layers, CKV_LAYERS_ONE, CLOSED),
        [CKV_FIELD_REUSE] = COUNT(reuse, 1, UINT32_MAX, CLOSED),
        [CKV_FIELD_FILL] = ENUM(fill, CKV_FILL_NONE, CLOSED),
        [CKV_FIELD_TIGHT] = ENUM(tight, CKV_TIGHT_REFUSE, CLOSED),
        [CKV_FIELD_ALIGN] = COUNT(align, 1, 1024, CLOSED),
        [CKV_FIELD_JOIN] = ENUM(join, CKV_JOIN_UNION, CLOSED_KVPRESS),
        [CKV_FIELD_SCALE] = REAL(scale),
        [CKV_FIELD_SOFTCAP] = REAL(softcap),
        [CKV_FIELD_SLIDING] = COUNT(sliding, 1, UINT32_MAX, CLOSED),
        [CKV_FIELD_SPIKE_KEEP] = COUNT(spike_keep, 1, 1023, CLOSED),
        [CKV_FIELD_PAGE] = COUNT(page, 1, 1024, CLOSED),
        [CKV_FIELD_BETA] = COUNT(beta, 1, UINT32_MAX, BIT(CKV_PROFILE_PAPER)),
        [CKV_FIELD_HEAVY] = COUNT(heavy, 1, PARTS_ONE, CLOSED),
        [CKV_FIELD_RECENT_PART] = COUNT(recent_part, 1, PARTS_ONE, CLOSED),
        [CKV_FIELD_GROUP_HEADS] = ENUM(group_heads, CKV_GROUP_MEAN, CLOSED),
        [CKV_FIELD_WINDOW_REDUCE] = ENUM(window_reduce, CKV_ROWS_MAX, CLOSED),
        [CKV_FIELD_VOTE_ROWS] = COUNT(vote_rows, 1, 256, CLOSED),
        [CKV_FIELD_CONTRAST_FIRST] = GIVEN(contrast_first, CKV_GIVEN_CONTRAST_FIRST, 256),
        [CKV_FIELD_CONTRAST_END] = GIVEN(contrast_end, CKV_GIVEN_CONTRAST_END, 256),
        [CKV_FIELD_MUTE] = GIVEN(mute, CKV_GIVEN_MUTE, 1024),
        [CKV_FIELD_LAYER_REDUCE] = ENUM(layer_reduce, CKV_LAYER_TOP4, CLOSED),
        [CKV_FIELD_KEEP_RATIO] = OUTSIDE("keep_ratio"),
        [CKV_FIELD_MAX_TOKENS] = OUTSIDE("max_tokens"),
        [CKV_FIELD_PROTECT] = OUTSIDE("protect"),
};

/* What all profiles have in common, but for what vote says after it. */
#define COMMON \
        .selector = CKV_SELECTOR_CHUNK, .layers = CKV_LAYERS_EACH, .tight = CKV_TIGHT_RAISE, \
        .join = CKV_JOIN_CUT, .window_reduce = CKV_ROWS_SUM, .layer_reduce = CKV_LAYER_SUM, .reuse = 1, .align = 1, \
        .given = CKV_GIVEN_SINKS | CKV_GIVEN_RECENT | CKV_GIVEN_MIN_TOKENS

/* Section 6.1. recent and min_tokens of default and retrieval, recent of paper: derived below. */
static const struct ckv_policy defaults[] = {
        [CKV_PROFILE_DEFAULT] = {
                COMMON, .profile = CKV_PROFILE_DEFAULT, .scorer = CKV_SCORER_WINDOW, .norm = CKV_NORM_SUM,
                .chunk = 10, .window = 32, .pool = CKV_POOL_NONE, .pool_size = 5, .group_heads = CKV_GROUP_SUM,
                .heads = CKV_HEADS_SUM, .unit_reduce = CKV_UNIT_MEAN, .sinks = 4, .fill = CKV_FILL_LEAD,
        },
        [CKV_PROFILE_PAPER] = {
                COMMON, .profile = CKV_PROFILE_PAPER, .scorer = CKV_SCORER_RAW_QK, .norm = CKV_NORM_SUM,
                .chunk = 10, .window = 32, .pool = CKV_POOL_NONE, .pool_size = 5, .group_heads = CKV_GROUP_SUM,
                .heads = CKV_HEADS_SUM, .unit_reduce = CKV_UNIT_SUM, .fill = CKV_FILL_NONE,
        },
        [CKV_PROFILE_KVPRESS] = {
                COMMON, .profile = CKV_PROFILE_KVPRESS, .scorer = CKV_SCORER_WINDOW, .norm = CKV_NORM_MEAN,
                .chunk = 20, .window = 64, .pool = CKV_POOL_AVG, .pool_size = 5, .group_heads = CKV_GROUP_MEAN,
                .heads = CKV_HEADS_SUM, .unit_reduce = CKV_UNIT_MEAN, .fill = CKV_FILL_NONE,
        },
        [CKV_PROFILE_RETRIEVAL] = {
                COMMON, .profile = CKV_PROFILE_RETRIEVAL, .scorer = CKV_SCORER_WINDOW, .norm = CKV_NORM_SUM,
                .chunk = 10, .window = 8, .pool = CKV_POOL_MAX, .pool_size = 13, .group_heads = CKV_GROUP_MAX,
                .heads = CKV_HEADS_MAX, .unit_reduce = CKV_UNIT_MEAN, .sinks = 4, .fill = CKV_FILL_LEAD,
        },
        [CKV_PROFILE_VOTE] = {
                .profile = CKV_PROFILE_VOTE, .scorer = CKV_SCORER_WINDOW, .norm = CKV_NORM_SUM, .selector = CKV_SELECTOR_TOKEN,
                .chunk = 10, .window = 8, .pool = CKV_POOL_MAX, .pool_size = 21, .group_heads = CKV_GROUP_MAX,
                .heads = CKV_HEADS_MAX, .unit_reduce = CKV_UNIT_MEAN, .sinks = 1, .recent = 4, .min_tokens = 22,
                .fill = CKV_FILL_LEAD, .tight = CKV_TIGHT_RAISE, .join = CKV_JOIN_CUT, .layers = CKV_LAYERS_ONE,
                .layer_reduce = CKV_LAYER_TOP4, .window_reduce = CKV_ROWS_MAX, .contrast_first = 32, .contrast_end = 64,
                .mute = 4, .reuse = 1, .align = 1,
                .given = CKV_GIVEN_SINKS | CKV_GIVEN_RECENT | CKV_GIVEN_MIN_TOKENS | CKV_GIVEN_CONTRAST_FIRST |
                         CKV_GIVEN_CONTRAST_END | CKV_GIVEN_MUTE,
        },
};

static struct ckv_policy_fault fault(enum ckv_policy_fault_kind kind, enum ckv_policy_field field, uint64_t value,
                                     uint64_t low, uint64_t high) {
        return (struct ckv_policy_fault){ .kind = kind, .field = field, .value = value, .low = low, .high = high };
}

static uint32_t read_word(const struct ckv_policy *policy, const struct row *row) {
        uint32_t word;

        static_assert(sizeof(enum ckv_pool) == sizeof(word), "enums are read as words");
        memcpy(&word, (const char *)policy + row->offset, sizeof(word));
        return word;
}

static double read_real(const struct ckv_policy *policy, const struct row *row) {
        double real;

        memcpy(&real, (const char *)policy + row->offset, sizeof(real));
        return real;
}

static bool is_set(const struct ckv_policy *asked, const struct row *row) {
        switch (row->kind) {
        case ROW_GIVEN:
                return (asked->given & row->bit) != 0;
        case ROW_REAL:
                return read_real(asked, row) != 0;
        case ROW_ENUM:
        case ROW_COUNT:
                return read_word(asked, row) != 0;
        case ROW_OUTSIDE:
                break;
        }
        return false;
}

static void copy_field(struct ckv_policy *policy, const struct ckv_policy *asked, const struct row *row) {
        memcpy((char *)policy + row->offset, (const char *)asked + row->offset,
               row->kind == ROW_REAL ? sizeof(double) : sizeof(uint32_t));
}

/* One parameter that was set, by itself. A kind of CKV_FAULT_NONE: nothing wrong. */
static struct ckv_policy_fault judge(const struct ckv_policy *asked, enum ckv_policy_field field) {
        const struct row *row = &rows[field];
        uint32_t word = row->kind == ROW_REAL ? 0 : read_word(asked, row);

        if (row->kind == ROW_ENUM && word > row->high)
                return fault(CKV_FAULT_ENUM, field, word, row->low, row->high);
        if (row->closed & BIT(asked->profile))
                return fault(CKV_FAULT_PROFILE, field, word, 0, 0);
        if (row->kind == ROW_REAL) {
                double real = read_real(asked, row);

                return isfinite(real) && real >= 0 ? fault(CKV_FAULT_NONE, field, 0, 0, 0)
                                                   : fault(CKV_FAULT_NONFINITE, field, 0, 0, 0);
        }
        if (word < row->low || word > row->high)
                return fault(CKV_FAULT_RANGE, field, word, row->low, row->high);
        if (field == CKV_FIELD_POOL_SIZE && word % 2 == 0)
                return fault(CKV_FAULT_EVEN, field, word, row->low, row->high);
        return fault(CKV_FAULT_NONE, field, 0, 0, 0);
}

/* Defaults of the selectors, which differ from those of the profile. */
static void derive_selector(const struct ckv_policy *asked, struct ckv_policy *policy) {
        bool ours = !(CLOSED & BIT(policy->profile)), kvpress = policy->profile == CKV_PROFILE_KVPRESS;
        /* R54: a window of one row is TOVAPress, which pools nothing and takes the mean over all heads */
        bool tova = kvpress && policy->scorer == CKV_SCORER_WINDOW && policy->window == 1;

        switch (policy->selector) {
        case CKV_SELECTOR_CHUNK_EG:
                if (kvpress && !asked->chunk)
                        policy->chunk = ENTROPY_CHUNK;
                if (tova && !asked->pool)
                        policy->pool = CKV_POOL_NONE;
                if (!asked->spike_keep)
                        policy->spike_keep = CKV_MIN(SPIKE_KEEP, CKV_MAX(policy->chunk, 2) - 1);
                break;
        case CKV_SELECTOR_STREAMING:
                if (ours && !(asked->given & CKV_GIVEN_SINKS))
                        policy->sinks = 4;
                if (ours && !(asked->given & CKV_GIVEN_RECENT))
                        policy->recent = 1;
                break;
        case CKV_SELECTOR_H2O:
                if (!(asked->given & CKV_GIVEN_SINKS))
                        policy->sinks = 0;
                policy->recent = 0;
                if (!asked->heavy)
                        policy->heavy = CKV_MIN(H2O_PART, PARTS_ONE - asked->recent_part);
                if (!asked->recent_part)
                        policy->recent_part = CKV_MIN(H2O_PART, PARTS_ONE - policy->heavy);
                break;
        case CKV_SELECTOR_PAGE:
                if (!asked->layers)
                        policy->layers = CKV_LAYERS_ONE;
                if (!asked->fill)
                        policy->fill = CKV_FILL_NONE;
                break;
        case CKV_SELECTOR_TOKEN:
                if (tova && !asked->pool)
                        policy->pool = CKV_POOL_NONE;
                if (kvpress && !tova)
                        policy->heads = CKV_HEADS_EACH;
                break;
        case CKV_SELECTOR_OF_PROFILE:
        case CKV_SELECTOR_CHUNK:
        case CKV_SELECTOR_CHUNK_AT:
                break;
        }
}

/* Defaults that follow from other parameters. */
static void derive(const struct ckv_policy *asked, struct ckv_policy *policy) {
        bool ours = !(CLOSED & BIT(policy->profile)), vote = policy->profile == CKV_PROFILE_VOTE;
        bool queries = policy->scorer == CKV_SCORER_WINDOW || policy->scorer == CKV_SCORER_RAW_QK ||
                       policy->scorer == CKV_SCORER_DROP;

        if ((ours && !queries) || policy->selector == CKV_SELECTOR_H2O)
                policy->window = CKV_WINDOW_STANDIN;
        if (policy->profile == CKV_PROFILE_PAPER || (ours && !vote && !(asked->given & CKV_GIVEN_RECENT)))
                policy->recent = policy->window;
        if (policy->window_reduce == CKV_ROWS_MAX && !asked->vote_rows)
                policy->vote_rows = vote ? CKV_MIN(VOTE_ROWS, policy->window) : policy->window;
        derive_selector(asked, policy);
        if (ours && !vote && !(asked->given & CKV_GIVEN_MIN_TOKENS))
                policy->min_tokens = policy->window + policy->chunk + policy->sinks;
        if (policy->selector == CKV_SELECTOR_H2O)
                policy->window = 0;     /* every row votes */
        /* the profile's way to put layers together has nothing to do where each layer keeps its own rows */
        if (policy->layers == CKV_LAYERS_EACH && !asked->layer_reduce)
                policy->layer_reduce = CKV_LAYER_SUM;
        policy->given |= asked->given & (CKV_GIVEN_CONTRAST_FIRST | CKV_GIVEN_CONTRAST_END | CKV_GIVEN_MUTE);
}

bool ckv_policy_resolve(const struct ckv_policy *asked, struct ckv_policy *ret_policy,
                        struct ckv_policy_fault *ret_fault) {
        struct ckv_policy policy;
        struct ckv_policy_fault found;

        if (asked->profile > CKV_PROFILE_VOTE) {
                *ret_fault = fault(CKV_FAULT_ENUM, CKV_FIELD_PROFILE, asked->profile, 0, CKV_PROFILE_VOTE);
                return false;
        }
        policy = defaults[asked->profile];
        for (enum ckv_policy_field field = CKV_FIELD_SCORER; field < _CKV_FIELD_N; field++) {
                if (!is_set(asked, &rows[field]))
                        continue;
                found = judge(asked, field);
                if (found.kind != CKV_FAULT_NONE) {
                        *ret_fault = found;
                        return false;
                }
                copy_field(&policy, asked, &rows[field]);
        }
        derive(asked, &policy);
        found = ckv__policy_judge_together(asked, &policy);
        if (found.kind != CKV_FAULT_NONE) {
                *ret_fault = found;
                return false;
        }
        *ret_policy = policy;
        return true;
}

const char *ckv_policy_field_name(enum ckv_policy_field field) {
        return field < _CKV_FIELD_N ? rows[field].name : "";
}
