/*
 * The scorers that need no queries: a KV head by itself, all rows of it.
 *
 *     knorm     S = -|K[j]|
 *     vk_ratio  S = |V[j]| / max(|K[j]|, 1e-12)
 *     keydiff   S = -cos(K[j], mean of the directions of all keys)
 *     lagkv     S = rank, within a partition of 128 rows, of how unevenly K and V spread over their channels once
 *                   they are scaled by the range of the partition behind
 *
 * An engine that cannot hand out queries uses these; they say nothing about
 * what the next token looks for.  They see every row, so nothing but S5
 * protects sinks and tail.  lagkv has sinks of its own, and a NaN among its
 * numbers is handed on, for a rank would hide it (R23).
 */
#include "kernels/reference.h"

#include "base/macros.h"

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <string.h>

static double norm(const float *values, uint32_t dims) {
        double sum = 0;

        for (uint32_t x = 0; x < dims; x++)
                sum += (double)values[x] * (double)values[x];
        return sqrt(sum);
}

static double at_least(double v, double least) {
        return v < least ? least : v;
}

static void score_norms(const struct ckv_job_group *group, const struct ckv_job_layer *layer, uint32_t head, float *values,
                        double *ret_s) {
        for (uint32_t j = 0; j < group->selection.rows; j++) {
                double n;

                ckv_ref_load(&layer->k, &group->table, j, head, values);
                n = norm(values, group->head_dim_k);
                ret_s[j] = -n;
                if (group->policy.scorer == CKV_SCORER_KNORM)
                        continue;
                ckv_ref_load(&layer->v, &group->table, j, head, values);
                ret_s[j] = norm(values, layer->v.dims) / at_least(n, 1e-12);
        }
}

static int score_keydiff(const struct ckv_job_group *group, const struct ckv_job_layer *layer, uint32_t head, float *values,
                         double *ret_s) {
        uint32_t rows = group->selection.rows, d = group->head_dim_k;
        _cleanup_free_ double *a = calloc((size_t)d + 1, sizeof(*a));
        double length, sum = 0;

        if (!a)
                return -ENOMEM;
        for (uint32_t j = 0; j < rows; j++) {
                double n;

                ckv_ref_load(&layer->k, &group->table, j, head, values);
                n = at_least(norm(values, d), 1e-12);
                for (uint32_t x = 0; x < d; x++)
                        a[x] += (double)values[x] / n;
        }
        for (uint32_t x = 0; x < d; x++) {
                a[x] = a[x] / (double)rows;
                sum += a[x] * a[x];
        }
        length = at_least(sqrt(sum), 1e-8);
        for (uint32_t j = 0; j < rows; j++) {
                double dot = 0;

                ckv_ref_load(&layer->k, &group->table, j, head, values);
                for (uint32_t x = 0; x < d; x++)
                        dot += (double)values[x] * a[x];
                ret_s[j] = -(dot / (at_least(norm(values, d), 1e-8) * length));
        }
        return 0;
}

uint32_t ckv_ref_lag_partitions(uint32_t rows) {
        return rows < CKV_LAG_SINKS + 2 * CKV_LAG_ROWS ? 0 : (rows - CKV_LAG_SINKS) / CKV_LAG_ROWS - 1;
}

double ckv_ref_lag_default(uint32_t rows, uint32_t row) {
        if (ckv_ref_lag_partitions(rows) > 0 || row < CKV_LAG_SINKS)
                return 1;
        return (double)(row - CKV_LAG_SINKS) / (double)(rows - CKV_LAG_SINKS);
}

/* Sample standard deviation of (v - low) / (high - low) over the channels; 0 where there is one channel */
static double deviation(const float *v, const float *low, const float *high, uint32_t dims) {
        double sum = 0, squares = 0, mean;

        for (uint32_t i = 0; i < 2; i++) {
                mean = sum / (double)dims;
                for (uint32_t x = 0; x < dims; x++) {
                        double range = (double)high[x] - (double)low[x], y = ((double)v[x] - (double)low[x]) / range;

                        if (range == 0)
                                y = 0;
                        if (i == 0)
                                sum += y;
                        else
                                squares += (y - mean) * (y - mean);
                }
        }
        return dims > 1 ? sqrt(squares / (double)(dims - 1)) : 0.0 * squares;
}

