/*
 * Scores that a caller takes out of a job or puts into it (R5): tensor-parallel
 * ranks add them up, engines bring their own, tests cut the pipeline here.
 * struct ckv_job_scores of kernels/job.h says where they are.
 */
#ifndef CKV_KERNELS_SCORES_H
#define CKV_KERNELS_SCORES_H

#include "kernels/job.h"

#include <stdbool.h>
#include <stdint.h>

/* ckv_scores_need_rows() - must T32[j] be formed: for fill = best, chunk_eg, or because the caller asks for rows? */
bool ckv_scores_need_rows(const struct ckv_job_group *group);

/**
 * ckv_scores_fit() - are the caller's memories of the right size for this group?
 * @units:    of the group
 * @ret_need: bytes that are needed, written always
 *
 * scores in must have exactly so many, scores out at least.
 */
bool ckv_scores_fit(const struct ckv_job_group *group, const struct ckv_units *units, uint64_t *ret_need);

/**
 * ckv_scores_load() - the caller's scores of one layer, as C[u] and T32[j]
 * @layer:    index of the layer in the group; 0 with layers = one
 * @ret_units: [units->count]; from rows they are formed as S4 does it
 * @ret_rows: [L]; NULL if ckv_scores_need_rows() says no
 *
 * Return: 0 or -ENOMEM.
 */
int ckv_scores_load(const struct ckv_job_group *group, const struct ckv_units *units, uint32_t layer, float *ret_units,
                    float *ret_rows);

/* ckv_scores_store() - C[u] or T32[j] of a layer, and of @followers layers behind it, into the caller's memory, if there is any */
void ckv_scores_store(const struct ckv_job_group *group, const struct ckv_units *units, uint32_t layer, uint32_t followers,
                      const float *unit_scores, const float *row_scores);

#endif
