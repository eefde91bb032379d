/*
 * Random problems for a window kernel, and the answers in binary64.  Memory that
 * no row owns holds NaNs, so whoever reads it shows.
 */
#ifndef CKV_TESTS_SUPPORT_WINDOW_H
#define CKV_TESTS_SUPPORT_WINDOW_H

#include "kernels/cpu_window.h"

enum window_layout {
        LAYOUT_TOKENS_OUTSIDE,          /* one block, [T, H, D] */
        LAYOUT_HEADS_OUTSIDE,           /* one block, [H, T, D] */
        LAYOUT_PAGED,                   /* blocks in any order */
        LAYOUT_SLOTS,                   /* a slot for each row, in any order */
        LAYOUT_SLOTS_ASCENDING,
        LAYOUT_TILED,                   /* a token axis of tiles of 8 */
        _LAYOUT_COUNT,
};

enum window_map {
        MAP_NONE,
        MAP_CHUNKS,                     /* every row is one of a chunk */
        MAP_SHARED,                     /* two rows on each side of a border are shared, some rows belong to nobody */
        MAP_WILD,                       /* rows of up to four columns, of which one may be an earlier one */
        _MAP_COUNT,
};

struct window_shape {
        uint32_t rows, dims, heads, per_group, window;  /* heads: KV heads of the cache; per_group: query heads of the one scored */
        uint32_t block;                 /* tokens of a block; of LAYOUT_PAGED and LAYOUT_SLOTS */
        uint32_t chunk;
        enum window_layout layout;
        enum window_map map;
        bool masked;                    /* some query does not see some row */
        bool most;                      /* the largest weight of a head, not the sum */
        float cap;                      /* 0: none */
};

struct window_problem {
        struct window_shape shape;
        struct ckv_cpu_window_segment segment;  /* no queries and no scratch yet */
        struct ckv_cpu_window_map map;          /* parts NULL: none */
        struct ckv_plane plane;
        struct ckv_row_table table;
        uint32_t padded;                /* query_count, padded */
        float *queries;                 /* [query_count][dims] */
        float *inverse, *reference;     /* [padded] */
        uint32_t *low, *high;           /* [window] */
        uint16_t *keys;
        uint32_t *entries;
};

struct window_problem *window_problem_new(uint64_t seed, const struct window_shape *shape);
struct window_problem *window_problem_free(struct window_problem *problem);

/* A shape by chance: any of those above */
struct window_shape window_shape_any(uint64_t seed);

/* Run both functions of the kernel and compare with binary64. Fails the test. */
void window_problem_check(const struct window_problem *problem, const struct ckv_cpu_window_kernel *kernel);

/* window_key() - the stored element of a row of the segment */
uint16_t *window_key(const struct window_problem *problem, uint32_t row, uint32_t x);

/* window_run() - units() and rows() with all that they need, for tests that look at single results; each owned by the caller */
struct window_results { float *columns, *total, *a, *above, *row_total; size_t stride; };
struct window_results window_run(const struct window_problem *problem, const struct ckv_cpu_window_kernel *kernel, bool checked);
void window_results_free(struct window_results *results);

#endif
