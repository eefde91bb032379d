/*
 * Scoring on the CPU by itself, with every kernel that this machine can run:
 * identical bits whatever the threads, slices and block table (R30), and the
 * error bounds of R31 against the reference.
 */
#include "base/clock.h"
#include "base/limits.h"
#include "base/macros.h"
#include "kernels/cpu_pool.h"
#include "kernels/cpu_score.h"
#include "kernels/reference.h"
#include "tests/support_endless.h"
#include "tests/support_paths.h"
#include "tests/support_random.h"

#include <check.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

/* T[j] of the first layer of a job's first group, each step @step_usec long. */
static double *score_rows(const struct ckv_job *job, const struct ckv_cpu_path *path, uint32_t threads, uint32_t step_usec,
                          uint32_t *ret_steps) {
        const struct ckv_job_group *group = &job->groups[0];
        struct ckv_cpu_choice *choice = paths_choice(path);
        struct ckv_cpu_pool *pool;
        struct ckv_cpu_score *score;
        double *rows = calloc(group->selection.rows, sizeof(*rows));

        ck_assert_ptr_nonnull(rows);
        ck_assert_int_eq(ckv__cpu_pool_new(threads, &pool), 0);
        ck_assert_int_eq(ckv__cpu_score_new(job, group, &score), 0);
        ckv__cpu_score_begin(score, &group->layers[0]);
        *ret_steps = 1;
        while (!ckv__cpu_score_step(score, pool, choice, ckv_now_nsec() + step_usec * CKV_NSEC_PER_USEC))
                (*ret_steps)++;
        memcpy(rows, ckv__cpu_score_rows(score), group->selection.rows * sizeof(*rows));
        (void)ckv__cpu_score_free(score);
        (void)ckv__cpu_pool_free(pool);
        (void)ckv__cpu_choice_free(choice);
        return rows;
}

/* R30: any number of threads, any cut into slices, any order of blocks */
START_TEST(bits_same_for_threads_slices_tables) {
        const struct ckv_cpu_path *paths[PATHS_AT_MOST];
        uint32_t n = paths_list(paths), steps, most_steps = 0;
        struct ckv_policy asked = { .window = 40, .pool = CKV_POOL_AVG, .value_weight = CKV_WEIGHT_L2, .norm = CKV_NORM_SEEN };
        struct random_shape shape = { .groups = 1, .layers = 1, .rows = 2100, .kv_heads = 3, .per_group = 3, .dims = 64,
                                      .contiguous = true, .own_tables = true, .asked = &asked };
        size_t bytes = shape.rows * sizeof(double);

        for (uint32_t k = 0; k < n; k++) {
                struct random_job *random = random_job_new(7, &shape);
                double *first = score_rows(random->job, paths[k], 1, 60000000, &steps);

                ck_assert_uint_eq(steps, 1);
                for (uint32_t variant = 0; variant < 6; variant++) {
                        struct random_shape other = shape;
                        struct random_job *moved;
                        double *rows;

                        other.table_seed = variant;
                        moved = random_job_new(7, &other);
                        if (variant > 0)
                                ck_assert_mem_ne(random->job->groups[0].table.entries, moved->job->groups[0].table.entries,
                                                 100 * sizeof(uint32_t));
                        rows = score_rows(moved->job, paths[k], 1 + variant % 3, variant % 2 ? 100 : 5000, &steps);
                        most_steps = CKV_MAX(most_steps, steps);
                        ck_assert_msg(memcmp(first, rows, bytes) == 0, "%s, variant %u: other bits", paths[k]->name, variant);
                        free(rows);
                        (void)random_job_free(moved);
                }
                free(first);
                (void)random_job_free(random);
        }
        ck_assert_uint_gt(most_steps, 3);
}
END_TEST

/* A segment's length may depend on the shape alone, and is made of whole tiles. */
START_TEST(segment_rows_of_shapes) {
        ck_assert_uint_eq(ckv__cpu_segment_rows(1, 1), 256);
        ck_assert_uint_eq(ckv__cpu_segment_rows(128, 128), 256);
        ck_assert_uint_eq(ckv__cpu_segment_rows(129, 128), 128);
        ck_assert_uint_eq(ckv__cpu_segment_rows(128 * 256, 576), 64);
        ck_assert_uint_eq(CKV_CPU_DIMS_MAX, CKV_LIMIT_HEAD_DIM);
}
END_TEST

