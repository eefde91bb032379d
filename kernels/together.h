/*
 * Scores of layers put together (layers = one, and the four best of each row),
 * on the host, layer by layer as a device has them.
 */
#ifndef CKV_KERNELS_TOGETHER_H
#define CKV_KERNELS_TOGETHER_H

#include "kernels/scores.h"

#include <stdint.h>

struct ckv__together {
        double *units, *rows;           /* [N], [L] sums over layers; rows NULL unless T32[j] is needed */
        struct ckv_top4 *top;           /* [L]; NULL unless ckv_scores_top4() */
        uint32_t layers;                /* that were added */
};

/* ckv__together_init() - no layer yet. Return: 0, or -ENOMEM with nothing to free. */
int ckv__together_init(struct ckv__together *together, const struct ckv_job_group *group, const struct ckv_units *units);

/* ckv__together_deinit() - a zeroed struct is fine */
void ckv__together_deinit(struct ckv__together *together);

/* ckv__together_add() - C[u] and T32[j] of one more layer; the latter may be NULL where they are not needed */
void ckv__together_add(struct ckv__together *together, const struct ckv_job_group *group, const struct ckv_units *units,
                            const float *unit_scores, const float *row_scores);

/* ckv__together_finish() - the scores of all layers, as reference_job.c makes them. @ret_rows: NULL where not needed */
void ckv__together_finish(struct ckv__together *together, const struct ckv_job_group *group,
                               const struct ckv_units *units, float *ret_units, float *ret_rows);

#endif
