/*
 * The state of the scorers window and raw_qk on the CPU: cpu_attention.c takes
 * the steps, cpu_attention_work.c and cpu_window_work.c have the items of each.
 */
#ifndef CKV_KERNELS_CPU_ATTENTION_H
#define CKV_KERNELS_CPU_ATTENTION_H

#include "kernels/cpu_parts.h"
#include "kernels/cpu_scheme.h"
#include "kernels/cpu_scorer.h"
#include "kernels/reference.h"

enum {
        CKV_CPU_COMBINE_QUERIES = 64,           /* of an item of CKV_CPU_COMBINE */
        CKV_CPU_PANEL_ROWS = 256,               /* query rows of a panel */
        CKV_CPU_REFERENCE_ROWS = 64,            /* that references are taken from */
        CKV_CPU_REDUCE_COLUMNS = 256,           /* of an item of CKV_CPU_REDUCE */
};

enum ckv_cpu_attention_phase {
        CKV_CPU_QUERIES, CKV_CPU_SUMS, CKV_CPU_COMBINE, CKV_CPU_WEIGHTS,
        /* the same with a window kernel */
        CKV_CPU_PACK, CKV_CPU_REFERENCE, CKV_CPU_UNITS, CKV_CPU_TOTALS, CKV_CPU_REDUCE, CKV_CPU_FORM, CKV_CPU_ROWS,
        CKV_CPU_CHECK, CKV_CPU_LEAK, CKV_CPU_FOLD,
        _CKV_CPU_ATTENTION_N,
};

struct ckv_cpu_attention {
        bool raw;
        double factor;                          /* of the queries */
        float cap;
        uint32_t per_group;                     /* G: query heads of a KV head */
        enum ckv_cpu_scheme scheme;             /* of the layer */
        const struct ckv_cpu_window_kernel *window;     /* of the layer; NULL: the general kernel works */
        uint32_t segment_rows, segments, bundle;        /* of the layer; bundle: segments of one head that make an item */
        uint32_t band;                          /* KV heads that are worked on together, at most */
        uint64_t fixed_bytes, head_bytes;       /* memory of a group, whatever the band, and of each KV head in it */
        uint64_t weights_bytes;                 /* of head_bytes: those of a */
        uint32_t queries_most, padded_most;     /* of one KV head in a panel; padded to whole blocks */

        /* the panel at hand: query rows first .. first + rows - 1 of those given */
        struct ckv_query_rows part;
        uint32_t panel_most, first, rows;
        bool contrast;                          /* it belongs to the rows whose mean is subtracted */
        bool again;                             /* not the first panel of its array */
        uint32_t query_count, query_padded;
        uint32_t stride;                        /* of the arrays by query: query_count, or with a window kernel padded for it */
        uint32_t low[CKV_CPU_PANEL_ROWS], high[CKV_CPU_PANEL_ROWS];

        uint32_t head_first, heads;             /* the band */

        float *queries;                         /* [band][query_padded / 6][d][6]; window: [band][query_count][d], to be packed */
        uint8_t *packs;                         /* [band][pack_bytes] packed queries of a window kernel */
        size_t pack_bytes;                      /* at most */
        float *segment_max, *segment_sum;       /* [band][segments][stride]; with LSE: excess over it, and sum of weights */
        float *max, *inverse;                   /* [band][stride]; max: with a window kernel, the references */
        float *a;                               /* [band][G][L] NULL unless the layer has weights by row */
        float *older;                           /* [band][G][L] sums of the contrast; NULL without */
        double *leaked;                         /* [band][G][L] NULL unless pool = leak */
        uint32_t *seen;                         /* [L + 1] NULL unless norm = seen */
        bool *wrong;                            /* [band][G] log-sum-exp */
        float *rows_of_reference;               /* [band][G][CKV_CPU_REFERENCE_ROWS] weights that nobody wants */
        bool *far;                              /* [band] a sum of weights says that its reference was no good */
        struct ckv_cpu_parts *parts;            /* scheme B; NULL: not yet wanted, or no memory for it */
        bool no_parts;                          /* they would be too large */
};

extern const ckv_cpu_work ckv__cpu_attention_work[_CKV_CPU_ATTENTION_N];

/* The items of the phases with a window kernel (cpu_window_work.c) */
void ckv__cpu_pack_item(void *context, uint32_t item, float *scratch);
void ckv__cpu_reference_item(void *context, uint32_t item, float *scratch);
void ckv__cpu_units_item(void *context, uint32_t item, float *scratch);
void ckv__cpu_totals_item(void *context, uint32_t item, float *scratch);
void ckv__cpu_reduce_item(void *context, uint32_t item, float *scratch);
void ckv__cpu_form_item(void *context, uint32_t item, float *scratch);
void ckv__cpu_rows_item(void *context, uint32_t item, float *scratch);

#endif
