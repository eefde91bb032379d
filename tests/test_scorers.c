/*
 * Each scorer on a cache so small that a person can check the numbers, through
 * the reference and through each of the CPU's paths.
 *
 * All values are binary32, one row after the other; a query of zeros sees all
 * its rows alike, so its weights are 1 / (rows it sees).
 */
#include "base/clock.h"
#include "base/macros.h"
#include "kernels/cpu_pool.h"
#include "kernels/cpu_score.h"
#include "kernels/reference.h"
#include "tests/support_paths.h"

#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS_MOST = 600 };

/* A job of one layer: kv_heads heads of @rows rows of @dims dimensions, and @given query rows */
struct tiny {
        struct ckv_job *job;
        struct ckv_job_group *group;
        struct ckv_job_layer layer;
        uint32_t entry;
        float *k, *v;                   /* [kv_heads][rows][dims] */
        float *q;                       /* [q_heads][given][dims] */
};

static float *floats(size_t n) {
        float *p = calloc(n + 1, sizeof(*p));

        ck_assert_ptr_nonnull(p);
        return p;
}

static struct ckv_plane plane_of(float *values, uint32_t rows, uint32_t dims) {
        return (struct ckv_plane){
                .base = (uint8_t *)values, .block_stride = 4, .head_stride = (uint64_t)4 * rows * dims,
                .token = { .tile = 1, .outer = (uint64_t)4 * dims }, .dim = { .tile = 1, .outer = 4 }, .dtype = CKV_DTYPE_F32,
                .dims = dims,
        };
}

static void tiny_init(struct tiny *tiny, uint32_t rows, uint32_t dims, uint32_t kv_heads, uint32_t per_group, uint32_t given,
                      struct ckv_policy policy) {
        struct ckv_job_group *group;

        memset(tiny, 0, sizeof(*tiny));
        tiny->job = ckv_job_new(1);
        ck_assert_ptr_nonnull(tiny->job);
        group = tiny->group = &tiny->job->groups[0];
        tiny->k = floats((size_t)kv_heads * rows * dims);
        tiny->v = floats((size_t)kv_heads * rows * dims);
        tiny->q = floats((size_t)kv_heads * per_group * given * dims);
        policy.scorer = policy.scorer ? policy.scorer : CKV_SCORER_WINDOW;
        policy.pool = policy.pool ? policy.pool : CKV_POOL_NONE;
        policy.norm = policy.norm ? policy.norm : CKV_NORM_SUM;
        policy.heads = policy.heads ? policy.heads : CKV_HEADS_SUM;
        policy.group_heads = policy.group_heads ? policy.group_heads : CKV_GROUP_SUM;
        policy.window_reduce = policy.window_reduce ? policy.window_reduce : CKV_ROWS_SUM;
        policy.window = policy.window ? policy.window : given;
        group->policy = policy;
        group->kv_heads = kv_heads;
        group->q_heads = kv_heads * per_group;
        group->head_dim_k = group->head_dim_v = dims;
        group->selection.rows = rows;
        tiny->layer = (struct ckv_job_layer){ .k = plane_of(tiny->k, rows, dims), .v = plane_of(tiny->v, rows, dims),
                                              .query = (uint8_t *)tiny->q };
        group->layers = calloc(1, sizeof(*group->layers));
        ck_assert_ptr_nonnull(group->layers);
        group->layer_count = 1;
        group->table = (struct ckv_row_table){ .entries = calloc(1, sizeof(uint32_t)), .tokens_per_block = rows };
        tiny->job->queries = (struct ckv_job_queries){
                .dtype = given ? CKV_DTYPE_F32 : CKV_DTYPE_NONE, .rows = given, .head_stride = (uint64_t)4 * given * dims,
                .row_stride = (uint64_t)4 * dims,
        };
}

static void tiny_deinit(struct tiny *tiny) {
        tiny->job = ckv_job_free(tiny->job);
        free(tiny->k);
        free(tiny->v);
        free(tiny->q);
}

