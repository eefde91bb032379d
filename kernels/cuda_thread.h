/*
 * The device thread of the CUDA backend, and what it shares with the loop.
 */
#ifndef CKV_KERNELS_CUDA_THREAD_H
#define CKV_KERNELS_CUDA_THREAD_H

#include "kernels/backend.h"
#include "kernels/cpu_bell.h"
#include "kernels/cpu_turns.h"
#include "kernels/cuda_device.h"
#include "kernels/cuda_memory.h"
#include "kernels/cuda_queues.h"

#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>

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

/* ckv__cuda_thread() - opens the device, posts @p's opened, and works until stop. @p: struct ckv_backend. Return: NULL. */
void *ckv__cuda_thread(void *p);

/* ckv__cuda_count() - one of the backend's counters of jobs */
static inline void ckv__cuda_count(_Atomic uint32_t *counter, int32_t change) {
        (void)atomic_fetch_add_explicit(counter, (uint32_t)change, memory_order_relaxed);
}

#endif
