/*
 * A trial: one small scoring problem that every path works on, to see whether it
 * is right and how long it takes.
 */
#ifndef CKV_KERNELS_CPU_TRIAL_H
#define CKV_KERNELS_CPU_TRIAL_H

#include "kernels/cpu_window.h"

#include <stdbool.h>
#include <stdint.h>

struct ckv_cpu_trial;

struct ckv_cpu_trial_shape {
        enum ckv_dtype keys;
        bool exact_queries;             /* queries are of the keys' type, too; else binary32 */
        uint32_t dims, rows;
        uint32_t query_count, window;   /* window divides query_count */
};

/* ckv__cpu_trial_new() - random keys and queries, the same for the same shape. Return: owned, or NULL if out of memory. */
struct ckv_cpu_trial *ckv__cpu_trial_new(const struct ckv_cpu_trial_shape *shape);

/* ckv__cpu_trial_free() - NULL is fine. Return: NULL. */
struct ckv_cpu_trial *ckv__cpu_trial_free(struct ckv_cpu_trial *trial);

/* ckv__cpu_trial_takes() - can the kernel work on it? */
bool ckv__cpu_trial_takes(const struct ckv_cpu_trial *trial, const struct ckv_cpu_window_kernel *kernel);

/* ckv__cpu_trial_right() - does each result of units() and rows() agree with the scalar kernel's products, within 1e-4?
 * Return: 0 or -ENOMEM. */
int ckv__cpu_trial_right(struct ckv_cpu_trial *trial, const struct ckv_cpu_window_kernel *kernel, bool *ret_right);

/* ckv__cpu_trial_clock() - CPU time of the calling thread, in ns */
uint64_t ckv__cpu_trial_clock(void);

/* ckv__cpu_trial_nsec() - CPU time of units() on rows that are in no cache, and @ret_total, the sum of all its totals.
 * Return: 0 or -ENOMEM. */
int ckv__cpu_trial_nsec(struct ckv_cpu_trial *trial, const struct ckv_cpu_window_kernel *kernel, uint64_t *ret_nsec,
                        double *ret_total);

#endif
