/*
 * What a CUDA kernel is launched with: the one interface between host code in C
 * and device code in C++, read by both.
 *
 * Each kernel takes one struct of this file by value.  Addresses are 64-bit
 * numbers that mean something on the device, so that both sides agree on every
 * size; ckv_k_plan_*() gives the grid, the block and the shared memory of a
 * launch.  kernels/cuda/kernels.def lists the kernels.
 *
 * How a plan of one group is computed, launches in this order in one stream:
 *
 *     window, raw_qk  ckv_k_lse_part (not raw)  partial log-sum-exps of all queries
 *                     ckv_k_lse (not raw)       their sum with the sink; the check of a caller's LSE (R40)
 *                     ckv_k_weights             A[h][j] of query heads
 *     the same on tensor cores, where ckv_k_mma_takes() says so:
 *       all layers with an LSE of the caller: ckv_k_mma_weights (given = 1), ckv_k_lse, which checks it: K is read once
 *       where sums of units will do: ckv_k_mma_lse_part over few rows, for references, ckv_k_mma_sums, ckv_k_lse, ckv_k_sum_units
 *       (C[u]), ckv_k_select: K is read once
 *       else: ckv_k_mma_lse_part, ckv_k_lse, ckv_k_mma_weights (given = 0)
 *     contrast        the same once more, over the older rows, sums into a room of their own
 *     knorm, vk_ratio ckv_k_norms               S[g][j] of KV heads
 *     keydiff         ckv_k_key_sum, ckv_k_keydiff
 *     pool = leak     ckv_k_leak                A'[h][j], norm, contrast and mute included, in place of A[h][j]
 *     all             ckv_k_norms (value_weight), ckv_k_rows (T[j]), ckv_k_units (C[u]), ckv_k_select
 *
 * and, once the host has read the kept runs and committed, ckv_k_move for each
 * step, or ckv_k_move_pass.  What is in no list above (drop, lagkv, selector
 * chunk_eg, layers put together) is not computed on the device; selections that
 * ckv_k_select does not know are made on the host by ckv_select() from C[u] and
 * T[j], copied back.
 *
 * Sums over rows are cut at multiples of CKV_K_SEGMENT rows whatever the grid
 * is, so how work is split changes no bit of a result (R30).
 */
#ifndef CKV_KERNELS_CUDA_PARAMS_H
#define CKV_KERNELS_CUDA_PARAMS_H

#include <stdint.h>

enum {
        CKV_K_THREADS = 128,            /* of every block but those of ckv_k_select */
        CKV_K_SELECT_THREADS = 512,
        CKV_K_SEGMENT = 2048,           /* rows that one block of a scoring kernel covers */
        CKV_K_TILE = 32,                /* rows that it has in shared memory at a time */
        CKV_K_DEPTH = 64,               /* dimensions of them */
        CKV_K_QUERIES = 64,             /* query rows beside them */
        CKV_K_DIMS_MOST = 1024,         /* of keys that ckv_k_key_sum takes */
        CKV_K_UNITS_EACH = 8,           /* units that a warp of ckv_k_sum_units adds up at a time */
        CKV_K_REFERENCE_ROWS = 64,      /* that references are taken from */
        CKV_K_LEAK_ROWS = 16,           /* that a thread of ckv_k_leak has, at least */
};

/* Numbers of dtypes are those of enum ckv_dtype: F32 1, F16 2, BF16 3. No kernel reads values of another kind. */

/* struct ckv_plane for the device; strides in bytes. */
struct ckv_k_plane {
        uint64_t base;                          /* 0: no such plane */
        uint64_t block_stride, head_stride;
        uint64_t token_outer, token_inner, dim_outer, dim_inner;
        uint32_t token_tile, dim_tile;          /* >= 1 */
        uint32_t dtype, dims;
        float scale;                            /* 0 = 1.0 */
        uint32_t reserved;
};

