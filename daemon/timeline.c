/*
 * Reading and writing of timeline words.
 *
 * How often to look: the wait for a stream is as long as the work that is
 * queued on it, and nobody knows how long that is.  An eighth of what was
 * waited already is lost at most, which is little beside the wait itself, and
 * looking does not cost more for a long wait than for a short one.
 */
#include "daemon/timeline.h"

#include "base/clock.h"
#include "base/macros.h"

#define LOOK_NSEC_LEAST (20 * CKV_NSEC_PER_USEC)
#define LOOK_NSEC_MOST CKV_NSEC_PER_MSEC

bool ckv_timeline_came(const struct ckv_timeline *timeline) {
        return !timeline->wait || (int64_t)(atomic_load_explicit(timeline->wait, memory_order_acquire) - timeline->wait_value) >= 0;
}

uint64_t ckv_timeline_look_nsec(uint64_t since_nsec, uint64_t now_nsec) {
        uint64_t waited = now_nsec - CKV_MIN(since_nsec, now_nsec);

        return now_nsec + CKV_MIN(CKV_MAX(waited / 8, LOOK_NSEC_LEAST), LOOK_NSEC_MOST);
}

void ckv_timeline_signal(const struct ckv_timeline *timeline) {
        if (timeline->signal)
                atomic_store_explicit(timeline->signal, timeline->signal_value, memory_order_release);
}
