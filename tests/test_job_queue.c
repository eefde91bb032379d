/*
 * The queue between event loop and device thread (kernels/job_queue.h), with a
 * device that computes nothing.  Its bell is the matter: rung outside the mutex,
 * by one write and one read for a wake-up; late, when the job is gone already;
 * lost; and without a job, when the device is.
 *
 * write() is wrapped: what the device thread writes can be held back or fail.  A
 * wake-up that is lost shows as a sleep to its end, which is far off.
 */
#include "base/macros.h"
#include "kernels/job_queue.h"

#include <check.h>
#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum {
        ROUNDS = CKV_SANITIZED ? 2000 : 20000,
        JOBS = 5,
        TRIES = 3,                      /* of a ring */
        FAR_MSEC = 60000,               /* no machine is that slow */
};

struct device {
        struct ckv_backend backend;     /* first */
        uint32_t again;                 /* times that begin() asks to be tried again */
        _Atomic int code;               /* look() says that it is lost */
        struct ckv_job *jobs[JOBS];
};

static _Thread_local struct device *of_device;  /* this is its thread */
static _Atomic bool hold;                       /* what it writes waits */
static _Atomic int fail;                        /* so many writes of it fail */
static _Atomic uint32_t writes, locked, reads, empty_reads;

ssize_t __real_write(int fd, const void *bytes, size_t count);
ssize_t __wrap_write(int fd, const void *bytes, size_t count);
ssize_t __real_read(int fd, void *ret_bytes, size_t count);
ssize_t __wrap_read(int fd, void *ret_bytes, size_t count);

ssize_t __wrap_write(int fd, const void *bytes, size_t count) {
        if (!of_device)
                return __real_write(fd, bytes, count);
        if (pthread_mutex_trylock(&of_device->backend.mutex) == 0)
                (void)pthread_mutex_unlock(&of_device->backend.mutex);
        else
                (void)atomic_fetch_add(&locked, 1);
        while (atomic_load(&hold))
                (void)sched_yield();
        if (atomic_load(&fail) > 0) {
                (void)atomic_fetch_sub(&fail, 1);
                errno = ENOMEM;
                return -1;
        }
        (void)atomic_fetch_add(&writes, 1);
        return __real_write(fd, bytes, count);
}

ssize_t __wrap_read(int fd, void *ret_bytes, size_t count) {
        ssize_t n = __real_read(fd, ret_bytes, count);

        if (!of_device) {
                (void)atomic_fetch_add(&reads, 1);
                (void)atomic_fetch_add(&empty_reads, n < 0);
        }
        return n;
}

static bool begin(struct ckv_backend *backend, struct ckv_job *job) {
        struct device *device = (struct device *)backend;

        ck_assert_ptr_null(job->backend_state);
        if (device->again > 0) {
                device->again--;
                return false;
        }
        job->outcome = CKV_JOB_OK;
        job->backend_state = job->fair_key == 0 ? NULL : job;
        return true;
}

static bool step(struct ckv_backend *backend, struct ckv_job *job, uint64_t until_nsec) {
        (void)backend;
        (void)until_nsec;
        /* some jobs take two slices */
        job->fail_unit++;
        return job->fail_unit % 2 == 0 || job->fair_key != 2;
}

static void end(struct ckv_job *job) {
        job->backend_state = NULL;
}

static void look(struct ckv_backend *backend) {
        struct device *device = (struct device *)backend;

        if (atomic_load(&device->code) && !atomic_load(&backend->lost))
                ckv__queue_lose(backend, atomic_load(&device->code));
}

static bool serve(struct ckv_backend *backend, struct ckv_import *import) {
        return import->owner != backend;
}

static void *device_main(void *p) {
        of_device = p;
        ckv__queue_run(p);
        return NULL;
}

static void device_open(struct device *device) {
        static const struct ckv_queue_hooks hooks = { .begin = begin, .step = step, .end = end, .look = look, .serve = serve };

        *device = (struct device){ .again = 0 };
        ck_assert_int_eq(ckv__queue_init(&device->backend, &hooks, 0), 0);
        ck_assert_int_eq(ckv__queue_start(&device->backend, device_main), 0);
        for (uint32_t i = 0; i < JOBS; i++) {
                device->jobs[i] = ckv_job_new(0);
                ck_assert_ptr_nonnull(device->jobs[i]);
                device->jobs[i]->deadline_nsec = UINT64_MAX;
                device->jobs[i]->fair_key = i % 3;
        }
}

