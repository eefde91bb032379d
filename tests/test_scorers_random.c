/*
 * Every way of scoring on random caches of any layout and type: the CPU path
 * against the reference within R31, with each kernel that this machine can
 * run; identical bits whatever the threads, slices and block table (R30); and
 * what a NaN reaches (R23).  Bytes that are no element of the sequence are NaN
 * throughout, so whoever reads past L is found out (R34).
 */
#include "base/clock.h"
#include "base/macros.h"
#include "kernels/cpu_pool.h"
#include "kernels/cpu_score.h"
#include "kernels/reference.h"
#include "kernels/reference_block.h"
#include "tests/support_paths.h"
#include "tests/support_random.h"

#include <check.h>
#include <math.h>
#include <string.h>

/* A way of scoring. Tolerance: |F - R| <= rtol * |R| + atol, and with contrast rtol of the score without it. */
struct way {
        const char *name;
        struct ckv_policy policy;       /* set over a resolved one where not 0 */
        double rtol, atol;
        bool lse, sinks, ends;
};

#define CONTRAST(first, end) \
        .given = CKV_GIVEN_CONTRAST_FIRST | CKV_GIVEN_CONTRAST_END, .contrast_first = (first), .contrast_end = (end)

#define ATTENTION .rtol = 1e-4, .atol = 1e-30
#define DOUBLE .rtol = 1e-9             /* computed in binary64 in both paths */
#define VOTES .vote_rows = 8, .window_reduce = CKV_ROWS_MAX, .mute = 4

static const struct way ways[] = {
        { "knorm", { .scorer = CKV_SCORER_KNORM }, DOUBLE },
        { "knorm pooled", { .scorer = CKV_SCORER_KNORM, .pool = CKV_POOL_AVG, .pool_size = 31, .heads = CKV_HEADS_MAX }, DOUBLE },
        { "keydiff", { .scorer = CKV_SCORER_KEYDIFF }, DOUBLE, .atol = 1e-9 },
        { "keydiff each", { .scorer = CKV_SCORER_KEYDIFF, .heads = CKV_HEADS_EACH, .pool = CKV_POOL_MAX }, DOUBLE, .atol = 1e-9 },
        { "vk_ratio", { .scorer = CKV_SCORER_VK_RATIO, .value_weight = CKV_WEIGHT_L2 }, DOUBLE },
        { "lagkv", { .scorer = CKV_SCORER_LAGKV, .heads = CKV_HEADS_EACH }, .rtol = 0 },
        { "drop", { .scorer = CKV_SCORER_DROP, .window = 13 }, DOUBLE, .atol = 1e-30 },
        { "drop sliding", { .scorer = CKV_SCORER_DROP, .window = 3, .sliding = 40, .softcap = 5, .heads = CKV_HEADS_MAX },
          DOUBLE, .atol = 1e-30, .sinks = true },
        { "lse", { .window = 32 }, ATTENTION, .lse = true },
        { "lse each", { .window = 7, .heads = CKV_HEADS_EACH, .pool = CKV_POOL_MAX, .softcap = 20 }, ATTENTION, .lse = true },
        { "lse sliding", { .window = 20, .sliding = 33, .norm = CKV_NORM_SEEN }, ATTENTION, .lse = true, .sinks = true },
        { "sinks", { .window = 32, .norm = CKV_NORM_MEAN }, ATTENTION, .sinks = true },
        { "most", { .window = 24, .window_reduce = CKV_ROWS_MAX, .group_heads = CKV_GROUP_MAX }, ATTENTION },
        { "vote", { .profile = CKV_PROFILE_VOTE, .window = 64, VOTES, CONTRAST(32, 64),
                    .pool = CKV_POOL_MAX, .pool_size = 21, .recent = 4, .group_heads = CKV_GROUP_MAX, .heads = CKV_HEADS_MAX },
          ATTENTION },
        { "vote lse", { .window = 40, VOTES, CONTRAST(32, 40) }, ATTENTION, .lse = true },
        { "contrast of sums", { .window = 32, CONTRAST(1, 30), .norm = CKV_NORM_MEAN, .heads = CKV_HEADS_EACH }, ATTENTION },
        { "leak", { .window = 8, .pool = CKV_POOL_LEAK, .norm = CKV_NORM_SEEN }, ATTENTION, .ends = true },
        { "leak of votes", { .profile = CKV_PROFILE_VOTE, .window = 64, VOTES, CONTRAST(32, 64),
                             .pool = CKV_POOL_LEAK, .recent = 4, .heads = CKV_HEADS_MAX }, ATTENTION, .ends = true },
        { "each", { .window = 16, .heads = CKV_HEADS_EACH, .value_weight = CKV_WEIGHT_L1, .pool = CKV_POOL_AVG }, ATTENTION },
        { "raw each", { .scorer = CKV_SCORER_RAW_QK, .window = 16, .heads = CKV_HEADS_EACH }, .rtol = 1e-4, .atol = 1e-2 },
};