/* |F[u] - R[u]| <= rtol * |R[u]| + atol for each unit and each row. Return: the largest relative difference. */
static double compare_scores(const struct random_job *random, const struct ckv_cpu_path *path, uint64_t seed) {
        const struct ckv_job *job = random->job;
        const struct ckv_job_group *group = &job->groups[0];
        uint32_t rows = group->selection.rows, steps;
        double *fast = score_rows(job, path, 1, 60000000, &steps), *slow = calloc(rows, sizeof(*slow)), worst = 0;
        float *units[2];
        uint8_t *flags = calloc(rows, 1);
        struct ckv_budget budget;
        struct ckv_units u;

        ck_assert(slow && flags);
        ck_assert_int_eq(ckv_ref_score_rows(job, group, &group->layers[0], slow), 0);
        ck_assert_int_eq(ckv_select_budget(&group->selection, flags, &budget), 0);
        ck_assert_int_eq(ckv_units_init(&u, &group->selection, flags), 0);
        for (uint32_t i = 0; i < 2; i++) {
                units[i] = calloc((size_t)u.count + 1, sizeof(float));
                ck_assert_ptr_nonnull(units[i]);
                ckv_ref_unit_scores(&group->policy, &u, rows, i ? slow : fast, units[i]);
        }
        for (uint32_t i = 0; i < u.count + rows; i++) {
                double f = i < rows ? fast[i] : (double)units[0][i - rows], r = i < rows ? slow[i] : (double)units[1][i - rows];

                ck_assert_msg(fabs(f - r) <= 1e-4 * fabs(r) + 1e-30, "%s, job %u: score %u is %g instead of %g", path->name,
                              (unsigned)seed, i, f, r);
                if (r > 1e-12)
                        worst = CKV_MAX(worst, fabs(f - r) / r);
        }
        ckv_units_deinit(&u);
        free(units[0]);
        free(units[1]);
        free(flags);
        free(slow);
        free(fast);
        return worst;
}

START_TEST(scores_within_r31) {
        const struct ckv_cpu_path *paths[PATHS_AT_MOST];
        uint32_t n = paths_list(paths), tried = 0;

        for (uint32_t k = 0; k < n; k++) {
                double worst = 0;

                tried = 0;
                for (uint64_t seed = 200; seed < 290; seed++) {
                        struct random_shape shape = { .groups = 1, .layers = 1 };
                        struct random_job *random = random_job_new(seed, &shape);
                        const struct ckv_job_group *group = &random->job->groups[0];
                        struct ckv_budget budget;

                        /* with contrast the bound is another one: test_scorers_random */
                        if (group->policy.window < group->selection.rows && group->policy.scorer == CKV_SCORER_WINDOW &&
                            !(group->policy.given & CKV_GIVEN_CONTRAST_FIRST) &&
                            ckv_select_budget(&group->selection, NULL, &budget) == 0) {
                                worst = CKV_MAX(worst, compare_scores(random, paths[k], seed));
                                tried++;
                        }
                        (void)random_job_free(random);
                }
                printf("%s: worst relative error of a score %.2g\n", paths[k]->name, worst);
                ck_assert_uint_gt(tried, 20);
        }
}
END_TEST

/* The widest pool looks 15 rows over the borders of the stretches that rows are folded in. */
START_TEST(pools_across_stretches) {
        for (uint32_t pool = CKV_POOL_AVG; pool <= CKV_POOL_MAX; pool++) {
                struct ckv_policy asked = { .window = 4, .chunk = 1, .pool = pool, .pool_size = 31 };
                struct random_shape shape = { .groups = 1, .layers = 1, .rows = 1100, .dims = 8, .asked = &asked, .no_ties = true };
                struct random_job *random = random_job_new(31, &shape);

                (void)compare_scores(random, paths_widest(), 31);
                (void)random_job_free(random);
        }
}
END_TEST

