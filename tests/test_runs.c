/*
 * Alternating run lengths: what is well formed, both directions, and the
 * vector of the protocol (rows 0-3, 20-29, 100-399: 314 kept of 400).
 */
#include "proto/runs.h"

#include "base/macros.h"

#include <check.h>

#define CHECK(rows, ...) \
        check_runs((const uint32_t[]){ __VA_ARGS__ }, sizeof((const uint32_t[]){ __VA_ARGS__ }) / 4, (rows))

static uint64_t kept, end;

static int check_runs(const uint32_t *runs, size_t count, uint64_t rows) {
        kept = end = 12345;
        return ckv_runs_check(runs, count, rows, &kept, &end);
}

START_TEST(vector_of_the_protocol) {
        ck_assert_int_eq(CHECK(400, 0, 4, 16, 10, 70, 300), 0);
        ck_assert_uint_eq(kept, 314);
        ck_assert_uint_eq(end, 400);
}
END_TEST

START_TEST(check_end_against_rows) {
        ck_assert_int_eq(CHECK(401, 0, 4, 16, 10, 70, 300), 0);
        ck_assert_int_eq(CHECK(400, 0, 4, 16, 10, 70, 300), 0);
        ck_assert_int_eq(CHECK(399, 0, 4, 16, 10, 70, 300), CKV_RUNS_E_OVERFLOW);
        ck_assert_uint_eq(kept, 12345);
        ck_assert_uint_eq(end, 12345);
        ck_assert_int_eq(CHECK(UINT32_MAX, UINT32_MAX, UINT32_MAX), CKV_RUNS_E_OVERFLOW);
        ck_assert_int_eq(CHECK(2 * (uint64_t)UINT32_MAX, UINT32_MAX, UINT32_MAX), 0);
        ck_assert_uint_eq(end, 2 * (uint64_t)UINT32_MAX);
}
END_TEST

START_TEST(check_form) {
        ck_assert_int_eq(ckv_runs_check(NULL, 0, 0, &kept, &end), 0);
        ck_assert_uint_eq(kept, 0);
        ck_assert_int_eq(CHECK(9, 1), CKV_RUNS_E_ODD);
        ck_assert_int_eq(CHECK(9, 0, 1, 1), CKV_RUNS_E_ODD);
        ck_assert_int_eq(CHECK(9, 0, 0), CKV_RUNS_E_ZERO);
        ck_assert_int_eq(CHECK(9, 0, 1, 0, 1), CKV_RUNS_E_ZERO);
        ck_assert_int_eq(CHECK(9, 0, 1, 1, 0), CKV_RUNS_E_ZERO);
        ck_assert_int_eq(CHECK(9, 0, 1), 0);
        ck_assert_int_eq(ckv_runs_check((const uint32_t[]){ 0, 9 }, 2, 9, NULL, NULL), 0);
}
END_TEST

START_TEST(encode_merges_neighbours) {
        static const uint32_t ranges[] = { 0, 4, 20, 4, 24, 6, 100, 300 };
        static const uint32_t want[] = { 0, 4, 16, 10, 70, 300 };
        uint32_t runs[8];

        ck_assert_uint_eq(ckv_runs_encode_bound(4), 8);
        ck_assert_uint_eq(ckv_runs_encode(ranges, 4, runs), 6);
        ck_assert_mem_eq(runs, want, sizeof(want));
        ck_assert_uint_eq(ckv_runs_encode(ranges, 0, runs), 0);
}
END_TEST

START_TEST(encode_and_iterate_are_inverse) {
        uint32_t seed = 1;

        for (unsigned trial = 0; trial < 1000; trial++) {
                uint32_t ranges[64], runs[64], row = 0, first, count, at_row = 0;
                size_t n = trial % 33, words, at = 0;
                uint64_t total = 0;

                for (size_t i = 0; i < n; i++) {
                        seed = seed * 1664525 + 1013904223;
                        row += seed >> 28;
                        if (i > 0)
                                row++; /* a gap, so that no two ranges are merged */
                        ranges[2 * i] = row;
                        ranges[2 * i + 1] = 1 + (seed >> 20) % 50;
                        row += ranges[2 * i + 1];
                        total += ranges[2 * i + 1];
                }
                words = ckv_runs_encode(ranges, n, runs);
                ck_assert_uint_eq(words, 2 * n);
                ck_assert_int_eq(check_runs(runs, words, row), 0);
                ck_assert_uint_eq(kept, total);
                ck_assert_uint_eq(end, row);
                for (size_t i = 0; i < n; i++) {
                        ck_assert_int_eq(ckv_runs_next(runs, words, &at, &at_row, &first, &count), 1);
                        ck_assert_uint_eq(first, ranges[2 * i]);
                        ck_assert_uint_eq(count, ranges[2 * i + 1]);
                }
                ck_assert_int_eq(ckv_runs_next(runs, words, &at, &at_row, &first, &count), 0);
        }
}
END_TEST

int main(void) {
        Suite *suite = suite_create("runs");
        TCase *tcase = tcase_create("runs");
        SRunner *runner;
        int failed;

        tcase_add_test(tcase, vector_of_the_protocol);
        tcase_add_test(tcase, check_end_against_rows);
        tcase_add_test(tcase, check_form);
        tcase_add_test(tcase, encode_merges_neighbours);
        tcase_add_test(tcase, encode_and_iterate_are_inverse);
        suite_add_tcase(suite, tcase);
        runner = srunner_create(suite);
        srunner_run_all(runner, CK_NORMAL);
        failed = srunner_ntests_failed(runner);
        srunner_free(runner);
        return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
