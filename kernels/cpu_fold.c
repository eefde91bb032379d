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
};

/* R11's maximum that hands on a NaN, as in the reference */
static double greater(double old, double new) {
        return new > old || new != new ? new : old;
}

static struct stretch stretch_of(const struct ckv_cpu_fold *fold, uint32_t item) {
        uint32_t rows = fold->group->selection.rows;
        struct stretch stretch = { .from = item * CKV_CPU_FOLD_ROWS };

        stretch.to = CKV_MIN(rows - stretch.from, CKV_CPU_FOLD_ROWS) + stretch.from;
        stretch.near = stretch.from > HALO ? stretch.from - HALO : 0;
        stretch.far = CKV_MIN(rows - stretch.to, HALO) + stretch.to;
        return stretch;
}

void ckv__cpu_fold_weights(const struct ckv_cpu_fold *fold, uint32_t item, uint32_t from, uint32_t to, double *ret_weights) {
        const struct ckv_policy *policy = &fold->group->policy;
        const float *a = fold->a + (size_t)item * fold->group->selection.rows;
        const float *older = fold->older ? fold->older + (size_t)item * fold->group->selection.rows : NULL;
        bool plain = policy->scorer != CKV_SCORER_WINDOW, sum = !plain && policy->window_reduce != CKV_ROWS_MAX;
        double mean = sum && policy->norm == CKV_NORM_MEAN ? (double)fold->votes : 1;

        if (!older && !(sum && fold->seen) && mean == 1 && (plain || policy->mute == 0)) {
                for (uint32_t j = from; j < to; j++)
                        ret_weights[j - from] = (double)a[j];
                return;
        }
        for (uint32_t j = from; j < to; j++) {
                /* a row that nobody sees has weight 0: divided by 1 it stays so */
                double divisor = sum && fold->seen ? (double)CKV_MAX(fold->seen[j], 1) : mean, weight = (double)a[j] / divisor;

                if (older) {
                        weight = weight - (double)older[j] / (double)fold->older_rows;
                        weight = weight < 0 ? 0 : weight;
                }
                ret_weights[j - from] = !plain && j < policy->mute ? 0 : weight;
        }
}

/* pool = avg for rows from .. end-1 of a head: each takes in its neighbours in ascending order, all rows one of them at a time */
static void pool_mean(const struct stretch *stretch, uint32_t end, uint32_t half, uint32_t domain, const double *near,
                      double *out) {
        memset(out, 0, (end - stretch->from) * sizeof(*out));
        for (uint32_t i = 0; i <= 2 * half; i++) {
                uint32_t first = CKV_MAX(stretch->from, i < half ? half - i : 0);
                uint32_t last = CKV_MIN(end, domain + half - CKV_MIN(i, domain + half));

                for (uint32_t j = first; j < last; j++)
                        out[j - stretch->from] += near[j + i - half - stretch->near];
        }
        for (uint32_t i = 0; i < end - stretch->from; i++)
                out[i] = out[i] / (double)(2 * half + 1);
}

/* pool = max for rows from .. end-1 of a head: a maximum of 2, of 4, of 8 rows and so on, and two of these overlap in a pool. */
static void pool_most(const struct stretch *stretch, uint32_t end, uint32_t half, uint32_t domain, const double *near,
                      double *out) {
        uint32_t first = stretch->from > half ? stretch->from - half : 0, last = CKV_MIN(domain - end, half) + end;
        uint32_t before = half - (stretch->from - first), width = 2 * half + 1, count = end - stretch->from + 2 * half, held = 1;
        double most[SPAN];

        /* most[i] begins with row from - half + i; outside there is nothing */
        for (uint32_t i = 0; i < count; i++)
                most[i] = -INFINITY;
        memcpy(most + before, near + first - stretch->near, (last - first) * sizeof(*most));
        for (; 2 * held <= width; held *= 2)
                for (uint32_t i = 0; i + held < count; i++)
                        most[i] = greater(most[i], most[i + held]);
        for (uint32_t i = 0; i < end - stretch->from; i++)
                out[i] = greater(most[i], most[i + width - held]);
}

/* One head: out[to - from] = its weights pooled */
static void pool_head(const struct ckv_cpu_fold *fold, const struct stretch *stretch, uint32_t item, double *out) {
        const struct ckv_policy *policy = &fold->group->policy;
        bool pool = policy->pool == CKV_POOL_AVG || policy->pool == CKV_POOL_MAX;
        uint32_t rows = fold->group->selection.rows, half = pool ? (policy->pool_size - 1) / 2 : 0;
        uint32_t domain = pool ? ckv_ref_pool_domain(fold->group) : 0, end;
        double near[SPAN];

        if (fold->s && !pool) {
                memcpy(out, fold->s + (size_t)item * rows + stretch->from, (stretch->to - stretch->from) * sizeof(*out));
                return;
        }
        if (fold->s)
                memcpy(near, fold->s + (size_t)item * rows + stretch->near, (stretch->far - stretch->near) * sizeof(*near));
        else
                ckv__cpu_fold_weights(fold, item, stretch->near, stretch->far, near);
        end = CKV_MAX(CKV_MIN(stretch->to, domain), stretch->from);
        if (end > stretch->from && policy->pool == CKV_POOL_MAX)
                pool_most(stretch, end, half, domain, near, out);
        else if (end > stretch->from)
                pool_mean(stretch, end, half, domain, near, out);
        memcpy(out + end - stretch->from, near + end - stretch->near, (stretch->to - end) * sizeof(*out));
}

/* The first head is taken, and the others join it: by their maximum or by their sum, which begins with 0. */
static void join(bool most, bool first, const double *head, uint32_t count, double *out) {
        if (most && first)
                memcpy(out, head, count * sizeof(*out));
        else if (most)
                for (uint32_t i = 0; i < count; i++)
                        out[i] = greater(out[i], head[i]);
        else if (first)
                for (uint32_t i = 0; i < count; i++)
                        out[i] = 0.0 + head[i];
        else
                for (uint32_t i = 0; i < count; i++)
                        out[i] += head[i];
}

/* S[g][j] of one KV head, without the norm of V: out[to - from] */
static void group_heads(const struct ckv_cpu_fold *fold, const struct stretch *stretch, uint32_t head, double *out) {
        const struct ckv_policy *policy = &fold->group->policy;
        uint32_t per_group = fold->per_group, count = stretch->to - stretch->from;
        double pooled[CKV_CPU_FOLD_ROWS];

        for (uint32_t h = 0; h < per_group; h++) {
                pool_head(fold, stretch, head * per_group + h, pooled);
                join(policy->group_heads == CKV_GROUP_MAX, h == 0, pooled, count, out);
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
        struct stretch stretch = stretch_of(fold, item);
        double s[CKV_CPU_FOLD_ROWS];

        for (uint32_t g = 0; g < fold->heads; g++) {
                uint32_t head = fold->head_first + g;

                group_heads(fold, &stretch, g, s);
                for (uint32_t j = stretch.from; j < stretch.to && policy->value_weight != CKV_WEIGHT_NONE; j++) {
                        ckv_ref_load(v, &fold->group->table, j, head, values);
                        s[j - stretch.from] = s[j - stretch.from] * value_norm(policy->value_weight, values, v->dims);
                }
                join(policy->heads == CKV_HEADS_MAX, head == 0 || each, s, stretch.to - stretch.from,
                     fold->rows + (each ? (size_t)head * rows : 0) + stretch.from);
        }
}