/* More heads than a band holds: eight equal heads score exactly eight times what one scores. */
START_TEST(bands_add_up) {
        double *t[2];
        uint32_t steps, rows = 300000;

        for (uint32_t i = 0; i < 2; i++) {
                struct endless e;
                struct ckv_job_group *group;

                endless_init(&e, rows, 16, 0);
                group = &e.job->groups[0];
                group->policy.window = 1;
                group->policy.softcap = 0;
                group->head_dim_k = 4;
                group->kv_heads = i ? 8 : 1;
                group->q_heads = 16 * group->kv_heads;
                e.job->queries.rows = 1;
                t[i] = score_rows(e.job, paths_widest(), 2, 2000, &steps);
                endless_deinit(&e);
        }
        for (uint32_t j = 0; j < rows; j++)
                ck_assert(t[0][j] > 0 && t[1][j] == 8 * t[0][j]);
        free(t[0]);
        free(t[1]);
}
END_TEST

/* raw_qk: 1e-5 of the sum of absolute products. Sums over heads and no pools, so that sum is easy to write down. */
START_TEST(products_within_r31) {
        const struct ckv_cpu_path *paths[PATHS_AT_MOST];
        uint32_t n = paths_list(paths), steps;
        struct ckv_policy asked = { .scorer = CKV_SCORER_RAW_QK, .window = 24 };
        struct random_shape shape = { .groups = 1, .layers = 1, .rows = 300, .kv_heads = 2, .per_group = 2, .dims = 96, .asked = &asked };
        struct random_job *random = random_job_new(5, &shape);
        const struct ckv_job_group *group = &random->job->groups[0];
        double slow[300], absolute[300] = { 0 };
        float key[96], query[96];

        ck_assert_int_eq(ckv_ref_score_rows(random->job, group, &group->layers[0], slow), 0);
        for (uint32_t j = 0; j < 300; j++)
                for (uint32_t h = 0; h < 4; h++)
                        for (uint32_t t = 0; t < 24; t++) {
                                ckv_ref_load(&group->layers[0].k, &group->table, j, h / 2, key);
                                ckv_ref_load_query(random->job, group, &group->layers[0], random->job->queries.rows - 24 + t, h, query);
                                for (uint32_t x = 0; x < 96; x++)
                                        absolute[j] += fabs((double)key[x] * (double)query[x]);
                        }
        for (uint32_t k = 0; k < n; k++) {
                double *fast = score_rows(random->job, paths[k], 1, 60000000, &steps);

                for (uint32_t j = 0; j < 300; j++)
                        ck_assert_msg(fabs(fast[j] - slow[j]) <= 1e-5 * absolute[j], "%s, row %u", paths[k]->name, j);
                free(fast);
        }
        (void)random_job_free(random);
}
END_TEST

/* One query of 1 against keys of one dimension: weights are 2^key, and the bound is the one of R31 for exp. */
static void weigh(const struct ckv_cpu_path *path, const float *keys, uint32_t count, float cap, float *ret_weights) {
        const float query[CKV_CPU_BLOCK] = { 1 }, max = 0, inverse = 1;
        const uint32_t entry = 0, low = 0;
        struct ckv_plane k = {
                .base = (uint8_t *)(uintptr_t)keys, .token = { .tile = 1, .outer = 4 }, .dim = { .tile = 1, .outer = 4 },
                .dtype = CKV_DTYPE_F32, .dims = 1, .scale = 1,
        };
        struct ckv_row_table table = { .entries = &entry, .tokens_per_block = count };
        struct ckv_cpu_segment segment = {
                .k = &k, .table = &table, .rows = count, .dims = 1, .queries = query, .query_count = 1, .window = 1, .low = &low,
                .high = &count, .cap = cap, .scratch = aligned_alloc(CKV_CPU_ALIGN, CKV_CPU_SCRATCH_FLOATS * sizeof(float)),
        };

        ck_assert_ptr_nonnull(segment.scratch);
        path->kernel->weights(&segment, &max, &inverse, ret_weights, count, NULL, NULL);
        free(segment.scratch);
}

START_TEST(exponential_within_r31) {
        enum { N = 4096 };
        static float keys[N], weights[N];
        const struct ckv_cpu_path *paths[PATHS_AT_MOST];
        uint32_t n = paths_list(paths);

        for (uint32_t i = 0; i < N; i++)
                keys[i] = -126.0f * (float)i / N;
        for (uint32_t k = 0; k < n; k++) {
                double worst = 0;

                weigh(paths[k], keys, N, 0, weights);
                for (uint32_t i = 0; i < N; i++)
                        worst = CKV_MAX(worst, fabs((double)weights[i] / exp2((double)keys[i]) - 1));
                printf("%s: relative error of the exponential %.2g\n", paths[k]->name, worst);
                ck_assert_double_le(worst, 0x1p-20);
        }
}
END_TEST

