/*
 * A GPU as a device behind kernels/backend.h.  One thread owns its context and
 * makes every call of the driver; it works on jobs as kernels/job_queue.c has it,
 * and nothing on the event loop's thread waits for it but open() and close().
 *
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
 * It is read and written by the device thread, never by the GPU.
 */
#include "kernels/backend.h"

#include "base/error.h"
#include "base/macros.h"
#include "kernels/cuda_device.h"
#include "kernels/cuda_memory.h"
#include "kernels/cuda_move.h"
#include "kernels/cuda_plan.h"
#include "kernels/cuda_shape.h"
#include "kernels/job_queue.h"

#include <errno.h>
#include <semaphore.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

enum { AGAIN_NSEC = 1000000 };

struct cuda {
        struct ckv_backend backend;             /* first: the two are converted into each other */

        /* of open(), until the thread has posted opened */
        const struct ckv_backend_options *options;
        struct ckv_cuda_fault fault;
        int open_result;
        sem_t opened;

        struct ckv_cuda_device device;          /* of the device thread, and what follows */
        struct ckv_cuda_memory *memory;
};

static struct cuda *cuda_of(struct ckv_backend *backend) {
        return (struct cuda *)backend;
}

static bool begin(struct ckv_backend *backend, struct ckv_job *job) {
        const struct timespec pause = { .tv_nsec = AGAIN_NSEC };

        (void)backend;
        job->outcome = CKV_JOB_OK;
        if (job->stage == CKV_STAGE_PLAN) {
                job->backend_state = ckv__cuda_plan_new(job);
                if (!job->backend_state)
                        job->outcome = CKV_JOB_NO_MEMORY;
                return true;
        }
        if (!ckv__cuda_can_move(job, &job->fail_group)) {
                job->outcome = CKV_JOB_NOT_ON_DEVICE;
                job->fail_field = CKV_FIELD_NONE;
                job->fail_need = 0;
                return true;
        }
        job->backend_state = ckv__cuda_move_new(job);
        /* the decision to move has been made: a few kB will be there in a moment */
        if (!job->backend_state)
                (void)nanosleep(&pause, NULL);
        return job->backend_state != NULL;
}

static bool step(struct ckv_backend *backend, struct ckv_job *job, uint64_t until) {
        struct ckv_cuda_device *device = &cuda_of(backend)->device;

        if (job->stage == CKV_STAGE_PLAN)
                return ckv__cuda_plan_step(job->backend_state, device, until);
        return ckv__cuda_move_step(job->backend_state, device, until);
}

static void end(struct ckv_job *job) {
        if (job->stage == CKV_STAGE_PLAN)
                job->backend_state = ckv__cuda_plan_free(job->backend_state);
        else
                job->backend_state = ckv__cuda_move_free(job->backend_state);
}

/* The first error that stays is told to all: to the loop, and to what is open. */
static void look(struct ckv_backend *backend) {
        struct cuda *cuda = cuda_of(backend);
        CUresult lost = cuda->device.lost;

        if (lost == CUDA_SUCCESS || atomic_load_explicit(&backend->lost, memory_order_relaxed) != CUDA_SUCCESS)
                return;
        ckv__cuda_memory_lost(cuda->memory, lost);
        ckv__queue_lose(backend, lost);
}

static bool serve(struct ckv_backend *backend, struct ckv_import *import) {
        struct cuda *cuda = cuda_of(backend);

        (void)ckv__cuda_said(&cuda->device, "import", ckv__cuda_memory_serve(cuda->memory, import));
        if (import->owner != backend)
                return true;
        free(import);                           /* of unmap() */
        return false;
}

static const struct ckv_queue_hooks hooks = { .begin = begin, .step = step, .end = end, .look = look, .serve = serve };

