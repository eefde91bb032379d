/*
 * S7: rank the units, walk the ranking, keep rows.
 *
 * R21 ranks by score descending, then lower index; R22 walks until the budget
 * is used up and stops at the first unit that does not fit.  No ranking is
 * ever built: a radix select over the order-preserving bits of the scores adds
 * up sizes instead of counts, and finds in three passes the score at which the
 * walk ends; units above it are in, units at it are taken by index until one
 * does not fit.  That is the same set, in time linear in the number of units.
 *
 * Profiles kvpress and paper count chunks where ours counts rows: the same
 * walk with sizes of 1.  Selector streaming never walks: age alone decides.
 */
#include "kernels/select.h"

#include "base/macros.h"
#include "kernels/select_entropy.h"

#include <errno.h>
#include <math.h>
#include <string.h>

/* R21: bits of a binary32 as an unsigned that sorts like the number */
static uint32_t order_of(float score) {
        uint32_t bits;

        memcpy(&bits, &score, sizeof(bits));
        return bits & 0x80000000U ? ~bits : bits | 0x80000000U;
}

/* Where the three passes cut a score: wide digits, since items that share the first digit are what the second pass costs. */
static const struct digit {
        unsigned shift, bits;
} digits[] = { { 21, 11 }, { 10, 11 }, { 0, 10 } };

enum { FEW = 1 << 11 };        /* comparisons that cost no more than a pass over the buckets */

/* One pass of the radix select: among the items whose higher bits are *prefix, spend *left on whole buckets from the
 * top down. Return: false if all of them fit; else *prefix gains the digit of the bucket in which the walk ends. */
static bool narrow(const uint32_t *order, const uint32_t *size, uint32_t n, const struct digit *digit, uint32_t *prefix,
                   uint64_t *left) {
        uint64_t bucket[1 << 11] = { 0 };
        uint32_t buckets = UINT32_C(1) << digit->bits;

        for (uint32_t i = 0; i < n; i++)
                if (((uint64_t)order[i] >> (digit->shift + digit->bits)) == *prefix)
                        bucket[(order[i] >> digit->shift) & (buckets - 1)] += size ? size[i] : 1;
        for (uint32_t b = buckets; b-- > 0;) {
                if (bucket[b] > *left) {
                        *prefix = *prefix << digit->bits | b;
                        return true;
                }
                *left -= bucket[b];
        }
        return false;
}

/* R22's walk over n items: order[n], size[n] (NULL: 1 each). taken[i] becomes 1 for items taken whole.
 * Return: the item that ended the walk (n if all fit); *budget is what was left for it. */
static uint32_t walk(const uint32_t *order, const uint32_t *size, uint32_t n, uint32_t *budget, uint8_t *taken) {
        uint64_t left = *budget;
        uint32_t threshold = 0, cut = n;

        for (size_t d = 0; d < CKV_ARRAY_SIZE(digits); d++)
                if (!narrow(order, size, n, &digits[d], &threshold, &left)) {
                        memset(taken, 1, n);
                        *budget = (uint32_t)left;
                        return n;
                }
        for (uint32_t i = 0; i < n; i++) {
                uint64_t need = size ? size[i] : 1;

                taken[i] = order[i] > threshold;
                if (order[i] != threshold || cut < n)
                        continue;
                if (need > left) {
                        cut = i;
                        continue;
                }
                taken[i] = 1;
                left -= need;
        }
        *budget = (uint32_t)left;
        return cut;
}

uint32_t ckv_scores_first_nonfinite(const float *scores, uint32_t count) {
        for (uint32_t i = 0; i < count; i++)
                if (!isfinite(scores[i]))
                        return i;
        return count;
}

/* As take_best(), by comparing all rows for each that is taken: of a short unit that is less than a pass over the buckets of
 * the radix select, and chunk_eg may do it for every tenth row of a million */
static void take_few(const struct ckv_units *units, uint32_t unit, uint32_t b, const float *row_scores, uint8_t *flags) {
        for (; b > 0; b--) {
                uint32_t best = UINT32_MAX, highest = 0;

                for (uint32_t j = units->first_row[unit], left = units->size[unit]; left > 0; j++) {
                        if (units->unit_of_row[j] != unit)
                                continue;
                        left--;
                        if (!flags[j] && (best == UINT32_MAX || order_of(row_scores[j]) > highest)) {
                                best = j;
                                highest = order_of(row_scores[j]);
                        }
                }
                flags[best] = 1;
        }
}

