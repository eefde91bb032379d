/*
 * Turns between keys by measured time.  A simulated device gives each job the
 * slices that a test says; only who is next is looked at.  The last test asks
 * the real device.
 */
#include "base/clock.h"
#include "base/macros.h"
#include "kernels/backend.h"
#include "kernels/turns.h"
#include "tests/support_endless.h"

#include <check.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>

#define MSEC CKV_NSEC_PER_MSEC
#define QUANTUM (2 * MSEC)

static struct ckv_turns turns;
static struct ckv_job jobs[4096];

static void setup(void) {
        ckv__turns_init(&turns, QUANTUM);
}

static struct ckv_job *add(uint32_t index, uint64_t key) {
        struct ckv_jobs list;

        ckv__jobs_init(&list);
        jobs[index] = (struct ckv_job){ .fair_key = key };
        ckv__jobs_append(&list, &jobs[index]);
        ckv__turns_add(&turns, &list);
        ck_assert_ptr_null(list.first);
        return &jobs[index];
}

/* slice() - the next slice, which takes as long as @nsec[key] says. Return: the job that had it. */
static struct ckv_job *slice(const uint64_t *nsec) {
        struct ckv_job *job = ckv__turns_next(&turns);

        ck_assert_ptr_nonnull(job);
        ck_assert_int_gt(job->turn_nsec, 0);
        ckv__turns_spend(&turns, job, nsec[job->fair_key]);
        return job;
}

/* run() - slices until @until of the device is used; sums the time of each key */
static void run(const uint64_t *nsec, uint64_t until, uint64_t *sum) {
        for (uint64_t used = 0; used < until;) {
                uint64_t key = slice(nsec)->fair_key;

                sum[key] += nsec[key];
                used += nsec[key];
        }
}

/* Slices of 40 ms, 2 ms and a tenth of one: equal time all the same. */
START_TEST(equal_time_for_unequal_slices) {
        static const uint64_t nsec[] = { 40 * MSEC, 2 * MSEC + 1000, MSEC / 10 };
        uint64_t sum[3] = { 0 };
        uint32_t keys = _i == 0 ? 3 : 2;

        for (uint32_t i = 0; i < 12; i++)
                (void)add(i, i % 3 < keys ? i % 3 : 0);
        run(nsec, 20000 * MSEC, sum);
        for (uint32_t key = 0; key < keys; key++)
                ck_assert_msg(sum[key] * 100 > 20000 * MSEC / keys * 98 && sum[key] * 100 < 20000 * MSEC / keys * 102,
                              "key %u had %lu ms of 20000", key, (unsigned long)(sum[key] / MSEC));
}
END_TEST

START_TEST(one_key_in_order) {
        static const uint64_t nsec[] = { 3 * MSEC };

        for (uint32_t i = 0; i < 5; i++)
                (void)add(i, 0);
        for (uint32_t i = 0; i < 5; i++) {
                for (int n = 0; n < 7; n++)
                        ck_assert_ptr_eq(slice(nsec), &jobs[i]);
                ckv__turns_remove(&turns, &jobs[i]);
        }
        ck_assert_ptr_null(ckv__turns_next(&turns));
}
END_TEST

/* However many users are busy, a newcomer's slice is the next. */
START_TEST(newcomer_goes_first) {
        struct ckv_job *job;
        uint64_t nsec[32];

        for (uint32_t i = 0; i < CKV_ARRAY_SIZE(nsec); i++)
                nsec[i] = 2 * MSEC;
        for (uint32_t i = 0; i < 240; i++)
                (void)add(i, i % 30);
        for (int i = 0; i < 100; i++)
                (void)slice(nsec);
        job = add(240, 30);
        ck_assert_ptr_eq(slice(nsec), job);
        ckv__turns_remove(&turns, job);
        ck_assert(slice(nsec)->fair_key < 30);
}
END_TEST

/* Coming and going: one job at a time, the next one a moment after the answer. No more than its part. */
START_TEST(coming_and_going_gains_nothing) {
        uint64_t nsec[10], sum[10] = { 0 }, used = 0;
        struct ckv_job *short_one;
        uint32_t hogs = (uint32_t)_i;

        for (uint32_t i = 0; i < 9; i++)
                nsec[i] = 2 * MSEC;
        nsec[9] = 1900000;
        for (uint32_t i = 0; i < hogs; i++)
                (void)add(i, i);
        short_one = add(9, 9);
        while (used < 10000 * MSEC) {
                struct ckv_job *job = slice(nsec);

                sum[job->fair_key] += nsec[job->fair_key];
                used += nsec[job->fair_key];
                if (job == short_one) {
                        ckv__turns_remove(&turns, job);
                        /* answered and asked again within the slice of another */
                        job = slice(nsec);
                        sum[job->fair_key] += nsec[job->fair_key];
                        used += nsec[job->fair_key];
                        short_one = add(9, 9);
                }
        }
        ck_assert_msg(sum[9] * 100 < used / (hogs + 1) * 105, "%lu of %lu ms with %u others", (unsigned long)(sum[9] / MSEC),
                      (unsigned long)(used / MSEC), hogs);
        ck_assert_msg(sum[9] * 100 > used / (hogs + 1) * 60, "%lu of %lu ms with %u others", (unsigned long)(sum[9] / MSEC),
                      (unsigned long)(used / MSEC), hogs);
}
END_TEST

