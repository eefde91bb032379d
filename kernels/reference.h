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
 * ckv_ref_visible() - the rows that one query may see, as a range
 * @back:     query rows back from the newest one, which is 0
 * @ret_low:  first row
 * @ret_high: row behind the last; positions ascend, so what is between is all visible
 *
 * Causal by position, and no further back than policy.sliding (section 3, window).
 */
void ckv_ref_visible(const struct ckv_job *job, const struct ckv_job_group *group, uint32_t back, uint32_t *ret_low,
                     uint32_t *ret_high);

/* Query rows that take part, as ranges of the rows that were given: 0 is the oldest of them. */
struct ckv_query_rows {
        uint32_t vote_first, vote_end;          /* whose weights are added up, or whose largest counts */
        uint32_t contrast_first, contrast_end;  /* whose mean is subtracted; equal: nothing is */
};

/**
 * ckv_ref_query_rows() - which of the given query rows take part in S1
 *
 * The newest window rows vote, of these only the newest vote_rows where that is given. The contrast counts back from the
 * newest over all rows given, those before the window included, as far as the sequence reaches (section 3, contrast).
 */
struct ckv_query_rows ckv_ref_query_rows(const struct ckv_job *job, const struct ckv_job_group *group);

/* ckv_ref_seen() - by how many of the voting queries each row is seen: [L + 1], the last one scratch */
void ckv_ref_seen(const struct ckv_job *job, const struct ckv_job_group *group, uint32_t *ret_seen);

/* ckv_ref_scale() - the factor on q.k: policy.scale, or 1 / sqrt(head_dim_k) where that is 0 */
double ckv_ref_scale(const struct ckv_job_group *group);

/* ckv_ref_lse() - the log-sum-exp of head @head of given query row @row; it lies in the same ring as the queries */
float ckv_ref_lse(const struct ckv_job *job, const struct ckv_job_layer *layer, uint32_t row, uint32_t head);

/* ckv_ref_sink_logit() - of query head @head; -infinity, which is none, where the layer has none */
float ckv_ref_sink_logit(const struct ckv_job_layer *layer, uint32_t head);

/**
 * ckv_ref_lse_wrong() - R40: is the log-sum-exp of one query not that of these rows?
 * @lse:   natural log, over the visible rows and the sink
 * @sink:  ckv_ref_sink_logit()
 * @above: by how much the largest logit of a row exceeds lse
 * @sum:   of the weights of the rows
 */
bool ckv_ref_lse_wrong(double lse, double sink, double above, double sum);

/**
 * ckv_ref_score_head() - S1 of scorers window and raw_qk: the weights of one query head, norm, contrast and mute included
 * @head:  query head h; it reads KV head h / (q_heads / kv_heads)
 * @ret_a: [L] A[h][j]
 *
 * Rows that no query may see are never read (R34).
 *
 * Return: 0, -ENOMEM, or 1 if a log-sum-exp of this head is wrong (R40).
 */
int ckv_ref_score_head(const struct ckv_job *job, const struct ckv_job_group *group, const struct ckv_job_layer *layer,
                       uint32_t head, double *ret_a);

/* ckv_ref_scores_kv_heads() - does the scorer give S[g][j] of KV heads, and not A[h][j] of query heads? */
static inline bool ckv_ref_scores_kv_heads(const struct ckv_policy *policy) {
        return policy->scorer != CKV_SCORER_WINDOW && policy->scorer != CKV_SCORER_RAW_QK;
}

/**
 * ckv_ref_score_keys() - scorers knorm, keydiff, lagkv and vk_ratio: one KV head
 * @ret_s: [L] S[g][j]
 *
 * Return: 0 or -ENOMEM.
 */
int ckv_ref_score_keys(const struct ckv_job_group *group, const struct ckv_job_layer *layer, uint32_t head, double *ret_s);

enum { CKV_LAG_ROWS = 128, CKV_LAG_SINKS = 4 };         /* m and n_s of lagkv */

/* ckv_ref_lag_partitions() - lagkv: partitions that are scored; 0: the sequence is too short, and scores go by row */
uint32_t ckv_ref_lag_partitions(uint32_t rows);

/**
 * ckv_ref_lag_partition() - lagkv: scores of partition @index of one KV head, which starts at row 4 + 128 * index
 * @scratch: [3 * (the larger number of dimensions of K and V)]
 * @ret_s:   [L] S[g][j]; the rows of the partition are written
 */
void ckv_ref_lag_partition(const struct ckv_job_group *group, const struct ckv_job_layer *layer, uint32_t head, uint32_t index,
                           float *scratch, double *ret_s);

/* ckv_ref_lag_default() - lagkv: S of row @row where no partition that is scored holds it */
double ckv_ref_lag_default(uint32_t rows, uint32_t row);

/**
 * ckv_ref_score_drop() - scorer drop: one KV head
 * @ret_s: [L] S[g][j]
 *
 * Return: 0 or -ENOMEM.
 */
int ckv_ref_score_drop(const struct ckv_job *job, const struct ckv_job_group *group, const struct ckv_job_layer *layer,
                       uint32_t head, double *ret_s);

/* ckv_ref_pool_domain() - how many rows S2 pools: L - w with queries, L without, and L - r in profile vote */
uint32_t ckv_ref_pool_domain(const struct ckv_job_group *group);

/**
 * ckv_ref_pool() - S2 over one head, pool none, avg or max
 * @a:       [rows]
 * @domain:  rows [0, domain) are pooled, the others copied
 * @ret_out: [rows], not @a
 */
void ckv_ref_pool(const struct ckv_policy *policy, const double *a, uint32_t rows, uint32_t domain, double *ret_out);

/**
 * ckv_ref_leak() - S2 over one head, pool = leak, in place
 * @a:      [rows >= domain], not negative
 * @domain: rows [0, domain) are pooled
 *
 * Each row gets the largest of a[i] * 0.92^|i - j| * 0.3^(ends of the caller's chunks between i and j).
 */
void ckv_ref_leak(const struct ckv_selection *selection, uint32_t domain, double *a);

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
 * @job: its budget, budgets, kept, kept_mass, outcome and fail_* are filled in; times, cancel and deadline are the backend's business
 *
 * Reuse (section 5) counts the layers of each layer group by themselves; kernels/sets.h says who leads.
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
