/*
 * What a request may choose: scorer, selector and their parameters, in the
 * words of algorithm.md section 6.  The numbers of the enums are those of
 * proto/chunkkv.proto (daemon/ asserts it), so 0 always means "what the
 * profile says".  A struct ckv_policy exists in two states: as asked (zeros
 * and absent counts allowed) and resolved (every value set), and
 * ckv_policy_resolve() is the only way from one to the other.
 */
#ifndef CKV_KERNELS_POLICY_H
#define CKV_KERNELS_POLICY_H

#include <stdbool.h>
#include <stdint.h>

enum ckv_profile { CKV_PROFILE_DEFAULT, CKV_PROFILE_PAPER, CKV_PROFILE_KVPRESS, CKV_PROFILE_RETRIEVAL, CKV_PROFILE_VOTE };
enum ckv_scorer {
        CKV_SCORER_OF_PROFILE, CKV_SCORER_WINDOW, CKV_SCORER_RAW_QK, CKV_SCORER_DROP, CKV_SCORER_KNORM,
        CKV_SCORER_KEYDIFF, CKV_SCORER_LAGKV, CKV_SCORER_VK_RATIO, CKV_SCORER_GIVEN,
};
enum ckv_selector {
        CKV_SELECTOR_OF_PROFILE, CKV_SELECTOR_CHUNK, CKV_SELECTOR_CHUNK_AT, CKV_SELECTOR_TOKEN, CKV_SELECTOR_STREAMING,
        CKV_SELECTOR_H2O, CKV_SELECTOR_CHUNK_EG, CKV_SELECTOR_PAGE,
};
enum ckv_pool { CKV_POOL_OF_PROFILE, CKV_POOL_NONE, CKV_POOL_AVG, CKV_POOL_MAX, CKV_POOL_LEAK };
enum ckv_norm { CKV_NORM_OF_PROFILE, CKV_NORM_SUM, CKV_NORM_MEAN, CKV_NORM_SEEN };
enum ckv_heads { CKV_HEADS_OF_PROFILE, CKV_HEADS_SUM, CKV_HEADS_MAX, CKV_HEADS_EACH };
enum ckv_group_heads { CKV_GROUP_OF_PROFILE, CKV_GROUP_SUM, CKV_GROUP_MAX, CKV_GROUP_MEAN };
enum ckv_value_weight { CKV_WEIGHT_NONE, CKV_WEIGHT_L1, CKV_WEIGHT_L2 };
enum ckv_unit_reduce { CKV_UNIT_OF_PROFILE, CKV_UNIT_MEAN, CKV_UNIT_SUM, CKV_UNIT_MAX };
enum ckv_layers { CKV_LAYERS_OF_PROFILE, CKV_LAYERS_EACH, CKV_LAYERS_ONE };
enum ckv_fill { CKV_FILL_OF_PROFILE, CKV_FILL_LEAD, CKV_FILL_BEST, CKV_FILL_NONE };
enum ckv_tight { CKV_TIGHT_OF_PROFILE, CKV_TIGHT_RAISE, CKV_TIGHT_REFUSE };
enum ckv_join { CKV_JOIN_OF_PROFILE, CKV_JOIN_CUT, CKV_JOIN_UNION };
enum ckv_window_reduce { CKV_ROWS_OF_PROFILE, CKV_ROWS_SUM, CKV_ROWS_MAX };
enum ckv_layer_reduce { CKV_LAYER_OF_PROFILE, CKV_LAYER_SUM, CKV_LAYER_TOP4 };

/* Bits of ckv_policy.given: counts that may be 0 without being the default. */
enum ckv_policy_given {
        CKV_GIVEN_SINKS = 1 << 0, CKV_GIVEN_RECENT = 1 << 1, CKV_GIVEN_MIN_TOKENS = 1 << 2,
        CKV_GIVEN_CONTRAST_FIRST = 1 << 3, CKV_GIVEN_CONTRAST_END = 1 << 4, CKV_GIVEN_MUTE = 1 << 5,
};