/* struct ckv_row_table for the device. */
struct ckv_k_table {
        uint64_t entries;                       /* uint32_t[]: slots, one a row, or block ids, one for tokens_per_block rows */
        uint32_t by_token, tokens_per_block;
};

/* One scored layer; arrays of them lie in device memory. */
struct ckv_k_layer {
        struct ckv_k_plane k, v;
        uint64_t query;                         /* row slot 0, head 0; 0: none */
        uint64_t lse;                           /* binary32 [q_heads][query_rows], natural log, in the ring, any alignment; 0: none */
        uint64_t sink_logits;                   /* binary32 [q_heads], any alignment; 0: none */
};

/* ckv_k_lse_part, ckv_k_lse, ckv_k_weights. Rows of queries are numbered 0 .. votes - 1 from the oldest that votes. */
struct ckv_k_score {
        uint64_t layers;                        /* struct ckv_k_layer [layer_count] */
        uint64_t visible;                       /* uint32_t [votes][2]: row low, row behind the last, of each query (ckv_ref_visible) */
        uint64_t part;                          /* out of lse_part: float [layer_count][q_heads][votes][segments][2]: max, sum; log2 units */
        uint64_t lse;                           /* out of ckv_k_lse: float [layer_count][q_heads][votes], log2 units */
        uint64_t weights;                       /* out of ckv_k_weights: float [layer_count][q_heads][rows] A[h][j] */
        uint64_t wrong;                         /* uint32_t [layer_count], UINT32_MAX before: lowest query head whose LSE is wrong */
        struct ckv_k_table table;
        uint64_t query_head_stride, query_row_stride;   /* bytes */
        uint32_t query_dtype, query_rows, ring_start;   /* query_rows: all that were given, the length of the ring */
        uint32_t query_first;                   /* given row of the oldest that votes */
        uint32_t votes;
        uint32_t layer_count, kv_heads, q_heads, head_dim, rows;
        uint32_t segments;                      /* ckv_k_segments(rows) */
        uint32_t raw;                           /* 1: sums of bare products (raw_qk) */
        uint32_t most;                          /* 1: window_reduce = max */
        float scale, softcap;                   /* ckv_ref_scale(); 0: none */
        uint32_t given;                         /* ckv_k_mma_weights: 1: LSEs are those of the layers, and part is written too */
        uint32_t first;                         /* row at which the first segment begins; else than 0 only for ckv_k_mma_lse_part */
        uint32_t looks_far;                     /* ckv_k_lse: 1: z outside [1/2, 2^100] is wrong too: m was far from the logits */
        uint32_t reserved;
};

/*
 * ckv_k_mma_sums, ckv_k_sum_units: the scores of units from one pass over K, without T[j] in between.  Between a weight and the
 * score of a unit all is linear then (ckv_units_will_do()), so what is kept of the pass is a sum for each query and unit:
 *
 *     P[column][query] = sum over rows of part * 2^(t - reference)       and part[..][segment] = reference, sum over all rows
 *
 * A row's part in a unit says how much of its weight is the unit's, norm = seen and pool = avg included.  A column is a unit
 * within a segment of rows: unit u in segment s has column u + 3 * s, since a row has parts in three units at most.
 */
struct ckv_k_sums {
        struct ckv_k_score score;               /* part is written, weights are not */
        uint64_t reference;                     /* float [layer_count][q_heads][votes][2]: part of ckv_k_mma_lse_part over few rows */
        uint64_t sums;                          /* out of mma_sums: float [layer_count][kv_heads][columns][padded queries] P */
        uint64_t seen;                          /* as in ckv_k_rows */
        uint64_t unit_of_row;                   /* uint32_t [rows] */
        uint64_t first_row, size;               /* uint32_t [units] each */
        uint64_t bounds;                        /* uint32_t [segments][2]: first and last unit with a column in it */
        uint64_t out;                           /* out of sum_units: float [layer_count][score_heads][units] C[u] */
        uint32_t units, columns;                /* columns: ckv_k_columns() */
        uint32_t domain, half;                  /* rows that are pooled; rows on each side that a row gives a share to */
        uint32_t score_heads;                   /* ckv_score_heads() */
        uint32_t divisor;                       /* of sums: votes with norm = mean, times query heads of a group with its mean */
        uint32_t mean;                          /* 1: and by the size of the unit */
        uint32_t reserved;
};

