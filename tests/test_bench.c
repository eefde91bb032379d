/*
 * What make bench decides by: which repetitions are dropped, how many are a
 * result, and how much a job does so that it can be measured.  The figures
 * themselves are nobody's to test.
 */
#include "base/macros.h"
#include "bench/cases.h"
#include "bench/measure.h"
#include "bench/problem.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MIB = 1 << 20, POOL = 640 * MIB, TOKENS = 8192 };

/* Is the middle of three spans added, and nothing else? */
static bool counts(double before, double now, double after, double stolen, uint32_t stolen_from) {
        struct bench_span spans[3] = { { .seconds = before }, { .seconds = now }, { .seconds = after } };
        struct bench_series series = { 0 };
        bool added;

        spans[stolen_from].stolen = stolen;
        added = bench_add_between(&series, spans);
        ck_assert_uint_eq(series.count, added);
        if (added)
                ck_assert_double_eq(series.value[0], now);
        return added;
}

START_TEST(a_repetition_is_dropped_by_what_is_beside_it) {
        ck_assert(counts(1.0, 1.0, 1.0, 0, 0));
        ck_assert(counts(1.0, 1.0, 0.91, 0, 0));
        ck_assert(counts(0.91, 1.0, 1.0, 0, 0));
        ck_assert(!counts(1.0, 1.0, 0.89, 0, 0));
        ck_assert(!counts(0.89, 1.0, 1.0, 0, 0));
        /* never by looking at the work itself */
        ck_assert(counts(1.0, 7.0, 1.0, 0, 0));
}
END_TEST

START_TEST(a_repetition_is_dropped_if_a_thread_was_off_its_cpu) {
        for (uint32_t i = 0; i < 3; i++) {
                ck_assert(counts(1.0, 1.0, 1.0, 0.029, i));
                ck_assert(!counts(1.0, 1.0, 1.0, 0.031, i));
        }
}
END_TEST

START_TEST(cpu_time_drops_nothing) {
        ck_assert_int_eq(setenv("BENCH_CPU", "1", 1), 0);
        ck_assert(counts(1.0, 1.0, 0.5, 0.5, 1));
        ck_assert_int_eq(unsetenv("BENCH_CPU"), 0);
        ck_assert(!counts(1.0, 1.0, 0.5, 0.5, 1));
}
END_TEST

START_TEST(no_result_has_no_spread) {
        struct bench_series series = { .value = { 1.0, 2.0, 2.0, 2.0, 3.0 }, .count = 5 };
        char text[128] = "";
        FILE *was = stdout, *file = fmemopen(text, sizeof(text), "w");

        ck_assert_ptr_nonnull(file);
        stdout = file;
        bench_print_counts(&series, true, 5, 1);
        bench_print_counts(&series, false, 1, 53);
        stdout = was;
        ck_assert_int_eq(fclose(file), 0);
        ck_assert_str_eq(text, ", \"spread\": 0.0000, \"kept\": 5, \"dropped\": 1}\n"
                               ", \"spread\": null, \"kept\": 1, \"dropped\": 53}\n");
}
END_TEST

START_TEST(five_are_a_result_or_as_many_as_were_asked_for) {
        struct bench_series series = { .count = 4 };

        ck_assert(!bench_enough(&series, 9));
        ck_assert(!bench_enough(&series, 5));
        ck_assert(bench_enough(&series, 4));
        series.count = 5;
        ck_assert(bench_enough(&series, 9));
        series.count = 0;
        ck_assert(!bench_enough(&series, 1));
}
END_TEST

START_TEST(quantiles) {
        struct bench_series series = { 0 };

        ck_assert_double_eq(bench_quantile(&series, 0.5), 0);
        for (uint32_t i = 5; i > 0; i--)
                bench_add(&series, i);
        ck_assert_double_eq(bench_quantile(&series, 0), 1);
        ck_assert_double_eq(bench_quantile(&series, 0.25), 2);
        ck_assert_double_eq(bench_median(&series), 3);
        ck_assert_double_eq(bench_quantile(&series, 0.75), 4);
        ck_assert_double_eq(bench_quantile(&series, 1), 5);
        ck_assert_double_eq_tol(bench_spread(&series), 2.0 / 3, 1e-9);
}
END_TEST

