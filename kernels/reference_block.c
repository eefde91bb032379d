/*
 * Logits, weights and outputs of eight queries at a time.
 *
 * Lanes keep the order of every single sum (R11, R12) while eight of them are
 * in flight, which is the only concession to speed of the reference.  All
 * functions but the softmax take a range of rows, so that a caller who has to
 * stop in between can: the CPU device runs the scorer drop with them.
 *
 * Rows outside a query's range are left out of everything, not added as zeros
 * (R34); rows that no query of the block sees are not read.
 */
#include "kernels/reference_block.h"

#include "base/macros.h"
#include "kernels/reference.h"

#include <math.h>
#include <string.h>

double ckv_ref_scale(const struct ckv_job_group *group) {
        return group->policy.scale > 0 ? group->policy.scale : 1.0 / sqrt((double)group->head_dim_k);
}

void ckv_ref_block_load(struct ckv_ref_block *block, const struct ckv_job *job, const struct ckv_job_group *group,
                        const struct ckv_job_layer *layer, uint32_t head, uint32_t first, uint32_t end, float *values) {
        uint32_t d = group->head_dim_k;

        block->count = CKV_MIN(CKV_REF_LANES, end - first);
        memset(block->query, 0, (size_t)d * CKV_REF_LANES * sizeof(*block->query));
        for (uint32_t i = 0; i < block->count; i++) {
                ckv_ref_load_query(job, group, layer, first + i, head, values);
                for (uint32_t x = 0; x < d; x++)
                        block->query[(size_t)x * CKV_REF_LANES + i] = (double)values[x];
                if (group->policy.scorer == CKV_SCORER_RAW_QK) {
                        block->low[i] = 0;
                        block->high[i] = group->selection.rows;
                } else
                        ckv_ref_visible(job, group, job->queries.rows - 1 - first - i, &block->low[i], &block->high[i]);
        }
}

static double logit(const struct ckv_policy *policy, double product, double scale) {
        double s = product * scale;

        return policy->softcap > 0 ? policy->softcap * ckv_ref_tanh(s / policy->softcap) : s;
}

/* Positions ascend, so the oldest query reaches back farthest and the newest sees farthest ahead. */
static uint32_t first_seen(const struct ckv_ref_block *block, uint32_t from) {
        return CKV_MAX(from, block->low[0]);
}

static uint32_t end_seen(const struct ckv_ref_block *block, uint32_t to) {
        return CKV_MIN(to, block->high[block->count - 1]);
}

static bool sees(const struct ckv_ref_block *block, uint32_t lane, uint32_t row) {
        return row >= block->low[lane] && row < block->high[lane];
}

void ckv_ref_block_logits(struct ckv_ref_block *block, const struct ckv_job_group *group, const struct ckv_job_layer *layer,
                          uint32_t kv_head, uint32_t from, uint32_t to, float *key) {
        bool raw = group->policy.scorer == CKV_SCORER_RAW_QK;
        uint32_t rows = group->selection.rows, end = end_seen(block, to);
        double scale = ckv_ref_scale(group);

        for (uint32_t j = first_seen(block, from); j < end; j++) {
                double sum[CKV_REF_LANES] = { 0 };

                ckv_ref_load(&layer->k, &group->table, j, kv_head, key);
                for (uint32_t x = 0; x < group->head_dim_k; x++)
                        for (uint32_t i = 0; i < CKV_REF_LANES; i++)
                                sum[i] += block->query[(size_t)x * CKV_REF_LANES + i] * (double)key[x];
                for (uint32_t i = 0; i < block->count; i++)
                        if (sees(block, i, j))
                                block->logits[(size_t)i * rows + j] = raw ? sum[i] : logit(&group->policy, sum[i], scale);
        }
}

void ckv_ref_block_softmax(struct ckv_ref_block *block, uint32_t rows, uint32_t lane, double sink) {
        double *s = block->logits + (size_t)lane * rows, m = sink, z = 0;
        uint32_t low = block->low[lane], high = block->high[lane];

        for (uint32_t j = low; j < high; j++)
                m = s[j] > m ? s[j] : m;
        for (uint32_t j = low; j < high; j++) {
                s[j] = ckv_ref_exp(s[j] - m);
                z += s[j];
        }
        if (sink != -INFINITY)
                z += ckv_ref_exp(sink - m);
        for (uint32_t j = low; j < high; j++)
                s[j] = s[j] / z;
}

void ckv_ref_drop_outputs(const struct ckv_ref_block *block, const struct ckv_job_group *group, const struct ckv_job_layer *layer,
                          uint32_t kv_head, uint32_t from, uint32_t to, float *value, double *o) {
        uint32_t rows = group->selection.rows, end = end_seen(block, to);

        for (uint32_t j = first_seen(block, from); j < end; j++) {
                double p[CKV_REF_LANES] = { 0 };
                bool seen[CKV_REF_LANES] = { false };

                ckv_ref_load(&layer->v, &group->table, j, kv_head, value);
                for (uint32_t i = 0; i < block->count; i++) {
                        seen[i] = sees(block, i, j);
                        p[i] = seen[i] ? block->logits[(size_t)i * rows + j] : 0;
                }
                for (uint32_t x = 0; x < layer->v.dims; x++)
                        for (uint32_t i = 0; i < CKV_REF_LANES; i++)
                                o[(size_t)x * CKV_REF_LANES + i] += seen[i] ? p[i] * (double)value[x] : 0.0;
        }
}

void ckv_ref_drop_scores(const struct ckv_ref_block *block, const struct ckv_job_group *group, const struct ckv_job_layer *layer,
                         uint32_t kv_head, const double *o, uint32_t from, uint32_t to, float *value, double *s) {
        uint32_t rows = group->selection.rows, end = end_seen(block, to);

        for (uint32_t j = first_seen(block, from); j < end; j++) {
                double square[CKV_REF_LANES] = { 0 };

                ckv_ref_load(&layer->v, &group->table, j, kv_head, value);
                for (uint32_t x = 0; x < layer->v.dims; x++)
                        for (uint32_t i = 0; i < CKV_REF_LANES; i++) {
                                double gap = (double)value[x] - o[(size_t)x * CKV_REF_LANES + i];

                                square[i] += gap * gap;
                        }
                for (uint32_t i = 0; i < block->count; i++) {
                        double p, rest, share;

                        if (!sees(block, i, j))
                                continue;
                        p = block->logits[(size_t)i * rows + j];
                        rest = 1 - p;
                        share = p / (rest < 0x1p-20 ? 0x1p-20 : rest);
                        s[j] += share * share * square[i];
                }
        }
}
