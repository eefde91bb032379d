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
        uint32_t head_first, heads;
        uint32_t per_group;             /* weights of a KV head: G, or 1 where the scorer gives S[g][j] */
        const double *s;                /* [heads * per_group][L] weights as they are; NULL: they are a and what follows */
        const float *a;                 /* [heads * per_group][L] weights before norm, contrast and mute */
        uint32_t votes;                 /* query rows in a */
        const uint32_t *seen;           /* [L] by how many of them a row is seen; NULL unless norm = seen */
        const float *older;             /* as a: sums over the query rows of the contrast; NULL: none */
        uint32_t older_rows;
        double *rows;                   /* [ckv_score_heads()][L] T[j] */
};

/* ckv__cpu_fold_weights() - norm, contrast and mute of head @item of a: [to - from] for rows from .. to-1 */
void ckv__cpu_fold_weights(const struct ckv_cpu_fold *fold, uint32_t item, uint32_t from, uint32_t to, double *ret_weights);

/**
 * ckv__cpu_fold_rows() - pool, group, value weight and heads for rows item * CKV_CPU_FOLD_ROWS and following
 * @values: scratch, [v.dims]
 *
 * The arithmetic is that of ckv_ref_score_head(), ckv_ref_pool() and ckv_ref_reduce_heads(): binary64, in their order.
 */
void ckv__cpu_fold_rows(const struct ckv_cpu_fold *fold, uint32_t item, float *values);

#endif
