/*
 * Scores that leave a job and come back (R5), for every backend: what is
 * written is within R31 of the reference's and ends where it must; what is
 * given back selects the same rows bit for bit; a wrong size and a NaN are
 * outcomes that say where.
 */
#include "base/macros.h"
#include "kernels/reference.h"
#include "kernels/scores.h"
#include "tests/support_gap.h"
#include "tests/support_subject.h"

#include <check.h>
#include <inttypes.h>
#include <math.h>
#include <string.h>

enum { GUARD = 64 };

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { JOBS = 16 };
#else
enum { JOBS = 60 };
#endif

/* need() - floats of the scores of a group, layers in all; 0 where nothing is scored */
static uint32_t need(const struct ckv_job_group *group, uint32_t *ret_layers) {
        uint8_t *flags = calloc(1, (size_t)group->selection.rows + 1);
        struct ckv_budget budget;
        struct ckv_units units;
        uint32_t count = 0;

        ck_assert_ptr_nonnull(flags);
        *ret_layers = group->policy.layers == CKV_LAYERS_ONE ? 1 : group->layer_count;
        if (ckv_select_budget(&group->selection, flags, &budget) == 0 && !budget.settled && !budget.refused) {
                ck_assert_int_eq(ckv_units_init(&units, &group->selection, flags), 0);
                count = group->scores.by_row ? group->selection.rows : units.count;
                ckv_units_deinit(&units);
        }
        free(flags);
        return count;
}

/* A job whose scores may travel by units: with fill = best the rows are needed too. */
static struct random_job *scored_job(uint64_t seed, bool by_row) {
        struct random_job *random = random_job_new(seed, &(struct random_shape){ .groups = 1 });
        struct ckv_job_group *group = &random->job->groups[0];

        group->scores.by_row = by_row;
        if (!by_row && group->policy.fill == CKV_FILL_BEST)
                group->policy.fill = CKV_FILL_LEAD;
        return random;
}

/* Room for scores off their natural place, with a guard behind. */
static uint8_t *give_room(struct ckv_job_group *group, uint64_t bytes) {
        uint8_t *room = malloc(bytes + GUARD + 3);

        ck_assert_ptr_nonnull(room);
        memset(room, 0xa5, bytes + GUARD + 3);
        group->scores.out = room + 3;
        group->scores.out_bytes = bytes;
        return room;
}

static void take_back(struct ckv_job_group *group, const uint8_t *bytes, uint64_t count) {
        group->scores.in = malloc(count * sizeof(float) + 1);
        ck_assert_ptr_nonnull(group->scores.in);
        memcpy(group->scores.in, bytes, count * sizeof(float));
        group->scores.in_count = count;
        for (uint32_t l = 0; l < group->layer_count; l++) {
                /* nothing of the cache may be looked at any more */
                group->layers[l].query = NULL;
                group->layers[l].k.base = NULL;
                group->layers[l].v.base = NULL;
        }
}

static void check_close(const struct ckv_job *job, const uint8_t *ours, const uint8_t *theirs, uint64_t count,
                        uint64_t seed) {
        double rtol, atol;

        gap_tolerance(job, &job->groups[0], &rtol, &atol);
        for (uint64_t i = 0; i < count; i++) {
                float r, f;

                memcpy(&r, ours + i * sizeof(r), sizeof(r));
                memcpy(&f, theirs + i * sizeof(f), sizeof(f));
                ck_assert_msg(fabs((double)f - (double)r) <= rtol * fabs((double)r) + atol,
                              "job %" PRIu64 ": score %u is %g, not %g", seed, (unsigned)i, (double)f, (double)r);
        }
        for (uint32_t i = 0; i < GUARD; i++)
                ck_assert_uint_eq(theirs[count * sizeof(float) + i], 0xa5);
}

static void same_kept(const struct ckv_job *a, const struct ckv_job *b, uint64_t seed) {
        ck_assert_uint_eq(a->groups[0].kept_count, b->groups[0].kept_count);
        for (uint32_t k = 0; k < a->groups[0].kept_count; k++) {
                const struct ckv_kept *x = &a->groups[0].kept[k], *y = &b->groups[0].kept[k];

                ck_assert_msg(x->run_count == y->run_count &&
                                      memcmp(x->runs, y->runs, x->run_count * sizeof(*x->runs)) == 0,
                              "job %" PRIu64 ", set %u: other rows kept", seed, k);
        }
}

