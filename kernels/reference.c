/*
 * S2 to S4 of the reference: weights per query head become a score per row,
 * and scores per row a score per unit.
 *
 *     S2  A'[h][j]  pooled over neighbouring rows, per query head (scorers that give S[g][j]: per KV head)
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

uint32_t ckv_ref_pool_domain(const struct ckv_job_group *group) {
        const struct ckv_policy *policy = &group->policy;
        uint32_t rows = group->selection.rows;

        if (ckv_ref_scores_kv_heads(policy) && policy->scorer != CKV_SCORER_DROP)
                return rows;
        return rows - CKV_MIN(policy->profile == CKV_PROFILE_VOTE ? policy->recent : ckv_policy_window(policy, rows), rows);
}

/* One step of the scan: what reaches row j from its neighbour, with an end of a chunk between them or not */
static double leak_step(double from, bool end, double own) {
        double reaches = from * 0.92;

        if (end)
                reaches = reaches * 0.3;
        return greater(own, reaches);
}

void ckv_ref_leak(const struct ckv_selection *selection, uint32_t domain, double *a) {
        const uint32_t *lengths = selection->chunk_lengths;
        size_t chunk = 0, count = lengths ? selection->chunk_length_count : 0;
        uint32_t edge = 0;                              /* where chunk begins */

        for (uint32_t j = 1; j < domain; j++) {
                while (chunk < count && edge < j)
                        edge += lengths[chunk++];
                a[j] = leak_step(a[j - 1], edge == j, a[j]);
        }
        for (chunk = count, edge = selection->rows; domain > 1; domain--) {
                uint32_t j = domain - 1;

                while (chunk > 0 && edge > j)
                        edge -= lengths[--chunk];
                a[j - 1] = leak_step(a[j], edge == j, a[j - 1]);
        }
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

/* S3 where each KV head has @per_group rows of weights */
static int reduce(const struct ckv_job_group *group, const struct ckv_job_layer *layer, const double *a, uint32_t per_group,
                  double *ret_rows) {
        const struct ckv_policy *policy = &group->policy;
        uint32_t rows = group->selection.rows;
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

int ckv_ref_reduce_heads(const struct ckv_job_group *group, const struct ckv_job_layer *layer, const double *a,
                         double *ret_rows) {
        return reduce(group, layer, a, group->q_heads / group->kv_heads, ret_rows);
}

/* S1 and S2 of one query head, or KV head for scorers that give S[g][j]; @one is scratch, [L] */
static int score_head(const struct ckv_job *job, const struct ckv_job_group *group, const struct ckv_job_layer *layer,
                      uint32_t head, double *one, double *ret_a) {
        uint32_t rows = group->selection.rows, domain = ckv_ref_pool_domain(group);
        int r;

        if (group->policy.scorer == CKV_SCORER_DROP)
                r = ckv_ref_score_drop(job, group, layer, head, one);
        else if (ckv_ref_scores_kv_heads(&group->policy))
                r = ckv_ref_score_keys(group, layer, head, one);
        else
                r = ckv_ref_score_head(job, group, layer, head, one);
        if (r != 0)
                return r;
        if (group->policy.pool != CKV_POOL_LEAK) {
                ckv_ref_pool(&group->policy, one, rows, domain, ret_a);
                return 0;
        }
        memcpy(ret_a, one, (size_t)rows * sizeof(*ret_a));
        ckv_ref_leak(&group->selection, domain, ret_a);
        return 0;
}

int ckv_ref_score_rows(const struct ckv_job *job, const struct ckv_job_group *group, const struct ckv_job_layer *layer,
                       double *ret_rows) {
        uint32_t rows = group->selection.rows;
        uint32_t heads = ckv_ref_scores_kv_heads(&group->policy) ? group->kv_heads : group->q_heads;
        size_t n = (size_t)rows + 1;                    /* never 0: an empty array is no failure */
        _cleanup_free_ double *one = malloc(n * sizeof(*one)), *all = malloc(n * heads * sizeof(*all));

        if (!one || !all)
                return -ENOMEM;
        for (uint32_t h = 0; h < heads; h++) {
                int r = score_head(job, group, layer, h, one, all + (size_t)h * rows);

                if (r != 0)
                        return r > 0 ? (int)h + 1 : r;
        }
        return reduce(group, layer, all, heads / group->kv_heads, ret_rows);
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
