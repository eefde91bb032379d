/*
 * How fast the paths of the CPU device score a case, beside the loops that
 * bound them.
 */
#ifndef CKV_BENCH_SCORE_H
#define CKV_BENCH_SCORE_H

#include "bench/problem.h"
#include "kernels/cpu_choice.h"

struct bench_options {
        uint32_t repeats;
        uint32_t job_tokens;            /* layers of a job together: what is shorter is measured several layers at once */
        bool check;                     /* compare with the scalar reference first */
};

/* bench_print_paths() - names of the paths that this machine can take, a line for each */
void bench_print_paths(void);

/**
 * bench_score() - all usable paths on one case, interleaved; a line of JSON for each on standard output
 * @choice: what the device would pick
 * @pool:   filled for the type of the case
 *
 * Return: false if a path gave a wrong result, and then nothing was timed.
 */
bool bench_score(const struct bench_case *c, uint32_t tokens, uint32_t threads, const struct ckv_cpu_choice *choice,
                 const struct bench_pool *pool, const struct bench_options *options);

#endif