/* Scores of one CPU path. Return: h + 1 of a wrong log-sum-exp, or 0 */
static uint32_t score_cpu(const struct tiny *tiny, const struct ckv_cpu_path *path, uint32_t count, double *ret_rows) {
        struct ckv_cpu_choice *choice = paths_choice(path);
        struct ckv_cpu_pool *pool;
        struct ckv_cpu_score *score;
        uint32_t bad;

        ck_assert_int_eq(ckv__cpu_pool_new(2, &pool), 0);
        ck_assert_int_eq(ckv__cpu_score_new(tiny->job, tiny->group, &score), 0);
        ckv__cpu_score_begin(score, &tiny->group->layers[0]);
        while (!ckv__cpu_score_step(score, pool, choice, ckv_now_nsec() + 50 * CKV_NSEC_PER_USEC))
                ;
        bad = ckv__cpu_score_bad_head(score);
        if (bad == 0)
                memcpy(ret_rows, ckv__cpu_score_rows(score), count * sizeof(*ret_rows));
        (void)ckv__cpu_score_free(score);
        (void)ckv__cpu_pool_free(pool);
        (void)ckv__cpu_choice_free(choice);
        return bad;
}

/* The scores, [heads][L], are @expected: the reference's to 1e-13 of it, the CPU path's to 1e-5 */
static void check(struct tiny *tiny, const double *expected) {
        const struct ckv_cpu_path *paths[PATHS_AT_MOST];
        uint32_t count = ckv_score_heads(tiny->group) * tiny->group->selection.rows, n = paths_list(paths);
        double rows[ROWS_MOST];

        ck_assert_uint_le(count, ROWS_MOST);
        tiny->group->layers[0] = tiny->layer;
        ck_assert_int_eq(ckv_ref_score_rows(tiny->job, tiny->group, &tiny->layer, rows), 0);
        for (uint32_t j = 0; j < count; j++)
                ck_assert_msg(fabs(rows[j] - expected[j]) <= 1e-13 * fabs(expected[j]) + 1e-16,
                              "reference: row %u is %.17g instead of %.17g", j, rows[j], expected[j]);
        for (uint32_t i = 0; i < n; i++) {
                ck_assert_uint_eq(score_cpu(tiny, paths[i], count, rows), 0);
                for (uint32_t j = 0; j < count; j++)
                        ck_assert_msg(fabs(rows[j] - expected[j]) <= 1e-5 * fabs(expected[j]) + 1e-12,
                                      "%s: row %u is %.17g instead of %.17g", paths[i]->name, j, rows[j], expected[j]);
        }
}

#define CHECK(tiny, ...) check((tiny), (const double[]){ __VA_ARGS__ })

/* Reference and all paths find that a log-sum-exp of query head @head is wrong. */
static void check_bad(struct tiny *tiny, uint32_t head) {
        const struct ckv_cpu_path *paths[PATHS_AT_MOST];
        uint32_t n = paths_list(paths);
        double rows[ROWS_MOST];

        tiny->group->layers[0] = tiny->layer;
        ck_assert_int_eq(ckv_ref_score_rows(tiny->job, tiny->group, &tiny->layer, rows), (int)head + 1);
        for (uint32_t i = 0; i < n; i++)
                ck_assert_uint_eq(score_cpu(tiny, paths[i], 0, rows), head + 1);
}

static void fill(float *to, uint32_t n, const float *values) {
        memcpy(to, values, n * sizeof(*to));
}

#define FILL(to, ...) fill((to), CKV_ARRAY_SIZE(((const float[]){ __VA_ARGS__ })), (const float[]){ __VA_ARGS__ })

