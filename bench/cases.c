/*
 * The large table has three models in two profiles; Mistral-7B is, one layer of
 * it, Llama-3-8B (32 query heads, 8 KV heads of 128) and shares its rows.  All
 * else is measured for Llama-3-8B, where it is one of its kind: options that
 * need the scores of rows, what callers may bring, scorers without queries, types,
 * layouts, head sizes, groups, windows and chunks, and what leaves the fast
 * path.
 */
#include "bench/cases.h"

#include "base/macros.h"

#define LLAMA .model = "Llama-3-8B"
#define QWEN .model = "Qwen2-7B"
#define SHAPE(kv, q, d) .kv_heads = kv, .q_heads = q, .dims = d
#define VOTES(w, c) .window = w, .chunk = c
#define BF16 .dtype = CKV_DTYPE_BF16
#define PROFILE(name) .what = "profile " name, .profile = name
#define KVPRESS .profile = CKV_PROFILE_KVPRESS, .pool = CKV_POOL_AVG, .pool_size = 5
/* one layer of Llama-3-8B with the numbers of the profile default, but for what is asked */
#define USUAL(name, ...) \
        { LLAMA, .what = name, .profile = "default", SHAPE(8, 32, 128), VOTES(32, 10), BF16, .asked = { __VA_ARGS__ } }
#define SHAPED(name, shape, votes, type, order) \
        { LLAMA, .what = name, .profile = "default", shape, votes, .dtype = CKV_DTYPE_##type, .layout = BENCH_##order }
#define LLAMA_SHAPE SHAPE(8, 32, 128)

const struct bench_case bench_cases[] = {
        { LLAMA, PROFILE("default"), LLAMA_SHAPE, VOTES(32, 10), BF16, .main = true },
        { LLAMA, PROFILE("kvpress"), LLAMA_SHAPE, VOTES(64, 20), BF16, .main = true, .asked = { KVPRESS } },
        { QWEN, PROFILE("default"), SHAPE(4, 28, 128), VOTES(32, 10), BF16, .main = true },
        { QWEN, PROFILE("kvpress"), SHAPE(4, 28, 128), VOTES(64, 20), BF16, .main = true, .asked = { KVPRESS } },

        { LLAMA, PROFILE("retrieval"), LLAMA_SHAPE, VOTES(8, 10), BF16, .asked = { .profile = CKV_PROFILE_RETRIEVAL } },
        { LLAMA, PROFILE("vote"), LLAMA_SHAPE, VOTES(8, 10), BF16, .asked = { .profile = CKV_PROFILE_VOTE } },
        USUAL("selector token", .selector = CKV_SELECTOR_TOKEN),
        USUAL("fill best", .fill = CKV_FILL_BEST),
        USUAL("pool max 7", .pool = CKV_POOL_MAX, .pool_size = 7),
        USUAL("heads each", .heads = CKV_HEADS_EACH),
        USUAL("raw_qk", .scorer = CKV_SCORER_RAW_QK),
        USUAL("softcap 30", .softcap = 30),
        { LLAMA, .what = "log-sum-exp given", .profile = "default", LLAMA_SHAPE, VOTES(32, 10), BF16, .lse = true },
        USUAL("knorm", .scorer = CKV_SCORER_KNORM),
        USUAL("keydiff", .scorer = CKV_SCORER_KEYDIFF),
        SHAPED("window 64", LLAMA_SHAPE, VOTES(64, 10), BF16, ROWS_OUTSIDE),
        SHAPED("window 16", LLAMA_SHAPE, VOTES(16, 10), BF16, ROWS_OUTSIDE),
        SHAPED("window 8", LLAMA_SHAPE, VOTES(8, 10), BF16, ROWS_OUTSIDE),
        SHAPED("window 1", LLAMA_SHAPE, VOTES(1, 10), BF16, ROWS_OUTSIDE),
        SHAPED("chunk 4", LLAMA_SHAPE, VOTES(32, 4), BF16, ROWS_OUTSIDE),
        SHAPED("chunk 7", LLAMA_SHAPE, VOTES(32, 7), BF16, ROWS_OUTSIDE),
        SHAPED("chunk 16", LLAMA_SHAPE, VOTES(32, 16), BF16, ROWS_OUTSIDE),
        SHAPED("chunk 64", LLAMA_SHAPE, VOTES(32, 64), BF16, ROWS_OUTSIDE),
        SHAPED("heads outside", LLAMA_SHAPE, VOTES(32, 10), BF16, HEADS_OUTSIDE),
        SHAPED("pages of 16", LLAMA_SHAPE, VOTES(32, 10), BF16, PAGED_16),
        SHAPED("pages of 128", LLAMA_SHAPE, VOTES(32, 10), BF16, PAGED_128),
        SHAPED("head size 64", SHAPE(8, 32, 64), VOTES(32, 10), BF16, ROWS_OUTSIDE),
        SHAPED("head size 96", SHAPE(8, 32, 96), VOTES(32, 10), BF16, ROWS_OUTSIDE),
        SHAPED("head size 256", SHAPE(8, 32, 256), VOTES(32, 10), BF16, ROWS_OUTSIDE),
        SHAPED("group of 1", SHAPE(32, 32, 128), VOTES(32, 10), BF16, ROWS_OUTSIDE),
        SHAPED("group of 8", SHAPE(4, 32, 128), VOTES(32, 10), BF16, ROWS_OUTSIDE),
        SHAPED("f16", LLAMA_SHAPE, VOTES(32, 10), F16, ROWS_OUTSIDE),
        SHAPED("f32", LLAMA_SHAPE, VOTES(32, 10), F32, ROWS_OUTSIDE),
};
const size_t bench_case_count = CKV_ARRAY_SIZE(bench_cases);

const char *bench_layout_name(enum bench_layout layout) {
        static const char *const names[] = { "[T,H,D]", "[H,T,D]", "pages of 16", "pages of 128" };

        return names[layout];
}

const char *bench_dtype_name(enum ckv_dtype dtype) {
        return dtype == CKV_DTYPE_BF16 ? "bf16" : dtype == CKV_DTYPE_F16 ? "f16" : "f32";
}

bool bench_has_queries(const struct bench_case *c) {
        return bench_has_weights(c) || c->asked.scorer == CKV_SCORER_RAW_QK;
}

bool bench_has_weights(const struct bench_case *c) {
        return c->asked.scorer == CKV_SCORER_OF_PROFILE || c->asked.scorer == CKV_SCORER_WINDOW;
}
