/*
 * The scalar reference against algorithm.md: each stage alone, the end to end
 * examples of 6.4 with their bits, equal bits in every layout (R30), rows that
 * must not matter (R34), refusals (R23), several layers (section 5).
 */
#include "kernels/reference.h"
#include "tests/support_model.h"
#include "tests/support_rows.h"

#include "base/macros.h"

#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { L = 48 };

static const struct model_shape shape = { .rows = L, .dims = 8, .q_heads = 4, .kv_heads = 2, .window = 4 };
static const struct model_layout plain = { 0 };
static char text[4096];

static uint64_t bits64(double v) {
        uint64_t bits;

        memcpy(&bits, &v, sizeof(bits));
        return bits;
}

static uint32_t bits32(float v) {
        uint32_t bits;

        memcpy(&bits, &v, sizeof(bits));
        return bits;
}

/* Parameters of section 6.4 on top of what a variant asks. */
static struct ckv_policy asked_6_4(struct ckv_policy asked) {
        asked.chunk = 5;
        asked.window = 4;
        if (asked.profile == CKV_PROFILE_DEFAULT) {
                asked.sinks = 2;
                asked.recent = 4;
                asked.given = CKV_GIVEN_SINKS | CKV_GIVEN_RECENT | CKV_GIVEN_MIN_TOKENS;
        }
        return asked;
}

/* A job over the model of section 6.4. */
static void begin(struct model_job *mj, uint32_t layers, const struct model_layout *layout, struct ckv_policy asked) {
        struct model model;

        asked = asked_6_4(asked);
        model_init(&model, shape, layers);
        model_job_init(mj, &model, layout, &asked, 500000, 0);
        model_deinit(&model);
}

/* Plan; the kept rows of one layer as text. */
static const char *plan(struct model_job *mj, uint32_t layer) {
        ck_assert_int_eq(ckv_ref_run_plan(mj->job), 0);
        ck_assert_int_eq(mj->job->outcome, CKV_JOB_OK);
        return rows_to_string(&mj->group->kept[layer], text, sizeof(text));
}

static const char *plan_variant(struct ckv_policy asked, uint32_t keep_ratio) {
        struct model_job mj;
        const char *kept;

        begin(&mj, 1, &plain, asked);
        mj.group->selection.keep_ratio = keep_ratio;
        kept = plan(&mj, 0);
        model_job_deinit(&mj);
        return kept;
}

/* T[j] of layer 0 */
static void row_scores(const struct model_job *mj, double *t) {
        ck_assert_int_eq(ckv_ref_score_rows(mj->job, mj->group, &mj->group->layers[0], t), 0);
}

START_TEST(pools) {
        const double a[] = { 1, 5, 2, 8, 3, 100, 0 };
        const double avg[] = { 6.0 / 3, 8.0 / 3, 15.0 / 3, 13.0 / 3, 11.0 / 3, 100, 0 };
        const double most[] = { 5, 5, 8, 8, 8, 100, 0 };
        struct ckv_policy policy = { .pool = CKV_POOL_AVG, .pool_size = 3 };
        double out[7];

        ckv_ref_pool(&policy, a, 7, 5, out);
        ck_assert_mem_eq(out, avg, sizeof(avg));
        policy.pool = CKV_POOL_MAX;
        ckv_ref_pool(&policy, a, 7, 5, out);
        ck_assert_mem_eq(out, most, sizeof(most));
        policy.pool = CKV_POOL_NONE;
        ckv_ref_pool(&policy, a, 7, 5, out);
        ck_assert_mem_eq(out, a, sizeof(a));
        /* a pool wider than the domain, and no domain at all */
        policy = (struct ckv_policy){ .pool = CKV_POOL_MAX, .pool_size = 31 };
        ckv_ref_pool(&policy, a, 7, 2, out);
        ck_assert_double_eq(out[0], 5);
        ck_assert_double_eq(out[2], 2);
        ckv_ref_pool(&policy, a, 7, 0, out);
        ck_assert_mem_eq(out, a, sizeof(a));
}
END_TEST

