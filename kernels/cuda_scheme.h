/*
 * Which way a layer is scored on a GPU, and the borders of partial sums:
 *
 *                                                 log-sum-exp given    not given
 *     units by sum or mean, heads and groups by
 *     sum or mean, the window's sum, pool none
 *     or avg, no weight of values, no mute, no
 *     contrast, nothing that looks at rows, units
 *     of 4 rows or more on average, two units
 *     that a pool does not reach over, and sums
 *     of a layer that fit the scratch             LSE                  UNITS
 *     anything else                               LSE                  TWICE
 *     raw_qk, window_reduce = max; what tensor
 *     cores cannot take (ckv_k_mma_takes())       GENERAL              GENERAL
 *     scorers that read no queries                KEYS                 KEYS
 *
 * UNITS, scheme B, reads K once and keeps a sum for each query and unit
 * (struct ckv_k_sums); a layer whose logits turn out to lie far above those of
 * its first rows is scored again, TWICE.  Nothing of time or of other layers
 * decides, so a layer goes the same way always (R30): a batch has layers that
 * go the same way alone.
 */
#ifndef CKV_KERNELS_CUDA_SCHEME_H
#define CKV_KERNELS_CUDA_SCHEME_H

#include "kernels/job.h"

#include <stdbool.h>
#include <stdint.h>

enum ckv_cuda_scheme {
        CKV_CUDA_KEYS,
        CKV_CUDA_GENERAL,               /* any layout, ordinary units: K twice, once for raw_qk */
        CKV_CUDA_LSE,                   /* scheme A: one pass, weights by row */
        CKV_CUDA_UNITS_ONCE,            /* scheme B: one pass, weights by unit and query */
        CKV_CUDA_TWICE,                 /* scheme C: one pass for the sums, one for weights by row */
};

/* What the kernels see of a layer; layers of a batch are equal in it. */
struct ckv_cuda_kind {
        bool staged;                    /* queries lie in host memory, and are sent */
        bool lse;                       /* log-sum-exps are given */
        bool tensor;                    /* tensor cores can take keys and queries */
};

/* ckv__cuda_kind() - of one layer. @staged: as there; of the others it is found out here */
struct ckv_cuda_kind ckv__cuda_kind(const struct ckv_job *job, const struct ckv_job_group *group, const struct ckv_job_layer *layer,
                                    bool staged);

/**
 * ckv__cuda_scheme() - the table
 * @units: how many there are, where ckv__cuda_sums_bounds() has made borders and the scratch has room for the sums; else 0
 */
enum ckv_cuda_scheme ckv__cuda_scheme(const struct ckv_job_group *group, const struct ckv_cuda_kind *kind, uint32_t units);

/* ckv__cuda_sums_half() - rows on each side that a row gives a share of its weight to */
uint32_t ckv__cuda_sums_half(const struct ckv_policy *policy);

/**
 * ckv__cuda_sums_bounds() - which units have a column in which segment
 * @ret_bounds: [ckv_k_segments()][2] first and last unit, both ascending; what lies between has one too
 *
 * A segment has a column for every unit that one of its rows has a part in, and one at least.
 *
 * Return: false if a row may have parts in more than three units, and sums cannot be made.
 */
bool ckv__cuda_sums_bounds(const struct ckv_job_group *group, const struct ckv_units *units, uint32_t *ret_bounds);

#endif
