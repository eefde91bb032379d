/*
 * Medians of loops that take a few hundredths of a second.  What the table says
 * of floors comes from loops that ran beside the work (score.c); these figures
 * are for people.
 */
#include "bench/peaks.h"

#include "base/macros.h"
#include "bench/loops.h"
#include "bench/measure.h"
#include "kernels/cpu_choice.h"

#include <stdio.h>
#include <string.h>

static const double SECONDS = 0.02;
enum { ROUNDS_FIRST = 20000 };

struct loop {
        const struct bench_pool *pool;
        void (*run)(uint64_t rounds);
        uint64_t rounds;
};

static void do_rounds(void *context, uint32_t id, uint32_t threads) {
        const struct loop *loop = context;

        (void)id;
        (void)threads;
        loop->run(loop->rounds);
}

static void do_read(void *context, uint32_t id, uint32_t threads) {
        static volatile uint64_t seen;
        const struct loop *loop = context;
        size_t part = loop->pool->size / threads / 256 * 256;

        seen = bench_read(loop->pool->bytes + id * part, part);
        (void)seen;
}

static void do_copy(void *context, uint32_t id, uint32_t threads) {
        const struct loop *loop = context;
        size_t half = loop->pool->size / 2, part = half / threads;

        memcpy(loop->pool->bytes + id * part, loop->pool->bytes + half + id * part, part);
}

static double median_of(uint32_t threads, uint32_t repeats, bench_work work, struct loop *loop) {
        struct bench_series series = { 0 };

        for (uint32_t i = 0; i < repeats; i++)
                bench_add(&series, bench_run(threads, work, loop).seconds);
        return bench_median(&series);
}

/* Amount per second, @of_round in each round of each thread */
static double rate(uint32_t threads, uint32_t repeats, void (*run)(uint64_t rounds), double of_round) {
        struct loop loop = { .run = run, .rounds = ROUNDS_FIRST };
        double first = bench_run(threads, do_rounds, &loop).seconds;

        loop.rounds = (uint64_t)CKV_MAX(ROUNDS_FIRST * SECONDS / CKV_MAX(first, 1e-6), 1);
        return threads * of_round * (double)loop.rounds / median_of(threads, repeats, do_rounds, &loop);
}

void bench_peaks(uint32_t threads, uint32_t repeats, const struct bench_pool *pool) {
        struct loop loop = { .pool = pool };
        size_t path_count;
        const struct ckv_cpu_path *paths = ckv__cpu_paths(&path_count);
        double bytes = (double)pool->size;

        (void)printf("{\"threads\": %u, \"read_gb_per_s\": %.2f, \"memcpy_gb_per_s\": %.2f, \"memcpy_bytes\": %zu, \"paths\": {", threads,
                     1e-9 * bytes / median_of(threads, repeats, do_read, &loop),
                     1e-9 * bytes / median_of(threads, repeats, do_copy, &loop), pool->size / 2 / threads);
        for (size_t i = 0, written = 0; i < path_count; i++) {
                const struct bench_loops *loops = bench_loops_of(paths[i].name);

                if (!loops || !paths[i].usable())
                        continue;
                (void)printf("%s\"%s\": {\"gflops\": %.1f, \"gexps\": %.3f}", written++ > 0 ? ", " : "", loops->path,
                             1e-9 * rate(threads, repeats, loops->products, loops->flops_of_round),
                             1e-9 * rate(threads, repeats, loops->exponentials, loops->exponentials_of_round));
        }
        (void)printf("}}\n");
        (void)fflush(stdout);
}
