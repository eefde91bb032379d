/*
 * Bells between threads (kernels/bell.h): what was handed over is always
 * looked at, however rings and hushes meet; a ring never blocks; and a ring that
 * is lost, for which write() fails here, costs the device half a second and not
 * the job.
 *
 * A wake-up that is lost shows as a sleep to its end, which is far off: so no
 * time is measured, and slow machines pass.
 */
#include "base/clock.h"
#include "base/macros.h"
#include "kernels/backend.h"
#include "kernels/bell.h"
#include "tests/support_endless.h"

#include <check.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/time.h>
#include <unistd.h>

enum {
        ROUNDS = CKV_SANITIZED ? 2000 : 10000,
        PRODUCERS = 3,
        FAR_MSEC = 60000,               /* no machine is that slow */
        TRIES = 3,                      /* of a ring */
};

/* Writes to go through, and then those that fail; -1: all go through */
static _Atomic int writes_good = -1, writes_bad;

ssize_t __real_write(int fd, const void *bytes, size_t count);
ssize_t __wrap_write(int fd, const void *bytes, size_t count);

ssize_t __wrap_write(int fd, const void *bytes, size_t count) {
        if (atomic_load(&writes_good) > 0)
                (void)atomic_fetch_sub(&writes_good, 1);
        else if (atomic_load(&writes_good) == 0 && atomic_load(&writes_bad) > 0) {
                (void)atomic_fetch_sub(&writes_bad, 1);
                errno = ENOMEM;
                return -1;
        }
        return __real_write(fd, bytes, count);
}

static bool rings(const struct ckv_bell *bell) {
        struct pollfd look = { .fd = bell->wait_fd, .events = POLLIN };

        return poll(&look, 1, 0) == 1;
}

START_TEST(rings_until_hushed) {
        struct ckv_bell bell;

        ck_assert_int_eq(ckv__bell_init(&bell), 0);
        ck_assert(!rings(&bell));
        ck_assert(!ckv__bell_hush(&bell));
        ck_assert(!ckv__bell_await(&bell, 0));
        ckv__bell_ring(&bell);
        ck_assert(rings(&bell));
        ck_assert(ckv__bell_await(&bell, FAR_MSEC));
        ck_assert(rings(&bell));
        ck_assert(ckv__bell_hush(&bell));
        ck_assert(!rings(&bell));
        ckv__bell_deinit(&bell);
        ck_assert_int_eq(bell.wait_fd, -1);
        ckv__bell_deinit(&bell);
}
END_TEST

/* Any number of rings does not block, not even a full pipe, and one hush is enough for all. */
START_TEST(hushed_after_many) {
        static const uint32_t counts[] = { 1, 63, 64, 65, 128, 1000, 200000 };
        struct ckv_bell bell;

        ck_assert_int_eq(ckv__bell_init(&bell), 0);
        for (uint32_t n = 0; n < CKV_ARRAY_SIZE(counts); n++) {
                for (uint32_t i = 0; i < counts[n]; i++)
                        ckv__bell_ring(&bell);
                ck_assert(ckv__bell_hush(&bell));
                ck_assert(!rings(&bell));
                ck_assert(!ckv__bell_hush(&bell));
        }
        ckv__bell_deinit(&bell);
        ckv__bell_ring(&bell);
}
END_TEST

START_TEST(no_descriptors_left) {
        struct ckv_bell bell = { .wait_fd = 7, .ring_fd = 7 };
        struct rlimit before, none;
        int r;

        ck_assert_int_eq(getrlimit(RLIMIT_NOFILE, &before), 0);
        none = (struct rlimit){ .rlim_cur = 0, .rlim_max = before.rlim_max };
        ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &none), 0);
        r = ckv__bell_init(&bell);
        ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &before), 0);
        ck_assert_int_eq(r, -EMFILE);
        ck_assert_int_eq(bell.wait_fd, -1);
        ck_assert_int_eq(bell.ring_fd, -1);
}
END_TEST

/* A box as the queue has one for the device thread: things are put in under a mutex, and the first one rings. */
struct box {
        pthread_mutex_t mutex;
        struct ckv_bell bell;
        uint32_t inside;                /* under mutex */
};

static void box_init(struct box *box) {
        (void)pthread_mutex_init(&box->mutex, NULL);
        box->inside = 0;
        ck_assert_int_eq(ckv__bell_init(&box->bell), 0);
}

static void box_deinit(struct box *box) {
        ckv__bell_deinit(&box->bell);
        (void)pthread_mutex_destroy(&box->mutex);
}

static void box_put(struct box *box) {
        bool first;

        (void)pthread_mutex_lock(&box->mutex);
        first = box->inside++ == 0;
        (void)pthread_mutex_unlock(&box->mutex);
        if (first)
                ckv__bell_ring(&box->bell);
}

