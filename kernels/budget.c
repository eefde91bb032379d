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
 * counts chunks and protects nothing (its other presses count rows: R54), the
 * other appends its window at the end.
 */
#include "kernels/select.h"

#include "base/macros.h"

#include <errno.h>
#include <string.h>

static const uint64_t millionths = 1000000;

enum { KVPRESS_SINKS = 4 };     /* of its StreamingLLMPress */

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

/* Rows in so many millionths of the sequence */
static uint64_t part_of_rows(const struct ckv_selection *selection, uint32_t parts) {
        return (uint64_t)selection->rows * parts / millionths;
}

/* r: the newest rows that are protected */
static uint32_t recent_rows(const struct ckv_selection *selection) {
        const struct ckv_policy *policy = selection->policy;

        return policy->selector == CKV_SELECTOR_H2O ? (uint32_t)part_of_rows(selection, policy->recent_part) : policy->recent;
}

/* B0 of S6: floor(L * keep_ratio / 10^6), max_tokens, or the smaller of the two; h2o has two parts of its own */
static uint64_t asked_rows(const struct ckv_selection *selection) {
        uint64_t asked = UINT32_MAX;

        if (selection->policy->selector == CKV_SELECTOR_H2O)
                return part_of_rows(selection, selection->policy->heavy) + recent_rows(selection);
        if (selection->keep_ratio > 0)
                asked = part_of_rows(selection, selection->keep_ratio);
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

/* Section 4.4: a page with a protected row is kept whole, and so is a short last one, which must stay last */
static void protect_pages(const struct ckv_selection *selection, uint8_t *flags) {
        uint32_t rows = selection->rows, page = selection->policy->page;

        for (uint64_t first = 0; first < rows; first += page) {
                size_t size = CKV_MIN(page, rows - first);

                if (size < page || memchr(flags + first, 1, size))
                        memset(flags + first, 1, size);
        }
}

/* S5 into flags[L]. Return: p. */
static uint32_t protect(const struct ckv_selection *selection, uint8_t *flags) {
        uint32_t rows = selection->rows, count = 0;
        uint32_t first = CKV_MIN(selection->policy->sinks, rows), last = CKV_MIN(recent_rows(selection), rows);

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
        if (selection->policy->selector == CKV_SELECTOR_PAGE)
                protect_pages(selection, flags);
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
        else if (rows < policy->min_tokens || (ckv_policy_reads_queries(policy) && rows < ckv_policy_window(policy, rows)))
                budget.kept_all = CKV_KEPT_SHORT;
        else if (budget.budget >= rows)
                budget.kept_all = CKV_KEPT_FITS;
        else if (budget.protected_rows == rows)
                budget.kept_all = CKV_KEPT_PROTECTED;
        else if (budget.protected_rows > budget.budget && policy->tight == CKV_TIGHT_REFUSE)
                budget.refused = true;
        else if (budget.protected_rows > budget.budget)
                budget.raised = true;
        budget.settled = budget.kept_all != CKV_DROPPED || (!budget.refused && (budget.protected_rows >= budget.budget ||
                                                                                policy->selector == CKV_SELECTOR_STREAMING));
        *ret_budget = budget;
        return 0;
}

/* 1 - removed, as kvpress computes it */
static double kvpress_kept_part(const struct ckv_selection *selection) {
        return 1.0 - (double)(millionths - selection->keep_ratio) / 1e6;
}

/* R54: what the press itself protects, and no more of it than B rows. Return: p. */
static uint32_t protect_kvpress(const struct ckv_selection *selection, uint32_t b, uint8_t *flags) {
        uint32_t rows = selection->rows, most = CKV_MIN(b, rows);
        uint32_t window = ckv_policy_reads_queries(selection->policy) ? selection->policy->window : 0;

        if (selection->policy->selector == CKV_SELECTOR_STREAMING) {
                most = CKV_MIN(most, KVPRESS_SINKS);
                memset(flags, 1, most);
        } else {
                most = CKV_MIN(most, window);
                memset(flags + (rows - window), 1, most);
        }
        return most;
}

/* R51, R54, and the refusals of section 6 */
static int budget_kvpress(const struct ckv_selection *selection, uint8_t *flags, struct ckv_budget *ret_budget) {
        const struct ckv_policy *policy = selection->policy;
        struct ckv_budget budget = { .budget = (uint32_t)asked_rows(selection) };
        uint32_t rows = selection->rows;

        bool chunks = policy->selector == CKV_SELECTOR_CHUNK || policy->selector == CKV_SELECTOR_CHUNK_EG;
        uint32_t least = policy->selector == CKV_SELECTOR_STREAMING ? KVPRESS_SINKS : 0;

        if (ckv_policy_reads_queries(policy))
                least = policy->window;
        memset(flags, 0, rows);
        if (rows == 0)
                budget.kept_all = CKV_KEPT_EMPTY;
        else if (selection->keep_ratio == millionths)
                budget.kept_all = CKV_KEPT_FITS;
        else if (rows <= least || (chunks && rows < policy->chunk))
                return CKV_SELECT_E_UNSUPPORTED;
        else if (ckv_policy_counts_chunks(policy)) {
                uint32_t all = (rows - 1) / policy->chunk + 1, k = (uint32_t)((double)all * kvpress_kept_part(selection));

                budget.chunks = CKV_MAX(k, 1);
        } else {
                uint32_t b = (uint32_t)((double)rows * kvpress_kept_part(selection));

                budget.budget = CKV_MAX(b, 1);
                budget.protected_rows = protect_kvpress(selection, budget.budget, flags);
        }
        budget.settled = budget.kept_all != CKV_DROPPED || policy->selector == CKV_SELECTOR_STREAMING ||
                         (!ckv_policy_counts_chunks(policy) && budget.protected_rows == budget.budget);
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

bool ckv_select_layer_budgets(const struct ckv_selection *selection, const struct ckv_budget *budget, uint32_t layers,
                              uint32_t first, uint32_t count, uint32_t *ret_budgets) {
        uint64_t p = budget->protected_rows, a = budget->budget - p, room = selection->rows - p, beta = selection->policy->beta;
        uint64_t lo, hi, d = layers - 1, before = 0;

        if (beta == 0 || layers == 1 || a < beta)
                return false;
        lo = a / beta;
        hi = 2 * a - lo;
        if (hi > room) {
                hi = room;
                lo = 2 * a - hi;
        }
        for (uint64_t l = 0; l < (uint64_t)first + count; l++) {
                /* rows of the layers 0 .. l above the protected ones: a straight line from hi down to lo, added up */
                uint64_t total = (l + 1) * (2 * hi * d - (hi - lo) * l) / (2 * d);

                if (l >= first)
                        ret_budgets[l - first] = (uint32_t)(p + total - before);
                before = total;
        }
        return true;
}
