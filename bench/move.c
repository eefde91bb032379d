/*
 * chunkkv-bench-move: how fast rows move in place, against memcpy() of as many
 * bytes.
 *
 *     chunkkv-bench-move [--threads N]
 *
 * Ten layers of 32k tokens with 8 heads of 128 in bfloat16, K and V, 64 MiB
 * each, of which a fifth is kept in chunks of 10: runs of 20 KB where a row has
 * all its heads, of 2.5 KB where each head has its own rows.  They lie in
 * shared memory of small pages, as those of engines do, and so do the two
 * buffers of the memcpy().  More than a gigabyte, so nothing stays in a cache.
 *
 * A repetition is memcpy, move, memcpy on the same threads, and its ratio is
 * the mean of the two against the move.  The rows are checked after a move of
 * each layout, before anything is timed.  The move is the daemon's own, with
 * its slices and its steps.  One line of JSON for each layout and number of
 * threads; then the gated ratios, each the lowest of its lines.
 */
#include "base/clock.h"
#include "base/macros.h"
#include "bench/measure.h"
#include "kernels/cpu_move.h"
#include "kernels/steps.h"

#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

enum {
        TOKENS = 32768, HEADS = 8, DIMS = 128, LAYERS = 10, PLANES = 2 * LAYERS, CHUNK = 10, KEEP_PERCENT = 20, PAGE_TOKENS = 16,
        HEAD_BYTES = DIMS * 2, ROW_BYTES = HEADS * HEAD_BYTES, PLANE_BYTES = TOKENS * ROW_BYTES,
        REPEATS = 15,
        SLICE_NSEC = 2 * (int)CKV_NSEC_PER_MSEC,
};

enum layout { HEADS_IN_ROWS, ROWS_IN_HEADS, PAGES, LAYOUTS };
static const struct {
        const char *name;
        uint32_t run_bytes;
} layouts[LAYOUTS] = {
        { "[T,H,D]", CHUNK * ROW_BYTES },
        { "[H,T,D]", CHUNK * HEAD_BYTES },
        { "pages of 16 tokens, [T,H,D]", CHUNK * ROW_BYTES },
};

struct subject {
        uint8_t *planes;                /* [PLANES][PLANE_BYTES] */
        uint8_t *from, *to;             /* [copy_bytes] */
        uint64_t copy_bytes;
        uint32_t pages[TOKENS / PAGE_TOKENS];
        struct ckv_job *job;
        _Atomic uint32_t steps_done;
        struct ckv_cpu_pool *pool;
};

static _Noreturn void fail(const char *what) {
        (void)fprintf(stderr, "chunkkv-bench-move: %s\n", what);
        exit(EXIT_FAILURE);
}

static void *must(void *p) {
        if (!p)
                fail("out of memory");
        return p;
}

static uint8_t *shared(uint64_t bytes) {
        uint8_t *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);

        return must(p == MAP_FAILED ? NULL : p);
}

static struct ckv_plane plane_at(uint8_t *base, enum layout layout) {
        bool heads_outside = layout == ROWS_IN_HEADS;

        return (struct ckv_plane){
                .base = base, .dtype = CKV_DTYPE_BF16, .dims = DIMS, .dim = { .tile = 1, .outer = 2 },
                .block_stride = (uint64_t)PAGE_TOKENS * ROW_BYTES,
                .head_stride = heads_outside ? (uint64_t)TOKENS * HEAD_BYTES : HEAD_BYTES,
                .token = { .tile = 1, .outer = heads_outside ? HEAD_BYTES : ROW_BYTES },
        };
}

