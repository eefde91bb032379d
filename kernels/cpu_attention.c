/*
 * The scorers window and raw_qk, a band of KV heads at a time; for each panel
 * of query rows
 *
 *     QUERIES   widen the queries and lay them out for the kernel
 *     SUMS      each segment of rows: maximum and sum of 2^(logit - maximum) of each query
 *     COMBINE   each query: maximum and 1 / Z over the segments
 *     WEIGHTS   each segment: A[h][j] takes in 2^(logit - maximum) / Z of the panel's query rows
 *     CHECK     each query head: was the caller's log-sum-exp right (R40)?
 *
 * or, where a window kernel serves (cpu_scheme.h),
 *
 *     PACK      lay out the queries for it
 *     REFERENCE each query's largest logit among the first rows: what its weights are relative to
 *     UNITS     each segment: sums of 2^(logit - reference) of each query, and in scheme B of each query and unit
 *     TOTALS    each query: 1 / Z over the segments
 *     ROWS      schemes A and C: as WEIGHTS;  in scheme B instead
 *     REDUCE    each unit: the sums of all queries become one, each divided by its Z
 *
 * and then
 *
 *     LEAK      each query head: pool = leak
 *     FOLD      each stretch of rows: A to T[j];  in scheme B FORM, of all units at once: C[u]
 *
 * A log-sum-exp of the caller stands for maximum and Z, and what finds these
 * is left out: one pass over K.  Segments are summed up in ascending order.
 * A band is as many KV heads as fit the scratch: it bounds memory at long
 * contexts, and as T adds up its heads in ascending order either way, it does
 * not show.  One panel holds 256 query rows, which is every window but that of
 * H2O; the rows whose mean is subtracted (contrast) are panels of their own,
 * summed up in another array.
 *
 * raw_qk is linear in the queries: the sum over t moves into the query, and
 * one product per head is left.
 *
 * Logits are computed in units of log 2, the factor being multiplied into the
 * queries.  A NaN or an infinity in a visible key or query ends up in Z and so
 * in every row that the query sees (R23).  Products beyond the range of
 * binary32 do so too.
 */
#include "base/macros.h"
#include "kernels/cpu_attention.h"
#include "kernels/cpu_fold.h"
#include "kernels/cpu_score.h"

#include <errno.h>
#include <string.h>

enum {
        SEGMENT_ROWS = 256,
        ROW_BYTES = 5,                  /* that units and protection take of each row (kernels/select.h) */
        SEGMENT_WORK = 1 << 22,         /* multiplications of one item: tens of microseconds */
        PANEL_QUERIES = 4096,           /* of a KV head, where a window has several panels */

        /* A window kernel begins a segment with work of its own, so segments are long, whole times these rows; but few queries
         * leave nothing to wait for but memory, and then neighbouring heads should come soon. */
        WINDOW_ROWS = 240,
        WINDOW_TIMES_MOST = 4,
        WINDOW_WORK = 1 << 24,          /* multiplications of one item: tens to hundreds of microseconds */
        WINDOW_FEW = 32,                /* queries */
        PACK_UNIT = 32,                 /* queries and dimensions are padded to no more than multiples of this */
};

static const double log2e = 0x1.71547652b82fep+0;

uint32_t ckv__cpu_segment_rows(uint32_t query_count, uint32_t dims) {
        uint32_t rows = SEGMENT_ROWS;

        while (rows > CKV_CPU_TILE && (uint64_t)rows * query_count * dims > SEGMENT_WORK)
                rows /= 2;
        return rows;
}

static uint32_t attention_items(const struct ckv_cpu_score *score) {
        const struct ckv_cpu_attention *state = score->state;

        switch (score->phase) {
        case CKV_CPU_QUERIES:
                return ckv__cpu_pieces(state->query_count, CKV_CPU_PANEL) * state->heads;
        case CKV_CPU_COMBINE:
                return ckv__cpu_pieces(state->query_count, CKV_CPU_COMBINE_QUERIES) * state->heads;
        case CKV_CPU_PACK:
        case CKV_CPU_REFERENCE:
        case CKV_CPU_TOTALS:
                return state->heads;
        case CKV_CPU_UNITS:
        case CKV_CPU_ROWS:
                return ckv__cpu_pieces(state->segments * state->heads, state->bundle);
        case CKV_CPU_REDUCE:
                return ckv__cpu_pieces(state->parts->columns, CKV_CPU_REDUCE_COLUMNS) * state->heads;
        case CKV_CPU_FORM:
                return 1;
        case CKV_CPU_CHECK:
        case CKV_CPU_LEAK:
                return state->per_group * state->heads;
        case CKV_CPU_FOLD:
                return ckv__cpu_pieces(score->group->selection.rows, CKV_CPU_FOLD_ROWS);
        default:
                return state->segments * state->heads;
        }
}

