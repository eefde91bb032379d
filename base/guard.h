/*
 * Memory that belongs to somebody else can go away while it is read.  A guard
 * turns that, for one mapping, from the end of the process into a mark.
 */
#ifndef CKV_BASE_GUARD_H
#define CKV_BASE_GUARD_H

#include <signal.h>
#include <stdbool.h>
#include <stddef.h>

struct ckv_guard;

/**
 * ckv_guard_install() - take over SIGBUS for the whole process, and ask the kernel to raise it for holes as well
 *
 * Once, before there are threads and before system calls are filtered. A SIGBUS that no guard answers for does what it
 * did before.
 *
 * Return: 0 or -errno.
 */
int ckv_guard_install(void);

/**
 * ckv_guard_add() - answer for a shared mapping of a file
 * @start:    as mmap() returned it; for huge pages aligned to one
 * @bytes:    all of it, as far as munmap() will have it
 * @writable: PROT_WRITE as well as PROT_READ
 *
 * When a page of it cannot be had (the file was truncated, the page punched out, no huge page is left, the memory is
 * broken), zeros take the place of the whole mapping, the guard is bad for good, and whoever read or wrote goes on.
 * Holes are noticed where the kernel can do so and the file was open for writing; elsewhere they read as zeros.
 *
 * Return: owned, or NULL if out of memory.
 */
struct ckv_guard *ckv_guard_add(void *start, size_t bytes, bool writable);

/* ckv_guard_remove() - before munmap(), when no thread uses the mapping any more; NULL is fine. Return: NULL. */
struct ckv_guard *ckv_guard_remove(struct ckv_guard *guard);

/* ckv_guard_bad() - was anything of the mapping lost? What was read since is worthless. Any thread; false for NULL. */
bool ckv_guard_bad(const struct ckv_guard *guard);

/* ckv_guard_watches() - are holes noticed by this guard? */
bool ckv_guard_watches(const struct ckv_guard *guard);

/**
 * ckv_guard_block_signals() - all signals but those that a thread brings upon itself, which would kill while blocked
 *
 * For a thread about to start others that use guarded memory. *ret_before is for pthread_sigmask(SIG_SETMASK, ..).
 */
void ckv_guard_block_signals(sigset_t *ret_before);

#endif
