/*
 * Streams and events of the stand-in driver.  A stream is a thread that works
 * off a queue, so whoever forgets to wait sees old data; a wait for a word that
 * nobody writes blocks its stream for ever, as on a GPU.  After a sticky error
 * nothing runs any more.
 *
 * The default stream is refused: no part of this project has a use for it.
 */
#include "tests/fake/stream.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct CUevent_st {
        _Atomic uint32_t recorded, done;
        struct timespec time;           /* when it was passed, valid once done = recorded */
};

struct CUstream_st {
        pthread_t thread;
        pthread_mutex_t lock;
        pthread_cond_t changed;
        struct ckv_fake_op *first, *last;
};

static const char *const names[] = { "write32", "write64", "wait64", "record", "copy", "set", "kernel", "quit" };

static void wait_word(const _Atomic uint64_t *word, uint64_t value) {
        const struct timespec pause_time = { .tv_nsec = 20000 };

        while ((int64_t)(atomic_load(word) - value) < 0)
                (void)nanosleep(&pause_time, NULL);
}

static void run(const struct ckv_fake_op *op) {
        if (ckv_fake_sticky() != CUDA_SUCCESS)
                return;
        ckv_fake_log("run", names[op->kind]);
        switch (op->kind) {
        case CKV_FAKE_WRITE32:
                atomic_store((_Atomic uint32_t *)op->to, (uint32_t)op->value);
                break;
        case CKV_FAKE_WRITE64:
                atomic_store((_Atomic uint64_t *)op->to, op->value);
                break;
        case CKV_FAKE_WAIT64:
                wait_word(op->to, op->value);
                break;
        case CKV_FAKE_RECORD:
                (void)clock_gettime(CLOCK_MONOTONIC, &op->event->time);
                atomic_store(&op->event->done, (uint32_t)op->value);
                break;
        case CKV_FAKE_COPY:
                memcpy(op->to, op->from, op->count);
                break;
        case CKV_FAKE_SET:
                for (uint64_t i = 0; i < op->count; i++)
                        ((uint32_t *)op->to)[i] = (uint32_t)op->value;
                break;
        case CKV_FAKE_KERNEL:
                if (ckv_fake_kernel_fault())
                        op->kernel(op->grid, op->block, op->shared_bytes, &(void *){ op->parameters });
                break;
        case CKV_FAKE_QUIT:
                break;
        }
}

static void *stream_main(void *p) {
        CUstream stream = p;
        bool quit = false;

        while (!quit) {
                struct ckv_fake_op *op;

                (void)pthread_mutex_lock(&stream->lock);
                while (!stream->first)
                        (void)pthread_cond_wait(&stream->changed, &stream->lock);
                op = stream->first;
                (void)pthread_mutex_unlock(&stream->lock);
                run(op);
                quit = op->kind == CKV_FAKE_QUIT;
                (void)pthread_mutex_lock(&stream->lock);
                stream->first = op->next;
                if (!stream->first)
                        stream->last = NULL;
                (void)pthread_cond_broadcast(&stream->changed);
                (void)pthread_mutex_unlock(&stream->lock);
                free(op->parameters);
                free(op);
        }
        return NULL;
}

CUresult ckv_fake_push(CUstream stream, const struct ckv_fake_op *op) {
        struct ckv_fake_op *copy = stream ? malloc(sizeof(*copy)) : NULL;

        if (!copy) {
                free(op->parameters);
                return stream ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_ERROR_INVALID_HANDLE;
        }
        *copy = *op;
        copy->next = NULL;
        (void)pthread_mutex_lock(&stream->lock);
        if (stream->last)
                stream->last->next = copy;
        else
                stream->first = copy;
        stream->last = copy;
        (void)pthread_cond_broadcast(&stream->changed);
        (void)pthread_mutex_unlock(&stream->lock);
        return CUDA_SUCCESS;
}

CUresult cuStreamCreateWithPriority(CUstream *ret_stream, unsigned int flags, int priority) {
        CUstream stream;

        (void)priority;
        BEGIN();
        if (flags > CU_STREAM_NON_BLOCKING)
                return CUDA_ERROR_INVALID_VALUE;
        stream = calloc(1, sizeof(*stream));
        if (!stream)
                return CUDA_ERROR_OUT_OF_MEMORY;
        (void)pthread_mutex_init(&stream->lock, NULL);
        (void)pthread_cond_init(&stream->changed, NULL);
        if (pthread_create(&stream->thread, NULL, stream_main, stream) != 0) {
                free(stream);
                return CUDA_ERROR_OUT_OF_MEMORY;
        }
        *ret_stream = stream;
        return CUDA_SUCCESS;
}

CUresult cuStreamDestroy_v2(CUstream stream) {
        CUresult r;

        BEGIN();
        r = ckv_fake_push(stream, &(struct ckv_fake_op){ .kind = CKV_FAKE_QUIT });
        if (r != CUDA_SUCCESS)
                return r;
        (void)pthread_join(stream->thread, NULL);
        (void)pthread_cond_destroy(&stream->changed);
        (void)pthread_mutex_destroy(&stream->lock);
        free(stream);
        return CUDA_SUCCESS;
}

