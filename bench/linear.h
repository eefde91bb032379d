/*
 * Does the time of a plan grow with the rows, and its memory no faster?
 */
#ifndef CKV_BENCH_LINEAR_H
#define CKV_BENCH_LINEAR_H

#include "bench/problem.h"

/**
 * bench_linear() - one layer of @c at growing lengths, on the path that the device picks; a line of JSON for each
 * @most:    rows of the longest
 * @repeats: of each length; the median counts
 */
void bench_linear(const struct bench_case *c, uint32_t most, uint32_t threads, uint32_t repeats, const struct bench_pool *pool);

#endif
