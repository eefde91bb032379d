/*
 * The state is global, because a test is one case after the other and each
 * begin() starts afresh.
 */
#include "kernels/reference.h"
#include "tests/support_rows.h"
#include "tests/support_stage.h"

#include <check.h>
#include <stdlib.h>

struct ckv_selection selection;
struct ckv_policy policy;
struct ckv_budget budget;
double T[MOST_ROWS];
char text[64 * 1024];

void begin(uint32_t rows, uint32_t keep_ratio, struct ckv_policy asked) {
        struct ckv_policy_fault fault;

        if (asked.profile == CKV_PROFILE_DEFAULT) {
                if (!(asked.given & CKV_GIVEN_SINKS))
                        asked.sinks = 4;
                if (!(asked.given & CKV_GIVEN_RECENT))
                        asked.recent = 8;
                asked.given |= CKV_GIVEN_SINKS | CKV_GIVEN_MIN_TOKENS;
                if (asked.selector != CKV_SELECTOR_H2O)         /* has a part instead */
                        asked.given |= CKV_GIVEN_RECENT;
                asked.window = 1;
        }
        ck_assert(ckv_policy_resolve(&asked, &policy, &fault));
        for (uint64_t j = 0; j < rows; j++)
                T[j] = (double)((j * j + 7 * j + 3) % 97);
        selection = (struct ckv_selection){ .policy = &policy, .rows = rows, .keep_ratio = keep_ratio };
}

const char *settle(void) {
        static uint8_t flags[MOST_ROWS + 1];
        static float units_scores[MOST_ROWS], rows_scores[MOST_ROWS];
        struct ckv_units units;
        struct ckv_kept kept;
        int r = ckv_select_budget(&selection, flags, &budget);

        if (r == CKV_SELECT_E_UNSUPPORTED)
                return "unsupported";
        if (r == CKV_SELECT_E_WINDOW_OVER_BUDGET)
                return "window over budget";
        ck_assert_int_eq(r, 0);
        if (budget.refused)
                return "refused";
        if (budget.settled)
                ck_assert_int_eq(ckv_select_settled(&selection, &budget, flags, &kept), 0);
        else {
                ck_assert_int_eq(ckv_units_init(&units, &selection, flags), 0);
                ckv_ref_unit_scores(&policy, &units, selection.rows, T, units_scores);
                for (uint32_t j = 0; j < selection.rows; j++)
                        rows_scores[j] = ckv_fl32(T[j]);
                ck_assert_int_eq(ckv_select(&selection, &units, &budget, flags, units_scores,
                                            ckv_policy_selects_rows(&policy) ? rows_scores : NULL, &kept, NULL), 0);
                ckv_units_deinit(&units);
        }
        (void)rows_to_string(&kept, text, sizeof(text));
        ckv_kept_deinit(&kept);
        return text;
}

uint32_t rows_in(const char *rows) {
        uint32_t sum = 0;

        while (*rows) {
                char *end;
                unsigned long first = strtoul(rows, &end, 10), last = first;

                if (*end == '-')
                        last = strtoul(end + 1, &end, 10);
                sum += (uint32_t)(last - first + 1);
                rows = *end ? end + 1 : end;
        }
        return sum;
}

void assert_numbers(uint32_t b, uint32_t p) {
        ck_assert_uint_eq(budget.budget, b);
        ck_assert_uint_eq(budget.protected_rows, p);
}
