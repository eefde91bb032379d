/*
 * The one device of the stand-in driver: a GPU of compute capability 9.0 whose
 * attributes can be set, so that a small one is met as well.
 */
#include "tests/fake/fake.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct CUctx_st {
        int unused;
} primary;

static const struct {
        CUresult code;
        const char *name;
} errors[] = {
        { CUDA_SUCCESS, "CUDA_SUCCESS" },
        { CUDA_ERROR_INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE" },
        { CUDA_ERROR_OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY" },
        { CUDA_ERROR_NOT_INITIALIZED, "CUDA_ERROR_NOT_INITIALIZED" },
        { CUDA_ERROR_DEVICE_UNAVAILABLE, "CUDA_ERROR_DEVICE_UNAVAILABLE" },
        { CUDA_ERROR_NO_DEVICE, "CUDA_ERROR_NO_DEVICE" },
        { CUDA_ERROR_INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT" },
        { CUDA_ERROR_MAP_FAILED, "CUDA_ERROR_MAP_FAILED" },
        { CUDA_ERROR_ALREADY_MAPPED, "CUDA_ERROR_ALREADY_MAPPED" },
        { CUDA_ERROR_OPERATING_SYSTEM, "CUDA_ERROR_OPERATING_SYSTEM" },
        { CUDA_ERROR_INVALID_HANDLE, "CUDA_ERROR_INVALID_HANDLE" },
        { CUDA_ERROR_NOT_FOUND, "CUDA_ERROR_NOT_FOUND" },
        { CUDA_ERROR_NOT_READY, "CUDA_ERROR_NOT_READY" },
        { CUDA_ERROR_ILLEGAL_ADDRESS, "CUDA_ERROR_ILLEGAL_ADDRESS" },
        { CUDA_ERROR_LAUNCH_FAILED, "CUDA_ERROR_LAUNCH_FAILED" },
};

CUresult cuInit(unsigned int flags) {
        if (flags == 0)
                ckv_fake_set_started();
        BEGIN_DEVICE();
        return flags ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

CUresult cuDriverGetVersion(int *ret_version) {
        const char *version = getenv("FAKECUDA_VERSION");

        BEGIN_DEVICE();
        *ret_version = version ? atoi(version) : 13000;
        return CUDA_SUCCESS;
}

CUresult cuGetErrorName(CUresult error, const char **ret_name) {
        for (size_t i = 0; i < CKV_ARRAY_SIZE(errors); i++)
                if (errors[i].code == error) {
                        *ret_name = errors[i].name;
                        return CUDA_SUCCESS;
                }
        *ret_name = NULL;
        return CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGetErrorString(CUresult error, const char **ret_text) {
        return cuGetErrorName(error, ret_text);
}

CUresult cuDeviceGetCount(int *ret_count) {
        BEGIN_DEVICE();
        *ret_count = 1;
        return CUDA_SUCCESS;
}

CUresult cuDeviceGet(CUdevice *ret_device, int ordinal) {
        BEGIN_DEVICE();
        *ret_device = 0;
        return ordinal ? CUDA_ERROR_INVALID_DEVICE : CUDA_SUCCESS;
}

CUresult cuDeviceGetName(char *ret_name, int size, CUdevice device) {
        BEGIN_DEVICE();
        (void)snprintf(ret_name, (size_t)size, "stand-in for a GPU");
        return device ? CUDA_ERROR_INVALID_DEVICE : CUDA_SUCCESS;
}

CUresult cuDeviceGetUuid(CUuuid *ret_uuid, CUdevice device) {
        BEGIN_DEVICE();
        memcpy(ret_uuid->bytes, "chunkkvd-standin", sizeof(ret_uuid->bytes));
        return device ? CUDA_ERROR_INVALID_DEVICE : CUDA_SUCCESS;
}

CUresult cuDeviceGetUuid_v2(CUuuid *ret_uuid, CUdevice device) {
        BEGIN_DEVICE();
        memcpy(ret_uuid->bytes, getenv("FAKECUDA_INSTANCE") ? "chunkkvd-a-slice" : "chunkkvd-standin", sizeof(ret_uuid->bytes));
        return device ? CUDA_ERROR_INVALID_DEVICE : CUDA_SUCCESS;
}

CUresult cuDeviceGetAttribute(int *ret_value, int attribute, CUdevice device) {
        static const struct {
                int attribute, value;
        } table[] = {
                { CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 4 },
                { CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY, 1 },
                { CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE, 4 << 20 },
                { CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 9 },
                { CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, 232448 },
                { CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, 1 },
                { CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS, 1 },
        };
        const char *entry;
        char number[16];

        BEGIN_DEVICE();
        *ret_value = 0;
        for (size_t i = 0; i < CKV_ARRAY_SIZE(table); i++)
                if (table[i].attribute == attribute)
                        *ret_value = table[i].value;
        (void)snprintf(number, sizeof(number), "%d", attribute);
        entry = ckv_fake_entry("FAKECUDA_ATTR", number);
        if (entry)
                *ret_value = atoi(entry);
        return device ? CUDA_ERROR_INVALID_DEVICE : CUDA_SUCCESS;
}

CUresult cuDeviceTotalMem_v2(size_t *ret_bytes, CUdevice device) {
        BEGIN_DEVICE();
        *ret_bytes = (size_t)8 << 30;
        return device ? CUDA_ERROR_INVALID_DEVICE : CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *ret_context, CUdevice device) {
        BEGIN_DEVICE();
        *ret_context = &primary;
        return device ? CUDA_ERROR_INVALID_DEVICE : CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device) {
        BEGIN_DEVICE();
        return device ? CUDA_ERROR_INVALID_DEVICE : CUDA_SUCCESS;
}

CUresult cuCtxSetCurrent(CUcontext context) {
        BEGIN_DEVICE();
        ckv_fake_set_context(context);
        return CUDA_SUCCESS;
}

static _Thread_local CUcontext pushed;

CUresult cuCtxPushCurrent_v2(CUcontext context) {
        BEGIN_DEVICE();
        pushed = ckv_fake_context();
        ckv_fake_set_context(context);
        return CUDA_SUCCESS;
}

CUresult cuCtxPopCurrent_v2(CUcontext *ret_context) {
        BEGIN();
        *ret_context = ckv_fake_context();
        ckv_fake_set_context(pushed);
        pushed = NULL;
        return CUDA_SUCCESS;
}