/* ckv_k_norms: S of scorers knorm and vk_ratio, or the norms that value_weight asks for. */
enum { CKV_K_NORM_L1, CKV_K_NORM_L2, CKV_K_NORM_KNORM, CKV_K_NORM_VK_RATIO };
struct ckv_k_norms {
        uint64_t layers;                        /* struct ckv_k_layer [layer_count] */
        uint64_t out;                           /* float [layer_count][kv_heads][rows] */
        struct ckv_k_table table;
        uint32_t layer_count, kv_heads, rows;
        uint32_t head_dim;                      /* dimensions of K that count; of V all do */
        uint32_t kind;                          /* CKV_K_NORM_*: L1 and L2 are of V, KNORM of K, VK_RATIO of both */
        uint32_t reserved;
};

/* ckv_k_key_sum, ckv_k_keydiff. */
struct ckv_k_keys {
        uint64_t layers;                        /* struct ckv_k_layer [layer_count] */
        uint64_t part;                          /* out of key_sum: double [layer_count][kv_heads][segments][head_dim] */
        uint64_t out;                           /* out of keydiff: float [layer_count][kv_heads][rows] S[g][j] */
        struct ckv_k_table table;
        uint32_t layer_count, kv_heads, rows, head_dim;         /* head_dim <= CKV_K_DIMS_MOST */
        uint32_t segments, reserved;
};

/* ckv_k_rows: S1's norm, contrast and mute, S2 and S3. Enums are those of kernels/policy.h, resolved. */
struct ckv_k_rows {
        uint64_t in;                            /* float [layer_count][heads_in][rows] */
        uint64_t seen;                          /* uint32_t [rows + 1] ckv_ref_seen() for norm = seen; else 0 */
        uint64_t older;                         /* float [layer_count][heads_in][rows] sums over the rows of the contrast; 0: none */
        uint64_t value_norms;                   /* float [layer_count][kv_heads][rows] of ckv_k_norms; 0: no value_weight */
        uint64_t out;                           /* float [layer_count][score_heads][rows] T[j] */
        uint32_t layer_count, heads_in;         /* heads_in: q_heads, or kv_heads where the scorer gives S[g][j] */
        uint32_t kv_heads, score_heads, rows;   /* score_heads: ckv_score_heads() */
        uint32_t domain;                        /* ckv_ref_pool_domain() */
        uint32_t pool, pool_size;               /* CKV_POOL_NONE, _AVG, _MAX */
        uint32_t group_heads, heads;            /* CKV_GROUP_*, CKV_HEADS_* */
        uint32_t divisor;                       /* norm = mean: votes; else 0 */
        uint32_t mute;                          /* first rows that count as 0 */
        uint32_t older_rows;                    /* query rows that were summed up in older */
        uint32_t reserved;
};

/* ckv_k_leak: S1's norm, contrast and mute, and S2 with pool = leak, in place. */
struct ckv_k_leak {
        struct ckv_k_rows rows;                 /* in is written; what comes after S2 is not read */
        uint64_t begins;                        /* uint8_t [rows + 1]: does a chunk of the caller's begin at this row? 0: there are none */
};

/* ckv_k_units: S4. Units are those of ckv_units_init(). */
struct ckv_k_units {
        uint64_t rows_in;                       /* float [sets][rows] T[j]; sets = scored layers * score_heads */
        uint64_t unit_of_row;                   /* uint32_t [rows] */
        uint64_t first_row, size;               /* uint32_t [units] each */
        uint64_t out;                           /* float [sets][units] C[u] */
        uint32_t sets, rows, units;
        uint32_t unit_reduce;                   /* CKV_UNIT_* */
};