CUresult cuStreamQuery(CUstream stream) {
        bool busy;

        BEGIN();
        (void)pthread_mutex_lock(&stream->lock);
        busy = stream->first != NULL;
        (void)pthread_mutex_unlock(&stream->lock);
        if (busy)
                return CUDA_ERROR_NOT_READY;
        return ckv_fake_sticky();
}

CUresult cuStreamSynchronize(CUstream stream) {
        BEGIN();
        (void)pthread_mutex_lock(&stream->lock);
        while (stream->first)
                (void)pthread_cond_wait(&stream->changed, &stream->lock);
        (void)pthread_mutex_unlock(&stream->lock);
        return ckv_fake_sticky();
}

/* A word of memory that CUDA knows; the header offers flags that nobody here may use. */
static CUresult push_word(CUstream stream, enum ckv_fake_op_kind kind, CUdeviceptr at, uint64_t value, unsigned int flags) {
        size_t bytes = kind == CKV_FAKE_WRITE32 ? 4 : 8;

        if (flags || at % bytes || !ckv_fake_known(at, bytes))
                return CUDA_ERROR_INVALID_VALUE;
        return ckv_fake_push(stream, &(struct ckv_fake_op){ .kind = kind, .to = (void *)(uintptr_t)at, .value = value });
}

CUresult cuStreamWriteValue32_v2(CUstream stream, CUdeviceptr at, uint32_t value, unsigned int flags) {
        BEGIN();
        return push_word(stream, CKV_FAKE_WRITE32, at, value, flags);
}

CUresult cuStreamWriteValue64_v2(CUstream stream, CUdeviceptr at, uint64_t value, unsigned int flags) {
        BEGIN();
        return push_word(stream, CKV_FAKE_WRITE64, at, value, flags);
}

CUresult cuStreamWaitValue64_v2(CUstream stream, CUdeviceptr at, uint64_t value, unsigned int flags) {
        BEGIN();
        return push_word(stream, CKV_FAKE_WAIT64, at, value, flags);
}

CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void *from, size_t bytes, CUstream stream) {
        BEGIN();
        if (!ckv_fake_known(to, bytes))
                return CUDA_ERROR_INVALID_VALUE;
        return ckv_fake_push(stream, &(struct ckv_fake_op){ .kind = CKV_FAKE_COPY, .to = (void *)(uintptr_t)to, .from = from,
                                                            .count = bytes });
}

CUresult cuMemcpyDtoHAsync_v2(void *to, CUdeviceptr from, size_t bytes, CUstream stream) {
        BEGIN();
        if (!ckv_fake_known(from, bytes))
                return CUDA_ERROR_INVALID_VALUE;
        return ckv_fake_push(stream, &(struct ckv_fake_op){ .kind = CKV_FAKE_COPY, .to = to, .from = (void *)(uintptr_t)from,
                                                            .count = bytes });
}

CUresult cuMemsetD32Async(CUdeviceptr to, unsigned int value, size_t count, CUstream stream) {
        BEGIN();
        if (to % 4 || !ckv_fake_known(to, 4 * count))
                return CUDA_ERROR_INVALID_VALUE;
        return ckv_fake_push(stream, &(struct ckv_fake_op){ .kind = CKV_FAKE_SET, .to = (void *)(uintptr_t)to, .value = value,
                                                            .count = count });
}

CUresult cuEventCreate(CUevent *ret_event, unsigned int flags) {
        BEGIN();
        if (flags & ~(unsigned int)CU_EVENT_DISABLE_TIMING)
                return CUDA_ERROR_INVALID_VALUE;
        *ret_event = calloc(1, sizeof(**ret_event));
        return *ret_event ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cuEventDestroy_v2(CUevent event) {
        BEGIN();
        free(event);
        return CUDA_SUCCESS;
}

CUresult cuEventRecord(CUevent event, CUstream stream) {
        BEGIN();
        return ckv_fake_push(stream, &(struct ckv_fake_op){ .kind = CKV_FAKE_RECORD, .event = event,
                                                            .value = atomic_fetch_add(&event->recorded, 1) + 1 });
}

CUresult cuEventQuery(CUevent event) {
        BEGIN();
        return atomic_load(&event->done) == atomic_load(&event->recorded) ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

CUresult cuEventElapsedTime(float *ret_msec, CUevent start, CUevent end) {
        BEGIN();
        if (atomic_load(&start->done) != atomic_load(&start->recorded) || atomic_load(&end->done) != atomic_load(&end->recorded))
                return CUDA_ERROR_NOT_READY;
        *ret_msec = (float)(end->time.tv_sec - start->time.tv_sec) * 1e3F +
                    (float)(end->time.tv_nsec - start->time.tv_nsec) * 1e-6F;
        return CUDA_SUCCESS;
}
