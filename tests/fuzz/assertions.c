/*
 * The assertions of the check library, for support files that use them in a
 * program that is no test of that library: here one that fails aborts, which
 * is what a fuzzer takes for a finding.  Linked instead of -lcheck.
 */
#include <check.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

void _mark_point(const char *file, int line) {
        (void)file;
        (void)line;
}

void _ck_assert_failed(const char *file, int line, const char *expr, const char *msg, ...) {
        va_list arguments;

        (void)fprintf(stderr, "%s:%d: %s", file, line, expr);
        if (msg) {
                (void)fputs(": ", stderr);
                va_start(arguments, msg);
                (void)vfprintf(stderr, msg, arguments);
                va_end(arguments);
        }
        (void)fputc('\n', stderr);
        abort();
}
