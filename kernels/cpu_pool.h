/*
 * The worker threads of one CPU device.  Work is a list of numbered items of
 * fixed size; which thread takes which item, and how many items fit before the
 * time is up, never shows in a result (R30), because an item writes only what
 * is its own.
 */
#ifndef CKV_KERNELS_CPU_POOL_H
#define CKV_KERNELS_CPU_POOL_H

#include <stdint.h>

struct ckv_cpu_pool;

/* One item. @scratch: [CKV_CPU_SCRATCH_FLOATS] of the thread that runs it, aligned to 64 bytes, contents left over. */
typedef void (*ckv_cpu_work)(void *context, uint32_t item, float *scratch);

/**
 * ckv__cpu_pool_new() - start the workers
 * @threads:  at least 1; the thread that calls ckv__cpu_pool_run() is one of them
 * @ret_pool: owned by the caller, ckv__cpu_pool_free()
 *
 * Workers block all signals: those are the business of the program's own threads.
 *
 * Return: 0 or -errno.
 */
int ckv__cpu_pool_new(uint32_t threads, struct ckv_cpu_pool **ret_pool);

/* ckv__cpu_pool_free() - stop and join the workers; NULL is fine. Return: NULL. */
struct ckv_cpu_pool *ckv__cpu_pool_free(struct ckv_cpu_pool *pool);

/**
 * ckv__cpu_pool_run() - work off items @first .. @end-1 until they are done or the time is up
 * @until_nsec: CLOCK_MONOTONIC; no item begins after it, but at least one item is done
 *
 * One caller at a time. When it returns no worker is inside an item.
 *
 * Return: the first item that was not begun; everything before it is done.
 */
uint32_t ckv__cpu_pool_run(struct ckv_cpu_pool *pool, ckv_cpu_work work, void *context, uint32_t first, uint32_t end,
                           uint64_t until_nsec);

/* ckv__cpu_pool_threads() - threads that work, the caller of run included */
uint32_t ckv__cpu_pool_threads(const struct ckv_cpu_pool *pool);

#endif
