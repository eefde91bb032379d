/*
 * S1 of the scorers window and raw_qk: how much attention the window's queries
 * pay to each row.
 *
 * For a query head h and its queries t, over the rows j that t sees:
 *
 *     s[j] = dot(Q[h][t], K[h/G][j]) * scale      then softcap, if there is one
 *     p[t][j] = exp(s[j] - max s) / Z             with the caller's LSE: exp(min(s[j] - LSE, 0))
 *     A[h][j] = sum over the voting t of p        window_reduce = max: the largest of them
 *
 * and then norm, contrast and mute.  The softmax runs over all visible rows,
 * protected ones and the window itself included (R33), and over the model's
 * sink logit.  raw_qk adds up the bare products instead.
 *
 * Eight queries are scored against a key at a time (reference_block.c).
 */
#include "kernels/reference.h"

#include "base/macros.h"
#include "kernels/reference_block.h"

#include <errno.h>
#include <math.h>
#include <string.h>

void ckv_ref_visible(const struct ckv_job *job, const struct ckv_job_group *group, uint32_t back, uint32_t *ret_low,
                     uint32_t *ret_high) {
        const struct ckv_selection *selection = &group->selection;
        uint32_t row = ckv_job_last_row(job, group) - back;
        uint64_t position = selection->positions ? selection->positions[row] : row;
        uint64_t sliding = group->policy.sliding;

        *ret_low = sliding > 0 && position >= sliding ? ckv_selection_rows_below(selection, position - sliding + 1) : 0;
        *ret_high = ckv_selection_rows_below(selection, position + 1);
}

struct ckv_query_rows ckv_ref_query_rows(const struct ckv_job *job, const struct ckv_job_group *group) {
        const struct ckv_policy *policy = &group->policy;
        uint32_t rows = job->queries.rows, given = CKV_MIN(rows, ckv_job_last_row(job, group) + 1);
        uint32_t window = ckv_policy_window(policy, group->selection.rows);
        uint32_t votes = policy->vote_rows > 0 ? CKV_MIN(policy->vote_rows, window) : window;
        struct ckv_query_rows part = { .vote_first = rows - votes, .vote_end = rows };

        if ((policy->given & CKV_GIVEN_CONTRAST_FIRST) && given > policy->contrast_first) {
                part.contrast_end = rows - policy->contrast_first;
                part.contrast_first = rows - CKV_MIN(CKV_MAX(policy->contrast_end, policy->contrast_first), given);
        }
        return part;
}

void ckv_ref_seen(const struct ckv_job *job, const struct ckv_job_group *group, uint32_t *ret_seen) {
        struct ckv_query_rows part = ckv_ref_query_rows(job, group);
        uint32_t rows = group->selection.rows, now = 0;

        /* where the number of queries that see a row changes, and by how much; wraps around below 0 */
        memset(ret_seen, 0, ((size_t)rows + 1) * sizeof(*ret_seen));
        for (uint32_t r = part.vote_first; r < part.vote_end; r++) {
                uint32_t low, high;

                ckv_ref_visible(job, group, job->queries.rows - 1 - r, &low, &high);
                ret_seen[low]++;
                ret_seen[high]--;
        }
        for (uint32_t j = 0; j < rows; j++) {
                now += ret_seen[j];
                ret_seen[j] = now;
        }
}

static float float_at(const uint8_t *from, uint64_t index) {
        float v;

        memcpy(&v, from + index * sizeof(v), sizeof(v));
        return v;
}

float ckv_ref_lse(const struct ckv_job *job, const struct ckv_job_layer *layer, uint32_t row, uint32_t head) {
        uint64_t slot = ((uint64_t)job->queries.ring_start + row) % job->queries.rows;

        return float_at(layer->lse, (uint64_t)head * job->queries.rows + slot);
}

float ckv_ref_sink_logit(const struct ckv_job_layer *layer, uint32_t head) {
        return layer->sink_logits ? float_at(layer->sink_logits, head) : -INFINITY;
}

bool ckv_ref_lse_wrong(double lse, double sink, double above, double sum) {
        double x = sink - lse;

        above = x > above ? x : above;
        sum += ckv_ref_exp(x > 0 ? 0 : x);
        /* a NaN of a key or query passes here, and is refused by name of its unit (R23) */
        return !isfinite(lse) || sink != sink || above > 0.1 || sum < 0.9 || sum > 1.1;
}

/* Logits s over [low, high) become weights by the caller's log-sum-exp. Return: is that one wrong? */
static bool weigh_by_lse(double *s, uint32_t low, uint32_t high, double lse, double sink) {
        double above = -INFINITY, sum = 0;

        for (uint32_t j = low; j < high; j++) {
                double x = s[j] - lse;

                above = x > above ? x : above;
                s[j] = ckv_ref_exp(x > 0 ? 0 : x);
                sum += s[j];
        }
        return ckv_ref_lse_wrong(lse, sink, above, sum);
}

/* a[j] takes in p[j], which is not negative */
static void take(bool most, const double *p, uint32_t low, uint32_t high, double *a) {
        for (uint32_t j = low; j < high; j++) {
                if (!most)
                        a[j] += p[j];
                else if (p[j] > a[j] || p[j] != p[j])
                        a[j] = p[j];
        }
}

