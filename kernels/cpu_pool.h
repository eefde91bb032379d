/*
 * The worker threads of one CPU device.  Work is a list of numbered items of
 * fixed size; which thread takes which item, and how many items fit before the
 * time is up, never shows in a result (R30), because an item writes only what
 * is its own.
 */
#ifndef CKV_KERNELS_CPU_POOL_H
#define CKV_KERNELS_CPU_POOL_H

#include "kernels/cpu_nodes.h"

#include <stdint.h>

enum { CKV_CPU_NEAR_MOST = 2048 };      /* items that are sorted by node at a time */

struct ckv_cpu_pool;

/* One item. @scratch: [CKV_CPU_SCRATCH_FLOATS] of the thread that runs it, aligned to 64 bytes, contents left over. */
typedef void (*ckv_cpu_work)(void *context, uint32_t item, float *scratch);

/* Memory that an item reads most of; NULL: nothing that it would be worth being near */
typedef const void *(*ckv_cpu_where)(const void *context, uint32_t item);

/* A stretch of a list, sorted by node, and what of it has been handed out. Of whoever goes through the list; count 0 at first. */
struct ckv_cpu_near {
        uint32_t first, count;
        uint16_t order[CKV_CPU_NEAR_MOST];              /* [count] item - first */
        uint16_t next[CKV_CPU_NODES_MOST + 1], end[CKV_CPU_NODES_MOST + 1];     /* of each node, and those anywhere: into order */
};

/**
 * ckv__cpu_pool_new() - start the workers; all memory is alike to them, and they run where the system puts them
 * @threads:  at least 1; the thread that calls ckv__cpu_pool_run() is one of them
 * @ret_pool: owned by the caller, ckv__cpu_pool_free()
 *
 * Workers block all signals: those are the business of the program's own threads.
 *
 * Return: 0 or -errno.
 */
int ckv__cpu_pool_new(uint32_t threads, struct ckv_cpu_pool **ret_pool);

/**
 * ckv__cpu_pool_new_on() - the same on nodes of memory
 * @nodes: borrowed until the end
 * @pin:   what the workers are held to; the caller of run is so by its first call
 */
int ckv__cpu_pool_new_on(uint32_t threads, struct ckv_cpu_nodes *nodes, enum ckv_cpu_pin pin, struct ckv_cpu_pool **ret_pool);

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

/**
 * ckv__cpu_pool_run_near() - the same, but each item goes to a worker near its memory as long as one is free
 * @near: for one walk through one list; what of the items behind the returned one is done
 *
 * A worker takes items of its own node first, then those that are anywhere, then those of other nodes.
 *
 * Return: as ckv__cpu_pool_run(), but of the items from there on some may be done, as @near knows.
 */
uint32_t ckv__cpu_pool_run_near(struct ckv_cpu_pool *pool, ckv_cpu_work work, ckv_cpu_where where, void *context,
                                struct ckv_cpu_near *near, uint32_t first, uint32_t end, uint64_t until_nsec);

/* ckv__cpu_pool_threads() - threads that work, the caller of run included */
uint32_t ckv__cpu_pool_threads(const struct ckv_cpu_pool *pool);

#endif
