/*
 * The ways through the scorer window on the CPU: which layer goes which way,
 * line by line of the table in kernels/cpu_scheme.h, and what comes out of the
 * one-pass way, unit scores, held to the reference on every path that this
 * machine can take.
 */
#include "base/clock.h"
#include "base/macros.h"
#include "kernels/cpu_pool.h"
#include "kernels/cpu_scheme.h"
#include "kernels/cpu_score.h"
#include "kernels/reference.h"
#include "kernels/scores.h"
#include "tests/support_paths.h"
#include "tests/support_random.h"

#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PANEL = 256 };

static bool take_bf16(enum ckv_dtype keys, enum ckv_dtype queries, uint32_t dims) {
        return keys == CKV_DTYPE_BF16 && queries != CKV_DTYPE_NONE && dims <= 128;
}

static const struct ckv_cpu_window_kernel any_kernel = { .name = "any", .takes = take_bf16 };

/* A job of one layer whose keys every line of the table but the last can do something with */
static struct random_job *job_of(const struct ckv_policy *asked) {
        struct random_shape shape = { .groups = 1, .layers = 1, .rows = 400, .dims = 64, .dtype = CKV_DTYPE_BF16,
                                      .contiguous = true, .asked = asked };
        struct random_job *random = random_job_new(3, &shape);

        random->job->groups[0].layers[0].lse = NULL;
        random->job->groups[0].layers[0].k.scale = 1;
        random->job->groups[0].scores = (struct ckv_job_scores){ 0 };
        random->job->groups[0].want_mass = false;
        return random;
}

static enum ckv_cpu_scheme scheme_of(const struct random_job *random, uint32_t units) {
        const struct ckv_job_group *group = &random->job->groups[0];

        return ckv__cpu_scheme(random->job, group, &group->layers[0], &any_kernel, PANEL, units);
}

static void check_policy(int line, const struct ckv_policy *asked, enum ckv_cpu_scheme without, enum ckv_cpu_scheme with_lse) {
        static const uint8_t lse[1];
        struct random_job *random = job_of(asked);

        ck_assert_msg(scheme_of(random, 40) == without, "line %d", line);
        random->job->groups[0].layers[0].lse = lse;
        ck_assert_msg(scheme_of(random, 40) == with_lse, "line %d, log-sum-exp", line);
        (void)random_job_free(random);
}

#define CHECK_POLICY(without, with_lse, ...) \
        check_policy(__LINE__, &(struct ckv_policy){ .window = 8, __VA_ARGS__ }, without, with_lse)

START_TEST(table_of_policies) {
        CHECK_POLICY(CKV_CPU_UNITS_ONCE, CKV_CPU_LSE, .profile = CKV_PROFILE_DEFAULT);
        CHECK_POLICY(CKV_CPU_UNITS_ONCE, CKV_CPU_LSE, .profile = CKV_PROFILE_KVPRESS);
        CHECK_POLICY(CKV_CPU_UNITS_ONCE, CKV_CPU_LSE, .pool = CKV_POOL_AVG);
        CHECK_POLICY(CKV_CPU_UNITS_ONCE, CKV_CPU_LSE, .heads = CKV_HEADS_EACH);
        CHECK_POLICY(CKV_CPU_UNITS_ONCE, CKV_CPU_LSE, .group_heads = CKV_GROUP_MEAN);
        CHECK_POLICY(CKV_CPU_UNITS_ONCE, CKV_CPU_LSE, .unit_reduce = CKV_UNIT_SUM);
        CHECK_POLICY(CKV_CPU_UNITS_ONCE, CKV_CPU_LSE, .norm = CKV_NORM_SEEN);
        CHECK_POLICY(CKV_CPU_UNITS_ONCE, CKV_CPU_LSE, .fill = CKV_FILL_NONE);
        CHECK_POLICY(CKV_CPU_UNITS_ONCE, CKV_CPU_LSE, .sliding = 50);
        CHECK_POLICY(CKV_CPU_TWICE, CKV_CPU_LSE, .fill = CKV_FILL_BEST);
        CHECK_POLICY(CKV_CPU_TWICE, CKV_CPU_LSE, .selector = CKV_SELECTOR_CHUNK_EG);
        CHECK_POLICY(CKV_CPU_TWICE, CKV_CPU_LSE, .pool = CKV_POOL_MAX);
        CHECK_POLICY(CKV_CPU_TWICE, CKV_CPU_LSE, .heads = CKV_HEADS_MAX);
        CHECK_POLICY(CKV_CPU_TWICE, CKV_CPU_LSE, .group_heads = CKV_GROUP_MAX);
        CHECK_POLICY(CKV_CPU_TWICE, CKV_CPU_LSE, .unit_reduce = CKV_UNIT_MAX);
        CHECK_POLICY(CKV_CPU_TWICE, CKV_CPU_LSE, .value_weight = CKV_WEIGHT_L2);
        CHECK_POLICY(CKV_CPU_TWICE, CKV_CPU_LSE, .mute = 4, .given = CKV_GIVEN_MUTE);
        CHECK_POLICY(CKV_CPU_TWICE, CKV_CPU_LSE, .profile = CKV_PROFILE_RETRIEVAL);
        CHECK_POLICY(CKV_CPU_UNITS_ONCE, CKV_CPU_LSE, .softcap = 30);
        CHECK_POLICY(CKV_CPU_TWICE, CKV_CPU_LSE, .softcap = 30, .fill = CKV_FILL_BEST);
        CHECK_POLICY(CKV_CPU_TWICE, CKV_CPU_LSE, .window_reduce = CKV_ROWS_MAX, .vote_rows = 4);
        CHECK_POLICY(CKV_CPU_GENERAL, CKV_CPU_GENERAL, .scorer = CKV_SCORER_RAW_QK);
}
END_TEST

