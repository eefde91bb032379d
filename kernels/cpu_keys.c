/*
 * The scorers that need no queries, on the CPU:
 *
 *     NORMS       knorm, vk_ratio, keydiff: a segment of rows of some heads; keydiff sums up directions too
 *     DOTS        keydiff: the same segment against the mean directions of its heads
 *     PARTITIONS  lagkv: one partition of one head, by the reference itself
 *     FOLD        each stretch of rows: S[g][j] to T[j]
 *
 * All of it is in binary64, and segments are summed up in ascending order.
 * Within a segment the heads take turns, a few rows each: where heads lie inside
 * rows, memory is read nearly as it lies, and what one head's rows want of the
 * nearest cache is not always the same few lines.
 * lagkv is slow, and exact: its ranks would turn the smallest error into
 * another row.
 */
#include "base/macros.h"
#include "kernels/cpu_fold.h"
#include "kernels/cpu_scorer.h"
#include "kernels/reference.h"

#include <errno.h>
#include <math.h>
#include <string.h>

enum {
        SEGMENT_ROWS = 256,
        SEGMENT_HEADS = 8,
        TURN_ROWS = 16,                 /* of a head, before it is the next one's turn */
};

enum phase { PHASE_NORMS, PHASE_DOTS, PHASE_PARTITIONS, PHASE_FOLD };

struct keys {
        uint32_t segments;
        double *s;                      /* [kv_heads][L] S[g][j]; keydiff: norms until DOTS */
        double *directions;             /* [kv_heads][segments][d] NULL unless keydiff */
        double *mean;                   /* [kv_heads][d] NULL unless keydiff */
        double *lengths;                /* [kv_heads] of mean */
};

static double at_least(double v, double least) {
        return v < least ? least : v;
}

static uint32_t head_bundles(const struct ckv_cpu_score *score) {
        return ckv__cpu_pieces(score->group->kv_heads, SEGMENT_HEADS);
}

/* Item: (segment, bundle of heads); here with its first head */
static struct ckv_cpu_segment segment_of(const struct ckv_cpu_score *score, uint32_t item, float *scratch) {
        uint32_t first = item / head_bundles(score) * SEGMENT_ROWS;

        return (struct ckv_cpu_segment){
                .k = &score->layer->k, .table = &score->group->table, .head = item % head_bundles(score) * SEGMENT_HEADS,
                .first = first, .rows = CKV_MIN(score->group->selection.rows - first, SEGMENT_ROWS),
                .dims = score->group->head_dim_k, .scratch = scratch,
        };
}

/* Calls @turn for a few rows of each head of an item, and again, until the rows are through. */
static void take_turns(const struct ckv_cpu_score *score, uint32_t item, float *scratch,
                       void (*turn)(const struct ckv_cpu_score *, struct ckv_cpu_segment, uint32_t)) {
        const struct ckv_cpu_segment all = segment_of(score, item, scratch);
        uint32_t heads = CKV_MIN(score->group->kv_heads - all.head, (uint32_t)SEGMENT_HEADS);

        for (uint32_t at = 0; at < all.rows; at += TURN_ROWS)
                for (uint32_t h = 0; h < heads; h++) {
                        struct ckv_cpu_segment segment = all;

                        segment.head += h;
                        segment.first += at;
                        segment.rows = CKV_MIN(all.rows - at, (uint32_t)TURN_ROWS);
                        segment.ahead = CKV_MIN(all.rows - at - segment.rows, (uint32_t)TURN_ROWS);
                        turn(score, segment, item / head_bundles(score));
                }
}

static void norms_turn(const struct ckv_cpu_score *score, struct ckv_cpu_segment segment, uint32_t index) {
        const struct keys *state = score->state;
        double *s = state->s + (size_t)segment.head * score->group->selection.rows + segment.first, values[TURN_ROWS];

        score->kernel->norms(&segment, s);
        if (score->group->policy.scorer == CKV_SCORER_KEYDIFF) {
                double *sum = state->directions + ((size_t)segment.head * state->segments + index) * segment.dims;

                if (segment.first % SEGMENT_ROWS == 0)
                        memset(sum, 0, segment.dims * sizeof(*sum));
                score->kernel->directions(&segment, s, sum);
                return;
        }
        if (score->group->policy.scorer == CKV_SCORER_VK_RATIO) {
                segment.k = &score->layer->v;
                segment.dims = score->layer->v.dims;
                score->kernel->norms(&segment, values);
        }
        for (uint32_t j = 0; j < segment.rows; j++)
                s[j] = score->group->policy.scorer == CKV_SCORER_KNORM ? -s[j] : values[j] / at_least(s[j], 1e-12);
}

static void norms_item(void *context, uint32_t item, float *scratch) {
        take_turns(context, item, scratch, norms_turn);
}

static void dots_turn(const struct ckv_cpu_score *score, struct ckv_cpu_segment segment, uint32_t index) {
        const struct keys *state = score->state;
        double *s = state->s + (size_t)segment.head * score->group->selection.rows + segment.first, dots[TURN_ROWS];

        (void)index;
        score->kernel->dots(&segment, state->mean + (size_t)segment.head * segment.dims, dots);
        for (uint32_t j = 0; j < segment.rows; j++)
                s[j] = -(dots[j] / (at_least(s[j], 1e-8) * at_least(state->lengths[segment.head], 1e-8)));
}

