/*
 * What one instruction set's scoring kernel does: the arithmetic of one KV head
 * against one segment of rows.  A kernel allocates nothing and knows nothing of
 * threads, jobs or time; cpu_score.c calls it and owns all arrays.
 *
 * A kernel works on tiles of 64 rows, widened to binary32 and transposed, so
 * that a vector holds the same dimension of consecutive rows: lanes are rows.
 */
#ifndef CKV_KERNELS_CPU_KERNEL_H
#define CKV_KERNELS_CPU_KERNEL_H

#include "kernels/layout.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
        CKV_CPU_ALIGN = 64,             /* bytes: a cache line, and the widest vector */
        CKV_CPU_TILE = 64,              /* rows of a tile */
        CKV_CPU_BLOCK = 6,              /* queries that pass over a tile together: 6 x 4 accumulators fit 32 registers */
        CKV_CPU_GATHER = 16,            /* rows that are widened before they are transposed */
        CKV_CPU_GATHER_GAP = 16,        /* floats between two of them */
        CKV_CPU_PANEL = 480,            /* queries whose running maxima are kept while a segment is walked */
        CKV_CPU_LANES_MAX = 16,
        CKV_CPU_DIMS_MAX = 1024,        /* limit HEAD_DIM of base/limits.def */

        /* scratch of a thread, in floats: tile, widened rows, running maxima and sums */
        CKV_CPU_TILE_FLOATS = CKV_CPU_TILE * CKV_CPU_DIMS_MAX,
        CKV_CPU_GATHER_FLOATS = CKV_CPU_GATHER * (CKV_CPU_DIMS_MAX + CKV_CPU_GATHER_GAP),
        CKV_CPU_PANEL_FLOATS = 2 * CKV_CPU_PANEL * CKV_CPU_LANES_MAX,
        CKV_CPU_SCRATCH_FLOATS = CKV_CPU_TILE_FLOATS + CKV_CPU_GATHER_FLOATS + CKV_CPU_PANEL_FLOATS,
};

/* Rows first .. first+rows-1 of one KV head, and all queries that read this head. */
struct ckv_cpu_segment {
        const struct ckv_plane *k;
        const struct ckv_row_table *table;
        uint32_t head, first, rows;     /* with queries, first is a multiple of CKV_CPU_TILE */
        uint32_t ahead;                 /* norms, dots: rows behind these that are asked for soon, and may be fetched */
        uint32_t dims;                  /* that take part in the product, <= k->dims */

        /* [blocks][dims][CKV_CPU_BLOCK], aligned; query n is query row n % window of query head n / window of this KV
         * head, and has been multiplied by the factor of its logits */
        const float *queries;
        uint32_t query_count, window;
        const uint32_t *low, *high;     /* [window] rows low .. high-1 are visible; both ascend with the query row */
        float cap;                      /* 0, or the logit is cap * tanh(product) */
        bool again;                     /* weights: there are weights of other query rows already, these join them */
        bool most;                      /* weights: the largest of the query rows, not their sum */

        float *scratch;                 /* [CKV_CPU_SCRATCH_FLOATS], aligned */
};

/* Logits are in units of log 2 throughout: weights are powers of two. */
struct ckv_cpu_kernel {
        const char *name;               /* "avx512" */

        /**
         * sums() - first pass: what the softmax needs to know of this segment
         * @ret_max: [query_count] largest visible logit; hugely negative where there is none
         * @ret_sum: [query_count] sum of 2^(logit - max) over the visible rows; NaN if one of the logits is
         */
        void (*sums)(const struct ckv_cpu_segment *segment, float *ret_max, float *ret_sum);

        /**
         * weights() - second pass: sum over the query rows of 2^(logit - max) * inverse, for each head and row
         * @max, @inverse: [query_count] of the whole sequence; inverse = 1 / Z
         * @ret_a:         head n, row first + i goes to ret_a[n * stride + i]
         * @ret_above:     [query_count] the maxima are the caller's and may be too small: by how much, at most, a visible
         *                 logit is above, and where it is, it counts as equal; NULL: none is above
         * @ret_total:     [query_count] sum over the visible rows of 2^(logit - max) * inverse; NULL with ret_above
         */
        void (*weights)(const struct ckv_cpu_segment *segment, const float *max, const float *inverse, float *ret_a,
                        size_t stride, float *ret_above, float *ret_total);

        /* products() - bare products of each query (window = 1: one a head) with all rows of the segment, no mask */
        void (*products)(const struct ckv_cpu_segment *segment, float *ret_a, size_t stride);

        /* norms() - length of each row: [rows]; reads k, table, head, first, rows, ahead, dims and scratch, as the next two do */
        void (*norms)(const struct ckv_cpu_segment *segment, double *ret_norms);

        /* directions() - sum[dims] takes in each row divided by its length, or by 1e-12 if that is more */
        void (*directions)(const struct ckv_cpu_segment *segment, const double *norms, double *sum);

        /* dots() - product of each row with one vector: [rows] */
        void (*dots)(const struct ckv_cpu_segment *segment, const double *vector, double *ret_dots);
};

extern const struct ckv_cpu_kernel ckv__cpu_kernel_scalar;
#if defined(__x86_64__)
extern const struct ckv_cpu_kernel ckv__cpu_kernel_avx2, ckv__cpu_kernel_avx512;
#endif

#endif