/* What the request and the cache add to it */
START_TEST(table_of_the_rest) {
        struct ckv_policy asked = { .window = 8 };
        struct random_job *random = job_of(&asked);
        struct ckv_job_group *group = &random->job->groups[0];
        struct ckv_plane *k = &group->layers[0].k;
        struct ckv_plane before = *k;
        float out[400];

        ck_assert_int_eq(scheme_of(random, 100), CKV_CPU_UNITS_ONCE);
        ck_assert_int_eq(scheme_of(random, 101), CKV_CPU_TWICE);
        ck_assert_int_eq(scheme_of(random, 0), CKV_CPU_TWICE);
        group->want_mass = true;
        ck_assert_int_eq(scheme_of(random, 40), CKV_CPU_TWICE);
        group->want_mass = false;
        group->scores = (struct ckv_job_scores){ .by_row = true, .out = (uint8_t *)out, .out_bytes = sizeof(out) };
        ck_assert_int_eq(scheme_of(random, 40), CKV_CPU_TWICE);
        group->scores.by_row = false;
        ck_assert_int_eq(scheme_of(random, 40), CKV_CPU_UNITS_ONCE);

        k->scale = 0.5f;
        ck_assert_int_eq(scheme_of(random, 40), CKV_CPU_GENERAL);
        *k = before;
        k->dim.outer = 4;
        k->dim.tile = 1;
        ck_assert_int_eq(scheme_of(random, 40), CKV_CPU_GENERAL);
        *k = before;
        k->dtype = CKV_DTYPE_F16;
        ck_assert_int_eq(scheme_of(random, 40), CKV_CPU_GENERAL);
        *k = before;
        ck_assert_int_eq(ckv__cpu_scheme(random->job, group, &group->layers[0], NULL, PANEL, 40), CKV_CPU_GENERAL);
        ck_assert_int_eq(ckv__cpu_scheme(random->job, group, &group->layers[0], &any_kernel, 7, 40), CKV_CPU_GENERAL);
        ck_assert_int_eq(ckv__cpu_scheme(random->job, group, &group->layers[0], &any_kernel, 8, 40), CKV_CPU_UNITS_ONCE);
        (void)random_job_free(random);
}
END_TEST