START_TEST(knorm_is_minus_the_length) {
        struct tiny tiny;

        tiny_init(&tiny, 3, 2, 2, 1, 0, (struct ckv_policy){ .scorer = CKV_SCORER_KNORM });
        FILL(tiny.k, 3, 4, 0, 0, 1, 0, /* head 1 */ 0, 2, 0, 2, 6, 8);
        CHECK(&tiny, -7, -2, -11);
        tiny.group->policy.heads = CKV_HEADS_MAX;
        CHECK(&tiny, -2, 0, -1);
        tiny.group->policy.heads = CKV_HEADS_EACH;
        CHECK(&tiny, -5, 0, -1, -2, -2, -10);
        /* no window: pools reach over all rows */
        tiny.group->policy.heads = CKV_HEADS_SUM;
        tiny.group->policy.pool = CKV_POOL_MAX;
        tiny.group->policy.pool_size = 3;
        CHECK(&tiny, -2, -2, -2);
        tiny.group->policy.pool = CKV_POOL_AVG;
        CHECK(&tiny, -9.0 / 3, -20.0 / 3, -13.0 / 3);
        tiny_deinit(&tiny);
}
END_TEST

START_TEST(vk_ratio_divides_lengths) {
        struct tiny tiny;

        tiny_init(&tiny, 3, 2, 1, 1, 0, (struct ckv_policy){ .scorer = CKV_SCORER_VK_RATIO });
        FILL(tiny.k, 3, 4, 0, 0, 1, 0);
        FILL(tiny.v, 0, 10, 1, 0, 6, 8);
        CHECK(&tiny, 2, 1e12, 10);
        /* times the l1 norm of V, as for any other scorer */
        tiny.group->policy.value_weight = CKV_WEIGHT_L1;
        CHECK(&tiny, 20, 1e12, 140);
        tiny_deinit(&tiny);
}
END_TEST

/* Directions (1,0), (0,1), (-1,0): their mean is (0, 1/3), which the middle key points at and the others are square to. */
START_TEST(keydiff_is_minus_the_cosine) {
        struct tiny tiny;

        tiny_init(&tiny, 3, 2, 1, 1, 0, (struct ckv_policy){ .scorer = CKV_SCORER_KEYDIFF });
        FILL(tiny.k, 2, 0, 0, 3, -5, 0);
        CHECK(&tiny, 0, -1, 0);
        /* (1,0), (0,1), and a key of zeros, which has no direction */
        FILL(tiny.k, 2, 0, 0, 3, 0, 0);
        CHECK(&tiny, -M_SQRT1_2, -M_SQRT1_2, 0);
        tiny_deinit(&tiny);
}
END_TEST

/* Channel 0 is constant, so it counts as 0; channel 1 goes from 0 to 127, so rows rank by it. */
START_TEST(lagkv_ranks_by_spread) {
        enum { L = 4 + 3 * 128 + 5 };
        struct tiny tiny;
        double expected[L];

        tiny_init(&tiny, L, 2, 1, 1, 0, (struct ckv_policy){ .scorer = CKV_SCORER_LAGKV });
        for (uint32_t j = 0; j < L; j++) {
                uint32_t i = (j - 4) % 128, partition = (j - 4) / 128, place = i * (partition == 0 ? 37 : 5) % 128;

                tiny.k[2 * j] = tiny.v[2 * j] = 7;
                tiny.k[2 * j + 1] = tiny.v[2 * j + 1] = (float)place;
                expected[j] = j >= 4 && partition < 2 ? place / 128.0 : 1;
        }
        check(&tiny, expected);
        tiny_deinit(&tiny);
}
END_TEST

START_TEST(lagkv_of_equal_rows_ranks_by_index) {
        enum { L = 4 + 2 * 128 };
        struct tiny tiny;
        double expected[L];

        tiny_init(&tiny, L, 1, 1, 1, 0, (struct ckv_policy){ .scorer = CKV_SCORER_LAGKV });
        for (uint32_t j = 0; j < L; j++)
                expected[j] = j >= 4 && j < 132 ? (j - 4) / 128.0 : 1;
        check(&tiny, expected);
        tiny_deinit(&tiny);
}
END_TEST

