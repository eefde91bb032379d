/*
 * The items of the scorers window and raw_qk; cpu_attention.c says what the
 * phases are for.
 *
 * Everything here reads the state and writes to places of its own item.
 */
#include "base/macros.h"
#include "kernels/cpu_attention.h"
#include "kernels/cpu_fold.h"

#include <float.h>
#include <math.h>

static const double log2e = 0x1.71547652b82fep+0, ln2 = 0x1.62e42fefa39efp-1;

/* raw_qk: sum over the window of query head @head */
static void load_query_sum(const struct ckv_cpu_score *score, uint32_t head, float *values, float *out) {
        const struct ckv_cpu_attention *state = score->state;
        uint32_t d = score->group->head_dim_k;
        double sum[CKV_CPU_DIMS_MAX] = { 0 };

        for (uint32_t r = state->part.vote_first; r < state->part.vote_end; r++) {
                ckv_ref_load_query(score->job, score->group, score->layer, r, head, values);
                for (uint32_t x = 0; x < d; x++)
                        sum[x] += (double)values[x];
        }
        for (uint32_t x = 0; x < d; x++)
                out[x * CKV_CPU_BLOCK] = (float)sum[x];
}

/* Item: (panel of the kernel, head of the band) */
static void queries_item(void *context, uint32_t item, float *scratch) {
        const struct ckv_cpu_score *score = context;
        const struct ckv_cpu_attention *state = score->state;
        uint32_t d = score->group->head_dim_k, g = item % state->heads;
        uint32_t first = item / state->heads * CKV_CPU_PANEL, end = CKV_MIN(state->query_count - first, CKV_CPU_PANEL) + first;
        float *band = state->queries + (size_t)g * state->query_padded * d;

        for (uint32_t n = first; n < end; n++) {
                float *out = band + (size_t)(n / CKV_CPU_BLOCK) * d * CKV_CPU_BLOCK + n % CKV_CPU_BLOCK;
                uint32_t head = (state->head_first + g) * state->per_group + (state->raw ? n : n / state->rows);
                size_t at = (size_t)g * state->query_count + n;

                if (state->raw) {
                        load_query_sum(score, head, scratch, out);
                        continue;
                }
                ckv_ref_load_query(score->job, score->group, score->layer, state->first + n % state->rows, head, scratch);
                for (uint32_t x = 0; x < d; x++)
                        out[x * CKV_CPU_BLOCK] = (float)((double)scratch[x] * state->factor);
                if (score->layer->lse) {
                        float lse = ckv_ref_lse(score->job, score->layer, state->first + n % state->rows, head);

                        state->max[at] = (float)((double)lse * log2e);
                        state->inverse[at] = 1;
                }
        }
}

/* Item: (segment, head of the band); neighbouring items read neighbouring heads, which often share memory pages. */
static struct ckv_cpu_segment segment_of(const struct ckv_cpu_score *score, uint32_t item, float *scratch) {
        const struct ckv_cpu_attention *state = score->state;
        uint32_t g = item % state->heads, first = item / state->heads * state->segment_rows;

        return (struct ckv_cpu_segment){
                .k = &score->layer->k, .table = &score->group->table, .head = state->head_first + g,
                .first = first, .rows = CKV_MIN(score->group->selection.rows - first, state->segment_rows),
                .dims = score->group->head_dim_k,
                .queries = state->queries + (size_t)g * state->query_padded * score->group->head_dim_k,
                .query_count = state->query_count, .window = state->raw ? 1 : state->rows,
                .low = state->low, .high = state->high, .cap = state->cap, .scratch = scratch,
                .again = state->again, .most = !state->contrast && score->group->policy.window_reduce == CKV_ROWS_MAX,
        };
}

/* Where the numbers of a segment's queries are in segment_max and segment_sum */
static size_t segment_at(const struct ckv_cpu_attention *state, uint32_t item) {
        return ((size_t)(item % state->heads) * state->segments + item / state->heads) * state->query_count;
}

static void sums_item(void *context, uint32_t item, float *scratch) {
        const struct ckv_cpu_score *score = context;
        const struct ckv_cpu_attention *state = score->state;
        struct ckv_cpu_segment segment = segment_of(score, item, scratch);
        size_t at = segment_at(state, item);

        score->kernel->sums(&segment, state->segment_max + at, state->segment_sum + at);
}

/* A sink's logit in log2 units, rounded as those of rows are; a finite one stays finite, as weights of 0 are legal beside it. */
static float sink_log2(double sink) {
        return isfinite(sink) ? (float)fmin(fmax(sink * log2e, -(double)FLT_MAX), (double)FLT_MAX) : (float)sink;
}