START_TEST(heads_and_groups) {
        struct model_job mj;
        double a[4 * L], t[L];

        for (int i = 0; i < 4 * L; i++)
                a[i] = 0;
        a[0 * L] = 1, a[1 * L] = 4, a[2 * L] = 2, a[3 * L] = 5;
        begin(&mj, 1, &plain, (struct ckv_policy){ 0 });
        static const struct {
                enum ckv_group_heads group;
                enum ckv_heads heads;
                double t;
        } table[] = {
                { CKV_GROUP_SUM, CKV_HEADS_SUM, 12 }, { CKV_GROUP_MEAN, CKV_HEADS_SUM, 6 },
                { CKV_GROUP_MAX, CKV_HEADS_SUM, 9 },  { CKV_GROUP_SUM, CKV_HEADS_MAX, 7 },
                { CKV_GROUP_MAX, CKV_HEADS_MAX, 5 },
        };

        for (size_t i = 0; i < CKV_ARRAY_SIZE(table); i++) {
                mj.group->policy.group_heads = table[i].group;
                mj.group->policy.heads = table[i].heads;
                ck_assert_int_eq(ckv_ref_reduce_heads(mj.group, &mj.group->layers[0], a, t), 0);
                ck_assert_double_eq(t[0], table[i].t);
                ck_assert_uint_eq(bits64(t[1]), 0);
        }
        /* a NaN is handed on from any place */
        for (int h = 0; h < 4; h++) {
                double before = a[h * L];

                a[h * L] = NAN;
                ck_assert_int_eq(ckv_ref_reduce_heads(mj.group, &mj.group->layers[0], a, t), 0);
                ck_assert(isnan(t[0]));
                a[h * L] = before;
        }
        model_job_deinit(&mj);
}
END_TEST

START_TEST(end_to_end_bits) {
        static const uint32_t expected[] = { 0x3eaf1179, 0x3e91dff3, 0x3eb5c090, 0x3ea2704c, 0x3eec262b,
                                             0x3eca1753, 0x3e8d394c, 0x3e9fab42, 0x3e8dd9f1 };
        const float first_key[] = { -1.25f, 1, -1, -1.875f, 0.625f, 0.125f, -0.875f, -0.625f };
        const float last_query[] = { -0.25f, 1.875f, 1.25f, -0.75f, 1.875f, 0.5f, -1.5f, 1 };
        struct model_job mj;
        struct ckv_units units;
        uint8_t flags[L];
        double t[L], sum = 0;
        float c[L], values[8];

        begin(&mj, 1, &plain, (struct ckv_policy){ 0 });
        ckv_ref_load(&mj.group->layers[0].k, &mj.group->table, 0, 0, values);
        ck_assert_mem_eq(values, first_key, sizeof(values));
        ckv_ref_load_query(mj.job, mj.group, &mj.group->layers[0], 3, 3, values);
        ck_assert_mem_eq(values, last_query, sizeof(values));
        row_scores(&mj, t);
        ck_assert_uint_eq(bits64(t[0]), UINT64_C(0x3fd86c7ddc4e2fbe));
        ck_assert_uint_eq(bits64(t[17]), UINT64_C(0x3fd1e6c861530dab));
        for (int j = 0; j < L; j++)
                sum += t[j];
        ck_assert_double_le(fabs(sum - 16), 1e-12);
        ck_assert_int_eq(ckv_select_budget(&mj.group->selection, flags, &mj.group->budget), 0);
        ck_assert_uint_eq(mj.group->budget.budget, 24);
        ck_assert_int_eq(ckv_units_init(&units, &mj.group->selection, flags), 0);
        ck_assert_uint_eq(units.count, CKV_ARRAY_SIZE(expected));
        ckv_ref_unit_scores(&mj.group->policy, &units, L, t, c);
        for (uint32_t u = 0; u < units.count; u++)
                ck_assert_uint_eq(bits32(c[u]), expected[u]);
        ckv_units_deinit(&units);
        model_job_deinit(&mj);
}
END_TEST

