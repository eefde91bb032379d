/*
 * The golden cases of tests/data: queries and keys of a real model, and the
 * rows that kvpress' own code (profile kvpress) or an independent NumPy model
 * of algorithm.md (default, paper; vote: one set for all layers) kept.  Every
 * case goes through ckv_ref_run_plan() and must give the same set.
 */
#include "kernels/reference.h"
#include "tests/support_golden.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>

static struct golden golden, vote;

static void run_case(const struct golden *from, const struct golden_case *c) {
        struct ckv_job *job;
        struct ckv_policy_fault fault;

        ck_assert_int_eq(golden_job(from, c, &job, &fault), 0);
        ck_assert_int_eq(ckv_ref_run_plan(job), 0);
        ck_assert_msg(job->outcome == CKV_JOB_OK, "line %u: outcome %d", c->line, (int)job->outcome);
        ck_assert_uint_eq(job->groups[0].kept_count, 1);
        ck_assert_msg(golden_equal(c, &job->groups[0].kept[0]), "line %u: other rows kept", c->line);
        ck_assert_uint_eq(job->groups[0].kept[0].count, c->kept_count);
        (void)ckv_job_free(job);
}

/* Return: how many cases there are. */
static uint32_t run_profile(enum ckv_profile profile) {
        uint32_t ran = 0;

        for (uint32_t i = 0; i < golden.count; i++)
                if (golden.cases[i].asked.profile == profile) {
                        run_case(&golden, &golden.cases[i]);
                        ran++;
                }
        return ran;
}

START_TEST(golden_kvpress) {
        ck_assert_uint_eq(run_profile(CKV_PROFILE_KVPRESS), 157);
}
END_TEST

START_TEST(golden_default) {
        ck_assert_uint_eq(run_profile(CKV_PROFILE_DEFAULT), 356);
}
END_TEST

START_TEST(golden_paper) {
        ck_assert_uint_eq(run_profile(CKV_PROFILE_PAPER), 150);
}
END_TEST

START_TEST(golden_vote) {
        ck_assert_uint_eq(vote.count, 24);
        for (uint32_t i = 0; i < vote.count; i++) {
                ck_assert_int_eq(vote.cases[i].asked.profile, CKV_PROFILE_VOTE);
                run_case(&vote, &vote.cases[i]);
        }
}
END_TEST

int main(void) {
        Suite *suite = suite_create("golden");
        TCase *tcase = tcase_create("reference");
        SRunner *runner = srunner_create(suite);
        int failed, r = golden_open("golden.json", &golden);

        if (r == 0)
                r = golden_open("golden_vote.json", &vote);
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
        tcase_add_test(tcase, golden_vote);
        srunner_run_all(runner, CK_NORMAL);
        failed = srunner_ntests_failed(runner);
        srunner_free(runner);
        golden_close(&golden);
        golden_close(&vote);
        return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
