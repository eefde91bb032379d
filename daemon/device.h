/*
 * The GPU that is served: opened at the start, looked after until it is lost or hangs.
 */
#ifndef CKV_DAEMON_DEVICE_H
#define CKV_DAEMON_DEVICE_H

struct ckv_daemon;

/* ckv_device_open() - with --backend cuda: daemon->ops, ->backend and what it says of itself; logged. Return: 0 or -errno. */
int ckv_device_open(struct ckv_daemon *daemon);

/**
 * ckv_device_watch() - from now on, a GPU that makes no progress for --device-timeout while it has work ends the process
 *
 * As ckv_device_look() does it, but everything that is inside is answered DEVICE_HUNG. Nothing to do with --backend cpu or
 * where --device-timeout is 0. Return: 0 or -errno.
 */
int ckv_device_watch(struct ckv_daemon *daemon);

/**
 * ckv_device_look() - after something was reaped: is the device lost?
 *
 * Then no new work is taken, everything that is inside or waits is answered, and the process leaves with CKV_EXIT_HUNG: when
 * the answers are out, and within a second or so in any case.
 */
void ckv_device_look(struct ckv_daemon *daemon);

/**
 * ckv_device_close() - daemon->backend, which becomes NULL; of any kind, and nothing is inside any more
 *
 * With --backend cuda the process ends with CKV_EXIT_HUNG if that takes longer than --device-timeout, unless this is 0.
 */
void ckv_device_close(struct ckv_daemon *daemon);

#endif
