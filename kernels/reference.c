/*
 * S2 to S4 of the reference: weights per query head become a score per row,
 * and scores per row a score per unit.
 *
 *     S2  A'[h][j]  pooled over neighbouring rows, per query head
 *     S3  S[g][j]   over the query heads of a KV head; times the norm of V
 *         T[j]      over the KV heads
 *     S4  C[u]      over the rows of a unit, rounded to binary32 once
 *
 * Each stage stands by itself, so that a backend which has A from elsewhere
 * can go on here.  What crosses to the selection is C (or T32) alone (R5).
 */
#include "kernels/reference.h"

#include "base/macros.h"

#include <errno.h>
#include <math.h>
#include <string.h>

/* R11's maximum, which replaces only by a greater one; a NaN is kept, or a poisoned head would go unseen (R23). */
static double greater(double old, double new) {
        return new > old || new != new ? new : old;
}

void ckv_ref_pool(const struct ckv_policy *policy, const double *a, uint32_t rows, uint32_t domain, double *ret_out) {
        uint32_t half = (policy->pool_size - 1) / 2;

        if (policy->pool == CKV_POOL_NONE)
                domain = 0;
        for (uint32_t j = 0; j < domain; j++) {
                uint32_t low = j > half ? j - half : 0, high = CKV_MIN(half, domain - 1 - j) + j;
                double sum = 0, most = a[low];

                for (uint32_t i = low; i <= high; i++) {
                        sum += a[i];
                        most = greater(most, a[i]);
                }
                /* neighbours outside count as 0 in the mean: its divisor stays the pool's size */
                ret_out[j] = policy->pool == CKV_POOL_AVG ? sum / (double)policy->pool_size : most;
        }
        memcpy(ret_out + domain, a + domain, (size_t)(rows - domain) * sizeof(*a));
}

/* l1 or l2 norm of the value of one row */
static double value_norm(enum ckv_value_weight weight, const float *value, uint32_t dims) {
        double sum = 0;

        for (uint32_t x = 0; x < dims; x++)
                sum += weight == CKV_WEIGHT_L1 ? fabs((double)value[x]) : (double)value[x] * (double)value[x];
        return weight == CKV_WEIGHT_L1 ? sum : sqrt(sum);
}

/* S[g][j]: a points at (first query head of the group, row j), heads lie rows apart */
static double reduce_group(enum ckv_group_heads how, const double *a, uint32_t heads, uint32_t rows) {
        double sum = 0, most = a[0];

        for (uint32_t h = 0; h < heads; h++) {
                double weight = a[(size_t)h * rows];

                sum += weight;
                most = greater(most, weight);
        }
        if (how == CKV_GROUP_MAX)
                return most;
        return how == CKV_GROUP_MEAN ? sum / (double)heads : sum;
}

int ckv_ref_reduce_heads(const struct ckv_job_group *group, const struct ckv_job_layer *layer, const double *a,
                         double *ret_rows) {
        const struct ckv_policy *policy = &group->policy;
        uint32_t rows = group->selection.rows, per_group = group->q_heads / group->kv_heads;
        _cleanup_free_ float *value = malloc(((size_t)layer->v.dims + 1) * sizeof(*value));

        if (!value)
                return -ENOMEM;
        for (uint32_t j = 0; j < rows; j++) {
                double sum = 0, most = 0;

                for (uint32_t g = 0; g < group->kv_heads; g++) {
                        double s = reduce_group(policy->group_heads, a + (size_t)g * per_group * rows + j, per_group,
                                                rows);

                        if (policy->value_weight != CKV_WEIGHT_NONE) {
                                ckv_ref_load(&layer->v, &group->table, j, g, value);
                                s = s * value_norm(policy->value_weight, value, layer->v.dims);
                        }
                        sum += s;
                        most = g == 0 ? s : greater(most, s);
                        if (policy->heads == CKV_HEADS_EACH)
                                ret_rows[(size_t)g * rows + j] = s;
                }
                if (policy->heads != CKV_HEADS_EACH)
                        ret_rows[j] = policy->heads == CKV_HEADS_MAX ? most : sum;
        }
        return 0;
}

int ckv_ref_score_rows(const struct ckv_job *job, const struct ckv_job_group *group, const struct ckv_job_layer *layer,
                       double *ret_rows) {
        uint32_t rows = group->selection.rows;
        size_t n = (size_t)rows + 1;                    /* never 0: an empty array is no failure */
        _cleanup_free_ double *one = malloc(n * sizeof(*one)), *all = malloc(n * group->q_heads * sizeof(*all));
        int r;

        if (!one || !all)
                return -ENOMEM;
        for (uint32_t h = 0; h < group->q_heads; h++) {
                r = ckv_ref_score_head(job, group, layer, h, one);
                if (r < 0)
                        return r;
                ckv_ref_pool(&group->policy, one, rows, rows - group->policy.window, all + (size_t)h * rows);
        }
        return ckv_ref_reduce_heads(group, layer, all, ret_rows);
}

/* C[u] from what was gathered over the rows of a unit */
static float unit_score(const struct ckv_policy *policy, double sum, double most, uint32_t size) {
        switch (policy->unit_reduce) {
        case CKV_UNIT_SUM:
                return ckv_fl32(sum);
        case CKV_UNIT_MAX:
                return ckv_fl32(most);
        default:
                return ckv_fl32(sum / (double)size);
        }
}

void ckv_ref_unit_scores(const struct ckv_policy *policy, const struct ckv_units *units, uint32_t rows,
                         const double *row_scores, float *ret_units) {
        double sum = 0, most = 0;

        /* units ascend with rows, so one unit is complete before the next begins */
        for (uint32_t j = 0, seen = 0; j < rows; j++) {
                uint32_t u = units->unit_of_row[j];

                if (u == UINT32_MAX)
                        continue;
                most = seen == 0 ? row_scores[j] : greater(most, row_scores[j]);
                sum = seen == 0 ? 0.0 + row_scores[j] : sum + row_scores[j];
                if (++seen < units->size[u])
                        continue;
                ret_units[u] = unit_score(policy, sum, most, seen);
                seen = 0;
        }
}