/* followers_repeat() - layers that follow have the scores of their leader */
static void followers_repeat(const struct ckv_job_group *group, const uint8_t *scores, uint64_t count,
                             uint32_t layers) {
        for (uint32_t l = 0; layers > 1 && l < layers; l++) {
                uint32_t leader = l - l % group->policy.reuse;

                ck_assert_mem_eq(scores + l * count * sizeof(float), scores + leader * count * sizeof(float),
                                 count * sizeof(float));
        }
}

/* out_and_in() - through backend and reference, and back. Return: was anything scored? */
static bool out_and_in(const struct subject *subject, struct ckv_backend *backend, uint64_t seed, bool by_row) {
        struct random_job *reference = scored_job(seed, by_row), *fast = scored_job(seed, by_row);
        struct random_job *reference_again = scored_job(seed, by_row), *fast_again = scored_job(seed, by_row);
        struct ckv_job_group *group = &fast->job->groups[0];
        uint32_t layers, count = need(group, &layers);
        uint64_t all = (uint64_t)count * layers;
        uint8_t *rooms[2] = { give_room(&reference->job->groups[0], all * sizeof(float)),
                              give_room(group, all * sizeof(float)) };

        ck_assert_int_eq(ckv_ref_run_plan(reference->job), 0);
        subject_run(subject, backend, fast->job, CKV_STAGE_PLAN);
        (void)subject_compare_plans(subject, seed, reference->job, fast->job);
        if (count > 0 && fast->job->outcome == CKV_JOB_OK) {
                check_close(reference->job, rooms[0] + 3, rooms[1] + 3, all, seed);
                followers_repeat(group, rooms[1] + 3, count, layers);
                take_back(&fast_again->job->groups[0], rooms[1] + 3, all);
                take_back(&reference_again->job->groups[0], rooms[1] + 3, all);
                ck_assert_int_eq(ckv_ref_run_plan(reference_again->job), 0);
                subject_run(subject, backend, fast_again->job, CKV_STAGE_PLAN);
                ck_assert_int_eq(fast_again->job->outcome, CKV_JOB_OK);
                same_kept(reference_again->job, fast_again->job, seed);
                /* rows are rounded before units are formed of them, so only units come back as they went */
                if (!by_row)
                        same_kept(fast->job, fast_again->job, seed);
        } else
                ck_assert_uint_eq(rooms[1][3], 0xa5);
        for (uint32_t i = 0; i < 2; i++)
                free(rooms[i]);
        (void)random_job_free(reference);
        (void)random_job_free(reference_again);
        (void)random_job_free(fast_again);
        (void)random_job_free(fast);
        return count > 0;
}

START_TEST(out_and_in_again) {
        const struct subject *subject = &subjects[_i];
        struct ckv_backend *backend = subject_open(subject);
        uint32_t scored = 0;

        for (uint64_t seed = 1; seed <= JOBS; seed++)
                scored += out_and_in(subject, backend, 5000 + seed, seed % 2);
        (void)subject->ops->close(backend);
        ck_assert_uint_gt(scored, JOBS / 2);
}
END_TEST

/* A job of four layers in chunks of 7, with scores 0, 1, 2, ... of its own. */
static struct random_job *given_job(bool by_row, enum ckv_layers layers, uint32_t *ret_count) {
        const struct ckv_policy asked = { .window = 8, .chunk = 7, .reuse = 2, .layers = layers };
        const struct random_shape shape = {
                .groups = 1, .layers = 4, .rows = 200, .keep_ratio = 400000, .asked = &asked
        };
        struct random_job *random = random_job_new(9, &shape);
        struct ckv_job_group *group = &random->job->groups[0];
        uint32_t each;