static const void *attention_where(const void *context, uint32_t item) {
        const struct ckv_cpu_score *score = context;
        const struct ckv_cpu_attention *state = score->state;
        uint32_t i = item;

        if (score->phase == CKV_CPU_UNITS || score->phase == CKV_CPU_ROWS)
                i = item * state->bundle;
        else if (score->phase != CKV_CPU_SUMS && score->phase != CKV_CPU_WEIGHTS)
                return NULL;
        return ckv_plane_row(&score->layer->k, &score->group->table, i / state->heads * state->segment_rows,
                             state->head_first + i % state->heads);
}

/* Turn to the panel that begins with query row @first. */
static void begin_panel(struct ckv_cpu_score *score, uint32_t first, bool contrast, bool again) {
        struct ckv_cpu_attention *state = score->state;
        uint32_t end = contrast ? state->part.contrast_end : state->part.vote_end;

        state->first = first;
        state->rows = CKV_MIN(end - first, state->panel_most);
        state->contrast = contrast;
        state->again = again;
        state->query_count = state->per_group * (state->raw ? 1 : state->rows);
        state->query_padded = ckv__cpu_pieces(state->query_count, CKV_CPU_BLOCK) * CKV_CPU_BLOCK;
        state->stride = state->query_count;
        if (state->window)
                state->stride = ckv__cpu_pieces(state->query_count, CKV_CPU_WINDOW_LANES) * CKV_CPU_WINDOW_LANES;
        for (uint32_t t = 0; t < state->rows && !state->raw; t++)
                ckv_ref_visible(score->job, score->group, score->job->queries.rows - 1 - first - t, &state->low[t],
                                &state->high[t]);
        score->phase = state->window ? CKV_CPU_PACK : CKV_CPU_QUERIES;
}

static void begin_band(struct ckv_cpu_score *score, uint32_t head_first) {
        struct ckv_cpu_attention *state = score->state;

        state->head_first = head_first;
        state->heads = CKV_MIN(score->group->kv_heads - head_first,
                               state->scheme == CKV_CPU_UNITS_ONCE ? state->parts->band : state->band);
        memset(state->far, 0, (size_t)state->heads * sizeof(*state->far));
        memset(state->wrong, 0, (size_t)state->heads * state->per_group * sizeof(*state->wrong));
        begin_panel(score, state->part.vote_first, false, false);
}

static void next_band(struct ckv_cpu_score *score) {
        struct ckv_cpu_attention *state = score->state;

        if (state->head_first + state->heads < score->group->kv_heads)
                begin_band(score, state->head_first + state->heads);
        else
                score->phase = score->phase == CKV_CPU_REDUCE ? CKV_CPU_FORM : CKV_CPU_PHASE_DONE;
}

/* Segments, for whichever kernel works on the layer (R30: by shape alone) */
static void cut(struct ckv_cpu_score *score, enum ckv_cpu_scheme scheme) {
        struct ckv_cpu_attention *state = score->state;
        uint32_t d = score->group->head_dim_k, times = 1;
        uint64_t least_work = (uint64_t)WINDOW_ROWS * state->queries_most * d;

        state->scheme = scheme;
        state->window = scheme == CKV_CPU_GENERAL ? NULL : score->path->window;
        if (state->window && state->queries_most > WINDOW_FEW)
                times = (uint32_t)CKV_MIN(CKV_MAX(WINDOW_WORK / least_work, 1), WINDOW_TIMES_MOST);
        state->segment_rows = state->window ? times * WINDOW_ROWS : ckv__cpu_segment_rows(state->queries_most, d);
        state->segments = ckv__cpu_pieces(score->group->selection.rows, state->segment_rows);
        state->bundle = (uint32_t)CKV_MAX(WINDOW_WORK / (times * least_work), 1);
}

