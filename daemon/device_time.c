/*
 * A token bucket, told from the other side: not what a user may still take, but
 * what it has taken and time has not made good yet.  One number then serves
 * both the limit and the report.
 *
 * A second's worth is free at once, so that a user who asks now and then never
 * waits.  A job may take the bucket over its brim, since nobody knows before
 * how long it is; that debt delays the next one.
 */
#include "daemon/device_time.h"

#include "base/clock.h"
#include "base/macros.h"

/* ns of the bucket that run out in one ns of time, as a fraction of 1000 */
static uint64_t run_out(uint64_t rate_ms, uint64_t nsec) {
        /* an hour forgives everything; beyond it the product could overflow */
        return nsec > 3600 * CKV_NSEC_PER_SEC ? UINT64_MAX : nsec / 1000 * rate_ms;
}

uint64_t ckv_device_time_level(const struct ckv_device_time *time, uint64_t rate_ms, uint64_t now_nsec) {
        uint64_t gone = now_nsec > time->at_nsec ? run_out(rate_ms, now_nsec - time->at_nsec) : 0;

        return time->level_nsec - CKV_MIN(gone, time->level_nsec);
}

void ckv_device_time_spend(struct ckv_device_time *time, uint64_t rate_ms, uint64_t now_nsec, uint64_t nsec) {
        time->level_nsec = ckv_device_time_level(time, rate_ms, now_nsec) + nsec;
        time->at_nsec = now_nsec;
}

uint64_t ckv_device_time_ready(const struct ckv_device_time *time, uint64_t rate_ms, uint64_t now_nsec) {
        uint64_t level = ckv_device_time_level(time, rate_ms, now_nsec), brim = rate_ms * CKV_NSEC_PER_MSEC;

        return level < brim ? now_nsec : now_nsec + ((level - brim) / rate_ms + 1) * 1000;
}
