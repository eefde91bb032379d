/*
 * Opening a GPU, and closing it.
 *
 * All memory that the device thread ever takes from the driver is taken here:
 * a request cannot fail later for lack of it, and engines that fill a GPU to the
 * last page do so knowing what is left.  An engine's GPU may well be full when
 * the daemon starts; then it does not start, and says how much it wanted.
 *
 * Which GPU it is must be said where there are several.  The index is the
 * driver's, after CUDA_VISIBLE_DEVICES; an engine in another container counts
 * otherwise, so a UUID is the better name.  GPU- and MIG- before it are held to
 * what it is: who meant an instance is not to get the whole GPU, nor the other
 * way round.
 */
#include "kernels/cuda_device.h"

#include "base/error.h"
#include "base/macros.h"
#include "kernels/cuda_image.h"

#include <ctype.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static const uint64_t scratch_default = UINT64_C(256) << 20, scratch_least = UINT64_C(16) << 20;
static const char unanswered[] = "the GPU does not say what it is";

bool ckv__cuda_said(struct ckv_cuda_device *device, const char *call, CUresult code) {
        if (code == CUDA_SUCCESS)
                return true;
        device->code = code;
        device->call = call;
        if (device->lost == CUDA_SUCCESS && ckv_cuda_fatal(code))
                device->lost = code;
        return false;
}

_printf_(3, 4) static int fail(struct ckv_cuda_fault *ret_fault, int r, const char *format, ...) {
        va_list arguments;

        *ret_fault = (struct ckv_cuda_fault){ 0 };
        va_start(arguments, format);
        (void)vsnprintf(ret_fault->text, sizeof(ret_fault->text), format, arguments);
        va_end(arguments);
        return ckv_error_origin(r);
}

/* The driver said no to the last call. */
static int fail_call(const struct ckv_cuda_device *device, struct ckv_cuda_fault *ret_fault, const char *what) {
        char name[64];
        int r;

        ckv_cuda_name(&device->cuda, device->code, name, sizeof(name));
        r = fail(ret_fault, device->code == CUDA_ERROR_OUT_OF_MEMORY ? -ENOMEM : -EIO, "%s: %s says %s", what, device->call, name);
        ret_fault->code = device->code;
        return r;
}

/* What a name says of the UUID in it. */
enum kind { KIND_ANY, KIND_GPU, KIND_INSTANCE };

/* Hexadecimal digits of a UUID, however it is written. Return: false if there are not 32. */
static bool parse_uuid(const char *text, enum kind *ret_kind, uint8_t ret_uuid[16]) {
        uint32_t n = 0;

        *ret_kind = strncmp(text, "GPU-", 4) == 0 ? KIND_GPU : strncmp(text, "MIG-", 4) == 0 ? KIND_INSTANCE : KIND_ANY;
        if (*ret_kind != KIND_ANY)
                text += 4;
        for (; *text; text++) {
                char digit[2] = { *text, '\0' };

                if (*text == '-')
                        continue;
                if (!isxdigit((unsigned char)*text) || n == 32)
                        return false;
                ret_uuid[n / 2] = (uint8_t)((n % 2 ? ret_uuid[n / 2] << 4 : 0) | (uint8_t)strtoul(digit, NULL, 16));
                n++;
        }
        return n == 32;
}

/* The UUID of device->device, and of the GPU of which it is an instance; the same twice if it is a whole one. */
static bool get_uuids(struct ckv_cuda_device *device, CUuuid *ret_uuid, CUuuid *ret_whole) {
        if (!CKV__CUDA(device, cuDeviceGetUuid_v2, ret_uuid, device->device))
                return false;
        /* the older function knows nothing of instances; a driver without it does not tell what is one */
        *ret_whole = *ret_uuid;
        return !device->cuda.cuDeviceGetUuid || CKV__CUDA(device, cuDeviceGetUuid, ret_whole, device->device);
}

