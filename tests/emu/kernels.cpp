/*
 * The kernels of kernels/cuda compiled as C++, and a table of them by name.  This file is compiled with whatever sanitizer
 * the build has; the scheduler it runs on is not.
 */
#include "kernels/cuda/keys.cuh"
#include "kernels/cuda/leak.cuh"
#include "kernels/cuda/mma.cuh"
#include "kernels/cuda/move.cuh"
#include "kernels/cuda/score.cuh"
#include "kernels/cuda/select.cuh"
#include "kernels/cuda/sums.cuh"
#include "kernels/cuda/units.cuh"
#include "tests/emu/runtime.h"

#define KERNEL(name, parameters)                                                                                        \
        static void run_##name(const void *p) {                                                                         \
                ckv_k_##name(*static_cast<const struct ckv_k_##parameters *>(p));                                       \
        }                                                                                                               \
        static void launch_##name(const uint32_t grid[3], const uint32_t block[3], size_t shared_bytes, void **p) {     \
                emu::launch(grid, block, shared_bytes, run_##name, p[0]);                                               \
        }
#include "kernels/cuda/kernels.def"
#undef KERNEL

static const struct entry {
        const char *name;
        ckv_emu_kernel *kernel;
        size_t bytes;
} entries[] = {
#define KERNEL(name, parameters) { "ckv_k_" #name, launch_##name, sizeof(struct ckv_k_##parameters) },
#include "kernels/cuda/kernels.def"
#undef KERNEL
};

ckv_emu_kernel *ckv_emu_find(const char *name) {
        for (const struct entry &entry : entries)
                if (strcmp(entry.name, name) == 0)
                        return entry.kernel;
        return nullptr;
}

size_t ckv_emu_parameter_bytes(const char *name) {
        for (const struct entry &entry : entries)
                if (strcmp(entry.name, name) == 0)
                        return entry.bytes;
        return 0;
}