/* What a key had while nobody else wanted anything is not held against it. */
START_TEST(idle_device_settles_all) {
        static const uint64_t nsec[] = { 50 * MSEC, 2 * MSEC };
        struct ckv_job *a, *b;

        a = add(0, 0);
        b = add(1, 1);
        ck_assert_ptr_eq(slice(nsec), b);
        ck_assert_ptr_eq(slice(nsec), a);
        ckv__turns_remove(&turns, a);
        ck_assert_int_lt(turns.left[0].balance_nsec, 0);
        ckv__turns_remove(&turns, b);
        ck_assert_int_eq(turns.left[0].balance_nsec, 0);
        (void)add(1, 1);
        a = add(0, 0);
        ck_assert_ptr_eq(ckv__turns_next(&turns), a);
}
END_TEST

/* More users than can be remembered: nothing breaks, nothing grows. */
START_TEST(many_keys) {
        uint64_t state = 1;
        uint32_t inside = 0;

        for (int step = 0; step < 200000; step++) {
                uint32_t index = (uint32_t)(rand() % (int)CKV_ARRAY_SIZE(jobs)) % 300;

                state = state * UINT64_C(6364136223846793005) + 1;
                if (jobs[index].owner) {
                        if (state >> 62 == 0) {
                                struct ckv_job *job = ckv__turns_next(&turns);

                                ckv__turns_spend(&turns, job, state % (30 * MSEC));
                        } else {
                                ckv__turns_remove(&turns, &jobs[index]);
                                jobs[index].owner = NULL;
                                inside--;
                        }
                } else {
                        add(index, index % 150)->owner = &jobs[index];
                        inside++;
                }
                if (step % 1000 == 0) {
                        uint32_t n = 0, keys = 0;
                        uint64_t seen[300];

                        for (struct ckv_job *job = turns.jobs.first; job; job = job->next, n++) {
                                if (keys && seen[keys - 1] == job->fair_key)
                                        continue;
                                for (uint32_t i = 0; i < keys; i++)
                                        ck_assert_uint_ne(seen[i], job->fair_key);
                                seen[keys++] = job->fair_key;
                        }
                        ck_assert_uint_eq(n, inside);
                }
        }
}
END_TEST

/* The device itself: slices of one item, a long one for the one key, a short one for the other. */
START_TEST(device_time_is_halved) {
        struct ckv_backend_options options = { .threads = 1, .slice_usec = 100 };
        const struct ckv_backend_ops *ops = &ckv_backend_cpu;
        struct timespec time = { .tv_sec = 1, .tv_nsec = 500000000 };
        struct ckv_backend *backend;
        struct endless coarse, fine, small;
        struct pollfd done;
        uint64_t start, waited;

        ck_assert_int_eq(ops->open(&options, &backend), 0);
        endless_init(&coarse, 1000000, 512, 1);
        endless_init(&fine, 1000000, 16, 2);
        endless_init(&small, 64, 1, 3);
        ops->submit(backend, coarse.job);
        ops->submit(backend, fine.job);
        (void)nanosleep(&time, NULL);
        start = ckv_now_nsec();
        ops->submit(backend, small.job);
        done = (struct pollfd){ .fd = ops->wait_fd(backend), .events = POLLIN };
        ck_assert_int_eq(poll(&done, 1, 60000), 1);
        waited = ckv_now_nsec() - start;
        ck_assert_ptr_eq(ops->reap(backend), small.job);
        ops->cancel(backend, coarse.job);
        ops->cancel(backend, fine.job);
        for (int i = 0; i < 2; i++) {
                ck_assert_int_eq(poll(&done, 1, 60000), 1);
                ck_assert_ptr_nonnull(ops->reap(backend));
        }
        printf("device: %.1f ms for long slices, %.1f ms for short ones; the small job took %.2f ms\n",
               (double)coarse.job->device_nsec / 1e6, (double)fine.job->device_nsec / 1e6, (double)waited / 1e6);
        ck_assert_uint_gt(coarse.job->device_nsec, 300 * MSEC);
        ck_assert_uint_lt(coarse.job->device_nsec * 10, fine.job->device_nsec * 11);
        ck_assert_uint_lt(fine.job->device_nsec * 10, coarse.job->device_nsec * 11);
        ck_assert_uint_lt(waited, 200 * MSEC);
        (void)ops->close(backend);
        endless_deinit(&coarse);
        endless_deinit(&fine);
        endless_deinit(&small);
}
END_TEST

int main(void) {
        Suite *suite = suite_create("turns");
        TCase *tcase = tcase_create("turns");
        SRunner *runner = srunner_create(suite);
        int failed;

        suite_add_tcase(suite, tcase);
        tcase_add_checked_fixture(tcase, setup, NULL);
        tcase_set_timeout(tcase, 120);
        tcase_add_loop_test(tcase, equal_time_for_unequal_slices, 0, 2);
        tcase_add_test(tcase, one_key_in_order);
        tcase_add_test(tcase, newcomer_goes_first);
        tcase_add_loop_test(tcase, coming_and_going_gains_nothing, 1, 8);
        tcase_add_test(tcase, idle_device_settles_all);
        tcase_add_test(tcase, many_keys);
        tcase_add_test(tcase, device_time_is_halved);
        srunner_run_all(runner, CK_ENV);
        failed = srunner_ntests_failed(runner);
        srunner_free(runner);
        return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
