/*
 * Large memory of scoring: how much of it there may be, and what is kept of it
 * from one job to the next.
 */
#ifndef CKV_KERNELS_CPU_SCRATCH_H
#define CKV_KERNELS_CPU_SCRATCH_H

#include <stddef.h>
#include <stdint.h>

#define CKV_CPU_SCRATCH_BYTES (UINT64_C(128) << 20)     /* unless something else is asked for */

struct ckv_cpu_scratch;

/* ckv__cpu_scratch_new() - @bytes: of one job; 0: CKV_CPU_SCRATCH_BYTES. Return: owned, or NULL if out of memory. */
struct ckv_cpu_scratch *ckv__cpu_scratch_new(uint64_t bytes);

/* ckv__cpu_scratch_free() - everything was given back; NULL is fine. Return: NULL. */
struct ckv_cpu_scratch *ckv__cpu_scratch_free(struct ckv_cpu_scratch *scratch);

/* ckv__cpu_scratch_limit() - bytes that one job shall do with; for NULL CKV_CPU_SCRATCH_BYTES */
uint64_t ckv__cpu_scratch_limit(const struct ckv_cpu_scratch *scratch);

/**
 * ckv__cpu_scratch_take() - memory, kept or new
 * @scratch: NULL: new
 * @bytes:   any number; the caller minds the limit
 *
 * All functions with a scratch are for one thread at a time.
 *
 * Return: aligned to 64 bytes, with contents left over, for ckv__cpu_scratch_give(); NULL if out of memory.
 */
void *ckv__cpu_scratch_take(struct ckv_cpu_scratch *scratch, size_t bytes);

/* ckv__cpu_scratch_give() - back to where it was taken from, to be kept if there is room; NULL is fine */
void ckv__cpu_scratch_give(struct ckv_cpu_scratch *scratch, void *memory);

/* ckv__cpu_scratch_age() - free what nobody has taken for some seconds; @now_nsec of CLOCK_MONOTONIC */
void ckv__cpu_scratch_age(struct ckv_cpu_scratch *scratch, uint64_t now_nsec);

/* ckv__cpu_scratch_kept() - bytes that nobody uses at the moment */
uint64_t ckv__cpu_scratch_kept(const struct ckv_cpu_scratch *scratch);

/* ckv__cpu_scratch_most() - bytes that were taken at one time, at most so far */
uint64_t ckv__cpu_scratch_most(const struct ckv_cpu_scratch *scratch);

#endif
