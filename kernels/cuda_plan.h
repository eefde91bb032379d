/*
 * CKV_STAGE_PLAN of one job on a GPU, a slice at a time.
 */
#ifndef CKV_KERNELS_CUDA_PLAN_H
#define CKV_KERNELS_CUDA_PLAN_H

#include "kernels/cuda_device.h"
#include "kernels/job.h"

#include <stdbool.h>
#include <stdint.h>

struct ckv_cuda_plan;

/* ckv__cuda_plan_new() - borrow @job and get ready. Return: NULL if out of memory. */
struct ckv_cuda_plan *ckv__cuda_plan_new(struct ckv_job *job);

/* ckv__cuda_plan_free() - at any point between slices; NULL is fine. Return: NULL. */
struct ckv_cuda_plan *ckv__cuda_plan_free(struct ckv_cuda_plan *plan);

/**
 * ckv__cuda_plan_step() - go on until the job is planned, or has failed, or @until_nsec (CLOCK_MONOTONIC) is past
 *
 * What the device does not compute (ckv_cuda_takes()) ends with CKV_JOB_NOT_ON_DEVICE before anything is planned.
 *
 * Return: is it done? job->outcome says how; nothing of it is on its way in the stream, done or not.
 */
bool ckv__cuda_plan_step(struct ckv_cuda_plan *plan, struct ckv_cuda_device *device, uint64_t until_nsec);

#endif
