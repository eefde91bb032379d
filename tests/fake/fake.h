/*
 * A stand-in for libcuda.so.1, for machines without a GPU: what its parts share.
 *
 * Device memory is shared memory of this machine, a device pointer is its
 * address in this process, and an IPC handle opens the same memory in another
 * process.  A stream is a thread with a queue, so an order that was forgotten
 * shows as a wrong result.  Nothing here says anything about a real driver
 * beyond what its header documents: no cost, no MPS, no container, no second
 * context.
 *
 * Faults come from the environment, which is looked at in each call:
 *
 *   FAKECUDA_FAIL=name:n:code,..  the n-th call of an entry point returns code; n = 0: every call; a name may come again
 *   FAKECUDA_DELAY=name:usec,..   each call of it first sleeps
 *   FAKECUDA_HANG=name:n,..       the n-th call of it never returns; "kernel": the n-th kernel never ends
 *   FAKECUDA_FAULT=n:code         the n-th kernel fails as it runs; from then on every call returns code
 *   FAKECUDA_ATTR=number:value,.. attributes of the device
 *   FAKECUDA_VERSION=number       of the driver; 13000 if unset
 *   FAKECUDA_INSTANCE=anything    the device is an instance (MIG), with another UUID than its GPU
 *   FAKECUDA_REGISTERS=number     of a thread of each kernel; 0 if unset, since nothing here has any
 *   FAKECUDA_LOG=path             a line for each call and each operation of a stream, in order
 */
#ifndef CKV_TESTS_FAKE_H
#define CKV_TESTS_FAKE_H

#include "kernels/cuda_types.h"

#include "base/macros.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define REQUIRED(name, arguments) _public_ CUresult name arguments;
#define OPTIONAL(name, arguments) REQUIRED(name, arguments)
#define EXPORT(name, arguments) REQUIRED(name, arguments)
#include "kernels/cuda_api.def"
#undef REQUIRED
#undef OPTIONAL
#undef EXPORT

/* What an address may be. */
enum ckv_fake_kind {
        CKV_FAKE_NONE, CKV_FAKE_OWN, CKV_FAKE_IMPORT, CKV_FAKE_PIECE, CKV_FAKE_POOL, CKV_FAKE_MANAGED, CKV_FAKE_HOST,
        CKV_FAKE_REGISTERED,
};

struct ckv_fake_range {
        enum ckv_fake_kind kind;
        char *base;
        size_t bytes;
        uint64_t buffer_id;
        CUipcMemHandle handle;          /* OWN, IMPORT */
        uint32_t opens;                 /* IMPORT */
        int fd;                         /* OWN: of the memory; else -1 */
        CUmemGenericAllocationHandle allocation;        /* PIECE */
};

/*
 * ckv_fake_begin() - what every entry point does first: log, delay, hang, fail
 * @calls: of this entry point so far
 *
 * Return: CUDA_SUCCESS, or what the entry point must return.
 */
CUresult ckv_fake_begin(const char *name, bool needs_context, _Atomic uint32_t *calls);

/* ckv_fake_kernel_fault() - counts a kernel that is about to run. Return: false if it must not. */
bool ckv_fake_kernel_fault(void);

/* ckv_fake_sticky() - the error that stays, or CUDA_SUCCESS */
CUresult ckv_fake_sticky(void);

/* ckv_fake_entry() - fields behind "name:" in a list of the environment, or NULL */
const char *ckv_fake_entry(const char *variable, const char *name);

/* ckv_fake_log() - one line into FAKECUDA_LOG, if there is such a file */
void ckv_fake_log(const char *what, const char *name);

/* ckv_fake_set_started(): cuInit() was called; the other two: of this thread */
void ckv_fake_set_started(void);
void ckv_fake_set_context(CUcontext context);
CUcontext ckv_fake_context(void);

/* ckv_fake_known() - does CUDA know all @bytes at an address? */
bool ckv_fake_known(CUdeviceptr at, size_t bytes);

/* ckv_fake_add() - remember a range; takes a copy. Return: false if there are too many. */
bool ckv_fake_add(const struct ckv_fake_range *range);

/* ckv_fake_take() - forget the range that begins at @base and is of this kind. Return: false if there is none. */
bool ckv_fake_take(CUdeviceptr base, enum ckv_fake_kind kind, struct ckv_fake_range *ret_range);

/* ckv_fake_find() - a copy of the range that holds an address. Return: false if there is none. */
bool ckv_fake_find(CUdeviceptr at, struct ckv_fake_range *ret_range);

/* ckv_fake_new_id() - another one each time */
uint64_t ckv_fake_new_id(void);

#define BEGIN_WITH(needs_context) \
        do { \
                static _Atomic uint32_t calls_; \
                CUresult begin_ = ckv_fake_begin(__func__, needs_context, &calls_); \
                if (begin_ != CUDA_SUCCESS) \
                        return begin_; \
        } while (0)
#define BEGIN() BEGIN_WITH(true)
#define BEGIN_DEVICE() BEGIN_WITH(false)

#endif
