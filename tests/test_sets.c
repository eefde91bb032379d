/*
 * Which sets a job has, with numbers that a person can check by hand: a set
 * for each KV head, leaders and followers with budgets of their own, the parts
 * of a hybrid, four layers that vote, the mass that is kept; TOVA, H2O and
 * profile vote from keys of one dimension.  Every job runs through the
 * reference and through the CPU, which must say the same.
 */
#include "base/macros.h"
#include "kernels/reference.h"
#include "kernels/scores.h"
#include "kernels/sets.h"
#include "tests/support_rows.h"
#include "tests/support_subject.h"

#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* A job of up to two groups over one cache of f32 keys with one dimension, K[layer][row][head]; every query is 1. */
struct tiny {
        uint32_t layers, rows, heads, queries;
        float *keys, *query;
        struct ckv_job *job;
};

static void tiny_init(struct tiny *tiny, uint32_t layers, uint32_t rows, uint32_t heads, uint32_t queries) {
        *tiny = (struct tiny){ .layers = layers, .rows = rows, .heads = heads, .queries = queries };
        tiny->keys = calloc((size_t)layers * rows * heads, sizeof(float));
        tiny->query = malloc((size_t)queries * heads * sizeof(float) + 1);
        tiny->job = ckv_job_new(2);
        ck_assert(tiny->keys && tiny->query && tiny->job);
        for (uint32_t i = 0; i < queries * heads; i++)
                tiny->query[i] = 1;
        tiny->job->deadline_nsec = UINT64_MAX;
        tiny->job->group_count = 0;
        tiny->job->queries = (struct ckv_job_queries){ .dtype = CKV_DTYPE_F32, .rows = queries, .head_stride = sizeof(float),
                                                       .row_stride = heads * sizeof(float) };
}

static void tiny_deinit(struct tiny *tiny) {
        tiny->job = ckv_job_free(tiny->job);
        free(tiny->keys);
        free(tiny->query);
}

/* A group, or the next part of one, over layers first .. first + count - 1 */
static struct ckv_job_group *tiny_group(struct tiny *tiny, uint32_t first, uint32_t count, struct ckv_policy asked,
                                        uint32_t keep_ratio) {
        struct ckv_job_group *group = &tiny->job->groups[tiny->job->group_count++];
        uint64_t row = tiny->heads * sizeof(float), layer = tiny->rows * row;
        struct ckv_policy_fault fault;
        uint32_t *entries = calloc(1, sizeof(*entries));

        ck_assert_msg(ckv_policy_resolve(&asked, &group->policy, &fault), "%s", ckv_policy_field_name(fault.field));
        group->layers = calloc(count, sizeof(*group->layers));
        ck_assert(entries && group->layers);
        group->layer_index = first;
        group->layer_count = count;
        group->q_heads = group->kv_heads = tiny->heads;
        group->head_dim_k = group->head_dim_v = 1;
        group->table = (struct ckv_row_table){ .entries = entries, .tokens_per_block = tiny->rows };
        group->selection.rows = tiny->rows;
        group->selection.keep_ratio = keep_ratio;
        for (uint32_t i = 0; i < count; i++) {
                struct ckv_plane plane = { .base = (uint8_t *)tiny->keys + (first + i) * layer, .block_stride = layer,
                                           .head_stride = sizeof(float), .token = { .tile = 1, .outer = row },
                                           .dim = { .tile = 1, .outer = sizeof(float) }, .dtype = CKV_DTYPE_F32, .dims = 1,
                                           .scale = 1 };

                group->layers[i] = (struct ckv_job_layer){ .number = first + i, .k = plane, .v = plane,
                                                           .query = (const uint8_t *)tiny->query };
        }
        return group;
}

/* The caller's T[layer][head][row] in place of scores */
static void tiny_scores(struct ckv_job_group *group, const float *scores, uint32_t layers) {
        size_t count = (size_t)layers * ckv_score_heads(group) * group->selection.rows;

        group->scores.in = malloc(count * sizeof(float));
        ck_assert_ptr_nonnull(group->scores.in);
        memcpy(group->scores.in, scores, count * sizeof(float));
        group->scores.in_count = count;
        group->scores.by_row = true;
}