/* What the weights of one head are computed with, and where they are summed up. */
struct head {
        const struct ckv_job *job;
        const struct ckv_job_group *group;
        const struct ckv_job_layer *layer;
        uint32_t head;
        struct ckv_ref_block block;
        float *values;
};

/* Weights of query rows [first, end) into a[L], their sum or their largest. Return: 0, or 1 if a log-sum-exp is wrong. */
static int take_rows(struct head *head, uint32_t first, uint32_t end, bool most, double *a) {
        const struct ckv_job_group *group = head->group;
        const struct ckv_job_layer *layer = head->layer;
        uint32_t rows = group->selection.rows;
        bool raw = group->policy.scorer == CKV_SCORER_RAW_QK;
        double sink = (double)ckv_ref_sink_logit(layer, head->head);

        memset(a, 0, (size_t)rows * sizeof(*a));
        for (uint32_t r = first; r < end; r += CKV_REF_LANES) {
                struct ckv_ref_block *block = &head->block;

                ckv_ref_block_load(block, head->job, group, layer, head->head, r, end, head->values);
                ckv_ref_block_logits(block, group, layer, head->head / (group->q_heads / group->kv_heads), 0, rows, head->values);
                for (uint32_t i = 0; i < block->count; i++) {
                        double *s = block->logits + (size_t)i * rows;

                        if (!raw && layer->lse) {
                                if (weigh_by_lse(s, block->low[i], block->high[i],
                                                 (double)ckv_ref_lse(head->job, layer, r + i, head->head), sink))
                                        return 1;
                        } else if (!raw)
                                ckv_ref_block_softmax(block, rows, i, sink);
                        take(most, s, block->low[i], block->high[i], a);
                }
        }
        return 0;
}

/* norm = mean: per query that votes; seen: per query that votes and sees the row */
static int normalise(const struct ckv_job *job, const struct ckv_job_group *group, uint32_t votes, double *a) {
        uint32_t rows = group->selection.rows;
        _cleanup_free_ uint32_t *seen = NULL;

        if (group->policy.norm == CKV_NORM_MEAN)
                for (uint32_t j = 0; j < rows; j++)
                        a[j] = a[j] / (double)votes;
        if (group->policy.norm != CKV_NORM_SEEN)
                return 0;
        seen = malloc(((size_t)rows + 1) * sizeof(*seen));
        if (!seen)
                return -ENOMEM;
        ckv_ref_seen(job, group, seen);
        for (uint32_t j = 0; j < rows; j++)
                a[j] = seen[j] > 0 ? a[j] / (double)seen[j] : 0;
        return 0;
}

/* a less the mean weight of older queries, but not below 0; a NaN stays. Return: as take_rows(), or -ENOMEM. */
static int subtract_contrast(struct head *head, const struct ckv_query_rows *part, double *a) {
        uint32_t rows = head->group->selection.rows, count = part->contrast_end - part->contrast_first;
        _cleanup_free_ double *sum = malloc(((size_t)rows + 1) * sizeof(*sum));
        int r;

        if (!sum)
                return -ENOMEM;
        r = take_rows(head, part->contrast_first, part->contrast_end, false, sum);
        for (uint32_t j = 0; j < rows && r == 0; j++) {
                double more = a[j] - sum[j] / (double)count;

                a[j] = more < 0 ? 0 : more;
        }
        return r;
}

int ckv_ref_score_head(const struct ckv_job *job, const struct ckv_job_group *group, const struct ckv_job_layer *layer,
                       uint32_t head, double *ret_a) {
        const struct ckv_policy *policy = &group->policy;
        uint32_t rows = group->selection.rows, d = CKV_MAX(group->head_dim_k, layer->k.dims);
        struct ckv_query_rows part = ckv_ref_query_rows(job, group);
        _cleanup_free_ double *query = malloc(((size_t)d + 1) * CKV_REF_LANES * sizeof(*query));
        _cleanup_free_ double *logits = malloc(((size_t)rows + 1) * CKV_REF_LANES * sizeof(*logits));
        _cleanup_free_ float *values = malloc(((size_t)d + 1) * sizeof(*values));
        struct head h = {
                .job = job, .group = group, .layer = layer, .head = head, .block = { .query = query, .logits = logits },
                .values = values,
        };
        bool raw = policy->scorer == CKV_SCORER_RAW_QK, most = !raw && policy->window_reduce == CKV_ROWS_MAX;
        int r;

        if (!query || !logits || !values)
                return -ENOMEM;
        r = take_rows(&h, part.vote_first, part.vote_end, most, ret_a);
        if (raw || r != 0)
                return r;
        r = most ? 0 : normalise(job, group, part.vote_end - part.vote_first, ret_a);
        if (r == 0 && part.contrast_end > part.contrast_first)
                r = subtract_contrast(&h, &part, ret_a);
        for (uint32_t j = 0; j < CKV_MIN(policy->mute, rows) && r == 0; j++)
                ret_a[j] = 0;
        return r;
}
