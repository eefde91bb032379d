/*
 * WATCHDOG=1 goes out only when both halves live: the event loop, which runs
 * this timer, and the device, which has ended a slice of work within the
 * watchdog's own time or has nothing to do.  A loop that turns in front of a
 * device that hangs would look healthy otherwise, for hours.
 *
 * Fed three times in each period, so that one late turn does no harm.
 */
#include "daemon/watchdog.h"

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "daemon/daemon.h"

#include <inttypes.h>
#include <systemd/sd-daemon.h>

static int on_timer(sd_event_source *source, uint64_t usec, void *userdata) {
        struct ckv_daemon *daemon = userdata;
        struct ckv_backend_health health;
        uint64_t period_usec = 0, age;

        (void)usec;
        if (sd_watchdog_enabled(0, &period_usec) <= 0)
                return 0;
        daemon->ops->health(daemon->backend, &health);
        age = ckv_now_nsec() - health.last_progress_nsec;
        /* a slice may have ended between the two looks at the clock: then the difference is below zero, and huge */
        if (health.queued + health.running + daemon->import_count == 0 || age < period_usec * CKV_NSEC_PER_USEC || (int64_t)age < 0)
                (void)sd_notify(0, "WATCHDOG=1");
        else
                ckv_log(CKV_LOG_ERROR, WATCHDOG_HELD, "no_progress_msec=%" PRIu64 " queued=%" PRIu32 " running=%" PRIu32,
                        age / CKV_NSEC_PER_MSEC, health.queued, health.running);
        (void)sd_event_source_set_time_relative(source, period_usec / 3);
        return sd_event_source_set_enabled(source, SD_EVENT_ONESHOT);
}

int ckv_watchdog_start(struct ckv_daemon *daemon, sd_event_source **ret_source) {
        uint64_t period_usec = 0;
        int r;

        *ret_source = NULL;
        r = sd_watchdog_enabled(0, &period_usec);
        if (r <= 0)
                return r < 0 ? ckv_error_origin(r) : 0;
        r = sd_event_add_time_relative(daemon->event, ret_source, CLOCK_MONOTONIC, 0, 1000, on_timer, daemon);
        return r < 0 ? ckv_error_origin(r) : 0;
}
