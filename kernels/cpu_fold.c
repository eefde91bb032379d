/*
 * From weights to row scores (S2, S3).
 *
 * The reference does this over whole rows of heads; here a stretch of rows goes
 * through all stages at once, so that several threads can share a layer and
 * nothing but A is kept in memory.  Pooling looks 15 rows over either border,
 * which A allows because it is complete by now.
 *
 * Every sum is in binary64 and in the order of the reference, so from the same
 * A both give the same bits.
 */
#include "kernels/cpu_fold.h"

#include "base/macros.h"
#include "kernels/reference.h"

#include <math.h>
#include <string.h>

enum {
        HALO = 15,                                      /* (largest pool_size - 1) / 2 */
        SPAN = CKV_CPU_FOLD_ROWS + 2 * HALO,
};

/* Rows [from, to) with those that pooling needs: [near, far). All inside the sequence. */
struct stretch {
        uint32_t from, to, near, far;
        double divisor[SPAN];                           /* of row near + i */
};

/* R11's maximum that hands on a NaN, as in the reference */
static double greater(double old, double new) {
        return new > old || new != new ? new : old;
}

static void stretch_init(struct stretch *stretch, const struct ckv_cpu_fold *fold, uint32_t item) {
        const struct ckv_policy *policy = &fold->group->policy;
        uint32_t rows = fold->group->selection.rows;

        stretch->from = item * CKV_CPU_FOLD_ROWS;
        stretch->to = CKV_MIN(rows - stretch->from, CKV_CPU_FOLD_ROWS) + stretch->from;
        stretch->near = stretch->from > HALO ? stretch->from - HALO : 0;
        stretch->far = CKV_MIN(rows - stretch->to, HALO) + stretch->to;
        for (uint32_t j = stretch->near; j < stretch->far; j++) {
                uint32_t seen = 0;

                if (policy->norm == CKV_NORM_SEEN && policy->scorer == CKV_SCORER_WINDOW)
                        for (uint32_t t = 0; t < policy->window; t++)
                                seen += j >= fold->low[t] && j < fold->high[t];
                else if (policy->norm == CKV_NORM_MEAN && policy->scorer == CKV_SCORER_WINDOW)
                        seen = policy->window;
                /* a row that nobody sees has weight 0: divided by 1 it stays so */
                stretch->divisor[j - stretch->near] = CKV_MAX(seen, 1);
        }
}

/* One query head: out[to - from] = pooled a; a[near .. far) */
static void pool_head(const struct ckv_policy *policy, const struct stretch *stretch, uint32_t rows, const float *a, double *out) {
        uint32_t half = policy->pool == CKV_POOL_NONE ? 0 : (policy->pool_size - 1) / 2;
        uint32_t domain = policy->pool == CKV_POOL_NONE ? 0 : rows - policy->window;
        double normed[SPAN];

        for (uint32_t j = stretch->near; j < stretch->far; j++)
                normed[j - stretch->near] = (double)a[j] / stretch->divisor[j - stretch->near];
        for (uint32_t j = stretch->from; j < stretch->to; j++) {
                uint32_t low = j > half ? j - half : 0, high = j;
                double sum = 0, most = normed[low - stretch->near];

                if (j >= domain) {
                        out[j - stretch->from] = normed[j - stretch->near];
                        continue;
                }
                high = CKV_MIN(half, domain - 1 - j) + j;
                for (uint32_t i = low; i <= high; i++) {
                        sum += normed[i - stretch->near];
                        most = greater(most, normed[i - stretch->near]);
                }
                out[j - stretch->from] = policy->pool == CKV_POOL_AVG ? sum / (double)policy->pool_size : most;
        }
}

/* S[g][j] of one KV head, without the norm of V: out[to - from] */
static void group_heads(const struct ckv_cpu_fold *fold, const struct stretch *stretch, uint32_t head, double *out) {
        const struct ckv_policy *policy = &fold->group->policy;
        uint32_t rows = fold->group->selection.rows, per_group = fold->group->q_heads / fold->group->kv_heads;
        uint32_t count = stretch->to - stretch->from;
        double pooled[CKV_CPU_FOLD_ROWS];

        for (uint32_t h = 0; h < per_group; h++) {
                pool_head(policy, stretch, rows, fold->a + ((size_t)head * per_group + h) * rows, pooled);
                for (uint32_t i = 0; i < count; i++) {
                        if (policy->group_heads == CKV_GROUP_MAX)
                                out[i] = h == 0 ? pooled[i] : greater(out[i], pooled[i]);
                        else
                                out[i] = h == 0 ? 0.0 + pooled[i] : out[i] + pooled[i];
                }
        }
        if (policy->group_heads == CKV_GROUP_MEAN)
                for (uint32_t i = 0; i < count; i++)
                        out[i] = out[i] / (double)per_group;
}

static double value_norm(enum ckv_value_weight weight, const float *value, uint32_t dims) {
        double sum = 0;

        for (uint32_t x = 0; x < dims; x++)
                sum += weight == CKV_WEIGHT_L1 ? fabs((double)value[x]) : (double)value[x] * (double)value[x];
        return weight == CKV_WEIGHT_L1 ? sum : sqrt(sum);
}

void ckv__cpu_fold_rows(const struct ckv_cpu_fold *fold, uint32_t item, float *values) {
        const struct ckv_policy *policy = &fold->group->policy;
        const struct ckv_plane *v = &fold->layer->v;
        bool each = policy->heads == CKV_HEADS_EACH;
        uint32_t rows = fold->group->selection.rows;
        struct stretch stretch;
        double s[CKV_CPU_FOLD_ROWS];

        stretch_init(&stretch, fold, item);
        for (uint32_t g = 0; g < fold->heads; g++) {
                uint32_t head = fold->head_first + g;

                group_heads(fold, &stretch, g, s);
                for (uint32_t j = stretch.from; j < stretch.to; j++) {
                        double score = s[j - stretch.from], *t = &fold->rows[each ? (size_t)head * rows + j : j];

                        if (policy->value_weight != CKV_WEIGHT_NONE) {
                                ckv_ref_load(v, &fold->group->table, j, head, values);
                                score = score * value_norm(policy->value_weight, values, v->dims);
                        }
                        if (policy->heads == CKV_HEADS_MAX)
                                *t = head == 0 ? score : greater(*t, score);
                        else
                                *t = head == 0 || each ? 0.0 + score : *t + score;
                }
        }
}
