/*
 * Scoring beside its floor.  A repetition of one path is
 *
 *     products, read K, exponentials, score, products
 *
 * each of the four loops as much as the job needs of it, so products take about
 * as long as the work they are compared with, and their two times say whether
 * the machine was the same before and after.  The paths follow one another
 * inside each repetition: what is said of one path against another comes from
 * pairs of neighbours in time.
 *
 * floor_ratio = (read + products + exponentials) / score, peak_ratio = products
 * / score.  What is no sum of weights has the reading alone for a floor.
 */
#include "bench/score.h"

#include "base/macros.h"
#include "bench/check.h"
#include "bench/device.h"
#include "bench/loops.h"
#include "bench/measure.h"

#include <stdio.h>
#include <string.h>

enum {
        PATHS_MAX = 8,
        SCALAR_TOKENS_MAX = 8192,
        ATTEMPTS = 3,                   /* for each repetition that is asked for: some are dropped */
};

/* One path, and what was seen of it; a repetition that was dropped has 0 in times. */
struct runner {
        const struct ckv_cpu_path *path;
        const struct bench_loops *loops;
        struct bench_device device;
        double times[BENCH_REPEATS_MAX];
        struct bench_series score, select, products, read, exponentials, floor_ratio, peak_ratio;
        uint32_t dropped;
};

/* What one thread of a loop does. */
struct share {
        const struct bench_loops *loops;
        const uint8_t *keys;
        size_t bytes;
        uint64_t rounds;
};

static void do_products(void *context, uint32_t id, uint32_t threads) {
        const struct share *share = context;

        (void)id;
        (void)threads;
        share->loops->products(share->rounds);
}

static void do_exponentials(void *context, uint32_t id, uint32_t threads) {
        const struct share *share = context;

        (void)id;
        (void)threads;
        share->loops->exponentials(share->rounds);
}

static void do_read(void *context, uint32_t id, uint32_t threads) {
        static volatile uint64_t seen;
        const struct share *share = context;
        size_t part = share->bytes / threads / 256 * 256;

        seen = bench_read(share->keys + id * part, part);
        (void)seen;
}

static struct bench_span run_rounds(uint32_t threads, bench_work work, const struct bench_loops *loops, double amount, double of_round) {
        struct share share = { .loops = loops, .rounds = (uint64_t)(amount / of_round / threads) };

        return bench_run(threads, work, &share);
}

static void attempt(struct runner *runner, const struct bench_problem *problem, uint32_t number) {
        uint32_t threads = runner->device.threads, turn = 2 * number;
        double flops = bench_problem_flops(problem), exponentials = bench_problem_exponentials(problem), layers = problem->layers;
        struct share keys = { .keys = bench_problem_keys(problem, turn), .bytes = problem->layers * problem->layer_bytes };
        struct ckv_job *job = bench_problem_job(problem, turn + 1);
        const struct bench_loops *loops = runner->loops;
        bool weights = bench_has_weights(problem->of);
        struct bench_span before, read, exps = { 0 }, after;
        struct bench_plan_times work;
        double products;

        before = weights ? run_rounds(threads, do_products, loops, flops, loops->flops_of_round) : bench_run(threads, do_read, &keys);
        read = bench_run(threads, do_read, &keys);
        if (weights)
                exps = run_rounds(threads, do_exponentials, loops, exponentials, loops->exponentials_of_round);
        work = bench_device_plan(&runner->device, job);
        after = weights ? run_rounds(threads, do_products, loops, flops, loops->flops_of_round) : bench_run(threads, do_read, &keys);
        (void)ckv_job_free(job);
        runner->times[number] = 0;
        if (bench_disturbed(before.seconds, after.seconds,
                            CKV_MAX(CKV_MAX(before.stolen, after.stolen), CKV_MAX(work.stolen, CKV_MAX(read.stolen, exps.stolen))))) {
                runner->dropped++;
                return;
        }
        products = weights ? (before.seconds + after.seconds) / 2 : 0;
        runner->times[number] = work.score;
        bench_add(&runner->score, work.score);
        bench_add(&runner->select, work.select);
        bench_add(&runner->read, read.seconds / layers);
        bench_add(&runner->exponentials, exps.seconds / layers);
        bench_add(&runner->products, products / layers);
        bench_add(&runner->floor_ratio, (products + read.seconds + exps.seconds) / layers / work.score);
        bench_add(&runner->peak_ratio, products / layers / work.score);
}

/* Rounds over all paths until each has its repetitions, or too many were dropped */
static void measure(struct runner *runners, uint32_t count, const struct bench_problem *problem, uint32_t repeats) {
        uint32_t attempts = CKV_MIN(ATTEMPTS * repeats, BENCH_REPEATS_MAX);
        bool enough = false;

        for (uint32_t n = 0; n < attempts && !enough; n++) {
                enough = true;
                for (uint32_t i = 0; i < count; i++) {
                        attempt(&runners[i], problem, n);
                        enough = enough && runners[i].score.count >= repeats;
                }
        }
}

/* How many times longer @a takes than @b, by repetitions that count for both; 0 if there are too few. */
static double times_longer(const struct runner *a, const struct runner *b, uint32_t repeats) {
        struct bench_series ratios = { 0 };

        for (uint32_t i = 0; i < BENCH_REPEATS_MAX; i++)
                if (a->times[i] > 0 && b->times[i] > 0)
                        bench_add(&ratios, a->times[i] / b->times[i]);
        return bench_enough(&ratios, repeats) ? bench_median(&ratios) : 0;
}

static const struct runner *runner_of(const struct runner *runners, uint32_t count, const char *path) {
        for (uint32_t i = 0; i < count; i++)
                if (strcmp(runners[i].path->name, path) == 0)
                        return &runners[i];
        return NULL;
}

