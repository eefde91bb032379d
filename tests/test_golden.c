/*
 * The golden cases of tests/data: queries and keys of a real model, and the
 * rows that kvpress' own code (profile kvpress) or an independent NumPy model
 * of algorithm.md (default, paper) kept.  Every case goes through
 * ckv_ref_run_plan() as a job of one layer and must give the same set.
 *
 * Cases whose scorer is not built are counted and must be exactly those that
 * ckv_policy_resolve() refuses as unsupported.
 */
#include "kernels/reference.h"
#include "tests/support_golden.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>

static struct golden golden;

/* How many cases of a profile ran, how many had no method here. */
struct tally {
        uint32_t ran, unsupported;
};

static void run_case(const struct golden_case *c, struct tally *tally) {
        struct ckv_job *job;
        struct ckv_policy_fault fault;
        int r = golden_job(&golden, c, &job, &fault);

        if (r == GOLDEN_E_UNSUPPORTED) {
                ck_assert_int_eq(fault.field, CKV_FIELD_SCORER);
                tally->unsupported++;
                return;
        }
        ck_assert_int_eq(r, 0);
        ck_assert_int_eq(ckv_ref_run_plan(job), 0);
        ck_assert_msg(job->outcome == CKV_JOB_OK, "line %u: outcome %d", c->line, (int)job->outcome);
        ck_assert_msg(golden_equal(c, &job->groups[0].kept[0]), "line %u of golden.json: other rows kept", c->line);
        ck_assert_uint_eq(job->groups[0].kept[0].count, c->kept_count);
        tally->ran++;
        (void)ckv_job_free(job);
}

static struct tally run_profile(enum ckv_profile profile) {
        struct tally tally = { 0 };

        for (uint32_t i = 0; i < golden.count; i++)
                if (golden.cases[i].asked.profile == profile)
                        run_case(&golden.cases[i], &tally);
        return tally;
}

START_TEST(golden_kvpress) {
        struct tally tally = run_profile(CKV_PROFILE_KVPRESS);

        ck_assert_uint_eq(tally.ran, 157);
        ck_assert_uint_eq(tally.unsupported, 0);
}
END_TEST

START_TEST(golden_default) {
        struct tally tally = run_profile(CKV_PROFILE_DEFAULT);

        ck_assert_uint_eq(tally.ran, 356);
        ck_assert_uint_eq(tally.unsupported, 0);
}
END_TEST

START_TEST(golden_paper) {
        struct tally tally = run_profile(CKV_PROFILE_PAPER);

        ck_assert_uint_eq(tally.ran, 150);
        ck_assert_uint_eq(tally.unsupported, 0);
}
END_TEST

int main(void) {
        Suite *suite = suite_create("golden");
        TCase *tcase = tcase_create("reference");
        SRunner *runner = srunner_create(suite);
        int failed, r = golden_open(&golden);

        if (r < 0) {
                fprintf(stderr,
                        "cannot read the golden files: error %d; run from the repository root or set CKV_TEST_DATA\n",
                        -r);
                return EXIT_FAILURE;
        }
        suite_add_tcase(suite, tcase);
        tcase_set_timeout(tcase, 600);
        tcase_add_test(tcase, golden_kvpress);
        tcase_add_test(tcase, golden_default);
        tcase_add_test(tcase, golden_paper);
        srunner_run_all(runner, CK_NORMAL);
        failed = srunner_ntests_failed(runner);
        srunner_free(runner);
        golden_close(&golden);
        return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
