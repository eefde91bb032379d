/*
 * S1 to S3 of one layer on the CPU, in pieces: T[j] of every row, computed by a
 * pool of threads with as many stops in between as the caller likes.  Memory is
 * taken once for all layers of a group.
 */
#ifndef CKV_KERNELS_CPU_SCORE_H
#define CKV_KERNELS_CPU_SCORE_H

#include "kernels/cpu_choice.h"
#include "kernels/cpu_pool.h"
#include "kernels/cpu_scratch.h"
#include "kernels/job.h"

#include <stdbool.h>

struct ckv_cpu_score;

/**
 * ckv__cpu_score_new_in() - memory to score the layers of one group
 * @job, @group: borrowed; any scorer but given; with queries: w <= L, and at least w query rows given
 * @scratch:     borrowed until the end: where it comes from, and how much there may be; NULL: from the C library
 * @ret_score:   ckv__cpu_score_free()
 *
 * Bytes: 8 * L for each vector of scores, and
 * - window, raw_qk: for as many KV heads as fit what is left of the scratch (one at least) G * (4 * L + p * (4 * d + L / 32)),
 *   p the query rows of a panel (w, but not above 256), with L / 8 for the widest shapes; contrast 4 * G * L more, leak
 *   8 * G * L; in scheme B, sums by unit in place of the 4 * L, and 18 * L once, or it is not taken;
 * - knorm, keydiff, vk_ratio, lagkv: 8 * KV heads * (L + d * L / 256 for keydiff);
 * - drop: 8 * KV heads * L, 64 * L, and 64 * dv for each segment, of which there are 256 at most.
 *
 * Return: 0 or -ENOMEM.
 */
int ckv__cpu_score_new_in(const struct ckv_job *job, const struct ckv_job_group *group, struct ckv_cpu_scratch *scratch,
                          struct ckv_cpu_score **ret_score);

/* ckv__cpu_score_new() - the same without a scratch */
int ckv__cpu_score_new(const struct ckv_job *job, const struct ckv_job_group *group, struct ckv_cpu_score **ret_score);
struct ckv_cpu_score *ckv__cpu_score_free(struct ckv_cpu_score *score);

/* ckv__cpu_score_begin() - turn to a layer of the group (borrowed), whatever became of the one before */
void ckv__cpu_score_begin(struct ckv_cpu_score *score, const struct ckv_job_layer *layer);

/* ckv__cpu_score_step() - go on until the layer is done or @until_nsec (CLOCK_MONOTONIC) is past. Return: is it done? */
bool ckv__cpu_score_step(struct ckv_cpu_score *score, struct ckv_cpu_pool *pool, const struct ckv_cpu_choice *choice,
                         uint64_t until_nsec);

/* ckv__cpu_score_expect_units() - C[u] will do for all layers, and T[j] need not be formed; @units is borrowed until the end */
void ckv__cpu_score_expect_units(struct ckv_cpu_score *score, const struct ckv_units *units);

/* ckv__cpu_score_units() - [ckv_score_heads()][N] C[u] of the layer that is done; NULL: there is T[j] instead. Borrowed until the
 * next begin */
const float *ckv__cpu_score_units(const struct ckv_cpu_score *score);

/* ckv__cpu_score_rows() - [ckv_score_heads()][L] binary64 T[j] of the layer that is done; borrowed until the next begin */
const double *ckv__cpu_score_rows(const struct ckv_cpu_score *score);

/* ckv__cpu_score_no_memory() - the layer is done because memory ran out: it has no scores. (Another way to score it would
 * differ in its last bits.) */
bool ckv__cpu_score_no_memory(const struct ckv_cpu_score *score);

/* ckv__cpu_score_bad_head() - of the layer that is done: 0, or h + 1, where h is the first query head whose log-sum-exp is
 * wrong (R40) */
uint32_t ckv__cpu_score_bad_head(const struct ckv_cpu_score *score);

/* ckv__cpu_segment_rows() - rows of a segment, 64 to 256: depends on the shape alone (R30) */
uint32_t ckv__cpu_segment_rows(uint32_t query_count, uint32_t dims);

#endif
