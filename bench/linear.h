/*
 * Does the time of a plan grow with the rows, and no faster?
 */
#ifndef CKV_BENCH_LINEAR_H
#define CKV_BENCH_LINEAR_H

#include "bench/problem.h"

enum { BENCH_LENGTHS = 4 };             /* each twice as long as the one before */

/**
 * bench_linear() - growing lengths of @c beside the shortest, on the path that the device picks; a line of JSON for each
 * @most:    rows of the longest
 * @repeats: of each length
 */
void bench_linear(const struct bench_case *c, uint32_t most, uint32_t threads, uint32_t repeats, const struct bench_pool *pool);

#endif
