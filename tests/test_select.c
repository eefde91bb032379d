/*
 * S4 to S8 from given row scores: the stage examples E1 to E17 of algorithm.md
 * 6.2, the kvpress and paper tables of 6.3, the order of R20's questions, and
 * the radix walk against a plain sort on random cases full of ties.
 */
#include "kernels/reference.h"
#include "tests/support_rows.h"
#include "tests/support_stage.h"

#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

START_TEST(unit_scores_of_6_2) {
        const float expected[] = { 45.166668f, 41.7f, 45.8f, 55.9f, 23.5f, 45.5f };
        uint8_t flags[60];
        float scores[6];
        struct ckv_units units;

        begin(60, 500000, (struct ckv_policy){ 0 });
        ck_assert_int_eq(ckv_select_budget(&selection, flags, &budget), 0);
        ck_assert_int_eq(ckv_units_init(&units, &selection, flags), 0);
        ck_assert_uint_eq(units.count, 6);
        ckv_ref_unit_scores(&policy, &units, 60, T, scores);
        for (uint32_t u = 0; u < 6; u++)
                ck_assert_msg(scores[u] == expected[u], "unit %u: %.9g", u, (double)scores[u]);
        ck_assert_uint_eq(units.size[0], 6);
        ck_assert_uint_eq(units.first_row[0], 4);
        ck_assert_uint_eq(units.size[5], 2);
        ckv_units_deinit(&units);
}
END_TEST

START_TEST(e1_to_e4_fill_and_max_tokens) {
        begin(60, 500000, (struct ckv_policy){ 0 });
        ck_assert_str_eq(settle(), "0-3 20-27 30-39 52-59");
        assert_numbers(30, 12);
        ck_assert(!budget.settled && !budget.raised);
        begin(60, 500000, (struct ckv_policy){ .fill = CKV_FILL_NONE });
        ck_assert_str_eq(settle(), "0-3 30-39 52-59");
        begin(60, 500000, (struct ckv_policy){ .fill = CKV_FILL_BEST });
        ck_assert_str_eq(settle(), "0-3 20 22-27 29-39 52-59");
        begin(60, 500000, (struct ckv_policy){ 0 });
        selection.max_tokens = 20;
        ck_assert_str_eq(settle(), "0-3 30-37 52-59");
        assert_numbers(20, 12);
}
END_TEST

START_TEST(e5_tight) {
        begin(60, 0, (struct ckv_policy){ 0 });
        selection.max_tokens = 10;
        ck_assert_str_eq(settle(), "0-3 52-59");
        ck_assert(budget.raised && budget.settled);
        assert_numbers(10, 12);
        begin(60, 0, (struct ckv_policy){ .tight = CKV_TIGHT_REFUSE });
        selection.max_tokens = 10;
        ck_assert_str_eq(settle(), "refused");
        ck_assert(!budget.raised && !budget.settled);
        /* exactly the protected rows: neither raised nor refused */
        selection.max_tokens = 12;
        ck_assert_str_eq(settle(), "0-3 52-59");
        ck_assert(!budget.raised && budget.settled);
        selection.max_tokens = 13;
        ck_assert_str_eq(settle(), "0-3 30 52-59");
}
END_TEST

START_TEST(e6_e7_ties_and_short_tail) {
        begin(60, 500000, (struct ckv_policy){ 0 });
        for (int j = 0; j < 60; j++)
                T[j] = 1;
        ck_assert_str_eq(settle(), "0-21 52-59");
        begin(57, 400000, (struct ckv_policy){ 0 });
        ck_assert_str_eq(settle(), "0-3 30-39 49-56");
        assert_numbers(22, 12);
}
END_TEST

START_TEST(negative_zero_ties_with_zero) {
        begin(60, 500000, (struct ckv_policy){ 0 });
        for (int j = 0; j < 60; j++)
                T[j] = j < 20 ? -0.0 : 0.0;
        ck_assert_str_eq(settle(), "0-21 52-59");
}
END_TEST

