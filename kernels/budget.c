/*
 * S5 and S6: which rows are protected, how many may be kept, and whether
 * anything is left to decide.
 *
 * Integers only (but for R51, where kvpress' two roundings are part of the
 * profile), so the daemon can answer the new length before a tensor is read,
 * and every backend agrees without trying.  The order of the questions is
 * R20's: the first that matches decides.
 *
 * Profiles kvpress and paper have rules of their own instead of R20: one
 * counts chunks and protects nothing, the other appends its window at the end.
 */
#include "kernels/select.h"

#include "base/macros.h"

#include <errno.h>
#include <string.h>

static const uint64_t millionths = 1000000;

uint32_t ckv_selection_rows_below(const struct ckv_selection *selection, uint64_t position) {
        uint32_t low = 0, high = selection->rows;

        if (!selection->positions)
                return position < high ? (uint32_t)position : high;
        while (low < high) {
                uint32_t middle = low + (high - low) / 2;

                if (selection->positions[middle] < position)
                        low = middle + 1;
                else
                        high = middle;
        }
        return low;
}

/* B0 of S6: floor(L * keep_ratio / 10^6), max_tokens, or the smaller of the two */
static uint64_t asked_rows(const struct ckv_selection *selection) {
        uint64_t asked = UINT32_MAX;

        if (selection->keep_ratio > 0)
                asked = (uint64_t)selection->rows * selection->keep_ratio / millionths;
        if (selection->max_tokens > 0)
                asked = CKV_MIN(asked, selection->max_tokens);
        return asked;
}

/* B of S6: B0 rounded up to whole blocks, at least 1, never above max_tokens */
static uint32_t budget_rows(const struct ckv_selection *selection) {
        uint64_t align = selection->policy->align;
        uint64_t b = (asked_rows(selection) + align - 1) / align * align;

        if (selection->max_tokens > 0)
                b = CKV_MIN(b, selection->max_tokens);
        return (uint32_t)CKV_MIN(CKV_MAX(b, 1), UINT32_MAX);
}

/* S5 into flags[L]. Return: p. */
static uint32_t protect(const struct ckv_selection *selection, uint8_t *flags) {
        uint32_t rows = selection->rows, count = 0;
        uint32_t first = CKV_MIN(selection->policy->sinks, rows), last = CKV_MIN(selection->policy->recent, rows);

        memset(flags, 0, rows);
        memset(flags, 1, first);
        memset(flags + (rows - last), 1, last);
        for (size_t i = 0; i < selection->span_count; i++) {
                /* in 64 bits: a span may end past the last position there is */
                uint64_t from = selection->spans[i].first, to = from + selection->spans[i].count;
                uint32_t low = ckv_selection_rows_below(selection, from);
                uint32_t high = ckv_selection_rows_below(selection, to);

                memset(flags + low, 1, high - low);
        }
        for (uint32_t j = 0; j < rows; j++)
                count += flags[j];
        return count;
}

/* R20 */
static int budget_of_rows(const struct ckv_selection *selection, uint8_t *flags, struct ckv_budget *ret_budget) {
        const struct ckv_policy *policy = selection->policy;
        struct ckv_budget budget = { .budget = budget_rows(selection), .protected_rows = protect(selection, flags) };
        uint32_t rows = selection->rows;

        if (rows == 0)
                budget.kept_all = CKV_KEPT_EMPTY;
        else if (rows < policy->min_tokens || rows < policy->window)
                budget.kept_all = CKV_KEPT_SHORT;
        else if (budget.budget >= rows)
                budget.kept_all = CKV_KEPT_FITS;
        else if (budget.protected_rows == rows)
                budget.kept_all = CKV_KEPT_PROTECTED;
        else if (budget.protected_rows > budget.budget && policy->tight == CKV_TIGHT_REFUSE)
                budget.refused = true;
        else if (budget.protected_rows > budget.budget)
                budget.raised = true;
        budget.settled = budget.kept_all != CKV_DROPPED || (!budget.refused && budget.protected_rows >= budget.budget);
        *ret_budget = budget;
        return 0;
}

/* R51, and the refusals of section 6 */
static int budget_kvpress(const struct ckv_selection *selection, uint8_t *flags, struct ckv_budget *ret_budget) {
        const struct ckv_policy *policy = selection->policy;
        struct ckv_budget budget = { .budget = (uint32_t)asked_rows(selection) };
        uint32_t rows = selection->rows;

        memset(flags, 0, rows);
        if (rows == 0)
                budget.kept_all = CKV_KEPT_EMPTY;
        else if (selection->keep_ratio == millionths)
                budget.kept_all = CKV_KEPT_FITS;
        else if (rows <= policy->window || rows < policy->chunk)
                return CKV_SELECT_E_UNSUPPORTED;
        else {
                uint32_t chunks = (rows - 1) / policy->chunk + 1;
                double removed = (double)(millionths - selection->keep_ratio) / 1e6;
                uint32_t k = (uint32_t)((double)chunks * (1.0 - removed));

                budget.chunks = CKV_MAX(k, 1);
        }
        budget.settled = budget.kept_all != CKV_DROPPED;
        *ret_budget = budget;
        return 0;
}

static int budget_paper(const struct ckv_selection *selection, uint8_t *flags, struct ckv_budget *ret_budget) {
        const struct ckv_policy *policy = selection->policy;
        uint32_t rows = selection->rows, most = (uint32_t)asked_rows(selection);
        struct ckv_budget budget = { .budget = most, .protected_rows = CKV_MIN(policy->window, rows) };

        memset(flags, 0, rows);
        memset(flags + (rows - budget.protected_rows), 1, budget.protected_rows);
        if (rows == 0)
                budget.kept_all = CKV_KEPT_EMPTY;
        else if (most >= rows)
                budget.kept_all = CKV_KEPT_FITS;
        else if (rows <= policy->window || rows < policy->chunk)
                return CKV_SELECT_E_UNSUPPORTED;
        else if (most < policy->window)
                return CKV_SELECT_E_WINDOW_OVER_BUDGET;
        else
                budget.chunks = most / policy->chunk;
        /* less than a chunk of budget: only the window is left, and it needs no scores */
        budget.settled = budget.kept_all != CKV_DROPPED || budget.chunks == 0;
        *ret_budget = budget;
        return 0;
}

int ckv_select_budget(const struct ckv_selection *selection, uint8_t *ret_protected, struct ckv_budget *ret_budget) {
        _cleanup_free_ uint8_t *own = NULL;
        uint8_t *flags = ret_protected;

        if (!flags) {
                own = malloc((size_t)selection->rows + 1);
                if (!own)
                        return -ENOMEM;
                flags = own;
        }
        switch (selection->policy->profile) {
        case CKV_PROFILE_KVPRESS:
                return budget_kvpress(selection, flags, ret_budget);
        case CKV_PROFILE_PAPER:
                return budget_paper(selection, flags, ret_budget);
        default:
                return budget_of_rows(selection, flags, ret_budget);
        }
}