static int open_device(struct cuda *cuda) {
        int r = ckv__cuda_device_open(cuda->options, &cuda->device, &cuda->fault);

        if (r < 0)
                return r;
        cuda->memory = ckv__cuda_memory_new(&cuda->device.cuda, cuda->device.device, CKV_CUDA_MEMORY_MOST);
        if (!cuda->memory)
                return ckv_error_origin(-ENOMEM);
        return ckv_error_trace(ckv__cuda_device_describe(&cuda->device, &cuda->backend.info, &cuda->fault));
}

static void *device_main(void *p) {
        struct cuda *cuda = cuda_of(p);
        int r = open_device(cuda);

        (void)pthread_setname_np(pthread_self(), "ckv-cuda");
        cuda->open_result = r;
        ckv__queue_progress(&cuda->backend);
        (void)sem_post(&cuda->opened);
        if (r == 0)
                ckv__queue_run(&cuda->backend);
        cuda->memory = ckv__cuda_memory_free(cuda->memory);
        ckv__cuda_device_close(&cuda->device);
        return NULL;
}

static struct cuda *cuda_free(struct cuda *cuda) {
        if (!cuda)
                return NULL;
        ckv__queue_stop(&cuda->backend);
        ckv__queue_deinit(&cuda->backend);
        (void)sem_destroy(&cuda->opened);
        free(cuda);
        return NULL;
}

static void cuda_freep(struct cuda **cuda) {
        (void)cuda_free(*cuda);
}

static struct ckv_backend *cuda_close(struct ckv_backend *backend) {
        (void)cuda_free(cuda_of(backend));
        return NULL;
}

/* The thread opens the device, and this one waits for it. */
static int start_device(struct cuda *cuda, const struct ckv_backend_options *options) {
        int r;

        cuda->options = options;
        r = ckv__queue_start(&cuda->backend, device_main);
        if (r < 0)
                return ckv_error_trace(r);
        while (sem_wait(&cuda->opened) < 0 && errno == EINTR)
                ;
        cuda->options = NULL;
        return cuda->open_result;
}

static int cuda_open(const struct ckv_backend_options *options, struct ckv_backend **ret_backend) {
        _cleanup_(cuda_freep) struct cuda *cuda = calloc(1, sizeof(*cuda));
        int r;

        if (!cuda)
                return ckv_error_origin(-ENOMEM);
        (void)sem_init(&cuda->opened, 0, 0);
        r = ckv__queue_init(&cuda->backend, &hooks, options->slice_usec);
        if (r == 0)
                r = start_device(cuda, options);
        if (r < 0) {
                const char *why = cuda->fault.text[0] ? cuda->fault.text : strerror(-r);

                if (options->ret_why)
                        (void)snprintf(options->ret_why, options->why_bytes, "%s", why);
                return ckv_error_trace(r);
        }
        *ret_backend = &ckv_steal(&cuda)->backend;
        return 0;
}

static int cuda_map(struct ckv_backend *backend, int fd, uint64_t offset, uint64_t size, bool writable,
                    struct ckv_mapping *ret_mapping) {
        (void)backend;
        return ckv_backend_cpu.map(NULL, fd, offset, size, writable, ret_mapping);
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
                ckv__queue_import(backend, import);
        }
        /* without memory for the message it stays open until the backend is closed */
        *mapping = (struct ckv_mapping){ 0 };
}

const struct ckv_backend_ops ckv_backend_cuda = {
        .version = CKV_BACKEND_VERSION,
        .name = "cuda",
        .open = cuda_open,
        .close = cuda_close,
        .describe = ckv__queue_describe,
        .map = cuda_map,
        .unmap = cuda_unmap,
        .import = ckv__queue_import,
        .reap_import = ckv__queue_reap_import,
        .takes = ckv_cuda_takes,
        .submit = ckv__queue_submit,
        .cancel = ckv__queue_cancel,
        .wait_fd = ckv__queue_wait_fd,
        .reap = ckv__queue_reap,
        .health = ckv__queue_health,
};