START_TEST(end_to_end_variants) {
        const struct ckv_policy kvpress = { .profile = CKV_PROFILE_KVPRESS };

        ck_assert_str_eq(plan_variant((struct ckv_policy){ 0 }, 500000), "0-4 10-14 20-29 44-47");
        ck_assert_str_eq(plan_variant((struct ckv_policy){ .softcap = 1 }, 500000), "0-4 10-14 20-29 44-47");
        ck_assert_str_eq(plan_variant((struct ckv_policy){ .sliding = 20 }, 500000), "0-1 25-33 35-47");
        ck_assert_str_eq(plan_variant((struct ckv_policy){ .pool = CKV_POOL_AVG }, 500000), "0-4 15-29 44-47");
        ck_assert_str_eq(plan_variant((struct ckv_policy){ .pool = CKV_POOL_MAX, .pool_size = 7 }, 500000),
                         "0-1 5-7 15-29 44-47");
        ck_assert_str_eq(plan_variant(kvpress, 500000), "15-29 40-47");
        ck_assert_str_eq(plan_variant(kvpress, 200000), "45-47");
        ck_assert_str_eq(plan_variant((struct ckv_policy){ .value_weight = CKV_WEIGHT_L2 }, 500000),
                         "0-4 10-14 20-29 44-47");
        ck_assert_str_eq(plan_variant((struct ckv_policy){ .scorer = CKV_SCORER_KNORM }, 500000), "0-9 15-19 30-34 44-47");
        ck_assert_str_eq(plan_variant((struct ckv_policy){ .scorer = CKV_SCORER_KEYDIFF }, 500000), "0-4 10-24 44-47");
        ck_assert_str_eq(plan_variant((struct ckv_policy){ .profile = CKV_PROFILE_PAPER }, 500000),
                         "0-4 10-14 25-29 44-47");
        ck_assert_str_eq(
                plan_variant((struct ckv_policy){ .profile = CKV_PROFILE_PAPER, .scorer = CKV_SCORER_WINDOW }, 500000),
                "0-4 10-14 20-29 44-47");
}
END_TEST

START_TEST(raw_qk_is_bare_products) {
        struct model_job mj;
        struct model model;
        double a[L];

        model_init(&model, shape, 1);
        begin(&mj, 1, &plain, (struct ckv_policy){ .scorer = CKV_SCORER_RAW_QK, .sliding = 3, .softcap = 1 });
        ck_assert_int_eq(ckv_ref_score_head(mj.job, mj.group, &mj.group->layers[0], 3, a), 0);
        for (int j = 0; j < L; j++) {
                double sum = 0;         /* exact: multiples of 1/64 */

                for (int t = 0; t < 4; t++)
                        for (int x = 0; x < 8; x++)
                                sum += (double)model.q[(3 * 4 + t) * 8 + x] * (double)model.k[(L + j) * 8 + x];
                ck_assert_double_eq(a[j], sum);
        }
        model_job_deinit(&mj);
        model_deinit(&model);
}
END_TEST

START_TEST(norms) {
        struct model_job mj;
        double sum[L], other[L];

        begin(&mj, 1, &plain, (struct ckv_policy){ 0 });
        ck_assert_int_eq(ckv_ref_score_head(mj.job, mj.group, &mj.group->layers[0], 1, sum), 0);
        mj.group->policy.norm = CKV_NORM_MEAN;
        ck_assert_int_eq(ckv_ref_score_head(mj.job, mj.group, &mj.group->layers[0], 1, other), 0);
        for (int j = 0; j < L; j++)
                ck_assert_uint_eq(bits64(other[j]), bits64(sum[j] / 4));
        mj.group->policy.norm = CKV_NORM_SEEN;
        ck_assert_int_eq(ckv_ref_score_head(mj.job, mj.group, &mj.group->layers[0], 1, other), 0);
        for (int j = 0; j < L; j++)
                ck_assert_uint_eq(bits64(other[j]), bits64(sum[j] / (j <= 44 ? 4 : 48 - j)));
        model_job_deinit(&mj);
}
END_TEST