START_TEST(e8_spans) {
        const struct ckv_span one[] = { { 20, 5 } }, overlapping[] = { { 22, 3 }, { 20, 3 }, { 21, 1 } };
        const struct ckv_span clipped[] = { { 58, 1000 }, { 50, UINT32_MAX }, { UINT32_MAX, UINT32_MAX }, { 60, 1 } };

        begin(60, 500000, (struct ckv_policy){ 0 });
        selection.spans = one;
        selection.span_count = 1;
        ck_assert_str_eq(settle(), "0-3 20-27 30-39 52-59");
        assert_numbers(30, 17);
        selection.spans = overlapping;
        selection.span_count = 3;
        ck_assert_str_eq(settle(), "0-3 20-27 30-39 52-59");
        assert_numbers(30, 17);
        selection.spans = clipped;
        selection.span_count = 4;
        ck_assert_str_eq(settle(), "0-3 20-25 30-39 50-59");
        assert_numbers(30, 14);
}
END_TEST

START_TEST(e9_chunk_at) {
        const uint32_t lengths[] = { 7, 12, 4, 18, 19 };

        begin(60, 500000, (struct ckv_policy){ .selector = CKV_SELECTOR_CHUNK_AT });
        selection.chunk_lengths = lengths;
        selection.chunk_length_count = 5;
        ck_assert_str_eq(settle(), "0-6 23-37 52-59");
        assert_numbers(30, 12);
}
END_TEST

START_TEST(e10_e11_rounding) {
        begin(60, 500000, (struct ckv_policy){ .align = 16 });
        ck_assert_str_eq(settle(), "0-3 20-39 52-59");
        assert_numbers(32, 12);
        selection.max_tokens = 31;
        ck_assert_str_eq(settle(), "0-3 20-28 30-39 52-59");
        assert_numbers(31, 12);
        begin(60, 666667, (struct ckv_policy){ 0 });
        ck_assert_str_eq(settle(), "0-9 20-39 50-59");
        assert_numbers(40, 12);
        begin(60, 666666, (struct ckv_policy){ 0 });
        ck_assert_str_eq(settle(), "0-8 20-39 50-59");
        assert_numbers(39, 12);
}
END_TEST

START_TEST(e12_e13_reduce_and_nothing_protected) {
        begin(60, 666667, (struct ckv_policy){ .unit_reduce = CKV_UNIT_SUM });
        ck_assert_str_eq(settle(), "0-3 10-17 20-39 52-59");
        assert_numbers(40, 12);
        begin(60, 500000, (struct ckv_policy){ .given = CKV_GIVEN_SINKS | CKV_GIVEN_RECENT });
        ck_assert_str_eq(settle(), "20-39 50-59");
        assert_numbers(30, 0);
}
END_TEST

START_TEST(unit_reduce_max) {
        begin(60, 400000, (struct ckv_policy){ .unit_reduce = CKV_UNIT_MAX });
        for (int j = 0; j < 60; j++)
                T[j] = j == 25 ? 9 : j == 47 ? 8 : 1;
        ck_assert_str_eq(settle(), "0-3 20-29 40-41 52-59");
}
END_TEST

START_TEST(e14_positions) {
        uint32_t positions[45];
        const struct ckv_span span = { 18, 19 };        /* positions 18 .. 36: rows 18 .. 21 */

        for (uint32_t j = 0; j < 45; j++)
                positions[j] = j < 20 ? j : j + 15;
        begin(45, 500000, (struct ckv_policy){ 0 });
        selection.positions = positions;
        ck_assert_str_eq(settle(), "0-3 25-32 35-44");
        assert_numbers(22, 12);
        selection.spans = &span;
        selection.span_count = 1;
        ck_assert_str_eq(settle(), "0-3 18-21 25-28 35-44");
        assert_numbers(22, 16);
}
END_TEST

START_TEST(rows_below_a_position) {
        const uint32_t positions[] = { 2, 3, 7, UINT32_MAX };

        begin(4, 500000, (struct ckv_policy){ 0 });
        ck_assert_uint_eq(ckv_selection_rows_below(&selection, 3), 3);
        ck_assert_uint_eq(ckv_selection_rows_below(&selection, UINT64_MAX), 4);
        selection.positions = positions;
        ck_assert_uint_eq(ckv_selection_rows_below(&selection, 0), 0);
        ck_assert_uint_eq(ckv_selection_rows_below(&selection, 3), 1);
        ck_assert_uint_eq(ckv_selection_rows_below(&selection, 4), 2);
        ck_assert_uint_eq(ckv_selection_rows_below(&selection, UINT32_MAX), 3);
        ck_assert_uint_eq(ckv_selection_rows_below(&selection, (uint64_t)UINT32_MAX + 1), 4);
}
END_TEST

