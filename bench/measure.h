/*
 * How time is taken here: a team of pinned threads, spans between a barrier and
 * the last thread's end, and ratios that are dropped when somebody disturbed
 * them (never by looking at the work itself).
 *
 * Where neighbours never pause, every repetition would be dropped: BENCH_CPU=1
 * takes CPU time instead, the mean over the threads, and drops nothing.  CPU
 * time does not see a thread that waits.
 */
#ifndef CKV_BENCH_MEASURE_H
#define CKV_BENCH_MEASURE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
        BENCH_THREADS_MAX = 256,
        BENCH_REPEATS_MAX = 64,
        BENCH_REPEATS_MIN = 5,          /* fewer that were not disturbed are no result */
};

/* What one piece of work took. */
struct bench_span {
        double seconds;         /* wall time, or CPU time with BENCH_CPU=1 */
        double stolen;          /* share of it that a thread was off its CPU although it had work; 0 with BENCH_CPU=1 */
};

typedef void (*bench_work)(void *context, uint32_t id, uint32_t threads);

/* bench_by_cpu_time() - was BENCH_CPU=1 asked for? */
bool bench_by_cpu_time(void);

/* bench_cpus() - CPUs that this process may run on: at least 1, at most BENCH_THREADS_MAX */
uint32_t bench_cpus(void);

/**
 * bench_run() - do work on @threads threads, each on a CPU of its own
 * @work: called once in each thread, with ids 0 .. threads-1; memory it needs is there before
 *
 * Threads are made before the span begins: it reaches from the first start to the last end.
 */
struct bench_span bench_run(uint32_t threads, bench_work work, void *context);

/* bench_pin_others() - put the threads of this process but the caller on CPUs 0, 1, ... in turn, as many as @threads */
void bench_pin_others(uint32_t threads);

/* The start of a span of work that other threads of this process do, the caller waiting. */
struct bench_mark {
        double wall, cpu, delay;
};

struct bench_mark bench_begin(void);

/* bench_end() - what the other threads, @threads of them, took; a thread that sleeps is not off its CPU */
struct bench_span bench_end(const struct bench_mark *mark, uint32_t threads);

/* Values of the repetitions that count. */
struct bench_series {
        double value[BENCH_REPEATS_MAX];
        uint32_t count;
};

void bench_add(struct bench_series *series, double value);

/* bench_enough() - are these a result? @repeats: as many as were asked for, which may be fewer than BENCH_REPEATS_MIN */
bool bench_enough(const struct bench_series *series, uint32_t repeats);

/* bench_quantile() - by the nearest rank, @part from 0, the least, to 1, the largest; 0 of an empty series */
double bench_quantile(const struct bench_series *series, double part);

/* bench_median() - 0 of an empty series */
double bench_median(const struct bench_series *series);

/* bench_spread() - the distance between the quartiles, as a part of the median */
double bench_spread(const struct bench_series *series);

/* bench_print_counts() - the end of a row: spread, how many repetitions were kept and dropped, and the brace
 * @counts: has the row a result? Of repetitions that are none, too few or none at all, the spread is null */
void bench_print_counts(const struct bench_series *series, bool counts, uint32_t kept, uint32_t dropped);

/**
 * bench_disturbed() - is a repetition to be dropped?
 * @before, @after: the same work beside it, as long as it
 * @stolen:         the largest of all its spans
 *
 * If the two differ by more than a tenth, or a thread was off its CPU for more than 3 % of the time.
 */
bool bench_disturbed(double before, double after, double stolen);

/**
 * bench_add_between() - a repetition of a loop that is its own peak
 * @spans: three times the same work, one after the other
 *
 * The middle one is added, unless the other two, or what was stolen from any of them, say that the machine was disturbed.
 *
 * Return: false if it was dropped.
 */
bool bench_add_between(struct bench_series *series, const struct bench_span spans[static 3]);

/* bench_alloc() - zeroed, in large pages where the system has them; exits without memory */
void *bench_alloc(size_t bytes);

#endif
