/*
 * Jobs are handed to the backend and waited for, as the daemon's loop does it;
 * so slices, turns and the pool's way of sharing out items are in the times.
 */
#include "bench/device.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct ckv_backend_ops *const ops = &ckv_backend_cpu;

bool bench_device_open(const char *path, uint32_t threads, uint64_t scratch_bytes, struct bench_device *ret_device) {
        const struct ckv_backend_options options = { .threads = threads, .path = path, .scratch_bytes = scratch_bytes };
        struct ckv_backend *backend;
        int r = ops->open(&options, &backend);

        if (r == -EOPNOTSUPP)
                return false;
        if (r < 0) {
                (void)fprintf(stderr, "the device does not open: %s\n", strerror(-r));
                exit(EXIT_FAILURE);
        }
        bench_pin_others(threads);
        *ret_device = (struct bench_device){ .backend = backend, .threads = threads };
        return true;
}

void bench_device_close(struct bench_device *device) {
        device->backend = ops->close(device->backend);
}

struct bench_plan_times bench_device_plan(const struct bench_device *device, struct ckv_job *job) {
        struct pollfd done = { .fd = ops->wait_fd(device->backend), .events = POLLIN };
        struct bench_mark mark = bench_begin();
        struct bench_plan_times times;
        struct bench_span span;
        double layers = job->groups[0].layer_count;

        ops->submit(device->backend, job);
        while (ops->reap(device->backend) != job)
                (void)poll(&done, 1, -1);
        span = bench_end(&mark, device->threads);
        if (job->outcome != CKV_JOB_OK) {
                (void)fprintf(stderr, "a job ended with outcome %d, unit %u\n", (int)job->outcome, job->fail_unit);
                exit(EXIT_FAILURE);
        }
        times.select = 1e-9 * (double)job->select_nsec / layers;
        times.stolen = span.stolen;
        /* selection is one thread's work */
        times.score = bench_by_cpu_time() ? span.seconds / layers - times.select / device->threads
                                          : 1e-9 * (double)job->score_nsec / layers;
        return times;
}
