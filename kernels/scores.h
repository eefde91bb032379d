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

/* ckv_scores_top4() - are layers put together row by row, from the four that score a row highest? The caller's scores are
 * together already. */
static inline bool ckv_scores_top4(const struct ckv_job_group *group) {
        return group->policy.layer_reduce == CKV_LAYER_TOP4 && !group->scores.in;
}

/* ckv_scores_need_rows() - must T32[j] be formed: for fill = best, chunk_eg, top4, or because the caller asks for rows? */
bool ckv_scores_need_rows(const struct ckv_job_group *group);

enum { CKV_UNIT_ROWS_LEAST = 4 };       /* on average: units of fewer would make more sums than a second pass costs time */

/*
 * ckv_scores_units_will_do() - do sums over units, for each query, answer all that is asked of this group? By its policy, what it
 * gives out, and how many units it has: between a weight and C[u] all must be linear, and nothing may look at rows.
 */
bool ckv_scores_units_will_do(const struct ckv_job_group *group, uint32_t units);

/**
 * ckv_scores_fit() - are the caller's memories of the right size for this group?
 * @units:    of the group
 * @ret_need: bytes that are needed, written always
 *
 * scores in must have exactly so many, scores out at least.
 */
bool ckv_scores_fit(const struct ckv_job_group *group, const struct ckv_units *units, uint64_t *ret_need);

/**
 * ckv_scores_load() - the caller's scores of one layer and score head, as C[u] and T32[j]
 * @layer:     index of the layer in the group; 0 with layers = one
 * @head:      below ckv_score_heads()
 * @ret_units: [units->count]; from rows they are formed as S4 does it
 * @ret_rows:  [L]; NULL if ckv_scores_need_rows() says no
 *
 * Return: 0 or -ENOMEM.
 */
int ckv_scores_load(const struct ckv_job_group *group, const struct ckv_units *units, uint32_t layer, uint32_t head,
                    float *ret_units, float *ret_rows);

/* ckv_scores_store() - C[u] or T32[j] of all score heads of a layer, and of @followers layers behind it, into the caller's
 * memory, if there is any */
void ckv_scores_store(const struct ckv_job_group *group, const struct ckv_units *units, uint32_t layer, uint32_t followers,
                      const float *unit_scores, const float *row_scores);

/**
 * ckv_scores_finite() - may the scores of one layer join those of others (R23)?
 * @unit_scores: [units->count]; not looked at with top4
 * @row_scores:  [L], looked at where rows are selected or put together; else NULL
 * @ret_unit:    written only if not: index of the first such unit on the grid
 *
 * Looked at before layers are put together, because what comes out does not know whose it was.
 */
bool ckv_scores_finite(const struct ckv_job_group *group, const struct ckv_units *units, const float *unit_scores,
                       const float *row_scores, uint32_t *ret_unit);

/* Running four largest scores of a row, descending; as many of them count as layers were added. */
struct ckv_top4 {
        float score[4];
};

/* ckv_top4_add() - T32[j] of one more layer, after @layers others; @top: [rows] */
void ckv_top4_add(struct ckv_top4 *top, uint32_t layers, uint32_t rows, const float *row_scores);

/**
 * ckv_top4_reduce() - T[j] = the sum of the four largest in descending order, divided by 4 (section 6.1, vote)
 * @layers: layers that were added, at least 1; fewer than 4: all of them, divided by their number
 * @ret_t:  [rows]
 */
void ckv_top4_reduce(const struct ckv_top4 *top, uint32_t layers, uint32_t rows, double *ret_t);

#endif