static int find_by_uuid(struct ckv_cuda_device *device, const char *name, int count, struct ckv_cuda_fault *ret_fault) {
        CUuuid uuid, whole;
        uint8_t wanted[16];
        enum kind kind;

        if (!parse_uuid(name, &kind, wanted))
                return fail(ret_fault, -ENODEV, "\"%s\" is no index and no UUID of a GPU", name);
        for (int i = 0; i < count; i++) {
                bool instance;

                if (!CKV__CUDA(device, cuDeviceGet, &device->device, i) || !get_uuids(device, &uuid, &whole))
                        return fail_call(device, ret_fault, "a GPU cannot be asked for its UUID");
                instance = memcmp(uuid.bytes, whole.bytes, sizeof(uuid.bytes)) != 0;
                if (memcmp(uuid.bytes, wanted, sizeof(wanted)) != 0) {
                        if (instance && memcmp(whole.bytes, wanted, sizeof(wanted)) == 0)
                                return fail(ret_fault, -ENODEV, "%s is divided into instances: name one of them, MIG-UUID", name);
                        continue;
                }
                if (kind == KIND_INSTANCE && !instance && device->cuda.cuDeviceGetUuid)
                        return fail(ret_fault, -ENODEV, "%s is a whole GPU, no instance of one: its name is GPU-%s", name, name + 4);
                if (kind == KIND_GPU && instance)
                        return fail(ret_fault, -ENODEV, "%s is an instance, no whole GPU: its name is MIG-%s", name, name + 4);
                return 0;
        }
        return fail(ret_fault, -ENODEV, "none of the %d GPUs that this process sees is %s", count, name);
}

static int find_device(struct ckv_cuda_device *device, const char *name, struct ckv_cuda_fault *ret_fault) {
        int count = 0, mode = 0;
        /* strtol would take blanks and signs */
        bool is_index = name && *name && name[strspn(name, "0123456789")] == '\0';
        long index = is_index ? strtol(name, NULL, 10) : 0;

        if (!CKV__CUDA(device, cuDeviceGetCount, &count))
                return fail_call(device, ret_fault, "GPUs cannot be counted");
        if (!name && count != 1)
                return fail(ret_fault, -ENODEV, "this process sees %d GPUs: name one with --device", count);
        if (name && !is_index)
                return find_by_uuid(device, name, count, ret_fault);
        if (index < 0 || index >= count)
                return fail(ret_fault, -ENODEV, "there is no GPU %s: this process sees %d", name, count);
        if (!CKV__CUDA(device, cuDeviceGet, &device->device, (int)index) ||
            !CKV__CUDA(device, cuDeviceGetAttribute, &mode, CU_DEVICE_ATTRIBUTE_COMPUTE_MODE, device->device))
                return fail_call(device, ret_fault, "the GPU does not answer");
        if (mode == CU_COMPUTEMODE_PROHIBITED)
                return fail(ret_fault, -ENODEV, "the GPU's compute mode is prohibited: nvidia-smi -c 0 allows programs again");
        return 0;
}

static int load_kernels(struct ckv_cuda_device *device, struct ckv_cuda_fault *ret_fault) {
        static const char *const names[] = {
#define KERNEL(name, parameters) "ckv_k_" #name,
#include "kernels/cuda/kernels.def"
#undef KERNEL
        };
        const void *image;
        int major = 0, minor = 0, r;

        if (!CKV__CUDA(device, cuDeviceGetAttribute, &major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device->device) ||
            !CKV__CUDA(device, cuDeviceGetAttribute, &minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, device->device) ||
            !CKV__CUDA(device, cuDeviceGetAttribute, &device->shared_most, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN,
                       device->device))
                return fail_call(device, ret_fault, unanswered);
        r = ckv__cuda_image_find(major, minor, &image, ret_fault);
        if (r < 0)
                return ckv_error_trace(r);
        if (!CKV__CUDA(device, cuModuleLoadDataEx, &device->module, image, 0, NULL, NULL))
                return fail_call(device, ret_fault, "the kernels of this program cannot be loaded");
        for (size_t i = 0; i < CKV_ARRAY_SIZE(names); i++)
                if (!CKV__CUDA(device, cuModuleGetFunction, &device->functions[i], device->module, names[i]))
                        return fail_call(device, ret_fault, names[i]);
        return 0;
}

static int take_memory(struct ckv_cuda_device *device, uint64_t scratch_bytes, struct ckv_cuda_fault *ret_fault) {
        char what[80];
        void *at;

        device->scratch_bytes = scratch_bytes ? scratch_bytes : scratch_default;
        if (device->scratch_bytes < scratch_least)
                return fail(ret_fault, -EINVAL, "scratch must have at least %llu MiB", (unsigned long long)(scratch_least >> 20));
        (void)snprintf(what, sizeof(what), "%llu MiB of scratch cannot be had", (unsigned long long)(device->scratch_bytes >> 20));
        if (!CKV__CUDA(device, cuMemAlloc_v2, &device->scratch, device->scratch_bytes))
                return fail_call(device, ret_fault, what);
        if (!CKV__CUDA(device, cuMemHostAlloc, &at, CKV__CUDA_STAGE_BYTES, 0))
                return fail_call(device, ret_fault, "pinned memory cannot be had");
        device->up = at;
        if (!CKV__CUDA(device, cuMemHostAlloc, &at, CKV__CUDA_STAGE_BYTES, 0))
                return fail_call(device, ret_fault, "pinned memory cannot be had");
        device->down = at;
        return 0;
}

