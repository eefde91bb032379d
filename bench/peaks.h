/*
 * The ceilings of this machine, each measured alone.
 */
#ifndef CKV_BENCH_PEAKS_H
#define CKV_BENCH_PEAKS_H

#include "bench/problem.h"

/* bench_peaks() - reading, copying, products and exponentials on @threads threads; a line of JSON on standard output
 * @pool: what is read, and copied from one half to the other: its contents are lost */
void bench_peaks(uint32_t threads, uint32_t repeats, const struct bench_pool *pool);

#endif
