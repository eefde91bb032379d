/*
 * How the driver is found, and what is said where it is not.
 *
 * dlsym() of the exact symbol is all there is: cuGetProcAddress would pick a
 * version by the number it is given, which is what the names in cuda_api.def
 * say already.  Versions are compared before anything is loaded, since a driver
 * that is too old for an image says only that it knows no binary for the GPU.
 *
 * Which errors end a process stands in kernels/cuda_errors.def.
 */
#include "kernels/cuda_api.h"

#include "base/error.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

enum { NVRTC_NEEDS = 12000 }; /* the oldest driver that loads what NVRTC of CUDA 12 makes */

static int fail(struct ckv_cuda_fault *ret_fault, int r, CUresult code, const char *text) {
        *ret_fault = (struct ckv_cuda_fault){ .code = code };
        (void)snprintf(ret_fault->text, sizeof(ret_fault->text), "%s", text);
        return ckv_error_origin(r);
}

/* Return: NULL, or the first required entry point that the driver does not have. */
static const char *look_up(struct ckv_cuda *cuda) {
        const char *missing = NULL;
        void *found;

        /* POSIX makes of dlsym()'s answer a function pointer by copying its bits */
#define OPTIONAL(name, arguments) \
        found = dlsym(cuda->library, #name); \
        memcpy(&cuda->name, &found, sizeof(found));
#define EXPORT(name, arguments) OPTIONAL(name, arguments)
#define REQUIRED(name, arguments) \
        OPTIONAL(name, arguments) \
        if (!found && !missing) \
                missing = #name;
#include "kernels/cuda_api.def"
#undef REQUIRED
#undef OPTIONAL
#undef EXPORT
        return missing;
}

static int check_version(int version, int needed, struct ckv_cuda_fault *ret_fault) {
        const char *other = needed > NVRTC_NEEDS && version >= NVRTC_NEEDS ? ", or build with CUDA_COMPILER=nvrtc" : "";
        char text[sizeof(ret_fault->text)];

        if (needed < CKV_CUDA_DRIVER_OLDEST)
                needed = CKV_CUDA_DRIVER_OLDEST;
        if (version >= needed)
                return 0;
        (void)snprintf(text, sizeof(text), "the NVIDIA driver is made for CUDA %d.%d and the kernels here need one for CUDA %d.%d "
                       "or newer: update the driver%s", version / 1000, version % 1000 / 10, needed / 1000, needed % 1000 / 10, other);
        return fail(ret_fault, -EOPNOTSUPP, 0, text);
}

static int start(struct ckv_cuda *cuda, int needed, struct ckv_cuda_fault *ret_fault) {
        const char *missing = look_up(cuda);
        char text[sizeof(ret_fault->text)], name[64];
        CUresult code;

        if (missing) {
                (void)snprintf(text, sizeof(text), "the NVIDIA driver has no %s: it is older than CUDA 11.7, update it", missing);
                return fail(ret_fault, -ENOENT, 0, text);
        }
        code = cuda->cuInit(0);
        if (code == CUDA_SUCCESS)
                code = cuda->cuDriverGetVersion(&cuda->driver_version);
        if (code == CUDA_SUCCESS)
                return check_version(cuda->driver_version, needed, ret_fault);
        ckv_cuda_name(cuda, code, name, sizeof(name));
        (void)snprintf(text, sizeof(text), "the NVIDIA driver does not start: %s%s", name,
                       code == CUDA_ERROR_NO_DEVICE ? "; no GPU is visible to this process" :
                       code == CUDA_ERROR_OPERATING_SYSTEM ? "; a sandbox hides /proc or device files from it" : "");
        return fail(ret_fault, -EIO, code, text);
}

int ckv_cuda_load(const char *path, int needed, struct ckv_cuda *ret_cuda, struct ckv_cuda_fault *ret_fault) {
        struct ckv_cuda cuda = { .library = dlopen(path ? path : "libcuda.so.1", RTLD_NOW | RTLD_LOCAL) };
        int r;

        if (!cuda.library) {
                char text[sizeof(ret_fault->text)];

                (void)snprintf(text, sizeof(text), "there is no NVIDIA driver: %s", dlerror());
                return fail(ret_fault, -ENOENT, 0, text);
        }
        r = start(&cuda, needed, ret_fault);
        if (r < 0) {
                ckv_cuda_unload(&cuda);
                return ckv_error_trace(r);
        }
        *ret_cuda = cuda;
        return 0;
}

void ckv_cuda_unload(struct ckv_cuda *cuda) {
        if (cuda->library)
                (void)dlclose(cuda->library);
        *cuda = (struct ckv_cuda){ 0 };
}

void ckv_cuda_name(const struct ckv_cuda *cuda, CUresult code, char *ret_text, size_t size) {
        const char *name = NULL;

        if (cuda->cuGetErrorName(code, &name) != CUDA_SUCCESS || !name)
                name = "an error without a name";
        (void)snprintf(ret_text, size, "%s (%d)", name, code);
}

/* radius of kernels/cuda_errors.def */
enum { REGION, DEVICE };

bool ckv_cuda_fatal(CUresult code) {
        switch (code) {
#define ERROR(name, code, radius, detail) \
        case CUDA_ERROR_##name: \
                return radius == DEVICE;
#include "kernels/cuda_errors.def"
#undef ERROR
        default:
                return false;
        }
}
