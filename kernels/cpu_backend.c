/*
 * The CPU as a device behind kernels/backend.h: one device thread that takes
 * turns between jobs, and the pool it shares every slice with.
 *
 * Keys take turns, by the time that their slices took (kernels/cpu_turns.c);
 * jobs of one key are worked off one after the other.  Before each slice all
 * jobs inside are looked through for those that were cancelled or have expired,
 * so such a job leaves within a slice even if its turn is far away.
 *
 * One mutex guards three lists and a flag and is held for a few assignments:
 * submit() and reap() never wait for arithmetic.  Both sides sleep on a bell
 * (kernels/cpu_bell.h); that of finished jobs rings while there are any.  A ring
 * that is lost costs half a second: so often each side's work is looked for.
 *
 * An idle device answers for itself: the device thread wakes twice a second and
 * says so.  A watchdog that reads health() thus sees a thread that hangs, be it
 * in a slice or in a lock.
 *
 * Mappings are shared, are not inherited by children, and stay out of core
 * dumps: their bytes are the tenant's.  Each is guarded: if its pages go away,
 * jobs that use it end on zeros, and the loop sees the mark.
 */
#include "kernels/backend.h"

#include "base/clock.h"
#include "base/error.h"
#include "base/guard.h"
#include "base/macros.h"
#include "kernels/cpu_choice.h"
#include "kernels/cpu_bell.h"
#include "kernels/cpu_machine.h"
#include "kernels/cpu_move.h"
#include "kernels/cpu_plan.h"
#include "kernels/cpu_pool.h"
#include "kernels/cpu_turns.h"
#include "kernels/reference.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
        SLICE_USEC_DEFAULT = 2000,
        IDLE_MSEC = 500,
};

struct ckv_backend {
        struct ckv_backend_info info;
        struct ckv_cpu_choice *choice;
        struct ckv_cpu_nodes *nodes;
        struct ckv_cpu_pool *pool;
        struct ckv_cpu_scratch *scratch;            /* of the device thread */
        uint64_t slice_nsec;
        struct ckv_bell work_bell, done_bell;
        bool started;
        pthread_t thread;

        pthread_mutex_t mutex;
        struct ckv_jobs submitted, done;            /* under mutex */
        bool stop;                              /* under mutex */

        struct ckv_turns turns;                     /* of the device thread */

        /* Written by one thread and read by another as numbers of their own: relaxed, nothing is ordered by them. */
        _Atomic uint64_t progress_nsec;
        _Atomic uint32_t queued, running;
};

static void count(_Atomic uint32_t *counter, int32_t change) {
        (void)atomic_fetch_add_explicit(counter, (uint32_t)change, memory_order_relaxed);
}

static void finish(struct ckv_backend *backend, struct ckv_job *job) {
        bool started = job->backend_state != NULL;

        if (job->stage == CKV_STAGE_PLAN)
                (void)ckv__cpu_plan_free(job->backend_state);
        else
                (void)ckv__cpu_move_free(job->backend_state);
        job->backend_state = NULL;
        count(started ? &backend->running : &backend->queued, -1);
        (void)pthread_mutex_lock(&backend->mutex);
        /* inside the mutex, so that it rings whenever there is a job and never else */
        if (!backend->done.first)
                ckv__bell_ring(&backend->done_bell);
        ckv__jobs_append(&backend->done, job);
        (void)pthread_mutex_unlock(&backend->mutex);
}

/* First slice of a stage: the state that is stepped. Return: false if there is none, and the job has its outcome. */
static bool begin(struct ckv_backend *backend, struct ckv_job *job, uint64_t now) {
        job->walk = (struct ckv_mirror_walk){ 0 };
        if (job->stage == CKV_STAGE_PLAN) {
                job->started_nsec = now;
                job->backend_state = ckv__cpu_plan_new(job, backend->scratch);
                if (!job->backend_state)
                        job->outcome = CKV_JOB_NO_MEMORY;
        } else {
                job->backend_state = ckv__cpu_move_new(job);
                if (!job->backend_state) {
                        /* the decision to move has been made: do it in one go rather than not at all */
                        ckv_ref_run_move(job);
                        (void)ckv_mirrors_step(job, UINT64_MAX);
                }
                job->outcome = CKV_JOB_OK;
        }
        if (!job->backend_state)
                return false;
        count(&backend->queued, -1);
        count(&backend->running, 1);
        return true;
}

