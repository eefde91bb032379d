/*
 * The ten operations of a compute device.  Calls come from the event loop
 * thread only; submit never blocks; a job belongs to the backend from submit
 * until reap.  A backend works in slices of about 2 ms and looks at cancel,
 * deadline, the next fair_key and its own progress between slices.
 */
#ifndef CKV_KERNELS_BACKEND_H
#define CKV_KERNELS_BACKEND_H

#include "kernels/job.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define CKV_BACKEND_VERSION 1

struct ckv_guard;
struct ckv_backend;             /* one open device; each backend has its own struct behind it */

struct ckv_backend_options {
        uint32_t threads;       /* CPU: worker threads, 0 = as many as this process may run on */
        uint32_t slice_usec;    /* aim for the length of a slice */
        const char *path;       /* CPU: name of the code path to take; NULL: the fastest, as measured. open() says -EOPNOTSUPP
                                   to one that it does not know or this machine cannot take, -EIO to one that
                                   gives wrong results */
};

struct ckv_backend_info {
        char name[64];          /* "AMD EPYC 9B45, avx512, 2 threads": for people */
        uint8_t uuid[16];       /* GPU or MIG instance; zero on the CPU */
        const char *path;       /* CPU: name of the code path for bfloat16 of 128 dimensions: "amx", "avx512", "scalar" */
        char picks[256];        /* CPU: which path for which shapes, "amx: bf16; avx512: f16, f32" */
        char wrong[64];         /* CPU: paths that gave wrong results when they were tried, and are not used; empty: none */
        uint32_t tried_usec;    /* CPU: how long the trials took; 0: the caller named a path */
        uint32_t threads;
};

/* What a region of a tenant becomes in the backend's address space. */
struct ckv_mapping {
        uint8_t *base;          /* first byte of the region */
        uint64_t size;          /* bytes */
        bool writable;
        void *allocation;       /* what to unmap: page-aligned start on the CPU */
        size_t allocation_bytes;
        struct ckv_guard *guard;  /* bad once a page was lost (base/guard.h); NULL: cannot happen */
};

struct ckv_backend_health {
        uint64_t last_progress_nsec;  /* end of the last slice, or the last time the idle device answered */
        uint32_t queued, running;     /* jobs */
};

struct ckv_backend_ops {
        uint32_t version;       /* CKV_BACKEND_VERSION */
        const char *name;       /* "cpu" */

        /* open() - start the device. Return: 0 or -errno. */
        int (*open)(const struct ckv_backend_options *options, struct ckv_backend **ret_backend);
        /* close() - stop threads; no job may be inside. NULL is fine. Return: NULL. */
        struct ckv_backend *(*close)(struct ckv_backend *backend);
        void (*describe)(const struct ckv_backend *backend, struct ckv_backend_info *ret_info);
        /* map() - @fd is *NOT* consumed and not needed afterwards; @offset need not be page-aligned. Return: 0 or -errno. */
        int (*map)(struct ckv_backend *backend, int fd, uint64_t offset, uint64_t size, bool writable,
                   struct ckv_mapping *ret_mapping);
        /* unmap() - no job that uses the mapping may be inside */
        void (*unmap)(struct ckv_backend *backend, struct ckv_mapping *mapping);
        /* submit() - hand over a job for job->stage. Never blocks, never fails. */
        void (*submit)(struct ckv_backend *backend, struct ckv_job *job);
        /* cancel() - ask that a job end at its next slice; without effect in CKV_STAGE_MOVE. The job must be reaped all the same. */
        void (*cancel)(struct ckv_backend *backend, struct ckv_job *job);
        /* wait_fd() - borrowed descriptor that is readable while a finished job waits to be reaped */
        int (*wait_fd)(const struct ckv_backend *backend);
        /* reap() - next finished job, or NULL */
        struct ckv_job *(*reap)(struct ckv_backend *backend);
        void (*health)(const struct ckv_backend *backend, struct ckv_backend_health *ret_health);
};

extern const struct ckv_backend_ops ckv_backend_cpu;

/* ckv_cpu_path_names() - "scalar, avx2": names for ckv_backend_options.path that this machine can take, cut to @size bytes */
void ckv_cpu_path_names(char *ret_text, size_t size);

#endif
