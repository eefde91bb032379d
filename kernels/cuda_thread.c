/*
 * One thread owns the GPU's context and makes every call of the driver.
 *
 * Jobs take turns in slices by the same rule as on the CPU (kernels/cpu_turns.h).
 * A slice is some launches that are waited for, so between two slices the stream
 * is empty: cancellation, deadlines and other users' jobs are looked at there,
 * and whatever a job has in the scratch is safe until somebody else's slice.
 * Kernels of two jobs never overlap; a launch is meant to fill the GPU.
 *
 * An error that stays ends everything: each job and import from there on comes
 * back with DEVICE_LOST, health() says so, and the daemon ends the process.  Of
 * such a context nothing is freed, since every call returns the same error.
 */
#include "kernels/cuda_thread.h"

#include "base/clock.h"
#include "base/error.h"
#include "base/macros.h"
#include "kernels/cuda_move.h"
#include "kernels/cuda_plan.h"
#include "kernels/cuda_shape.h"

#include <errno.h>
#include <time.h>

enum {
        IDLE_MSEC = 500,
        AGAIN_NSEC = 1000000,
};

/* With the mutex held, before something is appended: it rings whenever there is something to reap. */
static void ring_if_first(struct ckv_backend *backend) {
        if (!backend->done.first && !backend->answered.first)
                ckv__bell_ring(&backend->done_bell);
}

static void finish(struct ckv_backend *backend, struct ckv_job *job) {
        bool started = job->backend_state != NULL;

        if (job->stage == CKV_STAGE_PLAN)
                (void)ckv__cuda_plan_free(job->backend_state);
        else
                (void)ckv__cuda_move_free(job->backend_state);
        job->backend_state = NULL;
        ckv__cuda_count(started ? &backend->running : &backend->queued, -1);
        ckv__turns_remove(&backend->turns, job);
        (void)pthread_mutex_lock(&backend->mutex);
        ring_if_first(backend);
        ckv__jobs_append(&backend->done, job);
        (void)pthread_mutex_unlock(&backend->mutex);
}

/* First slice of a stage. Return: false if there is no state to step: the job is done, or *ret_again: tries once more. */
static bool begin(struct ckv_backend *backend, struct ckv_job *job, uint64_t now, bool *ret_again) {
        const struct timespec pause = { .tv_nsec = AGAIN_NSEC };

        job->walk = (struct ckv_mirror_walk){ 0 };
        job->outcome = CKV_JOB_OK;
        if (job->stage == CKV_STAGE_PLAN) {
                job->started_nsec = now;
                job->backend_state = ckv__cuda_plan_new(job);
                if (!job->backend_state)
                        job->outcome = CKV_JOB_NO_MEMORY;
        } else if (!ckv__cuda_can_move(job, &job->fail_group)) {
                job->outcome = CKV_JOB_NOT_ON_DEVICE;
                job->fail_field = CKV_FIELD_NONE;
                job->fail_need = 0;
        } else {
                job->backend_state = ckv__cuda_move_new(job);
                /* the decision to move has been made: a few kB will be there in a moment */
                *ret_again = !job->backend_state;
                if (*ret_again)
                        (void)nanosleep(&pause, NULL);
        }
        if (!job->backend_state)
                return false;
        ckv__cuda_count(&backend->queued, -1);
        ckv__cuda_count(&backend->running, 1);
        return true;
}

static bool step(struct ckv_backend *backend, struct ckv_job *job, uint64_t until) {
        if (job->stage == CKV_STAGE_PLAN)
                return ckv_mirrors_step(job, until) && ckv__cuda_plan_step(job->backend_state, &backend->device, until);
        return ckv__cuda_move_step(job->backend_state, &backend->device, until) && ckv_mirrors_step(job, until);
}

static void run_slice(struct ckv_backend *backend, struct ckv_job *job) {
        uint64_t start = ckv_now_nsec(), end;
        bool done, again = false;

        if (!job->backend_state && job->stage == CKV_STAGE_MOVE)
                job->move_nsec = start;                 /* a point in time until the stage is done */
        done = !job->backend_state && !begin(backend, job, start, &again);
        if (!done)
                done = step(backend, job, start + backend->slice_nsec);
        end = ckv_now_nsec();
        job->device_nsec += end - start;
        atomic_store_explicit(&backend->progress_nsec, end, memory_order_relaxed);
        ckv__turns_spend(&backend->turns, job, end - start);
        if (!done || again)
                return;
        if (job->stage == CKV_STAGE_PLAN)
                job->score_nsec = end - job->started_nsec - job->select_nsec;
        else
                job->move_nsec = end - job->move_nsec;
        finish(backend, job);
}