static void dots_item(void *context, uint32_t item, float *scratch) {
        take_turns(context, item, scratch, dots_turn);
}

/* Item: (partition, head) */
static void partitions_item(void *context, uint32_t item, float *scratch) {
        const struct ckv_cpu_score *score = context;
        const struct keys *state = score->state;
        uint32_t heads = score->group->kv_heads, head = item % heads;

        ckv_ref_lag_partition(score->group, score->layer, head, item / heads, scratch,
                              state->s + (size_t)head * score->group->selection.rows);
}

static void fold_item(void *context, uint32_t item, float *scratch) {
        const struct ckv_cpu_score *score = context;
        const struct keys *state = score->state;

        ckv__cpu_fold_heads(score, state->s, item, scratch);
}

static uint32_t keys_items(const struct ckv_cpu_score *score) {
        const struct keys *state = score->state;
        uint32_t heads = score->group->kv_heads;

        switch (score->phase) {
        case PHASE_PARTITIONS:
                return ckv_ref_lag_partitions(score->group->selection.rows) * heads;
        case PHASE_FOLD:
                return ckv__cpu_pieces(score->group->selection.rows, CKV_CPU_FOLD_ROWS);
        default:
                return state->segments * head_bundles(score);
        }
}

static const void *keys_where(const void *context, uint32_t item) {
        const struct ckv_cpu_score *score = context;
        struct ckv_cpu_segment segment = segment_of(score, item, NULL);

        if (score->phase != PHASE_NORMS && score->phase != PHASE_DOTS)
                return NULL;
        return ckv_plane_row(segment.k, segment.table, segment.first, segment.head);
}

/* The mean direction of each head, and its length */
static void average(struct ckv_cpu_score *score) {
        struct keys *state = score->state;
        uint32_t d = score->group->head_dim_k;

        memset(state->mean, 0, (size_t)score->group->kv_heads * d * sizeof(*state->mean));
        for (uint32_t g = 0; g < score->group->kv_heads; g++) {
                double *mean = state->mean + (size_t)g * d, sum = 0;
                const double *from = state->directions + (size_t)g * state->segments * d;

                for (uint32_t i = 0; i < state->segments; i++)
                        for (uint32_t x = 0; x < d; x++)
                                mean[x] += from[(size_t)i * d + x];
                for (uint32_t x = 0; x < d; x++) {
                        mean[x] = mean[x] / (double)score->group->selection.rows;
                        sum += mean[x] * mean[x];
                }
                state->lengths[g] = sqrt(sum);
        }
}

static void keys_next(struct ckv_cpu_score *score) {
        if (score->phase == PHASE_NORMS && score->group->policy.scorer == CKV_SCORER_KEYDIFF) {
                average(score);
                score->phase = PHASE_DOTS;
        } else
                score->phase = score->phase == PHASE_FOLD ? CKV_CPU_PHASE_DONE : PHASE_FOLD;
}

static void keys_begin(struct ckv_cpu_score *score) {
        score->phase = score->group->policy.scorer == CKV_SCORER_LAGKV ? PHASE_PARTITIONS : PHASE_NORMS;
}

static int keys_init(struct ckv_cpu_score *score) {
        const struct ckv_job_group *group = score->group;
        uint32_t rows = group->selection.rows, d = group->head_dim_k;
        bool keydiff = group->policy.scorer == CKV_SCORER_KEYDIFF;
        struct keys *state = score->state = calloc(1, sizeof(*state));

        if (!state)
                return -ENOMEM;
        state->segments = ckv__cpu_pieces(rows, SEGMENT_ROWS);
        state->s = malloc((size_t)group->kv_heads * rows * sizeof(double));
        state->directions = keydiff ? malloc((size_t)group->kv_heads * state->segments * d * sizeof(double)) : NULL;
        state->mean = keydiff ? malloc((size_t)group->kv_heads * d * sizeof(double)) : NULL;
        state->lengths = malloc(group->kv_heads * sizeof(double));
        if (!state->s || !state->lengths || (keydiff && (!state->directions || !state->mean)))
                return -ENOMEM;
        /* partitions write over it where they score */
        for (uint32_t j = 0; j < rows && group->policy.scorer == CKV_SCORER_LAGKV; j++)
                for (uint32_t g = 0; g < group->kv_heads; g++)
                        state->s[(size_t)g * rows + j] = ckv_ref_lag_default(rows, j);
        return 0;
}

static void keys_deinit(struct ckv_cpu_score *score) {
        struct keys *state = score->state;

        if (!state)
                return;
        free(state->s);
        free(state->directions);
        free(state->mean);
        free(state->lengths);
        free(state);
}

static const ckv_cpu_work keys_work[] = {
        [PHASE_NORMS] = norms_item, [PHASE_DOTS] = dots_item, [PHASE_PARTITIONS] = partitions_item, [PHASE_FOLD] = fold_item,
};

const struct ckv_cpu_method ckv__cpu_keys = {
        .work = keys_work,
        .init = keys_init,
        .deinit = keys_deinit,
        .begin = keys_begin,
        .items = keys_items,
        .next = keys_next,
        .where = keys_where,
};
