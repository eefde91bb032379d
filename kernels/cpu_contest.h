/*
 * Paths take turns at trials, until it is known how long each of them takes.
 */
#ifndef CKV_KERNELS_CPU_CONTEST_H
#define CKV_KERNELS_CPU_CONTEST_H

#include "kernels/cpu_trial.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
        CKV_CPU_ENTRANTS_MOST = 8,              /* paths */
        CKV_CPU_ROUNDS_MOST = 24,
        CKV_CPU_ROUNDS_USEC = 40000,            /* CPU time, after which no round begins, but for the first four */
};

/* One trial, and the times of all paths at it */
struct ckv_cpu_contest {
        struct ckv_cpu_trial *trial;            /* borrowed; NULL: none, and nothing is measured */
        uint64_t nsec[CKV_CPU_ENTRANTS_MOST][CKV_CPU_ROUNDS_MOST];
        uint32_t rounds[CKV_CPU_ENTRANTS_MOST]; /* in which the path was timed */
        double expected;                        /* total of all weights, as the path @by computed it; 0: none did yet */
        size_t by;
};

/**
 * ckv__cpu_contests_run() - rounds over all contests, in each every entrant once
 * @contests: [count]; zeroed but for the trials
 * @kernels:  [entrants], at most CKV_CPU_ENTRANTS_MOST; NULL: takes no part
 * @wrong:    [entrants] in: takes no part; out: also those whose results differed from the others' and were wrong
 *
 * Return: 0 or -ENOMEM.
 */
int ckv__cpu_contests_run(struct ckv_cpu_contest *contests, size_t count, const struct ckv_cpu_window_kernel *const *kernels,
                          size_t entrants, bool *wrong);

/* ckv__cpu_contest_best() - the shortest time of a path; UINT64_MAX if it cannot work on the trial */
uint64_t ckv__cpu_contest_best(const struct ckv_cpu_contest *contest, size_t entrant);

#endif