START_TEST(e15_token) {
        begin(60, 500000, (struct ckv_policy){ .selector = CKV_SELECTOR_TOKEN });
        ck_assert_str_eq(settle(), "0-3 5-6 10 13 16 18 20 22 24 26 29 32-33 36-39 51-59");
        assert_numbers(30, 12);
}
END_TEST

START_TEST(e16_everything_kept) {
        begin(12, 500000, (struct ckv_policy){ 0 });
        ck_assert_str_eq(settle(), "0-11");
        ck_assert_int_eq(budget.kept_all, CKV_KEPT_PROTECTED);
        assert_numbers(6, 12);
        begin(1, 500000, (struct ckv_policy){ 0 });
        ck_assert_str_eq(settle(), "0");
        ck_assert_int_eq(budget.kept_all, CKV_KEPT_FITS);
        ck_assert_uint_eq(budget.budget, 1);
        begin(5, 100000, (struct ckv_policy){ 0 });
        ck_assert_str_eq(settle(), "0-4");
        ck_assert_int_eq(budget.kept_all, CKV_KEPT_PROTECTED);
        assert_numbers(1, 5);
        begin(12, 500000, (struct ckv_policy){ 0 });
        policy.min_tokens = 22;
        ck_assert_str_eq(settle(), "0-11");
        ck_assert_int_eq(budget.kept_all, CKV_KEPT_SHORT);
}
END_TEST

START_TEST(e17_chunks_before_rows) {
        begin(60, 400000, (struct ckv_policy){ 0 });
        for (int j = 0; j < 60; j++)
                T[j] = j == 25 ? 95 : j >= 30 && j < 40 ? 10 : 1;
        ck_assert_str_eq(settle(), "0-3 20-31 52-59");
        assert_numbers(24, 12);
}
END_TEST

START_TEST(r20_order_of_questions) {
        /* empty before short */
        begin(0, 500000, (struct ckv_policy){ 0 });
        policy.min_tokens = 22;
        ck_assert_str_eq(settle(), "");
        ck_assert_int_eq(budget.kept_all, CKV_KEPT_EMPTY);
        /* short before fits: min_tokens at limit - 1 and limit; then the window */
        begin(21, 1000000, (struct ckv_policy){ 0 });
        policy.min_tokens = 22;
        ck_assert_str_eq(settle(), "0-20");
        ck_assert_int_eq(budget.kept_all, CKV_KEPT_SHORT);
        begin(22, 1000000, (struct ckv_policy){ 0 });
        policy.min_tokens = 22;
        ck_assert_str_eq(settle(), "0-21");
        ck_assert_int_eq(budget.kept_all, CKV_KEPT_FITS);
        policy.window = 23;
        ck_assert_str_eq(settle(), "0-21");
        ck_assert_int_eq(budget.kept_all, CKV_KEPT_SHORT);
        policy.window = 22;
        ck_assert_str_eq(settle(), "0-21");
        ck_assert_int_eq(budget.kept_all, CKV_KEPT_FITS);
        /* fits before all protected */
        begin(12, 1000000, (struct ckv_policy){ 0 });
        ck_assert_str_eq(settle(), "0-11");
        ck_assert_int_eq(budget.kept_all, CKV_KEPT_FITS);
        /* all protected before tight = refuse */
        begin(12, 100000, (struct ckv_policy){ .tight = CKV_TIGHT_REFUSE });
        ck_assert_str_eq(settle(), "0-11");
        ck_assert_int_eq(budget.kept_all, CKV_KEPT_PROTECTED);
}
END_TEST

START_TEST(numbers_without_flags) {
        struct ckv_budget numbers;

        begin(60, 500000, (struct ckv_policy){ 0 });
        ck_assert_int_eq(ckv_select_budget(&selection, NULL, &numbers), 0);
        ck_assert_uint_eq(numbers.budget, 30);
        ck_assert_uint_eq(numbers.protected_rows, 12);
}
END_TEST

