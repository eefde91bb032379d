/*
 * What the device thread queues in its one stream, and how it waits.
 *
 * Everything passes through pinned memory, tenants' bytes above all: the driver
 * is never given an address that another process can unmap, and a copy from
 * pinned memory returns at once.  What comes down is queued into pinned memory
 * and copied on when the stream is done.
 *
 * Waiting is polling an event, 50 us without pause and then with short sleeps:
 * a blocking wait of the driver costs more than most slices take, and a
 * callback of it a tenth of a millisecond.
 */
#include "kernels/cuda_device.h"

#include "base/clock.h"
#include "base/macros.h"

#include <string.h>
#include <time.h>

enum {
        SPIN_NSEC = 50000,
        SLEEP_NSEC = 20000,
        SHARED_ALWAYS = 48 << 10,       /* dynamic shared memory that a launch gets without asking */
};

CUdeviceptr ckv__cuda_room(struct ckv_cuda_device *device, uint64_t bytes) {
        uint64_t rounded = ckv__cuda_rounded(bytes);
        CUdeviceptr at = device->scratch + device->used;

        if (rounded < bytes || rounded > device->scratch_bytes - device->used)
                return 0;
        device->used += rounded;
        return at;
}

void *ckv__cuda_up_room(struct ckv_cuda_device *device, uint64_t bytes) {
        assert(bytes <= CKV__CUDA_STAGE_BYTES);
        if (bytes > CKV__CUDA_STAGE_BYTES - device->up_used && !ckv__cuda_finish(device))
                return NULL;
        return device->up + device->up_used;
}

bool ckv__cuda_up_send(struct ckv_cuda_device *device, CUdeviceptr to, const void *room, uint64_t bytes) {
        device->up_used += CKV_MIN(ckv__cuda_rounded(bytes), CKV__CUDA_STAGE_BYTES - device->up_used);
        return bytes == 0 || CKV__CUDA(device, cuMemcpyHtoDAsync_v2, to, room, bytes, device->stream);
}

bool ckv__cuda_up(struct ckv_cuda_device *device, CUdeviceptr to, const void *from, uint64_t bytes) {
        const uint8_t *at = from;

        while (bytes > 0) {
                uint64_t n = CKV_MIN(bytes, (uint64_t)CKV__CUDA_STAGE_BYTES);
                void *room = ckv__cuda_up_room(device, n);

                if (!room)
                        return false;
                memcpy(room, at, n);
                if (!ckv__cuda_up_send(device, to, room, n))
                        return false;
                to += n;
                at += n;
                bytes -= n;
        }
        return true;
}

bool ckv__cuda_down(struct ckv_cuda_device *device, void *to, CUdeviceptr from, uint64_t bytes) {
        uint8_t *at = to;

        while (bytes > 0) {
                uint64_t n;

                if ((device->down_used == CKV__CUDA_STAGE_BYTES || device->piece_count == CKV__CUDA_PIECES) &&
                    !ckv__cuda_finish(device))
                        return false;
                n = CKV_MIN(bytes, CKV__CUDA_STAGE_BYTES - device->down_used);
                if (!CKV__CUDA(device, cuMemcpyDtoHAsync_v2, device->down + device->down_used, from, n, device->stream))
                        return false;
                device->pieces[device->piece_count].to = at;
                device->pieces[device->piece_count].at = device->down_used;
                device->pieces[device->piece_count++].bytes = n;
                device->down_used += CKV_MIN(ckv__cuda_rounded(n), CKV__CUDA_STAGE_BYTES - device->down_used);
                from += n;
                at += n;
                bytes -= n;
        }
        return true;
}

bool ckv__cuda_launch(struct ckv_cuda_device *device, enum ckv__cuda_kernel kernel, const struct ckv_k_launch *launch,
                      const void *parameters) {
        /* the driver copies the struct before it returns, and does not write to it */
        void *pointers[] = { (void *)(uintptr_t)parameters };

        if (launch->grid_x == 0 || launch->grid_y == 0 || launch->grid_z == 0)
                return true;
        if (launch->shared_bytes > SHARED_ALWAYS &&
            !CKV__CUDA(device, cuFuncSetAttribute, device->functions[kernel], CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
                       (int)launch->shared_bytes))
                return false;
        return CKV__CUDA(device, cuLaunchKernel, device->functions[kernel], launch->grid_x, launch->grid_y, launch->grid_z,
                         launch->block, 1, 1, launch->shared_bytes, device->stream, pointers, NULL);
}

/* Return: did the stream come to its end without an error? */
static bool await(struct ckv_cuda_device *device) {
        const struct timespec pause = { .tv_nsec = SLEEP_NSEC };
        uint64_t start = ckv_now_nsec();
        CUresult code;

        if (!CKV__CUDA(device, cuEventRecord, device->event, device->stream))
                return false;
        while ((code = device->cuda.cuEventQuery(device->event)) == CUDA_ERROR_NOT_READY)
                if (ckv_now_nsec() - start >= SPIN_NSEC)
                        (void)nanosleep(&pause, NULL);
        return ckv__cuda_said(device, "cuEventQuery", code);
}

bool ckv__cuda_finish(struct ckv_cuda_device *device) {
        bool done = device->lost == CUDA_SUCCESS && await(device);

        /* without an event there is still the stream itself to wait for: its copies must not come later */
        if (!done && device->lost == CUDA_SUCCESS)
                (void)CKV__CUDA(device, cuStreamSynchronize, device->stream);
        for (uint32_t i = 0; done && i < device->piece_count; i++)
                memcpy(device->pieces[i].to, device->down + device->pieces[i].at, device->pieces[i].bytes);
        device->up_used = device->down_used = 0;
        device->piece_count = 0;
        return done;
}
