/*
 * The CUDA driver as a table of functions, looked up at run time: the daemon is
 * not linked to it and starts on machines without one.  Entry points are in
 * kernels/cuda_api.def; the CUDA runtime is used nowhere.
 *
 * A call of a table returns a CUresult.  ckv_cuda_name() puts one into words;
 * ckv_cuda_fatal() says whether the process must end because of it.
 */
#ifndef CKV_KERNELS_CUDA_API_H
#define CKV_KERNELS_CUDA_API_H

#include "kernels/cuda_types.h"

#include <stdbool.h>
#include <stddef.h>

/* Oldest driver that knows every required entry point with the arguments used here: stream memory operations without a module
 * parameter (11.7), cuDeviceGetUuid_v2 (11.4). Images may need a newer one: ckv_cuda_load()'s @needed. */
#define CKV_CUDA_DRIVER_OLDEST 11070

struct ckv_cuda {
        void *library;          /* of dlopen() */
        int driver_version;     /* 1000 * major + 10 * minor, of the CUDA that the driver was made for */
#define REQUIRED(name, arguments) CUresult (*name) arguments;
#define OPTIONAL(name, arguments) REQUIRED(name, arguments)
#define EXPORT(name, arguments) REQUIRED(name, arguments)
#include "kernels/cuda_api.def"
#undef REQUIRED
#undef OPTIONAL
#undef EXPORT
};

struct ckv_cuda_fault {
        char text[256];         /* a sentence for people: what is missing, and what would mend it */
        CUresult code;          /* of the call that failed; 0: none did */
};

/**
 * ckv_cuda_load() - find the driver, look up its entry points, and start it
 * @path:      NULL: libcuda.so.1, as the dynamic linker finds it
 * @needed:    lowest driver version that can load the images this program carries; 0: any
 * @ret_cuda:  filled in only on success; ckv_cuda_unload()
 * @ret_fault: written only on failure
 *
 * Return: 0; -ENOENT: no driver, or one without an entry point; -EOPNOTSUPP: too old; -EIO: it does not start (code).
 */
int ckv_cuda_load(const char *path, int needed, struct ckv_cuda *ret_cuda, struct ckv_cuda_fault *ret_fault);

/* ckv_cuda_unload() - forget the driver; a zeroed struct is fine. Nothing of it may be in use. */
void ckv_cuda_unload(struct ckv_cuda *cuda);

/* ckv_cuda_name() - "CUDA_ERROR_MAP_FAILED (205)" */
void ckv_cuda_name(const struct ckv_cuda *cuda, CUresult code, char *ret_text, size_t size);

/* ckv_cuda_fatal() - does every later call of this process return this error, too (reliability.md 3)? Then only a new process
 * can go on. */
bool ckv_cuda_fatal(CUresult code);

#endif
