/*
 * Selector chunk_eg from given row scores: stage example E18 of algorithm.md
 * 6.2, and the gate of section 4.3 against a plain sort on random cases.
 */
#include "tests/support_rows.h"
#include "tests/support_stage.h"

#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

START_TEST(e18_entropy_gate) {
        begin(60, 400000, (struct ckv_policy){ .selector = CKV_SELECTOR_CHUNK_EG });
        ck_assert_uint_eq(policy.spike_keep, 4);
        for (uint32_t j = 0; j < 60; j++)
                T[j] = j == 25 ? 95 : j >= 30 && j < 40 ? 10 : 1;
        ck_assert_str_eq(settle(), "0-3 20-22 25 30-37 52-59");
        assert_numbers(24, 12);
}
END_TEST

/* Section 4.3 word by word, with libm's logarithm and a full sort. */
struct plain_unit {
        uint32_t first, size, take;
        double score, entropy;
};

static struct plain_unit plain[MOST_ROWS];
static uint32_t plain_count;

static int higher_row(const void *a, const void *b) {
        uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;

        return T[x] != T[y] ? (T[x] < T[y] ? 1 : -1) : (x > y) - (x < y);
}

static int higher_unit(const void *a, const void *b) {
        const struct plain_unit *x = a, *y = b;

        return (float)x->score != (float)y->score ? ((float)x->score < (float)y->score ? 1 : -1)
                                                   : (x->first > y->first) - (x->first < y->first);
}

static float median_of(bool entropy) {
        static float sorted[MOST_ROWS];

        for (uint32_t u = 0; u < plain_count; u++) {
                float value = (float)(entropy ? plain[u].entropy : plain[u].score);
                uint32_t at = u;

                for (; at > 0 && sorted[at - 1] > value; at--)
                        sorted[at] = sorted[at - 1];
                sorted[at] = value;
        }
        return sorted[(plain_count - 1) / 2];
}

/* Units are runs of unprotected rows of one chunk here: sinks and recent alone are protected. */
static void plain_units(uint32_t first, uint32_t end) {
        plain_count = 0;
        for (uint32_t j = first; j < end; plain_count++) {
                struct plain_unit *u = &plain[plain_count];
                double base = 0, mass = 0;

                *u = (struct plain_unit){ .first = j };
                for (; j < end && j / policy.chunk == u->first / policy.chunk; j++, u->size++) {
                        u->score += T[j];
                        base = T[j] < base ? T[j] : base;
                }
                u->score /= u->size;
                for (uint32_t k = u->first; k < j; k++)
                        mass += T[k] - base;
                for (uint32_t k = u->first; k < j && mass > 0 && u->size > 1; k++)
                        if (T[k] > base)
                                u->entropy -= (T[k] - base) / mass * log((T[k] - base) / mass) / log(u->size);
        }
}

/* take_plain() - the @n best rows of a unit */
static void take_plain(const struct plain_unit *u, uint32_t n, uint8_t *flags) {
        uint32_t order[1024];

        for (uint32_t i = 0; i < u->size; i++)
                order[i] = u->first + i;
        qsort(order, u->size, sizeof(order[0]), higher_row);
        for (uint32_t i = 0; i < n; i++)
                flags[order[i]] = 1;
}

START_TEST(entropy_gate_against_a_plain_sort) {
        uint32_t state = 5, gated = 0, spread = 0;

        for (int round = 0; round < 3000; round++) {
                static uint8_t flags[MOST_ROWS];
                static char expected[64 * 1024];
                static uint32_t left_over[MOST_ROWS];
                uint32_t rows, b, n = 0;
                struct ckv_kept kept;
                float score, entropy;

                state = state * 1103515245u + 12345u;
                rows = 30 + (state >> 16) % 300;
                begin(rows, 100000 + (state >> 8) % 880000,
                      (struct ckv_policy){ .selector = CKV_SELECTOR_CHUNK_EG, .chunk = 2 + (state >> 4) % 12 });
                for (uint32_t j = 0; j < rows; j++) {
                        state = state * 1103515245u + 12345u;
                        /* small whole numbers tie often; some rows are spikes, some are below 0 */
                        T[j] = (state >> 16) % 13 == 0 ? 40 + (state >> 20) % 3 : (double)((state >> 16) % 5) - (round % 2);
                }
                (void)settle();
                if (budget.settled)
                        continue;
                memset(flags, 0, sizeof(flags));
                memset(flags, 1, 4);
                memset(flags + rows - 8, 1, 8);
                plain_units(4, rows - 8);
                score = median_of(false);
                entropy = median_of(true);
                b = budget.budget - budget.protected_rows;
                for (uint32_t u = 0; u < plain_count; u++) {
                        bool spike = (float)plain[u].score >= score && (float)plain[u].entropy < entropy;

                        plain[u].take = spike && plain[u].size > policy.spike_keep ? policy.spike_keep : plain[u].size;
                        gated += plain[u].take < plain[u].size;
                }
                qsort(plain, plain_count, sizeof(plain[0]), higher_unit);
                for (uint32_t u = 0; u < plain_count && b > 0; u++) {
                        uint32_t take = plain[u].take < b ? plain[u].take : b;

                        take_plain(&plain[u], take, flags);
                        b -= take;
                }
                for (uint32_t j = 0; j < rows; j++)
                        if (!flags[j])
                                left_over[n++] = j;
                qsort(left_over, n, sizeof(left_over[0]), higher_row);
                spread += b > 0;
                for (uint32_t i = 0; i < b; i++)
                        flags[left_over[i]] = 1;
                ck_assert_int_eq(ckv_kept_from_flags(flags, rows, &kept), 0);
                ck_assert_uint_eq(kept.count, budget.budget);
                (void)rows_to_string(&kept, expected, sizeof(expected));
                ckv_kept_deinit(&kept);
                ck_assert_str_eq(text, expected);
        }
        ck_assert_uint_gt(gated, 1000);
        ck_assert_uint_gt(spread, 10);
}
END_TEST

int main(void) {
        Suite *suite = suite_create("select_entropy");
        TCase *tcase = tcase_create("chunk_eg");
        SRunner *runner = srunner_create(suite);
        int failed;

        suite_add_tcase(suite, tcase);
        tcase_set_timeout(tcase, 60);
        tcase_add_test(tcase, e18_entropy_gate);
        tcase_add_test(tcase, entropy_gate_against_a_plain_sort);
        srunner_run_all(runner, CK_NORMAL);
        failed = srunner_ntests_failed(runner);
        srunner_free(runner);
        return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