static void device_close(struct device *device) {
        ckv__queue_stop(&device->backend);
        ckv__queue_deinit(&device->backend);
        for (uint32_t i = 0; i < JOBS; i++)
                (void)ckv_job_free(device->jobs[i]);
}

static bool rings(const struct device *device, int msec) {
        struct pollfd done = { .fd = ckv__queue_wait_fd(&device->backend), .events = POLLIN };

        return poll(&done, 1, msec) == 1;
}

/* Until every ring that was promised has come, and has been hushed. */
static void settle(struct device *device) {
        bool ringing = true;

        while (ringing) {
                (void)pthread_mutex_lock(&device->backend.mutex);
                ringing = device->backend.ringing;
                (void)pthread_mutex_unlock(&device->backend.mutex);
                if (ringing) {
                        ck_assert(rings(device, FAR_MSEC));
                        ck_assert_ptr_null(ckv__queue_reap(&device->backend));
                }
        }
        ck_assert(!rings(device, 0));
}

/* A job for each wake-up: one write, outside the mutex, and one read, which finds something. */
START_TEST(one_write_one_read) {
        struct device device;

        device_open(&device);
        for (uint32_t i = 0; i < ROUNDS; i++) {
                struct ckv_job *job = device.jobs[i % JOBS];

                job->stage = i % 2 ? CKV_STAGE_MOVE : CKV_STAGE_PLAN;
                ckv__queue_submit(&device.backend, job);
                ck_assert(rings(&device, FAR_MSEC));
                ck_assert_ptr_eq(ckv__queue_reap(&device.backend), job);
                ck_assert_ptr_null(ckv__queue_reap(&device.backend));
                ck_assert_ptr_null(ckv__queue_reap_import(&device.backend));
                ck_assert_int_eq(job->outcome, CKV_JOB_OK);
        }
        ck_assert(!rings(&device, 0));
        ck_assert_uint_eq(atomic_load(&writes), ROUNDS);
        ck_assert_uint_eq(atomic_load(&reads), ROUNDS);
        ck_assert_uint_eq(atomic_load(&empty_reads), 0);
        ck_assert_uint_eq(atomic_load(&locked), 0);
        device_close(&device);
}
END_TEST

/* Jobs and imports at once, and a loop that takes one, or all, and does not always wait: rings and hushes meet in every order. */
START_TEST(nothing_is_lost) {
        struct ckv_import import = { .kind = CKV_IMPORT_CLOSE };
        uint32_t inside = 0, done = 0, imports = 0, asked = 0;
        struct device device;

        device_open(&device);
        for (uint32_t i = 0; done < ROUNDS || inside > 0; i++) {
                struct ckv_job *job;

                if (inside == 0 && done < ROUNDS)
                        for (; inside <= i % JOBS; inside++)
                                ckv__queue_submit(&device.backend, device.jobs[inside]);
                if (asked == imports && i % 4 == 0) {
                        asked++;
                        ckv__queue_import(&device.backend, &import);
                }
                if (i % 3 && inside > 0)
                        ck_assert(rings(&device, FAR_MSEC));
                while ((job = ckv__queue_reap(&device.backend))) {
                        ck_assert_int_eq(job->outcome, CKV_JOB_OK);
                        inside--;
                        done++;
                        if (i % 2)
                                break;
                }
                imports += ckv__queue_reap_import(&device.backend) != NULL;
        }
        for (; imports < asked; imports += ckv__queue_reap_import(&device.backend) != NULL)
                ck_assert(rings(&device, FAR_MSEC));
        settle(&device);
        device_close(&device);
}
END_TEST

/* The loop comes by before the ring: it is woken once more, and then no more. */
START_TEST(late_ring) {
        struct device device;

        device_open(&device);
        for (uint32_t i = 0; i < 20; i++) {
                atomic_store(&hold, true);
                ckv__queue_submit(&device.backend, device.jobs[0]);
                while (!ckv__queue_reap(&device.backend))
                        (void)sched_yield();
                ck_assert(!rings(&device, 0));
                /* handed over while the device thread is at its ring: that one is not taken for its own */
                if (i % 2)
                        ckv__queue_submit(&device.backend, device.jobs[1]);
                atomic_store(&hold, false);
                ck_assert(rings(&device, FAR_MSEC));
                while (i % 2 && !ckv__queue_reap(&device.backend))
                        ck_assert(rings(&device, FAR_MSEC));
                ck_assert_ptr_null(ckv__queue_reap(&device.backend));
                ck_assert(i % 2 || !rings(&device, 0));
                settle(&device);
        }
        device_close(&device);
}
END_TEST

