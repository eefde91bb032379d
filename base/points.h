/*
 * Named points in the code at which a test build can be told to die or to
 * wait, so that a test can kill a process at every step of a protocol and not
 * only at random moments.
 *
 *   CHUNKKVD_KILL_AT=name:count         SIGKILL when the point is passed for the count-th time
 *   CHUNKKVD_STALL_AT=name:count:msec   that passing takes msec longer; other threads go on.
 *                                       "stalled" is written to stderr first, so that a test can
 *                                       kill another process while this one is there
 *
 * Each process counts for itself; of the gates only the first that a daemon
 * starts is told (daemon/gate_spawn.c).  The table is base/points.def.  Without
 * -DCKV_POINTS (make POINTS=1) a point is no code at all, but its name is still
 * checked.
 */
#ifndef CKV_BASE_POINTS_H
#define CKV_BASE_POINTS_H

#define POINT(name, where) CKV_POINT_##name,
enum ckv_point {
#include "base/points.def"
        _CKV_POINTS,
};
#undef POINT

#ifdef CKV_POINTS
#define CKV_POINT(name) ckv_point_pass(CKV_POINT_##name)
#else
#define CKV_POINT(name) ((void)CKV_POINT_##name)
#endif

/* ckv_points_read() - read the environment again and count from 0; it was read before main(), so this is for a forked child */
void ckv_points_read(void);

/* ckv_point_pass() - what CKV_POINT(name) does in a test build; may be called anywhere, in a signal handler too */
void ckv_point_pass(enum ckv_point point);

#endif
