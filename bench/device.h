/*
 * The CPU device with one code path forced, as the daemon would use it.
 */
#ifndef CKV_BENCH_DEVICE_H
#define CKV_BENCH_DEVICE_H

#include "bench/measure.h"
#include "kernels/backend.h"

struct bench_device {
        struct ckv_backend *backend;
        uint32_t threads;
};

/* bench_device_open() - NULL as @path: what the device chooses; 0 as @scratch_bytes: as much as a daemon has without --scratch.
 * Return: false if this machine has no such path. */
bool bench_device_open(const char *path, uint32_t threads, uint64_t scratch_bytes, struct bench_device *ret_device);
void bench_device_close(struct bench_device *device);

/* What a plan took, each layer of the job on the average. */
struct bench_plan_times {
        double score, select;           /* seconds */
        double stolen;
};

/**
 * bench_device_plan() - run CKV_STAGE_PLAN of a job
 * @job: stays the caller's; an outcome other than CKV_JOB_OK ends the program
 */
struct bench_plan_times bench_device_plan(const struct bench_device *device, struct ckv_job *job);

#endif