/* fill = best: the b best rows of one unit by T32, ties to the lower row */
static int take_best(const struct ckv_units *units, uint32_t unit, uint32_t b, const float *row_scores,
                     uint8_t *flags) {
        _cleanup_free_ uint32_t *order = NULL, *row = NULL;
        _cleanup_free_ uint8_t *taken = NULL;
        uint32_t n = units->size[unit];

        if ((uint64_t)n * b <= FEW) {
                take_few(units, unit, b, row_scores, flags);
                return 0;
        }
        order = calloc((size_t)n + 1, sizeof(*order));
        row = calloc((size_t)n + 1, sizeof(*row));
        taken = malloc(n);
        if (!order || !row || !taken)
                return -ENOMEM;
        for (uint32_t j = units->first_row[unit], i = 0; i < n; j++)
                if (units->unit_of_row[j] == unit) {
                        order[i] = order_of(row_scores[j]);
                        row[i++] = j;
                }
        (void)walk(order, NULL, n, &b, taken);
        for (uint32_t i = 0; i < n; i++)
                flags[row[i]] |= taken[i];
        return 0;
}

/* R22 in full: flags[L] of the kept rows from the protected ones and the walk */
static int select_rows(const struct ckv_selection *selection, const struct ckv_units *units,
                       const struct ckv_budget *budget, const uint8_t *protected_rows, const uint32_t *order,
                       const float *row_scores, uint8_t *taken, uint8_t *flags) {
        uint32_t b = budget->budget - budget->protected_rows;
        uint32_t cut = walk(order, units->size, units->count, &b, taken);

        for (uint32_t j = 0; j < selection->rows; j++) {
                uint32_t u = units->unit_of_row[j];

                flags[j] = protected_rows[j] || (u != UINT32_MAX && taken[u]);
        }
        if (cut == units->count || b == 0)
                return 0;
        if (selection->policy->fill == CKV_FILL_BEST)
                return take_best(units, cut, b, row_scores, flags);
        if (selection->policy->fill == CKV_FILL_LEAD)
                for (uint32_t j = units->first_row[cut]; b > 0; j++)
                        if (units->unit_of_row[j] == cut) {
                                flags[j] = 1;
                                b--;
                        }
        return 0;
}

/* What is left at the end of chunk_eg: the b best rows of any unit that are not kept yet */
static int take_best_rows(const struct ckv_selection *selection, const struct ckv_units *units, uint32_t b, const float *row_scores,
                          uint8_t *flags) {
        size_t most = (size_t)selection->rows + 1;
        _cleanup_free_ uint32_t *order = calloc(most, sizeof(*order)), *row = calloc(most, sizeof(*row));
        _cleanup_free_ uint8_t *taken = malloc(most);
        uint32_t n = 0;

        if (!order || !row || !taken)
                return -ENOMEM;
        for (uint32_t j = 0; j < selection->rows; j++)
                if (!flags[j] && units->unit_of_row[j] != UINT32_MAX) {
                        order[n] = order_of(row_scores[j]);
                        row[n++] = j;
                }
        (void)walk(order, NULL, n, &b, taken);
        for (uint32_t i = 0; i < n; i++)
                flags[row[i]] |= taken[i];
        return 0;
}

/* Section 4.3: as R22, but a unit whose mass lies in few rows gives its spike_keep best ones alone, the unit at which
 * the budget ends its best ones, and what is left at the end goes to the best rows anywhere */
static int select_gated(const struct ckv_selection *selection, const struct ckv_units *units, const struct ckv_budget *budget,
                        const uint8_t *protected_rows, const float *row_scores, uint32_t *order, uint8_t *taken, uint8_t *flags) {
        _cleanup_free_ uint32_t *take = malloc(((size_t)units->count + 1) * sizeof(*take));
        _cleanup_free_ float *scores = malloc(((size_t)units->count + 1) * sizeof(*scores));
        uint32_t b = budget->budget - budget->protected_rows, cut;
        int r;

        if (!take || !scores)
                return -ENOMEM;
        r = ckv__entropy_gate(selection, units, row_scores, scores, take);
        if (r < 0)
                return r;
        for (uint32_t u = 0; u < units->count; u++)
                order[u] = order_of(scores[u]);
        cut = walk(order, take, units->count, &b, taken);
        for (uint32_t j = 0; j < selection->rows; j++) {
                uint32_t u = units->unit_of_row[j];

                flags[j] = protected_rows[j] || (u != UINT32_MAX && taken[u] && take[u] == units->size[u]);
        }
        for (uint32_t u = 0; u < units->count && r == 0; u++)
                if (taken[u] && take[u] < units->size[u])
                        r = take_best(units, u, take[u], row_scores, flags);
        if (r == 0 && cut < units->count)
                return take_best(units, cut, b, row_scores, flags);
        return r < 0 ? r : take_best_rows(selection, units, b, row_scores, flags);
}

