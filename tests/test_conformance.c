/*
 * One suite for every backend: random jobs (support_random.h) and the golden
 * cases go through it and through the reference, and must come out the same.
 *
 * PLAN: outcome, what failed, budget, and kept rows, which may differ inside
 * the gap band of R32 only.  MOVE, of the reference's kept rows: every byte of
 * every allocation, and bytes_moved.  A failure names the number of the job.
 */
#include "base/macros.h"
#include "tests/support_golden.h"
#include "tests/support_random.h"
#include "tests/support_subject.h"

#include <check.h>
#include <stdio.h>

/* Random jobs of one subject: enough that every pair of options meets a few times. Sanitizers look at the same code with
 * fewer of them, because they are twenty times slower. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { JOBS = 60, WIDE_JOBS = 2, GOLDEN_STEP = 9 };
#else
enum { JOBS = 160, WIDE_JOBS = 6, GOLDEN_STEP = 1 };
#endif

static struct golden golden, vote;

START_TEST(plan_and_move_random) {
        const struct subject *subject = &subjects[_i];
        struct ckv_backend *backend = subject_open(subject);
        struct tally tally = { 0 };

        for (uint64_t seed = 1; seed <= JOBS; seed++)
                subject_run_random(subject, backend, seed, &(struct random_shape){ 0 }, &tally);
        (void)subject->ops->close(backend);
        printf("%s: %u jobs, %u of their groups moved, %u refused, %u kept sets inside the band\n", subject->name,
               tally.planned, tally.moved, tally.failed, tally.within);
        /* a suite in which nothing moves or nothing is refused proves little */
        ck_assert_uint_gt(tally.moved, JOBS / 3);
        ck_assert_uint_gt(tally.failed, 0);
        /* the band holds the unit that was cut, so it would hide wrong rows in it; sets that really are that close are rare */
        ck_assert_uint_le(tally.within, 3);
}
END_TEST

/* What a group may bring along or do otherwise: a destination, a kept set, a length of its own. */
START_TEST(plan_and_move_variants) {
        static const struct random_shape variants[] = {
                { .copy_out = true },
                { .given = true },
                { .lengths = true, .groups = 3, .layers = 2 },
                { .copy_out = true, .given = true, .lengths = true, .groups = 2 },
        };
        const struct subject *subject = &subjects[_i % SUBJECTS];
        const struct random_shape *shape = &variants[_i / SUBJECTS];
        struct ckv_backend *backend = subject_open(subject);
        struct tally tally = { 0 };

        for (uint64_t seed = 1; seed <= JOBS / 4; seed++)
                subject_run_random(subject, backend, 3000 + 100 * (uint64_t)_i + seed, shape, &tally);
        (void)subject->ops->close(backend);
        ck_assert_uint_gt(tally.moved, JOBS / 12);
        ck_assert_uint_le(tally.within, 3);
}
END_TEST

/* Leaders and followers, and one set for all layers. */
START_TEST(plan_and_move_reuse) {
        const struct subject *subject = &subjects[_i];
        struct ckv_backend *backend = subject_open(subject);
        struct tally tally = { 0 };

        for (uint64_t seed = 1; seed <= 10; seed++) {
                struct ckv_policy asked = {
                        .window = 8, .reuse = 2 + seed % 4, .fill = seed % 2 ? CKV_FILL_BEST : CKV_FILL_LEAD,
                        .layers = seed % 3 ? CKV_LAYERS_EACH : CKV_LAYERS_ONE,
                };
                struct random_shape shape = { .layers = 7, .rows = 200, .asked = &asked, .keep_ratio = 400000 };

                subject_run_random(subject, backend, 2000 + seed, &shape, &tally);
        }
        (void)subject->ops->close(backend);
        ck_assert_uint_ge(tally.moved, 10);
        ck_assert_uint_le(tally.within, 1);
}
END_TEST

/* Windows of 256 rows, and more queries for one KV head than a panel holds. */
START_TEST(plan_and_move_wide_windows) {
        const struct subject *subject = &subjects[_i];
        struct ckv_backend *backend = subject_open(subject);
        struct ckv_policy asked = { .window = 256, .chunk = 16 };
        struct random_shape shape = { .rows = 700, .kv_heads = 1, .layers = 1, .groups = 1, .asked = &asked,
                .keep_ratio = 500000 };
        struct tally tally = { 0 };

        for (uint64_t seed = 1; seed <= WIDE_JOBS; seed++) {
                asked.sliding = seed % 2 ? 0 : 100;
                subject_run_random(subject, backend, 1000 + seed, &shape, &tally);
        }
        (void)subject->ops->close(backend);
        ck_assert_uint_gt(tally.moved, 0);
}
END_TEST

static uint32_t plan_cases(const struct subject *subject, const struct golden *from, uint32_t step) {
        struct ckv_backend *backend = subject_open(subject);
        uint32_t ran = 0;

        for (uint32_t i = 0; i < from->count; i += step) {
                const struct golden_case *c = &from->cases[i];
                struct ckv_policy_fault fault;
                struct ckv_job *job;

                ck_assert_int_eq(golden_job(from, c, &job, &fault), 0);
                job->deadline_nsec = UINT64_MAX;
                subject_run(subject, backend, job, CKV_STAGE_PLAN);
                ck_assert_int_eq(job->outcome, CKV_JOB_OK);
                ck_assert_msg(golden_equal(c, &job->groups[0].kept[0]), "%s, line %u: other rows kept", subject->name, c->line);
                ran++;
                (void)ckv_job_free(job);
        }
        (void)subject->ops->close(backend);
        return ran;
}

START_TEST(plan_golden) {
        ck_assert_uint_gt(plan_cases(&subjects[_i], &golden, GOLDEN_STEP), 600 / GOLDEN_STEP);
}
END_TEST

START_TEST(plan_golden_vote) {
        ck_assert_uint_eq(plan_cases(&subjects[_i], &vote, 1), 24);
}
END_TEST

int main(void) {
        Suite *suite = suite_create("conformance");
        TCase *tcase = tcase_create("backends");
        SRunner *runner = srunner_create(suite);
        int failed, r = golden_open("golden.json", &golden);

        if (r == 0)
                r = golden_open("golden_vote.json", &vote);
        if (r < 0) {
                fprintf(stderr,
                        "cannot read the golden files: error %d; run from the repository root or set CKV_TEST_DATA\n", -r);
                return EXIT_FAILURE;
        }
        suite_add_tcase(suite, tcase);
        tcase_set_timeout(tcase, 600);
        tcase_add_loop_test(tcase, plan_and_move_random, 0, SUBJECTS);
        tcase_add_loop_test(tcase, plan_and_move_variants, 0, 4 * SUBJECTS);
        tcase_add_loop_test(tcase, plan_and_move_reuse, 0, SUBJECTS);
        tcase_add_loop_test(tcase, plan_and_move_wide_windows, 0, SUBJECTS);
        tcase_add_loop_test(tcase, plan_golden, 0, SUBJECTS);
        tcase_add_loop_test(tcase, plan_golden_vote, 0, SUBJECTS);
        srunner_run_all(runner, CK_NORMAL);
        failed = srunner_ntests_failed(runner);
        srunner_free(runner);
        golden_close(&golden);
        golden_close(&vote);
        return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