        group->selection.span_count = 0;
        free((void *)(uintptr_t)group->selection.positions);
        group->selection.positions = NULL;
        group->scores.by_row = by_row;
        *ret_count = need(group, &each);
        group->scores.in_count = (uint64_t)*ret_count * each;
        group->scores.in = calloc(group->scores.in_count + 1, sizeof(float));
        ck_assert_ptr_nonnull(group->scores.in);
        for (uint64_t i = 0; i < group->scores.in_count; i++)
                group->scores.in[i] = (float)i;
        return random;
}

/* outcome_of() - of both the reference and a backend, which must agree */
static enum ckv_job_outcome outcome_of(struct random_job *random, struct ckv_job *ret_job) {
        const struct subject *subject = &subjects[1];
        struct ckv_backend *backend = subject_open(subject);
        struct ckv_job first;

        ck_assert_int_eq(ckv_ref_run_plan(random->job), 0);
        first = *random->job;
        for (uint32_t k = 0; k < random->job->groups[0].kept_count; k++)
                ckv_kept_deinit(&random->job->groups[0].kept[k]);
        free(random->job->groups[0].kept);
        random->job->groups[0].kept = NULL;
        random->job->groups[0].kept_count = 0;
        random->job->fail_group = random->job->fail_layer = random->job->fail_unit = UINT32_MAX;
        subject_run(subject, backend, random->job, CKV_STAGE_PLAN);
        ck_assert_int_eq(first.outcome, random->job->outcome);
        if (first.outcome == CKV_JOB_NONFINITE || first.outcome == CKV_JOB_BAD_LSE) {
                ck_assert_uint_eq(first.fail_layer, random->job->fail_layer);
                ck_assert_uint_eq(first.fail_unit, random->job->fail_unit);
        }
        if (first.outcome == CKV_JOB_SCORES_SIZE)
                ck_assert_uint_eq(first.fail_need, random->job->fail_need);
        (void)subject->ops->close(backend);
        *ret_job = *random->job;
        (void)random_job_free(random);
        return ret_job->outcome;
}

/* One float too few or too many of what comes in; too little room for what goes out. */
START_TEST(sizes_to_the_float) {
        for (uint32_t variant = 0; variant < 4; variant++) {
                bool by_row = variant % 2;
                enum ckv_layers layers = variant / 2 ? CKV_LAYERS_ONE : CKV_LAYERS_EACH;

                for (int off = -1; off <= 1; off++) {
                        uint32_t count;
                        struct random_job *in = given_job(by_row, layers, &count),
                                          *out = given_job(by_row, layers, &count);
                        struct ckv_job_group *group = &out->job->groups[0];
                        uint64_t bytes = group->scores.in_count * sizeof(float);
                        uint8_t *room = give_room(group, bytes + (uint64_t)(4 * off));
                        struct ckv_job job;

                        ck_assert_uint_eq(bytes, count * (layers == CKV_LAYERS_ONE ? 1u : 4u) * sizeof(float));
                        in->job->groups[0].scores.in_count += (uint64_t)off;
                        ck_assert_int_eq(outcome_of(in, &job), off == 0 ? CKV_JOB_OK : CKV_JOB_SCORES_SIZE);
                        if (off != 0)
                                ck_assert_uint_eq(job.fail_need, bytes);
                        /* more room than needed is fine */
                        ck_assert_int_eq(outcome_of(out, &job), off < 0 ? CKV_JOB_SCORES_SIZE : CKV_JOB_OK);
                        if (off < 0)
                                ck_assert_uint_eq(job.fail_need, bytes);
                        free(room);
                }
        }
}
END_TEST

/* R23: the first unit, on the grid, of the first layer in which a score is not finite. Rows that are protected do not
 * matter. */
