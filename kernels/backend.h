/*
 * The operations of a compute device.  Calls come from the event loop thread
 * only; submit never blocks; a job belongs to the backend from submit until
 * reap.  A backend works in slices of about 2 ms and looks at cancel, deadline,
 * the next fair_key and its own progress between slices.
 *
 * A device with memory of its own imports it: that takes milliseconds, so it is
 * handed over and reaped like a job.  Host memory is mapped at once by both.
 */
#ifndef CKV_KERNELS_BACKEND_H
#define CKV_KERNELS_BACKEND_H

#include "kernels/job.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define CKV_BACKEND_VERSION 1

struct ckv_cpu_sight;
struct ckv_guard;
struct ckv_backend;             /* one open device; each backend has its own struct behind it */

struct ckv_backend_options {
        uint32_t threads;       /* CPU: worker threads, 0 = as many as this process may run on */
        uint32_t slice_usec;    /* aim for the length of a slice */
        const char *path;       /* CPU: name of the code path to take; NULL: the fastest, as measured. open() says -EOPNOTSUPP
                                   to one that it does not know or this machine cannot take, -EIO to one that
                                   gives wrong results */
        const char *pin;        /* CPU: what worker threads are held to, "auto", "off", "node" or "core"; NULL: "auto". open() says
                                   -EINVAL to anything else */
        const struct ckv_cpu_sight *sight;      /* CPU: the machine, for tests; NULL: this one */
        const char *device;     /* CUDA: "GPU-<uuid>", "MIG-<uuid>" or an index; NULL: the only one. open() says -ENODEV to others */
        uint64_t scratch_bytes; /* for what is computed on the way: CUDA, device memory between launches, 0 = 256 MiB; CPU, what
                                   the scoring of one job shall do with, and what is kept of it at most, 0 = 128 MiB */
        const char *library;    /* CUDA: path of the driver; NULL: libcuda.so.1 */
        char *ret_why;          /* [why_bytes] one sentence for people, where open() fails; NULL: not wanted. CUDA only */
        size_t why_bytes;
};

/* Which code path scores a range of shapes. All ends of ranges belong to them; UINT32_MAX as the last: no end. */
struct ckv_cpu_pick {
        const char *path;                       /* "avx512" */
        enum ckv_dtype keys;                    /* types that have no pick of their own go with binary32 */
        enum ckv_dtype queries;                 /* CKV_DTYPE_NONE: all others than those of another pick for the same keys */
        uint32_t dims_first, dims_last;         /* of a head */
        uint32_t queries_first, queries_last;   /* of a KV head: group x window. No queries: with the most of other types */
};

enum { CKV_CPU_PICKS_MOST = 36 };

struct ckv_backend_info {
        char name[64];          /* "AMD EPYC 9B45, avx512, 2 threads": for people */
        uint8_t uuid[16];       /* GPU or MIG instance; zero on the CPU */
        const char *path;       /* CPU: name of the code path for bfloat16 of 128 dimensions: "amx", "avx512", "scalar" */
        struct ckv_cpu_pick picked[CKV_CPU_PICKS_MOST]; /* CPU: [picked_count] which path for which shapes */
        uint32_t picked_count;
        char picks[512];        /* the same for people, "amx: bf16; avx512: f16, f32" */
        char wrong[64];         /* CPU: paths that gave wrong results when they were tried, and are not used; empty: none */
        uint32_t tried_usec;    /* CPU: how long the trials took; 0: the caller named a path */
        uint32_t threads;
        int driver_version;     /* CUDA: what the driver is made for, 13000 = 13.0; else 0 */
        uint64_t memory_bytes;  /* CUDA: of the device; else 0 */
};

/* What a region of a tenant becomes in the backend's address space. */
struct ckv_mapping {
        uint8_t *base;          /* first byte of the region */
        uint64_t size;          /* bytes */
        bool writable;
        void *allocation;       /* what to unmap: page-aligned start on the CPU */
        size_t allocation_bytes;
        struct ckv_guard *guard;  /* bad once a page was lost (base/guard.h); NULL: cannot happen */
        bool on_device;         /* base is an address of the device, of import(): the host must not follow it */
};

enum ckv_import_kind {
        CKV_IMPORT_IPC,
        CKV_IMPORT_VMM,
        CKV_IMPORT_CLOSE,       /* the mapping of an earlier import goes back; reaped when the driver has let go of it: instead of
                                   unmap(), where somebody is to be told so */
};
enum { CKV_IMPORT_HANDLE_BYTES = 64 };

