/*
 * The CUDA backend as the event loop sees it: jobs and imports are handed to the
 * device thread (kernels/cuda_thread.c) and come back, and nothing here waits for
 * it but open() and close().
 *
 * Memory of the host is mapped as the CPU backend does it, on the loop's thread.
 * It is read and written by the device thread, never by the GPU.
 */
#include "kernels/backend.h"

#include "base/clock.h"
#include "base/error.h"
#include "base/guard.h"
#include "base/macros.h"
#include "kernels/cuda_shape.h"
#include "kernels/cuda_thread.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

enum { SLICE_USEC_DEFAULT = 2000 };

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
        r = pthread_create(&backend->thread, NULL, ckv__cuda_thread, backend);
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
                const char *why = backend->fault.text[0] ? backend->fault.text : strerror(-r);

                if (options->ret_why)
                        (void)snprintf(options->ret_why, options->why_bytes, "%s", why);
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
        ckv__cuda_count(&backend->queued, 1);
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
