/*
 * Closing descriptors that clients sent, away from the loop.
 */
#ifndef CKV_DAEMON_CLOSER_H
#define CKV_DAEMON_CLOSER_H

#include "daemon/tenant.h"

struct ckv_daemon;

/* Each has a thread of its own, so that one never waits for what is stuck in the other. */
enum ckv_closer_lane {
        CKV_CLOSER_MEMORY,      /* known to be a memfd: close() ends, but may have gigabytes to free */
        CKV_CLOSER_UNKNOWN,     /* may be anything: close() may never return */
        _CKV_CLOSER_N,
};

/* ckv_closer_start() - daemon->closer and its threads. Return: 0 or -errno. */
int ckv_closer_start(struct ckv_daemon *daemon);

/* ckv_closer_stop() - charges go back; a thread that is stuck for more than a second is left behind. Fine without a start. */
void ckv_closer_stop(struct ckv_daemon *daemon);

/**
 * ckv_closer_close() - have a descriptor closed
 * @fd:     consumed; below 0: nothing to close
 * @charge: moved here and given back once the descriptor is closed; NULL: none
 *
 * Closed at once where there is no closer, or no memory for the queue.
 */
void ckv_closer_close(struct ckv_daemon *daemon, enum ckv_closer_lane lane, int fd, struct ckv_charge *charge);

/* ckv_closer_close_received() - close what @tenant sent, charged to FILES or, if unknown, to FDS until that is done, limit or not */
void ckv_closer_close_received(struct ckv_tenant *tenant, enum ckv_closer_lane lane, int fd);

/**
 * ckv_closer_stuck() - has a user so many descriptors waiting to be closed that it must not send more?
 *
 * Then the kernel is told to drop what comes (ipc/seqpacket.h), which asks no file system anything.
 */
bool ckv_closer_stuck(const struct ckv_tenant *tenant);

#endif
