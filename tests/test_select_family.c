/*
 * The other selectors from given row scores, with numbers that a person can
 * check by hand: StreamingLLM, H2O, pages (algorithm.md 4.4), PyramidKV's
 * budgets (4.2), and kvpress' presses that keep rows (R54).
 *
 * T of 6.2 begins 3 11 21 33 47 63 81 4 26 50 76 7 37 69 6 42 80 23 65 12 (rows 0
 * to 19), then 58 9 59 14 68.
 */
#include "tests/support_rows.h"
#include "tests/support_stage.h"

#include <check.h>
#include <stdlib.h>

START_TEST(streaming_keeps_sinks_and_the_newest) {
        const struct ckv_span span = { 10, 5 };

        begin(60, 500000, (struct ckv_policy){ .selector = CKV_SELECTOR_STREAMING, .recent = 1, .given = CKV_GIVEN_RECENT });
        ck_assert_str_eq(settle(), "0-3 34-59");
        assert_numbers(30, 5);
        ck_assert(budget.settled && !budget.raised);
        /* 4 sinks, 5 rows of the span, and the newest 21 */
        selection.spans = &span;
        selection.span_count = 1;
        ck_assert_str_eq(settle(), "0-3 10-14 39-59");
        assert_numbers(30, 10);
        /* as any other: too short, fits, tight */
        begin(60, 50000, (struct ckv_policy){ .selector = CKV_SELECTOR_STREAMING });
        ck_assert_str_eq(settle(), "0-3 52-59");
        assert_numbers(3, 12);
        ck_assert(budget.raised);
        begin(60, 50000, (struct ckv_policy){ .selector = CKV_SELECTOR_STREAMING, .tight = CKV_TIGHT_REFUSE });
        ck_assert_str_eq(settle(), "refused");
        begin(60, 1000000, (struct ckv_policy){ .selector = CKV_SELECTOR_STREAMING });
        ck_assert_str_eq(settle(), "0-59");
        ck_assert_int_eq(budget.kept_all, CKV_KEPT_FITS);
}
END_TEST

START_TEST(h2o_keeps_heavy_hitters_and_the_recent_part) {
        struct ckv_policy h2o = { .selector = CKV_SELECTOR_H2O, .heavy = 200000, .recent_part = 200000, .given = CKV_GIVEN_SINKS };

        /* r = 4, B = 4 + 4: the best of rows 0 to 15 are 81, 76, 69 and 63 */
        begin(20, 0, h2o);
        ck_assert_str_eq(settle(), "5-6 10 13 16-19");
        assert_numbers(8, 4);
        /* each part is rounded down by itself: floor(9.9) + floor(9.9) */
        begin(99, 0, (struct ckv_policy){ .selector = CKV_SELECTOR_H2O, .given = CKV_GIVEN_SINKS });
        ck_assert_uint_eq(rows_in(settle()), 18);
        assert_numbers(18, 9);
        /* a budget of nothing counts as one row */
        begin(9, 0, (struct ckv_policy){ .selector = CKV_SELECTOR_H2O, .given = CKV_GIVEN_SINKS });
        ck_assert_str_eq(settle(), "6");
        assert_numbers(1, 0);
        h2o.heavy = 500000;
        h2o.recent_part = 500000;
        begin(20, 0, h2o);
        ck_assert_str_eq(settle(), "0-19");
        ck_assert_int_eq(budget.kept_all, CKV_KEPT_FITS);
}
END_TEST

