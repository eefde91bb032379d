/*
 * The ways through scoring on a GPU: which layer goes which way, line by line
 * of the table in kernels/cuda_scheme.h, and where sums by unit have their
 * borders.  That they come out right is tests/emu_sums.c's and
 * tests/test_cuda_scores.c's.
 */
#include "base/macros.h"
#include "kernels/cuda/params.h"
#include "kernels/cuda_scheme.h"
#include "tests/support_random.h"

#include <check.h>
#include <stdlib.h>

/* A job of one layer that every line of the table but the last two can do something with */
static struct random_job *job_of(const struct ckv_policy *asked) {
        struct random_shape shape = { .groups = 1, .layers = 1, .rows = 400, .dims = 64, .dtype = CKV_DTYPE_BF16,
                                      .contiguous = true, .asked = asked };
        struct random_job *random = random_job_new(3, &shape);

        random->job->queries.dtype = CKV_DTYPE_BF16;
        random->job->groups[0].layers[0].lse = NULL;
        random->job->groups[0].scores = (struct ckv_job_scores){ 0 };
        random->job->groups[0].want_mass = false;
        return random;
}

static enum ckv_cuda_scheme scheme_of(const struct random_job *random, bool staged, uint32_t units) {
        const struct ckv_job_group *group = &random->job->groups[0];
        struct ckv_cuda_kind kind = ckv__cuda_kind(random->job, group, &group->layers[0], staged);

        return ckv__cuda_scheme(group, &kind, units);
}

static void check_policy(int line, const struct ckv_policy *asked, enum ckv_cuda_scheme without, enum ckv_cuda_scheme with_lse) {
        static const uint8_t lse[1];
        struct random_job *random = job_of(asked);

        ck_assert_msg(scheme_of(random, true, 40) == without, "line %d", line);
        random->job->groups[0].layers[0].lse = lse;
        ck_assert_msg(scheme_of(random, true, 40) == with_lse, "line %d, log-sum-exp", line);
        (void)random_job_free(random);
}

#define CHECK_POLICY(without, with_lse, ...) \
        check_policy(__LINE__, &(struct ckv_policy){ .window = 8, __VA_ARGS__ }, without, with_lse)

START_TEST(table_of_policies) {
        CHECK_POLICY(CKV_CUDA_UNITS_ONCE, CKV_CUDA_LSE, .profile = CKV_PROFILE_DEFAULT);
        CHECK_POLICY(CKV_CUDA_UNITS_ONCE, CKV_CUDA_LSE, .profile = CKV_PROFILE_KVPRESS);
        CHECK_POLICY(CKV_CUDA_UNITS_ONCE, CKV_CUDA_LSE, .pool = CKV_POOL_AVG);
        CHECK_POLICY(CKV_CUDA_UNITS_ONCE, CKV_CUDA_LSE, .heads = CKV_HEADS_EACH);
        CHECK_POLICY(CKV_CUDA_UNITS_ONCE, CKV_CUDA_LSE, .group_heads = CKV_GROUP_MEAN);
        CHECK_POLICY(CKV_CUDA_UNITS_ONCE, CKV_CUDA_LSE, .unit_reduce = CKV_UNIT_SUM);
        CHECK_POLICY(CKV_CUDA_UNITS_ONCE, CKV_CUDA_LSE, .norm = CKV_NORM_SEEN);
        CHECK_POLICY(CKV_CUDA_UNITS_ONCE, CKV_CUDA_LSE, .fill = CKV_FILL_NONE);
        CHECK_POLICY(CKV_CUDA_UNITS_ONCE, CKV_CUDA_LSE, .sliding = 50);
        CHECK_POLICY(CKV_CUDA_TWICE, CKV_CUDA_LSE, .fill = CKV_FILL_BEST);
        CHECK_POLICY(CKV_CUDA_TWICE, CKV_CUDA_LSE, .selector = CKV_SELECTOR_CHUNK_EG);
        CHECK_POLICY(CKV_CUDA_TWICE, CKV_CUDA_LSE, .pool = CKV_POOL_MAX);
        CHECK_POLICY(CKV_CUDA_TWICE, CKV_CUDA_LSE, .heads = CKV_HEADS_MAX);
        CHECK_POLICY(CKV_CUDA_TWICE, CKV_CUDA_LSE, .group_heads = CKV_GROUP_MAX);
        CHECK_POLICY(CKV_CUDA_TWICE, CKV_CUDA_LSE, .unit_reduce = CKV_UNIT_MAX);
        CHECK_POLICY(CKV_CUDA_TWICE, CKV_CUDA_LSE, .value_weight = CKV_WEIGHT_L2);
        CHECK_POLICY(CKV_CUDA_TWICE, CKV_CUDA_LSE, .mute = 4, .given = CKV_GIVEN_MUTE);
        CHECK_POLICY(CKV_CUDA_TWICE, CKV_CUDA_LSE, .profile = CKV_PROFILE_RETRIEVAL);
        CHECK_POLICY(CKV_CUDA_TWICE, CKV_CUDA_LSE, .contrast_first = 8, .contrast_end = 16,
                     .given = CKV_GIVEN_CONTRAST_FIRST | CKV_GIVEN_CONTRAST_END);
        CHECK_POLICY(CKV_CUDA_GENERAL, CKV_CUDA_GENERAL, .softcap = 30);
        CHECK_POLICY(CKV_CUDA_GENERAL, CKV_CUDA_GENERAL, .window_reduce = CKV_ROWS_MAX, .vote_rows = 4);
        CHECK_POLICY(CKV_CUDA_GENERAL, CKV_CUDA_GENERAL, .profile = CKV_PROFILE_VOTE);
        CHECK_POLICY(CKV_CUDA_GENERAL, CKV_CUDA_GENERAL, .profile = CKV_PROFILE_PAPER);
        CHECK_POLICY(CKV_CUDA_GENERAL, CKV_CUDA_GENERAL, .scorer = CKV_SCORER_RAW_QK);
        CHECK_POLICY(CKV_CUDA_KEYS, CKV_CUDA_KEYS, .scorer = CKV_SCORER_KNORM);
        CHECK_POLICY(CKV_CUDA_KEYS, CKV_CUDA_KEYS, .scorer = CKV_SCORER_KEYDIFF);
}
END_TEST

