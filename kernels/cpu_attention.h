/*
 * The state of the scorers window and raw_qk on the CPU: cpu_attention.c takes
 * the steps, cpu_attention_work.c has the items of each.
 */
#ifndef CKV_KERNELS_CPU_ATTENTION_H
#define CKV_KERNELS_CPU_ATTENTION_H

#include "kernels/cpu_scorer.h"
#include "kernels/reference.h"

enum {
        CKV_CPU_COMBINE_QUERIES = 64,           /* of an item of CKV_CPU_COMBINE */
        CKV_CPU_PANEL_ROWS = 256,               /* query rows of a panel */
};

enum ckv_cpu_attention_phase {
        CKV_CPU_QUERIES, CKV_CPU_SUMS, CKV_CPU_COMBINE, CKV_CPU_WEIGHTS, CKV_CPU_CHECK, CKV_CPU_LEAK, CKV_CPU_FOLD,
        _CKV_CPU_ATTENTION_N,
};

struct ckv_cpu_attention {
        bool raw;
        double factor;                          /* of the queries */
        float cap;
        uint32_t per_group;                     /* G: query heads of a KV head */
        uint32_t segment_rows, segments;
        uint32_t band;                          /* KV heads that are worked on together, at most */
        uint32_t queries_most, padded_most;     /* of one KV head in a panel; padded to whole blocks */

        /* the panel at hand: query rows first .. first + rows - 1 of those given */
        struct ckv_query_rows part;
        uint32_t panel_most, first, rows;
        bool contrast;                          /* it belongs to the rows whose mean is subtracted */
        bool again;                             /* not the first panel of its array */
        uint32_t query_count, query_padded;
        uint32_t low[CKV_CPU_PANEL_ROWS], high[CKV_CPU_PANEL_ROWS];

        uint32_t head_first, heads;             /* the band */

        float *queries;                         /* [band][query_padded / 6][d][6] */
        float *segment_max, *segment_sum;       /* [band][segments][query_count]; with LSE: excess over it, and sum of weights */
        float *max, *inverse;                   /* [band][query_count] */
        float *a;                               /* [band][G][L] */
        float *older;                           /* [band][G][L] sums of the contrast; NULL without */
        double *leaked;                         /* [band][G][L] NULL unless pool = leak */
        uint32_t *seen;                         /* [L + 1] NULL unless norm = seen */
        bool *wrong;                            /* [band][G] log-sum-exp */
};

extern const ckv_cpu_work ckv__cpu_attention_work[_CKV_CPU_ATTENTION_N];

#endif