/*
 * The name of every parameter of a policy, for ckv_policy_fault and for
 * whoever turns it into the path of a field on the wire.
 */
enum ckv_policy_field {
        CKV_FIELD_NONE, CKV_FIELD_PROFILE, CKV_FIELD_SCORER, CKV_FIELD_SELECTOR, CKV_FIELD_LAYER_FIRST, CKV_FIELD_WINDOW,
        CKV_FIELD_CHUNK, CKV_FIELD_SINKS, CKV_FIELD_RECENT, CKV_FIELD_MIN_TOKENS, CKV_FIELD_POOL, CKV_FIELD_POOL_SIZE,
        CKV_FIELD_NORM, CKV_FIELD_HEADS, CKV_FIELD_VALUE_WEIGHT, CKV_FIELD_UNIT_REDUCE, CKV_FIELD_LAYERS, CKV_FIELD_REUSE,
        CKV_FIELD_FILL, CKV_FIELD_TIGHT, CKV_FIELD_ALIGN, CKV_FIELD_JOIN, CKV_FIELD_SCALE, CKV_FIELD_SOFTCAP,
        CKV_FIELD_SLIDING, CKV_FIELD_SPIKE_KEEP, CKV_FIELD_PAGE, CKV_FIELD_BETA, CKV_FIELD_HEAVY, CKV_FIELD_RECENT_PART,
        CKV_FIELD_GROUP_HEADS, CKV_FIELD_WINDOW_REDUCE, CKV_FIELD_VOTE_ROWS, CKV_FIELD_CONTRAST_FIRST,
        CKV_FIELD_CONTRAST_END, CKV_FIELD_MUTE, CKV_FIELD_LAYER_REDUCE,
        /* not fields of a policy, but judged together with one (R3, section 6) */
        CKV_FIELD_KEEP_RATIO, CKV_FIELD_MAX_TOKENS, CKV_FIELD_PROTECT,
        _CKV_FIELD_N,
};

struct ckv_policy {
        enum ckv_profile profile;
        enum ckv_scorer scorer;
        enum ckv_selector selector;
        enum ckv_pool pool;
        enum ckv_norm norm;
        enum ckv_heads heads;
        enum ckv_group_heads group_heads;
        enum ckv_value_weight value_weight;
        enum ckv_unit_reduce unit_reduce;
        enum ckv_layers layers;
        enum ckv_fill fill;
        enum ckv_tight tight;
        enum ckv_join join;
        enum ckv_window_reduce window_reduce;
        enum ckv_layer_reduce layer_reduce;
        uint32_t given;          /* CKV_GIVEN_* bits; resolved: all bits that matter are set */
        uint32_t layer_first;    /* number of the first layer this policy holds for; 0 = first of the group */
        uint32_t window;         /* w: query rows that vote, 1 .. 256; of h2o, resolved: 0, all; see ckv_policy_window() */
        uint32_t chunk;          /* c: rows of a chunk, 1 .. 1024 */
        uint32_t sinks;          /* n_s: protected first rows, 0 .. 1024 */
        uint32_t recent;         /* r: protected newest rows */
        uint32_t min_tokens;     /* shorter sequences are kept whole */
        uint32_t pool_size;      /* odd, 1 .. 31 */
        uint32_t reuse;          /* each n-th compressed layer scores, >= 1 */
        uint32_t align;          /* rows, 1 .. 1024 */
        uint32_t sliding;        /* rows of the sliding window; 0 = full attention */
        uint32_t spike_keep;     /* chunk_eg: most rows of a unit whose mass lies in few, 1 .. chunk - 1 */
        uint32_t page;           /* selector page: rows of the engine's block, 1 .. 1024 */
        uint32_t beta;           /* PyramidKV budgets, >= 1; 0 = every layer gets B */
        uint32_t heavy;          /* h2o: millionths of L for heavy hitters, beside the recent ones */
        uint32_t recent_part;    /* h2o: millionths of L protected at the end */
        uint32_t vote_rows;      /* window_reduce = max: over this many newest rows, 1 .. w; else 0 */
        uint32_t contrast_first, contrast_end;   /* see ckv_policy_window(); contrast_end 0 = none */
        uint32_t mute;           /* first rows whose scores count as 0, 0 .. 1024 */
        double scale;            /* 0 = 1 / sqrt(head_dim_k), filled in by the scorer */
        double softcap;          /* 0 = none */
};