static void set_layout(struct subject *subject, enum layout layout) {
        struct ckv_job_group *group = &subject->job->groups[0];

        group->table.tokens_per_block = layout == PAGES ? PAGE_TOKENS : TOKENS;
        for (uint32_t i = 0; i < TOKENS / PAGE_TOKENS; i++)
                subject->pages[i] = i;
        for (uint32_t i = TOKENS / PAGE_TOKENS - 1; layout == PAGES && i > 0; i--) {
                uint32_t at = (uint32_t)rand() % (i + 1), page = subject->pages[i];

                subject->pages[i] = subject->pages[at];
                subject->pages[at] = page;
        }
        for (uint64_t l = 0; l < LAYERS; l++) {
                group->layers[l].k = plane_at(subject->planes + 2 * l * PLANE_BYTES, layout);
                group->layers[l].v = plane_at(subject->planes + (2 * l + 1) * PLANE_BYTES, layout);
        }
}

static void make_job(struct subject *subject) {
        static uint8_t flags[TOKENS];
        struct ckv_job_group *group;

        for (uint32_t j = 0; j < TOKENS; j++)
                if (j % CHUNK > 0)
                        flags[j] = flags[j - 1];
                else
                        flags[j] = rand() % 100 < KEEP_PERCENT;
        subject->job = must(ckv_job_new(1));
        group = &subject->job->groups[0];
        group->kv_heads = HEADS;
        group->layer_count = LAYERS;
        group->layers = must(calloc(LAYERS, sizeof(*group->layers)));
        group->kept_count = 1;
        group->kept = must(calloc(1, sizeof(*group->kept)));
        if (ckv_kept_from_flags(flags, TOKENS, group->kept) < 0)
                fail("out of memory");
        group->table.entries = subject->pages;
        subject->job->steps.count = ckv_steps_count(subject->job, 0, UINT32_MAX);
        subject->job->steps.done = &subject->steps_done;
        subject->copy_bytes = (uint64_t)PLANES * ROW_BYTES * group->kept[0].count;
        subject->planes = shared((uint64_t)PLANES * PLANE_BYTES);
        subject->from = shared(subject->copy_bytes);
        subject->to = shared(subject->copy_bytes);
}

static void run_move(struct subject *subject) {
        struct ckv_cpu_move *move = must(ckv__cpu_move_new(subject->job));

        while (!ckv__cpu_move_step(move, subject->pool, ckv_now_nsec() + SLICE_NSEC))
                ;
        (void)ckv__cpu_move_free(move);
}

static void copy_item(void *context, uint32_t item, float *scratch) {
        const struct subject *subject = context;
        uint64_t part = subject->copy_bytes / ckv__cpu_pool_threads(subject->pool);

        (void)scratch;
        memcpy(subject->to + item * part, subject->from + item * part, part);
}

static void run_copy(struct subject *subject) {
        (void)ckv__cpu_pool_run(subject->pool, copy_item, subject, 0, ckv__cpu_pool_threads(subject->pool), UINT64_MAX);
}

/* A number that says which plane, row, and word of it this is */
static uint64_t mark_of(uint32_t plane, uint32_t row, uint32_t word) {
        return ((uint64_t)plane << 32 | row) * 0x9e3779b97f4a7c15u + word;
}

/* Each word of each row is marked, or compared with the mark of the row that must now be there. */
static void each_word(struct subject *subject, bool compare) {
        const struct ckv_job_group *group = &subject->job->groups[0];
        const struct ckv_kept *kept = &group->kept[0];

        for (uint32_t p = 0; p < PLANES; p++) {
                const struct ckv_plane *plane = p % 2 ? &group->layers[p / 2].v : &group->layers[p / 2].k;
                const struct ckv_run *run = kept->runs;

                for (uint32_t j = 0; j < (compare ? kept->count : TOKENS); j++) {
                        uint32_t row = compare ? run->src + (j - run->dst) : j;

                        for (uint32_t w = 0; w < ROW_BYTES / 8; w++) {
                                uint64_t mark = mark_of(p, row, w);
                                uint8_t *at = ckv_plane_row(plane, &group->table, j, w / (HEAD_BYTES / 8)) + w % (HEAD_BYTES / 8) * 8;

                                if (!compare)
                                        memcpy(at, &mark, sizeof(mark));
                                else if (memcmp(at, &mark, sizeof(mark)) != 0)
                                        fail("a row is not where it belongs");
                        }
                        run += compare && j + 1 == run->dst + run->len;
                }
        }
}