/* Plans the job of each of two equal ones, by the reference and by the CPU, and compares all that a plan writes. */
static void plan_both(struct tiny *reference, struct tiny *fast, const struct subject *subject) {
        struct ckv_backend *backend = subject_open(subject);

        ck_assert_int_eq(ckv_ref_run_plan(reference->job), 0);
        subject_run(subject, backend, fast->job, CKV_STAGE_PLAN);
        (void)subject->ops->close(backend);
        ck_assert_int_eq(reference->job->outcome, fast->job->outcome);
        ck_assert_uint_eq(reference->job->fail_layer, fast->job->fail_layer);
        ck_assert_uint_eq(reference->job->fail_unit, fast->job->fail_unit);
        for (uint32_t i = 0; i < reference->job->group_count && reference->job->outcome == CKV_JOB_OK; i++) {
                const struct ckv_job_group *a = &reference->job->groups[i], *b = &fast->job->groups[i];

                ck_assert_uint_eq(a->kept_count, b->kept_count);
                ck_assert_uint_eq(a->kept_heads, b->kept_heads);
                for (uint32_t k = 0; k < a->kept_count; k++) {
                        ck_assert_uint_eq(a->kept[k].run_count, b->kept[k].run_count);
                        ck_assert_mem_eq(a->kept[k].runs, b->kept[k].runs, a->kept[k].run_count * sizeof(*a->kept[k].runs));
                }
                ck_assert_int_eq(a->budgets == NULL, b->budgets == NULL);
                ck_assert_int_eq(a->kept_mass == NULL, b->kept_mass == NULL);
                for (uint32_t l = 0; l < a->layer_count; l++) {
                        ck_assert(!a->budgets || a->budgets[l] == b->budgets[l]);
                        ck_assert(!a->kept_mass || fabsf(a->kept_mass[l] - b->kept_mass[l]) <= 1e-5f);
                }
        }
}

static const char *kept(const struct ckv_job_group *group, uint32_t layer, uint32_t head) {
        static char text[1024];

        return rows_to_string(ckv_job_kept(group, layer, head), text, sizeof(text));
}

static const uint32_t nothing = CKV_GIVEN_SINKS | CKV_GIVEN_RECENT | CKV_GIVEN_MIN_TOKENS;

/* Makes the same job twice with fill(), plans both, leaves the reference's in the first. */
static void run(struct tiny *tiny, void (*fill)(struct tiny *), uint32_t subject) {
        struct tiny fast;

        fill(tiny);
        fill(&fast);
        plan_both(tiny, &fast, &subjects[subject]);
        tiny_deinit(&fast);
}

static void fill_heads(struct tiny *tiny) {
        const float scores[2][2][10] = { { { 0, 0, 9, 8, 1, 0, 0, 0, 0, 0 }, { 0, 0, 0, 0, 1, 0, 8, 9, 0, 0 } },
                                         { { 0, 5, 5, 5, 5, 5, 5, 5, 5, 0 }, { 0, 0, 0, 0, 0, 0, 0, 0, 2, 0 } } };

        tiny_init(tiny, 2, 10, 2, 1);
        tiny_scores(tiny_group(tiny, 0, 2, (struct ckv_policy){ .selector = CKV_SELECTOR_TOKEN, .heads = CKV_HEADS_EACH,
                                                                .window = 1, .sinks = 1, .recent = 1, .given = nothing }, 400000),
                    &scores[0][0][0], 2);
}

START_TEST(each_head_keeps_its_own_rows) {
        struct tiny tiny;
        struct ckv_job_group *group;

        run(&tiny, fill_heads, (uint32_t)_i);
        group = &tiny.job->groups[0];
        ck_assert_uint_eq(group->kept_heads, 2);
        ck_assert_uint_eq(group->kept_count, 4);
        ck_assert_str_eq(kept(group, 0, 0), "0 2-3 9");
        ck_assert_str_eq(kept(group, 0, 1), "0 6-7 9");
        ck_assert_str_eq(kept(group, 1, 0), "0-2 9");
        ck_assert_str_eq(kept(group, 1, 1), "0-1 8-9");
        ck_assert_ptr_null(group->kept_mass);
        tiny_deinit(&tiny);
}
END_TEST

/* 30 rows, B = 12, beta = 2: lo = 6, hi = 18, F = 0 18 32 42 48, so B_l = 18 14 10 6 */
static void fill_pyramid(struct tiny *tiny) {
        float scores[4][30];
        struct ckv_job_group *group;

        for (uint32_t j = 0; j < 30; j++) {
                scores[0][j] = (float)j;
                scores[2][j] = (float)(30 - j);
                scores[1][j] = scores[3][j] = NAN;      /* followers: never looked at */
        }
        tiny_init(tiny, 4, 30, 1, 1);
        group = tiny_group(tiny, 0, 4, (struct ckv_policy){ .selector = CKV_SELECTOR_TOKEN, .beta = 2, .reuse = 2, .window = 1,
                                                            .given = nothing }, 400000);
        group->want_mass = true;
        tiny_scores(group, &scores[0][0], 4);
}