START_TEST(scale_is_the_callers) {
        struct model_job mj;
        double own[L], given[L];

        begin(&mj, 1, &plain, (struct ckv_policy){ 0 });
        row_scores(&mj, own);
        mj.group->policy.scale = 1 / sqrt(8.0);
        row_scores(&mj, given);
        ck_assert_mem_eq(own, given, sizeof(own));
        mj.group->policy.scale = 0.5;
        row_scores(&mj, given);
        ck_assert_mem_ne(own, given, sizeof(own));
        model_job_deinit(&mj);
}
END_TEST

START_TEST(value_weights) {
        struct model_job mj;
        struct model model;
        double without[L], with[L], l1 = 0, l2 = 0;

        model_init(&model, shape, 1);
        for (int x = 0; x < 8; x++) {
                double v = (double)model.v[(size_t)17 * 8 + x];         /* head 0, row 17 */

                l1 += fabs(v);
                l2 += v * v;
        }
        model_deinit(&model);
        begin(&mj, 1, &plain, (struct ckv_policy){ 0 });
        /* head 1 has no weight, so T is head 0's */
        double a[4 * L] = { 0 };
        a[17] = 0.75;
        ck_assert_int_eq(ckv_ref_reduce_heads(mj.group, &mj.group->layers[0], a, without), 0);
        mj.group->policy.value_weight = CKV_WEIGHT_L1;
        ck_assert_int_eq(ckv_ref_reduce_heads(mj.group, &mj.group->layers[0], a, with), 0);
        ck_assert_uint_eq(bits64(with[17]), bits64(0.75 * l1));
        mj.group->policy.value_weight = CKV_WEIGHT_L2;
        ck_assert_int_eq(ckv_ref_reduce_heads(mj.group, &mj.group->layers[0], a, with), 0);
        ck_assert_uint_eq(bits64(with[17]), bits64(0.75 * sqrt(l2)));
        ck_assert_double_eq(without[17], 0.75);
        model_job_deinit(&mj);
}
END_TEST

START_TEST(r30_equal_bits_in_every_layout) {
        static const struct model_layout layouts[] = {
                { .dtype = CKV_DTYPE_F16, .block_tokens = 16 },
                { .dtype = CKV_DTYPE_BF16, .block_tokens = 16, .head_major = true, .shuffled = true },
                { .dtype = CKV_DTYPE_F8_E4M3, .block_tokens = 5, .shuffled = true, .padding = 3 },
                { .block_tokens = 16, .transposed = true, .shuffled = true },
                { .dtype = CKV_DTYPE_F16, .transposed = true, .padding = 1 },
                { .dtype = CKV_DTYPE_BF16, .block_tokens = 16, .by_token = true, .shuffled = true },
                { .block_tokens = 1, .by_token = true, .shuffled = true, .head_major = true },
                { .older_queries = 3, .ring_start = 5 },
        };
        struct model_job mj;
        double expected[L], t[L];

        for (int scorer = 0; scorer < 2; scorer++) {
                struct ckv_policy asked = { .scorer = scorer ? CKV_SCORER_RAW_QK : CKV_SCORER_WINDOW,
                                            .value_weight = CKV_WEIGHT_L1 };

                begin(&mj, 1, &plain, asked);
                row_scores(&mj, expected);
                model_job_deinit(&mj);
                for (size_t i = 0; i < CKV_ARRAY_SIZE(layouts); i++) {
                        begin(&mj, 1, &layouts[i], asked);
                        row_scores(&mj, t);
                        ck_assert_msg(memcmp(t, expected, sizeof(t)) == 0, "layout %zu", i);
                        model_job_deinit(&mj);
                }
        }
}
END_TEST

