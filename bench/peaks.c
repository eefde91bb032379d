/*
 * Medians of loops that take a few hundredths of a second.  What the table says
 * of floors comes from loops that ran beside the work (score.c); these figures
 * are for people.
 *
 * A loop is its own peak: each run is a repetition between the ones before and
 * after it, and dropped by the same rule as all others.
 */
#include "bench/peaks.h"

#include "base/macros.h"
#include "bench/loops.h"
#include "bench/measure.h"
#include "kernels/cpu_choice.h"

#include <stdio.h>
#include <string.h>

static const double SECONDS = 0.02;
enum {
        ROUNDS_FIRST = 20000,
        ATTEMPTS = 6,                   /* for each repetition that is asked for: they are short */
};

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

/* What repetitions of a loop came to. */
struct peak {
        double seconds;                 /* the median; 0 for no result */
        uint32_t kept, dropped;
};

static struct peak peak_of(uint32_t threads, uint32_t repeats, bench_work work, struct loop *loop) {
        struct bench_span spans[3] = { { 0 }, bench_run(threads, work, loop), bench_run(threads, work, loop) };
        struct bench_series series = { 0 };
        struct peak peak = { 0 };

        for (uint32_t n = 0; n < ATTEMPTS * repeats && series.count < repeats; n++) {
                spans[0] = spans[1];
                spans[1] = spans[2];
                spans[2] = bench_run(threads, work, loop);
                peak.dropped += !bench_add_between(&series, spans);
        }
        peak.kept = series.count;
        peak.seconds = bench_enough(&series, repeats) ? bench_median(&series) : 0;
        return peak;
}

/* ""name": amount per second, "loop_kept": 9, "loop_dropped": 0" */
static void print_peak(const char *name, const char *loop, double amount, const struct peak *peak) {
        if (peak->seconds > 0)
                (void)printf("\"%s\": %.3f", name, 1e-9 * amount / peak->seconds);
        else
                (void)printf("\"%s\": null", name);
        (void)printf(", \"%s_kept\": %u, \"%s_dropped\": %u", loop, peak->kept, loop, peak->dropped);
}

/* @of_round: what each round of each thread amounts to */
static void measure_rounds(uint32_t threads, uint32_t repeats, void (*run)(uint64_t rounds), double of_round, const char *name,
                           const char *what) {
        struct loop loop = { .run = run, .rounds = ROUNDS_FIRST };
        double first = bench_run(threads, do_rounds, &loop).seconds;
        struct peak peak;

        loop.rounds = (uint64_t)CKV_MAX(ROUNDS_FIRST * SECONDS / CKV_MAX(first, 1e-6), 1);
        peak = peak_of(threads, repeats, do_rounds, &loop);
        print_peak(name, what, threads * of_round * (double)loop.rounds, &peak);
}

void bench_peaks(uint32_t threads, uint32_t repeats, const struct bench_pool *pool) {
        struct loop loop = { .pool = pool };
        size_t path_count;
        const struct ckv_cpu_path *paths = ckv__cpu_paths(&path_count);
        struct peak read = peak_of(threads, repeats, do_read, &loop), copy = peak_of(threads, repeats, do_copy, &loop);

        (void)printf("{\"threads\": %u, ", threads);
        print_peak("read_gb_per_s", "read", (double)pool->size, &read);
        (void)printf(", ");
        print_peak("memcpy_gb_per_s", "memcpy", (double)pool->size, &copy);
        (void)printf(", \"memcpy_bytes\": %zu, \"paths\": {", pool->size / 2 / threads);
        for (size_t i = 0, written = 0; i < path_count; i++) {
                const struct bench_loops *loops = bench_loops_of(paths[i].name);

                if (!loops || !paths[i].usable())
                        continue;
                (void)printf("%s\"%s\": {", written++ > 0 ? ", " : "", loops->path);
                measure_rounds(threads, repeats, loops->products, loops->flops_of_round, "gflops", "products");
                (void)printf(", ");
                measure_rounds(threads, repeats, loops->exponentials, loops->exponentials_of_round, "gexps", "exponentials");
                (void)printf("}");
        }
        (void)printf("}}\n");
        (void)fflush(stdout);
}
