/*
 * The loop's end of the backend: jobs in, jobs out.
 */
#ifndef CKV_DAEMON_ENGINE_H
#define CKV_DAEMON_ENGINE_H

#include "kernels/job.h"

struct ckv_daemon;

/* ckv_engine_submit() - hand a job to the backend for job->stage; it comes back through ckv_request_stage_done() */
void ckv_engine_submit(struct ckv_daemon *daemon, struct ckv_job *job);

#endif
