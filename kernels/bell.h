/*
 * One thread tells another that there is something to do.
 */
#ifndef CKV_KERNELS_BELL_H
#define CKV_KERNELS_BELL_H

#include <stdbool.h>

/* A pipe; what lies in it means nothing but "look". */
struct ckv_bell {
        int wait_fd;            /* readable while it rings */
        int ring_fd;
};

#define CKV_BELL_NONE ((struct ckv_bell){ .wait_fd = -1, .ring_fd = -1 })

/* ckv__bell_init() - silent at first; *bell is CKV_BELL_NONE after a failure. Return: 0 or -errno. */
int ckv__bell_init(struct ckv_bell *bell);

/* ckv__bell_deinit() - CKV_BELL_NONE is fine, and what is left */
void ckv__bell_deinit(struct ckv_bell *bell);

/* ckv__bell_ring() - any thread. Without memory for a first byte it may fail in silence: whoever waits looks now and then as well. */
void ckv__bell_ring(const struct ckv_bell *bell);

/* ckv__bell_hush() - all rings so far, however many. Return: were there any? */
bool ckv__bell_hush(const struct ckv_bell *bell);

/* ckv__bell_await() - sleep until it rings, for @msec at most. Return: does it ring? */
bool ckv__bell_await(const struct ckv_bell *bell, int msec);

#endif
