/*
 * One mutex guards the lists and is held for a few assignments: submit() and
 * reap() never wait for arithmetic.  Both sides sleep on a bell (kernels/bell.h).
 *
 * Whoever puts something in rings after letting go of the mutex.  The write
 * wakes the other thread on the same CPU, at once: within the mutex it would run
 * into it, sleep again and be woken twice, which was 5 us of a request.  No
 * wake-up is lost by that:
 *
 * - The device thread hushes its bell before it looks, so what it does not find
 *   is rung for after the hush.
 * - The loop hushes when nothing is left to reap, under the mutex, and only if
 *   a ring was promised, also under the mutex, to what was put in.  A promise is
 *   taken back once its byte has been read.  If the loop comes by before the
 *   byte, the pipe is empty and the promise stays: the loop wakes once more, for
 *   nothing.  One thread rings, for one promise at a time, so no byte is left
 *   that nobody would hush.
 *
 * A ring that is lost, for lack of memory, costs half a second: the idle device
 * thread looks for work so often, and rings again if the loop has not come by.
 * The watchdog, which reads health(), thus also sees a thread that hangs, be it
 * in a slice or in a lock.
 *
 * Keys take turns, by the time that their slices took (kernels/turns.c); jobs of
 * one key are worked off one after the other.  Before each slice all jobs inside
 * are looked through for those that were cancelled or have expired, so such a
 * job leaves within a slice even if its turn is far away.
 */
#include "kernels/job_queue.h"

#include "base/clock.h"
#include "base/error.h"
#include "base/guard.h"
#include "base/macros.h"

#include <signal.h>

enum {
        SLICE_USEC_DEFAULT = 2000,
        IDLE_MSEC = 500,
};

static void count(_Atomic uint32_t *counter, int32_t change) {
        (void)atomic_fetch_add_explicit(counter, (uint32_t)change, memory_order_relaxed);
}

void ckv__queue_progress(struct ckv_backend *backend) {
        atomic_store_explicit(&backend->progress_nsec, ckv_now_nsec(), memory_order_relaxed);
}

/* Promise a ring to the loop, unlock, and ring. */
static void unlock_and_tell(struct ckv_backend *backend) {
        bool ring = !backend->ringing;

        backend->ringing = true;
        (void)pthread_mutex_unlock(&backend->mutex);
        if (ring)
                ckv__bell_ring(&backend->done_bell);
}

/* After a look for something to reap: take the promise back once it is kept, and unlock. */
static void hush_and_unlock(struct ckv_backend *backend) {
        if (backend->ringing && !backend->done.first && !backend->answered.first)
                backend->ringing = !ckv__bell_hush(&backend->done_bell);
        (void)pthread_mutex_unlock(&backend->mutex);
}

void ckv__queue_lose(struct ckv_backend *backend, int code) {
        atomic_store_explicit(&backend->lost, code, memory_order_relaxed);
        (void)pthread_mutex_lock(&backend->mutex);
        unlock_and_tell(backend);
}

static void finish(struct ckv_backend *backend, struct ckv_job *job) {
        count(job->backend_state ? &backend->running : &backend->queued, -1);
        backend->hooks->end(job);
        ckv__turns_remove(&backend->turns, job);
        (void)pthread_mutex_lock(&backend->mutex);
        ckv__jobs_append(&backend->done, job);
        unlock_and_tell(backend);
}

/* Return: false: the device has to be asked once more. */
static bool begin(struct ckv_backend *backend, struct ckv_job *job, uint64_t now) {
        bool begun;

        job->walk = (struct ckv_mirror_walk){ 0 };
        if (job->stage == CKV_STAGE_PLAN)
                job->started_nsec = now;
        else
                job->move_nsec = now;                   /* a point in time until the stage is done */
        begun = backend->hooks->begin(backend, job);
        if (!job->backend_state)
                return begun;
        count(&backend->queued, -1);
        count(&backend->running, 1);
        return true;
}

