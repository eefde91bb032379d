/*
 * S8: kept rows as runs, the form in which they move and travel.
 *
 * Runs are maximal, so their number is the least that describes the set, and
 * equal sets have equal runs.  Position ranges, which also break where
 * positions are not consecutive, are made by whoever writes the reply.
 */
#include "kernels/select.h"

#include "base/macros.h"
#include "kernels/reference.h"

#include <errno.h>
#include <math.h>
#include <string.h>

int ckv_kept_from_flags(const uint8_t *flags, uint32_t rows, struct ckv_kept *ret_kept) {
        struct ckv_kept kept = { .run_count = rows > 0 && flags[0] };
        _cleanup_free_ uint32_t *edges = NULL;
        bool before = false;
        size_t n = 0;

        for (uint32_t j = 1; j < rows; j++)
                kept.run_count += (flags[j] != 0) & (flags[j - 1] == 0);
        edges = malloc((2 * kept.run_count + 1) * sizeof(*edges));
        kept.runs = malloc((kept.run_count + 1) * sizeof(*kept.runs));
        if (!edges || !kept.runs) {
                free(kept.runs);
                return -ENOMEM;
        }
        /* where runs begin and end, without a branch: which rows are kept cannot be predicted */
        for (uint32_t j = 0; j < rows; j++) {
                bool now = flags[j] != 0;

                edges[n] = j;
                n += now != before;
                before = now;
        }
        edges[n] = rows;
        for (size_t i = 0; i < kept.run_count; i++) {
                kept.runs[i] = (struct ckv_run){ .src = edges[2 * i], .len = edges[2 * i + 1] - edges[2 * i],
                                                 .dst = kept.count };
                kept.count += kept.runs[i].len;
        }
        *ret_kept = kept;
        return 0;
}

int ckv_kept_copy(const struct ckv_kept *kept, struct ckv_kept *ret_kept) {
        struct ckv_run *runs = malloc((kept->run_count + 1) * sizeof(*runs));

        if (!runs)
                return -ENOMEM;
        if (kept->run_count > 0)
                memcpy(runs, kept->runs, kept->run_count * sizeof(*runs));
        *ret_kept = (struct ckv_kept){ .runs = runs, .run_count = kept->run_count, .count = kept->count };
        return 0;
}

float ckv_kept_mass(const struct ckv_kept *kept, uint32_t heads, uint32_t rows, const double *t) {
        double all = 0, held = 0;

        for (uint32_t h = 0; h < heads; h++) {
                const double *scores = t + (size_t)h * rows;

                for (uint32_t j = 0; j < rows; j++) {
                        if (!(scores[j] >= 0))
                                return NAN;
                        all += scores[j];
                }
                for (size_t i = 0; i < kept[h].run_count; i++)
                        for (uint32_t n = 0; n < kept[h].runs[i].len; n++)
                                held += scores[kept[h].runs[i].src + n];
        }
        return all > 0 && isfinite(all) ? ckv_fl32(held / all) : NAN;
}

void ckv_kept_deinit(struct ckv_kept *kept) {
        free(kept->runs);
        *kept = (struct ckv_kept){ 0 };
}