START_TEST(r23_nonfinite) {
        uint8_t flags[60];
        float scores[60], row_scores[60];
        struct ckv_units units;
        struct ckv_kept kept = { .count = 4711 };
        uint32_t unit = 0;

        /* n_s = 10: chunk 0 is no unit, and a reply counts chunks of the grid */
        begin(60, 500000, (struct ckv_policy){ .sinks = 10, .given = CKV_GIVEN_SINKS, .fill = CKV_FILL_BEST });
        ck_assert_int_eq(ckv_select_budget(&selection, flags, &budget), 0);
        ck_assert_int_eq(ckv_units_init(&units, &selection, flags), 0);
        ck_assert_uint_eq(units.count, 5);
        for (int i = 0; i < 60; i++)
                scores[i] = row_scores[i] = (float)i;
        scores[2] = NAN;
        scores[3] = INFINITY;
        ck_assert_int_eq(ckv_select(&selection, &units, &budget, flags, scores, row_scores, &kept, &unit),
                         CKV_SELECT_E_NONFINITE);
        ck_assert_uint_eq(unit, 3);
        ck_assert_uint_eq(kept.count, 4711);
        scores[2] = 0;
        ck_assert_int_eq(ckv_select(&selection, &units, &budget, flags, scores, row_scores, &kept, &unit),
                         CKV_SELECT_E_NONFINITE);
        ck_assert_uint_eq(unit, 4);
        scores[3] = 0;
        row_scores[27] = -INFINITY;
        ck_assert_int_eq(ckv_select(&selection, &units, &budget, flags, scores, row_scores, &kept, &unit),
                         CKV_SELECT_E_NONFINITE);
        ck_assert_uint_eq(unit, 2);
        /* a protected row has no say */
        row_scores[27] = 0;
        row_scores[3] = NAN;
        ck_assert_int_eq(ckv_select(&selection, &units, &budget, flags, scores, row_scores, &kept, NULL), 0);
        ckv_kept_deinit(&kept);
        ckv_units_deinit(&units);
}
END_TEST

static void begin_kvpress(uint32_t rows, uint32_t chunk, uint32_t window, uint32_t keep_ratio) {
        begin(rows, keep_ratio,
              (struct ckv_policy){ .profile = CKV_PROFILE_KVPRESS, .chunk = chunk, .window = window });
}

START_TEST(kvpress_kept_rows) {
        static const struct {
                uint32_t rows, chunk, window, keep, k;
                const char *kept;
        } table[] = {
                { 60, 10, 8, 500000, 3, "20-39 50-59" },
                { 57, 10, 8, 500000, 3, "30-56" },
                { 100, 20, 8, 100000, 1, "80-99" },
                { 100, 10, 8, 100000, 1, "90-99" },
                { 200, 10, 8, 100000, 1, "190-199" },
                { 200, 10, 8, 200000, 3, "30-39 90-99 190-199" },
                { 45, 10, 32, 300000, 1, "20-29" },
                { 1003, 10, 64, 50000, 5, "940-989" },
        };

        for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
                begin_kvpress(table[i].rows, table[i].chunk, table[i].window, table[i].keep);
                ck_assert_str_eq(settle(), table[i].kept);
                ck_assert_uint_eq(budget.chunks, table[i].k);
        }
}
END_TEST

START_TEST(kvpress_counts) {
        static const struct {
                uint32_t keep, rows, chunk, k, kept, asked;
        } table[] = {
                { 100000, 8192, 10, 81, 802, 819 },   { 100000, 8192, 20, 40, 792, 819 },
                { 250000, 4096, 20, 51, 1016, 1024 }, { 500000, 1003, 20, 25, 483, 501 },
                { 700000, 900, 10, 62, 620, 630 },
        };

        for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
                begin_kvpress(table[i].rows, table[i].chunk, 8, table[i].keep);
                ck_assert_uint_eq(rows_in(settle()), table[i].kept);
                ck_assert_uint_eq(budget.chunks, table[i].k);
                ck_assert_uint_eq(budget.budget, table[i].asked);
        }
}
END_TEST

START_TEST(kvpress_and_paper_count_rows_not_positions) {
        uint32_t positions[60];

        for (uint32_t j = 0; j < 60; j++)
                positions[j] = 3 * j + 1;
        begin_kvpress(60, 10, 8, 500000);
        selection.positions = positions;
        ck_assert_str_eq(settle(), "20-39 50-59");
        begin(60, 0, (struct ckv_policy){ .profile = CKV_PROFILE_PAPER, .chunk = 10, .window = 8 });
        selection.positions = positions;
        selection.max_tokens = 30;
        ck_assert_str_eq(settle(), "20-39 50-59");
}
END_TEST