/* What the request and the cache add to it */
START_TEST(table_of_the_rest) {
        struct ckv_policy asked = { .window = 8 };
        struct random_job *random = job_of(&asked);
        struct ckv_job_group *group = &random->job->groups[0];
        struct ckv_job_queries *queries = &random->job->queries;
        struct ckv_plane *k = &group->layers[0].k;
        struct ckv_plane before = *k;
        float out[400];

        ck_assert_int_eq(scheme_of(random, true, 100), CKV_CUDA_UNITS_ONCE);
        ck_assert_int_eq(scheme_of(random, true, 101), CKV_CUDA_TWICE);
        ck_assert_int_eq(scheme_of(random, true, 0), CKV_CUDA_TWICE);
        group->want_mass = true;
        ck_assert_int_eq(scheme_of(random, true, 40), CKV_CUDA_TWICE);
        group->want_mass = false;
        group->scores = (struct ckv_job_scores){ .by_row = true, .out = (uint8_t *)out, .out_bytes = sizeof(out) };
        ck_assert_int_eq(scheme_of(random, true, 40), CKV_CUDA_TWICE);
        group->scores.by_row = false;
        ck_assert_int_eq(scheme_of(random, true, 40), CKV_CUDA_UNITS_ONCE);

        /* what is sent is packed; else tensor cores want queries at multiples of 4 */
        queries->row_stride |= 1;
        ck_assert_int_eq(scheme_of(random, true, 40), CKV_CUDA_UNITS_ONCE);
        ck_assert_int_eq(scheme_of(random, false, 40), CKV_CUDA_GENERAL);
        queries->row_stride = queries->head_stride = 1024;
        ck_assert_int_eq(scheme_of(random, false, 40), CKV_CUDA_UNITS_ONCE);
        queries->dtype = CKV_DTYPE_F32;
        ck_assert_int_eq(scheme_of(random, true, 40), CKV_CUDA_GENERAL);
        queries->dtype = CKV_DTYPE_BF16;
        k->base += 2;
        ck_assert_int_eq(scheme_of(random, true, 40), CKV_CUDA_GENERAL);
        *k = before;
        k->dim.outer = 4;
        k->dim.tile = 1;
        ck_assert_int_eq(scheme_of(random, true, 40), CKV_CUDA_GENERAL);
        *k = before;
        (void)random_job_free(random);
}
END_TEST

/* Borders of units that begin at @first_row, the last one at row @rows - 1 at the latest */
static bool bounds_of(enum ckv_pool pool, uint32_t size, uint32_t rows, uint32_t count, uint32_t *first_row, uint32_t *ret_bounds) {
        struct ckv_job_group group = { .policy = { .pool = pool, .pool_size = size }, .selection = { .rows = rows } };
        struct ckv_units units = { .count = count, .first_row = first_row };

        return ckv__cuda_sums_bounds(&group, &units, ret_bounds);
}

START_TEST(borders) {
        enum { S = CKV_K_SEGMENT };
        uint32_t at[] = { 4, 1000, S, S + 2, S + 500, 3 * S + 7 }, short_ones[] = { 0, 10, 13, 14, 30 }, bounds[8];
        const uint32_t none[] = { 0, 1, 2, 4, 4, 4, 4, 5 }, five[] = { 0, 2, 1, 4, 4, 4, 4, 5 };

        ck_assert(bounds_of(CKV_POOL_NONE, 5, 3 * S + 20, 6, at, bounds));
        ck_assert_mem_eq(bounds, none, sizeof(bounds));
        ck_assert(bounds_of(CKV_POOL_AVG, 5, 3 * S + 20, 6, at, bounds));
        ck_assert_mem_eq(bounds, five, sizeof(bounds));
        /* a row has parts in three units: 11 .. 15 are of the second, third and fourth */
        ck_assert(bounds_of(CKV_POOL_AVG, 5, 40, 5, short_ones, bounds));
        ck_assert(!bounds_of(CKV_POOL_AVG, 7, 40, 5, short_ones, bounds));
        ck_assert(bounds_of(CKV_POOL_NONE, 7, 40, 5, short_ones, bounds));
        ck_assert(!bounds_of(CKV_POOL_NONE, 1, 40, 0, short_ones, bounds));
}
END_TEST

int main(void) {
        Suite *suite = suite_create("cuda_scheme");
        TCase *tcase = tcase_create("scheme");
        SRunner *runner = srunner_create(suite);
        int failed;

        suite_add_tcase(suite, tcase);
        tcase_add_test(tcase, table_of_policies);
        tcase_add_test(tcase, table_of_the_rest);
        tcase_add_test(tcase, borders);
        srunner_run_all(runner, CK_NORMAL);
        failed = srunner_ntests_failed(runner);
        srunner_free(runner);
        return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