START_TEST(r34_masked_rows_do_not_matter) {
        struct model_job mj;
        double clean[L], poisoned[L];

        /* the newest query sits at row 39: later rows are in the future of all queries */
        begin(&mj, 1, &plain, (struct ckv_policy){ 0 });
        mj.job->queries.last_row = 39;
        row_scores(&mj, clean);
        for (uint32_t j = 40; j < L; j++) {
                ck_assert_uint_eq(bits64(clean[j]), 0);
                model_poke(&mj, 0, false, j, 0, 0xff);
                model_poke(&mj, 0, false, j, 1, 0xff);
        }
        row_scores(&mj, poisoned);
        ck_assert_mem_eq(clean, poisoned, sizeof(clean));
        model_job_deinit(&mj);

        /* sliding 20: the oldest query (row 44) sees 25.., rows before are out of reach; V never matters here */
        begin(&mj, 1, &plain, (struct ckv_policy){ .sliding = 20 });
        row_scores(&mj, clean);
        ck_assert(clean[25] > 0);
        for (uint32_t j = 0; j < L; j++) {
                model_poke(&mj, 0, true, j, 0, 0xff);
                if (j < 25)
                        model_poke(&mj, 0, false, j, 0, 0xff);
        }
        row_scores(&mj, poisoned);
        ck_assert_mem_eq(clean, poisoned, sizeof(clean));

        /* row 25 is seen by the oldest query alone; a poisoned row 47 reaches the newest query and so every row */
        model_poke(&mj, 0, false, 47, 0, 0xff);
        row_scores(&mj, poisoned);
        ck_assert(isnan(poisoned[47]) && isnan(poisoned[30]) && !isnan(poisoned[27]));
        model_job_deinit(&mj);
}
END_TEST

START_TEST(visibility_goes_by_position) {
        struct model_job mj;
        uint32_t *positions = malloc(L * sizeof(*positions)), low, high;

        ck_assert_ptr_nonnull(positions);
        for (uint32_t j = 0; j < L; j++)
                positions[j] = j < 20 ? j : j + 15;             /* rows 44 .. 47 at 59 .. 62 */
        begin(&mj, 1, &plain, (struct ckv_policy){ .sliding = 30 });
        ckv_ref_visible(mj.job, mj.group, 0, &low, &high);
        ck_assert_uint_eq(low, 18);
        ck_assert_uint_eq(high, 48);
        ckv_ref_visible(mj.job, mj.group, 3, &low, &high);
        ck_assert_uint_eq(low, 15);
        ck_assert_uint_eq(high, 45);
        mj.group->selection.positions = positions;              /* owned by the job from here */
        ckv_ref_visible(mj.job, mj.group, 0, &low, &high);      /* position 62 sees 33 .. 62 */
        ck_assert_uint_eq(low, 20);
        ck_assert_uint_eq(high, 48);
        mj.group->policy.sliding = 45;                          /* 18 .. 62 */
        ckv_ref_visible(mj.job, mj.group, 0, &low, &high);
        ck_assert_uint_eq(low, 18);
        mj.group->policy.sliding = UINT32_MAX;
        ckv_ref_visible(mj.job, mj.group, 3, &low, &high);
        ck_assert_uint_eq(low, 0);
        ck_assert_uint_eq(high, 45);
        model_job_deinit(&mj);
}
END_TEST

START_TEST(r23_refusals) {
        /* heads = max over groups: the poisoned head is not the first */
        static const struct ckv_policy variants[] = {
                { 0 },
                { .heads = CKV_HEADS_MAX, .group_heads = CKV_GROUP_MAX, .pool = CKV_POOL_MAX },
                { .layers = CKV_LAYERS_ONE },
                { .unit_reduce = CKV_UNIT_MAX },
                { .profile = CKV_PROFILE_PAPER },
                { .profile = CKV_PROFILE_KVPRESS },
        };

        for (size_t i = 0; i < CKV_ARRAY_SIZE(variants); i++) {
                struct model_job mj;

                begin(&mj, 3, &plain, variants[i]);
                model_poke(&mj, 2, false, 30, 1, 0xff);
                ck_assert_int_eq(ckv_ref_run_plan(mj.job), 0);
                ck_assert_int_eq(mj.job->outcome, CKV_JOB_NONFINITE);
                ck_assert_uint_eq(mj.job->fail_group, 0);
                ck_assert_uint_eq(mj.job->fail_layer, 14);
                /* raw_qk has no softmax to spread it: chunk 6 alone */
                ck_assert_uint_eq(mj.job->fail_unit, variants[i].profile == CKV_PROFILE_PAPER ? 6 : 0);
                model_job_deinit(&mj);
        }
}
END_TEST