/* Return: what was in it; 0: nobody rang for FAR_MSEC, or for nothing, which is fine */
static uint32_t box_take(struct box *box, bool *lost) {
        uint64_t start = ckv_now_nsec();
        uint32_t taken;

        (void)ckv__bell_await(&box->bell, FAR_MSEC);
        (void)ckv__bell_hush(&box->bell);
        (void)pthread_mutex_lock(&box->mutex);
        taken = box->inside;
        box->inside = 0;
        (void)pthread_mutex_unlock(&box->mutex);
        if (ckv_now_nsec() - start >= FAR_MSEC * CKV_NSEC_PER_MSEC)
                *lost = true;
        return taken;
}

struct pair {
        struct box there, back;
        bool lost;
};

static void *answer_main(void *p) {
        struct pair *pair = p;

        for (uint32_t got = 0; got < ROUNDS && !pair->lost; got++) {
                while (box_take(&pair->there, &pair->lost) == 0 && !pair->lost)
                        ;
                box_put(&pair->back);
        }
        return NULL;
}

/* There and back: each sleeps while the other works. */
START_TEST(there_and_back) {
        struct pair pair = { .lost = false };
        bool lost = false;
        pthread_t thread;

        box_init(&pair.there);
        box_init(&pair.back);
        ck_assert_int_eq(pthread_create(&thread, NULL, answer_main, &pair), 0);
        for (uint32_t i = 0; i < ROUNDS && !lost; i++) {
                box_put(&pair.there);
                while (box_take(&pair.back, &lost) == 0 && !lost)
                        ;
        }
        ck_assert_int_eq(pthread_join(thread, NULL), 0);
        ck_assert(!lost && !pair.lost);
        box_deinit(&pair.there);
        box_deinit(&pair.back);
}
END_TEST

static void *producer_main(void *p) {
        for (uint32_t i = 0; i < ROUNDS; i++)
                box_put(p);
        return NULL;
}

/* Several who ring as fast as they can, and one who takes: rings and hushes meet in every order. */
START_TEST(many_to_one) {
        pthread_t threads[PRODUCERS];
        struct box box;
        uint32_t taken = 0;
        bool lost = false;

        box_init(&box);
        for (uint32_t i = 0; i < PRODUCERS; i++)
                ck_assert_int_eq(pthread_create(&threads[i], NULL, producer_main, &box), 0);
        while (taken < PRODUCERS * ROUNDS && !lost)
                taken += box_take(&box, &lost);
        for (uint32_t i = 0; i < PRODUCERS; i++)
                ck_assert_int_eq(pthread_join(threads[i], NULL), 0);
        ck_assert(!lost);
        ck_assert_uint_eq(taken, PRODUCERS * ROUNDS);
        box_deinit(&box);
}
END_TEST

/* A first try that fails is made up for by the next; the ring of a job that comes, or of one that is done, may be lost whole. */
START_TEST(lost_rings) {
        static const struct { int good, bad; } cases[] = { { 0, 1 }, { 0, TRIES }, { 1, TRIES }, { 0, 2 * TRIES } };
        const struct ckv_backend_ops *ops = &ckv_backend_cpu;
        const struct ckv_backend_options options = { .threads = 1, .path = "scalar" };
        struct ckv_backend *backend = NULL;

        ck_assert_int_eq(ops->open(&options, &backend), 0);
        for (uint32_t i = 0; i < CKV_ARRAY_SIZE(cases); i++) {
                struct pollfd done = { .fd = ops->wait_fd(backend), .events = POLLIN };
                struct endless e;

                endless_init(&e, 200, 1, 1);
                atomic_store(&writes_bad, cases[i].bad);
                atomic_store(&writes_good, cases[i].good);
                ops->submit(backend, e.job);
                ck_assert_int_eq(poll(&done, 1, FAR_MSEC), 1);
                ck_assert_ptr_eq(ops->reap(backend), e.job);
                ck_assert_int_eq(e.job->outcome, CKV_JOB_OK);
                ck_assert_int_eq(atomic_load(&writes_bad), 0);
                ck_assert_int_eq(poll(&done, 1, 0), 0);
                endless_deinit(&e);
        }
        (void)ops->close(backend);
}
END_TEST

int main(void) {
        Suite *suite = suite_create("bell");
        TCase *tcase = tcase_create("bell");
        SRunner *runner = srunner_create(suite);
        int failed;

        suite_add_tcase(suite, tcase);
        tcase_set_timeout(tcase, 300);
        tcase_add_test(tcase, rings_until_hushed);
        tcase_add_test(tcase, hushed_after_many);
        tcase_add_test(tcase, no_descriptors_left);
        tcase_add_test(tcase, there_and_back);
        tcase_add_test(tcase, many_to_one);
        tcase_add_test(tcase, lost_rings);
        srunner_run_all(runner, CK_ENV);
        failed = srunner_ntests_failed(runner);
        srunner_free(runner);
        return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
