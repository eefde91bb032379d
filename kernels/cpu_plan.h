/*
 * CKV_STAGE_PLAN of one job on the CPU: a state that is stepped forward a slice
 * at a time.
 */
#ifndef CKV_KERNELS_CPU_PLAN_H
#define CKV_KERNELS_CPU_PLAN_H

#include "kernels/cpu_choice.h"
#include "kernels/cpu_pool.h"
#include "kernels/cpu_scratch.h"
#include "kernels/job.h"

#include <stdbool.h>

struct ckv_cpu_plan;

/* ckv__cpu_plan_new() - a plan that has not begun; @job and @scratch are borrowed until the end. Return: NULL if out of memory. */
struct ckv_cpu_plan *ckv__cpu_plan_new(struct ckv_job *job, struct ckv_cpu_scratch *scratch);

/* ckv__cpu_plan_free() - also in the middle of a plan; what was written into the job stays there. Return: NULL. */
struct ckv_cpu_plan *ckv__cpu_plan_free(struct ckv_cpu_plan *plan);

/**
 * ckv__cpu_plan_step() - go on until the plan is made or @until_nsec (CLOCK_MONOTONIC) is past
 *
 * Writes budget, budgets, kept, kept_mass, outcome and fail_* of the job as ckv_ref_run_plan() does, and adds to its select_nsec.
 *
 * Return: true when the plan is through, whatever its outcome.
 */
bool ckv__cpu_plan_step(struct ckv_cpu_plan *plan, struct ckv_cpu_pool *pool, const struct ckv_cpu_choice *choice,
                        uint64_t until_nsec);

#endif