/* A ring that fails is made up for, and afterwards all is as before. */
START_TEST(lost_ring) {
        struct device device;

        device_open(&device);
        for (uint32_t i = 0; i < 4; i++) {
                /* the second time that of the idle device as well; the others go at once */
                atomic_store(&fail, i == 0 ? TRIES : i == 1 ? 2 * TRIES : 0);
                ckv__queue_submit(&device.backend, device.jobs[1]);
                ck_assert(rings(&device, FAR_MSEC));
                ck_assert_ptr_eq(ckv__queue_reap(&device.backend), device.jobs[1]);
                ck_assert_int_eq(atomic_load(&fail), 0);
                ck_assert(!rings(&device, 0));
        }
        device_close(&device);
}
END_TEST

/* A device that is lost tells so without a job; what is inside and what comes ends with that. */
START_TEST(lost_device) {
        struct ckv_import import = { .kind = CKV_IMPORT_CLOSE }, own = { .kind = CKV_IMPORT_CLOSE };
        struct ckv_backend_health health;
        struct device device;

        device_open(&device);
        own.owner = &device.backend;
        ckv__queue_health(&device.backend, &health);
        ck_assert(!health.lost);
        atomic_store(&device.code, 700);
        ck_assert(rings(&device, FAR_MSEC));
        ck_assert_ptr_null(ckv__queue_reap(&device.backend));
        ck_assert(!rings(&device, 0));
        ckv__queue_health(&device.backend, &health);
        ck_assert(health.lost && health.lost_code == 700);
        for (uint32_t i = 0; i < JOBS; i++) {
                device.jobs[i]->stage = i % 2 ? CKV_STAGE_MOVE : CKV_STAGE_PLAN;
                ckv__queue_submit(&device.backend, device.jobs[i]);
        }
        for (uint32_t i = 0; i < JOBS; i++) {
                struct ckv_job *job;

                while (!(job = ckv__queue_reap(&device.backend)))
                        ck_assert(rings(&device, FAR_MSEC));
                ck_assert_int_eq(job->outcome, CKV_JOB_DEVICE_LOST);
                ck_assert_int_eq(job->fail_code, 700);
        }
        ckv__queue_import(&device.backend, &own);
        ckv__queue_import(&device.backend, &import);
        while (!ckv__queue_reap_import(&device.backend))
                ck_assert(rings(&device, FAR_MSEC));
        ck_assert_ptr_null(ckv__queue_reap_import(&device.backend));
        ckv__queue_health(&device.backend, &health);
        ck_assert_uint_eq(health.queued + health.running, 0);
        device_close(&device);
}
END_TEST

/* begin() that is tried again has the job queued, not running, and the times of the last try. */
START_TEST(begun_again) {
        struct ckv_backend_health health;
        struct device device;

        device_open(&device);
        device.again = 3;
        device.jobs[1]->stage = CKV_STAGE_MOVE;
        ckv__queue_submit(&device.backend, device.jobs[1]);
        ck_assert(rings(&device, FAR_MSEC));
        ck_assert_ptr_eq(ckv__queue_reap(&device.backend), device.jobs[1]);
        ck_assert_uint_eq(device.again, 0);
        /* one slice, and those before it */
        ck_assert_uint_le(device.jobs[1]->move_nsec, device.jobs[1]->device_nsec);
        ckv__queue_health(&device.backend, &health);
        ck_assert_uint_eq(health.queued + health.running, 0);
        device_close(&device);
}
END_TEST

int main(void) {
        Suite *suite = suite_create("job_queue");
        TCase *tcase = tcase_create("job_queue");
        SRunner *runner = srunner_create(suite);
        int failed;

        suite_add_tcase(suite, tcase);
        tcase_set_timeout(tcase, 300);
        tcase_add_test(tcase, one_write_one_read);
        tcase_add_test(tcase, nothing_is_lost);
        tcase_add_test(tcase, late_ring);
        tcase_add_test(tcase, lost_ring);
        tcase_add_test(tcase, lost_device);
        tcase_add_test(tcase, begun_again);
        srunner_run_all(runner, CK_ENV);
        failed = srunner_ntests_failed(runner);
        srunner_free(runner);
        return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