/*
 * ckv_k_select: S7 and S8, one block a set.  The walk of R22 over units [0, ranked); units [forced_begin, forced_end) are kept
 * whatever they score; then the row rules.  What the profiles want of it:
 *
 *   ours     ranked = units, sized = 1, budget = B - p, protect = flags, fill as the policy says
 *   kvpress  ranked, forced_*, budget = chunks left, as select_kvpress() of kernels/select.c; sized = 0, protect = 0, no fill
 *   paper    ranked = units, sized = 0, budget = k, room = L_max - w with join = cut, tail = w, no fill
 */
struct ckv_k_select {
        uint64_t scores;                        /* float [sets][units] */
        uint64_t rows_in;                       /* float [sets][rows] T[j] with fill = best, else 0 */
        uint64_t unit_of_row, first_row, size;  /* as in ckv_k_units */
        uint64_t protect;                       /* uint8_t [rows]; 0: none */
        uint64_t budgets;                       /* uint32_t [sets]: of each set in place of budget; 0: all have budget */
        uint64_t flags;                         /* scratch, uint8_t [sets][rows], then 1 for each kept row */
        uint64_t runs;                          /* out: uint32_t [sets][runs_most][3]: src, len, dst, as struct ckv_run */
        uint64_t counts;                        /* out: uint32_t [sets][3]: runs, kept rows, first unit with a score that is not
                                                   finite (UINT32_MAX: none; else runs and rows are 0) */
        uint32_t sets, rows, units, runs_most;  /* runs_most: ckv_k_runs_most(); sets that need more are counted, not written */
        uint32_t ranked, forced_begin, forced_end;
        uint32_t sized;                         /* 1: a unit costs its rows; 0: it costs 1 */
        uint32_t budget;
        uint32_t fill;                          /* CKV_FILL_*: what of the unit at which the walk ended */
        uint32_t room;                          /* most rows kept so far, lowest first; UINT32_MAX: no limit */
        uint32_t tail;                          /* newest rows, kept beside them */
};

/* One plane and head that moves. A row is `vectors` vectors of `width` bytes; vector v lies axis(v) from the row's start. */
struct ckv_k_column {
        uint64_t base;                          /* of the plane, head included */
        uint64_t block_stride, token_outer, token_inner;        /* bytes */
        uint64_t outer, inner;                  /* bytes from one tile of vectors to the next, and from one vector to the next */
        uint32_t token_tile, tile;              /* tile: vectors of a tile, >= 1 */
        uint32_t vectors, width;                /* width: 16, 8, 4, 2 or 1; base and strides are multiples of it */
        uint32_t set;                           /* index of its kept rows */
        uint32_t reserved;
};

/* What of one set moves in this launch: struct ckv_batch. */
struct ckv_k_batch {
        uint32_t begin, end;                    /* destination rows */
        uint32_t run;                           /* the run with row begin, from the set's first */
        uint32_t reserved;
};

/* ckv_k_move (a step: rows of a batch, in any order; or a copy to another table), ckv_k_move_pass (all of it in one launch, in
 * place; a block walks one column upwards). Batches of ckv_k_move_pass run to the end of the set. */
struct ckv_k_move {
        uint64_t columns;                       /* struct ckv_k_column [column_count] */
        uint64_t batches;                       /* struct ckv_k_batch [sets] */
        uint64_t runs;                          /* uint32_t [.][3], as ckv_k_select writes them */
        uint64_t runs_at;                       /* uint64_t [sets]: index of the set's first run */
        uint64_t run_counts;                    /* uint32_t [sets] */
        struct ckv_k_table from, to;            /* equal in place */
        uint32_t column_count;
        uint32_t rows_most;                     /* largest end - begin of all batches */
        uint32_t vectors_most;                  /* largest row of all columns, in vectors */
        uint32_t reserved;
};

