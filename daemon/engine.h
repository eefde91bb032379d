/*
 * The loop's end of the backend: jobs in, jobs out.
 */
#ifndef CKV_DAEMON_ENGINE_H
#define CKV_DAEMON_ENGINE_H

#include "kernels/backend.h"

#include <stdint.h>

struct ckv_daemon;
struct ckv_tenant;

/**
 * ckv_engine_submit() - hand a job to the backend for job->stage; it comes back through ckv_request_stage_done()
 *
 * With --device-time, CKV_STAGE_PLAN of a user who has had more than that waits here first: until the user may go on, until
 * the job's deadline, or until it is cancelled. CKV_STAGE_MOVE never waits: the cache is in between then.
 */
void ckv_engine_submit(struct ckv_daemon *daemon, struct ckv_job *job);

/* ckv_engine_cancel() - ask that a submitted job end soon, without effect in CKV_STAGE_MOVE; it comes back all the same */
void ckv_engine_cancel(struct ckv_daemon *daemon, struct ckv_job *job);

/* ckv_engine_import() - hand device memory to the backend, to be opened or closed; it comes back through ckv_imported_reaped() */
void ckv_engine_import(struct ckv_daemon *daemon, struct ckv_import *import);

/* ckv_engine_give_up() - the device is lost: jobs that wait here go to the backend, which sends them back */
void ckv_engine_give_up(struct ckv_daemon *daemon);

/* ckv_engine_halt() - the device hangs: what is inside stays there, and should it come back, nobody looks at it */
void ckv_engine_halt(struct ckv_daemon *daemon);

/**
 * ckv_engine_device_time() - slot DEVICE_TIME of a user, in milliseconds of device time
 * @ret_used:  what it has had and time has not made good yet
 * @ret_limit: what it may have each second, 1000 without --device-time
 */
void ckv_engine_device_time(const struct ckv_tenant *tenant, uint64_t *ret_used, uint64_t *ret_limit);

#endif
