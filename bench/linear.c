/*
 * Lengths that double up to a million rows.  A job has as many layers as make
 * all of them equally many rows, so each length takes about as long as any
 * other, and a repetition of one length is
 *
 *     shortest, this one, shortest
 *
 * whose outer two are to the one in the middle what the product loops are to a
 * score: they are what it is compared with, and say whether the machine was the
 * same before and after.
 */
#include "bench/linear.h"

#include "base/macros.h"
#include "bench/device.h"

#include <stdio.h>

enum { ATTEMPTS = 3 };                  /* for each repetition that is asked for: some are dropped */

/* One length, and what was seen of it. */
struct length {
        struct bench_problem problem;
        struct bench_series score;      /* seconds for one layer */
        struct bench_series over;       /* time for each row over that of the shortest; nothing for the shortest itself */
        uint32_t dropped;
};

static struct bench_plan_times plan(const struct bench_device *device, const struct length *length, uint32_t turn) {
        struct ckv_job *job = bench_problem_job(&length->problem, turn);
        struct bench_plan_times times = bench_device_plan(device, job);

        (void)ckv_job_free(job);
        return times;
}

static void attempt(const struct bench_device *device, struct length *shortest, struct length *length, uint32_t turn) {
        struct bench_plan_times before = plan(device, shortest, turn), work = plan(device, length, turn);
        struct bench_plan_times after = plan(device, shortest, turn);
        double beside = (before.score + after.score) / 2 / shortest->problem.tokens;

        if (bench_disturbed(before.score, after.score, CKV_MAX(work.stolen, CKV_MAX(before.stolen, after.stolen)))) {
                length->dropped++;
                shortest->dropped++;
                return;
        }
        bench_add(&shortest->score, beside * shortest->problem.tokens);
        bench_add(&length->score, work.score);
        bench_add(&length->over, work.score / length->problem.tokens / beside);
}

static void print_number(const char *name, double number) {
        if (number > 0)
                (void)printf(", \"%s\": %.4f", name, number);
        else
                (void)printf(", \"%s\": null", name);
}

static void print_length(const struct length *length, uint32_t threads, uint32_t repeats) {
        const struct bench_problem *problem = &length->problem;
        const struct bench_series *over = &length->over;
        double enough = bench_enough(&length->score, repeats);

        (void)printf("{\"model\": \"%s\", \"what\": \"%s\", \"tokens\": %u, \"threads\": %u, \"layers\": %u", problem->of->model,
                     problem->of->what, problem->tokens, threads, problem->layers);
        print_number("score_ms", enough * 1e3 * bench_median(&length->score));
        print_number("over_shortest", enough * bench_median(over));
        print_number("over_low", enough * bench_quantile(over, 0.25));
        print_number("over_high", enough * bench_quantile(over, 0.75));
        bench_print_counts(over->count > 0 ? over : &length->score, enough > 0, length->score.count, length->dropped);
}

void bench_linear(const struct bench_case *c, uint32_t most, uint32_t threads, uint32_t repeats, const struct bench_pool *pool) {
        static struct length lengths[BENCH_LENGTHS];
        struct bench_device device;

        if (!bench_device_open(NULL, threads, 0, &device))
                return;
        for (uint32_t i = 0; i < BENCH_LENGTHS; i++)
                bench_problem_init(c, most >> (BENCH_LENGTHS - 1 - i), 1 << (BENCH_LENGTHS - 1 - i), pool, &lengths[i].problem);
        for (uint32_t i = 1; i < BENCH_LENGTHS; i++)
                for (uint32_t n = 0; n < ATTEMPTS * repeats && lengths[i].score.count < repeats; n++)
                        attempt(&device, &lengths[0], &lengths[i], n);
        for (uint32_t i = 0; i < BENCH_LENGTHS; i++) {
                print_length(&lengths[i], threads, repeats);
                bench_problem_deinit(&lengths[i].problem);
        }
        bench_device_close(&device);
}