/* How an import ended. */
enum ckv_import_outcome {
        CKV_IMPORT_OK,
        CKV_IMPORT_REFUSED,     /* the driver said no: driver_code */
        CKV_IMPORT_RANGE,       /* offset and size do not lie in what was opened: found_bytes of it */
        CKV_IMPORT_SIZE,        /* what was opened is not as large as alloc_bytes says: found_bytes */
        CKV_IMPORT_STALE,       /* IPC: this session registered the handle with another buffer id before, and still has it */
        CKV_IMPORT_NO_MEMORY,   /* of the host, or as many allocations are open as may be */
        CKV_IMPORT_DEVICE_LOST, /* as CKV_JOB_DEVICE_LOST */
};

/* Memory of another process on the same device, to be mapped. Belongs to the backend from import() until reap_import(). */
struct ckv_import {
        struct ckv_import *next;        /* for whoever holds it */
        void *owner;                    /* of the daemon; backends never look at it */
        enum ckv_import_kind kind;
        uint8_t handle[CKV_IMPORT_HANDLE_BYTES];  /* IPC: of cuIpcGetMemHandle() */
        uint64_t buffer_id;             /* IPC: of the exporter, so that a handle that comes again for other memory is known; 0: not told */
        uint64_t session;               /* buffer ids are compared within one session; a handle is opened once, whoever brings it */
        uint64_t alloc_bytes;           /* size of the whole allocation, as told; 0: not told */
        const int *fds;                 /* VMM: [fd_count] borrowed until reap_import(), adjacent in this order */
        const uint64_t *fd_bytes;       /* VMM: [fd_count] size of each */
        uint32_t fd_count;
        uint64_t offset, size;          /* bytes of the allocation, or of the descriptors together, that become the mapping */
        bool writable;

        /* written by the backend, read after reap_import() */
        enum ckv_import_outcome outcome;
        int driver_code;                /* CUresult of the call that failed; 0: none did */
        uint64_t found_bytes;
        struct ckv_mapping mapping;     /* with CKV_IMPORT_OK: to be given to unmap() or CKV_IMPORT_CLOSE. CLOSE: which one, and zeroed */
};

struct ckv_backend_health {
        uint64_t last_progress_nsec;  /* end of the last slice, or the last time the idle device answered */
        uint32_t queued, running;     /* jobs */
        bool lost;                    /* the device's context is gone: every job ends with CKV_JOB_DEVICE_LOST, and the process has to end.
                                         wait_fd becomes readable when this becomes true */
        int lost_code;                /* CUresult that said so */
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
        /* unmap() - no job that uses the mapping may be inside. Never blocks; memory of the device goes a moment later. */
        void (*unmap)(struct ckv_backend *backend, struct ckv_mapping *mapping);
        /* import() - hand over memory of the device to be mapped. Never blocks, never fails. NULL: no device memory here. */
        void (*import)(struct ckv_backend *backend, struct ckv_import *import);
        /* reap_import() - next import that is through, or NULL. NULL like import. */
        struct ckv_import *(*reap_import)(struct ckv_backend *backend);
        /* takes() - can this job be computed here? false: no, *ret_group and *ret_field say what of it cannot. Looks at policies and planes
         * only; what it lets through may still end with CKV_JOB_NOT_ON_DEVICE. NULL: every job can. */
        bool (*takes)(const struct ckv_job *job, uint32_t *ret_group, enum ckv_policy_field *ret_field);
        /* submit() - hand over a job for job->stage. Never blocks, never fails. */
        void (*submit)(struct ckv_backend *backend, struct ckv_job *job);
        /* cancel() - ask that a job end at its next slice; without effect in CKV_STAGE_MOVE. The job must be reaped all the same. */
        void (*cancel)(struct ckv_backend *backend, struct ckv_job *job);
        /* wait_fd() - borrowed descriptor that is readable while a finished job or import waits to be reaped */
        int (*wait_fd)(const struct ckv_backend *backend);
        /* reap() - next finished job, or NULL */
        struct ckv_job *(*reap)(struct ckv_backend *backend);
        void (*health)(const struct ckv_backend *backend, struct ckv_backend_health *ret_health);
};

extern const struct ckv_backend_ops ckv_backend_cpu, ckv_backend_cuda;

/* ckv_cpu_path_names() - "scalar, avx2": names for ckv_backend_options.path that this machine can take, cut to @size bytes */
void ckv_cpu_path_names(char *ret_text, size_t size);

#endif