static void print_ratio(const char *name, double ratio) {
        if (ratio > 0)
                (void)printf(", \"%s\": %.4f", name, ratio);
        else
                (void)printf(", \"%s\": null", name);
}

static void print_row(const struct bench_problem *problem, const struct runner *runner, const struct runner *picked,
                      const struct runner *fma, uint32_t repeats) {
        const struct bench_case *c = problem->of;
        bool enough = bench_enough(&runner->score, repeats), weights = bench_has_weights(c);
        double ms = enough ? 1e3 : 0;
        uint32_t group = c->q_heads / c->kv_heads;

        (void)printf("{\"model\": \"%s\", \"what\": \"%s\", \"main\": %s, \"tokens\": %u, \"threads\": %u, \"window\": %u, "
                     "\"group\": %u, \"queries\": %u, \"chunk\": %u, \"profile\": \"%s\", \"dtype\": \"%s\", \"layout\": \"%s\", \"head_dim\": %u, "
                     "\"layers\": %u, \"path\": \"%s\", \"picked\": %s",
                     c->model, c->what, c->main ? "true" : "false", problem->tokens, runner->device.threads, problem->query_rows,
                     group, bench_has_queries(c) ? group * problem->query_rows : 0, c->chunk, c->profile, bench_dtype_name(c->dtype),
                     bench_layout_name(c->layout), c->dims, problem->layers, runner->path->name, runner == picked ? "true" : "false");
        print_ratio("score_ms", ms * bench_median(&runner->score));
        print_ratio("score_best_ms", ms * bench_quantile(&runner->score, 0));
        print_ratio("select_ms", ms * bench_median(&runner->select));
        print_ratio("read_ms", ms * bench_median(&runner->read));
        print_ratio("products_ms", ms * bench_median(&runner->products));
        print_ratio("exponentials_ms", ms * bench_median(&runner->exponentials));
        print_ratio("floor_ratio", enough ? bench_median(&runner->floor_ratio) : 0);
        print_ratio("peak_ratio", enough && weights ? bench_median(&runner->peak_ratio) : 0);
        print_ratio("times_faster_than_avx512", fma ? times_longer(fma, runner, repeats) : 0);
        print_ratio("picked_over_this", picked ? times_longer(picked, runner, repeats) : 0);
        bench_print_counts(&runner->floor_ratio, enough, runner->score.count, runner->dropped);
}

/* Would the path run the same code as one that is there already? Its window kernel is what tells it apart, where it has a say. */
static bool is_another(const struct bench_case *c, const struct ckv_cpu_path *path, const struct runner *runners, uint32_t count) {
        if (path->window && bench_has_queries(c) && path->window->takes(c->dtype, c->dtype, c->dims))
                return false;
        for (uint32_t i = 0; i < count; i++)
                if (runners[i].path->kernel == path->kernel)
                        return true;
        return false;
}

/* Return: how many runners there are */
static uint32_t open_runners(const struct bench_problem *problem, uint32_t threads, const struct ckv_cpu_path *picked,
                             struct runner *ret_runners) {
        size_t path_count;
        const struct ckv_cpu_path *paths = ckv__cpu_paths(&path_count);
        uint32_t count = 0;

        for (size_t i = 0; i < path_count && count < PATHS_MAX; i++) {
                bool scalar = strcmp(paths[i].name, "scalar") == 0;
                struct runner *runner = &ret_runners[count];

                /* the slow one is in the table for one shape, so that the others have something to be faster than; longer it would
                   take minutes of a table, for a time that grows with the rows */
                if (scalar && &paths[i] != picked && (problem->tokens > SCALAR_TOKENS_MAX || problem->of != bench_cases))
                        continue;
                if (&paths[i] != picked && is_another(problem->of, &paths[i], ret_runners, count))
                        continue;
                *runner = (struct runner){ .path = &paths[i], .loops = bench_loops_of(paths[i].name) };
                if (runner->loops && bench_device_open(paths[i].name, threads, 0, &runner->device))
                        count++;
        }
        return count;
}

void bench_print_paths(void) {
        size_t count;
        const struct ckv_cpu_path *paths = ckv__cpu_paths(&count);

        for (size_t i = 0; i < count; i++)
                if (paths[i].usable())
                        (void)printf("%s\n", paths[i].name);
}

bool bench_score(const struct bench_case *c, uint32_t tokens, uint32_t threads, const struct ckv_cpu_choice *choice,
                 const struct bench_pool *pool, const struct bench_options *options) {
        uint32_t layers = bench_problem_layers(c, tokens, options->job_tokens, pool->size), group = c->q_heads / c->kv_heads, count;
        const struct ckv_cpu_path *pick;
        struct runner runners[PATHS_MAX];
        struct bench_problem problem;
        const struct runner *picked;
        bool right = true;

        pick = ckv__cpu_choice_path(choice, c->dtype, c->dtype, c->dims, bench_has_queries(c) ? group * c->window : 0);
        bench_problem_init(c, tokens, layers, pool, &problem);
        count = open_runners(&problem, threads, pick, runners);
        for (uint32_t i = 0; i < count && options->check; i++)
                right = bench_check(&runners[i].device, runners[i].path->name, c, pool) && right;
        if (right)
                measure(runners, count, &problem, options->repeats);
        picked = runner_of(runners, count, pick->name);
        for (uint32_t i = 0; i < count; i++) {
                if (right)
                        print_row(&problem, &runners[i], picked, runner_of(runners, count, "avx512"), options->repeats);
                bench_device_close(&runners[i].device);
        }
        bench_problem_deinit(&problem);
        return right;
}
