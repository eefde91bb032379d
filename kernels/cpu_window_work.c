/*
 * The items of the scorer window where a window kernel serves; cpu_attention.c
 * says what the phases are for.
 *
 * Logits are products times a factor, less a reference that is fixed before K
 * is read: the largest logit among the first rows that all queries see, where
 * sinks are.  It exceeds no true maximum, so Z is 1 at least; should it be far
 * too low, the sums say so, and the layer is scored by the general kernel.
 * There also goes what is no number, and is refused by name (R23).
 */
#include "base/macros.h"
#include "kernels/cpu_attention.h"

#include <math.h>
#include <string.h>

/* Sums of weights outside these bounds call for another reference. */
#define TOTAL_LEAST 0.5
#define TOTAL_MOST 0x1p100

static const double log2e = 0x1.71547652b82fep+0, ln2 = 0x1.62e42fefa39efp-1;

typedef uint16_t stored16 __attribute__((aligned(1), may_alias));

/* Query row @row of @head, widened: [d] */
static void load_query(const struct ckv_cpu_score *score, uint32_t row, uint32_t head, float *ret_values) {
        const struct ckv_job_queries *queries = &score->job->queries;
        uint64_t slot = ((uint64_t)queries->ring_start + row) % queries->rows;
        const stored16 *from = (const void *)(score->layer->query + head * queries->head_stride + slot * queries->row_stride);

        if (queries->dtype != CKV_DTYPE_BF16) {
                ckv_ref_load_query(score->job, score->group, score->layer, row, head, ret_values);
                return;
        }
        for (uint32_t x = 0; x < score->group->head_dim_k; x++) {
                uint32_t bits = (uint32_t)from[x] << 16;

                memcpy(ret_values + x, &bits, sizeof(bits));
        }
}

/* Item: head of the band. Queries, and with a log-sum-exp what stands for maximum and Z */
void ckv__cpu_pack_item(void *context, uint32_t item, float *scratch) {
        const struct ckv_cpu_score *score = context;
        const struct ckv_cpu_attention *state = score->state;
        uint32_t d = score->group->head_dim_k;
        float *values = state->queries + (size_t)item * state->padded_most * d;
        float *reference = state->max + (size_t)item * state->stride, *inverse = state->inverse + (size_t)item * state->stride;

        (void)scratch;
        memset(reference, 0, state->stride * sizeof(*reference));
        memset(inverse, 0, state->stride * sizeof(*inverse));
        for (uint32_t n = 0; n < state->query_count; n++) {
                uint32_t head = (state->head_first + item) * state->per_group + n / state->rows;
                uint32_t row = state->first + n % state->rows;

                load_query(score, row, head, values + (size_t)n * d);
                if (state->scheme == CKV_CPU_LSE) {
                        reference[n] = (float)((double)ckv_ref_lse(score->job, score->layer, row, head) * log2e);
                        inverse[n] = 1;
                }
        }
        state->window->pack(values, state->query_count, d, state->packs + item * state->pack_bytes);
}

static struct ckv_cpu_window_segment segment_of(const struct ckv_cpu_score *score, uint32_t head, uint32_t segment,
                                                float *scratch) {
        const struct ckv_cpu_attention *state = score->state;
        uint32_t first = segment * state->segment_rows;

        return (struct ckv_cpu_window_segment){
                .k = &score->layer->k, .table = &score->group->table, .head = state->head_first + head, .first = first,
                .rows = CKV_MIN(score->group->selection.rows - first, state->segment_rows), .dims = score->group->head_dim_k,
                .queries = state->packs + head * state->pack_bytes, .query_count = state->query_count, .window = state->rows,
                .low = state->low, .high = state->high, .factor = (float)state->factor, .cap = state->cap,
                .reference = state->max + (size_t)head * state->stride, .scratch = scratch,
        };
}

/* Item: head of the band */
void ckv__cpu_reference_item(void *context, uint32_t item, float *scratch) {
        const struct ckv_cpu_score *score = context;
        const struct ckv_cpu_attention *state = score->state;
        struct ckv_cpu_window_segment segment = segment_of(score, item, 0, scratch);
        uint32_t rows = score->group->selection.rows, first = CKV_MIN(state->low[state->rows - 1], rows - 1);
        size_t at = (size_t)item * state->segments * state->stride, queries = (size_t)item * state->stride;
        float *above = state->segment_max + at;
        float *unwanted = state->rows_of_reference + (size_t)item * state->per_group * CKV_CPU_REFERENCE_ROWS;

        segment.first = first;
        segment.rows = CKV_MIN(rows - segment.first, CKV_CPU_REFERENCE_ROWS);
        /* weights are not wanted yet: nothing is left of them by an inverse of 0 */
        state->window->rows(&segment, state->inverse + queries, unwanted, CKV_CPU_REFERENCE_ROWS, above, state->segment_sum + at);
        for (uint32_t n = 0; n < state->query_count; n++)
                state->max[queries + n] = isfinite(above[n]) ? above[n] : 0;
}