/* A random job of one layer that scores this way, and what hangs on it. */
struct trial {
        struct random_job *random;
        struct ckv_job *job;
        struct ckv_job_group *group;
        struct ckv_job_layer *layer;
        float *lse, *sinks;
};

static void *must_alloc(size_t bytes) {
        void *p = calloc(1, bytes + 1);

        ck_assert_ptr_nonnull(p);
        return p;
}

#define SET(field) group->policy.field = way->policy.field ? way->policy.field : group->policy.field

static void set_policy(struct ckv_job_group *group, const struct way *way) {
        SET(profile);
        SET(scorer);
        SET(pool);
        SET(pool_size);
        SET(norm);
        SET(heads);
        SET(group_heads);
        SET(window_reduce);
        SET(vote_rows);
        SET(contrast_first);
        SET(contrast_end);
        SET(mute);
        SET(recent);
        group->policy.value_weight = way->policy.value_weight;
        group->policy.given |= way->policy.given;
}

/* The log-sum-exp of each query row that is scored, by the reference's own logits */
static void set_lse(struct trial *trial) {
        const struct ckv_job_group *group = trial->group;
        uint32_t rows = group->selection.rows, n = trial->job->queries.rows;
        struct ckv_ref_block block = {
                .query = must_alloc((size_t)group->head_dim_k * CKV_REF_LANES * sizeof(double)),
                .logits = must_alloc((size_t)rows * CKV_REF_LANES * sizeof(double)),
        };
        float *values = must_alloc(1024 * sizeof(*values));

        trial->lse = must_alloc((size_t)group->q_heads * n * sizeof(float));
        for (uint32_t h = 0; h < group->q_heads; h++)
                for (uint32_t r = n - group->policy.window; r < n; r++) {
                        double m = -INFINITY, z = 0, sink = (double)ckv_ref_sink_logit(trial->layer, h);

                        ckv_ref_block_load(&block, trial->job, group, trial->layer, h, r, r + 1, values);
                        ckv_ref_block_logits(&block, group, trial->layer, h / (group->q_heads / group->kv_heads), 0, rows, values);
                        for (uint32_t j = block.low[0]; j < block.high[0]; j++)
                                m = fmax(m, block.logits[j]);
                        for (uint32_t j = block.low[0]; j < block.high[0]; j++)
                                z += exp(block.logits[j] - m);
                        z += exp(sink - m);
                        trial->lse[h * n + (trial->job->queries.ring_start + r) % n] = (float)(log(z) + m);
                }
        trial->layer->lse = (uint8_t *)trial->lse;
        free(block.query);
        free(block.logits);
        free(values);
}

/* Sequences of up to 1025 rows; @shape.asked is set here */
static struct trial trial_new(const struct way *way, uint64_t seed, struct random_shape shape) {
        struct ckv_policy asked = { .window = way->policy.window ? way->policy.window : 1, .value_weight = CKV_WEIGHT_L1,
                                    .sliding = way->policy.sliding, .softcap = way->policy.softcap };
        struct dice dice = { .state = seed * 77 + 5 };
        struct trial trial;
        uint32_t *lengths;

        shape.groups = shape.layers = 1;
        shape.asked = &asked;
        shape.rows = shape.rows ? shape.rows : (const uint32_t[]){ 65, 130, 257, 300, 513, 600, 1025 }[dice_roll(&dice, 7)];
        trial = (struct trial){ .random = random_job_new(seed, &shape) };
        trial.job = trial.random->job;
        trial.group = &trial.job->groups[0];
        trial.layer = &trial.group->layers[0];
        set_policy(trial.group, way);
        if (way->ends) {
                lengths = must_alloc(shape.rows * sizeof(*lengths));
                for (uint32_t at = 0, n; at < shape.rows; at += n) {
                        n = CKV_MIN(1 + dice_roll(&dice, 20), shape.rows - at);
                        lengths[trial.group->selection.chunk_length_count++] = n;
                }
                trial.group->selection.chunk_lengths = lengths;
        }
        if (way->sinks) {
                trial.sinks = must_alloc(trial.group->q_heads * sizeof(float));
                for (uint32_t h = 0; h < trial.group->q_heads; h++)
                        trial.sinks[h] = 3 * dice_normal(&dice);
                trial.layer->sink_logits = (uint8_t *)trial.sinks;
        }
        if (way->lse)
                set_lse(&trial);
        return trial;
}

