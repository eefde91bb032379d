/*
 * Time.  All times inside the daemon and on the wire are nanoseconds of
 * CLOCK_MONOTONIC: a suspended machine suspends its deadlines as well.
 */
#ifndef CKV_BASE_CLOCK_H
#define CKV_BASE_CLOCK_H

#include <stdint.h>
#include <time.h>

#define CKV_NSEC_PER_SEC UINT64_C(1000000000)
#define CKV_NSEC_PER_MSEC UINT64_C(1000000)
#define CKV_NSEC_PER_USEC UINT64_C(1000)

/* ckv_now_nsec() - CLOCK_MONOTONIC in nanoseconds; cannot fail on Linux */
static inline uint64_t ckv_now_nsec(void) {
        struct timespec ts;

        (void)clock_gettime(CLOCK_MONOTONIC, &ts);
        return (uint64_t)ts.tv_sec * CKV_NSEC_PER_SEC + (uint64_t)ts.tv_nsec;
}

#endif