/* How a policy is wrong. */
enum ckv_policy_fault_kind {
        CKV_FAULT_NONE,
        CKV_FAULT_RANGE,         /* value outside [low, high] */
        CKV_FAULT_EVEN,          /* pool_size must be odd */
        CKV_FAULT_ENUM,          /* no such value */
        CKV_FAULT_PROFILE,       /* the profile does not allow this parameter to be set, or to this value */
        CKV_FAULT_UNSUPPORTED,   /* no method of this profile: kvpress has no press for this scorer, or for this selector */
        CKV_FAULT_TOGETHER,      /* legal alone, not with other = other_value: unit_reduce = sum with selector chunk_at */
        CKV_FAULT_NONFINITE,     /* scale or softcap not finite, or negative */
        CKV_FAULT_MISSING,       /* must be given, because other = other_value: page with selector page */

        /* of ckv_policy_check_use(): the policy is legal, but not for this request */
        CKV_FAULT_NO_QUERIES,    /* needs queries (low = rows of them) and none came: knorm, keydiff, lagkv, vk_ratio need none */
        CKV_FAULT_FEW_QUERIES,   /* value rows of queries came, low are needed; selector h2o: those of every row */
        CKV_FAULT_NO_VALUES,     /* needs V, and the cache has none (latent) */
        CKV_FAULT_NO_SCORES,     /* scorer given without scores_in */
        CKV_FAULT_TOO_LONG,      /* selector h2o: value rows, at most high */
        CKV_FAULT_PLAN_ONLY,     /* selector page moves nothing: it is for mode PLAN; to move rows take selector chunk */
        CKV_FAULT_NO_PLAN,       /* heads = each is no list of rows: IN_PLACE or COPY_OUT, or heads = sum */
        CKV_FAULT_NO_SLOTS,      /* heads = each in place in a table of slots: COPY_OUT, or heads = sum */
};

struct ckv_policy_fault {
        enum ckv_policy_fault_kind kind;
        enum ckv_policy_field field;     /* the parameter to change */
        uint64_t value, low, high;
        enum ckv_policy_field other;     /* TOGETHER, MISSING: the parameter it collides with */
        uint64_t other_value;
};

/* What a policy is to be used for; everything that ckv_policy_check_use() needs to know of a request. */
struct ckv_policy_use {
        uint32_t rows;           /* L */
        uint32_t query_rows;     /* rows of queries that were given; 0: none */
        bool values;             /* the cache has V */
        bool scores;             /* the caller brings scores (scores_in): nothing is scored here */
        bool plan;               /* mode PLAN: nothing moves */
        bool in_place;           /* mode IN_PLACE */
        bool slots;              /* the row table names a slot for each row, not blocks */
};

enum {
        CKV_H2O_ROWS_MAX = 32768,        /* selector h2o costs the square of the rows */
        CKV_WINDOW_STANDIN = 32,         /* w of scorers without queries, in r = w and min_tokens */
};

/* ckv_policy_selects_rows() - does selection look at T32[j], not at units alone? Of a resolved policy. */
static inline bool ckv_policy_selects_rows(const struct ckv_policy *policy) {
        return policy->fill == CKV_FILL_BEST || policy->selector == CKV_SELECTOR_CHUNK_EG;
}

/* ckv_policy_reads_queries() - are rows scored by what queries say of them? Of a resolved policy. */
static inline bool ckv_policy_reads_queries(const struct ckv_policy *policy) {
        return policy->selector != CKV_SELECTOR_STREAMING &&
               (policy->scorer == CKV_SCORER_WINDOW || policy->scorer == CKV_SCORER_RAW_QK || policy->scorer == CKV_SCORER_DROP);
}