static const struct bench_case *case_of(const char *what) {
        for (size_t i = 0; i < bench_case_count; i++)
                if (strcmp(bench_cases[i].what, what) == 0)
                        return &bench_cases[i];
        ck_abort_msg("no case %s", what);
}

START_TEST(jobs_are_long_enough_to_be_measured) {
        uint64_t layer = (uint64_t)TOKENS * 8 * 128 * 2;

        ck_assert_uint_eq(bench_problem_layers(case_of("profile default"), TOKENS, TOKENS, POOL), 1);
        ck_assert_uint_eq(bench_problem_layers(case_of("profile default"), TOKENS, 4 * TOKENS, POOL), 4);
        ck_assert_uint_eq(bench_problem_layers(case_of("profile default"), TOKENS, TOKENS / 2, POOL), 1);
        /* more queries are longer anyway, and are not cut short */
        ck_assert_uint_eq(bench_problem_layers(case_of("profile kvpress"), TOKENS, 4 * TOKENS, POOL), 4);
        ck_assert_uint_eq(bench_problem_layers(case_of("window 8"), TOKENS, TOKENS, POOL), 4);
        ck_assert_uint_eq(bench_problem_layers(case_of("window 1"), TOKENS, TOKENS, POOL), 32);
        ck_assert_uint_eq(bench_problem_layers(case_of("window 1"), TOKENS, TOKENS, 4 * layer), 4);
        ck_assert_uint_eq(bench_problem_layers(case_of("profile vote"), TOKENS, TOKENS, POOL), 1);
        /* never more than there is K, at least one */
        ck_assert_uint_eq(bench_problem_layers(case_of("profile default"), TOKENS, 4 * TOKENS, 2 * layer), 2);
        ck_assert_uint_eq(bench_problem_layers(case_of("profile default"), TOKENS, TOKENS, 1), 1);
}
END_TEST

START_TEST(what_has_no_weights_reads_half_a_gibibyte) {
        static const char *const names[] = { "knorm", "keydiff", "raw_qk" };

        for (size_t i = 0; i < CKV_ARRAY_SIZE(names); i++)
                for (uint32_t tokens = 1024; tokens <= 131072; tokens *= 2) {
                        uint64_t layers = bench_problem_layers(case_of(names[i]), tokens, TOKENS, POOL);

                        ck_assert_uint_ge(layers * tokens * 8 * 128 * 2, UINT64_C(512) * MIB);
                        ck_assert_uint_le(layers * tokens * 8 * 128 * 2, POOL);
                }
}
END_TEST

int main(void) {
        Suite *suite = suite_create("bench");
        TCase *tcase = tcase_create("rules");
        SRunner *runner;
        int failed;

        tcase_add_test(tcase, a_repetition_is_dropped_by_what_is_beside_it);
        tcase_add_test(tcase, a_repetition_is_dropped_if_a_thread_was_off_its_cpu);
        tcase_add_test(tcase, cpu_time_drops_nothing);
        tcase_add_test(tcase, no_result_has_no_spread);
        tcase_add_test(tcase, five_are_a_result_or_as_many_as_were_asked_for);
        tcase_add_test(tcase, quantiles);
        tcase_add_test(tcase, jobs_are_long_enough_to_be_measured);
        tcase_add_test(tcase, what_has_no_weights_reads_half_a_gibibyte);
        suite_add_tcase(suite, tcase);
        runner = srunner_create(suite);
        srunner_run_all(runner, CK_NORMAL);
        failed = srunner_ntests_failed(runner);
        srunner_free(runner);
        return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
