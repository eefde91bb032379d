/*
 * The table of cuda_scheme.h, and the borders of partial sums.
 *
 * Borders are found by units, of which there are fewer than rows.  That takes
 * a unit to reach up to the next one's first row, which a protected span may
 * keep it from: then a segment has a column of zeros more, or sums are not made
 * that could be.  Neither is wrong.
 */
#include "kernels/cuda_scheme.h"

#include "base/macros.h"
#include "kernels/cuda_shape.h"
#include "kernels/reference.h"
#include "kernels/scores.h"

struct ckv_cuda_kind ckv__cuda_kind(const struct ckv_job *job, const struct ckv_job_group *group, const struct ckv_job_layer *layer,
                                    bool staged) {
        const struct ckv_job_queries *queries = &job->queries;
        uint64_t row = (uint64_t)group->head_dim_k * ckv_dtype_bytes(queries->dtype);
        /* what the policy asks of a weight is the table's; here it is of shape alone */
        struct ckv_k_score p = {
                .votes = 1, .layer_count = 1, .head_dim = group->head_dim_k, .softcap = (float)group->policy.softcap,
                .query_dtype = queries->dtype, .query_row_stride = staged ? row : queries->row_stride,
                .query_head_stride = staged ? queries->rows * row : queries->head_stride,
        };
        /* what is sent lies at a multiple of 256 */
        struct ckv_k_layer k = { .k = ckv__cuda_plane(&layer->k), .query = staged ? 0 : (uint64_t)(uintptr_t)layer->query };

        return (struct ckv_cuda_kind){ .staged = staged, .lse = layer->lse != NULL, .tensor = ckv_k_mma_takes(&p, &k) };
}

enum ckv_cuda_scheme ckv__cuda_scheme(const struct ckv_job_group *group, const struct ckv_cuda_kind *kind, uint32_t units) {
        const struct ckv_policy *policy = &group->policy;

        if (ckv_ref_scores_kv_heads(policy))
                return CKV_CUDA_KEYS;
        if (policy->scorer != CKV_SCORER_WINDOW || policy->window_reduce == CKV_ROWS_MAX || !kind->tensor)
                return CKV_CUDA_GENERAL;
        if (kind->lse)
                return CKV_CUDA_LSE;
        return ckv_scores_units_will_do(group, units) ? CKV_CUDA_UNITS_ONCE : CKV_CUDA_TWICE;
}

uint32_t ckv__cuda_sums_half(const struct ckv_policy *policy) {
        return policy->pool == CKV_POOL_AVG ? (policy->pool_size - 1) / 2 : 0;
}

bool ckv__cuda_sums_bounds(const struct ckv_job_group *group, const struct ckv_units *units, uint32_t *ret_bounds) {
        uint32_t rows = group->selection.rows, half = ckv__cuda_sums_half(&group->policy), first = 0, last = 0;

        for (uint32_t u = 0; u + 2 < units->count; u++)
                if (units->first_row[u + 2] - units->first_row[u] < 2 * half)
                        return false;
        for (uint32_t s = 0; s < ckv_k_segments(rows); s++) {
                uint64_t begin = (uint64_t)s * CKV_K_SEGMENT, end = CKV_MIN(begin + CKV_K_SEGMENT, rows);

                while (first + 1 < units->count && (uint64_t)units->first_row[first + 1] + half <= begin)
                        first++;
                while (last + 1 < units->count && units->first_row[last + 1] < end + half)
                        last++;
                ret_bounds[2 * s] = first;
                ret_bounds[2 * s + 1] = last;
        }
        return units->count > 0;
}