static struct bench_span span_of(struct subject *subject, void (*run)(struct subject *subject), uint32_t threads) {
        struct bench_mark mark = bench_begin();

        run(subject);
        return bench_end(&mark, threads);
}

/* 0 is no result */
static void print_ratio(double ratio) {
        if (ratio > 0)
                (void)printf("%.3f", ratio);
        else
                (void)printf("null");
}

/* Return: the median ratio, 0 for no result */
static double measure(struct subject *subject, enum layout layout, uint32_t threads) {
        struct bench_series ratios = { 0 }, moves = { 0 }, copies = { 0 };
        double rate = 2e-9 * (double)subject->copy_bytes;
        uint32_t dropped = 0;

        for (uint32_t r = 0; r < REPEATS; r++) {
                struct bench_span before = span_of(subject, run_copy, threads), move = span_of(subject, run_move, threads);
                struct bench_span after = span_of(subject, run_copy, threads);

                if (bench_disturbed(before.seconds, after.seconds, CKV_MAX(before.stolen, after.stolen))) {
                        dropped++;
                        continue;
                }
                bench_add(&ratios, (before.seconds + after.seconds) / 2 / move.seconds);
                bench_add(&moves, rate / move.seconds);
                bench_add(&copies, rate / ((before.seconds + after.seconds) / 2));
        }
        (void)printf("{\"what\": \"move\", \"layout\": \"%s\", \"run_bytes\": %u, \"threads\": %u, \"memcpy_bytes\": %lu, "
                     "\"memcpy_gb_per_s\": %.1f, \"move_gb_per_s\": %.1f, \"ratio\": ", layouts[layout].name,
                     layouts[layout].run_bytes, threads, (unsigned long)(subject->copy_bytes / threads), bench_median(&copies),
                     bench_median(&moves));
        print_ratio(bench_enough(&ratios, REPEATS) ? bench_median(&ratios) : 0);
        bench_print_counts(&ratios, bench_enough(&ratios, REPEATS), ratios.count, dropped);
        return bench_enough(&ratios, REPEATS) ? bench_median(&ratios) : 0;
}

int main(int argc, char **argv) {
        static struct subject subject;
        uint32_t most = bench_cpus();
        double gates[LAYOUTS];

        if (argc == 3 && strcmp(argv[1], "--threads") == 0)
                most = (uint32_t)strtoul(argv[2], NULL, 10);
        else if (argc != 1)
                most = 0;
        if (most < 1 || most > BENCH_THREADS_MAX)
                fail("usage: chunkkv-bench-move [--threads N]");
        srand(1);
        make_job(&subject);
        for (enum layout layout = 0; layout < LAYOUTS; layout++) {
                gates[layout] = 1e9;
                set_layout(&subject, layout);
                for (uint32_t threads = 1; threads <= most; threads += threads == 1 && most > 1 ? most - 1 : 1) {
                        double ratio;

                        if (ckv__cpu_pool_new(threads, &subject.pool) < 0)
                                fail("no threads");
                        each_word(&subject, false);
                        run_move(&subject);
                        each_word(&subject, true);
                        ratio = measure(&subject, layout, threads);
                        gates[layout] = CKV_MIN(gates[layout], ratio);
                        subject.pool = ckv__cpu_pool_free(subject.pool);
                }
        }
        (void)printf("{\"compact\": {\"ratio_20k\": ");
        print_ratio(gates[HEADS_IN_ROWS]);
        (void)printf(", \"ratio_2k5\": ");
        print_ratio(gates[ROWS_IN_HEADS]);
        (void)printf("}}\n");
        return EXIT_SUCCESS;
}
