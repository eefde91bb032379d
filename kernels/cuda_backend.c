/*
 * The CUDA backend: one thread owns the GPU's context and makes every call of
 * the driver; the event loop hands it jobs and imports and never waits for it.
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
 *
 * Memory of the host is mapped as the CPU backend does it, on the loop's thread.
 * It is read and written by this thread, never by the GPU.
 */
#include "kernels/backend.h"

#include "base/clock.h"
#include "base/error.h"
#include "base/guard.h"
#include "base/macros.h"
#include "kernels/cpu_bell.h"
#include "kernels/cpu_turns.h"
#include "kernels/cuda_device.h"
#include "kernels/cuda_memory.h"
#include "kernels/cuda_move.h"
#include "kernels/cuda_plan.h"
#include "kernels/cuda_queues.h"
#include "kernels/cuda_shape.h"

#include <errno.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

enum {
        SLICE_USEC_DEFAULT = 2000,
        IDLE_MSEC = 500,
        AGAIN_NSEC = 1000000,
};

struct ckv_backend {
        struct ckv_backend_info info;
        uint64_t slice_nsec;
        struct ckv_bell work_bell, done_bell;
        bool started;
        pthread_t thread;

        /* of open(), until the thread has posted opened */
        const struct ckv_backend_options *options;
        struct ckv_cuda_fault fault;
        int open_result;
        sem_t opened;

        pthread_mutex_t mutex;
        struct ckv_jobs submitted, done;                /* under mutex */
        struct ckv__imports asked, answered;            /* under mutex */
        bool stop;                                      /* under mutex */

        struct ckv_turns turns;                         /* of the device thread, and all that follows */
        struct ckv_cuda_device device;
        struct ckv_cuda_memory *memory;

        /* Written by one thread and read by another as numbers of their own: relaxed, nothing is ordered by them. */
        _Atomic uint64_t progress_nsec;
        _Atomic uint32_t queued, running;
        _Atomic int lost;                               /* CUresult; 0: not lost */
};

static void count(_Atomic uint32_t *counter, int32_t change) {
        (void)atomic_fetch_add_explicit(counter, (uint32_t)change, memory_order_relaxed);
}

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
        count(started ? &backend->running : &backend->queued, -1);
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
        } else {
                job->backend_state = ckv__cuda_move_new(job);
                /* the decision to move has been made: a few kB will be there in a moment */
                *ret_again = !job->backend_state;
                if (*ret_again)
                        (void)nanosleep(&pause, NULL);
        }
        if (!job->backend_state)
                return false;
        count(&backend->queued, -1);
        count(&backend->running, 1);
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