/* C[u] of the first layer, [score heads][N]. @ret_once: did they come from sums by unit? */
static float *unit_scores(const struct ckv_job *job, const struct ckv_cpu_path *path, const struct ckv_units *units,
                          uint32_t threads, uint32_t step_usec, bool *ret_once) {
        const struct ckv_job_group *group = &job->groups[0];
        struct ckv_cpu_choice *choice = paths_choice(path);
        uint32_t rows = group->selection.rows;
        size_t count = (size_t)ckv_score_heads(group) * units->count;
        float *scores = calloc(count + 1, sizeof(*scores));
        struct ckv_cpu_pool *pool;
        struct ckv_cpu_score *score;

        ck_assert_ptr_nonnull(scores);
        ck_assert_int_eq(ckv__cpu_pool_new(threads, &pool), 0);
        ck_assert_int_eq(ckv__cpu_score_new(job, group, &score), 0);
        ckv__cpu_score_expect_units(score, units);
        /* twice: what is made for the first layer serves the second */
        for (uint32_t round = 0; round < 2; round++) {
                ckv__cpu_score_begin(score, &group->layers[0]);
                while (!ckv__cpu_score_step(score, pool, choice, ckv_now_nsec() + step_usec * CKV_NSEC_PER_USEC))
                        ;
        }
        *ret_once = ckv__cpu_score_units(score) != NULL;
        if (*ret_once)
                memcpy(scores, ckv__cpu_score_units(score), count * sizeof(*scores));
        for (uint32_t h = 0; h < ckv_score_heads(group) && !*ret_once; h++)
                ckv_ref_unit_scores(&group->policy, units, rows, ckv__cpu_score_rows(score) + (size_t)h * rows,
                                    scores + (size_t)h * units->count);
        (void)ckv__cpu_score_free(score);
        (void)ckv__cpu_pool_free(pool);
        (void)ckv__cpu_choice_free(choice);
        return scores;
}

/* Units of a job's first group. Return: are there any to be scored? */
static bool cut_units(const struct ckv_job_group *group, struct ckv_units *ret_units) {
        uint8_t *flags = calloc(group->selection.rows + 1U, 1);
        struct ckv_budget budget;
        bool there;

        ck_assert_ptr_nonnull(flags);
        there = group->policy.window < group->selection.rows && ckv_select_budget(&group->selection, flags, &budget) == 0;
        if (there)
                ck_assert_int_eq(ckv_units_init(ret_units, &group->selection, flags), 0);
        free(flags);
        return there;
}

/* Within R31. Return: did they come from sums by unit? */
static bool check_units(const struct random_job *random, const struct ckv_cpu_path *path, const struct ckv_units *units,
                        uint64_t seed) {
        const struct ckv_job_group *group = &random->job->groups[0];
        uint32_t rows = group->selection.rows, heads = ckv_score_heads(group);
        double *t = calloc((size_t)heads * rows, sizeof(*t));
        float *want = calloc(units->count + 1U, sizeof(*want)), *got;
        bool once;

        ck_assert(t && want);
        ck_assert_int_eq(ckv_ref_score_rows(random->job, group, &group->layers[0], t), 0);
        got = unit_scores(random->job, path, units, 1, 60000000, &once);
        for (uint32_t h = 0; h < heads; h++) {
                ckv_ref_unit_scores(&group->policy, units, rows, t + (size_t)h * rows, want);
                for (uint32_t u = 0; u < units->count; u++) {
                        double f = (double)got[(size_t)h * units->count + u], r = (double)want[u];

                        ck_assert_msg(fabs(f - r) <= 1e-4 * fabs(r) + 1e-30, "%s, job %u, head %u: unit %u is %g instead of %g",
                                      path->name, (unsigned)seed, h, u, f, r);
                }
        }
        free(t);
        free(want);
        free(got);
        return once;
}

