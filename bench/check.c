/*
 * A path that is fast and wrong is not measured.  What is compared are the
 * scores of units, which is what selection sees: R31 allows a relative error
 * of 1e-4.  The reference is remembered, so several paths of a case cost it
 * once.
 */
#include "bench/check.h"

#include "base/macros.h"
#include "kernels/reference.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TOKENS = 1024 };
static const double ERROR_MAX = 1e-4;

/* Room for the scores of one layer, by unit or row and by head. */
static float *room_for_scores(const struct bench_case *c) {
        float *scores = calloc((size_t)TOKENS * c->kv_heads, sizeof(*scores));

        if (!scores) {
                (void)fprintf(stderr, "no memory for scores\n");
                exit(EXIT_FAILURE);
        }
        return scores;
}

static struct ckv_job *job_with_scores(const struct bench_problem *problem, float *scores) {
        struct ckv_job *job = bench_problem_job(problem, 0);

        job->groups[0].scores.out = (uint8_t *)scores;
        job->groups[0].scores.out_bytes = (uint64_t)TOKENS * problem->of->kv_heads * sizeof(*scores);
        return job;
}

/* The reference's scores of the last case that was asked for. */
static const float *reference_of(const struct bench_case *c, const struct bench_problem *problem) {
        static const struct bench_case *known;
        static float *scores;
        struct ckv_job *job;

        if (known == c)
                return scores;
        free(scores);
        scores = room_for_scores(c);
        job = job_with_scores(problem, scores);
        (void)ckv_ref_run_plan(job);
        if (job->outcome != CKV_JOB_OK) {
                (void)fprintf(stderr, "%s: the reference ends with outcome %d\n", c->what, (int)job->outcome);
                exit(EXIT_FAILURE);
        }
        (void)ckv_job_free(job);
        known = c;
        return scores;
}

bool bench_check(const struct bench_device *device, const char *path, const struct bench_case *c, const struct bench_pool *pool) {
        struct bench_problem problem;
        float *scores = room_for_scores(c);
        const float *right;
        struct ckv_job *job;
        double worst = 0, squares = 0;

        bench_problem_init(c, TOKENS, 1, pool, &problem);
        right = reference_of(c, &problem);
        job = job_with_scores(&problem, scores);
        (void)bench_device_plan(device, job);
        for (size_t i = 0; i < (size_t)TOKENS * c->kv_heads; i++)
                squares += (double)right[i] * (double)right[i];
        for (size_t i = 0; i < (size_t)TOKENS * c->kv_heads; i++) {
                double error = fabs((double)scores[i] - (double)right[i]);
                /* bare products add up to anything, also to almost 0 */
                double size = c->asked.scorer == CKV_SCORER_RAW_QK ? sqrt(squares / TOKENS) : fabs((double)right[i]);

                if (!(error <= worst * size))
                        worst = error / size;
        }
        (void)ckv_job_free(job);
        bench_problem_deinit(&problem);
        free(scores);
        if (worst <= ERROR_MAX)
                return true;
        (void)fprintf(stderr, "%s, %s: scores differ from the reference by %.1e, allowed are %.0e\n", path, c->what, worst, ERROR_MAX);
        return false;
}