/* Item: (block of queries, head of the band). Z = sum over ascending segments of sum * 2^(its maximum - maximum) */
static void combine_item(void *context, uint32_t item, float *scratch) {
        const struct ckv_cpu_score *score = context;
        const struct ckv_cpu_attention *state = score->state;
        uint32_t g = item % state->heads, first = item / state->heads * CKV_CPU_COMBINE_QUERIES;
        uint32_t end = CKV_MIN(state->query_count - first, CKV_CPU_COMBINE_QUERIES) + first;
        size_t band = (size_t)g * state->segments * state->query_count;

        (void)scratch;
        for (uint32_t n = first; n < end; n++) {
                const float *max = state->segment_max + band + n, *sum = state->segment_sum + band + n;
                uint32_t head = (state->head_first + g) * state->per_group + n / state->rows;
                float sink = sink_log2((double)ckv_ref_sink_logit(score->layer, head)), most = CKV_MAX(max[0], sink);
                double z = 0;

                for (uint32_t i = 1; i < state->segments; i++)
                        most = CKV_MAX(max[(size_t)i * state->query_count], most);
                for (uint32_t i = 0; i < state->segments; i++) {
                        size_t at = (size_t)i * state->query_count;

                        if (sum[at] != 0)
                                z += (double)sum[at] * ckv_ref_exp(((double)max[at] - (double)most) * ln2);
                }
                if (sink != -INFINITY)
                        z += ckv_ref_exp(((double)sink - (double)most) * ln2);
                state->max[(size_t)g * state->query_count + n] = most;
                /* all logits -infinity: the softmax has no value */
                state->inverse[(size_t)g * state->query_count + n] = z == 0 ? NAN : (float)(1.0 / z);
        }
}

static void weights_item(void *context, uint32_t item, float *scratch) {
        const struct ckv_cpu_score *score = context;
        const struct ckv_cpu_attention *state = score->state;
        struct ckv_cpu_segment segment = segment_of(score, item, scratch);
        uint32_t g = item % state->heads, rows = score->group->selection.rows;
        float *a = (state->contrast ? state->older : state->a) + (size_t)g * state->per_group * rows + segment.first;
        size_t queries = (size_t)g * state->query_count, at = segment_at(state, item);
        bool check = score->layer->lse != NULL;

        if (state->raw)
                score->kernel->products(&segment, a, rows);
        else
                score->kernel->weights(&segment, state->max + queries, state->inverse + queries, a, rows,
                                       check ? state->segment_max + at : NULL, check ? state->segment_sum + at : NULL);
}

/* Item: query head of the band */
static void check_item(void *context, uint32_t item, float *scratch) {
        const struct ckv_cpu_score *score = context;
        const struct ckv_cpu_attention *state = score->state;
        uint32_t g = item / state->per_group, head = state->head_first * state->per_group + item;
        size_t band = (size_t)g * state->segments * state->stride + (size_t)(item % state->per_group) * state->rows;
        double sink = (double)ckv_ref_sink_logit(score->layer, head);

        (void)scratch;
        for (uint32_t t = 0; t < state->rows; t++) {
                double lse = (double)ckv_ref_lse(score->job, score->layer, state->first + t, head);
                double above = -INFINITY, sum = 0;

                for (uint32_t i = 0; i < state->segments; i++) {
                        size_t at = band + (size_t)i * state->stride + t;
                        double excess = (double)state->segment_max[at] * ln2;

                        above = excess > above ? excess : above;
                        sum += (double)state->segment_sum[at];
                }
                if (ckv_ref_lse_wrong(lse, sink, above, sum))
                        state->wrong[item] = true;
        }
}

static struct ckv_cpu_fold fold_of(const struct ckv_cpu_score *score) {
        const struct ckv_cpu_attention *state = score->state;

        return (struct ckv_cpu_fold){
                .group = score->group, .layer = score->layer, .head_first = state->head_first, .heads = state->heads,
                .per_group = state->per_group, .a = state->a, .s = state->leaked, .seen = state->seen, .older = state->older,
                .older_rows = state->part.contrast_end - state->part.contrast_first,
                .votes = state->part.vote_end - state->part.vote_first, .rows = score->rows,
        };
}

/* Item: query head of the band */
static void leak_item(void *context, uint32_t item, float *scratch) {
        const struct ckv_cpu_score *score = context;
        const struct ckv_cpu_attention *state = score->state;
        struct ckv_cpu_fold fold = fold_of(score);
        double *leaked = state->leaked + (size_t)item * score->group->selection.rows;

        (void)scratch;
        ckv__cpu_fold_weights(&fold, item, 0, score->group->selection.rows, leaked);
        ckv_ref_leak(&score->group->selection, ckv_ref_pool_domain(score->group), leaked);
}

static void fold_item(void *context, uint32_t item, float *scratch) {
        const struct ckv_cpu_score *score = context;
        struct ckv_cpu_fold fold = fold_of(score);

        ckv__cpu_fold_rows(&fold, item, scratch);
}

const ckv_cpu_work ckv__cpu_attention_work[_CKV_CPU_ATTENTION_N] = {
        [CKV_CPU_QUERIES] = queries_item, [CKV_CPU_SUMS] = sums_item, [CKV_CPU_COMBINE] = combine_item,
        [CKV_CPU_WEIGHTS] = weights_item, [CKV_CPU_PACK] = ckv__cpu_pack_item, [CKV_CPU_REFERENCE] = ckv__cpu_reference_item,
        [CKV_CPU_UNITS] = ckv__cpu_units_item, [CKV_CPU_TOTALS] = ckv__cpu_totals_item, [CKV_CPU_REDUCE] = ckv__cpu_reduce_item,
        [CKV_CPU_FORM] = ckv__cpu_form_item, [CKV_CPU_ROWS] = ckv__cpu_rows_item,
        [CKV_CPU_CHECK] = check_item, [CKV_CPU_LEAK] = leak_item, [CKV_CPU_FOLD] = fold_item,
};