/* Any policy that units will do for: spans, positions, masks, pools, norms, sinks */
START_TEST(units_within_r31) {
        const struct ckv_cpu_path *paths[PATHS_AT_MOST];
        uint32_t count = paths_list(paths), once[PATHS_AT_MOST] = { 0 };

        for (uint64_t seed = 0; seed < (CKV_SANITIZED ? 50 : 120); seed++) {
                struct dice dice = { seed + 1 };
                struct ckv_policy asked = {
                        .profile = dice_roll(&dice, 4) ? CKV_PROFILE_DEFAULT : CKV_PROFILE_KVPRESS,
                        .window = 1 + dice_roll(&dice, 70), .chunk = 5 + dice_roll(&dice, 30),
                        .pool = CKV_POOL_NONE + dice_roll(&dice, 2), .pool_size = 1 + 2 * dice_roll(&dice, 10),
                };
                struct random_shape shape = { .groups = 1, .layers = 1, .dtype = seed % 3 ? CKV_DTYPE_BF16 : CKV_DTYPE_NONE,
                                              .rows = 100 + dice_roll(&dice, seed % 4 ? 300 : 1200), .asked = &asked };
                struct random_job *random;
                struct ckv_job_group *group;
                struct ckv_units units;

                if (asked.profile == CKV_PROFILE_DEFAULT) {
                        asked.norm = CKV_NORM_SUM + dice_roll(&dice, 3);
                        asked.heads = dice_roll(&dice, 2) ? CKV_HEADS_SUM : CKV_HEADS_EACH;
                        asked.group_heads = dice_roll(&dice, 2) ? CKV_GROUP_SUM : CKV_GROUP_MEAN;
                        asked.unit_reduce = dice_roll(&dice, 2) ? CKV_UNIT_MEAN : CKV_UNIT_SUM;
                        asked.sliding = dice_roll(&dice, 3) ? 0 : 1 + dice_roll(&dice, 300);
                        asked.softcap = dice_roll(&dice, 3) ? 0 : 5 + dice_roll(&dice, 60);
                }
                random = random_job_new(seed + 900, &shape);
                group = &random->job->groups[0];
                group->scores = (struct ckv_job_scores){ .in = group->scores.in };
                group->want_mass = false;
                if (ckv_scores_units_will_do(group, 1) && cut_units(group, &units)) {
                        for (uint32_t i = 0; i < count; i++)
                                once[i] += check_units(random, paths[i], &units, seed);
                        ckv_units_deinit(&units);
                }
                (void)random_job_free(random);
        }
        ck_assert_uint_eq(once[0], 0);
        for (uint32_t i = 1; i < count; i++) {
                printf("%s: %u jobs by unit\n", paths[i]->name, once[i]);
                ck_assert_uint_gt(once[i], CKV_SANITIZED ? 5 : 15);
        }
}
END_TEST

/* R30, and several bands and segments; every pool width, and units shorter than it */
START_TEST(bits_same_for_threads_and_slices) {
        const struct ckv_cpu_path *paths[PATHS_AT_MOST];
        uint32_t count = paths_list(paths);

        for (uint32_t variant = 0; variant < 4 * count; variant++) {
                const struct ckv_cpu_path *path = paths[variant % count];
                struct ckv_policy asked = { .window = 20, .chunk = 4 + variant / count * 9, .pool = CKV_POOL_AVG,
                                            .pool_size = 5 + variant / count * 8, .norm = CKV_NORM_SEEN };
                struct random_shape shape = { .groups = 1, .layers = 1, .rows = 2500, .kv_heads = 3, .per_group = 3, .dims = 64,
                                              .dtype = CKV_DTYPE_BF16, .contiguous = true, .asked = &asked };
                struct random_job *random = random_job_new(variant, &shape);
                const struct ckv_job_group *group = &random->job->groups[0];
                struct ckv_units units;
                bool once;

                if (cut_units(group, &units)) {
                        float *first = unit_scores(random->job, path, &units, 1, 60000000, &once);
                        float *other = unit_scores(random->job, path, &units, 3, 50, &once);

                        ck_assert_mem_eq(first, other, (size_t)ckv_score_heads(group) * units.count * sizeof(*first));
                        (void)check_units(random, path, &units, variant);
                        free(first);
                        free(other);
                        ckv_units_deinit(&units);
                }
                (void)random_job_free(random);
        }
}
END_TEST

/* The segments that a window kernel was given, in their order */
static struct ckv_cpu_window_segment walked[1000];
static uint32_t walked_count;
static const struct ckv_cpu_window_kernel *walker;

static void walk(const struct ckv_cpu_window_segment *segment, const struct ckv_cpu_window_map *map, float *ret_columns,
                 float *ret_total) {
        ck_assert_uint_lt(walked_count, CKV_ARRAY_SIZE(walked));
        walked[walked_count++] = *segment;
        walker->units(segment, map, ret_columns, ret_total);
}