int ckv__cuda_device_open(const struct ckv_backend_options *options, struct ckv_cuda_device *device,
                          struct ckv_cuda_fault *ret_fault) {
        int r = ckv__cuda_image_needed(ret_fault);

        /* a guess, until something has been measured: 1 T products, 100 G dimensions and 1 TB in a second */
        device->nsec_per_work[0] = device->nsec_per_byte = 1e-3;
        device->nsec_per_work[1] = 1e-2;
        if (r < 0)
                return ckv_error_trace(r);
        r = ckv_cuda_load(options->library, r, &device->cuda, ret_fault);
        if (r == 0)
                r = find_device(device, options->device, ret_fault);
        if (r < 0)
                return ckv_error_trace(r);
        if (!CKV__CUDA(device, cuDevicePrimaryCtxRetain, &device->context, device->device))
                return fail_call(device, ret_fault, "the GPU gives no context");
        device->context_held = true;
        if (!CKV__CUDA(device, cuCtxSetCurrent, device->context))
                return fail_call(device, ret_fault, "the GPU's context cannot be used");
        r = load_kernels(device, ret_fault);
        if (r == 0)
                r = take_memory(device, options->scratch_bytes, ret_fault);
        if (r < 0)
                return ckv_error_trace(r);
        if (!CKV__CUDA(device, cuStreamCreateWithPriority, &device->stream, CU_STREAM_NON_BLOCKING, 0) ||
            !CKV__CUDA(device, cuEventCreate, &device->event, CU_EVENT_DISABLE_TIMING))
                return fail_call(device, ret_fault, "the GPU gives no stream");
        return 0;
}

void ckv__cuda_device_close(struct ckv_cuda_device *device) {
        if (device->lost == CUDA_SUCCESS) {
                /* what fails here cannot be mended, and the process gives all of it back when it ends */
                if (device->stream)
                        (void)CKV__CUDA(device, cuStreamDestroy_v2, device->stream);
                if (device->event)
                        (void)CKV__CUDA(device, cuEventDestroy_v2, device->event);
                if (device->up)
                        (void)CKV__CUDA(device, cuMemFreeHost, device->up);
                if (device->down)
                        (void)CKV__CUDA(device, cuMemFreeHost, device->down);
                if (device->scratch)
                        (void)CKV__CUDA(device, cuMemFree_v2, device->scratch);
                if (device->module)
                        (void)CKV__CUDA(device, cuModuleUnload, device->module);
                if (device->context_held) {
                        (void)CKV__CUDA(device, cuCtxSetCurrent, NULL);
                        (void)CKV__CUDA(device, cuDevicePrimaryCtxRelease_v2, device->device);
                }
                ckv_cuda_unload(&device->cuda);
        }
        *device = (struct ckv_cuda_device){ 0 };
}

int ckv__cuda_device_describe(struct ckv_cuda_device *device, struct ckv_backend_info *ret_info, struct ckv_cuda_fault *ret_fault) {
        struct ckv_backend_info info = { .path = "cuda", .driver_version = device->cuda.driver_version };
        int version = info.driver_version, major = 0, minor = 0;
        char name[64] = "", rest[32];
        size_t bytes = 0;
        CUuuid uuid;

        /* memory of engines is told apart by the UUID, and quotas are shares of the bytes: a guess at either serves nobody */
        if (!CKV__CUDA(device, cuDeviceGetName, name, sizeof(name), device->device) ||
            !CKV__CUDA(device, cuDeviceGetUuid_v2, &uuid, device->device) ||
            !CKV__CUDA(device, cuDeviceTotalMem_v2, &bytes, device->device) ||
            !CKV__CUDA(device, cuDeviceGetAttribute, &major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device->device) ||
            !CKV__CUDA(device, cuDeviceGetAttribute, &minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, device->device))
                return fail_call(device, ret_fault, unanswered);
        static_assert(sizeof(info.uuid) == sizeof(uuid.bytes), "16 bytes");
        memcpy(info.uuid, uuid.bytes, sizeof(uuid.bytes));
        info.memory_bytes = bytes;
        (void)snprintf(rest, sizeof(rest), ", sm_%d, CUDA %d.%d", major * 10 + minor, version / 1000, version % 1000 / 10);
        (void)snprintf(info.name, sizeof(info.name), "%.*s%s", (int)(sizeof(info.name) - sizeof(rest)), name, rest);
        *ret_info = info;
        return 0;
}
