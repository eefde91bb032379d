/*
 * How much memory does a plan take beside K?
 */
#ifndef CKV_BENCH_MEMORY_H
#define CKV_BENCH_MEMORY_H

#include "bench/problem.h"

/**
 * bench_memory() - one layer of @c at growing lengths, on the path that the device picks; a line of JSON for each
 * @most:          rows of the longest
 * @scratch_bytes: what the device is told to do with; 0: as much as a daemon has without --scratch
 *
 * By itself, because what ran before in this process shows.
 */
void bench_memory(const struct bench_case *c, uint32_t most, uint32_t threads, uint64_t scratch_bytes, const struct bench_pool *pool);

#endif