START_TEST(pages_of_4_4) {
        const struct ckv_policy asked = { .selector = CKV_SELECTOR_PAGE, .page = 16 };
        uint32_t positions[100];

        /* rows 0-3 and 92-99 are protected, and with them pages 0 and 5, and 6, which is short */
        begin(100, 500000, asked);
        ck_assert_str_eq(settle(), "0-15 80-99");
        assert_numbers(50, 36);
        begin(100, 600000, asked);
        ck_assert_str_eq(settle(), "0-15 48-63 80-99");
        begin(100, 700000, asked);
        ck_assert_str_eq(settle(), "0-31 48-63 80-99");
        /* pages are of physical rows, wherever these stand in the text */
        for (uint32_t j = 0; j < 100; j++)
                positions[j] = 3 * j + 1;
        selection.positions = positions;
        ck_assert_str_eq(settle(), "0-31 48-63 80-99");
        begin(100, 360000, asked);
        ck_assert_str_eq(settle(), "0-15 80-99");
        ck_assert(budget.settled && !budget.raised);
        begin(100, 350000, asked);
        ck_assert_str_eq(settle(), "0-15 80-99");
        ck_assert(budget.raised);
        begin(96, 500000, asked);
        ck_assert_str_eq(settle(), "0-15 48-63 80-95");
        assert_numbers(48, 32);
        /* a short last page stays last, protected or not; page 5 has the best mean, 54.1 */
        begin(100, 200000, (struct ckv_policy){ .selector = CKV_SELECTOR_PAGE, .page = 16,
                                                .given = CKV_GIVEN_SINKS | CKV_GIVEN_RECENT });
        ck_assert_str_eq(settle(), "80-99");
        assert_numbers(20, 4);
        begin(16, 500000, asked);
        ck_assert_str_eq(settle(), "0-15");
        ck_assert_int_eq(budget.kept_all, CKV_KEPT_PROTECTED);
}
END_TEST

static void assert_budgets(uint32_t rows, uint32_t b, uint32_t p, uint32_t layers, const uint32_t *above) {
        struct ckv_budget of_all = { .budget = b, .protected_rows = p };
        uint32_t found[64], part[2], sum = 0;

        begin(rows, 1, (struct ckv_policy){ .beta = 20 });
        ck_assert(ckv_select_layer_budgets(&selection, &of_all, layers, 0, layers, found));
        for (uint32_t l = 0; l < layers; l++) {
                ck_assert_uint_eq(found[l], p + above[l]);
                sum += found[l];
        }
        ck_assert_uint_eq(sum, layers * b);
        /* a part of the layers gets what the whole says */
        ck_assert(ckv_select_layer_budgets(&selection, &of_all, layers, 3, 2, part));
        ck_assert_uint_eq(part[0], found[3]);
        ck_assert_uint_eq(part[1], found[4]);
}

START_TEST(pyramid_budgets_of_4_2) {
        const uint32_t wide[] = { 195, 167, 141, 114, 86, 59, 33, 5 }, narrow[] = { 150, 135, 122, 107, 93, 78, 65, 50 };
        struct ckv_budget of_all = { .budget = 1638, .protected_rows = 68 };
        uint32_t found[32], sum = 0;

        assert_budgets(1012, 112, 12, 8, wide);
        assert_budgets(162, 112, 12, 8, narrow);
        /* 8192 rows, 20 %, window 64, 4 sinks, 32 layers */
        begin(8192, 1, (struct ckv_policy){ .beta = 20 });
        ck_assert(ckv_select_layer_budgets(&selection, &of_all, 32, 0, 32, found));
        ck_assert_uint_eq(found[0], 3130);
        ck_assert_uint_eq(found[31], 146);
        for (uint32_t l = 0; l < 32; l++)
                sum += found[l];
        ck_assert_uint_eq(sum, 32 * 1638);
        /* one layer, less to share than beta, no beta: B for all */
        ck_assert(!ckv_select_layer_budgets(&selection, &of_all, 1, 0, 1, found));
        of_all.budget = 68 + 19;
        ck_assert(!ckv_select_layer_budgets(&selection, &of_all, 32, 0, 32, found));
        of_all.budget = 68 + 20;
        ck_assert(ckv_select_layer_budgets(&selection, &of_all, 32, 0, 32, found));
        policy.beta = 0;
        ck_assert(!ckv_select_layer_budgets(&selection, &of_all, 32, 0, 32, found));
}
END_TEST

