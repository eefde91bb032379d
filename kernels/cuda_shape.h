/*
 * What of a job a GPU can compute, and how its planes and tables are written
 * down for the kernels.
 */
#ifndef CKV_KERNELS_CUDA_SHAPE_H
#define CKV_KERNELS_CUDA_SHAPE_H

#include "kernels/cuda/params.h"
#include "kernels/cuda_types.h"
#include "kernels/job.h"

#include <stdbool.h>
#include <stdint.h>

/**
 * ckv_cuda_takes() - can the kernels compute this job?
 * @ret_group: written only if not: index of the first group at fault
 * @ret_field: written only if not: what of its policy; CKV_FIELD_NONE: how its planes lie, or of what type they are
 *
 * Looks at policies and planes, and at the budget of a group that would be refused: what is kept without scores needs no kernel.
 * Not computed are scorers drop and lagkv, values of 8 bits, and elements that do not lie on multiples of their size.
 */
bool ckv_cuda_takes(const struct ckv_job *job, uint32_t *ret_group, enum ckv_policy_field *ret_field);

/* ckv__cuda_can_move() - the same for CKV_STAGE_MOVE alone, which looks at planes only */
bool ckv__cuda_can_move(const struct ckv_job *job, uint32_t *ret_group);

/* ckv__cuda_plane() - a plane for the kernels; one without a base is none */
struct ckv_k_plane ckv__cuda_plane(const struct ckv_plane *plane);

/* ckv__cuda_table() - a row table whose entries lie at @entries of the device */
struct ckv_k_table ckv__cuda_table(const struct ckv_row_table *table, CUdeviceptr entries);

/* ckv__cuda_table_entries() - entries of a table that rows 0 .. @rows - 1 need */
uint32_t ckv__cuda_table_entries(const struct ckv_row_table *table, uint32_t rows);

/**
 * ckv__cuda_column() - one head of a plane as vectors of as many bytes as its addresses allow; of a plane without a base: none
 * @set: index of its kept rows among those of the launch
 *
 * Return: false if a row cannot be written down so: dimensions that are neither adjacent nor aligned.
 */
bool ckv__cuda_column(const struct ckv_plane *plane, uint32_t head, uint32_t set, struct ckv_k_column *ret_column);

#endif
