/*
 * How often threads of some processes went to sleep, and how long they ran.
 */
#ifndef CKV_BENCH_WAKEUPS_H
#define CKV_BENCH_WAKEUPS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* Since the processes began, all their threads together. */
struct bench_wakeups {
        uint64_t sleeps;                /* voluntary context switches: each ends with a wake-up */
        uint64_t preemptions;           /* others: on one CPU a thread that was woken may take the place of the one that woke it,
                                           which then finds its answer there and need not sleep */
        uint64_t run_nsec;              /* time on a CPU */
};

/**
 * bench_wakeups_of() - what the kernel counted so far
 * @pids: [@count]
 *
 * Return: false if /proc does not tell of one of them; nothing is written then.
 */
bool bench_wakeups_of(const pid_t *pids, size_t count, struct bench_wakeups *ret_wakeups);

#endif
