/*
 * Loops that do one thing and nothing else, as fast as this machine can: the
 * ceilings that every speed is a ratio of.  Products and exponentials have a
 * loop for each code path of the CPU device, by its own instructions and with
 * its own exponential; reading and copying have one for all.
 */
#ifndef CKV_BENCH_LOOPS_H
#define CKV_BENCH_LOOPS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Of one code path; each thread calls them on its own. */
struct bench_loops {
        const char *path;                               /* "avx512bf16" */
        double flops_of_round;                          /* two for each product that is added up */
        void (*products)(uint64_t rounds);
        double exponentials_of_round;
        void (*exponentials)(uint64_t rounds);
};

/* bench_loops_of() - those of a code path; NULL if it has none here */
const struct bench_loops *bench_loops_of(const char *path);

/* bench_read() - look at all of @bytes, a multiple of 256, aligned to 64, by the widest loads; returns something of them */
uint64_t bench_read(const void *from, size_t bytes);

extern const struct bench_loops bench_loops_scalar;
#if defined(__x86_64__)
extern const struct bench_loops bench_loops_avx2, bench_loops_avx512, bench_loops_avx512bf16, bench_loops_amx;

uint64_t bench_read_avx2(const void *from, size_t bytes);
uint64_t bench_read_avx512(const void *from, size_t bytes);
#endif

#endif