/* Softmax over the partition of its rows' deviations, added to out[128] */
static void add_spread(const struct ckv_job_group *group, const struct ckv_plane *plane, uint32_t head, uint32_t dims,
                       uint32_t first, float *scratch, double *out) {
        float *value = scratch, *low = value + plane->dims, *high = low + dims;
        double sigma[CKV_LAG_ROWS], m = -INFINITY, z = 0;

        for (uint32_t i = 0; i < CKV_LAG_ROWS; i++) {
                ckv_ref_load(plane, &group->table, first + CKV_LAG_ROWS + i, head, value);
                for (uint32_t x = 0; x < dims; x++) {
                        low[x] = i == 0 || value[x] < low[x] || value[x] != value[x] ? value[x] : low[x];
                        high[x] = i == 0 || value[x] > high[x] || value[x] != value[x] ? value[x] : high[x];
                }
        }
        for (uint32_t i = 0; i < CKV_LAG_ROWS; i++) {
                ckv_ref_load(plane, &group->table, first + i, head, value);
                sigma[i] = deviation(value, low, high, dims);
                m = sigma[i] > m ? sigma[i] : m;
        }
        for (uint32_t i = 0; i < CKV_LAG_ROWS; i++) {
                sigma[i] = ckv_ref_exp(sigma[i] - m);
                z += sigma[i];
        }
        for (uint32_t i = 0; i < CKV_LAG_ROWS; i++)
                out[i] += sigma[i] / z;
}

void ckv_ref_lag_partition(const struct ckv_job_group *group, const struct ckv_job_layer *layer, uint32_t head, uint32_t index,
                           float *scratch, double *ret_s) {
        uint32_t first = CKV_LAG_SINKS + index * CKV_LAG_ROWS;
        double score[CKV_LAG_ROWS] = { 0 };

        add_spread(group, &layer->k, head, group->head_dim_k, first, scratch, score);
        add_spread(group, &layer->v, head, layer->v.dims, first, scratch, score);
        for (uint32_t i = 0; i < CKV_LAG_ROWS; i++)
                score[i] = score[i] / 2;
        for (uint32_t i = 0; i < CKV_LAG_ROWS; i++) {
                uint32_t rank = 0;

                for (uint32_t n = 0; n < CKV_LAG_ROWS; n++)
                        rank += score[n] < score[i] || (n < i && score[n] == score[i]);
                ret_s[first + i] = score[i] == score[i] ? (double)rank / (double)CKV_LAG_ROWS : score[i];
        }
}

static void score_lagkv(const struct ckv_job_group *group, const struct ckv_job_layer *layer, uint32_t head, float *scratch,
                        double *ret_s) {
        uint32_t rows = group->selection.rows, partitions = ckv_ref_lag_partitions(rows);

        for (uint32_t j = 0; j < rows; j++)
                ret_s[j] = ckv_ref_lag_default(rows, j);
        for (uint32_t i = 0; i < partitions; i++)
                ckv_ref_lag_partition(group, layer, head, i, scratch, ret_s);
}

int ckv_ref_score_keys(const struct ckv_job_group *group, const struct ckv_job_layer *layer, uint32_t head, double *ret_s) {
        size_t d = (size_t)CKV_MAX(CKV_MAX(group->head_dim_k, layer->k.dims), layer->v.dims) + 1;
        _cleanup_free_ float *scratch = malloc(3 * d * sizeof(*scratch));

        if (!scratch)
                return -ENOMEM;
        switch (group->policy.scorer) {
        case CKV_SCORER_KNORM:
        case CKV_SCORER_VK_RATIO:
                score_norms(group, layer, head, scratch, ret_s);
                return 0;
        case CKV_SCORER_KEYDIFF:
                return score_keydiff(group, layer, head, scratch, ret_s);
        default:
                assert(group->policy.scorer == CKV_SCORER_LAGKV);
                score_lagkv(group, layer, head, scratch, ret_s);
                return 0;
        }
}
