/*
 * The fast kernels of the scorer window.  Lanes are queries: the queries of one
 * KV head are laid out once, K is read where it lies, and what is summed up
 * over rows is a plain vector add.  One pass over K serves
 *
 *     UNITS   (scheme B) P[column][query] = sum over rows of part * 2^(logit - reference), and each query's sum over all
 *             rows that it sees; the references are fixed before the pass
 *     ROWS    (scheme A) for each query head and row, the sum over its queries of 2^(logit - reference), or the largest of
 *             these, where the reference is the query's log-sum-exp
 *
 * A pass without a map gives the sums alone: the first of the two passes of
 * scheme C, whose second is ROWS.  cpu_attention.c knows which scheme serves.
 *
 * What these kernels do not take (scaled or scattered elements, other types
 * of number, ...) goes through those of cpu_kernel.h, which take everything.
 */
#ifndef CKV_KERNELS_CPU_WINDOW_H
#define CKV_KERNELS_CPU_WINDOW_H

#include "kernels/layout.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
        CKV_CPU_WINDOW_LANES = 16,      /* query_count is padded to a multiple of it in every array */
};

/*
 * What a row adds to which column: a sparse matrix, rows of the segment by columns.  Average pooling is linear, so it is
 * part of the map: a row near the border of its unit gives shares of itself to both sides.  Rows of no unit have no entry.
 */
struct ckv_cpu_window_part {
        uint32_t column;                /* of ret_columns */
        float part;
};

struct ckv_cpu_window_map {
        const uint32_t *first;          /* [rows + 1] entries of row i: first[i] .. first[i + 1] - 1, ascending by column */
        const struct ckv_cpu_window_part *parts;
        uint32_t columns;
};

/* Rows first .. first+rows-1 of one KV head, and all queries that read this head. */
struct ckv_cpu_window_segment {
        const struct ckv_plane *k;      /* dimensions adjacent, scale 1 */
        const struct ckv_row_table *table;
        uint32_t head, first, rows;
        uint32_t dims;                  /* that take part in the product, <= k->dims */
        uint32_t next_head, next_first, next_rows;      /* what this thread is given next, to be fetched meanwhile; rows 0: not known */

        const void *queries;            /* of pack() */
        uint32_t query_count, window;   /* query n is query row n % window of query head n / window of this KV head */
        const uint32_t *low, *high;     /* [window] rows low .. high-1 are visible; both ascend with the query row (R34) */
        float factor, cap;              /* logit in units of log 2 = product * factor; cap > 0: cap * tanh(product * factor) */
        bool most;                      /* rows(): of the queries of a head the largest weight counts, not their sum */
        const float *reference;         /* [query_count padded] in units of log 2; 0 in the padding */

        void *scratch;                  /* of the thread: [CKV_CPU_SCRATCH_FLOATS] floats, aligned */
};

struct ckv_cpu_window_kernel {
        const char *name;               /* "avx512bf16" */

        /* takes() - can this kernel read such keys and queries, and form exact products of them (R31)? @dims: of the product */
        bool (*takes)(enum ckv_dtype keys, enum ckv_dtype queries, uint32_t dims);

        /* pack_bytes() - size of the packed queries, a multiple of 64 */
        size_t (*pack_bytes)(uint32_t query_count, uint32_t dims);

        /**
         * pack() - lay out the queries of one KV head
         * @values:   [query_count][dims] widened, not multiplied by anything
         * @ret_pack: [pack_bytes()] aligned to 64 bytes; padding is written too
         */
        void (*pack)(const float *values, uint32_t query_count, uint32_t dims, void *ret_pack);

        /**
         * units() - scheme B, or sums alone
         * @map:         NULL: sums alone
         * @ret_columns: [columns][query_count padded]; overwritten; the padding is anything; NULL without map
         * @ret_total:   [query_count padded] sum of 2^(logit - reference) over the visible rows
         *
         * A result beyond the range of binary32, or a NaN in a visible key or query, shows in ret_total as infinity or NaN.
         */
        void (*units)(const struct ckv_cpu_window_segment *segment, const struct ckv_cpu_window_map *map, float *ret_columns,
                      float *ret_total);

        /**
         * rows() - scheme A: sums over the queries of each head, or their largest; a NaN among them is handed on
         * @inverse:   [query_count padded] each weight is multiplied by it; 0 in the padding
         * @ret_a:     query head n, row first + i goes to ret_a[n * stride + i]
         * @ret_above: [query_count padded] logit - reference, at most (R40), and where it is above 0 it counts as 0; NULL: not asked
         * @ret_total: [query_count padded] sum of the weights over the rows of the segment; NULL with ret_above
         */
        void (*rows)(const struct ckv_cpu_window_segment *segment, const float *inverse, float *ret_a, size_t stride,
                     float *ret_above, float *ret_total);
};

#if defined(__x86_64__)
extern const struct ckv_cpu_window_kernel ckv__cpu_window_avx2, ckv__cpu_window_avx512, ckv__cpu_window_avx512bf16,
        ckv__cpu_window_amx;
#endif

#endif