/* Below 4 + 256 rows scores go by row: 1 for the first four, then 0, 1/2. */
START_TEST(lagkv_of_short_sequences) {
        struct tiny tiny;

        tiny_init(&tiny, 6, 1, 1, 1, 0, (struct ckv_policy){ .scorer = CKV_SCORER_LAGKV });
        CHECK(&tiny, 1, 1, 1, 1, 0, 0.5);
        tiny_deinit(&tiny);
        ck_assert_uint_eq(ckv_ref_lag_partitions(259), 0);
        ck_assert_uint_eq(ckv_ref_lag_partitions(260), 1);
        ck_assert_uint_eq(ckv_ref_lag_partitions(387), 1);
        ck_assert_uint_eq(ckv_ref_lag_partitions(388), 2);
}
END_TEST

/* Weights 1/3 each, o = 3: (1/3 / (2/3))^2 * |V - 3|^2. Then a query that sees one row: without it nothing is left. */
START_TEST(drop_is_the_change_of_the_output) {
        struct tiny tiny;
        double rows[2];

        tiny_init(&tiny, 3, 1, 1, 1, 1, (struct ckv_policy){ .scorer = CKV_SCORER_DROP });
        FILL(tiny.v, 0, 3, 6);
        CHECK(&tiny, 2.25, 0, 2.25);
        tiny_deinit(&tiny);

        /* two query rows: the older sees rows 0 and 1, weights 1/2, o = 1.5: adds 1 * 1.5^2 to each */
        tiny_init(&tiny, 3, 1, 1, 1, 2, (struct ckv_policy){ .scorer = CKV_SCORER_DROP });
        FILL(tiny.v, 0, 3, 6);
        CHECK(&tiny, 4.5, 2.25, 2.25);
        tiny_deinit(&tiny);

        /* logits 0 and 1000: p = 0 and 1; the share of the second is cut off at 2^20, and it is the output itself */
        tiny_init(&tiny, 2, 1, 1, 1, 1, (struct ckv_policy){ .scorer = CKV_SCORER_DROP });
        FILL(tiny.k, 0, 1000);
        FILL(tiny.v, 5, 3);
        FILL(tiny.q, 1);
        CHECK(&tiny, 0, 0);
        tiny_deinit(&tiny);

        /* weights 1/4 and 3/4 (logits 0 and ln 3), o = 3: (1/3)^2 * 3^2 and 3^2 * 1^2, as near as ln 3 is one */
        tiny_init(&tiny, 2, 1, 1, 1, 1, (struct ckv_policy){ .scorer = CKV_SCORER_DROP });
        FILL(tiny.k, 0, logf(3));
        FILL(tiny.v, 0, 4);
        FILL(tiny.q, 1);
        ck_assert_int_eq(ckv_ref_score_rows(tiny.job, tiny.group, &tiny.layer, rows), 0);
        ck_assert_double_eq_tol(rows[0], 1, 1e-6);
        ck_assert_double_eq_tol(rows[1], 9, 1e-5);
        /* weights 2^-30 and nearly 1: the share is cut off at 2^20, and the output is 1 away from V */
        FILL(tiny.k, 0, 30 * logf(2));
        FILL(tiny.v, 0, 0x1p30f);
        ck_assert_int_eq(ckv_ref_score_rows(tiny.job, tiny.group, &tiny.layer, rows), 0);
        ck_assert_double_eq_tol(rows[1], 0x1p40, 0x1p40 * 1e-4);
        tiny_deinit(&tiny);
}
END_TEST

