/*
 * The scorer drop on the CPU: eight queries after eight queries of each query
 * head, with the pieces of the reference:
 *
 *     LOGITS   a segment of rows
 *     SOFTMAX  a query
 *     OUTPUTS  a segment: its part of each query's output
 *     SCORES   a segment: what the eight queries add to S[g][j]
 *     FOLD     in the end, each stretch of rows: S[g][j] to T[j]
 *
 * Slow: binary64 throughout, because p / (1 - p) needs it, and V is read twice
 * for each eight queries.  It differs from the reference in the order in which
 * an output is summed up, and in nothing else.
 */
#include "base/macros.h"
#include "kernels/cpu_fold.h"
#include "kernels/cpu_scorer.h"
#include "kernels/reference.h"
#include "kernels/reference_block.h"

#include <errno.h>
#include <string.h>

enum { SEGMENT_ROWS = 128, SEGMENTS_MOST = 256 };

enum phase { PHASE_LOGITS, PHASE_SOFTMAX, PHASE_OUTPUTS, PHASE_SCORES, PHASE_FOLD };

struct drop {
        uint32_t segment_rows, segments;
        uint32_t head, row;             /* query head; query row of the block's first */
        struct ckv_ref_block block;
        float *values;                  /* [the most dimensions] */
        double *outputs;                /* [segments][dv][lanes], the sum in the first */
        double *s;                      /* [kv_heads][L] */
};

static uint32_t kv_head(const struct ckv_cpu_score *score) {
        const struct drop *state = score->state;

        return state->head / (score->group->q_heads / score->group->kv_heads);
}

static uint32_t segment_end(const struct ckv_cpu_score *score, uint32_t item) {
        const struct drop *state = score->state;
        uint32_t first = item * state->segment_rows;

        return CKV_MIN(score->group->selection.rows - first, state->segment_rows) + first;
}

static void logits_item(void *context, uint32_t item, float *scratch) {
        const struct ckv_cpu_score *score = context;
        struct drop *state = score->state;

        ckv_ref_block_logits(&state->block, score->group, score->layer, kv_head(score), item * state->segment_rows,
                             segment_end(score, item), scratch);
}

static void softmax_item(void *context, uint32_t item, float *scratch) {
        const struct ckv_cpu_score *score = context;
        struct drop *state = score->state;

        (void)scratch;
        ckv_ref_block_softmax(&state->block, score->group->selection.rows, item,
                              (double)ckv_ref_sink_logit(score->layer, state->head));
}

static void outputs_item(void *context, uint32_t item, float *scratch) {
        const struct ckv_cpu_score *score = context;
        const struct drop *state = score->state;
        size_t size = (size_t)score->layer->v.dims * CKV_REF_LANES;
        double *o = state->outputs + item * size;

        memset(o, 0, size * sizeof(*o));
        ckv_ref_drop_outputs(&state->block, score->group, score->layer, kv_head(score), item * state->segment_rows,
                             segment_end(score, item), scratch, o);
}

static void scores_item(void *context, uint32_t item, float *scratch) {
        const struct ckv_cpu_score *score = context;
        const struct drop *state = score->state;

        ckv_ref_drop_scores(&state->block, score->group, score->layer, kv_head(score), state->outputs, item * state->segment_rows,
                            segment_end(score, item), scratch, state->s + (size_t)kv_head(score) * score->group->selection.rows);
}

static void fold_item(void *context, uint32_t item, float *scratch) {
        const struct ckv_cpu_score *score = context;
        const struct drop *state = score->state;

        ckv__cpu_fold_heads(score, state->s, item, scratch);
}

static uint32_t drop_items(const struct ckv_cpu_score *score) {
        const struct drop *state = score->state;

        switch (score->phase) {
        case PHASE_SOFTMAX:
                return state->block.count;
        case PHASE_FOLD:
                return ckv__cpu_pieces(score->group->selection.rows, CKV_CPU_FOLD_ROWS);
        default:
                return state->segments;
        }
}