/* What the rows of one array of weights take, for all heads of the band */
static size_t weights_of(const struct ckv_cpu_score *score) {
        const struct ckv_cpu_attention *state = score->state;

        return (size_t)state->band * state->per_group * score->group->selection.rows;
}

/* Weights by row, for a layer that has them; sums by unit make room. Return: 0 or -ENOMEM. */
static int make_weights(struct ckv_cpu_score *score) {
        struct ckv_cpu_attention *state = score->state;

        state->parts = ckv__cpu_parts_free(state->parts);
        if (!state->a)
                state->a = ckv__cpu_scratch_take(score->scratch, weights_of(score) * sizeof(float));
        return state->a ? 0 : -ENOMEM;
}

/* What is left of the scratch for scheme B, besides what any scheme has */
static uint64_t parts_bytes(const struct ckv_cpu_score *score) {
        const struct ckv_cpu_attention *state = score->state;
        uint64_t limit = ckv__cpu_scratch_limit(score->scratch);
        uint64_t others = state->fixed_bytes + (uint64_t)state->band * (state->head_bytes - state->weights_bytes);

        return limit > others ? limit - others : 0;
}

/* Scheme B's map and memory, made for the first layer that wants it, weights make room; NULL if too large. Return: 0 or -ENOMEM. */
static int make_parts(struct ckv_cpu_score *score) {
        struct ckv_cpu_attention *state = score->state;
        size_t stride = ckv__cpu_pieces(state->queries_most, CKV_CPU_WINDOW_LANES) * (size_t)CKV_CPU_WINDOW_LANES;
        int r;

        if (state->parts || state->no_parts)
                return 0;
        ckv__cpu_scratch_give(score->scratch, state->a);
        state->a = NULL;
        r = ckv__cpu_parts_new(score->group, score->units, ckv_ref_pool_domain(score->group), state->seen, state->segment_rows,
                               stride, state->band, score->scratch, parts_bytes(score), &state->parts);
        state->no_parts = r == 0 && !state->parts;
        return r;
}

/* A reference was too far from the logits, or they are no numbers: all of the layer again, the sure way. */
static bool any_far(const struct ckv_cpu_attention *state) {
        for (uint32_t g = 0; g < state->heads; g++)
                if (state->far[g])
                        return true;
        return false;
}

/* The layer from its first head on, as it is cut */
static void begin_layer(struct ckv_cpu_score *score) {
        struct ckv_cpu_attention *state = score->state;

        if (state->scheme != CKV_CPU_UNITS_ONCE && make_weights(score) < 0) {
                score->no_memory = true;
                score->phase = CKV_CPU_PHASE_DONE;
                return;
        }
        /* the queries that fill up a block are computed with and thrown away */
        if (!state->window)
                memset(state->queries, 0, (size_t)state->band * state->padded_most * score->group->head_dim_k * sizeof(float));
        begin_band(score, 0);
}

/* The panel is through: the next one, or what comes behind the last. */
static void end_panel(struct ckv_cpu_score *score) {
        struct ckv_cpu_attention *state = score->state;
        uint32_t next = state->first + state->rows, end = state->contrast ? state->part.contrast_end : state->part.vote_end;

        if (state->raw || (next == end && (state->contrast || !state->older))) {
                score->phase = state->leaked ? CKV_CPU_LEAK : CKV_CPU_FOLD;
                for (uint32_t h = 0; h < state->heads * state->per_group && score->bad_head == 0; h++)
                        score->bad_head = state->wrong[h] ? state->head_first * state->per_group + h + 1 : 0;
                if (score->bad_head > 0)
                        score->phase = CKV_CPU_PHASE_DONE;
        } else if (next == end)
                begin_panel(score, state->part.contrast_first, true, false);
        else
                begin_panel(score, next, state->contrast, true);
}