#ifdef __cplusplus
#define CKV_K_SIZE(type, bytes) static_assert(sizeof(type) == (bytes), #type)
#else
#define CKV_K_SIZE(type, bytes) _Static_assert(sizeof(type) == (bytes), #type)
#endif
CKV_K_SIZE(struct ckv_k_plane, 80);
CKV_K_SIZE(struct ckv_k_table, 16);
CKV_K_SIZE(struct ckv_k_layer, 184);
CKV_K_SIZE(struct ckv_k_score, 160);
CKV_K_SIZE(struct ckv_k_sums, 256);
CKV_K_SIZE(struct ckv_k_norms, 56);
CKV_K_SIZE(struct ckv_k_keys, 64);
CKV_K_SIZE(struct ckv_k_rows, 96);
CKV_K_SIZE(struct ckv_k_leak, 104);
CKV_K_SIZE(struct ckv_k_units, 56);
CKV_K_SIZE(struct ckv_k_select, 128);
CKV_K_SIZE(struct ckv_k_column, 72);
CKV_K_SIZE(struct ckv_k_batch, 16);
CKV_K_SIZE(struct ckv_k_move, 88);

struct ckv_k_launch {
        uint32_t grid_x, grid_y, grid_z, block, shared_bytes;
};

/* ckv_k_pieces() - pieces of @each that cover @n */
static inline uint32_t ckv_k_pieces(uint64_t n, uint32_t each) {
        return (uint32_t)((n + each - 1) / each);
}

/* ckv_k_segments() - segments of a sequence */
static inline uint32_t ckv_k_segments(uint32_t rows) {
        return ckv_k_pieces(rows, CKV_K_SEGMENT);
}

/* ckv_k_runs_most() - runs that a set of @rows rows can have at most */
static inline uint32_t ckv_k_runs_most(uint32_t rows) {
        return rows / 2 + 1;
}

/* ckv_k_columns() - columns of partial sums */
static inline uint32_t ckv_k_columns(uint32_t units, uint32_t segments) {
        return units + 3 * segments;
}

/* ckv_k_launch_of() - grid, threads of a block, and bytes of its shared memory */
static inline struct ckv_k_launch ckv_k_launch_of(uint32_t x, uint32_t y, uint32_t z, uint32_t block, uint32_t shared_bytes) {
        struct ckv_k_launch launch;

        launch.grid_x = x;
        launch.grid_y = y;
        launch.grid_z = z;
        launch.block = block;
        launch.shared_bytes = shared_bytes;
        return launch;
}

/*
 * The kernels on tensor cores: columns of products (padded queries of several heads) that a block has in registers, rows of K in
 * a tile, columns of one head, and query heads of a block; a head with more columns is done in several passes of its block.
 */
#define CKV_K_MMA_COLUMNS(dims) ((dims) > 128 ? 64 : 128)
#define CKV_K_MMA_ROWS(dims) ((dims) > 128 ? 32 : 64)
#define CKV_K_MMA_WIDTH(votes) (((votes) + 7) / 8 * 8)
#define CKV_K_MMA_HEADS(votes, dims) \
        (CKV_K_MMA_WIDTH(votes) < CKV_K_MMA_COLUMNS(dims) ? CKV_K_MMA_COLUMNS(dims) / CKV_K_MMA_WIDTH(votes) : 1)

/*
 * ckv_k_mma_takes() - may ckv_k_mma_lse_part and ckv_k_mma_weights be launched with @p, in place of ckv_k_lse_part and
 * ckv_k_weights?
 * @layers: [layer_count], in host memory, as they lie at p->layers
 *
 * They want queries and K of one 16-bit type, 64, 96, 128 or 256 dimensions that lie side by side, rows of K at multiples of 16
 * bytes and those of queries of 4; no softcap, raw_qk or window_reduce = max.  Results are the same within R31.
 */
