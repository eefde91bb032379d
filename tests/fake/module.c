/*
 * Modules and launches of the stand-in driver.  An image must begin as one does
 * (a fat binary, a cubin, or the text of tests/support_image.c) and is not
 * looked at further: its kernels are those of kernels/cuda/kernels.def as
 * tests/emu runs them, and one for the stand-in's own test.  Parameters are one
 * struct by value, copied at the launch as the driver does.
 */
#include "kernels/cuda/params.h"
#include "tests/fake/stream.h"

#include <stdlib.h>
#include <string.h>

enum { THREADS_MAX = 1024, SHARED_ALWAYS = 48 << 10 };

/* data[i] += by, one element a thread */
struct add {
        CUdeviceptr data;
        uint32_t count, by;
};

static void run_add(const uint32_t grid[3], const uint32_t block[3], size_t shared_bytes, void **parameters) {
        const struct add *add = parameters[0];
        uint32_t *data = (uint32_t *)(uintptr_t)add->data;

        (void)shared_bytes;
        for (uint32_t i = 0; i < add->count && i < grid[0] * block[0]; i++)
                data[i] += add->by;
}

static struct CUfunc_st {
        const char *name;
        ckv_emu_kernel *kernel;         /* NULL: the emulator's of that name */
        size_t parameter_bytes;
        _Atomic int shared_most;        /* dynamic shared memory that a launch may ask for */
} functions[] = {
        { .name = "fake_add", .kernel = run_add, .parameter_bytes = sizeof(struct add), .shared_most = SHARED_ALWAYS },
#define KERNEL(name_, parameters) \
        { .name = "ckv_k_" #name_, .parameter_bytes = sizeof(struct ckv_k_##parameters), .shared_most = SHARED_ALWAYS },
#include "kernels/cuda/kernels.def"
#undef KERNEL
};
static const char *const images[] = { "\x50\xed\x55\xba", "\177ELF", "no kernels are in here" };

CUresult cuModuleLoadDataEx(CUmodule *ret_module, const void *image, unsigned int count, int *options, void **values) {
        (void)count;
        (void)options;
        (void)values;
        BEGIN();
        if (!image)
                return CUDA_ERROR_INVALID_VALUE;
        for (size_t i = 0; i < CKV_ARRAY_SIZE(images); i++)
                if (strncmp(image, images[i], strlen(images[i])) == 0) {
                        *ret_module = (CUmodule)(uintptr_t)image;
                        return CUDA_SUCCESS;
                }
        return CUDA_ERROR_INVALID_IMAGE;
}

CUresult cuModuleUnload(CUmodule module) {
        BEGIN();
        return module ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuModuleGetFunction(CUfunction *ret_function, CUmodule module, const char *name) {
        BEGIN();
        if (!module)
                return CUDA_ERROR_INVALID_HANDLE;
        for (size_t i = 0; i < CKV_ARRAY_SIZE(functions); i++)
                if (strcmp(functions[i].name, name) == 0) {
                        *ret_function = &functions[i];
                        return CUDA_SUCCESS;
                }
        return CUDA_ERROR_NOT_FOUND;
}

CUresult cuFuncSetAttribute(CUfunction function, int attribute, int value) {
        int most;
        CUresult r;

        BEGIN();
        r = cuDeviceGetAttribute(&most, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, 0);
        if (r != CUDA_SUCCESS)
                return r;
        if (attribute != CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES || value < 0 || value > most)
                return CUDA_ERROR_INVALID_VALUE;
        atomic_store(&function->shared_most, value);
        return CUDA_SUCCESS;
}

CUresult cuFuncGetAttribute(int *ret_value, int attribute, CUfunction function) {
        const char *registers = attribute == CU_FUNC_ATTRIBUTE_NUM_REGS ? getenv("FAKECUDA_REGISTERS") : NULL;

        BEGIN();
        *ret_value = attribute == CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES ? atomic_load(&function->shared_most) :
                     registers ? (int)strtol(registers, NULL, 10) : 0;
        return CUDA_SUCCESS;
}

CUresult cuLaunchKernel(CUfunction function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z,
                        unsigned int block_x, unsigned int block_y, unsigned int block_z, unsigned int shared_bytes,
                        CUstream stream, void **parameters, void **extra) {
        uint64_t threads = (uint64_t)block_x * block_y * block_z;
        struct ckv_fake_op op = {
                .kind = CKV_FAKE_KERNEL, .grid = { grid_x, grid_y, grid_z }, .block = { block_x, block_y, block_z },
                .shared_bytes = shared_bytes,
        };

        BEGIN();
        if (!function || extra || grid_x == 0 || grid_y == 0 || grid_z == 0 || grid_y > UINT16_MAX || grid_z > UINT16_MAX ||
            threads == 0 || threads > THREADS_MAX || (int)shared_bytes > atomic_load(&function->shared_most))
                return CUDA_ERROR_INVALID_VALUE;
        op.kernel = function->kernel ? function->kernel : ckv_emu_find(function->name);
        op.parameters = malloc(function->parameter_bytes);
        if (!op.parameters)
                return CUDA_ERROR_OUT_OF_MEMORY;
        memcpy(op.parameters, parameters[0], function->parameter_bytes);
        return ckv_fake_push(stream, &op);
}