/* Four rows, seen alike: the log-sum-exp is ln 4. Off by 0.05 it scales the weights, off by 0.2 the alarm goes off. */
START_TEST(lse_replaces_the_softmax) {
        struct tiny tiny;
        uint8_t bytes[9] = { 0 };
        const float cases[] = { 0.2f, -0.2f, NAN, INFINITY, -INFINITY };
        float lse[2] = { logf(4), logf(4) };
        double ln4 = (double)lse[0];

        tiny_init(&tiny, 4, 1, 1, 2, 1, (struct ckv_policy){ .window = 1 });
        tiny.layer.lse = bytes + 1;
        memcpy(bytes + 1, lse, sizeof(lse));
        CHECK(&tiny, 2 * exp(-ln4), 2 * exp(-ln4), 2 * exp(-ln4), 2 * exp(-ln4));
        lse[1] += 0.05f;
        memcpy(bytes + 1, lse, sizeof(lse));
        ln4 = exp(-ln4) + exp(-(double)lse[1]);
        CHECK(&tiny, ln4, ln4, ln4, ln4);
        for (size_t i = 0; i < CKV_ARRAY_SIZE(cases); i++) {
                lse[1] = logf(4) + cases[i];
                memcpy(bytes + 1, lse, sizeof(lse));
                check_bad(&tiny, 1);
        }
        lse[0] = 9;
        memcpy(bytes + 1, lse, sizeof(lse));
        check_bad(&tiny, 0);
        tiny_deinit(&tiny);
}
END_TEST

/* One logit is 0.11 above its log-sum-exp, though the weights, which are cut off at 1, add up to 1. */
START_TEST(lse_below_a_logit) {
        struct tiny tiny;
        float lse = 0.89f;

        tiny_init(&tiny, 2, 1, 1, 1, 1, (struct ckv_policy){ .window = 1 });
        FILL(tiny.k, -50, 1);
        FILL(tiny.q, 1);
        tiny.layer.lse = (uint8_t *)&lse;
        check_bad(&tiny, 0);
        lse = 0.91f;
        CHECK(&tiny, exp(-50.0 - (double)lse), 1);
        tiny_deinit(&tiny);
}
END_TEST

/* The rows of the log-sum-exp lie in the ring of the queries. */
START_TEST(lse_lies_in_the_ring) {
        struct tiny tiny;
        float lse[2] = { logf(4), logf(3) };            /* slot 0 is the newest row, which sees 4 */

        tiny_init(&tiny, 4, 1, 1, 1, 2, (struct ckv_policy){ .window = 2 });
        tiny.job->queries.ring_start = 1;
        tiny.layer.lse = (uint8_t *)lse;
        CHECK(&tiny, exp(-(double)lse[0]) + exp(-(double)lse[1]), exp(-(double)lse[0]) + exp(-(double)lse[1]),
              exp(-(double)lse[0]) + exp(-(double)lse[1]), exp(-(double)lse[0]));
        tiny.job->queries.ring_start = 0;
        check_bad(&tiny, 0);
        tiny_deinit(&tiny);
}
END_TEST

/* Three rows and a sink of equal logit: 1/4 each. With ln 5: 1/8. And the log-sum-exp covers the sink. */
START_TEST(sink_logits_join_the_sum) {
        struct tiny tiny;
        float sinks[2] = { 0, -INFINITY }, lse[2];
        double s, third = 1.0 / 3;

        tiny_init(&tiny, 3, 1, 1, 2, 1, (struct ckv_policy){ .window = 1 });
        tiny.layer.sink_logits = (uint8_t *)sinks;
        CHECK(&tiny, 0.25 + third, 0.25 + third, 0.25 + third);
        sinks[0] = logf(5);
        s = 1 / (3 + exp((double)sinks[0])) + third;
        CHECK(&tiny, s, s, s);
        /* a sink far above all logits takes everything */
        sinks[0] = 900;
        CHECK(&tiny, third, third, third);

        sinks[0] = logf(5);
        lse[0] = logf(8);
        lse[1] = logf(3);
        tiny.layer.lse = (uint8_t *)lse;
        s = exp(-(double)lse[0]) + exp(-(double)lse[1]);
        CHECK(&tiny, s, s, s);
        lse[0] = logf(3);
        check_bad(&tiny, 0);
        tiny_deinit(&tiny);
}
END_TEST

