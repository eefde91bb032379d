/*
 * S2 and S3 on the CPU: weights of the query heads become T[j], a stretch of
 * rows at a time.
 */
#ifndef CKV_KERNELS_CPU_FOLD_H
#define CKV_KERNELS_CPU_FOLD_H

#include "kernels/job.h"

enum { CKV_CPU_FOLD_ROWS = 512 };       /* rows of one item */

/* KV heads head_first .. head_first+heads-1 of one layer; with head_first > 0 the heads before are already in rows. */
struct ckv_cpu_fold {
        const struct ckv_job_group *group;
        const struct ckv_job_layer *layer;
        const uint32_t *low, *high;     /* [window] rows that each query row sees */
        uint32_t head_first, heads;
        const float *a;                 /* [heads * G][L] weights, before norm */
        double *rows;                   /* [ckv_score_heads()][L] T[j] */
};

/**
 * ckv__cpu_fold_rows() - norm, pool, group, value weight and heads for rows item * CKV_CPU_FOLD_ROWS and following
 * @values: scratch, [v.dims]
 *
 * The arithmetic is that of ckv_ref_pool() and ckv_ref_reduce_heads(): binary64, in their order.
 */
void ckv__cpu_fold_rows(const struct ckv_cpu_fold *fold, uint32_t item, float *values);

#endif
