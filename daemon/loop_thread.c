/*
 * Who is the event loop thread?  The first caller: start-up code runs on it
 * before any other thread exists.  Backend threads that stray into tenants,
 * sessions or requests are caught here, in builds with assertions.
 */
#include "daemon/daemon.h"

#ifndef NDEBUG
#include <pthread.h>
#include <stdatomic.h>

void ckv_assert_loop_thread(void) {
        static _Atomic pthread_t loop_thread;
        pthread_t self = pthread_self(), expected = 0;  /* a request asks some twenty times: no system call */

        /* relaxed: only the number itself matters */
        if (!atomic_compare_exchange_strong_explicit(&loop_thread, &expected, self, memory_order_relaxed, memory_order_relaxed))
                assert(expected == self);
}
#endif