/* Few queries: an item is many segments, and each names the one that comes next, so that its rows can be fetched. */
START_TEST(segments_name_the_next) {
        struct ckv_cpu_path path = *paths_widest();
        struct ckv_policy asked = { .window = 8 };
        struct random_shape shape = { .groups = 1, .layers = 1, .rows = 3000, .kv_heads = 2, .per_group = 2, .dims = 64,
                                      .dtype = CKV_DTYPE_BF16, .contiguous = true, .asked = &asked };
        struct random_job *random = random_job_new(5, &shape);
        struct ckv_cpu_window_kernel kernel;
        struct ckv_cpu_choice *choice;
        struct ckv_cpu_pool *pool;
        struct ckv_cpu_score *score;
        uint32_t named = 0;

        if (path.window) {
                walker = path.window;
                kernel = *walker;
                kernel.units = walk;
                path.window = &kernel;
                ck_assert_int_eq(ckv__cpu_choice_of(&path, 1, path.name, &choice), 0);
                ck_assert_int_eq(ckv__cpu_pool_new(1, &pool), 0);
                ck_assert_int_eq(ckv__cpu_score_new(random->job, &random->job->groups[0], &score), 0);
                ckv__cpu_score_begin(score, &random->job->groups[0].layers[0]);
                walked_count = 0;
                while (!ckv__cpu_score_step(score, pool, choice, UINT64_MAX))
                        ;
                for (uint32_t i = 0; i + 1 < walked_count; i++)
                        if (walked[i].next_rows > 0) {
                                named++;
                                ck_assert_uint_eq(walked[i].next_head, walked[i + 1].head);
                                ck_assert_uint_eq(walked[i].next_first, walked[i + 1].first);
                                ck_assert_uint_eq(walked[i].next_rows, walked[i + 1].rows);
                        }
                ck_assert_uint_gt(walked_count, 20);
                ck_assert_uint_gt(named, walked_count / 2);
                (void)ckv__cpu_score_free(score);
                (void)ckv__cpu_pool_free(pool);
                (void)ckv__cpu_choice_free(choice);
        }
        (void)random_job_free(random);
}
END_TEST

/* Small logits first and a very large one later: the reference is of no use, and the general kernel takes the layer. */
START_TEST(references_too_low) {
        const struct ckv_cpu_path *paths[PATHS_AT_MOST];
        uint32_t count = paths_list(paths);

        for (uint32_t i = 0; i < count; i++) {
                struct ckv_policy asked = { .window = 8, .scale = 0.05 };
                struct random_shape shape = { .groups = 1, .layers = 1, .rows = 700, .kv_heads = 2, .per_group = 2, .dims = 64,
                                              .dtype = CKV_DTYPE_BF16, .contiguous = true, .no_ties = true, .asked = &asked };
                struct random_job *random = random_job_new(77, &shape);
                const struct ckv_job_group *group = &random->job->groups[0];
                struct ckv_units units;

                ck_assert(cut_units(group, &units));
                ck_assert(check_units(random, paths[i], &units, i) == (paths[i]->window != NULL));
                for (uint32_t x = 0; x < 64; x++) {
                        float query[64];

                        ckv_ref_load_query(random->job, group, &group->layers[0], random->job->queries.rows - 1, 2, query);
                        random_store(random_element(group, &group->layers[0].k, 300, 1, x), CKV_DTYPE_BF16, 40 * query[x]);
                }
                ck_assert(!check_units(random, paths[i], &units, i));
                ckv_units_deinit(&units);
                (void)random_job_free(random);
        }
}
END_TEST

int main(void) {
        Suite *suite = suite_create("cpu_scheme");
        TCase *tcase = tcase_create("schemes");
        SRunner *runner = srunner_create(suite);
        int failed;

        tcase_set_timeout(tcase, 300);
        tcase_add_test(tcase, table_of_policies);
        tcase_add_test(tcase, table_of_the_rest);
        tcase_add_test(tcase, units_within_r31);
        tcase_add_test(tcase, bits_same_for_threads_and_slices);
        tcase_add_test(tcase, segments_name_the_next);
        tcase_add_test(tcase, references_too_low);
        suite_add_tcase(suite, tcase);
        srunner_run_all(runner, CK_ENV);
        failed = srunner_ntests_failed(runner);
        srunner_free(runner);
        return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