static void trial_free(struct trial *trial) {
        (void)random_job_free(trial->random);
        free(trial->lse);
        free(trial->sinks);
}

static size_t score_count(const struct trial *trial) {
        return (size_t)ckv_score_heads(trial->group) * trial->group->selection.rows;
}

static double *score_reference(const struct trial *trial) {
        double *rows = must_alloc(score_count(trial) * sizeof(*rows));

        ck_assert_int_eq(ckv_ref_score_rows(trial->job, trial->group, trial->layer, rows), 0);
        return rows;
}

static double *score_cpu(const struct trial *trial, const struct ckv_cpu_path *path, uint32_t threads, uint32_t step_usec,
                         uint32_t *ret_steps) {
        double *rows = must_alloc(score_count(trial) * sizeof(*rows));
        struct ckv_cpu_choice *choice = paths_choice(path);
        struct ckv_cpu_pool *pool;
        struct ckv_cpu_score *score;

        ck_assert_int_eq(ckv__cpu_pool_new(threads, &pool), 0);
        ck_assert_int_eq(ckv__cpu_score_new(trial->job, trial->group, &score), 0);
        /* twice, as for two layers: nothing of the first is left in the second */
        for (uint32_t i = 0; i < 2; i++) {
                ckv__cpu_score_begin(score, trial->layer);
                for (*ret_steps = 1; !ckv__cpu_score_step(score, pool, choice, ckv_now_nsec() + step_usec * CKV_NSEC_PER_USEC);)
                        (*ret_steps)++;
        }
        ck_assert_uint_eq(ckv__cpu_score_bad_head(score), 0);
        memcpy(rows, ckv__cpu_score_rows(score), score_count(trial) * sizeof(*rows));
        (void)ckv__cpu_score_free(score);
        (void)ckv__cpu_pool_free(pool);
        (void)ckv__cpu_choice_free(choice);
        return rows;
}

static void compare(const struct way *way, uint64_t seed, const struct ckv_cpu_path *path, struct random_shape shape) {
        struct trial trial = trial_new(way, seed, shape);
        uint32_t given = trial.group->policy.given, steps;
        double *slow = score_reference(&trial), *whole = NULL;
        double *fast = score_cpu(&trial, path, 1 + (uint32_t)(seed % 3), 500, &steps);

        if (given & CKV_GIVEN_CONTRAST_FIRST) {
                trial.group->policy.given &= ~(uint32_t)CKV_GIVEN_CONTRAST_FIRST;
                whole = score_reference(&trial);
        }
        for (size_t i = 0; i < score_count(&trial); i++)
                ck_assert_msg(fabs(fast[i] - slow[i]) <= way->rtol * fabs(whole ? whole[i] : slow[i]) + way->atol,
                              "%s, job %u, %s: score %zu of %u is %.9g instead of %.9g", way->name, (unsigned)seed, path->name, i,
                              trial.group->selection.rows, fast[i], slow[i]);
        free(whole);
        free(slow);
        free(fast);
        trial_free(&trial);
}

START_TEST(within_r31) {
        const struct ckv_cpu_path *paths[PATHS_AT_MOST];
        uint32_t n = paths_list(paths);

        for (uint64_t seed = 0; seed < 24; seed++)
                compare(&ways[_i], seed, paths[seed % n], (struct random_shape){ 0 });
}
END_TEST

/* Scorers of keys on rows as engines have them, which are read where they lie: each type, whole vectors and others, each path */
START_TEST(keys_in_place) {
        static const enum ckv_dtype dtypes[] = { CKV_DTYPE_BF16, CKV_DTYPE_F16, CKV_DTYPE_F32 };
        static const uint32_t dims[] = { 128, 24, 8, 80, 63 };
        const struct ckv_cpu_path *paths[PATHS_AT_MOST];
        uint32_t n = paths_list(paths);

        for (uint64_t seed = 0; seed < 15; seed++) {
                struct random_shape shape = { .rows = 300 + (uint32_t)seed, .dims = dims[seed % 5], .dtype = dtypes[seed % 3],
                                              .kv_heads = 1 + (uint32_t)seed % 10, .per_group = 1, .contiguous = true };

                for (size_t i = 0; i < CKV_ARRAY_SIZE(ways); i++)
                        for (uint32_t path = 0; path < n && (ways[i].policy.scorer == CKV_SCORER_KNORM ||
                                                             ways[i].policy.scorer == CKV_SCORER_KEYDIFF ||
                                                             ways[i].policy.scorer == CKV_SCORER_VK_RATIO); path++)
                                compare(&ways[i], seed, paths[path], shape);
        }
}
END_TEST