/* R52: the chunks of the window by index, then the one that straddles its edge, then the others by score */
static void select_kvpress(const struct ckv_selection *selection, const struct ckv_units *units,
                           const struct ckv_budget *budget, const uint32_t *order, uint8_t *taken, uint8_t *flags) {
        uint32_t window = ckv_policy_reads_queries(selection->policy) ? selection->policy->window : 0;
        uint32_t edge = selection->rows - window, left = budget->chunks;
        uint32_t before = edge / selection->policy->chunk;            /* chunks wholly outside the window */
        bool straddles = window > 0 && edge % selection->policy->chunk != 0;

        if (window == 0)
                before = units->count;          /* no window: the short last chunk competes as well */
        memset(taken, 0, units->count);
        for (uint32_t u = before + straddles; u < units->count && left > 0; u++, left--)
                taken[u] = 1;
        if (straddles && left > 0) {
                taken[before] = 1;
                left--;
        }
        (void)walk(order, NULL, before, &left, taken);
        for (uint32_t j = 0; j < selection->rows; j++)
                flags[j] = taken[units->unit_of_row[j]];
}

/* Section 6, paper: the k best chunks, cut to L_max - w rows, and the window behind them (R50) */
static void select_paper(const struct ckv_selection *selection, const struct ckv_units *units,
                         const struct ckv_budget *budget, const uint32_t *order, uint8_t *taken, uint8_t *flags) {
        uint32_t k = budget->chunks, window = selection->policy->window;
        uint32_t room = selection->policy->join == CKV_JOIN_CUT ? budget->budget - window : UINT32_MAX;

        (void)walk(order, NULL, units->count, &k, taken);
        for (uint32_t j = 0; j < selection->rows; j++) {
                flags[j] = taken[units->unit_of_row[j]] && room > 0;
                room -= flags[j];
        }
        memset(flags + (selection->rows - window), 1, window);
}

/* R23. Return: units->count if all scores are finite */
static uint32_t nonfinite_unit(const struct ckv_selection *selection, const struct ckv_units *units,
                               const float *unit_scores, const float *row_scores) {
        uint32_t unit = ckv_scores_first_nonfinite(unit_scores, units->count);

        if (ckv_policy_selects_rows(selection->policy))
                for (uint32_t j = 0; j < selection->rows; j++)
                        if (units->unit_of_row[j] < unit && !isfinite(row_scores[j]))
                                return units->unit_of_row[j];
        return unit;
}

int ckv_select(const struct ckv_selection *selection, const struct ckv_units *units, const struct ckv_budget *budget,
               const uint8_t *protected_rows, const float *unit_scores, const float *row_scores,
               struct ckv_kept *ret_kept, uint32_t *ret_unit) {
        _cleanup_free_ uint32_t *order = malloc(((size_t)units->count + 1) * sizeof(*order));
        _cleanup_free_ uint8_t *taken = malloc((size_t)units->count + 1), *flags = malloc((size_t)selection->rows + 1);
        uint32_t bad;
        int r = 0;

        if (!order || !taken || !flags)
                return -ENOMEM;
        bad = nonfinite_unit(selection, units, unit_scores, row_scores);
        if (bad < units->count) {
                if (ret_unit)
                        *ret_unit = units->index[bad];
                return CKV_SELECT_E_NONFINITE;
        }
        for (uint32_t u = 0; u < units->count; u++)
                order[u] = order_of(unit_scores[u]);
        if (!ckv_policy_counts_chunks(selection->policy) && selection->policy->selector == CKV_SELECTOR_CHUNK_EG)
                r = select_gated(selection, units, budget, protected_rows, row_scores, order, taken, flags);
        else if (!ckv_policy_counts_chunks(selection->policy))
                r = select_rows(selection, units, budget, protected_rows, order, row_scores, taken, flags);
        else if (selection->policy->profile == CKV_PROFILE_KVPRESS)
                select_kvpress(selection, units, budget, order, taken, flags);
        else
                select_paper(selection, units, budget, order, taken, flags);
        return r < 0 ? r : ckv_kept_from_flags(flags, selection->rows, ret_kept);
}

int ckv_select_settled(const struct ckv_selection *selection, const struct ckv_budget *budget,
                       const uint8_t *protected_rows, struct ckv_kept *ret_kept) {
        bool streaming = selection->policy->selector == CKV_SELECTOR_STREAMING;
        _cleanup_free_ uint8_t *flags = NULL;

        if (budget->kept_all == CKV_DROPPED && (!streaming || budget->protected_rows >= budget->budget))
                return ckv_kept_from_flags(protected_rows, selection->rows, ret_kept);
        flags = malloc((size_t)selection->rows + 1);
        if (!flags)
                return -ENOMEM;
        if (budget->kept_all != CKV_DROPPED)
                memset(flags, 1, selection->rows);
        else {
                uint32_t left = budget->budget - budget->protected_rows;

                memcpy(flags, protected_rows, selection->rows);
                for (uint32_t j = selection->rows; j-- > 0 && left > 0;) {
                        left -= flags[j] == 0;
                        flags[j] = 1;
                }
        }
        return ckv_kept_from_flags(flags, selection->rows, ret_kept);
}
