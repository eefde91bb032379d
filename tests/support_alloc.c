/*
 * What the linker puts in the place of malloc() and its relatives
 * (tests/sources.mk, WRAPPED).  Threads of a backend allocate too, hence the
 * atomics.
 */
#include "tests/support_alloc.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const bool *alloc_counts;
static uint64_t left;           /* allocations up to the one that fails, which makes it 0 again */
static bool failed;

void alloc_fail(uint64_t nth) {
        __atomic_store_n(&failed, false, __ATOMIC_SEQ_CST);
        __atomic_store_n(&left, nth, __ATOMIC_SEQ_CST);
}

bool alloc_failed(void) {
        __atomic_store_n(&left, 0, __ATOMIC_SEQ_CST);
        return __atomic_load_n(&failed, __ATOMIC_SEQ_CST);
}

static bool fails(void) {
        uint64_t n = __atomic_load_n(&left, __ATOMIC_SEQ_CST);

        if (alloc_counts && !*alloc_counts)
                return false;
        while (n > 0 && !__atomic_compare_exchange_n(&left, &n, n - 1, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
                ;
        if (n != 1)
                return false;
        __atomic_store_n(&failed, true, __ATOMIC_SEQ_CST);
        errno = ENOMEM;
        return true;
}

void *__real_malloc(size_t size);
void *__real_calloc(size_t count, size_t size);
void *__real_realloc(void *old, size_t size);
void *__real_reallocarray(void *old, size_t count, size_t size);
void *__real_aligned_alloc(size_t alignment, size_t size);
char *__real_strdup(const char *text);
void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t count, size_t size);
void *__wrap_realloc(void *old, size_t size);
void *__wrap_reallocarray(void *old, size_t count, size_t size);
void *__wrap_aligned_alloc(size_t alignment, size_t size);
char *__wrap_strdup(const char *text);
int __wrap_asprintf(char **ret_text, const char *format, ...) __attribute__((format(printf, 2, 3)));
int __wrap___asprintf_chk(char **ret_text, int flag, const char *format, ...) __attribute__((format(printf, 3, 4)));

void *__wrap_malloc(size_t size) {
        return fails() ? NULL : __real_malloc(size);
}

void *__wrap_calloc(size_t count, size_t size) {
        return fails() ? NULL : __real_calloc(count, size);
}

void *__wrap_realloc(void *old, size_t size) {
        return fails() ? NULL : __real_realloc(old, size);
}

void *__wrap_reallocarray(void *old, size_t count, size_t size) {
        return fails() ? NULL : __real_reallocarray(old, count, size);
}

void *__wrap_aligned_alloc(size_t alignment, size_t size) {
        return fails() ? NULL : __real_aligned_alloc(alignment, size);
}

char *__wrap_strdup(const char *text) {
        return fails() ? NULL : __real_strdup(text);
}

int __wrap_asprintf(char **ret_text, const char *format, ...) {
        va_list list;
        int n;

        if (fails())
                return -1;
        va_start(list, format);
        n = vasprintf(ret_text, format, list);
        va_end(list);
        return n;
}

int __wrap___asprintf_chk(char **ret_text, int flag, const char *format, ...) {
        va_list list;
        int n;

        (void)flag;
        if (fails())
                return -1;
        va_start(list, format);
        n = vasprintf(ret_text, format, list);
        va_end(list);
        return n;
}