START_TEST(other_outcomes) {
        struct model_job mj;

        begin(&mj, 1, &plain, (struct ckv_policy){ .tight = CKV_TIGHT_REFUSE });
        mj.group->selection.max_tokens = 5;
        ck_assert_int_eq(ckv_ref_run_plan(mj.job), 0);
        ck_assert_int_eq(mj.job->outcome, CKV_JOB_BUDGET);
        ck_assert_uint_eq(mj.group->kept_count, 0);
        model_job_deinit(&mj);
        begin(&mj, 1, &plain, (struct ckv_policy){ .profile = CKV_PROFILE_PAPER });
        mj.group->selection.max_tokens = 3;
        ck_assert_int_eq(ckv_ref_run_plan(mj.job), 0);
        ck_assert_int_eq(mj.job->outcome, CKV_JOB_WINDOW_OVER_BUDGET);
        model_job_deinit(&mj);
        begin(&mj, 1, &plain, (struct ckv_policy){ .profile = CKV_PROFILE_KVPRESS });
        mj.group->selection.rows = 4;
        ck_assert_int_eq(ckv_ref_run_plan(mj.job), 0);
        ck_assert_int_eq(mj.job->outcome, CKV_JOB_UNSUPPORTED);
        model_job_deinit(&mj);
        /* settled answers look at no tensor */
        begin(&mj, 2, &plain, (struct ckv_policy){ 0 });
        mj.group->selection.max_tokens = 5;
        mj.group->layers[0].k.base = mj.group->layers[1].k.base = NULL;
        mj.group->layers[0].query = mj.group->layers[1].query = NULL;
        ck_assert_str_eq(plan(&mj, 1), "0-1 44-47");
        ck_assert(mj.group->budget.raised);
        model_job_deinit(&mj);
        begin(&mj, 1, &plain, (struct ckv_policy){ 0 });
        mj.group->selection.keep_ratio = 1000000;
        ck_assert_str_eq(plan(&mj, 0), "0-47");
        ck_assert_int_eq(mj.group->budget.kept_all, CKV_KEPT_FITS);
        model_job_deinit(&mj);
}
END_TEST

START_TEST(reuse_of_scores) {
        struct model_job each, reused;
        char leaders[2][256];

        begin(&each, 5, &plain, (struct ckv_policy){ 0 });
        ck_assert_str_eq(plan(&each, 0), "0-4 10-14 20-29 44-47");
        begin(&reused, 5, &plain, (struct ckv_policy){ .reuse = 2 });
        reused.group->layers[1].query = NULL;           /* followers need none */
        reused.group->layers[3].query = NULL;
        (void)plan(&reused, 0);
        ck_assert_uint_eq(reused.group->kept_count, 5);
        for (uint32_t i = 0; i < 5; i++) {
                (void)rows_to_string(&each.group->kept[i - i % 2], leaders[0], sizeof(leaders[0]));
                (void)rows_to_string(&reused.group->kept[i], leaders[1], sizeof(leaders[1]));
                ck_assert_str_eq(leaders[0], leaders[1]);
        }
        /* the layers do differ, or nothing was shown */
        (void)rows_to_string(&each.group->kept[1], leaders[0], sizeof(leaders[0]));
        (void)rows_to_string(&each.group->kept[0], leaders[1], sizeof(leaders[1]));
        ck_assert_str_ne(leaders[0], leaders[1]);
        model_job_deinit(&each);
        model_job_deinit(&reused);
}
END_TEST