static bool step(struct ckv_backend *backend, struct ckv_job *job, uint64_t until) {
        if (job->stage == CKV_STAGE_PLAN)
                return ckv_mirrors_step(job, until) && ckv__cpu_plan_step(job->backend_state, backend->pool, backend->choice, until);
        return ckv__cpu_move_step(job->backend_state, backend->pool, until) && ckv_mirrors_step(job, until);
}

static void run_slice(struct ckv_backend *backend, struct ckv_job *job) {
        uint64_t start = ckv_now_nsec(), end;
        bool done;

        if (!job->backend_state && job->stage == CKV_STAGE_MOVE)
                job->move_nsec = start;                 /* a point in time until the stage is done */
        done = !job->backend_state && !begin(backend, job, start);
        done = done || step(backend, job, start + backend->slice_nsec);
        end = ckv_now_nsec();
        job->device_nsec += end - start;
        atomic_store_explicit(&backend->progress_nsec, end, memory_order_relaxed);
        ckv__turns_spend(&backend->turns, job, end - start);
        if (!done)
                return;
        if (job->stage == CKV_STAGE_PLAN)
                job->score_nsec = end - job->started_nsec - job->select_nsec;
        else
                job->move_nsec = end - job->move_nsec;
        ckv__turns_remove(&backend->turns, job);
        finish(backend, job);
}

/* Jobs of CKV_STAGE_PLAN that nobody waits for any more leave, wherever their turn is. */
static void sweep(struct ckv_backend *backend) {
        uint64_t now = ckv_now_nsec();
        struct ckv_job *next;

        for (struct ckv_job *job = backend->turns.jobs.first; job; job = next) {
                /* relaxed: the flag carries no data, and the next look is a slice away */
                bool cancelled = atomic_load_explicit(&job->cancel, memory_order_relaxed);

                next = job->next;
                if (job->stage != CKV_STAGE_PLAN || (!cancelled && now < job->deadline_nsec))
                        continue;
                job->outcome = cancelled ? CKV_JOB_CANCELLED : CKV_JOB_EXPIRED;
                if (job->backend_state)
                        job->score_nsec = now - job->started_nsec - job->select_nsec;
                ckv__turns_remove(&backend->turns, job);
                finish(backend, job);
        }
}

/* Take in what was submitted; if there is nothing to do, wait first, but not for long. Return: go on? */
static bool take_in(struct ckv_backend *backend) {
        bool go_on;

        if (!backend->turns.jobs.first) {
                ckv__bell_await(&backend->work_bell, IDLE_MSEC);
                ckv__bell_hush(&backend->work_bell);
                ckv__cpu_scratch_age(backend->scratch, ckv_now_nsec());
        }
        (void)pthread_mutex_lock(&backend->mutex);
        ckv__turns_add(&backend->turns, &backend->submitted);
        /* whoever has not come by now may not have been told: a ring can fail for lack of memory */
        if (backend->done.first && !backend->turns.jobs.first)
                ckv__bell_ring(&backend->done_bell);
        go_on = !backend->stop;
        (void)pthread_mutex_unlock(&backend->mutex);
        return go_on;
}

static void *device_main(void *p) {
        struct ckv_backend *backend = p;

        (void)pthread_setname_np(pthread_self(), "ckv-cpu");
        while (take_in(backend)) {
                struct ckv_job *job;

                atomic_store_explicit(&backend->progress_nsec, ckv_now_nsec(), memory_order_relaxed);
                sweep(backend);
                job = ckv__turns_next(&backend->turns);
                if (job)
                        run_slice(backend, job);
        }
        return NULL;
}

static struct ckv_backend *cpu_close(struct ckv_backend *backend) {
        if (!backend)
                return NULL;
        if (backend->started) {
                (void)pthread_mutex_lock(&backend->mutex);
                backend->stop = true;
                (void)pthread_mutex_unlock(&backend->mutex);
                ckv__bell_ring(&backend->work_bell);
                (void)pthread_join(backend->thread, NULL);
                assert(!backend->turns.jobs.first && !backend->submitted.first && !backend->done.first);
        }
        (void)ckv__cpu_pool_free(backend->pool);
        (void)ckv__cpu_nodes_free(backend->nodes);
        (void)ckv__cpu_scratch_free(backend->scratch);
        (void)ckv__cpu_choice_free(backend->choice);
        (void)pthread_mutex_destroy(&backend->mutex);
        ckv__bell_deinit(&backend->work_bell);
        ckv__bell_deinit(&backend->done_bell);
        free(backend);
        return NULL;
}

