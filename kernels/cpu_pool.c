/*
 * Worker threads: a list of items, atomic counters, and a condition variable.
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
 * With several nodes of memory there is a queue for each and one for what may
 * be anywhere, and a tail is left of each queue.  A worker whose own queue is
 * empty takes from the others: a CPU that waits is worse than one that reads
 * from afar.  A list is sorted into queues a stretch at a time, so that
 * nothing is allocated.  With one node there is one queue, and nothing is
 * sorted.
 *
 * Nothing here knows what an item is.
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
#include <stdlib.h>

struct worker {
        struct ckv_cpu_pool *pool;
        pthread_t thread;
        float *scratch;
        bool settled;                   /* held to its CPUs, as far as that is wanted */
        uint32_t node;                  /* that it is held to; or CKV_CPU_ANYWHERE */
};

/* Items that are handed out in ascending order; of a round */
struct queue {
        _Atomic uint64_t next;          /* wider than an item number: latecomers push it past end */
        uint64_t end;
        uint8_t apart[112];             /* two cache lines, as they are fetched in pairs */
};

struct ckv_cpu_pool {
        pthread_mutex_t mutex;          /* held for a few assignments only, never while an item runs */
        pthread_cond_t wake, idle;
        struct worker *workers;         /* [threads]; 0 is the caller of run() */
        uint32_t threads, started;
        struct ckv_cpu_nodes *nodes;    /* NULL: not known */
        enum ckv_cpu_pin pin;

        /* under mutex */
        uint64_t round;                 /* counts calls of run() */
        bool open, stop;                /* may a worker join the round? */
        uint32_t inside;                /* workers in the round */

        /* the round: written under mutex before it opens, constant while it is open */
        ckv_cpu_work work;
        void *context;
        const uint16_t *order;          /* of the places in the queues: item - first; NULL: places are items */
        uint32_t first;
        uint64_t until_nsec;

        uint32_t queue_count;           /* 1; or one for each node, and behind them one for what is anywhere */
        struct queue queues[];
};

/* Which queue a worker on a node turns to after @turns others: its own, those of no node, then the next nodes round about */
static uint32_t queue_at(const struct ckv_cpu_pool *pool, uint32_t node, uint32_t turns) {
        uint32_t nodes = pool->queue_count - 1;

        if (node >= nodes)
                return turns == 0 ? nodes : turns - 1;
        if (turns < 2)
                return turns == 0 ? node : nodes;
        return (node + turns - 1) % nodes;
}

/* relaxed is enough for the counters: they only have to hand out each number once; data is ordered by the mutex */
static void work_off(struct ckv_cpu_pool *pool, uint32_t node, float *scratch, bool at_least_one) {
        for (uint32_t turns = 0; turns < pool->queue_count; turns++) {
                struct queue *queue = &pool->queues[queue_at(pool, node, turns)];

                while (atomic_load_explicit(&queue->next, memory_order_relaxed) < queue->end) {
                        uint64_t place;

                        if (!at_least_one && ckv_now_nsec() >= pool->until_nsec)
                                return;
                        place = atomic_fetch_add_explicit(&queue->next, 1, memory_order_relaxed);
                        if (place >= queue->end)
                                break;
                        pool->work(pool->context, pool->order ? pool->first + pool->order[place] : (uint32_t)place, scratch);
                        at_least_one = false;
                }
        }
}

/* Where the calling thread is, if that matters in this round */
static uint32_t node_of(const struct ckv_cpu_pool *pool, const struct worker *worker) {
        if (!pool->order || worker->node != CKV_CPU_ANYWHERE)
                return worker->node;
        return ckv__cpu_nodes_here(pool->nodes);
}

static void settle(struct worker *worker) {
        struct ckv_cpu_pool *pool = worker->pool;

        worker->settled = true;
        worker->node = CKV_CPU_ANYWHERE;
        if (pool->nodes)
                worker->node = ckv__cpu_nodes_pin(pool->nodes, pool->pin, (uint32_t)(worker - pool->workers));
}

static void *worker_main(void *p) {
        struct worker *worker = p;
        struct ckv_cpu_pool *pool = worker->pool;
        uint64_t seen = 0;

        (void)pthread_setname_np(pthread_self(), "ckv-cpu-work");
        settle(worker);
        (void)pthread_mutex_lock(&pool->mutex);
        for (;;) {
                while (!pool->stop && (pool->round == seen || !pool->open))
                        (void)pthread_cond_wait(&pool->wake, &pool->mutex);
                if (pool->stop)
                        break;
                seen = pool->round;
                pool->inside++;
                (void)pthread_mutex_unlock(&pool->mutex);
                work_off(pool, node_of(pool, worker), worker->scratch, false);
                (void)pthread_mutex_lock(&pool->mutex);
                if (--pool->inside == 0)
                        (void)pthread_cond_signal(&pool->idle);
        }
        (void)pthread_mutex_unlock(&pool->mutex);
        return NULL;
}

