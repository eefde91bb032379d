/*
 * S8: kept rows as runs, the form in which they move and travel.
 *
 * Runs are maximal, so their number is the least that describes the set, and
 * equal sets have equal runs.  Position ranges, which also break where
 * positions are not consecutive, are made by whoever writes the reply.
 */
#include "kernels/select.h"

#include "base/macros.h"

#include <errno.h>
#include <string.h>

int ckv_kept_from_flags(const uint8_t *flags, uint32_t rows, struct ckv_kept *ret_kept) {
        struct ckv_kept kept = { 0 };
        size_t count = 0;

        for (uint32_t j = 0; j < rows; j++)
                count += flags[j] && (j == 0 || !flags[j - 1]);
        kept.runs = malloc((count + 1) * sizeof(*kept.runs));
        if (!kept.runs)
                return -ENOMEM;
        for (uint32_t j = 0; j < rows; j++) {
                if (!flags[j])
                        continue;
                if (j == 0 || !flags[j - 1])
                        kept.runs[kept.run_count++] = (struct ckv_run){ .src = j, .dst = kept.count };
                kept.runs[kept.run_count - 1].len++;
                kept.count++;
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

void ckv_kept_deinit(struct ckv_kept *kept) {
        free(kept->runs);
        *kept = (struct ckv_kept){ 0 };
}