START_TEST(not_finite) {
        const float bad[] = { NAN, INFINITY, -INFINITY };

        for (uint32_t i = 0; i < 3; i++) {
                uint32_t units, rows;
                struct random_job *random = given_job(false, CKV_LAYERS_EACH, &units);
                struct ckv_job job;

                random->job->groups[0].scores.in[2 * units + 4] = bad[i]; /* third layer, the second leader */
                random->job->groups[0].scores.in[2 * units + 9] = NAN;
                random->job->groups[0].scores.in[1 * units] = NAN; /* a follower's are not looked at */
                ck_assert_int_eq(outcome_of(random, &job), CKV_JOB_NONFINITE);
                ck_assert_uint_eq(job.fail_layer, 9);
                ck_assert_uint_eq(job.fail_unit, 4);

                random = given_job(true, CKV_LAYERS_EACH, &rows);
                random->job->groups[0].scores.in[37] = bad[i]; /* of chunk 5 */
                ck_assert_int_eq(outcome_of(random, &job), CKV_JOB_NONFINITE);
                ck_assert_uint_eq(job.fail_layer, 5);
                ck_assert_uint_eq(job.fail_unit, 5);

                random = given_job(true, CKV_LAYERS_ONE, &rows);
                random->job->groups[0].scores.in[0] = bad[i]; /* a sink, and a row of the window */
                random->job->groups[0].scores.in[rows - 1] = bad[i];
                ck_assert_int_eq(outcome_of(random, &job), CKV_JOB_OK);
        }
}
END_TEST

/* R40: the layer and the first query head of it whose log-sum-exp is wrong; a follower's is not looked at. */
START_TEST(wrong_log_sum_exp) {
        const struct ckv_policy asked = { .window = 4, .reuse = 2, .given = CKV_GIVEN_MIN_TOKENS };
        const struct random_shape shape = {
                .groups = 1, .layers = 3, .rows = 60, .kv_heads = 2, .per_group = 2, .dims = 8, .asked = &asked, .max_tokens = 20,
        };
        struct random_job *random = random_job_new(6, &shape);
        struct ckv_job_group *group = &random->job->groups[0];
        uint32_t rows = random->job->queries.rows;
        float *lse = malloc(4UL * rows * sizeof(*lse));
        struct ckv_job job;

        ck_assert_ptr_nonnull(lse);
        /* of rows with logits of about this size the sum of 60 of them is far from 1 */
        for (uint32_t i = 0; i < 4 * rows; i++)
                lse[i] = i < 2 * rows ? 0 : NAN;
        group->layers[1].lse = (uint8_t *)lse;
        group->layers[2].lse = (uint8_t *)lse;
        ck_assert_int_eq(outcome_of(random, &job), CKV_JOB_BAD_LSE);
        ck_assert_uint_eq(job.fail_layer, 9);
        ck_assert_uint_eq(job.fail_unit, 0);
        free(lse);
}
END_TEST

/* 0 stands for 1.0 in a plane of any dtype, and any other scale counts. */
START_TEST(scale_of_a_plane) {
        const enum ckv_dtype dtypes[] = { CKV_DTYPE_F32, CKV_DTYPE_F16, CKV_DTYPE_BF16 };
        const float scales[] = { 0, 1, 0.5f };

        for (uint32_t d = 0; d < CKV_ARRAY_SIZE(dtypes); d++) {
                const struct random_shape shape = {
                        .groups = 1, .layers = 1, .rows = 40, .dims = 8, .dtype = dtypes[d]
                };
                struct random_job *random = random_job_new(4, &shape);
                struct ckv_plane plane = random->job->groups[0].layers[0].k;
                float values[3][8];

                for (uint32_t s = 0; s < 3; s++) {
                        plane.scale = scales[s];
                        ckv_ref_load(&plane, &random->job->groups[0].table, 7, 0, values[s]);
                }
                ck_assert_mem_eq(values[0], values[1], sizeof(values[0]));
                for (uint32_t x = 0; x < 8; x++)
                        ck_assert(values[2][x] == values[1][x] * 0.5f);
                (void)random_job_free(random);
        }
}
END_TEST

/* A sink that takes all weight leaves 0 to the rows, which is legal up to the largest number; infinity over itself has no value.
 * By a window kernel where there is one, and by row with the largest weights. */
