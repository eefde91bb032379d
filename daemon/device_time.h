/*
 * How much of the device one user has had lately: a bucket that fills with the
 * time of its jobs and runs out at a fixed rate.
 */
#ifndef CKV_DAEMON_DEVICE_TIME_H
#define CKV_DAEMON_DEVICE_TIME_H

#include <stdint.h>

/* Zeroed = nothing used. */
struct ckv_device_time {
        uint64_t level_nsec;            /* at @at_nsec: device time that is still to run out */
        uint64_t at_nsec;
};

/* ckv_device_time_level() - what is in the bucket now, ns; @rate_ms: ms that run out in a second, above 0 */
uint64_t ckv_device_time_level(const struct ckv_device_time *time, uint64_t rate_ms, uint64_t now_nsec);

/* ckv_device_time_spend() - a job took @nsec of the device */
void ckv_device_time_spend(struct ckv_device_time *time, uint64_t rate_ms, uint64_t now_nsec, uint64_t nsec);

/* ckv_device_time_ready() - when the bucket will hold less than a second's worth, so that a job may begin; @now_nsec if it does */
uint64_t ckv_device_time_ready(const struct ckv_device_time *time, uint64_t rate_ms, uint64_t now_nsec);

#endif