START_TEST(kvpress_refusals) {
        begin_kvpress(8, 5, 8, 500000);
        ck_assert_str_eq(settle(), "unsupported");
        begin_kvpress(9, 10, 8, 500000);
        ck_assert_str_eq(settle(), "unsupported");
        begin_kvpress(10, 10, 8, 500000);
        ck_assert_str_eq(settle(), "0-9");
        begin_kvpress(8, 5, 8, 1000000);
        ck_assert_str_eq(settle(), "0-7");
        ck_assert_int_eq(budget.kept_all, CKV_KEPT_FITS);
        begin_kvpress(0, 5, 8, 500000);
        ck_assert_str_eq(settle(), "");
        ck_assert_int_eq(budget.kept_all, CKV_KEPT_EMPTY);
}
END_TEST

static const char *paper(uint32_t rows, uint32_t most, enum ckv_join join) {
        begin(rows, 0, (struct ckv_policy){ .profile = CKV_PROFILE_PAPER, .chunk = 10, .window = 8, .join = join });
        selection.max_tokens = most;
        return settle();
}

START_TEST(paper_table) {
        ck_assert_str_eq(paper(60, 30, CKV_JOIN_CUT), "20-39 50-59");
        ck_assert_uint_eq(budget.chunks, 3);
        ck_assert_str_eq(paper(60, 30, CKV_JOIN_UNION), "20-39 50-59");
        ck_assert_str_eq(paper(60, 35, CKV_JOIN_CUT), "20-39 50-59");
        ck_assert_str_eq(paper(57, 25, CKV_JOIN_CUT), "20-36 49-56");
        ck_assert_uint_eq(budget.chunks, 2);
        ck_assert_str_eq(paper(57, 25, CKV_JOIN_UNION), "20-39 49-56");
        ck_assert_str_eq(paper(60, 9, CKV_JOIN_CUT), "52-59");
        ck_assert(budget.settled);
        ck_assert_str_eq(paper(60, 6, CKV_JOIN_CUT), "window over budget");
        ck_assert_str_eq(paper(60, 7, CKV_JOIN_CUT), "window over budget");
        ck_assert_str_eq(paper(60, 8, CKV_JOIN_CUT), "52-59");
        ck_assert_str_eq(paper(60, 60, CKV_JOIN_CUT), "0-59");
        ck_assert_int_eq(budget.kept_all, CKV_KEPT_FITS);
        ck_assert_str_eq(paper(8, 7, CKV_JOIN_CUT), "unsupported");
        ck_assert_str_eq(paper(9, 8, CKV_JOIN_CUT), "unsupported");
}
END_TEST

/* R21 and R22 once more, the slow way: rank by repeated search, then walk. */
static void walk_slowly(const struct ckv_units *units, const float *scores, const float *row_scores, uint32_t b,
                        uint8_t *flags) {
        uint8_t done[256] = { 0 };

        for (uint32_t rank = 0; rank < units->count && b > 0; rank++) {
                uint32_t best = UINT32_MAX, size;

                for (uint32_t u = 0; u < units->count; u++)
                        if (!done[u] && (best == UINT32_MAX || scores[u] > scores[best]))
                                best = u;
                done[best] = 1;
                size = units->size[best];
                if (size > b && policy.fill == CKV_FILL_NONE)
                        return;
                for (uint32_t n = 0; n < size && b > 0; n++, b--) {
                        uint32_t pick = UINT32_MAX;

                        for (uint32_t j = 0; j < selection.rows; j++)
                                if (units->unit_of_row[j] == best && !flags[j] &&
                                    (pick == UINT32_MAX ||
                                     (policy.fill == CKV_FILL_BEST && row_scores[j] > row_scores[pick])))
                                        pick = j;
                        flags[pick] = 1;
                }
        }
}