static bool step(struct ckv_backend *backend, struct ckv_job *job, uint64_t until) {
        if (job->stage == CKV_STAGE_PLAN)
                return ckv_mirrors_step(job, until) && backend->hooks->step(backend, job, until);
        return backend->hooks->step(backend, job, until) && ckv_mirrors_step(job, until);
}

static void run_slice(struct ckv_backend *backend, struct ckv_job *job) {
        uint64_t start = ckv_now_nsec(), end;
        bool done = job->backend_state || begin(backend, job, start);

        if (job->backend_state)
                done = step(backend, job, start + backend->slice_nsec);
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
        finish(backend, job);
}

/* Jobs of CKV_STAGE_PLAN that nobody waits for any more leave, wherever their turn is; all of them do when the device is lost. */
static void sweep(struct ckv_backend *backend) {
        int lost = atomic_load_explicit(&backend->lost, memory_order_relaxed);
        uint64_t now = ckv_now_nsec();
        struct ckv_job *next;

        for (struct ckv_job *job = backend->turns.jobs.first; job; job = next) {
                /* relaxed: the flag carries no data, and the next look is a slice away */
                bool cancelled = atomic_load_explicit(&job->cancel, memory_order_relaxed);

                next = job->next;
                if (lost) {
                        job->outcome = CKV_JOB_DEVICE_LOST;
                        job->fail_code = lost;
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

static void serve(struct ckv_backend *backend, struct ckv_imports *imports) {
        struct ckv_import *import;

        while ((import = ckv__imports_take(imports))) {
                bool answer = backend->hooks->serve(backend, import);

                ckv__queue_progress(backend);
                if (!answer)
                        continue;
                (void)pthread_mutex_lock(&backend->mutex);
                ckv__imports_append(&backend->answered, import);
                unlock_and_tell(backend);
        }
}

/* Take in what was handed over; if there is nothing to do, wait first, but not for long. Return: go on? */
static bool take_in(struct ckv_backend *backend) {
        struct ckv_imports imports;
        bool go_on;

        if (!backend->turns.jobs.first) {
                if (ckv__bell_await(&backend->work_bell, IDLE_MSEC))
                        (void)ckv__bell_hush(&backend->work_bell);
                if (backend->hooks->rest)
                        backend->hooks->rest(backend);
        }
        ckv__imports_init(&imports);
        (void)pthread_mutex_lock(&backend->mutex);
        ckv__turns_add(&backend->turns, &backend->submitted);
        ckv__imports_move(&backend->asked, &imports);
        /* whoever has not come by now may not have been told; within the mutex, as this byte is one more for the same promise */
        if (backend->ringing && !backend->turns.jobs.first)
                ckv__bell_ring(&backend->done_bell);
        go_on = !backend->stop;
        (void)pthread_mutex_unlock(&backend->mutex);
        serve(backend, &imports);
        return go_on;
}

static void look(struct ckv_backend *backend) {
        if (backend->hooks->look)
                backend->hooks->look(backend);
}

void ckv__queue_run(struct ckv_backend *backend) {
        while (take_in(backend)) {
                struct ckv_job *job;

                ckv__queue_progress(backend);
                look(backend);
                sweep(backend);
                job = ckv__turns_next(&backend->turns);
                if (job)
                        run_slice(backend, job);
                look(backend);
        }
}

int ckv__queue_init(struct ckv_backend *backend, const struct ckv_queue_hooks *hooks, uint32_t slice_usec) {
        int r;

        backend->hooks = hooks;
        backend->slice_nsec = (slice_usec ? slice_usec : SLICE_USEC_DEFAULT) * CKV_NSEC_PER_USEC;
        backend->work_bell = backend->done_bell = CKV_BELL_NONE;
        (void)pthread_mutex_init(&backend->mutex, NULL);
        ckv__jobs_init(&backend->submitted);
        ckv__jobs_init(&backend->done);
        ckv__imports_init(&backend->asked);
        ckv__imports_init(&backend->answered);
        ckv__turns_init(&backend->turns, backend->slice_nsec);
        ckv__queue_progress(backend);
        r = ckv__bell_init(&backend->work_bell);
        if (r == 0)
                r = ckv__bell_init(&backend->done_bell);
        return ckv_error_trace(r);
}

int ckv__queue_start(struct ckv_backend *backend, void *(*main)(void *)) {
        sigset_t before;
        int r;

        ckv_guard_block_signals(&before);
        r = pthread_create(&backend->thread, NULL, main, backend);
        (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
        backend->started = r == 0;
        return ckv_error_origin(-r);
}

void ckv__queue_stop(struct ckv_backend *backend) {
        if (!backend->started)
                return;
        (void)pthread_mutex_lock(&backend->mutex);
        backend->stop = true;
        (void)pthread_mutex_unlock(&backend->mutex);
        ckv__bell_ring(&backend->work_bell);
        (void)pthread_join(backend->thread, NULL);
        assert(!backend->turns.jobs.first && !backend->submitted.first && !backend->done.first);
        assert(!backend->asked.first && !backend->answered.first);
}

void ckv__queue_deinit(struct ckv_backend *backend) {
        (void)pthread_mutex_destroy(&backend->mutex);
        ckv__bell_deinit(&backend->work_bell);
        ckv__bell_deinit(&backend->done_bell);
}

void ckv__queue_describe(const struct ckv_backend *backend, struct ckv_backend_info *ret_info) {
        *ret_info = backend->info;
}

/* A job or an import, and NULL, to the device thread; it has been told already where something lies there that it has not fetched. */
static void hand_over(struct ckv_backend *backend, struct ckv_job *job, struct ckv_import *import) {
        bool first;

        (void)pthread_mutex_lock(&backend->mutex);
        first = !backend->submitted.first && !backend->asked.first;
        if (job)
                ckv__jobs_append(&backend->submitted, job);
        else
                ckv__imports_append(&backend->asked, import);
        (void)pthread_mutex_unlock(&backend->mutex);
        if (first)
                ckv__bell_ring(&backend->work_bell);
}

void ckv__queue_submit(struct ckv_backend *backend, struct ckv_job *job) {
        job->backend_state = NULL;
        count(&backend->queued, 1);
        hand_over(backend, job, NULL);
}

void ckv__queue_import(struct ckv_backend *backend, struct ckv_import *import) {
        hand_over(backend, NULL, import);
}

void ckv__queue_cancel(struct ckv_backend *backend, struct ckv_job *job) {
        (void)backend;
        /* relaxed, as in sweep() */
        atomic_store_explicit(&job->cancel, true, memory_order_relaxed);
}

int ckv__queue_wait_fd(const struct ckv_backend *backend) {
        return backend->done_bell.wait_fd;
}

struct ckv_job *ckv__queue_reap(struct ckv_backend *backend) {
        struct ckv_job *job;

        (void)pthread_mutex_lock(&backend->mutex);
        job = ckv__jobs_take(&backend->done);
        hush_and_unlock(backend);
        return job;
}

struct ckv_import *ckv__queue_reap_import(struct ckv_backend *backend) {
        struct ckv_import *import;

        (void)pthread_mutex_lock(&backend->mutex);
        import = ckv__imports_take(&backend->answered);
        hush_and_unlock(backend);
        return import;
}

void ckv__queue_health(const struct ckv_backend *backend, struct ckv_backend_health *ret_health) {
        int lost = atomic_load_explicit(&backend->lost, memory_order_relaxed);

        *ret_health = (struct ckv_backend_health){
                .last_progress_nsec = atomic_load_explicit(&backend->progress_nsec, memory_order_relaxed),
                .queued = atomic_load_explicit(&backend->queued, memory_order_relaxed),
                .running = atomic_load_explicit(&backend->running, memory_order_relaxed),
                .lost = lost != 0, .lost_code = lost,
        };
}
