/*
 * What scheme B needs beside the kernel: which row adds how much to which unit,
 * cut into segments, and memory for the sums.
 */
#ifndef CKV_KERNELS_CPU_PARTS_H
#define CKV_KERNELS_CPU_PARTS_H

#include "kernels/cpu_scratch.h"
#include "kernels/cpu_window.h"
#include "kernels/job.h"

/* A column is a unit within a segment; a unit on a border has one in both. */
struct ckv_cpu_parts {
        struct ckv_cpu_scratch *scratch;        /* that the memory is of; NULL: of the C library */
        uint32_t segment_rows, segments, columns;
        uint32_t *first_column;                 /* [segments + 1] */
        uint32_t *first_unit;                   /* [segments] of its first column; the others follow */
        uint32_t *first;                        /* [L + segments] as of ckv_cpu_window_map; of segment s from s * (rows + 1) on */
        struct ckv_cpu_window_part *entries;
        uint32_t *first_entry;                  /* [segments] */

        uint32_t band;                          /* KV heads that are worked on together */
        size_t stride;                          /* floats of a column: queries of a KV head, padded */
        float *sums;                            /* [band][columns][stride] P */
        double *heads;                          /* [kv_heads][columns] summed up over the queries */
        float *scores;                          /* [ckv_score_heads()][N] C[u] */
};

/**
 * ckv__cpu_parts_new() - the map of a group
 * @units:        of the group
 * @domain:       rows that are pooled
 * @seen:         [L] norm = seen; else NULL
 * @segment_rows: rows of a segment
 * @stride:       queries of a KV head, padded
 * @band:         KV heads at most
 * @scratch:      where memory comes from, borrowed until the end; may be NULL
 * @bytes:        that all of it may take
 *
 * @ret_parts:    owned by the caller; NULL if with the sums of one KV head it is more than that
 *
 * Return: 0 or -ENOMEM.
 */
int ckv__cpu_parts_new(const struct ckv_job_group *group, const struct ckv_units *units, uint32_t domain, const uint32_t *seen,
                       uint32_t segment_rows, size_t stride, uint32_t band, struct ckv_cpu_scratch *scratch, uint64_t bytes,
                       struct ckv_cpu_parts **ret_parts);

/* ckv__cpu_parts_free() - NULL is fine. Return: NULL. */
struct ckv_cpu_parts *ckv__cpu_parts_free(struct ckv_cpu_parts *parts);

/* ckv__cpu_parts_map() - what a window kernel needs for one segment */
struct ckv_cpu_window_map ckv__cpu_parts_map(const struct ckv_cpu_parts *parts, uint32_t segment);

/**
 * ckv__cpu_parts_reduce() - heads[column] = sum over the queries of sums * inverse, for a stretch of columns
 * @head:        of the band
 * @inverse:     [query_count] 1 / Z
 * @ret_heads:   [columns] of this KV head; first .. end-1 are written
 */
void ckv__cpu_parts_reduce(const struct ckv_cpu_parts *parts, uint32_t head, uint32_t query_count, const float *inverse,
                           uint32_t first, uint32_t end, double *ret_heads);

/* ckv__cpu_parts_form() - scores from heads: C[u] of all score heads (S3, S4); @votes: query rows of the window */
void ckv__cpu_parts_form(struct ckv_cpu_parts *parts, const struct ckv_job_group *group, const struct ckv_units *units,
                         uint32_t votes);

#endif