/* Query rows 2 .. 5 of six, their weights 1/3, 1/4, 1/5, 1/6. */
START_TEST(votes_contrast_and_mute) {
        struct tiny tiny;

        tiny_init(&tiny, 6, 1, 1, 1, 4, (struct ckv_policy){ .window = 2, .window_reduce = CKV_ROWS_MAX });
        CHECK(&tiny, 0.2, 0.2, 0.2, 0.2, 0.2, 1.0 / 6);
        /* vote_rows: of the window the newest one alone */
        tiny.group->policy.vote_rows = 1;
        CHECK(&tiny, 1.0 / 6, 1.0 / 6, 1.0 / 6, 1.0 / 6, 1.0 / 6, 1.0 / 6);
        tiny.group->policy.vote_rows = 2;
        /* less the mean of rows 2 and 3 back: 7/24 for rows 0-2, 1/8 for row 3 */
        tiny.group->policy.given = CKV_GIVEN_CONTRAST_FIRST | CKV_GIVEN_CONTRAST_END;
        tiny.group->policy.contrast_first = 2;
        tiny.group->policy.contrast_end = 64;
        CHECK(&tiny, 0, 0, 0, 0.2 - 0.125, 0.2, 1.0 / 6);
        /* the end is where it is given: row 2 back alone, 1/4 for rows 0-3 */
        tiny.group->policy.contrast_end = 3;
        CHECK(&tiny, 0, 0, 0, 0, 0.2, 1.0 / 6);
        /* sums can be contrasted too: 11/30 less 1/4 */
        tiny.group->policy.window_reduce = CKV_ROWS_SUM;
        CHECK(&tiny, 7.0 / 60, 7.0 / 60, 7.0 / 60, 7.0 / 60, 11.0 / 30, 1.0 / 6);
        tiny.group->policy.norm = CKV_NORM_MEAN;
        CHECK(&tiny, 0, 0, 0, 0, 11.0 / 60, 1.0 / 12);
        tiny.group->policy.norm = CKV_NORM_SEEN;
        CHECK(&tiny, 0, 0, 0, 0, 11.0 / 60, 1.0 / 6);
        tiny.group->policy.mute = 5;
        CHECK(&tiny, 0, 0, 0, 0, 0, 1.0 / 6);
        /* no row is so far back: nothing is subtracted */
        tiny.group->policy.mute = 0;
        tiny.group->policy.norm = CKV_NORM_SUM;
        tiny.group->policy.contrast_first = 4;
        CHECK(&tiny, 11.0 / 30, 11.0 / 30, 11.0 / 30, 11.0 / 30, 11.0 / 30, 1.0 / 6);
        tiny_deinit(&tiny);
}
END_TEST

/* One row of weight a: what it leaks to its neighbours, across the end behind row 3. The last row is outside the domain. */
START_TEST(leak_fades_and_stops_at_ends) {
        struct tiny tiny;
        uint32_t *lengths = calloc(2, sizeof(*lengths));
        double a = exp(30), z = a + 6, w = a / z, o = 1 / z;

        ck_assert_ptr_nonnull(lengths);
        tiny_init(&tiny, 7, 1, 1, 1, 1, (struct ckv_policy){ .window = 1, .pool = CKV_POOL_LEAK });
        FILL(tiny.k, 0, 0, 30);
        FILL(tiny.q, 1);
        CHECK(&tiny, w * 0.92 * 0.92, w * 0.92, w, w * 0.92, w * 0.92 * 0.92, w * 0.92 * 0.92 * 0.92, o);
        lengths[0] = 4;
        lengths[1] = 3;
        tiny.group->selection.chunk_lengths = lengths;
        tiny.group->selection.chunk_length_count = 2;
        CHECK(&tiny, w * 0.92 * 0.92, w * 0.92, w, w * 0.92, w * 0.92 * 0.92 * 0.3, w * 0.92 * 0.92 * 0.92 * 0.3, o);
        /* and the other way */
        FILL(tiny.k, 0, 0, 0, 0, 30, 0);
        CHECK(&tiny, w * 0.92 * 0.92 * 0.92 * 0.92 * 0.3, w * 0.92 * 0.92 * 0.92 * 0.3, w * 0.92 * 0.92 * 0.3, w * 0.92 * 0.3, w,
              w * 0.92, o);
        tiny_deinit(&tiny);
}
END_TEST

