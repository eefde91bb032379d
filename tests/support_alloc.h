/*
 * The n-th allocation fails.  Linked with --wrap, so it holds for our own code
 * and not for shared libraries, and in builds with a sanitizer too, which then
 * says what was leaked on the way out.
 */
#ifndef CKV_TESTS_SUPPORT_ALLOC_H
#define CKV_TESTS_SUPPORT_ALLOC_H

#include <stdbool.h>
#include <stdint.h>

/* Where this is not NULL, allocations count while it is true only. */
extern const bool *alloc_counts;

/* alloc_fail() - the @nth allocation from now on, of any thread, returns NULL; 0: none does */
void alloc_fail(uint64_t nth);

/* alloc_failed() - none fails from now on. Return: whether one has. */
bool alloc_failed(void);

#endif
