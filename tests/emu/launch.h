/*
 * Kernels of the CUDA device, run on the CPU: what a stand-in for the driver
 * launches.  The library is tests/emu's; it needs no compiler of NVIDIA's.
 *
 * Device memory is any memory of this process: an address in a parameter struct
 * is a pointer.  One launch runs at a time; others wait for it.
 */
#ifndef CKV_TESTS_EMU_LAUNCH_H
#define CKV_TESTS_EMU_LAUNCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/**
 * ckv_emu_kernel - one kernel, to be launched
 * @grid, @block: [3]
 * @shared_bytes: dynamic shared memory
 * @parameters:   as cuLaunchKernel() takes them: parameters[0] points at the kernel's struct
 *
 * Returns when all blocks have run.  A kernel that breaks a rule (a barrier that not all threads reach, an access
 * past its shared memory) ends the process with a line on stderr.
 */
typedef void ckv_emu_kernel(const uint32_t grid[3], const uint32_t block[3], size_t shared_bytes, void **parameters);

/* ckv_emu_find() - by its whole name, "ckv_k_move"; NULL: there is no such kernel */
ckv_emu_kernel *ckv_emu_find(const char *name);

/* ckv_emu_parameter_bytes() - size of its parameter struct; 0: there is no such kernel */
size_t ckv_emu_parameter_bytes(const char *name);

enum ckv_emu_order { CKV_EMU_ASCENDING, CKV_EMU_DESCENDING, CKV_EMU_RANDOM };

/* ckv_emu_set_order() - in which order blocks and threads run from now on, ascending unless it is called; with an odd seed, what
 * threads copy in the background (cp.async) is there when they wait for it and no earlier, with an even one at once */
void ckv_emu_set_order(enum ckv_emu_order order, uint32_t seed);

#ifdef __cplusplus
}
#endif

#endif
