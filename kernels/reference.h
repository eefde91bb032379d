/*
 * The scalar reference of scoring (S1 to S4) and compaction (S9): binary64,
 * one rounding for each written operation, sums in ascending index order
 * (algorithm.md 2.1).  It is readable before it is fast; it is the oracle of
 * the conformance suite and the fallback for what no fast path covers.
 *
 * A backend that has the weights A[h][j] may enter at any later stage: pool
 * each head (S2), reduce the heads to T[j] (S3), reduce rows to C[u] (S4).
 */
#ifndef CKV_KERNELS_REFERENCE_H
#define CKV_KERNELS_REFERENCE_H

#include "kernels/job.h"

/* R14: transcendentals of our own, because libm differs between systems. log: normal v > 0 only. */
double ckv_ref_exp(double v);
double ckv_ref_log(double v);
double ckv_ref_tanh(double v);

/* R4: exact conversions of 16-bit floats, as bit patterns. */
float ckv_bf16_to_f32(uint16_t bits);
float ckv_f16_to_f32(uint16_t bits);

/* R13: binary64 to binary32, nearest even; a zero is stored as +0.0. */
float ckv_fl32(double v);

/**
 * ckv_ref_load() - dimensions of (row, head) of a plane, widened to binary32 (R4)
 * @ret_values: [plane->dims]
 *
 * The stored value converts exactly and is multiplied by plane->scale (0 = 1.0) with one rounding.
 * CKV_DTYPE_BYTE has no values; whoever admits a job refuses to score it.
 */
void ckv_ref_load(const struct ckv_plane *plane, const struct ckv_row_table *table, uint32_t row, uint32_t head,
                  float *ret_values);

/* ckv_ref_load_query() - head @head of query row @row (0 = oldest given), widened: [group->head_dim_k] */
void ckv_ref_load_query(const struct ckv_job *job, const struct ckv_job_group *group, const struct ckv_job_layer *layer,
                        uint32_t row, uint32_t head, float *ret_values);

/**
 * ckv_ref_visible() - the rows that one window query may see, as a range
 * @t:        0 .. w-1; the w newest of the given query rows vote, t = w-1 is the newest
 * @ret_low:  first row
 * @ret_high: row behind the last; positions ascend, so what is between is all visible
 *
 * Causal by position, and no further back than policy.sliding (section 3, window).
 */
void ckv_ref_visible(const struct ckv_job *job, const struct ckv_job_group *group, uint32_t t, uint32_t *ret_low,
                     uint32_t *ret_high);

/* ckv_ref_scale() - the factor on q.k: policy.scale, or 1 / sqrt(head_dim_k) where that is 0 */
double ckv_ref_scale(const struct ckv_job_group *group);

/**
 * ckv_ref_score_head() - S1: the weights of one query head, norm included
 * @head:  query head h; it reads KV head h / (q_heads / kv_heads)
 * @ret_a: [L] A[h][j]
 *
 * Rows that no query may see are never read (R34).
 *
 * Return: 0 or -ENOMEM.
 */
int ckv_ref_score_head(const struct ckv_job *job, const struct ckv_job_group *group, const struct ckv_job_layer *layer,
                       uint32_t head, double *ret_a);

/**
 * ckv_ref_pool() - S2 over one head
 * @a:       [rows]
 * @domain:  rows [0, domain) are pooled, the others copied; L - w for window scorers
 * @ret_out: [rows], not @a
 */
void ckv_ref_pool(const struct ckv_policy *policy, const double *a, uint32_t rows, uint32_t domain, double *ret_out);

/**
 * ckv_ref_reduce_heads() - S3: group, weigh by the norms of V, reduce the KV heads
 * @a:        [q_heads][L] pooled weights
 * @ret_rows: [ckv_score_heads()][L] T[j]
 *
 * Reads layer->v only if policy.value_weight asks for it.  A maximum hands on a NaN wherever it stands, so that
 * R23 sees it; among numbers it is R11's.
 *
 * Return: 0 or -ENOMEM.
 */
int ckv_ref_reduce_heads(const struct ckv_job_group *group, const struct ckv_job_layer *layer, const double *a,
                         double *ret_rows);

/**
 * ckv_ref_score_rows() - S1 to S3: T[j] of one layer, whatever the scorer
 * @ret_rows: [ckv_score_heads()][L] binary64: T[j], or with heads = each T[g][j] of each KV head
 *
 * Return: 0, -ENOMEM, or h + 1, where h is the first query head whose log-sum-exp is wrong (R40).
 */
int ckv_ref_score_rows(const struct ckv_job *job, const struct ckv_job_group *group, const struct ckv_job_layer *layer,
                       double *ret_rows);

/**
 * ckv_ref_unit_scores() - S4: C[u] of each unit
 * @row_scores: [rows] T[j]
 * @ret_units:  [units->count]
 */
void ckv_ref_unit_scores(const struct ckv_policy *policy, const struct ckv_units *units, uint32_t rows,
                         const double *row_scores, float *ret_units);

/**
 * ckv_ref_run_plan() - the whole of CKV_STAGE_PLAN for a job
 * @job: its budget, kept, outcome and fail_* are filled in; times, cancel and deadline are the backend's business
 *
 * Reuse (section 5) counts the layers of each group by themselves.
 *
 * Return: 0 whatever the outcome, or -ENOMEM (and CKV_JOB_NO_MEMORY).
 */
int ckv_ref_run_plan(struct ckv_job *job);

/* ckv_ref_run_move() - the whole of CKV_STAGE_MOVE for a job that was planned with CKV_JOB_OK, in steps if it has any;
 * counts bytes_moved; takes no memory */
void ckv_ref_run_move(struct ckv_job *job);

/* ckv_ref_move_bytes() - bytes read plus written when the kept rows of a group move; rows that stay, and those of steps before
 * job->steps.first, count 0 */
uint64_t ckv_ref_move_bytes(const struct ckv_job *job, const struct ckv_job_group *group);

#endif