START_TEST(followers_cut_their_leaders_scores_at_their_own_budget) {
        struct tiny tiny;
        struct ckv_job_group *group;

        run(&tiny, fill_pyramid, (uint32_t)_i);
        group = &tiny.job->groups[0];
        ck_assert_uint_eq(group->budget.budget, 12);
        ck_assert_uint_eq(group->budgets[0], 18);
        ck_assert_uint_eq(group->budgets[3], 6);
        ck_assert_str_eq(kept(group, 0, 0), "12-29");
        ck_assert_str_eq(kept(group, 1, 0), "16-29");
        ck_assert_str_eq(kept(group, 2, 0), "0-9");
        ck_assert_str_eq(kept(group, 3, 0), "0-5");
        /* scores of the caller say nothing of attention */
        ck_assert_ptr_null(group->kept_mass);
        tiny_deinit(&tiny);
}
END_TEST

/* Layers 0-2 by chunks of 2, layers 3-6 by rows; reuse 2 counts all seven, but each part begins with a leader. */
static void fill_hybrid(struct tiny *tiny) {
        const float lower[3][6] = { { 0, 9, 0, 0, 4, 4 }, { NAN, 0, 0, 0, 0, 0 }, { 0, 0, 5, 5, 0, 0 } };
        const float upper[4][6] = { { 0, 9, 0, 0, 4, 0 }, { 0, 0, 0, 0, 1, 1 }, { NAN, 0, 0, 0, 0, 0 }, { 1, 1, 0, 0, 0, 0 } };

        tiny_init(tiny, 7, 6, 1, 1);
        tiny_scores(tiny_group(tiny, 0, 3, (struct ckv_policy){ .chunk = 2, .reuse = 2, .window = 1, .given = nothing }, 340000),
                    &lower[0][0], 3);
        tiny_scores(tiny_group(tiny, 3, 4, (struct ckv_policy){ .selector = CKV_SELECTOR_TOKEN, .reuse = 2, .window = 1,
                                                                .given = nothing }, 340000), &upper[0][0], 4);
}

START_TEST(parts_of_a_hybrid) {
        struct tiny tiny;
        struct ckv_job_group *group;

        run(&tiny, fill_hybrid, (uint32_t)_i);
        ck_assert_int_eq(tiny.job->outcome, CKV_JOB_OK);
        group = &tiny.job->groups[0];
        ck_assert_uint_eq(group->budget.budget, 2);
        ck_assert_str_eq(kept(group, 0, 0), "0-1");
        ck_assert_str_eq(kept(group, 1, 0), "0-1");
        ck_assert_str_eq(kept(group, 2, 0), "2-3");
        group = &tiny.job->groups[1];
        ck_assert_str_eq(kept(group, 0, 0), "1 4");
        ck_assert_str_eq(kept(group, 1, 0), "4-5");
        ck_assert_str_eq(kept(group, 2, 0), "4-5");
        ck_assert_str_eq(kept(group, 3, 0), "0-1");
        tiny_deinit(&tiny);
}
END_TEST

START_TEST(leaders_of_section_5) {
        struct ckv_job_group group = { .layer_count = 6, .policy.reuse = 2 };
        const uint32_t of_2[] = { 2, 2, 4, 4, 6, 6 }, of_4[] = { 4, 4, 4, 4, 6, 6 };

        for (uint32_t i = 0; i < 6; i++) {
                group.policy.reuse = 2;
                ck_assert_uint_eq(ckv_sets_next_leader(&group, i), of_2[i]);
                group.policy.reuse = 4;
                ck_assert_uint_eq(ckv_sets_next_leader(&group, i), of_4[i]);
                group.policy.reuse = UINT32_MAX;
                ck_assert_uint_eq(ckv_sets_next_leader(&group, i), 6);
        }
        /* a part that begins at layer 3 of its group */
        group.policy.reuse = 4;
        group.layer_index = 3;
        ck_assert_uint_eq(ckv_sets_next_leader(&group, 0), 1);
        ck_assert_uint_eq(ckv_sets_next_leader(&group, 1), 5);
}
END_TEST

