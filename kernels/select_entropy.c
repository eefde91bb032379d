/*
 * Whole chunks spend c rows on one needle.  The gate looks at how a unit's mass
 * is spread over its rows: a unit with a high score and a low entropy is a
 * spike, and gives its few best rows instead of all.
 *
 *     base = min(0, lowest T32);  y = T32 - base;  q = y / sum of y
 *     H = -(sum of q log q) / log(n),  between 0 (one row has it all) and 1 (even)
 *
 * High and low are against the lower medians over all units.  Everything is
 * formed from T32 in binary64 with the logarithm of R14, so two machines that
 * have the same T32 decide the same.
 */
#include "kernels/select_entropy.h"

#include "base/macros.h"
#include "kernels/reference.h"

#include <errno.h>
#include <float.h>
#include <string.h>

/* Sums over the rows of each unit. */
struct sums {
        double total;           /* of T32 */
        double mass;            /* of y */
        double entropy;         /* of -(q log q) */
        float lowest;           /* min(0, lowest T32) */
};

static void add_rows(const struct ckv_selection *selection, const struct ckv_units *units, const float *row_scores,
                     struct sums *sums) {
        for (uint32_t j = 0; j < selection->rows; j++) {
                uint32_t u = units->unit_of_row[j];

                if (u == UINT32_MAX)
                        continue;
                sums[u].total += (double)row_scores[j];
                if (row_scores[j] < sums[u].lowest)
                        sums[u].lowest = row_scores[j];
        }
        for (uint32_t j = 0; j < selection->rows; j++) {
                uint32_t u = units->unit_of_row[j];

                if (u != UINT32_MAX)
                        sums[u].mass += (double)row_scores[j] - (double)sums[u].lowest;
        }
        for (uint32_t j = 0; j < selection->rows; j++) {
                uint32_t u = units->unit_of_row[j];
                double q;

                if (u == UINT32_MAX || sums[u].mass == 0)
                        continue;
                q = ((double)row_scores[j] - (double)sums[u].lowest) / sums[u].mass;
                /* what is below the normal numbers adds less than the last bit of any sum, and R14's log ends there */
                if (q >= DBL_MIN)
                        sums[u].entropy += -(q * ckv_ref_log(q));
        }
}

static int by_value(const void *a, const void *b) {
        float x = *(const float *)a, y = *(const float *)b;

        return (x > y) - (x < y);
}

/* lower_median() - element (n - 1) / 2 ascending; n >= 1; @scratch has room for n */
static float lower_median(const float *values, uint32_t n, float *scratch) {
        memcpy(scratch, values, n * sizeof(*scratch));
        qsort(scratch, n, sizeof(*scratch), by_value);
        return scratch[(n - 1) / 2];
}

static float entropy_of(const struct sums *sums, uint32_t size) {
        double h;

        if (size == 1 || sums->mass == 0)
                return 0;
        h = sums->entropy / ckv_ref_log((double)size);
        return ckv_fl32(CKV_MIN(CKV_MAX(h, 0.0), 1.0));
}

int ckv__entropy_gate(const struct ckv_selection *selection, const struct ckv_units *units, const float *row_scores,
                      float *ret_scores, uint32_t *ret_take) {
        size_t n = (size_t)units->count + 1;
        _cleanup_free_ struct sums *sums = calloc(n, sizeof(*sums));
        _cleanup_free_ float *entropy = malloc(n * sizeof(*entropy)), *scratch = malloc(n * sizeof(*scratch));
        float middle_score, middle_entropy;

        if (!sums || !entropy || !scratch)
                return -ENOMEM;
        if (units->count == 0)
                return 0;
        add_rows(selection, units, row_scores, sums);
        for (uint32_t u = 0; u < units->count; u++) {
                ret_scores[u] = ckv_fl32(sums[u].total / (double)units->size[u]);
                entropy[u] = entropy_of(&sums[u], units->size[u]);
        }
        middle_score = lower_median(ret_scores, units->count, scratch);
        middle_entropy = lower_median(entropy, units->count, scratch);
        for (uint32_t u = 0; u < units->count; u++) {
                bool spike = ret_scores[u] >= middle_score && entropy[u] < middle_entropy;

                ret_take[u] = spike ? CKV_MIN(units->size[u], selection->policy->spike_keep) : units->size[u];
        }
        return 0;
}