START_TEST(bits_same_for_threads_slices_tables) {
        const struct way *way = &ways[_i];
        struct random_shape shape = { .rows = 1400, .kv_heads = 2, .per_group = 2, .dims = 32, .contiguous = true, .own_tables = true };
        struct trial trial = trial_new(way, 7, shape);
        uint32_t steps;
        double *first = score_cpu(&trial, paths_widest(), 1, 60000000, &steps);

        ck_assert_uint_eq(steps, 1);
        for (uint32_t variant = 1; variant < 4; variant++) {
                struct trial other;
                double *rows;

                shape.table_seed = variant;
                other = trial_new(way, 7, shape);
                rows = score_cpu(&other, paths_widest(), variant, 1, &steps);
                ck_assert_uint_gt(steps, 3);
                ck_assert_msg(memcmp(first, rows, score_count(&trial) * sizeof(*rows)) == 0, "%s, variant %u: other bits", way->name,
                              variant);
                free(rows);
                trial_free(&other);
        }
        free(first);
        trial_free(&trial);
}
END_TEST

/* A NaN in K or V of row 200: every score that the scorer makes of it is one, in both paths, and no other. */
START_TEST(nan_reaches_what_it_must) {
        static const struct {
                enum ckv_scorer scorer;
                bool value;             /* it lies in V */
                uint32_t first, end;    /* rows whose score is not finite */
        } cases[] = {
                { CKV_SCORER_KNORM, false, 200, 201 },  { CKV_SCORER_KNORM, true, 0, 0 },
                { CKV_SCORER_KEYDIFF, false, 0, 600 },  { CKV_SCORER_VK_RATIO, true, 200, 201 },
                { CKV_SCORER_LAGKV, true, 4, 260 },     { CKV_SCORER_LAGKV, false, 4, 260 },
                { CKV_SCORER_DROP, true, 0, 600 },      { CKV_SCORER_DROP, false, 0, 600 },
                { CKV_SCORER_WINDOW, false, 0, 600 },   { CKV_SCORER_WINDOW, true, 0, 0 },
        };
        for (size_t i = 0; i < CKV_ARRAY_SIZE(cases); i++)
                for (uint32_t most = 0; most < 2; most++) {
                        enum ckv_window_reduce reduce = most ? CKV_ROWS_MAX : CKV_ROWS_SUM;
                        struct way way = { .policy = { .scorer = cases[i].scorer, .window = 4, .window_reduce = reduce } };
                        struct random_shape shape = { .rows = 600, .kv_heads = 2, .per_group = 2, .dims = 16, .dtype = CKV_DTYPE_F32 };
                        struct trial trial = trial_new(&way, 3, shape);
                        const struct ckv_plane *plane;
                        uint32_t steps;
                        double *rows[2];

                        trial.job->queries.last_row = 0;
                        plane = cases[i].value ? &trial.layer->v : &trial.layer->k;
                        memset(random_element(trial.group, plane, 200, 1, 5), 0xff, 4);
                        rows[0] = score_reference(&trial);
                        rows[1] = score_cpu(&trial, paths_widest(), 2, 1000, &steps);
                        for (uint32_t path = 0; path < 2; path++)
                                for (uint32_t j = 0; j < 600; j++) {
                                        bool bad = j >= cases[i].first && j < cases[i].end;

                                        ck_assert_msg(isfinite(rows[path][j]) == !bad, "case %zu, path %u, row %u: %g", i, path, j,
                                                      rows[path][j]);
                                }
                        free(rows[0]);
                        free(rows[1]);
                        trial_free(&trial);
                }
}
END_TEST

