/*
 * The entropy gate of selector chunk_eg (algorithm.md 4.3): how many rows each
 * unit may give.
 */
#ifndef CKV_KERNELS_SELECT_ENTROPY_H
#define CKV_KERNELS_SELECT_ENTROPY_H

#include "kernels/select.h"

/**
 * ckv__entropy_gate() - C[u] and take(u), both from T32 alone
 * @row_scores: [L] T32[j], finite
 * @ret_scores: [units->count] C[u] = fl32(mean of T32 over the unit)
 * @ret_take:   [units->count] n_u, or at most spike_keep where the score is high and the entropy low
 *
 * Source of the formula: kvpress issue #261 and PR #263, with the ties and the arithmetic of algorithm.md.
 *
 * Return: 0 or -ENOMEM.
 */
int ckv__entropy_gate(const struct ckv_selection *selection, const struct ckv_units *units, const float *row_scores,
                      float *ret_scores, uint32_t *ret_take);

#endif
