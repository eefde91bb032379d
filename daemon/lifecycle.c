/*
 * From start to end.
 *
 * Starting: the daemon is ready when each gate has answered a ping, because
 * only then a client that connects is heard.  A gate that dies before that
 * will not do better the next time (a missing library, a sandbox that forbids
 * what it needs), so the start fails, with a sentence, instead of restarting
 * gates for ever.  After that, gates may die as often as they like.
 *
 * Ending: SIGTERM or SIGINT begins the drain.  New work is refused, running
 * jobs go on; when none is left, or --stop-timeout is over, or a second signal
 * comes, what runs is cancelled.  A move under way cannot be cancelled, but
 * ends soon.  Only then the loop ends, so answers still leave.
 *
 * Between the two, SIGHUP reads again what may change under a running daemon
 * (daemon/reload.h).
 *
 * Jobs that outlive even their cancellation are a hung device; memory that a
 * device may still write must not be unmapped, so the process leaves without
 * cleaning up.
 */
#include "daemon/lifecycle.h"

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "daemon/gate_link.h"
#include "daemon/reload.h"
#include "daemon/side.h"
#include "daemon/watchdog.h"

#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <string.h>
#include <sys/signalfd.h>
#include <systemd/sd-daemon.h>

#define LOOK_USEC UINT64_C(10000)
#define START_WAIT_NSEC (10 * CKV_NSEC_PER_SEC)
#define CANCEL_WAIT_NSEC (5 * CKV_NSEC_PER_SEC)

static int timer_rearm(sd_event_source *timer) {
        int r = sd_event_source_set_time_relative(timer, LOOK_USEC);

        return r < 0 ? r : sd_event_source_set_enabled(timer, SD_EVENT_ONESHOT);
}

/* start_failed() - leave the loop with status 1 */
static int start_failed(struct ckv_daemon *daemon, const struct ckv_endpoint *endpoint, const char *why) {
        ckv_log(CKV_LOG_ERROR, START_FAILED, "endpoint=%s gate=\"%s\" why=\"%s\"", endpoint->name, daemon->options->gate, why);
        return sd_event_exit(daemon->event, EXIT_FAILURE);
}

static void notify_ready(const struct ckv_daemon *daemon) {
        (void)sd_notifyf(0, "READY=1\nSTATUS=serving %" PRIu32 " endpoint(s) on %s", daemon->endpoint_count,
                         daemon->backend_info.name);
}

/* look_starting() - are all gates up? */
static int look_starting(struct ckv_lifecycle *lifecycle) {
        struct ckv_daemon *daemon = lifecycle->daemon;
        bool all = true;

        for (uint32_t i = 0; i < daemon->endpoint_count; i++) {
                struct ckv_endpoint *endpoint = &daemon->endpoints[i];

                if (ckv_gate_link_ready(endpoint->link))
                        continue;
                if (ckv_gate_link_deaths(endpoint->link) > 0)
                        return start_failed(daemon, endpoint, "the gate ended before it was ready");
                if (ckv_now_nsec() > lifecycle->give_up_nsec)
                        return start_failed(daemon, endpoint, "the gate did not answer within 10 s");
                all = false;
        }
        if (!all)
                return timer_rearm(lifecycle->timer);
        ckv_log(CKV_LOG_NOTICE, READY, "endpoints=%" PRIu32 " device=\"%s\"", daemon->endpoint_count, daemon->backend_info.name);
        lifecycle->ready = true;
        notify_ready(daemon);
        return 0;
}

/* cancel_running() - the time for ending by themselves is over */
static void cancel_running(struct ckv_lifecycle *lifecycle) {
        lifecycle->cancelled = true;
        lifecycle->give_up_nsec = ckv_now_nsec() + CANCEL_WAIT_NSEC;
        ckv_sessions_end_all(lifecycle->daemon);
}

/* look_draining() - are all jobs through? */
static int look_draining(struct ckv_lifecycle *lifecycle) {
        struct ckv_daemon *daemon = lifecycle->daemon;

        if (ckv_engine_drained(daemon)) {
                /* one look more, so that the gates have passed the last answers on before they are hung up on */
                if (lifecycle->drained)
                        return sd_event_exit(daemon->event, EXIT_SUCCESS);
                lifecycle->drained = true;
                return timer_rearm(lifecycle->timer);
        }
        if (ckv_now_nsec() < lifecycle->give_up_nsec)
                return timer_rearm(lifecycle->timer);
        if (lifecycle->cancelled) {
                ckv_log(CKV_LOG_ERROR, DRAIN_TIMEOUT, "why=\"cancelled jobs did not end within 5 s\" status=%d", (int)CKV_EXIT_HUNG);
                _exit(CKV_EXIT_HUNG);
        }
        ckv_log(CKV_LOG_WARNING, DRAIN_TIMEOUT, "why=\"jobs were still running, and are cancelled\"");
        cancel_running(lifecycle);
        return timer_rearm(lifecycle->timer);
}

static int on_timer(sd_event_source *source, uint64_t usec, void *userdata) {
        struct ckv_lifecycle *lifecycle = userdata;

        (void)source;
        (void)usec;
        /* the process ends by itself, and not with success */
        if (lifecycle->daemon->device_end)
                return 0;
        return lifecycle->daemon->draining ? look_draining(lifecycle) : look_starting(lifecycle);
}