static inline int ckv_k_mma_takes(const struct ckv_k_score *p, const struct ckv_k_layer *layers) {
        uint32_t d = p->head_dim;

        if (p->raw || p->most || p->softcap > 0 || p->votes == 0 || (d != 64 && d != 96 && d != 128 && d != 256) ||
            (p->query_dtype != 2 && p->query_dtype != 3) || ((p->query_head_stride | p->query_row_stride) & 3) != 0)
                return 0;
        for (uint32_t l = 0; l < p->layer_count; l++) {
                const struct ckv_k_plane *k = &layers[l].k;

                if ((layers[l].query & 3) != 0 || k->dtype != p->query_dtype || k->dim_inner != 2 ||
                    (k->dim_tile < d && k->dim_outer != k->dim_tile * 2ULL) ||
                    ((k->base | k->block_stride | k->head_stride | k->token_outer | k->token_inner) & 15) != 0)
                        return 0;
        }
        return 1;
}

/* The launch of each kernel. A grid with a 0 in it must not be launched: there is nothing to do. None needs more than 48 KiB of
 * shared memory. */

/* ckv_k_plan_lse_part() - a block for each segment of rows and query head */
static inline struct ckv_k_launch ckv_k_plan_lse_part(const struct ckv_k_score *p) {
        return ckv_k_launch_of(p->segments, p->q_heads, p->layer_count, CKV_K_THREADS,
                               (CKV_K_TILE + CKV_K_QUERIES) * (CKV_K_DEPTH + 1) * 4);
}

/* ckv_k_plan_lse() - a thread joins the parts of one query row */
static inline struct ckv_k_launch ckv_k_plan_lse(const struct ckv_k_score *p) {
        return ckv_k_launch_of(ckv_k_pieces(p->votes, CKV_K_THREADS), p->q_heads, p->layer_count, CKV_K_THREADS, 0);
}

/* ckv_k_plan_weights() - a block for each segment of rows and query head */
static inline struct ckv_k_launch ckv_k_plan_weights(const struct ckv_k_score *p) {
        return ckv_k_launch_of(p->segments, p->q_heads, p->layer_count, CKV_K_THREADS,
                               (CKV_K_TILE + CKV_K_QUERIES) * (CKV_K_DEPTH + 1) * 4 + CKV_K_THREADS * 4);
}

/* ckv_k_plan_mma() - a block for each segment of rows, KV head, and as many of its query heads as fit */
static inline struct ckv_k_launch ckv_k_plan_mma(const struct ckv_k_score *p) {
        uint32_t columns = CKV_K_MMA_COLUMNS(p->head_dim), rows = CKV_K_MMA_ROWS(p->head_dim);

        return ckv_k_launch_of(p->segments * ckv_k_pieces(p->q_heads / p->kv_heads, CKV_K_MMA_HEADS(p->votes, p->head_dim)),
                               p->kv_heads, p->layer_count, CKV_K_THREADS,
                               2 * rows * (p->head_dim + 8) * 2 + 2 * columns / 8 * rows * 4 + columns * 12);
}

/* ckv_k_plan_mma_lse_part() - as ckv_k_plan_mma() */
static inline struct ckv_k_launch ckv_k_plan_mma_lse_part(const struct ckv_k_score *p) {
        return ckv_k_plan_mma(p);
}

/* ckv_k_plan_mma_weights() - as ckv_k_plan_mma() */
static inline struct ckv_k_launch ckv_k_plan_mma_weights(const struct ckv_k_score *p) {
        return ckv_k_plan_mma(p);
}

/* ckv_k_plan_mma_sums() - as ckv_k_plan_mma() */
static inline struct ckv_k_launch ckv_k_plan_mma_sums(const struct ckv_k_sums *p) {
        struct ckv_k_launch launch = ckv_k_plan_mma(&p->score);
        uint32_t d = p->score.head_dim, rows = CKV_K_MMA_ROWS(d);

        /* two tiles; 16 rows of logits of each warp; parts of the rows of two tiles */
        launch.shared_bytes = 2 * rows * (d + 8) * 2 + 16 * (CKV_K_MMA_COLUMNS(d) + 32) * 4 + 2 * rows * 16;
        return launch;
}