/* R20, question by question: 100 rows, of which 0-3 and 92-99 are protected (h2o: the newest tenth; page: whole pages of 4) */
START_TEST(r20_of_every_selector) {
        const enum ckv_selector selectors[] = { CKV_SELECTOR_CHUNK, CKV_SELECTOR_TOKEN, CKV_SELECTOR_STREAMING, CKV_SELECTOR_H2O,
                                                CKV_SELECTOR_CHUNK_EG, CKV_SELECTOR_PAGE };

        for (size_t i = 0; i < sizeof(selectors) / sizeof(selectors[0]); i++) {
                bool h2o = selectors[i] == CKV_SELECTOR_H2O;
                struct ckv_policy asked = { .selector = selectors[i], .page = selectors[i] == CKV_SELECTOR_PAGE ? 4 : 0 };
                const struct ckv_span all = { 0, 100 }, some = { 10, 20 };
                uint32_t p = h2o ? 14 : 12;

                begin(0, h2o ? 0 : 500000, asked);
                (void)settle();
                ck_assert_int_eq(budget.kept_all, CKV_KEPT_EMPTY);
                asked.min_tokens = 101;
                begin(100, h2o ? 0 : 1000000, asked);
                (void)settle();
                ck_assert_int_eq(budget.kept_all, CKV_KEPT_SHORT);
                asked.min_tokens = 100;
                asked.heavy = h2o ? 900000 : 0;
                begin(100, h2o ? 0 : 1000000, asked);
                selection.spans = &all;
                selection.span_count = 1;
                (void)settle();
                ck_assert_int_eq(budget.kept_all, CKV_KEPT_FITS);
                asked.heavy = h2o ? 400000 : 0;
                begin(100, h2o ? 0 : 500000, asked);
                selection.spans = &all;
                selection.span_count = 1;
                (void)settle();
                ck_assert_int_eq(budget.kept_all, CKV_KEPT_PROTECTED);
                /* p > B */
                asked.heavy = h2o ? 100000 : 0;
                begin(100, h2o ? 0 : 200000, asked);
                selection.spans = &some;
                selection.span_count = 1;
                ck_assert_uint_eq(rows_in(settle()), budget.protected_rows);
                ck_assert(budget.raised && budget.settled && budget.protected_rows > budget.budget);
                asked.tight = CKV_TIGHT_REFUSE;
                begin(100, h2o ? 0 : 200000, asked);
                selection.spans = &some;
                selection.span_count = 1;
                ck_assert_str_eq(settle(), "refused");
                /* p = B, and one row more */
                asked.heavy = h2o ? 40000 : 0;
                begin(100, h2o ? 0 : p * 10000, asked);
                ck_assert_uint_eq(rows_in(settle()), p);
                ck_assert(budget.settled && !budget.raised && budget.kept_all == CKV_DROPPED);
                asked.heavy = h2o ? 50000 : 0;
                begin(100, h2o ? 0 : (p + 1) * 10000, asked);
                ck_assert_uint_eq(rows_in(settle()), selectors[i] == CKV_SELECTOR_PAGE ? p : p + 1);
                ck_assert_int_eq(budget.settled, selectors[i] == CKV_SELECTOR_STREAMING);
        }
}
END_TEST

static void begin_press(uint32_t rows, uint32_t keep_ratio, enum ckv_selector selector, enum ckv_scorer scorer) {
        begin(rows, keep_ratio, (struct ckv_policy){ .profile = CKV_PROFILE_KVPRESS, .selector = selector, .scorer = scorer,
                                                     .chunk = 10, .window = 4 });
}

START_TEST(kvpress_snapkv_protects_its_window) {
        begin_press(20, 400000, CKV_SELECTOR_TOKEN, CKV_SCORER_WINDOW);
        ck_assert_str_eq(settle(), "5-6 10 13 16-19");
        assert_numbers(8, 4);
        /* 20 * (1.0 - 0.9) is a little less than 2, and a press of one row keeps the first of its window */
        begin_press(20, 100000, CKV_SELECTOR_TOKEN, CKV_SCORER_WINDOW);
        ck_assert_str_eq(settle(), "16");
        assert_numbers(1, 1);
        ck_assert(budget.settled && !budget.raised);
        begin_press(20, 1000000, CKV_SELECTOR_TOKEN, CKV_SCORER_WINDOW);
        ck_assert_str_eq(settle(), "0-19");
        begin_press(4, 500000, CKV_SELECTOR_TOKEN, CKV_SCORER_WINDOW);
        ck_assert_str_eq(settle(), "unsupported");
}
END_TEST

