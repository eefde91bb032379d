/*
 * What may change while the daemon runs.
 */
#ifndef CKV_DAEMON_RELOAD_H
#define CKV_DAEMON_RELOAD_H

struct ckv_daemon;

/**
 * ckv_reload() - read the memory limit of our cgroup, and what of it one user and all users may register
 * @daemon: options set. mapped_bytes and the totals of shares are set, and given to tenants that are there already.
 *
 * Called once before anything is opened, and on SIGHUP. Logs what it found. With --mapped-bytes or --memory-limit, that number stays.
 */
void ckv_reload(struct ckv_daemon *daemon);

#endif