static void attention_next(struct ckv_cpu_score *score) {
        struct ckv_cpu_attention *state = score->state;
        bool lse = score->layer->lse && !state->raw;

        switch (score->phase) {
        case CKV_CPU_QUERIES:
                score->phase = state->raw || lse ? CKV_CPU_WEIGHTS : CKV_CPU_SUMS;
                break;
        case CKV_CPU_PACK:
                score->phase = lse ? CKV_CPU_ROWS : CKV_CPU_REFERENCE;
                break;
        case CKV_CPU_TOTALS:
                if (any_far(state)) {
                        cut(score, CKV_CPU_GENERAL);
                        begin_layer(score);
                } else
                        score->phase = state->scheme == CKV_CPU_UNITS_ONCE ? CKV_CPU_REDUCE : CKV_CPU_ROWS;
                break;
        case CKV_CPU_FORM:
                score->phase = CKV_CPU_PHASE_DONE;
                break;
        case CKV_CPU_WEIGHTS:
        case CKV_CPU_ROWS:
                if (lse)
                        score->phase = CKV_CPU_CHECK;
                else
                        end_panel(score);
                break;
        case CKV_CPU_CHECK:
                end_panel(score);
                break;
        case CKV_CPU_FOLD:
        case CKV_CPU_REDUCE:
                next_band(score);
                break;
        default:
                score->phase++;
        }
}

static void attention_begin(struct ckv_cpu_score *score) {
        struct ckv_cpu_attention *state = score->state;
        const struct ckv_cpu_window_kernel *window = score->path->window;
        enum ckv_cpu_scheme scheme = ckv__cpu_scheme(score->job, score->group, score->layer, window, state->panel_most,
                                                     score->units ? score->units->count : 0);

        if (scheme != CKV_CPU_GENERAL && window->pack_bytes(state->queries_most, score->group->head_dim_k) > state->pack_bytes)
                scheme = CKV_CPU_GENERAL;
        cut(score, scheme);
        if (scheme == CKV_CPU_UNITS_ONCE && make_parts(score) < 0) {
                score->no_memory = true;
                score->phase = CKV_CPU_PHASE_DONE;
                return;
        }
        if (scheme == CKV_CPU_UNITS_ONCE && !state->parts)
                cut(score, CKV_CPU_TWICE);
        begin_layer(score);
}

/* Return: segments at most */
static uint32_t set_shape(const struct ckv_cpu_score *score, struct ckv_cpu_attention *state) {
        const struct ckv_job_group *group = score->group;
        const struct ckv_policy *policy = &group->policy;
        uint64_t leak_bytes = policy->pool == CKV_POOL_LEAK ? sizeof(double) : 0, limit = ckv__cpu_scratch_limit(score->scratch);
        uint64_t seen_bytes, room;
        uint32_t votes, older, segments;
        double scale = ckv_ref_scale(group);

        state->raw = policy->scorer == CKV_SCORER_RAW_QK;
        state->per_group = group->q_heads / group->kv_heads;
        state->part = ckv_ref_query_rows(score->job, group);
        votes = state->part.vote_end - state->part.vote_first;
        older = state->raw ? 0 : state->part.contrast_end - state->part.contrast_first;
        state->panel_most = CKV_MAX(votes, older);
        if (state->panel_most > CKV_CPU_PANEL_ROWS)
                state->panel_most = CKV_MIN(CKV_MAX(PANEL_QUERIES / state->per_group, 1), CKV_CPU_PANEL_ROWS);
        state->queries_most = state->per_group * (state->raw ? 1 : state->panel_most);
        state->padded_most = ckv__cpu_pieces(state->queries_most, CKV_CPU_BLOCK) * CKV_CPU_BLOCK;
        state->pack_bytes = (size_t)ckv__cpu_pieces(state->queries_most, PACK_UNIT) * PACK_UNIT *
                            ckv__cpu_pieces(group->head_dim_k, PACK_UNIT) * PACK_UNIT * sizeof(float);
        segments = ckv__cpu_pieces(group->selection.rows, CKV_MIN(ckv__cpu_segment_rows(state->queries_most, group->head_dim_k),
                                                                  (uint32_t)WINDOW_ROWS));
        if (state->raw)
                state->factor = 1;
        else if (policy->softcap > 0) {
                state->factor = scale / policy->softcap;
                state->cap = (float)(policy->softcap * log2e);
        } else
                state->factor = scale * log2e;
        state->weights_bytes = (uint64_t)state->per_group * group->selection.rows * sizeof(float);
        state->head_bytes = state->weights_bytes + state->pack_bytes +
                            (uint64_t)state->per_group * group->selection.rows * (leak_bytes + (older > 0) * sizeof(float)) +
                            ((uint64_t)state->padded_most * group->head_dim_k +
                             2 * ((uint64_t)segments + 1) * (state->queries_most + CKV_CPU_WINDOW_LANES - 1)) * sizeof(float);
        seen_bytes = policy->norm == CKV_NORM_SEEN ? sizeof(uint32_t) : 0;
        state->fixed_bytes = ((uint64_t)ckv_score_heads(group) * sizeof(double) + seen_bytes + ROW_BYTES) * group->selection.rows;
        room = limit > state->fixed_bytes ? limit - state->fixed_bytes : 0;
        state->band = (uint32_t)CKV_MIN(CKV_MAX(room / state->head_bytes, 1), group->kv_heads);
        return segments;
}