/* One set for three layers from C summed by hand, the given layers only. */
static void one_set_by_hand(struct model_job *mj, const uint32_t *layers, size_t n, char *buffer, size_t size) {
        uint8_t flags[L];
        struct ckv_units units;
        struct ckv_kept kept;
        double t[L], unit_sum[L] = { 0 }, row_sum[L] = { 0 };
        float c[L], rows[L];

        ck_assert_int_eq(ckv_select_budget(&mj->group->selection, flags, &mj->group->budget), 0);
        ck_assert_int_eq(ckv_units_init(&units, &mj->group->selection, flags), 0);
        for (size_t i = 0; i < n; i++) {
                ck_assert_int_eq(ckv_ref_score_rows(mj->job, mj->group, &mj->group->layers[layers[i]], t), 0);
                ckv_ref_unit_scores(&mj->group->policy, &units, L, t, c);
                for (uint32_t u = 0; u < units.count; u++)
                        unit_sum[u] += (double)c[u];
                for (int j = 0; j < L; j++)
                        row_sum[j] += (double)ckv_fl32(t[j]);
        }
        for (int j = 0; j < L; j++) {
                c[j] = (float)unit_sum[j];
                rows[j] = (float)row_sum[j];
        }
        ck_assert_int_eq(ckv_select(&mj->group->selection, &units, &mj->group->budget, flags, c, rows, &kept, NULL), 0);
        (void)rows_to_string(&kept, buffer, size);
        ckv_kept_deinit(&kept);
        ckv_units_deinit(&units);
}

START_TEST(one_set_for_all_layers) {
        static const uint32_t all[] = { 0, 1, 2 }, leaders[] = { 0, 2 };
        static const enum ckv_fill fills[] = { CKV_FILL_LEAD, CKV_FILL_BEST };

        for (size_t i = 0; i < CKV_ARRAY_SIZE(fills); i++)
                for (uint32_t reuse = 1; reuse <= 2; reuse++) {
                        struct model_job mj;
                        char expected[256];

                        begin(&mj, 3, &plain,
                              (struct ckv_policy){ .layers = CKV_LAYERS_ONE, .fill = fills[i], .reuse = reuse });
                        mj.group->selection.max_tokens = 23;
                        one_set_by_hand(&mj, reuse == 1 ? all : leaders, reuse == 1 ? 3 : 2, expected,
                                        sizeof(expected));
                        ck_assert_str_eq(plan(&mj, 0), expected);
                        ck_assert_uint_eq(mj.group->kept_count, 1);
                        model_job_deinit(&mj);
                }
}
END_TEST

int main(void) {
        Suite *suite = suite_create("reference");
        TCase *scores = tcase_create("scores"), *jobs = tcase_create("jobs");
        SRunner *runner = srunner_create(suite);
        int failed;

        suite_add_tcase(suite, scores);
        tcase_add_test(scores, pools);
        tcase_add_test(scores, heads_and_groups);
        tcase_add_test(scores, end_to_end_bits);
        tcase_add_test(scores, raw_qk_is_bare_products);
        tcase_add_test(scores, norms);
        tcase_add_test(scores, scale_is_the_callers);
        tcase_add_test(scores, value_weights);
        tcase_add_test(scores, r30_equal_bits_in_every_layout);
        tcase_add_test(scores, r34_masked_rows_do_not_matter);
        tcase_add_test(scores, visibility_goes_by_position);
        suite_add_tcase(suite, jobs);
        tcase_add_test(jobs, end_to_end_variants);
        tcase_add_test(jobs, r23_refusals);
        tcase_add_test(jobs, other_outcomes);
        tcase_add_test(jobs, reuse_of_scores);
        tcase_add_test(jobs, one_set_for_all_layers);
        srunner_run_all(runner, CK_NORMAL);
        failed = srunner_ntests_failed(runner);
        srunner_free(runner);
        return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