/* Calls @run for the segments of an item: a stretch of (segment, head of the band), heads inside: they share memory pages. */
static void each_segment(const struct ckv_cpu_score *score, uint32_t item, float *scratch,
                         void (*run)(const struct ckv_cpu_score *, const struct ckv_cpu_window_segment *, uint32_t, uint32_t)) {
        const struct ckv_cpu_attention *state = score->state;
        uint32_t first = item * state->bundle, end = CKV_MIN(first + state->bundle, state->segments * state->heads);

        for (uint32_t i = first; i < end; i++) {
                struct ckv_cpu_window_segment segment = segment_of(score, i % state->heads, i / state->heads, scratch), next;

                if (i + 1 < end) {
                        next = segment_of(score, (i + 1) % state->heads, (i + 1) / state->heads, scratch);
                        segment.next_head = next.head;
                        segment.next_first = next.first;
                        segment.next_rows = next.rows;
                }
                run(score, &segment, i % state->heads, i / state->heads);
        }
}

static void run_units(const struct ckv_cpu_score *score, const struct ckv_cpu_window_segment *segment, uint32_t head,
                      uint32_t index) {
        const struct ckv_cpu_attention *state = score->state;
        const struct ckv_cpu_parts *parts = state->scheme == CKV_CPU_UNITS_ONCE ? state->parts : NULL;
        struct ckv_cpu_window_map map = { 0 };
        float *total = state->segment_sum + ((size_t)head * state->segments + index) * state->stride, *columns = NULL;

        if (parts) {
                map = ckv__cpu_parts_map(parts, index);
                columns = parts->sums + ((size_t)head * parts->columns + parts->first_column[index]) * parts->stride;
        }
        state->window->units(segment, parts && map.columns > 0 ? &map : NULL, columns, total);
}

void ckv__cpu_units_item(void *context, uint32_t item, float *scratch) {
        each_segment(context, item, scratch, run_units);
}

/* Item: head of the band. Z = sum over ascending segments, and 1 / Z */
void ckv__cpu_totals_item(void *context, uint32_t item, float *scratch) {
        const struct ckv_cpu_score *score = context;
        const struct ckv_cpu_attention *state = score->state;
        const float *totals = state->segment_sum + (size_t)item * state->segments * state->stride;
        double *z = (double *)(void *)scratch;
        size_t queries = (size_t)item * state->stride;

        memset(z, 0, state->query_count * sizeof(*z));
        for (uint32_t i = 0; i < state->segments; i++)
                for (uint32_t n = 0; n < state->query_count; n++)
                        z[n] += (double)totals[(size_t)i * state->stride + n];
        for (uint32_t n = 0; n < state->query_count; n++) {
                uint32_t head = (state->head_first + item) * state->per_group + n / state->rows;
                double sink = (double)ckv_ref_sink_logit(score->layer, head);

                if (sink != -INFINITY)
                        z[n] += ckv_ref_exp(sink - (double)state->max[queries + n] * ln2);
                if (!(z[n] >= TOTAL_LEAST && z[n] <= TOTAL_MOST))
                        state->far[item] = true;
                state->inverse[queries + n] = (float)(1 / z[n]);
        }
}

/* Item: (stretch of columns, head of the band) */
void ckv__cpu_reduce_item(void *context, uint32_t item, float *scratch) {
        const struct ckv_cpu_score *score = context;
        const struct ckv_cpu_attention *state = score->state;
        struct ckv_cpu_parts *parts = state->parts;
        uint32_t head = item % state->heads, first = item / state->heads * CKV_CPU_REDUCE_COLUMNS;

        (void)scratch;
        ckv__cpu_parts_reduce(parts, head, state->query_count, state->inverse + (size_t)head * state->stride, first,
                              CKV_MIN(parts->columns - first, CKV_CPU_REDUCE_COLUMNS) + first,
                              parts->heads + (size_t)(state->head_first + head) * parts->columns);
}

/* One item */
void ckv__cpu_form_item(void *context, uint32_t item, float *scratch) {
        struct ckv_cpu_score *score = context;
        const struct ckv_cpu_attention *state = score->state;

        (void)item;
        (void)scratch;
        ckv__cpu_parts_form(state->parts, score->group, score->units, state->part.vote_end - state->part.vote_first);
        score->unit_scores = state->parts->scores;
}

static void run_rows(const struct ckv_cpu_score *score, const struct ckv_cpu_window_segment *segment, uint32_t head,
                     uint32_t index) {
        const struct ckv_cpu_attention *state = score->state;
        struct ckv_cpu_window_segment voting = *segment;
        uint32_t rows = score->group->selection.rows;
        float *a = (state->contrast ? state->older : state->a) + (size_t)head * state->per_group * rows + segment->first;
        size_t at = ((size_t)head * state->segments + index) * state->stride;
        bool check = state->scheme == CKV_CPU_LSE;

        voting.most = !state->contrast && score->group->policy.window_reduce == CKV_ROWS_MAX;
        state->window->rows(&voting, state->inverse + (size_t)head * state->stride, a, rows, check ? state->segment_max + at : NULL,
                            check ? state->segment_sum + at : NULL);
}

void ckv__cpu_rows_item(void *context, uint32_t item, float *scratch) {
        each_segment(context, item, scratch, run_rows);
}
