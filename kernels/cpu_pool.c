/*
 * Worker threads: a list of items, an atomic counter, and a condition variable.
 *
 * The caller of run() works too, so one thread means no worker and no waiting.
 * A worker that wakes up late finds the round closed and sleeps again; nobody
 * waits for it.  So the cost of a round is one broadcast, and a machine that is
 * busy with something else slows a round down only by the items its threads
 * have begun.
 *
 * Items are handed out in ascending order and every item that was handed out is
 * done when run() returns: what is left is always a tail of the list, and a
 * slice can stop anywhere and go on there.  Results become visible to the
 * caller through the mutex, which each worker takes when it leaves the round.
 *
 * Nothing here knows what an item is.  There is no work stealing and no
 * affinity: the unit that starts the daemon says which CPUs it may use.
 */
#include "kernels/cpu_pool.h"

#include "base/clock.h"
#include "base/error.h"
#include "base/guard.h"
#include "base/macros.h"
#include "kernels/cpu_kernel.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>

struct worker {
        struct ckv_cpu_pool *pool;
        pthread_t thread;
        float *scratch;
};

struct ckv_cpu_pool {
        pthread_mutex_t mutex;          /* held for a few assignments only, never while an item runs */
        pthread_cond_t wake, idle;
        struct worker *workers;         /* [threads]; 0 is the caller of run() */
        uint32_t threads, started;

        /* under mutex */
        uint64_t round;                 /* counts calls of run() */
        bool open, stop;                /* may a worker join the round? */
        uint32_t inside;                /* workers in the round */

        /* the round: written under mutex before it opens, constant while it is open */
        ckv_cpu_work work;
        void *context;
        uint32_t end;
        uint64_t until_nsec;
        _Atomic uint64_t next;          /* wider than an item number: latecomers push it past end */
};

/* relaxed is enough for the counter: it only has to hand out each number once; data is ordered by the mutex */
static void work_off(struct ckv_cpu_pool *pool, float *scratch, bool at_least_one) {
        while (at_least_one || ckv_now_nsec() < pool->until_nsec) {
                uint64_t item = atomic_fetch_add_explicit(&pool->next, 1, memory_order_relaxed);

                if (item >= pool->end)
                        return;
                pool->work(pool->context, (uint32_t)item, scratch);
                at_least_one = false;
        }
}

static void *worker_main(void *p) {
        struct worker *worker = p;
        struct ckv_cpu_pool *pool = worker->pool;
        uint64_t seen = 0;

        (void)pthread_setname_np(pthread_self(), "ckv-cpu-work");
        (void)pthread_mutex_lock(&pool->mutex);
        for (;;) {
                while (!pool->stop && (pool->round == seen || !pool->open))
                        (void)pthread_cond_wait(&pool->wake, &pool->mutex);
                if (pool->stop)
                        break;
                seen = pool->round;
                pool->inside++;
                (void)pthread_mutex_unlock(&pool->mutex);
                work_off(pool, worker->scratch, false);
                (void)pthread_mutex_lock(&pool->mutex);
                if (--pool->inside == 0)
                        (void)pthread_cond_signal(&pool->idle);
        }
        (void)pthread_mutex_unlock(&pool->mutex);
        return NULL;
}

uint32_t ckv__cpu_pool_run(struct ckv_cpu_pool *pool, ckv_cpu_work work, void *context, uint32_t first, uint32_t end,
                           uint64_t until_nsec) {
        bool alone = pool->threads == 1 || end - first < 2;
        uint64_t next;

        if (first >= end)
                return end;
        (void)pthread_mutex_lock(&pool->mutex);
        pool->work = work;
        pool->context = context;
        pool->end = end;
        pool->until_nsec = until_nsec;
        atomic_store_explicit(&pool->next, first, memory_order_relaxed);
        if (!alone) {
                pool->round++;
                pool->open = true;
                (void)pthread_cond_broadcast(&pool->wake);
        }
        (void)pthread_mutex_unlock(&pool->mutex);

        work_off(pool, pool->workers[0].scratch, true);

        (void)pthread_mutex_lock(&pool->mutex);
        pool->open = false;
        while (pool->inside > 0)
                (void)pthread_cond_wait(&pool->idle, &pool->mutex);
        (void)pthread_mutex_unlock(&pool->mutex);
        next = atomic_load_explicit(&pool->next, memory_order_relaxed);
        return next < end ? (uint32_t)next : end;
}

uint32_t ckv__cpu_pool_threads(const struct ckv_cpu_pool *pool) {
        return pool->threads;
}

/* Threads inherit the mask of the one that starts them. */
static int start_workers(struct ckv_cpu_pool *pool) {
        sigset_t before;
        int r = 0;

        ckv_guard_block_signals(&before);
        for (pool->started = 1; pool->started < pool->threads; pool->started++) {
                struct worker *worker = &pool->workers[pool->started];

                r = pthread_create(&worker->thread, NULL, worker_main, worker);
                if (r)
                        break;
        }
        (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
        return -r;
}

int ckv__cpu_pool_new(uint32_t threads, struct ckv_cpu_pool **ret_pool) {
        struct ckv_cpu_pool *pool = calloc(1, sizeof(*pool));
        int r = -ENOMEM;

        if (!pool)
                return ckv_error_origin(-ENOMEM);
        (void)pthread_mutex_init(&pool->mutex, NULL);
        (void)pthread_cond_init(&pool->wake, NULL);
        (void)pthread_cond_init(&pool->idle, NULL);
        pool->threads = threads;
        pool->workers = calloc(threads, sizeof(*pool->workers));
        for (uint32_t i = 0; pool->workers && i < threads; i++) {
                pool->workers[i].pool = pool;
                pool->workers[i].scratch = aligned_alloc(CKV_CPU_ALIGN, CKV_CPU_SCRATCH_FLOATS * sizeof(float));
                if (!pool->workers[i].scratch)
                        break;
                if (i + 1 == threads)
                        r = start_workers(pool);
        }
        if (r < 0) {
                (void)ckv__cpu_pool_free(pool);
                return ckv_error_origin(r);
        }
        *ret_pool = pool;
        return 0;
}

struct ckv_cpu_pool *ckv__cpu_pool_free(struct ckv_cpu_pool *pool) {
        if (!pool)
                return NULL;
        (void)pthread_mutex_lock(&pool->mutex);
        pool->stop = true;
        (void)pthread_cond_broadcast(&pool->wake);
        (void)pthread_mutex_unlock(&pool->mutex);
        for (uint32_t i = 1; i < pool->started; i++)
                (void)pthread_join(pool->workers[i].thread, NULL);
        for (uint32_t i = 0; pool->workers && i < pool->threads; i++)
                free(pool->workers[i].scratch);
        free(pool->workers);
        (void)pthread_cond_destroy(&pool->idle);
        (void)pthread_cond_destroy(&pool->wake);
        (void)pthread_mutex_destroy(&pool->mutex);
        free(pool);
        return NULL;
}
