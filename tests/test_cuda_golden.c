/*
 * The golden cases of tests/data through the CUDA backend on the stand-in
 * driver: queries and keys of a real model, and the rows that kvpress' code or
 * an independent model of algorithm.md kept.
 *
 * The emulator takes from a second to ten for a case, so without
 * CKV_CUDA_GOLDEN=all in the environment, which `make check-cuda` sets, only a
 * few run, from either file and of each profile.  Planes lie in files that are
 * mapped read only, as in tests/test_conformance.c: nothing moves.
 */
#include "base/macros.h"
#include "tests/support_fake.h"
#include "tests/support_golden.h"
#include "tests/support_subject.h"

#include <check.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct subject subject = { "cuda", &ckv_backend_cuda, { 0 } };
static struct golden golden, vote;
static bool all;

static void plan_case(struct ckv_backend *backend, const struct golden *from, const struct golden_case *c) {
        struct pollfd done = { .fd = subject.ops->wait_fd(backend), .events = POLLIN };
        struct ckv_policy_fault fault;
        struct ckv_job *job;

        ck_assert_int_eq(golden_job(from, c, &job, &fault), 0);
        job->deadline_nsec = UINT64_MAX;
        job->stage = CKV_STAGE_PLAN;
        subject.ops->submit(backend, job);
        /* beside other tests one case has been seen to take a minute */
        ck_assert_int_eq(poll(&done, 1, 600000), 1);
        ck_assert_ptr_eq(subject.ops->reap(backend), job);
        ck_assert_msg(job->outcome == CKV_JOB_OK, "line %u: outcome %d", c->line, (int)job->outcome);
        ck_assert_msg(golden_equal(c, &job->groups[0].kept[0]), "line %u: other rows kept", c->line);
        (void)ckv_job_free(job);
}

/* Every @step-th case. Return: how many ran. */
static uint32_t plan_cases(const struct golden *from, uint32_t step) {
        struct ckv_backend *backend;
        uint32_t ran = 0;

        subject.options.library = support_fake_path();
        backend = subject_open(&subject);
        for (uint32_t i = 0; i < from->count; i += step, ran++)
                plan_case(backend, from, &from->cases[i]);
        (void)subject.ops->close(backend);
        return ran;
}

START_TEST(plan_golden) {
        ck_assert_uint_eq(plan_cases(&golden, all ? 1 : 100), all ? 663 : 7);
}
END_TEST

START_TEST(plan_golden_vote) {
        ck_assert_uint_eq(plan_cases(&vote, all ? 1 : 24), all ? 24 : 1);
}
END_TEST

int main(void) {
        Suite *suite = suite_create("cuda_golden");
        TCase *tcase = tcase_create("backend");
        const char *asked = getenv("CKV_CUDA_GOLDEN");
        SRunner *runner = srunner_create(suite);
        int failed, r = golden_open("golden.json", &golden);

        if (r == 0)
                r = golden_open("golden_vote.json", &vote);
        if (r < 0) {
                fprintf(stderr, "cannot read the golden files: error %d; run from the repository root or set CKV_TEST_DATA\n", -r);
                return EXIT_FAILURE;
        }
        all = asked && strcmp(asked, "all") == 0;
        suite_add_tcase(suite, tcase);
        tcase_set_timeout(tcase, all ? 3600 : 300);
        tcase_add_test(tcase, plan_golden);
        tcase_add_test(tcase, plan_golden_vote);
        srunner_run_all(runner, CK_NORMAL);
        failed = srunner_ntests_failed(runner);
        srunner_free(runner);
        golden_close(&golden);
        golden_close(&vote);
        return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
