/*
 * CKV_STAGE_MOVE of one job on the CPU (S9), a bounded number of bytes at a time.
 */
#ifndef CKV_KERNELS_CPU_MOVE_H
#define CKV_KERNELS_CPU_MOVE_H

#include "kernels/cpu_pool.h"
#include "kernels/job.h"

#include <stdbool.h>

struct ckv_cpu_move;

/**
 * ckv__cpu_move_new() - get ready to move; nothing is written yet
 * @job: borrowed; was planned with CKV_JOB_OK
 *
 * Sets bytes_moved of each group to what the move will have read and written.
 *
 * Return: NULL if out of memory.
 */
struct ckv_cpu_move *ckv__cpu_move_new(struct ckv_job *job);

/* ckv__cpu_move_free() - NULL is fine. Return: NULL. */
struct ckv_cpu_move *ckv__cpu_move_free(struct ckv_cpu_move *move);

/* ckv__cpu_move_step() - go on until all rows are in place or @until_nsec (CLOCK_MONOTONIC) is past. Return: is it done? */
bool ckv__cpu_move_step(struct ckv_cpu_move *move, struct ckv_cpu_pool *pool, uint64_t until_nsec);

#endif
