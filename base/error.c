/*
 * The call trace of fatal errors.  It is off unless CHUNKKVD_TRACE=1: the
 * layers below the daemon do not log, and a failure is logged once, where it
 * is decided.
 */
#include "base/error.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int trace_enabled(void) {
        /* -1: not asked yet. A race of two first askers writes the same value twice. */
        static _Atomic int enabled = -1;

        if (enabled < 0) {
                const char *value = getenv("CHUNKKVD_TRACE");

                enabled = value && strcmp(value, "1") == 0;
        }
        return enabled;
}

/* ckv__error_report() - leave a line if tracing is on; folds positive outcomes, forwards the rest */
int ckv__error_report(const char *file, int line, const char *how, int error) {
        if (trace_enabled())
                fprintf(stderr, "%s:%d: %s %d (%s)\n", file, line, how, error,
                        error < 0 ? strerror(-error) : "outcome");
        return error > 0 ? -ENOTRECOVERABLE : error;
}
