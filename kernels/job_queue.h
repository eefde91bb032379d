/*
 * What goes between the event loop and the thread of a device: jobs and imports
 * there, and back when they are done, and in which order the thread works on the
 * jobs it holds.  All backends share it; what a device does otherwise is in its
 * hooks.
 */
#ifndef CKV_KERNELS_JOB_QUEUE_H
#define CKV_KERNELS_JOB_QUEUE_H

#include "kernels/backend.h"
#include "kernels/bell.h"
#include "kernels/fifo.h"
#include "kernels/turns.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/* What a device does with a job. All of it runs on the device thread. */
struct ckv_queue_hooks {
        /* begin() - before the first slice of a stage: sets job->backend_state; or leaves it NULL, and the job is done with its outcome.
         * Return: false: it is to be tried again, with NULL. */
        bool (*begin)(struct ckv_backend *backend, struct ckv_job *job);
        /* step() - go on until the stage is through or @until_nsec is past; mirrors are copied by the queue. Return: is it through? */
        bool (*step)(struct ckv_backend *backend, struct ckv_job *job, uint64_t until_nsec);
        /* end() - free job->backend_state, which may be NULL, and set it to NULL */
        void (*end)(struct ckv_job *job);
        /* rest() - there was no job for a moment. NULL: nothing to do then. */
        void (*rest)(struct ckv_backend *backend);
        /* look() - before jobs are looked through, and after a slice: is the device still there? If not: ckv__queue_lose(). NULL: always. */
        void (*look)(struct ckv_backend *backend);
        /* serve() - do what an import asks for. Return: is it to be reaped? NULL: there are no imports. */
        bool (*serve)(struct ckv_backend *backend, struct ckv_import *import);
};

/* The head of each backend's own struct; zeroed before ckv__queue_init(). */
struct ckv_backend {
        const struct ckv_queue_hooks *hooks;
        struct ckv_backend_info info;
        uint64_t slice_nsec;
        struct ckv_bell work_bell, done_bell;
        bool started;
        pthread_t thread;

        pthread_mutex_t mutex;
        struct ckv_jobs submitted, done;        /* under mutex */
        struct ckv_imports asked, answered;     /* under mutex */
        bool ringing;                           /* under mutex: done_bell rings, or is about to */
        bool stop;                              /* under mutex */

        struct ckv_turns turns;                 /* of the device thread */

        /* Written by one thread and read by another as numbers of their own: relaxed, nothing is ordered by them. */
        _Atomic uint64_t progress_nsec;
        _Atomic uint32_t queued, running;
        _Atomic int lost;                       /* 0: not lost */
};

/* ckv__queue_init() - no job, and no thread yet; ckv__queue_deinit() after a failure as well. @slice_usec: 0: 2 ms. Return: 0 or -errno. */
int ckv__queue_init(struct ckv_backend *backend, const struct ckv_queue_hooks *hooks, uint32_t slice_usec);

/* ckv__queue_start() - the device thread, which is to call ckv__queue_run(). @main: gets @backend. Return: 0 or -errno. */
int ckv__queue_start(struct ckv_backend *backend, void *(*main)(void *));

/* ckv__queue_run() - work until ckv__queue_stop() */
void ckv__queue_run(struct ckv_backend *backend);

/* ckv__queue_stop() - end the thread, if it was started; no job may be inside */
void ckv__queue_stop(struct ckv_backend *backend);

/* ckv__queue_deinit() - after ckv__queue_stop() */
void ckv__queue_deinit(struct ckv_backend *backend);

/* ckv__queue_progress() - the device thread is alive */
void ckv__queue_progress(struct ckv_backend *backend);

/* ckv__queue_lose() - of look(): the device is gone. Jobs end with CKV_JOB_DEVICE_LOST and @code from here on, and the loop is told. */
void ckv__queue_lose(struct ckv_backend *backend, int code);

/* Operations of kernels/backend.h, for the tables of backends. */
void ckv__queue_describe(const struct ckv_backend *backend, struct ckv_backend_info *ret_info);
void ckv__queue_submit(struct ckv_backend *backend, struct ckv_job *job);
void ckv__queue_cancel(struct ckv_backend *backend, struct ckv_job *job);
int ckv__queue_wait_fd(const struct ckv_backend *backend);
struct ckv_job *ckv__queue_reap(struct ckv_backend *backend);
void ckv__queue_import(struct ckv_backend *backend, struct ckv_import *import);
struct ckv_import *ckv__queue_reap_import(struct ckv_backend *backend);
void ckv__queue_health(const struct ckv_backend *backend, struct ckv_backend_health *ret_health);

#endif