START_TEST(walk_against_a_plain_sort) {
        static const enum ckv_fill fills[] = { CKV_FILL_LEAD, CKV_FILL_BEST, CKV_FILL_NONE };
        uint8_t flags[256], expected[256];
        float scores[256], row_scores[256];
        uint32_t decided = 0;

        srand(20250502);
        for (int round = 0; round < 3000; round++) {
                struct ckv_span spans[2] = { { (uint32_t)rand() % 200, 1 + (uint32_t)rand() % 30 }, { 20, 3 } };
                struct ckv_units units;
                struct ckv_kept kept, from_slow;
                int range = round % 3 == 0 ? 3 : 1000;

                begin(16 + (uint32_t)rand() % 200, 50000 + (uint32_t)rand() % 900000,
                      (struct ckv_policy){ .chunk = 1 + (uint32_t)rand() % 20, .fill = fills[round % 3],
                                           .recent = (uint32_t)rand() % 9, .given = CKV_GIVEN_RECENT });
                selection.spans = spans;
                selection.span_count = round % 2 ? 2 : 0;
                ck_assert_int_eq(ckv_select_budget(&selection, flags, &budget), 0);
                if (budget.settled)
                        continue;
                decided++;
                ck_assert_int_eq(ckv_units_init(&units, &selection, flags), 0);
                for (int i = 0; i < 256; i++) {
                        scores[i] = (float)(rand() % range - range / 2) / 8;
                        row_scores[i] = (float)(rand() % range) / 8;
                }
                memcpy(expected, flags, sizeof(expected));
                walk_slowly(&units, scores, row_scores, budget.budget - budget.protected_rows, expected);
                ck_assert_int_eq(ckv_select(&selection, &units, &budget, flags, scores, row_scores, &kept, NULL), 0);
                ck_assert_int_eq(ckv_kept_from_flags(expected, selection.rows, &from_slow), 0);
                ck_assert_uint_eq(kept.count, from_slow.count);
                ck_assert_uint_eq(kept.run_count, from_slow.run_count);
                ck_assert_mem_eq(kept.runs, from_slow.runs, kept.run_count * sizeof(*kept.runs));
                if (policy.fill != CKV_FILL_NONE)
                        ck_assert_uint_eq(kept.count, budget.budget);
                ckv_kept_deinit(&kept);
                ckv_kept_deinit(&from_slow);
                ckv_units_deinit(&units);
        }
        ck_assert_uint_gt(decided, 2000);
}
END_TEST

START_TEST(runs_of_flags) {
        const uint8_t flags[] = { 0, 1, 1, 0, 7, 0, 1 };
        struct ckv_kept kept, copy;

        ck_assert_int_eq(ckv_kept_from_flags(flags, 7, &kept), 0);
        ck_assert_uint_eq(kept.run_count, 3);
        ck_assert_uint_eq(kept.count, 4);
        ck_assert_uint_eq(kept.runs[1].src, 4);
        ck_assert_uint_eq(kept.runs[1].len, 1);
        ck_assert_uint_eq(kept.runs[1].dst, 2);
        ck_assert_uint_eq(kept.runs[2].dst, 3);
        ck_assert_int_eq(ckv_kept_copy(&kept, &copy), 0);
        ck_assert_uint_eq(copy.count, 4);
        ck_assert_mem_eq(copy.runs, kept.runs, 3 * sizeof(*kept.runs));
        ckv_kept_deinit(&kept);
        ckv_kept_deinit(&copy);
        ckv_kept_deinit(&copy);
}
END_TEST

int main(void) {
        Suite *suite = suite_create("select");
        TCase *stages = tcase_create("stages"), *profiles = tcase_create("profiles");
        SRunner *runner = srunner_create(suite);
        int failed;

        suite_add_tcase(suite, stages);
        tcase_set_timeout(stages, 60);
        tcase_add_test(stages, unit_scores_of_6_2);
        tcase_add_test(stages, e1_to_e4_fill_and_max_tokens);
        tcase_add_test(stages, e5_tight);
        tcase_add_test(stages, e6_e7_ties_and_short_tail);
        tcase_add_test(stages, negative_zero_ties_with_zero);
        tcase_add_test(stages, e8_spans);
        tcase_add_test(stages, e9_chunk_at);
        tcase_add_test(stages, e10_e11_rounding);
        tcase_add_test(stages, e12_e13_reduce_and_nothing_protected);
        tcase_add_test(stages, unit_reduce_max);
        tcase_add_test(stages, e14_positions);
        tcase_add_test(stages, rows_below_a_position);
        tcase_add_test(stages, e15_token);
        tcase_add_test(stages, e16_everything_kept);
        tcase_add_test(stages, e17_chunks_before_rows);
        tcase_add_test(stages, r20_order_of_questions);
        tcase_add_test(stages, numbers_without_flags);
        tcase_add_test(stages, r23_nonfinite);
        tcase_add_test(stages, walk_against_a_plain_sort);
        tcase_add_test(stages, runs_of_flags);
        suite_add_tcase(suite, profiles);
        tcase_add_test(profiles, kvpress_kept_rows);
        tcase_add_test(profiles, kvpress_counts);
        tcase_add_test(profiles, kvpress_and_paper_count_rows_not_positions);
        tcase_add_test(profiles, kvpress_refusals);
        tcase_add_test(profiles, paper_table);
        srunner_run_all(runner, CK_NORMAL);
        failed = srunner_ntests_failed(runner);
        srunner_free(runner);
        return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
