/*
 * CKV_STAGE_MOVE of one job on a GPU (S9), a launch at a time.
 */
#ifndef CKV_KERNELS_CUDA_MOVE_H
#define CKV_KERNELS_CUDA_MOVE_H

#include "kernels/cuda_device.h"
#include "kernels/job.h"

#include <stdbool.h>
#include <stdint.h>

struct ckv_cuda_move;

/**
 * ckv__cuda_move_new() - get ready to move; nothing is written yet
 * @job: borrowed; was planned with CKV_JOB_OK, and ckv_cuda_takes() says yes to it
 *
 * Sets bytes_moved of each group to what the move will have read and written.
 *
 * Return: NULL if out of memory.
 */
struct ckv_cuda_move *ckv__cuda_move_new(struct ckv_job *job);

/* ckv__cuda_move_free() - NULL is fine. Return: NULL. */
struct ckv_cuda_move *ckv__cuda_move_free(struct ckv_cuda_move *move);

/**
 * ckv__cuda_move_step() - go on until all rows are in place or @until_nsec (CLOCK_MONOTONIC) is past
 *
 * steps.done is counted when every row of a step is written, and before any of the next one is.  A call of the driver that
 * fails is made again a few times; if that does not help, or the device is lost, the outcome is CKV_JOB_DEVICE_LOST: rows have
 * moved, and only a new process can go on.
 *
 * Return: is it done? Nothing of it is on its way in the stream, done or not.
 */
bool ckv__cuda_move_step(struct ckv_cuda_move *move, struct ckv_cuda_device *device, uint64_t until_nsec);

#endif