/* More query rows than a panel holds: H2O, and one of a window that ends before the sequence does. */
START_TEST(long_windows) {
        static const struct way h2o[] = {
                { "h2o", { .window = 256 }, ATTENTION },
                { "h2o seen", { .window = 256, .norm = CKV_NORM_SEEN, .heads = CKV_HEADS_EACH }, ATTENTION },
                { "h2o lse", { .window = 256 }, .rtol = 1e-4, .atol = 1e-30, .lse = true },
        };

        for (uint32_t per_group = 1; per_group <= 3; per_group += 2)
                for (size_t i = 0; i < CKV_ARRAY_SIZE(h2o); i++) {
                        struct random_shape shape = { .rows = 700, .kv_heads = 2, .per_group = per_group, .dims = 16 };
                        struct trial trial = trial_new(&h2o[i], 11, shape);
                        uint32_t d = trial.group->head_dim_k, n = 700, steps;
                        struct dice dice = { .state = 99 };
                        float *queries = must_alloc((size_t)trial.group->q_heads * n * d * sizeof(float));
                        double *slow, *fast;

                        for (uint32_t x = 0; x < trial.group->q_heads * n * d; x++)
                                queries[x] = dice_normal(&dice);
                        trial.job->queries = (struct ckv_job_queries){
                                .dtype = CKV_DTYPE_F32, .rows = n, .ring_start = 3, .head_stride = (uint64_t)n * d * 4,
                                .row_stride = (uint64_t)d * 4,
                        };
                        trial.layer->query = (uint8_t *)queries;
                        trial.group->policy.window = n;
                        if (h2o[i].lse) {
                                free(trial.lse);
                                set_lse(&trial);
                        }
                        slow = score_reference(&trial);
                        fast = score_cpu(&trial, paths_widest(), 2, 20, &steps);
                        ck_assert_uint_gt(steps, 2);
                        for (size_t j = 0; j < score_count(&trial); j++)
                                ck_assert_msg(fabs(fast[j] - slow[j]) <= 1e-4 * slow[j], "%s: row %zu is %g instead of %g",
                                              h2o[i].name, j, fast[j], slow[j]);
                        free(slow);
                        free(fast);
                        free(queries);
                        trial_free(&trial);
                }
}
END_TEST

/* One log-sum-exp in a hundred query rows is wrong, in one of the contrast's: its head is named, the first of two. */
START_TEST(wrong_lse_is_found) {
        static const struct way way = { "vote lse", { .window = 64, VOTES, CONTRAST(32, 64) }, .lse = true };

        for (uint32_t older = 0; older < 2; older++) {
                struct random_shape shape = { .rows = 300, .kv_heads = 3, .per_group = 2, .dims = 16 };
                struct trial trial = trial_new(&way, 5, shape);
                uint32_t n = trial.job->queries.rows, back = older ? 40 : 3, row = n - 1 - back;
                double *rows = must_alloc(score_count(&trial) * sizeof(*rows));
                struct ckv_cpu_choice *choice = paths_choice(paths_widest());
                struct ckv_cpu_pool *pool;
                struct ckv_cpu_score *score;

                trial.lse[4 * n + (trial.job->queries.ring_start + row) % n] += 0.2f;
                trial.lse[3 * n + (trial.job->queries.ring_start + row) % n] -= 0.2f;
                /* nobody reads this one */
                trial.lse[(trial.job->queries.ring_start + n - 1 - 20) % n] = NAN;
                ck_assert_int_eq(ckv_ref_score_rows(trial.job, trial.group, trial.layer, rows), 4);
                ck_assert_int_eq(ckv__cpu_pool_new(2, &pool), 0);
                ck_assert_int_eq(ckv__cpu_score_new(trial.job, trial.group, &score), 0);
                ckv__cpu_score_begin(score, trial.layer);
                while (!ckv__cpu_score_step(score, pool, choice, ckv_now_nsec() + 100000))
                        ;
                ck_assert_uint_eq(ckv__cpu_score_bad_head(score), 4);
                (void)ckv__cpu_score_free(score);
                (void)ckv__cpu_pool_free(pool);
                (void)ckv__cpu_choice_free(choice);
                free(rows);
                trial_free(&trial);
        }
}
END_TEST

int main(void) {
        Suite *suite = suite_create("scorers_random");
        TCase *tcase = tcase_create("random");
        SRunner *runner = srunner_create(suite);
        int failed;

        suite_add_tcase(suite, tcase);
        tcase_set_timeout(tcase, 300);
        tcase_add_loop_test(tcase, within_r31, 0, (int)CKV_ARRAY_SIZE(ways));
        tcase_add_test(tcase, keys_in_place);
        tcase_add_loop_test(tcase, bits_same_for_threads_slices_tables, 0, (int)CKV_ARRAY_SIZE(ways));
        tcase_add_test(tcase, nan_reaches_what_it_must);
        tcase_add_test(tcase, long_windows);
        tcase_add_test(tcase, wrong_lse_is_found);
        srunner_run_all(runner, CK_NORMAL);
        failed = srunner_ntests_failed(runner);
        srunner_free(runner);
        return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