/* T is the sum of the four largest, descending, over 4; of all, over their number, where there are fewer */
START_TEST(four_layers_vote) {
        const float scores[6][2] = { { 1, 8 }, { 7, 1 }, { 3, 1 }, { 2, 1 }, { 5, 1 }, { 4, 16 } };
        const double expected[6][2] = { { 1, 8 },       { 4, 4.5 },     { 11.0 / 3, 10.0 / 3 },
                                        { 3.25, 2.75 }, { 4.25, 2.75 }, { 4.75, 6.5 } };
        struct ckv_top4 top[2];
        double t[2];
        uint32_t state = 3;

        for (uint32_t l = 0; l < 6; l++) {
                ckv_top4_add(top, l, 2, scores[l]);
                ckv_top4_reduce(top, l + 1, 2, t);
                ck_assert(t[0] == expected[l][0] && t[1] == expected[l][1]);
        }
        /* against a sort, with ties */
        for (uint32_t round = 0; round < 1000; round++) {
                float sorted[9];
                uint32_t layers = 1 + round % 9;
                double sum = 0;

                for (uint32_t l = 0; l < layers; l++) {
                        float s;
                        uint32_t at = l;

                        state = state * 1103515245u + 12345u;
                        s = (float)(state >> 16 & 7) / 3;
                        ckv_top4_add(top, l, 1, &s);
                        for (; at > 0 && sorted[at - 1] < s; at--)
                                sorted[at] = sorted[at - 1];
                        sorted[at] = s;
                }
                for (uint32_t i = 0; i < CKV_MIN(layers, 4); i++)
                        sum += (double)sorted[i];
                ckv_top4_reduce(top, layers, 1, t);
                ck_assert(t[0] == sum / (double)CKV_MIN(layers, 4));
        }
}
END_TEST

/* One query: row j has e^K[j] of the softmax.  K = 0 5 1 4 2 3 0 0 0 0, B = trunc(10 * 0.4) = 4: the last row and the best three */
static void fill_tova(struct tiny *tiny) {
        const float keys[10] = { 0, 5, 1, 4, 2, 3, 0, 0, 0, 0 };

        tiny_init(tiny, 1, 10, 1, 1);
        memcpy(tiny->keys, keys, sizeof(keys));
        (void)tiny_group(tiny, 0, 1, (struct ckv_policy){ .profile = CKV_PROFILE_KVPRESS, .selector = CKV_SELECTOR_TOKEN,
                                                          .window = 1 }, 400000);
}

START_TEST(tova) {
        struct tiny tiny;

        run(&tiny, fill_tova, (uint32_t)_i);
        ck_assert_str_eq(kept(&tiny.job->groups[0], 0, 0), "1 3 5 9");
        tiny_deinit(&tiny);
}
END_TEST

/* Equal keys: query t gives 1 / (t + 1) to each row up to t, so the oldest rows have seen most.  10 rows: r = 2, B = 3 + 2 */
static void fill_h2o(struct tiny *tiny) {
        tiny_init(tiny, 1, 10, 1, 10);
        tiny_group(tiny, 0, 1, (struct ckv_policy){ .selector = CKV_SELECTOR_H2O, .heavy = 300000, .recent_part = 200000,
                                                    .given = CKV_GIVEN_MIN_TOKENS }, 0)->want_mass = true;
}

START_TEST(h2o) {
        struct tiny tiny;
        double all = 10, held = 0;

        run(&tiny, fill_h2o, (uint32_t)_i);
        ck_assert_str_eq(kept(&tiny.job->groups[0], 0, 0), "0-2 8-9");
        for (uint32_t t = 0; t < 10; t++)
                held += (double)(CKV_MIN(t + 1, 3) + (t >= 8) + (t >= 9)) / (t + 1);
        ck_assert(fabs((double)tiny.job->groups[0].kept_mass[0] - held / all) < 1e-6);
        tiny_deinit(&tiny);
}
END_TEST

/* 30 rows, 8 queries, 5 layers of which 4 look at row 15: the pool of 21 makes a plateau of rows 5 to 25 */
static void fill_vote(struct tiny *tiny) {
        tiny_init(tiny, 5, 30, 1, 8);
        for (uint32_t l = 0; l < 5; l++)
                tiny->keys[l * 30 + (l < 4 ? 15 : 3)] = 9;
        tiny_group(tiny, 0, 5, (struct ckv_policy){ .profile = CKV_PROFILE_VOTE }, 340000)->want_mass = true;
}

