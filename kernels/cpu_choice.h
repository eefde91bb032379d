/*
 * Which code scores, decided once by measurement: flags only say what may be
 * tried.  AVX512-BF16 is twice as fast as FMA on one machine and half as fast
 * on another, so the paths are timed when the device is opened, on rows that
 * stream from memory, and the picks hold for the life of the process, because
 * paths differ in the last bits.
 */
#ifndef CKV_KERNELS_CPU_CHOICE_H
#define CKV_KERNELS_CPU_CHOICE_H

#include "kernels/backend.h"
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
 * Paths that are usable are tried on small problems first, and those with wrong results are not used.
 *
 * Return: 0, -ENOMEM, -EOPNOTSUPP if the named path is unknown here or not usable, or -EIO if its results are wrong.
 */
int ckv__cpu_choice_new(const char *forced, struct ckv_cpu_choice **ret_choice);

/* ckv__cpu_choice_of() - the same among paths that the caller lists, at most 8: for tests */
int ckv__cpu_choice_of(const struct ckv_cpu_path *paths, size_t count, const char *forced, struct ckv_cpu_choice **ret_choice);

/* ckv__cpu_choice_free() - NULL is fine. Return: NULL. */
struct ckv_cpu_choice *ckv__cpu_choice_free(struct ckv_cpu_choice *choice);

/**
 * ckv__cpu_choice_path() - the path for one shape
 * @dims:        of the product
 * @query_count: queries of a KV head: group x window; 0 for scorers without queries
 *
 * The fastest whose window kernel takes such a shape. Never NULL; where none does, its window kernel refuses (takes()) or is
 * NULL, and its general kernel is meant.
 */
const struct ckv_cpu_path *ckv__cpu_choice_path(const struct ckv_cpu_choice *choice, enum ckv_dtype keys, enum ckv_dtype queries,
                                                uint32_t dims, uint32_t query_count);

/* ckv__cpu_choice_paths() - all that were chosen from, slowest first: [*ret_count], borrowed */
const struct ckv_cpu_path *ckv__cpu_choice_paths(const struct ckv_cpu_choice *choice, size_t *ret_count);

/* ckv__cpu_choice_is_wrong() - did path number @path give wrong results? It is not used then. */
bool ckv__cpu_choice_is_wrong(const struct ckv_cpu_choice *choice, size_t path);

/* ckv__cpu_choice_picks() - the path of every range of shapes, each as its trial was taken. Return: how many. */
size_t ckv__cpu_choice_picks(const struct ckv_cpu_choice *choice, struct ckv_cpu_pick ret_picks[CKV_CPU_PICKS_MOST]);

/* The picks in three texts (cpu_choice_text.c), each cut to @size bytes with the closing 0 */

/* ckv__cpu_choice_text() - "amx: bf16 (head_dim 81-160 with 25-96 or 97+ queries); avx512: bf16 (...), f16, f32": what each path
 * scores; queries are those of a KV head */
void ckv__cpu_choice_text(const struct ckv_cpu_choice *choice, char *ret_text, size_t size);

/* ckv__cpu_choice_names() - "amx+avx512": all paths that are used */
void ckv__cpu_choice_names(const struct ckv_cpu_choice *choice, char *ret_text, size_t size);

/* ckv__cpu_choice_wrong() - "avx2, amx": paths that gave wrong results and are not used; empty if none did */
void ckv__cpu_choice_wrong(const struct ckv_cpu_choice *choice, char *ret_text, size_t size);

#endif
