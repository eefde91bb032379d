/*
 * The scorer drop: how much the output of attention changes if one row alone
 * goes, squared and summed up over the window's queries.
 *
 *     o[t] = sum over j of p[j] * V[j]                     p as in the scorer window
 *     S[g][j] = sum over the group's h, then t, of (p[j] / max(1 - p[j], 2^-20))^2 * |V[j] - o[t]|^2
 *
 * What remains of the softmax without row j is p / (1 - p), which is why the
 * weights are needed in binary64: binary32 has nothing left of 1 - p where one
 * row has almost all the weight.  V is read twice for each block of queries.
 * A log-sum-exp of the caller is not used.
 */
#include "kernels/reference.h"

#include "base/macros.h"
#include "kernels/reference_block.h"

#include <errno.h>
#include <string.h>

int ckv_ref_score_drop(const struct ckv_job *job, const struct ckv_job_group *group, const struct ckv_job_layer *layer,
                       uint32_t head, double *ret_s) {
        uint32_t rows = group->selection.rows, per_group = group->q_heads / group->kv_heads, w = group->policy.window;
        size_t d = (size_t)CKV_MAX(CKV_MAX(group->head_dim_k, layer->k.dims), layer->v.dims) + 1;
        _cleanup_free_ double *query = malloc(d * CKV_REF_LANES * sizeof(*query)), *o = malloc(d * CKV_REF_LANES * sizeof(*o));
        _cleanup_free_ double *logits = malloc(((size_t)rows + 1) * CKV_REF_LANES * sizeof(*logits));
        _cleanup_free_ float *values = malloc(d * sizeof(*values));
        struct ckv_ref_block block = { .query = query, .logits = logits };

        if (!query || !o || !logits || !values)
                return -ENOMEM;
        memset(ret_s, 0, (size_t)rows * sizeof(*ret_s));
        for (uint32_t h = head * per_group; h < (head + 1) * per_group; h++)
                for (uint32_t r = job->queries.rows - w; r < job->queries.rows; r += CKV_REF_LANES) {
                        ckv_ref_block_load(&block, job, group, layer, h, r, job->queries.rows, values);
                        ckv_ref_block_logits(&block, group, layer, head, 0, rows, values);
                        for (uint32_t i = 0; i < block.count; i++)
                                ckv_ref_block_softmax(&block, rows, i, (double)ckv_ref_sink_logit(layer, h));
                        memset(o, 0, d * CKV_REF_LANES * sizeof(*o));
                        ckv_ref_drop_outputs(&block, group, layer, head, 0, rows, values, o);
                        ckv_ref_drop_scores(&block, group, layer, head, o, 0, rows, values, ret_s);
                }
        return 0;
}