START_TEST(vote) {
        struct tiny tiny;
        const struct ckv_job_group *group;

        run(&tiny, fill_vote, (uint32_t)_i);
        group = &tiny.job->groups[0];
        ck_assert_uint_eq(group->budget.budget, 10);
        ck_assert_uint_eq(group->kept_count, 1);
        /* row 0, the last four, and of 21 equal rows the first five; row 3 is mute */
        ck_assert_str_eq(kept(group, 0, 0), "0 5-9 26-29");
        ck_assert_ptr_nonnull(group->kept_mass);
        tiny_deinit(&tiny);
}
END_TEST

/* Layer 0 has equal keys: 20 rows of one twentieth.  In layer 1 row 3 has it all. */
static enum ckv_layers mass_layers;

static void fill_mass(struct tiny *tiny) {
        tiny_init(tiny, 2, 20, 1, 1);
        tiny->keys[20 + 3] = 60;
        tiny_group(tiny, 0, 2, (struct ckv_policy){ .selector = CKV_SELECTOR_TOKEN, .layers = mass_layers, .window = 1,
                                                    .given = nothing }, 400000)->want_mass = true;
}

START_TEST(mass_that_is_kept) {
        struct tiny tiny;
        const struct ckv_job_group *group;

        for (mass_layers = CKV_LAYERS_EACH; mass_layers <= CKV_LAYERS_ONE; mass_layers++) {
                run(&tiny, fill_mass, (uint32_t)_i);
                group = &tiny.job->groups[0];
                ck_assert_str_eq(kept(group, 1, 0), "0-7");
                ck_assert_ptr_nonnull(group->kept_mass);
                /* also of a set that all layers share, each layer says what it keeps of its own */
                ck_assert_float_eq(group->kept_mass[0], 0.4f);
                ck_assert_float_eq(group->kept_mass[1], 1.0f);
                tiny_deinit(&tiny);
        }
}
END_TEST

static struct ckv_policy massless;

static void fill_massless(struct tiny *tiny) {
        tiny_init(tiny, 1, 20, 1, 1);
        for (uint32_t j = 0; j < 20; j++)
                tiny->keys[j] = (float)j / 4;
        tiny_group(tiny, 0, 1, massless, 400000)->want_mass = true;
}

START_TEST(mass_that_is_not_known) {
        const struct ckv_policy policies[] = {
                { .selector = CKV_SELECTOR_STREAMING, .given = CKV_GIVEN_MIN_TOKENS },
                { .window = 1, .min_tokens = 21, .given = CKV_GIVEN_MIN_TOKENS },
                /* minus the norm: nothing that adds up to a mass */
                { .scorer = CKV_SCORER_KNORM, .given = nothing },
        };
        struct tiny tiny;

        for (size_t i = 0; i < CKV_ARRAY_SIZE(policies); i++) {
                massless = policies[i];
                run(&tiny, fill_massless, (uint32_t)_i);
                ck_assert_int_eq(tiny.job->outcome, CKV_JOB_OK);
                ck_assert_ptr_null(tiny.job->groups[0].kept_mass);
                tiny_deinit(&tiny);
        }
}
END_TEST

/* The second of two layers has a score that is not finite, in the unit of row 4 */
static bool bad_top4;

static void fill_bad(struct tiny *tiny) {
        tiny_init(tiny, 2, 20, 1, 1);
        tiny->keys[20 + 4] = NAN;
        (void)tiny_group(tiny, 0, 2, (struct ckv_policy){ .scorer = CKV_SCORER_KNORM, .layers = CKV_LAYERS_ONE, .chunk = 2,
                .layer_reduce = bad_top4 ? CKV_LAYER_TOP4 : CKV_LAYER_SUM, .given = nothing }, 400000);
}

START_TEST(a_bad_layer_is_named) {
        struct tiny tiny;

        for (int i = 0; i < 2; i++) {
                bad_top4 = i == 1;
                run(&tiny, fill_bad, (uint32_t)_i);
                ck_assert_int_eq(tiny.job->outcome, CKV_JOB_NONFINITE);
                ck_assert_uint_eq(tiny.job->fail_layer, 1);
                ck_assert_uint_eq(tiny.job->fail_unit, 2);
                tiny_deinit(&tiny);
        }
}
END_TEST

/* Equal keys of 0: the sum of the exponentials is the number of rows. Layer 1 says otherwise of head 1. */
static float sums[2][2];

