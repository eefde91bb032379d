/*
 * Timeline words: eight bytes of shared memory by which an engine tells that
 * what it queued on its own stream has been done, and is told that a request
 * has ended, without a thread of its own waiting for either.  Numbers only go
 * up, and are compared cyclically.
 *
 * The core polls, up to the deadline.  It never queues a wait on a device that
 * only a tenant can end (kernels.md 7.3).
 */
#ifndef CKV_DAEMON_TIMELINE_H
#define CKV_DAEMON_TIMELINE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/* In regions that the request uses; NULL: none. */
struct ckv_timeline {
        const _Atomic uint64_t *wait;
        _Atomic uint64_t *signal;
        uint64_t wait_value, signal_value;
};

/* ckv_timeline_came() - is there nothing (more) to wait for? What the engine wrote before the word is seen from here on. */
bool ckv_timeline_came(const struct ckv_timeline *timeline);

/* ckv_timeline_look_nsec() - when to look again, if it was not there @now_nsec and is waited for since @since_nsec */
uint64_t ckv_timeline_look_nsec(uint64_t since_nsec, uint64_t now_nsec);

/* ckv_timeline_signal() - the request has ended: all that it wrote is seen by whoever sees the word */
void ckv_timeline_signal(const struct ckv_timeline *timeline);

#endif