/* ckv_k_plan_sum_units() - a warp for each few units of a score head */
static inline struct ckv_k_launch ckv_k_plan_sum_units(const struct ckv_k_sums *p) {
        return ckv_k_launch_of(ckv_k_pieces(p->units, CKV_K_THREADS / 32 * CKV_K_UNITS_EACH), p->score_heads, p->score.layer_count,
                               CKV_K_THREADS, 0);
}

/* ckv_k_plan_norms() - a warp for each row of a KV head */
static inline struct ckv_k_launch ckv_k_plan_norms(const struct ckv_k_norms *p) {
        return ckv_k_launch_of(ckv_k_pieces(p->rows, CKV_K_THREADS / 32), p->kv_heads, p->layer_count, CKV_K_THREADS, 0);
}

/* ckv_k_plan_key_sum() - a block for each segment of rows and KV head; shared: a sum of directions for each warp, binary64 */
static inline struct ckv_k_launch ckv_k_plan_key_sum(const struct ckv_k_keys *p) {
        return ckv_k_launch_of(p->segments, p->kv_heads, p->layer_count, CKV_K_THREADS, CKV_K_THREADS / 32 * p->head_dim * 8);
}

/* ckv_k_plan_keydiff() - a block for each segment of rows and KV head; shared: the mean direction, binary64 */
static inline struct ckv_k_launch ckv_k_plan_keydiff(const struct ckv_k_keys *p) {
        return ckv_k_launch_of(p->segments, p->kv_heads, p->layer_count, CKV_K_THREADS, p->head_dim * 8);
}

/* ckv_k_plan_rows() - a thread for each row and score head */
static inline struct ckv_k_launch ckv_k_plan_rows(const struct ckv_k_rows *p) {
        return ckv_k_launch_of(ckv_k_pieces(p->rows, CKV_K_THREADS), p->score_heads, p->layer_count, CKV_K_THREADS, 0);
}

/* ckv_k_plan_leak() - a block for each head; shared: what goes from thread to thread, binary64 */
static inline struct ckv_k_launch ckv_k_plan_leak(const struct ckv_k_leak *p) {
        return ckv_k_launch_of(p->rows.rows > 0 ? p->rows.heads_in : 0, p->rows.layer_count, 1, CKV_K_THREADS,
                               (CKV_K_THREADS + 1) * 8);
}

/* ckv_k_plan_units() - a thread for each unit and set */
static inline struct ckv_k_launch ckv_k_plan_units(const struct ckv_k_units *p) {
        return ckv_k_launch_of(ckv_k_pieces(p->units, CKV_K_THREADS), p->sets, 1, CKV_K_THREADS, 0);
}

/* ckv_k_plan_select() - a block for each set; shared: histogram and sums of the scan */
static inline struct ckv_k_launch ckv_k_plan_select(const struct ckv_k_select *p) {
        return ckv_k_launch_of(p->rows > 0 ? p->sets : 0, 1, 1, CKV_K_SELECT_THREADS, 256 * 4 + CKV_K_SELECT_THREADS * 8 + 64);
}

/* ckv_k_plan_move() - columns by slices of the rows of one step */
static inline struct ckv_k_launch ckv_k_plan_move(const struct ckv_k_move *p) {
        uint64_t vectors = (uint64_t)p->rows_most * p->vectors_most;

        /* four vectors a thread; a column has at most 1,024 blocks, which go round */
        return ckv_k_launch_of(vectors > UINT64_C(524288) ? 1024 : ckv_k_pieces(vectors, 4 * CKV_K_THREADS), p->column_count, 1,
                               CKV_K_THREADS, 0);
}

/* ckv_k_plan_move_pass() - a block for each column, which walks upwards */
static inline struct ckv_k_launch ckv_k_plan_move_pass(const struct ckv_k_move *p) {
        return ckv_k_launch_of(p->rows_most > 0 ? p->column_count : 0, 1, 1, CKV_K_THREADS, 0);
}

#endif