START_TEST(sinks_of_any_size) {
        const float sinks[] = { 0, 1e30f, 1e31f, 1e32f, 1e36f, 1e38f, 3.4e38f, -3.4e38f, -INFINITY, INFINITY, NAN };
        struct subject path = subjects[_i / 2];
        struct ckv_backend *backend;

        path.options.path = _i % 2 ? "scalar" : NULL;
        backend = subject_open(&path);
        for (uint32_t n = 0; n < 2 * CKV_ARRAY_SIZE(sinks); n++) {
                const struct ckv_policy asked = { .window = 4, .window_reduce = n % 2 ? CKV_ROWS_MAX : CKV_ROWS_SUM,
                                                  .given = CKV_GIVEN_MIN_TOKENS };
                const struct random_shape shape = {
                        .groups = 1, .layers = 1, .rows = 200, .kv_heads = 2, .per_group = 2, .dims = 16, .asked = &asked,
                        .dtype = CKV_DTYPE_F32, .contiguous = true, .keep_ratio = 400000,
                };
                /* of one head alone */
                const float of_heads[4] = { 0, 0, sinks[n / 2], 0.5f };
                struct random_job *reference = random_job_new(9, &shape), *fast = random_job_new(9, &shape);

                reference->job->groups[0].layers[0].sink_logits = (const uint8_t *)of_heads;
                fast->job->groups[0].layers[0].sink_logits = (const uint8_t *)of_heads;
                ck_assert_int_eq(ckv_ref_run_plan(reference->job), 0);
                ck_assert_int_eq(reference->job->outcome,
                                 sinks[n / 2] < INFINITY ? CKV_JOB_OK : CKV_JOB_NONFINITE);
                subject_run(&path, backend, fast->job, CKV_STAGE_PLAN);
                ck_assert_uint_eq(subject_compare_plans(&path, n, reference->job, fast->job), 0);
                (void)random_job_free(reference);
                (void)random_job_free(fast);
        }
        (void)path.ops->close(backend);
}
END_TEST

/* Of two groups one fits its budget: it is not moved, the other is; with a destination as well as in place. */
START_TEST(groups_that_fit_stay) {
        const struct subject *subject = &subjects[_i % SUBJECTS];
        const struct ckv_policy asked = { .window = 4 };
        const struct random_shape shape = {
                .groups = 2, .rows = 200, .keep_ratio = 300000, .asked = &asked, .copy_out = _i >= SUBJECTS
        };
        struct random_job *random = random_job_new(6, &shape), *before = random_job_new(6, &shape);
        struct ckv_backend *backend = subject_open(subject);
        uint32_t first = 0;

        random->job->groups[0].selection.keep_ratio = 1000000;
        subject_run(subject, backend, random->job, CKV_STAGE_PLAN);
        ck_assert_int_eq(random->job->outcome, CKV_JOB_OK);
        ck_assert_int_eq(random->job->groups[0].budget.kept_all, CKV_KEPT_FITS);
        subject_run(subject, backend, random->job, CKV_STAGE_MOVE);
        ck_assert_uint_eq(random->job->groups[0].bytes_moved, 0);
        ck_assert_uint_gt(random->job->groups[1].bytes_moved, 0);
        for (uint32_t l = 0; l < random->job->groups[0].layer_count; l++)
                first += random->job->groups[0].layers[l].v.base ? 2 : 1;
        for (uint32_t i = 0; i < first; i++)
                ck_assert_mem_eq(random->memory[i].bytes, before->memory[i].bytes, random->memory[i].size);
        ck_assert_mem_ne(random->memory[first].bytes, before->memory[first].bytes, random->memory[first].size);
        (void)subject->ops->close(backend);
        (void)random_job_free(random);
        (void)random_job_free(before);
}
END_TEST

int main(void) {
        Suite *suite = suite_create("conformance_scores");
        TCase *tcase = tcase_create("scores");
        SRunner *runner = srunner_create(suite);
        int failed;

        suite_add_tcase(suite, tcase);
        tcase_set_timeout(tcase, 300);
        tcase_add_loop_test(tcase, out_and_in_again, 0, SUBJECTS);
        tcase_add_test(tcase, sizes_to_the_float);
        tcase_add_test(tcase, not_finite);
        tcase_add_test(tcase, wrong_log_sum_exp);
        tcase_add_test(tcase, scale_of_a_plane);
        tcase_add_loop_test(tcase, sinks_of_any_size, 0, 2 * SUBJECTS);
        tcase_add_loop_test(tcase, groups_that_fit_stay, 0, 2 * SUBJECTS);
        srunner_run_all(runner, CK_NORMAL);
        failed = srunner_ntests_failed(runner);
        srunner_free(runner);
        return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