/* Jobs of CKV_STAGE_PLAN that nobody waits for any more leave, wherever their turn is; all of them do when the device is lost. */
static void sweep(struct ckv_backend *backend) {
        uint64_t now = ckv_now_nsec();
        struct ckv_job *next;

        for (struct ckv_job *job = backend->turns.jobs.first; job; job = next) {
                /* relaxed: the flag carries no data, and the next look is a slice away */
                bool cancelled = atomic_load_explicit(&job->cancel, memory_order_relaxed);

                next = job->next;
                if (backend->device.lost != CUDA_SUCCESS) {
                        job->outcome = CKV_JOB_DEVICE_LOST;
                        job->fail_code = backend->device.lost;
                        if (job->stage == CKV_STAGE_MOVE)
                                job->move_nsec = job->backend_state ? now - job->move_nsec : 0;
                } else if (job->stage != CKV_STAGE_PLAN || (!cancelled && now < job->deadline_nsec)) {
                        continue;
                } else {
                        job->outcome = cancelled ? CKV_JOB_CANCELLED : CKV_JOB_EXPIRED;
                }
                if (job->backend_state && job->stage == CKV_STAGE_PLAN)
                        job->score_nsec = now - job->started_nsec - job->select_nsec;
                finish(backend, job);
        }
}

/* The first error that stays is told to all: to the loop, and to what is open. */
static void look_at_device(struct ckv_backend *backend) {
        CUresult lost = backend->device.lost;

        if (lost == CUDA_SUCCESS || atomic_load_explicit(&backend->lost, memory_order_relaxed) != CUDA_SUCCESS)
                return;
        ckv__cuda_memory_lost(backend->memory, lost);
        atomic_store_explicit(&backend->lost, lost, memory_order_relaxed);
        ckv__bell_ring(&backend->done_bell);
}

static void serve_imports(struct ckv_backend *backend, struct ckv__imports *imports) {
        struct ckv_import *import;

        while ((import = ckv__imports_take(imports))) {
                CUresult code = ckv__cuda_memory_serve(backend->memory, import);

                (void)ckv__cuda_said(&backend->device, "import", code);
                atomic_store_explicit(&backend->progress_nsec, ckv_now_nsec(), memory_order_relaxed);
                if (import->owner == backend) {         /* of unmap() */
                        free(import);
                        continue;
                }
                (void)pthread_mutex_lock(&backend->mutex);
                ring_if_first(backend);
                ckv__imports_append(&backend->answered, import);
                (void)pthread_mutex_unlock(&backend->mutex);
        }
}

/* Take in what was handed over; if there is nothing to do, wait first, but not for long. Return: go on? */
static bool take_in(struct ckv_backend *backend) {
        struct ckv__imports imports;
        bool go_on;

        if (!backend->turns.jobs.first) {
                ckv__bell_await(&backend->work_bell, IDLE_MSEC);
                ckv__bell_hush(&backend->work_bell);
        }
        ckv__imports_init(&imports);
        (void)pthread_mutex_lock(&backend->mutex);
        ckv__turns_add(&backend->turns, &backend->submitted);
        ckv__imports_move(&backend->asked, &imports);
        /* whoever has not come by now may not have been told: a ring can fail for lack of memory */
        if ((backend->done.first || backend->answered.first) && !backend->turns.jobs.first)
                ckv__bell_ring(&backend->done_bell);
        go_on = !backend->stop;
        (void)pthread_mutex_unlock(&backend->mutex);
        serve_imports(backend, &imports);
        return go_on;
}

static int open_device(struct ckv_backend *backend) {
        int r = ckv__cuda_device_open(backend->options, &backend->device, &backend->fault);

        if (r < 0)
                return r;
        backend->memory = ckv__cuda_memory_new(&backend->device.cuda, backend->device.device, CKV_CUDA_MEMORY_MOST);
        if (!backend->memory)
                return ckv_error_origin(-ENOMEM);
        ckv__cuda_device_describe(&backend->device, &backend->info);
        return 0;
}

void *ckv__cuda_thread(void *p) {
        struct ckv_backend *backend = p;
        int r = open_device(backend);

        (void)pthread_setname_np(pthread_self(), "ckv-cuda");
        backend->open_result = r;
        backend->progress_nsec = ckv_now_nsec();
        (void)sem_post(&backend->opened);
        while (r == 0 && take_in(backend)) {
                struct ckv_job *job;

                atomic_store_explicit(&backend->progress_nsec, ckv_now_nsec(), memory_order_relaxed);
                look_at_device(backend);
                sweep(backend);
                job = ckv__turns_next(&backend->turns);
                if (job)
                        run_slice(backend, job);
                look_at_device(backend);
        }
        backend->memory = ckv__cuda_memory_free(backend->memory);
        ckv__cuda_device_close(&backend->device);
        return NULL;
}