START_TEST(kvpress_knorm_protects_nothing) {
        /* 81 80 76 69 65 63 50 47 */
        begin_press(20, 400000, CKV_SELECTOR_TOKEN, CKV_SCORER_KNORM);
        ck_assert_str_eq(settle(), "4-6 9-10 13 16 18");
        assert_numbers(8, 0);
        begin_press(1, 400000, CKV_SELECTOR_TOKEN, CKV_SCORER_KNORM);
        ck_assert_str_eq(settle(), "0");
        /* chunks: 33.9, 41.7 and, of five rows, 41.6; k = trunc(3 * 0.7) = 2, and no window comes first */
        begin_press(25, 700000, CKV_SELECTOR_CHUNK, CKV_SCORER_KNORM);
        ck_assert_str_eq(settle(), "10-24");
        begin_press(25, 400000, CKV_SELECTOR_CHUNK, CKV_SCORER_KNORM);
        ck_assert_str_eq(settle(), "10-19");
        begin_press(9, 400000, CKV_SELECTOR_CHUNK, CKV_SCORER_KNORM);
        ck_assert_str_eq(settle(), "unsupported");
}
END_TEST

START_TEST(kvpress_streaming_has_four_sinks) {
        begin_press(60, 500000, CKV_SELECTOR_STREAMING, CKV_SCORER_WINDOW);
        ck_assert_str_eq(settle(), "0-3 34-59");
        assert_numbers(30, 4);
        begin_press(60, 50000, CKV_SELECTOR_STREAMING, CKV_SCORER_WINDOW);
        ck_assert_str_eq(settle(), "0-2");
        begin_press(4, 500000, CKV_SELECTOR_STREAMING, CKV_SCORER_WINDOW);
        ck_assert_str_eq(settle(), "unsupported");
        begin_press(5, 500000, CKV_SELECTOR_STREAMING, CKV_SCORER_WINDOW);
        ck_assert_str_eq(settle(), "0-1");
}
END_TEST

START_TEST(kvpress_entropy_gate) {
        /* rows 30-39: 10, row 25: 95, the others 1.  The window 56-59 is protected, b = 20: chunk 2 is a spike and gives row 25
         * and, of the ties, 20 to 22; then chunk 3; then 6 rows of chunk 0 */
        begin_press(60, 400000, CKV_SELECTOR_CHUNK_EG, CKV_SCORER_WINDOW);
        for (uint32_t j = 0; j < 60; j++)
                T[j] = j == 25 ? 95 : j >= 30 && j < 40 ? 10 : 1;
        ck_assert_str_eq(settle(), "0-5 20-22 25 30-39 56-59");
        assert_numbers(24, 4);
}
END_TEST

int main(void) {
        Suite *suite = suite_create("select_family");
        TCase *tcase = tcase_create("selectors");
        SRunner *runner = srunner_create(suite);
        int failed;

        suite_add_tcase(suite, tcase);
        tcase_add_test(tcase, streaming_keeps_sinks_and_the_newest);
        tcase_add_test(tcase, h2o_keeps_heavy_hitters_and_the_recent_part);
        tcase_add_test(tcase, pages_of_4_4);
        tcase_add_test(tcase, pyramid_budgets_of_4_2);
        tcase_add_test(tcase, r20_of_every_selector);
        tcase_add_test(tcase, kvpress_snapkv_protects_its_window);
        tcase_add_test(tcase, kvpress_knorm_protects_nothing);
        tcase_add_test(tcase, kvpress_streaming_has_four_sinks);
        tcase_add_test(tcase, kvpress_entropy_gate);
        srunner_run_all(runner, CK_NORMAL);
        failed = srunner_ntests_failed(runner);
        srunner_free(runner);
        return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