static void *device_main(void *p) {
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

static struct ckv_backend *cuda_close(struct ckv_backend *backend) {
        if (!backend)
                return NULL;
        if (backend->started) {
                (void)pthread_mutex_lock(&backend->mutex);
                backend->stop = true;
                (void)pthread_mutex_unlock(&backend->mutex);
                ckv__bell_ring(&backend->work_bell);
                (void)pthread_join(backend->thread, NULL);
                assert(!backend->turns.jobs.first && !backend->submitted.first && !backend->done.first);
                assert(!backend->asked.first && !backend->answered.first);
        }
        (void)pthread_mutex_destroy(&backend->mutex);
        (void)sem_destroy(&backend->opened);
        ckv__bell_deinit(&backend->work_bell);
        ckv__bell_deinit(&backend->done_bell);
        free(backend);
        return NULL;
}

static void closep(struct ckv_backend **backend) {
        (void)cuda_close(*backend);
}

/* The thread opens the device, and this one waits for it. */
static int start_device(struct ckv_backend *backend) {
        sigset_t before;
        int r;

        ckv_guard_block_signals(&before);
        r = pthread_create(&backend->thread, NULL, device_main, backend);
        (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
        if (r != 0)
                return ckv_error_origin(-r);
        backend->started = true;
        while (sem_wait(&backend->opened) < 0 && errno == EINTR)
                ;
        backend->options = NULL;
        return backend->open_result;
}

static int cuda_open(const struct ckv_backend_options *options, struct ckv_backend **ret_backend) {
        _cleanup_(closep) struct ckv_backend *backend = calloc(1, sizeof(*backend));
        int r;

        if (!backend)
                return ckv_error_origin(-ENOMEM);
        ckv__jobs_init(&backend->submitted);
        ckv__jobs_init(&backend->done);
        ckv__imports_init(&backend->asked);
        ckv__imports_init(&backend->answered);
        (void)pthread_mutex_init(&backend->mutex, NULL);
        (void)sem_init(&backend->opened, 0, 0);
        backend->work_bell = backend->done_bell = CKV_BELL_NONE;
        backend->options = options;
        backend->slice_nsec = (options->slice_usec ? options->slice_usec : SLICE_USEC_DEFAULT) * CKV_NSEC_PER_USEC;
        ckv__turns_init(&backend->turns, backend->slice_nsec);
        r = ckv__bell_init(&backend->work_bell);
        if (r == 0)
                r = ckv__bell_init(&backend->done_bell);
        if (r == 0)
                r = start_device(backend);
        if (r < 0) {
                if (options->ret_why)
                        (void)snprintf(options->ret_why, options->why_bytes, "%s", backend->fault.text[0] ? backend->fault.text : strerror(-r));
                return ckv_error_trace(r);
        }
        *ret_backend = ckv_steal(&backend);
        return 0;
}

static void cuda_describe(const struct ckv_backend *backend, struct ckv_backend_info *ret_info) {
        *ret_info = backend->info;
}

static int cuda_map(struct ckv_backend *backend, int fd, uint64_t offset, uint64_t size, bool writable,
                    struct ckv_mapping *ret_mapping) {
        (void)backend;
        return ckv_backend_cpu.map(NULL, fd, offset, size, writable, ret_mapping);
}

static void cuda_import(struct ckv_backend *backend, struct ckv_import *import) {
        bool first;

        (void)pthread_mutex_lock(&backend->mutex);
        first = !backend->submitted.first && !backend->asked.first;
        ckv__imports_append(&backend->asked, import);
        (void)pthread_mutex_unlock(&backend->mutex);
        if (first)
                ckv__bell_ring(&backend->work_bell);
}

static void cuda_unmap(struct ckv_backend *backend, struct ckv_mapping *mapping) {
        struct ckv_import *import;

        if (!mapping->on_device) {
                ckv_backend_cpu.unmap(NULL, mapping);
                return;
        }
        import = calloc(1, sizeof(*import));
        if (import) {
                import->kind = CKV_IMPORT_CLOSE;
                import->owner = backend;
                import->mapping = *mapping;
                cuda_import(backend, import);
        }
        /* without memory for the message it stays open until the backend is closed */
        *mapping = (struct ckv_mapping){ 0 };
}

static struct ckv_import *cuda_reap_import(struct ckv_backend *backend) {
        struct ckv_import *import;

        (void)pthread_mutex_lock(&backend->mutex);
        import = ckv__imports_take(&backend->answered);
        if (!backend->done.first && !backend->answered.first)
                ckv__bell_hush(&backend->done_bell);
        (void)pthread_mutex_unlock(&backend->mutex);
        return import;
}

static void cuda_submit(struct ckv_backend *backend, struct ckv_job *job) {
        bool first;

        job->backend_state = NULL;
        count(&backend->queued, 1);
        (void)pthread_mutex_lock(&backend->mutex);
        first = !backend->submitted.first && !backend->asked.first;
        ckv__jobs_append(&backend->submitted, job);
        (void)pthread_mutex_unlock(&backend->mutex);
        if (first)
                ckv__bell_ring(&backend->work_bell);
}

static void cuda_cancel(struct ckv_backend *backend, struct ckv_job *job) {
        (void)backend;
        /* relaxed, as in sweep() */
        atomic_store_explicit(&job->cancel, true, memory_order_relaxed);
}

static int cuda_wait_fd(const struct ckv_backend *backend) {
        return backend->done_bell.wait_fd;
}

static struct ckv_job *cuda_reap(struct ckv_backend *backend) {
        struct ckv_job *job;

        (void)pthread_mutex_lock(&backend->mutex);
        job = ckv__jobs_take(&backend->done);
        if (!backend->done.first && !backend->answered.first)
                ckv__bell_hush(&backend->done_bell);
        (void)pthread_mutex_unlock(&backend->mutex);
        return job;
}

static void cuda_health(const struct ckv_backend *backend, struct ckv_backend_health *ret_health) {
        int lost = atomic_load_explicit(&backend->lost, memory_order_relaxed);

        *ret_health = (struct ckv_backend_health){
                .last_progress_nsec = atomic_load_explicit(&backend->progress_nsec, memory_order_relaxed),
                .queued = atomic_load_explicit(&backend->queued, memory_order_relaxed),
                .running = atomic_load_explicit(&backend->running, memory_order_relaxed),
                .lost = lost != CUDA_SUCCESS, .lost_code = lost,
        };
}

const struct ckv_backend_ops ckv_backend_cuda = {
        .version = CKV_BACKEND_VERSION,
        .name = "cuda",
        .open = cuda_open,
        .close = cuda_close,
        .describe = cuda_describe,
        .map = cuda_map,
        .unmap = cuda_unmap,
        .import = cuda_import,
        .reap_import = cuda_reap_import,
        .takes = ckv_cuda_takes,
        .submit = cuda_submit,
        .cancel = cuda_cancel,
        .wait_fd = cuda_wait_fd,
        .reap = cuda_reap,
        .health = cuda_health,
};