/*
 * ckv_policy_window() - w: the newest rows of queries that vote on a sequence of @rows rows, and that must be given.
 * Selector h2o: all of them (its policy.window is 0).  Contrast reads older ones as well, as far as they were given:
 * rows contrast_first .. min(contrast_end, given) - 1, counted back from the newest; none if contrast_end is 0.
 */
static inline uint32_t ckv_policy_window(const struct ckv_policy *policy, uint32_t rows) {
        return policy->selector == CKV_SELECTOR_H2O ? rows : policy->window;
}

/* ckv_policy_takes_lengths() - does the caller say where chunks (chunk_at) or sentences (pool leak) end? */
static inline bool ckv_policy_takes_lengths(const struct ckv_policy *policy) {
        return policy->selector == CKV_SELECTOR_CHUNK_AT || policy->pool == CKV_POOL_LEAK;
}

/* ckv_policy_counts_chunks() - profiles whose budget is a number of chunks: paper, and kvpress' ChunkKVPress */
static inline bool ckv_policy_counts_chunks(const struct ckv_policy *policy) {
        return policy->profile == CKV_PROFILE_PAPER ||
               (policy->profile == CKV_PROFILE_KVPRESS && policy->selector == CKV_SELECTOR_CHUNK);
}

/**
 * ckv_policy_resolve() - fill in what the profile says and check what was asked
 * @asked:      as the client sent it: 0 or an absent count means "of the profile"
 * @ret_policy: every value set, written only on success
 * @ret_fault:  the first parameter at fault, written only on failure
 *
 * Ranges and defaults are those of algorithm.md 6.1.  Bounds that depend on the
 * sequence (w <= L, r <= L) are not looked at here.
 *
 * layer_first is handed through: what it must be depends on the cache.
 *
 * Return: true if the policy is legal.
 */
bool ckv_policy_resolve(const struct ckv_policy *asked, struct ckv_policy *ret_policy,
                        struct ckv_policy_fault *ret_fault);

/**
 * ckv_policy_check_budget() - are keep_ratio and max_tokens what the profile wants (R2, R3, section 6)?
 * @policy:     resolved
 * @keep_ratio: millionths, 0 = not given
 * @max_tokens: rows, 0 = not given
 * @ret_fault:  what is wrong, written only on failure
 *
 * One of the two must be given; profile kvpress knows keep_ratio only, and selector h2o neither: its budget is heavy and
 * recent_part.  That profile paper wants
 * L_max >= w depends on the sequence and is an outcome of ckv_select_budget().
 */
bool ckv_policy_check_budget(const struct ckv_policy *policy, uint32_t keep_ratio, uint32_t max_tokens,
                             struct ckv_policy_fault *ret_fault);

/**
 * ckv_policy_check_spans() - may there be so many protected spans?
 * @policy:     resolved
 * @span_count: spans of the request, 0 .. 1024; profiles kvpress and paper: none
 * @ret_fault:  what is wrong, written only on failure
 */
bool ckv_policy_check_spans(const struct ckv_policy *policy, uint64_t span_count, struct ckv_policy_fault *ret_fault);

/**
 * ckv_policy_check_use() - can a legal policy be used in this request?
 * @policy:    resolved
 * @use:       what was sent along
 * @ret_fault: what is missing or in the way, written only on failure
 *
 * Queries are asked for only where rows are scored: not with the caller's scores, nor for a sequence that is kept whole because
 * it is short (R20).
 */
bool ckv_policy_check_use(const struct ckv_policy *policy, const struct ckv_policy_use *use, struct ckv_policy_fault *ret_fault);

/* ckv_policy_field_name() - "window", "pool_size", ...: the word of the wire; "" for CKV_FIELD_NONE */
const char *ckv_policy_field_name(enum ckv_policy_field field);

#endif