START_TEST(exponential_at_the_edges) {
        static const float keys[8] = { 0, -126.75f, -1e30f, -INFINITY, NAN, -0.5f, -0.0f, -126.0f };
        const struct ckv_cpu_path *paths[PATHS_AT_MOST];
        uint32_t n = paths_list(paths);

        for (uint32_t k = 0; k < n; k++) {
                float weights[8];

                weigh(paths[k], keys, 8, 0, weights);
                ck_assert(weights[0] == 1 && weights[6] == 1 && weights[7] == 0x1p-126f);
                ck_assert(weights[1] == 0 && weights[2] == 0 && weights[3] == 0);
                ck_assert(isnan(weights[4]));
        }
}
END_TEST

/* The soft cap: 2^(cap * tanh(key)), and a cap is not there to hide a NaN. */
START_TEST(softcap_of_logits) {
        enum { N = 1000 };
        static float keys[N], weights[N];
        const struct ckv_cpu_path *paths[PATHS_AT_MOST];
        uint32_t n = paths_list(paths);

        for (uint32_t i = 0; i < N; i++)
                keys[i] = -4.0f * (float)i / N;
        keys[N - 1] = NAN;
        keys[N - 2] = -INFINITY;
        for (uint32_t k = 0; k < n; k++) {
                weigh(paths[k], keys, N, 60, weights);
                for (uint32_t i = 0; i < N - 1; i++)
                        ck_assert_double_le(fabs((double)weights[i] / exp2(60 * tanh((double)keys[i])) - 1), 2e-5);
                ck_assert(isnan(weights[N - 1]));
        }
}
END_TEST

static void count_item(void *context, uint32_t item, float *scratch) {
        _Atomic uint32_t *counts = context;

        scratch[0] = (float)item;
        atomic_fetch_add(&counts[item], 1);
}

/* Every item once; what is left when the time is up is a tail. */
START_TEST(pool_does_each_item_once) {
        enum { N = 200 };
        static _Atomic uint32_t counts[N];
        struct ckv_cpu_pool *pool;

        ck_assert_int_eq(ckv__cpu_pool_new(3, &pool), 0);
        for (uint32_t round = 0; round < 40; round++) {
                uint32_t at = 0, runs = 0;

                for (; at < N; runs++) {
                        uint32_t next = ckv__cpu_pool_run(pool, count_item, counts, at, N, round % 2 ? UINT64_MAX : ckv_now_nsec() + 5000);

                        ck_assert_uint_gt(next, at);
                        for (uint32_t i = 0; i < N; i++)
                                ck_assert_uint_eq(counts[i], round + (i < next));
                        at = next;
                }
                ck_assert(round % 2 == 0 || runs == 1);
        }
        ck_assert_uint_eq(ckv__cpu_pool_run(pool, count_item, counts, N, N, 0), N);
        ck_assert_uint_eq(ckv__cpu_pool_run(pool, count_item, counts, 0, N, 0), 1);
        (void)ckv__cpu_pool_free(pool);
}
END_TEST

int main(void) {
        Suite *suite = suite_create("cpu_score");
        TCase *tcase = tcase_create("scores");
        SRunner *runner = srunner_create(suite);
        int failed;

        suite_add_tcase(suite, tcase);
        tcase_set_timeout(tcase, 300);
        tcase_add_test(tcase, bits_same_for_threads_slices_tables);
        tcase_add_test(tcase, segment_rows_of_shapes);
        tcase_add_test(tcase, scores_within_r31);
        tcase_add_test(tcase, pools_across_stretches);
        tcase_add_test(tcase, bands_add_up);
        tcase_add_test(tcase, products_within_r31);
        tcase_add_test(tcase, exponential_within_r31);
        tcase_add_test(tcase, exponential_at_the_edges);
        tcase_add_test(tcase, softcap_of_logits);
        tcase_add_test(tcase, pool_does_each_item_once);
        srunner_run_all(runner, CK_NORMAL);
        failed = srunner_ntests_failed(runner);
        srunner_free(runner);
        return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
