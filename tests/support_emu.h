/*
 * Launching a kernel of the CUDA device in the emulator, and the parameters that
 * all tests of them fill in alike.
 */
#ifndef CKV_TESTS_SUPPORT_EMU_H
#define CKV_TESTS_SUPPORT_EMU_H

#include "kernels/cuda/params.h"
#include "kernels/layout.h"

#include <check.h>
#include <stddef.h>
#include <stdint.h>

#define AT(pointer) ((uint64_t)(uintptr_t)(pointer))

/* LAUNCH() - a kernel by its name without ckv_k_, in the grid that kernels/cuda/params.h gives it */
#define LAUNCH(name, parameters)                                                                        \
        do {                                                                                            \
                struct ckv_k_launch plan_ = ckv_k_plan_##name(parameters);                              \
                                                                                                        \
                emu_launch("ckv_k_" #name, &plan_, parameters);                                         \
        } while (0)

/* emu_launch() - nothing happens if the grid is empty; aborts the test if there is no such kernel */
void emu_launch(const char *name, const struct ckv_k_launch *plan, void *parameters);

/* emu_room() - memory that begins as 0xff, NaN, and whose end the sanitizer knows; to be freed */
void *emu_room(size_t bytes);

struct ckv_k_plane emu_plane(const struct ckv_plane *plane);
struct ckv_k_table emu_table(const struct ckv_row_table *table);

/* emu_sums_case() - the tests of partial sums by unit; @seeds: jobs, 0: as many as this build has time for */
TCase *emu_sums_case(uint32_t seeds);

#endif