static void closep(struct ckv_backend **backend) {
        (void)cpu_close(*backend);
}

static int start_device(struct ckv_backend *backend) {
        sigset_t before;
        int r;

        ckv_guard_block_signals(&before);
        r = pthread_create(&backend->thread, NULL, device_main, backend);
        (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
        backend->started = r == 0;
        return -r;
}

/* Before there are threads: the system is asked for tile registers. */
static int choose_path(struct ckv_backend *backend, const char *path) {
        struct ckv_backend_info *info = &backend->info;
        uint64_t start = ckv_now_nsec();
        int r = ckv__cpu_choice_new(path, &backend->choice);

        if (r < 0)
                return ckv_error_trace(r);
        info->tried_usec = path ? 0 : (uint32_t)((ckv_now_nsec() - start) / CKV_NSEC_PER_USEC);
        info->path = ckv__cpu_choice_path(backend->choice, CKV_DTYPE_BF16, CKV_DTYPE_BF16, 128, 128)->name;
        info->picked_count = (uint32_t)ckv__cpu_choice_picks(backend->choice, info->picked);
        ckv__cpu_choice_text(backend->choice, info->picks, sizeof(info->picks));
        ckv__cpu_choice_wrong(backend->choice, info->wrong, sizeof(info->wrong));
        return 0;
}

static int start_pool(struct ckv_backend *backend, const struct ckv_backend_options *options) {
        const struct ckv_cpu_sight *sight = options->sight ? options->sight : &ckv__cpu_this_machine;
        enum ckv_cpu_pin pin = CKV_CPU_PIN_AUTO;
        int r;

        if (options->pin && !ckv__cpu_pin_parse(options->pin, &pin))
                return ckv_error_origin(-EINVAL);
        r = ckv__cpu_nodes_new(sight, &backend->nodes);
        if (r < 0)
                return ckv_error_trace(r);
        r = ckv__cpu_pool_new_on(options->threads ? options->threads : ckv__cpu_threads(sight), backend->nodes, pin, &backend->pool);
        return ckv_error_trace(r);
}

static void set_info(struct ckv_backend *backend) {
        struct ckv_backend_info *info = &backend->info;
        char model[32], paths[40], rest[60];     /* of all paths: 33, and 16 beside them */

        ckv__cpu_model(model, sizeof(model));
        ckv__cpu_choice_names(backend->choice, paths, sizeof(paths));
        info->threads = ckv__cpu_pool_threads(backend->pool);
        (void)snprintf(rest, sizeof(rest), ", %s, %u thread%s", paths, info->threads, info->threads == 1 ? "" : "s");
        /* the end of the CPU's name is what can be spared */
        (void)snprintf(info->name, sizeof(info->name) - strlen(rest), "%s", model);
        (void)strcat(info->name, rest);
}

static int cpu_open(const struct ckv_backend_options *options, struct ckv_backend **ret_backend) {
        _cleanup_(closep) struct ckv_backend *backend = calloc(1, sizeof(*backend));
        int r;

        if (!backend)
                return ckv_error_origin(-ENOMEM);
        ckv__jobs_init(&backend->submitted);
        ckv__jobs_init(&backend->done);
        (void)pthread_mutex_init(&backend->mutex, NULL);
        backend->work_bell = backend->done_bell = CKV_BELL_NONE;
        r = choose_path(backend, options->path);
        if (r < 0)
                return ckv_error_trace(r);
        backend->slice_nsec = (options->slice_usec ? options->slice_usec : SLICE_USEC_DEFAULT) * CKV_NSEC_PER_USEC;
        ckv__turns_init(&backend->turns, backend->slice_nsec);
        backend->progress_nsec = ckv_now_nsec();
        r = ckv__bell_init(&backend->work_bell);
        if (r == 0)
                r = ckv__bell_init(&backend->done_bell);
        if (r < 0)
                return ckv_error_trace(r);
        backend->scratch = ckv__cpu_scratch_new(options->scratch_bytes);
        if (!backend->scratch)
                return ckv_error_origin(-ENOMEM);
        r = start_pool(backend, options);
        if (r < 0)
                return ckv_error_trace(r);
        set_info(backend);
        r = start_device(backend);
        if (r < 0)
                return ckv_error_origin(r);
        *ret_backend = ckv_steal(&backend);
        return 0;
}

static void cpu_describe(const struct ckv_backend *backend, struct ckv_backend_info *ret_info) {
        *ret_info = backend->info;
}

static int cpu_map(struct ckv_backend *backend, int fd, uint64_t offset, uint64_t size, bool writable,
                   struct ckv_mapping *ret_mapping) {
        uint64_t page, before, bytes;
        struct ckv_guard *guard;
        struct stat st;
        void *at;

        (void)backend;
        if (size == 0 || size > SIZE_MAX / 4 || offset > INT64_MAX)
                return ckv_error_origin(-EINVAL);
        if (fstat(fd, &st) < 0)
                return ckv_error_origin(-errno);
        /* files of huge pages are mapped and unmapped by whole ones */
        page = CKV_MAX((uint64_t)st.st_blksize, (uint64_t)sysconf(_SC_PAGESIZE));
        before = offset % page;
        bytes = (before + size + page - 1) / page * page;
        at = mmap(NULL, bytes, PROT_READ | (writable ? PROT_WRITE : 0), MAP_SHARED, fd, (off_t)(offset - before));
        if (at == MAP_FAILED)
                return ckv_error_origin(-errno);
        guard = ckv_guard_add(at, bytes, writable);
        if (!guard) {
                (void)munmap(at, bytes);
                return ckv_error_origin(-ENOMEM);
        }
        (void)madvise(at, bytes, MADV_DONTFORK);
        (void)madvise(at, bytes, MADV_DONTDUMP);
        *ret_mapping = (struct ckv_mapping){
                .base = (uint8_t *)at + before, .size = size, .writable = writable,
                .allocation = at, .allocation_bytes = bytes, .guard = guard,
        };
        return 0;
}

static void cpu_unmap(struct ckv_backend *backend, struct ckv_mapping *mapping) {
        mapping->guard = ckv_guard_remove(mapping->guard);
        if (mapping->allocation)
                (void)munmap(mapping->allocation, mapping->allocation_bytes);
        /* the CUDA backend maps memory of the host by this, too, and has no nodes */
        if (backend)
                ckv__cpu_nodes_forget(backend->nodes);
        *mapping = (struct ckv_mapping){ 0 };
}

static void cpu_submit(struct ckv_backend *backend, struct ckv_job *job) {
        bool first;

        job->backend_state = NULL;
        count(&backend->queued, 1);
        (void)pthread_mutex_lock(&backend->mutex);
        first = !backend->submitted.first;
        ckv__jobs_append(&backend->submitted, job);
        (void)pthread_mutex_unlock(&backend->mutex);
        if (first)
                ckv__bell_ring(&backend->work_bell);
}

static void cpu_cancel(struct ckv_backend *backend, struct ckv_job *job) {
        (void)backend;
        /* relaxed, as in sweep() */
        atomic_store_explicit(&job->cancel, true, memory_order_relaxed);
}

static int cpu_wait_fd(const struct ckv_backend *backend) {
        return backend->done_bell.wait_fd;
}

static struct ckv_job *cpu_reap(struct ckv_backend *backend) {
        struct ckv_job *job;

        (void)pthread_mutex_lock(&backend->mutex);
        job = ckv__jobs_take(&backend->done);
        if (!backend->done.first)
                ckv__bell_hush(&backend->done_bell);
        (void)pthread_mutex_unlock(&backend->mutex);
        return job;
}

static void cpu_health(const struct ckv_backend *backend, struct ckv_backend_health *ret_health) {
        *ret_health = (struct ckv_backend_health){
                .last_progress_nsec = atomic_load_explicit(&backend->progress_nsec, memory_order_relaxed),
                .queued = atomic_load_explicit(&backend->queued, memory_order_relaxed),
                .running = atomic_load_explicit(&backend->running, memory_order_relaxed),
        };
}

const struct ckv_backend_ops ckv_backend_cpu = {
        .version = CKV_BACKEND_VERSION,
        .name = "cpu",
        .open = cpu_open,
        .close = cpu_close,
        .describe = cpu_describe,
        .map = cpu_map,
        .unmap = cpu_unmap,
        .submit = cpu_submit,
        .cancel = cpu_cancel,
        .wait_fd = cpu_wait_fd,
        .reap = cpu_reap,
        .health = cpu_health,
};