static int on_stop_signal(sd_event_source *source, const struct signalfd_siginfo *info, void *userdata) {
        struct ckv_lifecycle *lifecycle = userdata;
        struct ckv_daemon *daemon = lifecycle->daemon;

        (void)source;
        ckv_log(CKV_LOG_NOTICE, STOPPING, "signal=%" PRIu32 " again=%d", info->ssi_signo, (int)daemon->draining);
        if (daemon->draining) {
                if (!lifecycle->cancelled)
                        cancel_running(lifecycle);
                return timer_rearm(lifecycle->timer);
        }
        daemon->draining = true;
        lifecycle->give_up_nsec = ckv_now_nsec() + daemon->options->stop_timeout * CKV_NSEC_PER_SEC;
        (void)sd_notify(0, "STOPPING=1\nSTATUS=waiting for running jobs");
        for (uint32_t i = 0; i < daemon->endpoint_count; i++)
                ckv_side_notice_all(&daemon->endpoints[i], CKV_SIDE_NOTICE_DRAINING);
        return timer_rearm(lifecycle->timer);
}

static int on_sighup(sd_event_source *source, const struct signalfd_siginfo *info, void *userdata) {
        struct ckv_lifecycle *lifecycle = userdata;
        struct ckv_daemon *daemon = lifecycle->daemon;

        (void)source;
        /* the handshake ends with READY=1, which would be a lie in both cases */
        if (!lifecycle->ready || daemon->draining) {
                ckv_log(CKV_LOG_NOTICE, SIGNAL_IGNORED, "signal=%" PRIu32 " draining=%d", info->ssi_signo, (int)daemon->draining);
                return 0;
        }
        (void)sd_notifyf(0, "RELOADING=1\nMONOTONIC_USEC=%" PRIu64, ckv_now_nsec() / CKV_NSEC_PER_USEC);
        ckv_reload(daemon);
        ckv_log(CKV_LOG_NOTICE, RELOADED, "mapped_bytes=%" PRIu64, daemon->mapped_bytes);
        notify_ready(daemon);
        return 0;
}

static int sources_add(struct ckv_lifecycle *lifecycle) {
        sd_event *event = lifecycle->daemon->event;
        int r;

        r = sd_event_add_signal(event, &lifecycle->sigterm_source, SIGTERM, on_stop_signal, lifecycle);
        if (r >= 0)
                r = sd_event_add_signal(event, &lifecycle->sigint_source, SIGINT, on_stop_signal, lifecycle);
        if (r >= 0)
                r = sd_event_add_signal(event, &lifecycle->sighup_source, SIGHUP, on_sighup, lifecycle);
        if (r >= 0)
                r = sd_event_add_time_relative(event, &lifecycle->timer, CLOCK_MONOTONIC, LOOK_USEC, 1000, on_timer, lifecycle);
        if (r >= 0)
                r = ckv_watchdog_start(lifecycle->daemon, &lifecycle->watchdog_source);
        return r < 0 ? ckv_error_origin(r) : 0;
}

int ckv_lifecycle_start(struct ckv_lifecycle *lifecycle, struct ckv_daemon *daemon) {
        int r;

        lifecycle->daemon = daemon;
        lifecycle->give_up_nsec = ckv_now_nsec() + START_WAIT_NSEC;
        r = sources_add(lifecycle);
        if (r) {
                ckv_log(CKV_LOG_ERROR, START_FAILED, "why=\"event loop: %s\"", strerror(-r));
                return ckv_error_trace(r);
        }
        for (uint32_t i = 0; i < daemon->endpoint_count; i++) {
                struct ckv_endpoint *endpoint = &daemon->endpoints[i];

                r = ckv_gate_link_new(daemon, endpoint, &endpoint->link);
                if (r) {
                        ckv_log(CKV_LOG_ERROR, START_FAILED, "endpoint=%s gate=\"%s\" why=\"cannot start the gate program: %s\"",
                                endpoint->name, daemon->options->gate, strerror(-r));
                        return ckv_error_trace(r);
                }
                r = ckv_side_listen(endpoint);
                if (r) {
                        ckv_log(CKV_LOG_ERROR, START_FAILED, "endpoint=%s why=\"side socket: %s\"", endpoint->name, strerror(-r));
                        return ckv_error_trace(r);
                }
        }
        return 0;
}

void ckv_lifecycle_stop(struct ckv_lifecycle *lifecycle) {
        struct ckv_daemon *daemon = lifecycle->daemon;

        ckv_sessions_end_all(daemon);
        if (!ckv_engine_finish(daemon)) {
                ckv_log(CKV_LOG_ERROR, DRAIN_TIMEOUT, "why=\"the device did not let go of its memory within 5 s\" status=%d",
                        (int)CKV_EXIT_HUNG);
                _exit(CKV_EXIT_HUNG);
        }
        for (uint32_t i = 0; i < daemon->endpoint_count; i++)
                ckv_side_shutdown(&daemon->endpoints[i]);
        for (uint32_t i = 0; i < daemon->endpoint_count; i++)
                daemon->endpoints[i].link = ckv_gate_link_free(daemon->endpoints[i].link);
        sd_event_source_disable_unref(lifecycle->watchdog_source);
        sd_event_source_disable_unref(lifecycle->timer);
        sd_event_source_disable_unref(lifecycle->sighup_source);
        sd_event_source_disable_unref(lifecycle->sigint_source);
        sd_event_source_disable_unref(lifecycle->sigterm_source);
        *lifecycle = (struct ckv_lifecycle){ 0 };
}