/* Profile vote pools all rows but the last r, others all but the window. */
START_TEST(pool_domains) {
        struct tiny tiny;

        tiny_init(&tiny, 6, 1, 1, 1, 3, (struct ckv_policy){ .pool = CKV_POOL_MAX, .pool_size = 3, .recent = 1 });
        ck_assert_uint_eq(ckv_ref_pool_domain(tiny.group), 3);
        tiny.group->policy.profile = CKV_PROFILE_VOTE;
        ck_assert_uint_eq(ckv_ref_pool_domain(tiny.group), 5);
        /* sums 1/4 + 1/5 + 1/6 = 37/60, 37/60, 37/60, 37/60, 22/60, 10/60: row 4 takes the maximum of row 3 */
        CHECK(&tiny, 37.0 / 60, 37.0 / 60, 37.0 / 60, 37.0 / 60, 37.0 / 60, 1.0 / 6);
        tiny.group->policy.scorer = CKV_SCORER_LAGKV;
        tiny.group->policy.profile = CKV_PROFILE_DEFAULT;
        ck_assert_uint_eq(ckv_ref_pool_domain(tiny.group), 6);
        tiny_deinit(&tiny);
}
END_TEST

/* H2O's window is the prompt: row j is seen by rows j .. 3, each of which gives 1 / (rows it sees). */
START_TEST(window_of_the_whole_prompt) {
        struct tiny tiny;

        tiny_init(&tiny, 4, 1, 1, 1, 4, (struct ckv_policy){ 0 });
        CHECK(&tiny, 25.0 / 12, 13.0 / 12, 7.0 / 12, 1.0 / 4);
        tiny.group->policy.norm = CKV_NORM_SEEN;
        CHECK(&tiny, 25.0 / 48, 13.0 / 36, 7.0 / 24, 1.0 / 4);
        tiny_deinit(&tiny);
}
END_TEST

int main(void) {
        Suite *suite = suite_create("scorers");
        TCase *tcase = tcase_create("by hand");
        SRunner *runner = srunner_create(suite);
        int failed;

        suite_add_tcase(suite, tcase);
        tcase_add_test(tcase, knorm_is_minus_the_length);
        tcase_add_test(tcase, vk_ratio_divides_lengths);
        tcase_add_test(tcase, keydiff_is_minus_the_cosine);
        tcase_add_test(tcase, lagkv_ranks_by_spread);
        tcase_add_test(tcase, lagkv_of_equal_rows_ranks_by_index);
        tcase_add_test(tcase, lagkv_of_short_sequences);
        tcase_add_test(tcase, drop_is_the_change_of_the_output);
        tcase_add_test(tcase, lse_replaces_the_softmax);
        tcase_add_test(tcase, lse_below_a_logit);
        tcase_add_test(tcase, lse_lies_in_the_ring);
        tcase_add_test(tcase, sink_logits_join_the_sum);
        tcase_add_test(tcase, votes_contrast_and_mute);
        tcase_add_test(tcase, leak_fades_and_stops_at_ends);
        tcase_add_test(tcase, pool_domains);
        tcase_add_test(tcase, window_of_the_whole_prompt);
        srunner_run_all(runner, CK_NORMAL);
        failed = srunner_ntests_failed(runner);
        srunner_free(runner);
        return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
