/*
 * One GPU as the device thread sees it: context, kernels, one stream, scratch,
 * pinned memory through which everything passes, and the first error that stays.
 * Every function here runs on the device thread.
 *
 * Work is queued with ckv__cuda_up(), ckv__cuda_launch() and ckv__cuda_down()
 * and is done when ckv__cuda_finish() has returned.  Nothing of an earlier slice
 * is on its way when the next one begins.
 */
#ifndef CKV_KERNELS_CUDA_DEVICE_H
#define CKV_KERNELS_CUDA_DEVICE_H

#include "kernels/backend.h"
#include "kernels/cuda/params.h"
#include "kernels/cuda_api.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum ckv__cuda_kernel {
#define KERNEL(name, parameters) CKV__CUDA_##name,
#include "kernels/cuda/kernels.def"
#undef KERNEL
        _CKV__CUDA_KERNELS,
};

enum {
        CKV__CUDA_STAGE_BYTES = 4 << 20,        /* pinned, each way */
        CKV__CUDA_PIECES = 64,                  /* of what comes down, until they are copied on */
        CKV__CUDA_ALIGN = 256,                  /* of whatever lies in the scratch */
        CKV__CUDA_DOWN_BYTES = 64 << 20,        /* of scores that lie in the memory of this process at a time */
};

struct ckv_cuda_device {
        struct ckv_cuda cuda;
        CUdevice device;
        CUcontext context;
        CUmodule module;
        CUstream stream;
        CUevent event;
        CUfunction functions[_CKV__CUDA_KERNELS];
        int shared_most;                /* dynamic shared memory that a block may have if it is asked for */
        bool context_held;

        CUdeviceptr scratch;
        uint64_t scratch_bytes, used;
        uint64_t owner;                 /* counts up with each that fills the scratch anew: who finds its own number finds its
                                           tables */

        uint8_t *up, *down;             /* pinned, CKV__CUDA_STAGE_BYTES each */
        size_t up_used, down_used;
        struct {
                void *to;
                size_t at, bytes;
        } pieces[CKV__CUDA_PIECES];     /* what has been queued into down, and where it goes */
        uint32_t piece_count;

        double nsec_per_work[2];        /* of what has been scored so far: one product of a query; one dimension of a key */
        double nsec_per_byte;           /* of what has been moved, read and written */

        CUresult code;                  /* of the last call that failed; CUDA_SUCCESS: none did */
        const char *call;               /* which one that was */
        CUresult lost;                  /* the error that stays; CUDA_SUCCESS: none */
};

/* CKV__CUDA() - one call of the driver; what it says is recorded. false: it failed. */
#define CKV__CUDA(device, name, ...) ckv__cuda_said(device, #name, (device)->cuda.name(__VA_ARGS__))

/* ckv__cuda_said() - record the result of a call. Return: did it succeed? */
bool ckv__cuda_said(struct ckv_cuda_device *device, const char *call, CUresult code);

/**
 * ckv__cuda_device_open() - load the driver, find the GPU, load kernels, take scratch and pinned memory
 * @device:    zeroed; ckv__cuda_device_close(), also after a failure
 * @ret_fault: a sentence, written only on failure
 *
 * Return: 0; -ENOENT, -EOPNOTSUPP, -EIO as ckv_cuda_load(), or -EOPNOTSUPP without an image for this GPU; -ENODEV: no such GPU;
 * -ENOMEM: scratch or pinned memory; -EIO: another call of the driver failed.
 */
int ckv__cuda_device_open(const struct ckv_backend_options *options, struct ckv_cuda_device *device,
                          struct ckv_cuda_fault *ret_fault);

/* ckv__cuda_device_close() - of a lost device nothing is given back: the process ends anyway */
void ckv__cuda_device_close(struct ckv_cuda_device *device);

/**
 * ckv__cuda_device_describe() - for people and for the daemon's handshake
 * @ret_fault: a sentence, written only on failure
 *
 * Return: 0; -EIO (-ENOMEM) if a call of the driver failed: what it did not say is not made up.
 */
int ckv__cuda_device_describe(struct ckv_cuda_device *device, struct ckv_backend_info *ret_info, struct ckv_cuda_fault *ret_fault);

/* ckv__cuda_room() - @bytes of the scratch, behind what was taken since device->used was set. Return: 0: there are not so many. */
CUdeviceptr ckv__cuda_room(struct ckv_cuda_device *device, uint64_t bytes);

/* ckv__cuda_rounded() - what ckv__cuda_room() takes for @bytes */
static inline uint64_t ckv__cuda_rounded(uint64_t bytes) {
        return (bytes + CKV__CUDA_ALIGN - 1) / CKV__CUDA_ALIGN * CKV__CUDA_ALIGN;
}

/**
 * ckv__cuda_learn() - what some work took says how much of it makes a slice
 * @rate: ns for a unit of work, as known so far
 *
 * Work much shorter than a slice is mostly the way there and back, so it can only lower the rate.
 */
static inline void ckv__cuda_learn(double *rate, double work, uint64_t nsec, uint64_t slice_nsec) {
        double seen = (double)nsec / work;

        if (seen < *rate || nsec >= slice_nsec / 4)
                *rate = (*rate + seen) / 2;
}

/* ckv__cuda_up() - queue a copy to the device; @from is free at once. May wait for what is queued. Return: false: an error. */
bool ckv__cuda_up(struct ckv_cuda_device *device, CUdeviceptr to, const void *from, uint64_t bytes);

/* ckv__cuda_up_room() - pinned memory for @bytes, at most CKV__CUDA_STAGE_BYTES, until ckv__cuda_up_send(). Return: NULL: an
 * error. */
void *ckv__cuda_up_room(struct ckv_cuda_device *device, uint64_t bytes);

/* ckv__cuda_up_send() - queue a copy of what was written to the last ckv__cuda_up_room(). Return: false: an error. */
bool ckv__cuda_up_send(struct ckv_cuda_device *device, CUdeviceptr to, const void *room, uint64_t bytes);

/* ckv__cuda_down() - queue a copy from the device; @to has it after ckv__cuda_finish(), or earlier. Return: false: an error. */
bool ckv__cuda_down(struct ckv_cuda_device *device, void *to, CUdeviceptr from, uint64_t bytes);

/* ckv__cuda_launch() - queue a kernel; nothing happens if its grid is empty. @parameters: its struct. Return: false: an error. */
bool ckv__cuda_launch(struct ckv_cuda_device *device, enum ckv__cuda_kernel kernel, const struct ckv_k_launch *launch,
                      const void *parameters);

/* CKV__CUDA_LAUNCH() - the same, by the kernel's name, in the grid that kernels/cuda/params.h gives it */
#define CKV__CUDA_LAUNCH(device, name, parameters) __extension__({ \
        struct ckv_k_launch launch_ = ckv_k_plan_##name(parameters); \
        ckv__cuda_launch(device, CKV__CUDA_##name, &launch_, parameters); \
})

/* ckv__cuda_finish() - wait until everything queued is done, and copy what came down to where it goes. After an error: wait
 * as well, so that nothing is on its way. Return: false: an error. */
bool ckv__cuda_finish(struct ckv_cuda_device *device);

#endif
