/*
 * Which code scores, decided once by measurement: flags only say what may be
 * tried.  AVX512-BF16 is twice as fast as FMA on one machine and half as fast
 * on another, so the paths are timed when the device is opened, on rows that
 * stream from memory, and the picks hold for the life of the process, because
 * paths differ in the last bits.
 */
#ifndef CKV_KERNELS_CPU_CHOICE_H
#define CKV_KERNELS_CPU_CHOICE_H

#include "kernels/cpu_kernel.h"
#include "kernels/cpu_window.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* One way through the scorers: scalar, avx2, avx512, avx512bf16 or amx */
struct ckv_cpu_path {
        const char *name;
        const struct ckv_cpu_kernel *kernel;                    /* takes everything */
        const struct ckv_cpu_window_kernel *window;             /* faster, takes most; NULL: none (scalar) */
        bool (*usable)(void);                                   /* CPU, kernel and permissions allow it; asked once, before threads start */
};

struct ckv_cpu_choice;

/* ckv__cpu_paths() - all paths that were built, slowest first: [*ret_count], scalar is the first */
const struct ckv_cpu_path *ckv__cpu_paths(size_t *ret_count);

/**
 * ckv__cpu_choice_new() - time the usable paths, or take the one that is named
 * @forced:     name of a path, or NULL to measure
 * @ret_choice: owned by the caller, ckv__cpu_choice_free()
 *
 * Return: 0, -ENOMEM, or -EOPNOTSUPP if the named path is unknown here or not usable.
 */
int ckv__cpu_choice_new(const char *forced, struct ckv_cpu_choice **ret_choice);

struct ckv_cpu_choice *ckv__cpu_choice_free(struct ckv_cpu_choice *choice);

/**
 * ckv__cpu_choice_path() - the path for one shape
 * @dims:        of the product
 * @query_count: queries of a KV head: group x window; 0 for scorers without queries
 *
 * Never NULL; its window kernel, if there is one, may still refuse (takes()).
 */
const struct ckv_cpu_path *ckv__cpu_choice_path(const struct ckv_cpu_choice *choice, enum ckv_dtype keys, enum ckv_dtype queries,
                                                uint32_t dims, uint32_t query_count);

/* ckv__cpu_choice_text() - "avx512bf16 (bf16 64-128), avx512 (else)": for log and status, cut to @size bytes with the closing 0 */
void ckv__cpu_choice_text(const struct ckv_cpu_choice *choice, char *ret_text, size_t size);

#endif