static int attention_init(struct ckv_cpu_score *score) {
        const struct ckv_job_group *group = score->group;
        const struct ckv_policy *policy = &group->policy;
        struct ckv_cpu_attention *state = score->state = calloc(1, sizeof(*state));
        uint32_t segments;
        bool older, leak = policy->pool == CKV_POOL_LEAK, seen = policy->norm == CKV_NORM_SEEN;
        size_t partials, queries, padded;

        if (!state)
                return -ENOMEM;
        segments = set_shape(score, state);
        older = !state->raw && state->part.contrast_end > state->part.contrast_first;
        queries = (size_t)state->band * state->padded_most;
        padded = (size_t)state->band * ckv__cpu_pieces(state->queries_most, CKV_CPU_WINDOW_LANES) * CKV_CPU_WINDOW_LANES;
        partials = padded * segments;
        state->queries = ckv__cpu_scratch_take(score->scratch, queries * group->head_dim_k * sizeof(float));
        state->packs = ckv__cpu_scratch_take(score->scratch, state->band * state->pack_bytes);
        state->segment_max = ckv__cpu_scratch_take(score->scratch, partials * sizeof(float));
        state->segment_sum = ckv__cpu_scratch_take(score->scratch, partials * sizeof(float));
        state->max = ckv__cpu_scratch_take(score->scratch, padded * sizeof(float));
        state->inverse = ckv__cpu_scratch_take(score->scratch, padded * sizeof(float));
        state->rows_of_reference = malloc((size_t)state->band * state->per_group * CKV_CPU_REFERENCE_ROWS * sizeof(float));
        state->far = malloc(state->band * sizeof(bool));
        state->older = older ? ckv__cpu_scratch_take(score->scratch, weights_of(score) * sizeof(float)) : NULL;
        state->leaked = leak ? ckv__cpu_scratch_take(score->scratch, weights_of(score) * sizeof(double)) : NULL;
        state->seen = seen ? ckv__cpu_scratch_take(score->scratch, ((size_t)group->selection.rows + 1) * sizeof(uint32_t)) : NULL;
        state->wrong = malloc((size_t)state->band * state->per_group * sizeof(bool));
        if (!state->queries || !state->segment_max || !state->segment_sum || !state->max || !state->inverse ||
            (older && !state->older) || (leak && !state->leaked) || (seen && !state->seen) || !state->wrong ||
            !state->packs || !state->rows_of_reference || !state->far)
                return -ENOMEM;
        if (seen)
                ckv_ref_seen(score->job, group, state->seen);
        return 0;
}

static void attention_deinit(struct ckv_cpu_score *score) {
        struct ckv_cpu_attention *state = score->state;

        if (!state)
                return;
        ckv__cpu_scratch_give(score->scratch, state->queries);
        ckv__cpu_scratch_give(score->scratch, state->packs);
        ckv__cpu_scratch_give(score->scratch, state->segment_max);
        ckv__cpu_scratch_give(score->scratch, state->segment_sum);
        ckv__cpu_scratch_give(score->scratch, state->max);
        ckv__cpu_scratch_give(score->scratch, state->inverse);
        ckv__cpu_scratch_give(score->scratch, state->a);
        ckv__cpu_scratch_give(score->scratch, state->older);
        ckv__cpu_scratch_give(score->scratch, state->leaked);
        ckv__cpu_scratch_give(score->scratch, state->seen);
        free(state->wrong);
        free(state->rows_of_reference);
        free(state->far);
        (void)ckv__cpu_parts_free(state->parts);
        free(state);
}

const struct ckv_cpu_method ckv__cpu_attention = {
        .work = ckv__cpu_attention_work,
        .init = attention_init,
        .deinit = attention_deinit,
        .begin = attention_begin,
        .items = attention_items,
        .next = attention_next,
        .where = attention_where,
};
