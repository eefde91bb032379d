/*
 * S7 and S8 on a GPU, for the selections that ckv_k_select knows.
 */
#ifndef CKV_KERNELS_CUDA_SELECT_H
#define CKV_KERNELS_CUDA_SELECT_H

#include "kernels/cuda/params.h"
#include "kernels/job.h"

#include <stdbool.h>
#include <stdint.h>

/* ckv__cuda_selects() - does ckv_k_select make the kept rows of this group? Else ckv_select() does, from the scores. */
bool ckv__cuda_selects(const struct ckv_job_group *group, const struct ckv_units *units);

/* ckv__cuda_select_runs() - runs that its kept sets may be expected to have at most; those that have more are selected by
 * ckv_select() */
uint32_t ckv__cuda_select_runs(const struct ckv_job_group *group);

/* ckv__cuda_select_rule() - what of struct ckv_k_select depends on the policy and the budget; addresses and sets are the
 * caller's. @protect: address of the protected rows */
struct ckv_k_select ckv__cuda_select_rule(const struct ckv_job_group *group, const struct ckv_units *units, uint64_t protect);

#endif
