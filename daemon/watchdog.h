/*
 * The service manager's watchdog, fed by work.
 */
#ifndef CKV_DAEMON_WATCHDOG_H
#define CKV_DAEMON_WATCHDOG_H

#include <systemd/sd-event.h>

struct ckv_daemon;

/**
 * ckv_watchdog_start() - feed the watchdog if the service manager asked for it ($WATCHDOG_USEC)
 * @ret_source: owned by the caller; NULL where nobody asked
 *
 * Return: 0 or -errno.
 */
int ckv_watchdog_start(struct ckv_daemon *daemon, sd_event_source **ret_source);

#endif