static const void *drop_where(const void *context, uint32_t item) {
        const struct ckv_cpu_score *score = context;
        const struct drop *state = score->state;
        const struct ckv_plane *plane = score->phase == PHASE_LOGITS ? &score->layer->k : &score->layer->v;

        if (score->phase == PHASE_SOFTMAX || score->phase == PHASE_FOLD)
                return NULL;
        return ckv_plane_row(plane, &score->group->table, item * state->segment_rows, kv_head(score));
}

static void begin_block(struct ckv_cpu_score *score, uint32_t head, uint32_t row) {
        struct drop *state = score->state;

        state->head = head;
        state->row = row;
        ckv_ref_block_load(&state->block, score->job, score->group, score->layer, head, row, score->job->queries.rows,
                           state->values);
        score->phase = PHASE_LOGITS;
}

static void add_outputs(struct ckv_cpu_score *score) {
        struct drop *state = score->state;
        size_t size = (size_t)score->layer->v.dims * CKV_REF_LANES;

        for (uint32_t i = 1; i < state->segments; i++)
                for (size_t x = 0; x < size; x++)
                        state->outputs[x] += state->outputs[i * size + x];
}

static void drop_next(struct ckv_cpu_score *score) {
        struct drop *state = score->state;
        uint32_t rows = score->job->queries.rows;

        if (score->phase == PHASE_FOLD) {
                score->phase = CKV_CPU_PHASE_DONE;
                return;
        }
        if (score->phase == PHASE_OUTPUTS)
                add_outputs(score);
        if (score->phase != PHASE_SCORES)
                score->phase++;
        else if (rows - state->row > CKV_REF_LANES)
                begin_block(score, state->head, state->row + CKV_REF_LANES);
        else if (state->head + 1 < score->group->q_heads)
                begin_block(score, state->head + 1, rows - score->group->policy.window);
        else
                score->phase = PHASE_FOLD;
}

static void drop_begin(struct ckv_cpu_score *score) {
        struct drop *state = score->state;

        memset(state->s, 0, (size_t)score->group->kv_heads * score->group->selection.rows * sizeof(*state->s));
        begin_block(score, 0, score->job->queries.rows - score->group->policy.window);
}

static int drop_init(struct ckv_cpu_score *score) {
        const struct ckv_job_group *group = score->group;
        size_t rows = group->selection.rows;
        uint32_t d = group->head_dim_k, dv = 0;
        struct drop *state = score->state = calloc(1, sizeof(*state));

        if (!state)
                return -ENOMEM;
        for (uint32_t l = 0; l < group->layer_count; l++) {
                d = CKV_MAX(d, group->layers[l].k.dims);
                dv = CKV_MAX(dv, group->layers[l].v.dims);
        }
        state->segment_rows = CKV_MAX(ckv__cpu_pieces(group->selection.rows, SEGMENTS_MOST), SEGMENT_ROWS);
        state->segments = ckv__cpu_pieces(group->selection.rows, state->segment_rows);
        state->block.query = malloc(((size_t)d + 1) * CKV_REF_LANES * sizeof(double));
        state->block.logits = malloc((rows + 1) * CKV_REF_LANES * sizeof(double));
        state->values = malloc(((size_t)CKV_MAX(d, dv) + 1) * sizeof(float));
        state->outputs = malloc(((size_t)state->segments * dv + 1) * CKV_REF_LANES * sizeof(double));
        state->s = malloc((size_t)group->kv_heads * rows * sizeof(double));
        return state->block.query && state->block.logits && state->values && state->outputs && state->s ? 0 : -ENOMEM;
}

static void drop_deinit(struct ckv_cpu_score *score) {
        struct drop *state = score->state;

        if (!state)
                return;
        free(state->block.query);
        free(state->block.logits);
        free(state->values);
        free(state->outputs);
        free(state->s);
        free(state);
}

static const ckv_cpu_work drop_work[] = {
        [PHASE_LOGITS] = logits_item, [PHASE_SOFTMAX] = softmax_item, [PHASE_OUTPUTS] = outputs_item,
        [PHASE_SCORES] = scores_item, [PHASE_FOLD] = fold_item,
};

const struct ckv_cpu_method ckv__cpu_drop = {
        .work = drop_work,
        .init = drop_init,
        .deinit = drop_deinit,
        .begin = drop_begin,
        .items = drop_items,
        .next = drop_next,
        .where = drop_where,
};
