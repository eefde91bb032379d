/*
 * S1: how much attention the window's queries pay to each row.
 *
 * For a query head h and its window queries t, over the rows j that t sees:
 *
 *     s[j] = dot(Q[h][t], K[h/G][j]) * scale      then softcap, if there is one
 *     A[h][j] = sum over t of exp(s[j] - max s) / Z
 *
 * The softmax runs over all visible rows, protected ones and the window itself
 * included (R33).  raw_qk adds up the bare products instead.
 *
 * Eight queries are scored against a key at a time.  That keeps the order of
 * every single sum (R11, R12) while eight of them are in flight, which is the
 * only concession to speed here.
 */
#include "kernels/reference.h"

#include "base/macros.h"

#include <errno.h>
#include <math.h>
#include <string.h>

enum { LANES = 8 };

/* Up to eight consecutive queries of one head, and their logits. */
struct block {
        uint32_t count;
        uint32_t low[LANES], high[LANES];       /* rows [low, high) take part */
        double *query;                          /* [d][LANES] */
        double *logits;                         /* [LANES][L] */
};

void ckv_ref_visible(const struct ckv_job *job, const struct ckv_job_group *group, uint32_t t, uint32_t *ret_low,
                     uint32_t *ret_high) {
        const struct ckv_selection *selection = &group->selection;
        uint32_t row = ckv_job_last_row(job, group) - (group->policy.window - 1 - t);
        uint64_t position = selection->positions ? selection->positions[row] : row;
        uint64_t sliding = group->policy.sliding;

        *ret_low = sliding > 0 && position >= sliding ? ckv_selection_rows_below(selection, position - sliding + 1) : 0;
        *ret_high = ckv_selection_rows_below(selection, position + 1);
}

double ckv_ref_scale(const struct ckv_job_group *group) {
        return group->policy.scale > 0 ? group->policy.scale : 1.0 / sqrt((double)group->head_dim_k);
}

/* Queries first .. first+LANES-1 of the window, as far as there are so many. */
static void block_load(struct block *block, const struct ckv_job *job, const struct ckv_job_group *group,
                       const struct ckv_job_layer *layer, uint32_t head, uint32_t first, float *values) {
        uint32_t d = group->head_dim_k, w = group->policy.window;

        block->count = CKV_MIN(LANES, w - first);
        memset(block->query, 0, (size_t)d * LANES * sizeof(*block->query));
        for (uint32_t i = 0; i < block->count; i++) {
                ckv_ref_load_query(job, group, layer, job->queries.rows - w + first + i, head, values);
                for (uint32_t x = 0; x < d; x++)
                        block->query[(size_t)x * LANES + i] = values[x];
                if (group->policy.scorer == CKV_SCORER_RAW_QK) {
                        block->low[i] = 0;
                        block->high[i] = group->selection.rows;
                } else
                        ckv_ref_visible(job, group, first + i, &block->low[i], &block->high[i]);
        }
}

static double logit(const struct ckv_policy *policy, double product, double scale) {
        double s = product * scale;

        return policy->softcap > 0 ? policy->softcap * ckv_ref_tanh(s / policy->softcap) : s;
}

/* The logits (raw_qk: products) of a block over all rows that any of its queries sees; no other row is read. */
static void block_products(struct block *block, const struct ckv_job_group *group, const struct ckv_job_layer *layer,
                           uint32_t kv_head, float *key) {
        bool raw = group->policy.scorer == CKV_SCORER_RAW_QK;
        /* positions ascend, so the oldest query reaches back farthest and the newest sees farthest ahead */
        uint32_t rows = group->selection.rows, from = block->low[0], to = block->high[block->count - 1];
        double scale = ckv_ref_scale(group);

        for (uint32_t j = from; j < to; j++) {
                double sum[LANES] = { 0 };

                ckv_ref_load(&layer->k, &group->table, j, kv_head, key);
                for (uint32_t x = 0; x < group->head_dim_k; x++)
                        for (uint32_t i = 0; i < LANES; i++)
                                sum[i] += block->query[(size_t)x * LANES + i] * (double)key[x];
                for (uint32_t i = 0; i < block->count; i++)
                        if (j >= block->low[i] && j < block->high[i])
                                block->logits[(size_t)i * rows + j] =
                                        raw ? sum[i] : logit(&group->policy, sum[i], scale);
        }
}

/* a[j] += softmax of s over [low, high); s is overwritten */
static void add_softmax(double *s, uint32_t low, uint32_t high, double *a) {
        double m = -INFINITY, z = 0;

        for (uint32_t j = low; j < high; j++)
                m = s[j] > m ? s[j] : m;
        for (uint32_t j = low; j < high; j++) {
                s[j] = ckv_ref_exp(s[j] - m);
                z += s[j];
        }
        for (uint32_t j = low; j < high; j++)
                a[j] += s[j] / z;
}

/* norm = mean: per query of the window; seen: per query that sees the row */
static void normalise(const struct ckv_job *job, const struct ckv_job_group *group, double *a) {
        uint32_t rows = group->selection.rows, w = group->policy.window, low[256], high[256];

        if (group->policy.norm == CKV_NORM_MEAN)
                for (uint32_t j = 0; j < rows; j++)
                        a[j] = a[j] / (double)w;
        if (group->policy.norm != CKV_NORM_SEEN)
                return;
        for (uint32_t t = 0; t < w; t++)
                ckv_ref_visible(job, group, t, &low[t], &high[t]);
        for (uint32_t j = 0; j < rows; j++) {
                uint32_t seen = 0;

                for (uint32_t t = 0; t < w; t++)
                        seen += j >= low[t] && j < high[t];
                a[j] = seen > 0 ? a[j] / (double)seen : 0;
        }
}

int ckv_ref_score_head(const struct ckv_job *job, const struct ckv_job_group *group, const struct ckv_job_layer *layer,
                       uint32_t head, double *ret_a) {
        uint32_t rows = group->selection.rows, d = CKV_MAX(group->head_dim_k, layer->k.dims);
        _cleanup_free_ double *query = calloc((size_t)d * LANES, sizeof(*query));
        _cleanup_free_ double *logits = malloc(((size_t)rows + 1) * LANES * sizeof(*logits));
        _cleanup_free_ float *values = malloc(((size_t)d + 1) * sizeof(*values));
        struct block block = { .query = query, .logits = logits };
        bool raw = group->policy.scorer == CKV_SCORER_RAW_QK;

        if (!query || !logits || !values)
                return -ENOMEM;
        memset(ret_a, 0, (size_t)rows * sizeof(*ret_a));
        for (uint32_t t = 0; t < group->policy.window; t += LANES) {
                block_load(&block, job, group, layer, head, t, values);
                block_products(&block, group, layer, head / (group->q_heads / group->kv_heads), values);
                for (uint32_t i = 0; i < block.count; i++) {
                        double *s = logits + (size_t)i * rows;

                        if (!raw)
                                add_softmax(s, block.low[i], block.high[i], ret_a);
                        else
                                for (uint32_t j = 0; j < rows; j++)
                                        ret_a[j] += s[j];
                }
        }
        if (!raw)
                normalise(job, group, ret_a);
        return 0;
}