static void fill_sums(struct tiny *tiny) {
        struct ckv_job_group *group;

        tiny_init(tiny, 2, 20, 2, 1);
        group = tiny_group(tiny, 0, 2, (struct ckv_policy){ .window = 1, .given = nothing }, 400000);
        for (uint32_t l = 0; l < 2; l++) {
                sums[l][0] = sums[l][1] = logf(20);
                group->layers[l].lse = (const uint8_t *)sums[l];
        }
        sums[1][1] = logf(10);
}

START_TEST(a_wrong_log_sum_exp_is_named) {
        struct tiny tiny;

        run(&tiny, fill_sums, (uint32_t)_i);
        ck_assert_int_eq(tiny.job->outcome, CKV_JOB_BAD_LSE);
        ck_assert_uint_eq(tiny.job->fail_layer, 1);
        ck_assert_uint_eq(tiny.job->fail_unit, 1);
        tiny_deinit(&tiny);
}
END_TEST

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
/* The longest sequence there may be. Norms of one dimension are exact in any arithmetic, so nothing may differ. */
static struct ckv_policy longest;

static void fill_longest(struct tiny *tiny) {
        const uint32_t rows = 1048576, heads = longest.heads == CKV_HEADS_EACH ? 2 : 1;

        tiny_init(tiny, 3, rows, heads, 8);
        for (uint32_t i = 0; i < 3 * rows * heads; i++)
                tiny->keys[i] = (float)((i * 2654435761U) >> 8) / 4194304;
        tiny_group(tiny, 0, 3, longest, 200000)->want_mass = true;
}

START_TEST(a_million_rows) {
        const struct ckv_policy policies[] = {
                { .profile = CKV_PROFILE_VOTE },
                { .selector = CKV_SELECTOR_TOKEN, .heads = CKV_HEADS_EACH, .beta = 10, .reuse = 2, .scorer = CKV_SCORER_KNORM },
                { .selector = CKV_SELECTOR_CHUNK_EG, .scorer = CKV_SCORER_KNORM },
                { .selector = CKV_SELECTOR_STREAMING, .beta = 2 },
        };
        struct tiny tiny;

        for (size_t i = 0; i < CKV_ARRAY_SIZE(policies); i++) {
                uint64_t sum = 0;

                longest = policies[i];
                run(&tiny, fill_longest, (uint32_t)_i);
                ck_assert_int_eq(tiny.job->outcome, CKV_JOB_OK);
                ck_assert_uint_eq(tiny.job->groups[0].budget.budget, 209715);
                for (uint32_t l = 0; l < 3; l++)
                        sum += ckv_job_kept(&tiny.job->groups[0], l, 0)->count;
                ck_assert_uint_eq(sum, 3 * 209715);
                tiny_deinit(&tiny);
        }
}
END_TEST
#endif

int main(void) {
        Suite *suite = suite_create("sets");
        TCase *tcase = tcase_create("jobs");
        SRunner *runner = srunner_create(suite);
        int failed;

        suite_add_tcase(suite, tcase);
        tcase_add_loop_test(tcase, each_head_keeps_its_own_rows, 0, SUBJECTS);
        tcase_add_loop_test(tcase, followers_cut_their_leaders_scores_at_their_own_budget, 0, SUBJECTS);
        tcase_add_loop_test(tcase, parts_of_a_hybrid, 0, SUBJECTS);
        tcase_add_test(tcase, leaders_of_section_5);
        tcase_add_test(tcase, four_layers_vote);
        tcase_add_loop_test(tcase, tova, 0, SUBJECTS);
        tcase_add_loop_test(tcase, h2o, 0, SUBJECTS);
        tcase_add_loop_test(tcase, vote, 0, SUBJECTS);
        tcase_add_loop_test(tcase, mass_that_is_kept, 0, SUBJECTS);
        tcase_add_loop_test(tcase, mass_that_is_not_known, 0, SUBJECTS);
        tcase_add_loop_test(tcase, a_bad_layer_is_named, 0, SUBJECTS);
        tcase_add_loop_test(tcase, a_wrong_log_sum_exp_is_named, 0, SUBJECTS);
        tcase_set_timeout(tcase, 120);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
        tcase_add_loop_test(tcase, a_million_rows, 0, SUBJECTS);
#endif
        srunner_run_all(runner, CK_NORMAL);
        failed = srunner_ntests_failed(runner);
        srunner_free(runner);
        return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