/* One round over the queues as they are; the mutex is held, and let go of. */
static void run_round(struct ckv_cpu_pool *pool, ckv_cpu_work work, void *context, bool alone, uint64_t until_nsec) {
        struct worker *own = &pool->workers[0];

        pool->work = work;
        pool->context = context;
        pool->until_nsec = until_nsec;
        if (!alone) {
                pool->round++;
                pool->open = true;
                (void)pthread_cond_broadcast(&pool->wake);
        }
        (void)pthread_mutex_unlock(&pool->mutex);

        if (!own->settled)
                settle(own);
        work_off(pool, node_of(pool, own), own->scratch, true);

        (void)pthread_mutex_lock(&pool->mutex);
        pool->open = false;
        while (pool->inside > 0)
                (void)pthread_cond_wait(&pool->idle, &pool->mutex);
        (void)pthread_mutex_unlock(&pool->mutex);
}

static void fill_queue(struct queue *queue, uint64_t next, uint64_t end) {
        atomic_store_explicit(&queue->next, next, memory_order_relaxed);
        queue->end = end;
}

/* How far a queue is */
static uint64_t queue_next(const struct queue *queue) {
        return CKV_MIN(atomic_load_explicit(&queue->next, memory_order_relaxed), queue->end);
}

uint32_t ckv__cpu_pool_run(struct ckv_cpu_pool *pool, ckv_cpu_work work, void *context, uint32_t first, uint32_t end,
                           uint64_t until_nsec) {
        struct queue *anywhere = &pool->queues[pool->queue_count - 1];

        if (first >= end)
                return end;
        (void)pthread_mutex_lock(&pool->mutex);
        for (uint32_t q = 0; q + 1 < pool->queue_count; q++)
                fill_queue(&pool->queues[q], 0, 0);
        fill_queue(anywhere, first, end);
        pool->order = NULL;
        run_round(pool, work, context, pool->threads == 1 || end - first < 2, until_nsec);
        return (uint32_t)queue_next(anywhere);
}

/* Sort the next stretch of a list into queues. */
static void sort(struct ckv_cpu_pool *pool, ckv_cpu_where where, const void *context, uint32_t first, uint32_t end,
                 struct ckv_cpu_near *near) {
        uint8_t queue_of[CKV_CPU_NEAR_MOST] = { 0 };
        uint16_t count[CKV_CPU_NODES_MOST + 1] = { 0 }, at = 0;

        near->first = first;
        near->count = CKV_MIN(end - first, CKV_CPU_NEAR_MOST);
        ckv__cpu_nodes_refresh(pool->nodes);
        for (uint32_t i = 0; i < near->count; i++) {
                const void *memory = where(context, first + i);
                uint32_t node = memory ? ckv__cpu_nodes_of(pool->nodes, memory) : CKV_CPU_ANYWHERE;

                queue_of[i] = (uint8_t)CKV_MIN(node, pool->queue_count - 1);
                count[queue_of[i]]++;
        }
        for (uint32_t q = 0; q < pool->queue_count; at = (uint16_t)(at + count[q++]))
                near->next[q] = near->end[q] = at;
        for (uint32_t i = 0; i < near->count; i++)
                near->order[near->end[queue_of[i]]++] = (uint16_t)i;
}

uint32_t ckv__cpu_pool_run_near(struct ckv_cpu_pool *pool, ckv_cpu_work work, ckv_cpu_where where, void *context,
                                struct ckv_cpu_near *near, uint32_t first, uint32_t end, uint64_t until_nsec) {
        uint32_t left = 0, done = 0;

        if (pool->queue_count == 1 || !where || first >= end)
                return ckv__cpu_pool_run(pool, work, context, first, end, until_nsec);
        if (near->count == 0)
                sort(pool, where, context, first, end, near);
        (void)pthread_mutex_lock(&pool->mutex);
        for (uint32_t q = 0; q < pool->queue_count; q++) {
                fill_queue(&pool->queues[q], near->next[q], near->end[q]);
                left += (uint32_t)(near->end[q] - near->next[q]);
        }
        pool->order = near->order;
        pool->first = near->first;
        run_round(pool, work, context, left < 2, until_nsec);
        for (uint32_t q = 0; q < pool->queue_count; q++) {
                near->next[q] = (uint16_t)queue_next(&pool->queues[q]);
                done += near->next[q] == near->end[q];
        }
        if (done < pool->queue_count)
                return near->first;
        first = near->first + near->count;
        near->count = 0;
        return first;
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

int ckv__cpu_pool_new_on(uint32_t threads, struct ckv_cpu_nodes *nodes, enum ckv_cpu_pin pin, struct ckv_cpu_pool **ret_pool) {
        /* one thread is near nothing all the time */
        uint32_t count = nodes && threads > 1 ? ckv__cpu_nodes_count(nodes) : 1, queues = count == 1 ? 1 : count + 1;
        struct ckv_cpu_pool *pool = calloc(1, sizeof(*pool) + queues * sizeof(pool->queues[0]));
        int r = -ENOMEM;

        if (!pool)
                return ckv_error_origin(-ENOMEM);
        (void)pthread_mutex_init(&pool->mutex, NULL);
        (void)pthread_cond_init(&pool->wake, NULL);
        (void)pthread_cond_init(&pool->idle, NULL);
        pool->threads = threads;
        pool->nodes = nodes;
        pool->pin = pin;
        pool->queue_count = queues;
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

int ckv__cpu_pool_new(uint32_t threads, struct ckv_cpu_pool **ret_pool) {
        return ckv_error_trace(ckv__cpu_pool_new_on(threads, NULL, CKV_CPU_PIN_OFF, ret_pool));
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
