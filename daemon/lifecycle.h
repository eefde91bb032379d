/*
 * The daemon's life inside the event loop: starting, ready, draining, over.
 */
#ifndef CKV_DAEMON_LIFECYCLE_H
#define CKV_DAEMON_LIFECYCLE_H

#include "daemon/daemon.h"

#include <stdbool.h>

struct ckv_lifecycle {
        struct ckv_daemon *daemon;
        sd_event_source *sigterm_source, *sigint_source, *sighup_source, *watchdog_source;
        sd_event_source *timer;         /* looks whether the gates are up, later whether the jobs are through */
        uint64_t give_up_nsec;          /* when the present phase has taken too long */
        bool ready;                     /* all gates have answered once */
        bool cancelled;                 /* draining: what runs was cancelled */
        bool drained;                   /* draining: no job was left at the last look */
};

/**
 * ckv_lifecycle_start() - gates, side sockets, signals, watchdog; READY=1 follows from the loop once all gates answer
 * @lifecycle: zeroed
 * @daemon:    event loop, backend, endpoints there; all signals to be handled are blocked. A failure was logged.
 *
 * Return: 0 or -errno; ckv_lifecycle_stop() is due in both cases.
 */
int ckv_lifecycle_start(struct ckv_lifecycle *lifecycle, struct ckv_daemon *daemon);

/* ckv_lifecycle_stop() - after the loop: sessions, side connections and gates go. No job is in the backend any more. */
void ckv_lifecycle_stop(struct ckv_lifecycle *lifecycle);

#endif
