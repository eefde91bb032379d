/*
 * Eight consecutive queries of one head and what they make of the rows: the
 * piece that scorers with queries are built of, in the reference and in the
 * exact path of the CPU device.
 */
#ifndef CKV_KERNELS_REFERENCE_BLOCK_H
#define CKV_KERNELS_REFERENCE_BLOCK_H

#include "kernels/job.h"

enum { CKV_REF_LANES = 8 };

/* Up to eight queries; the memory is the caller's. */
struct ckv_ref_block {
        uint32_t count;
        uint32_t low[CKV_REF_LANES], high[CKV_REF_LANES];       /* rows [low, high) take part */
        double *query;                                          /* [d][CKV_REF_LANES] */
        double *logits;                                         /* [CKV_REF_LANES][L] */
};

/**
 * ckv_ref_block_load() - take in the queries of one head
 * @first, @end: given query rows, 0 is the oldest; the first eight of them are taken
 * @values:      scratch, [d]
 */
void ckv_ref_block_load(struct ckv_ref_block *block, const struct ckv_job *job, const struct ckv_job_group *group,
                        const struct ckv_job_layer *layer, uint32_t head, uint32_t first, uint32_t end, float *values);

/**
 * ckv_ref_block_logits() - logits (raw_qk: products) of rows [from, to), where a query sees them; others are not read
 * @key: scratch, [k.dims]
 */
void ckv_ref_block_logits(struct ckv_ref_block *block, const struct ckv_job_group *group, const struct ckv_job_layer *layer,
                          uint32_t kv_head, uint32_t from, uint32_t to, float *key);

/* ckv_ref_block_softmax() - the logits of lane @lane become weights e / Z; @sink is a logit of no row, -infinity: none */
void ckv_ref_block_softmax(struct ckv_ref_block *block, uint32_t rows, uint32_t lane, double sink);

/**
 * ckv_ref_drop_outputs() - drop: o of each lane, as far as rows [from, to) go
 * @value: scratch, [v.dims]
 * @o:     [v.dims][CKV_REF_LANES], added to
 */
void ckv_ref_drop_outputs(const struct ckv_ref_block *block, const struct ckv_job_group *group, const struct ckv_job_layer *layer,
                          uint32_t kv_head, uint32_t from, uint32_t to, float *value, double *o);

/**
 * ckv_ref_drop_scores() - drop: what each lane adds to the scores of rows [from, to)
 * @value: scratch, [v.dims]
 * @s:     [L] S[g][j], added to
 */
void ckv_ref_drop_scores(const struct ckv_ref_block *block, const struct ckv_job_group *group, const struct ckv_job_layer *layer,
                         uint32_t kv_head, const double *o, uint32_t from, uint32_t to, float *value, double *s);

#endif
