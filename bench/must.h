/*
 * Programs that measure through libchunkkv have nothing to measure when a call
 * fails: they say why and end.
 */
#ifndef CKV_BENCH_MUST_H
#define CKV_BENCH_MUST_H

#include "clients/c/include/chunkkv.h"

#include <stdio.h>
#include <stdlib.h>

/* must() - go on if @r is no error of a call of the library; @what is said in front of its words */
static inline void must(int r, const char *what, const struct chunkkv_error *error) {
        char text[CHUNKKV_ERROR_TEXT];

        if (r >= 0)
                return;
        (void)chunkkv_error_format(error, text, sizeof(text));
        (void)fprintf(stderr, "%s: %s\n", what, text);
        exit(EXIT_FAILURE);
}

#endif
