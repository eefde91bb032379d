/*
 * Kept rows as text, the way algorithm.md writes them: "0-3 20 22-27".
 */
#ifndef CKV_TESTS_SUPPORT_ROWS_H
#define CKV_TESTS_SUPPORT_ROWS_H

#include "kernels/select.h"

#include <stdio.h>

/* rows_to_string() - into @buffer, which must be long enough for the case; "" for no rows */
static inline const char *rows_to_string(const struct ckv_kept *kept, char *buffer, size_t size) {
        size_t used = 0;

        buffer[0] = '\0';
        for (size_t i = 0; i < kept->run_count && used < size; i++) {
                const struct ckv_run *run = &kept->runs[i];
                const char *gap = i > 0 ? " " : "";
                int n = run->len == 1 ? snprintf(buffer + used, size - used, "%s%u", gap, run->src)
                                      : snprintf(buffer + used, size - used, "%s%u-%u", gap, run->src,
                                                 run->src + run->len - 1);

                used += n > 0 ? (size_t)n : 0;
        }
        return buffer;
}

#endif
