/*
 * Scoring of one layer (S1 to S3), a band of KV heads at a time:
 *
 *     QUERIES   widen the window's queries and lay them out for the kernel
 *     SUMS      each segment of rows: maximum and sum of 2^(logit - maximum) of each query
 *     COMBINE   each query: maximum and 1 / Z over the segments
 *     WEIGHTS   each segment: A[h][j] = sum over the query rows of 2^(logit - maximum) / Z
 *     FOLD      each stretch of rows: A to T[j]
 *
 * Each phase is a list of items whose size depends on the shape alone; segments
 * are summed in ascending order; so neither the number of threads nor the place
 * where a slice ended can change a bit (R30).  A band is as many KV heads as
 * fit BAND_BYTES: it bounds memory at long contexts, and as T adds up its heads
 * in ascending order either way, it does not show either.
 *
 * raw_qk is linear in the queries: the sum over t moves into the query, and
 * one product per head is left.
 *
 * Logits are computed in units of log 2, the factor being multiplied into the
 * queries.  A NaN or an infinity in a visible key or query ends up in Z and so
 * in every row that the query sees (R23).  Products beyond the range of
 * binary32 do so too.
 */
#include "kernels/cpu_score.h"

#include "base/clock.h"
#include "base/macros.h"
#include "kernels/cpu_fold.h"
#include "kernels/reference.h"

#include <errno.h>
#include <math.h>
#include <string.h>

enum {
        SEGMENT_ROWS = 256,
        SEGMENT_WORK = 1 << 22,         /* multiplications of one item: tens of microseconds */
        BAND_BYTES = 64 << 20,
        COMBINE_QUERIES = 64,
        WINDOW_MAX = 256,
};

static const double log2e = 0x1.71547652b82fep+0, ln2 = 0x1.62e42fefa39efp-1;

enum phase { PHASE_QUERIES, PHASE_SUMS, PHASE_COMBINE, PHASE_WEIGHTS, PHASE_FOLD, PHASE_DONE };

struct ckv_cpu_score {
        const struct ckv_job *job;
        const struct ckv_job_group *group;
        const struct ckv_job_layer *layer;
        const struct ckv_cpu_kernel *kernel;
        bool raw;
        double factor;                          /* of the queries */
        float cap;
        uint32_t per_group;                     /* G: query heads of a KV head */
        uint32_t query_count, query_padded;     /* of one KV head; padded to whole blocks */
        uint32_t segment_rows, segments;
        uint32_t band;                          /* KV heads that are worked on together, at most */
        uint32_t low[WINDOW_MAX], high[WINDOW_MAX];

        enum phase phase;
        uint32_t cursor;                        /* first item of the phase that is not done */
        uint32_t head_first, heads;             /* the band */

        float *queries;                         /* [band][query_padded / 6][d][6] */
        float *segment_max, *segment_sum;       /* [band][segments][query_count] */
        float *max, *inverse;                   /* [band][query_count] */
        float *a;                               /* [band][G][L] */
        double *rows;                           /* [score heads][L] */
        uint32_t bad_head;                      /* h + 1 */
};

uint32_t ckv__cpu_segment_rows(uint32_t query_count, uint32_t dims) {
        uint32_t rows = SEGMENT_ROWS;

        while (rows > CKV_CPU_TILE && (uint64_t)rows * query_count * dims > SEGMENT_WORK)
                rows /= 2;
        return rows;
}

/* raw_qk: sum over the window of query head @head */
static void load_query_sum(const struct ckv_cpu_score *score, uint32_t head, float *values, float *out) {
        uint32_t d = score->group->head_dim_k, w = score->group->policy.window;
        double sum[CKV_CPU_DIMS_MAX] = { 0 };

        for (uint32_t t = 0; t < w; t++) {
                ckv_ref_load_query(score->job, score->group, score->layer, score->job->queries.rows - w + t, head, values);
                for (uint32_t x = 0; x < d; x++)
                        sum[x] += (double)values[x];
        }
        for (uint32_t x = 0; x < d; x++)
                out[x * CKV_CPU_BLOCK] = (float)sum[x];
}

/* Item: (panel of queries, head of the band) */
static void queries_item(void *context, uint32_t item, float *scratch) {
        const struct ckv_cpu_score *score = context;
        const struct ckv_job_queries *queries = &score->job->queries;
        uint32_t d = score->group->head_dim_k, w = score->group->policy.window, g = item % score->heads;
        uint32_t first = item / score->heads * CKV_CPU_PANEL, end = CKV_MIN(score->query_count - first, CKV_CPU_PANEL) + first;
        float *band = score->queries + (size_t)g * score->query_padded * d;

        for (uint32_t n = first; n < end; n++) {
                float *out = band + (size_t)(n / CKV_CPU_BLOCK) * d * CKV_CPU_BLOCK + n % CKV_CPU_BLOCK;
                uint32_t head = (score->head_first + g) * score->per_group + (score->raw ? n : n / w);

                if (score->raw) {
                        load_query_sum(score, head, scratch, out);
                        continue;
                }
                ckv_ref_load_query(score->job, score->group, score->layer, queries->rows - w + n % w, head, scratch);
                for (uint32_t x = 0; x < d; x++)
                        out[x * CKV_CPU_BLOCK] = (float)((double)scratch[x] * score->factor);
        }
}

/* Item: (segment, head of the band); neighbouring items read neighbouring heads, which often share memory pages. */
static struct ckv_cpu_segment segment_of(const struct ckv_cpu_score *score, uint32_t item, float *scratch) {
        uint32_t g = item % score->heads, first = item / score->heads * score->segment_rows;

        return (struct ckv_cpu_segment){
                .k = &score->layer->k, .table = &score->group->table, .head = score->head_first + g,
                .first = first, .rows = CKV_MIN(score->group->selection.rows - first, score->segment_rows),
                .dims = score->group->head_dim_k,
                .queries = score->queries + (size_t)g * score->query_padded * score->group->head_dim_k,
                .query_count = score->query_count, .window = score->raw ? 1 : score->group->policy.window,
                .low = score->low, .high = score->high, .cap = score->cap, .scratch = scratch,
        };
}

static void sums_item(void *context, uint32_t item, float *scratch) {
        const struct ckv_cpu_score *score = context;
        struct ckv_cpu_segment segment = segment_of(score, item, scratch);
        size_t at = ((size_t)(item % score->heads) * score->segments + item / score->heads) * score->query_count;

        score->kernel->sums(&segment, score->segment_max + at, score->segment_sum + at);
}

/* Item: (block of queries, head of the band). Z = sum over ascending segments of sum * 2^(its maximum - maximum) */
static void combine_item(void *context, uint32_t item, float *scratch) {
        const struct ckv_cpu_score *score = context;
        uint32_t g = item % score->heads, first = item / score->heads * COMBINE_QUERIES;
        uint32_t end = CKV_MIN(score->query_count - first, COMBINE_QUERIES) + first;
        size_t band = (size_t)g * score->segments * score->query_count;

        (void)scratch;
        for (uint32_t n = first; n < end; n++) {
                const float *max = score->segment_max + band + n, *sum = score->segment_sum + band + n;
                float most = max[0];
                double z = 0;

                for (uint32_t i = 1; i < score->segments; i++)
                        most = CKV_MAX(max[(size_t)i * score->query_count], most);
                for (uint32_t i = 0; i < score->segments; i++) {
                        size_t at = (size_t)i * score->query_count;

                        if (sum[at] != 0)
                                z += (double)sum[at] * ckv_ref_exp(((double)max[at] - (double)most) * ln2);
                }
                score->max[(size_t)g * score->query_count + n] = most;
                /* all logits -infinity: the softmax has no value */
                score->inverse[(size_t)g * score->query_count + n] = z == 0 ? NAN : (float)(1.0 / z);
        }
}

static void weights_item(void *context, uint32_t item, float *scratch) {
        const struct ckv_cpu_score *score = context;
        struct ckv_cpu_segment segment = segment_of(score, item, scratch);
        uint32_t g = item % score->heads, rows = score->group->selection.rows;
        float *a = score->a + (size_t)g * score->per_group * rows + segment.first;
        size_t queries = (size_t)g * score->query_count;

        if (score->raw)
                score->kernel->products(&segment, a, rows);
        else
                score->kernel->weights(&segment, score->max + queries, score->inverse + queries, a, rows);
}

static void fold_item(void *context, uint32_t item, float *scratch) {
        const struct ckv_cpu_score *score = context;
        struct ckv_cpu_fold fold = {
                .group = score->group, .layer = score->layer, .low = score->low, .high = score->high,
                .head_first = score->head_first, .heads = score->heads, .a = score->a, .rows = score->rows,
        };

        ckv__cpu_fold_rows(&fold, item, scratch);
}

static uint32_t divide_up(uint32_t a, uint32_t b) {
        return a / b + (a % b != 0);
}

static uint32_t phase_items(const struct ckv_cpu_score *score) {
        switch (score->phase) {
        case PHASE_QUERIES:
                return divide_up(score->query_count, CKV_CPU_PANEL) * score->heads;
        case PHASE_COMBINE:
                return divide_up(score->query_count, COMBINE_QUERIES) * score->heads;
        case PHASE_FOLD:
                return divide_up(score->group->selection.rows, CKV_CPU_FOLD_ROWS);
        default:
                return score->segments * score->heads;
        }
}

static void next_phase(struct ckv_cpu_score *score) {
        score->cursor = 0;
        if (score->phase != PHASE_FOLD) {
                score->phase = score->raw && score->phase == PHASE_QUERIES ? PHASE_WEIGHTS : score->phase + 1;
                return;
        }
        score->head_first += score->heads;
        score->heads = CKV_MIN(score->group->kv_heads - score->head_first, score->band);
        score->phase = score->heads > 0 ? PHASE_QUERIES : PHASE_DONE;
}

void ckv__cpu_score_begin(struct ckv_cpu_score *score, const struct ckv_job_layer *layer) {
        score->layer = layer;
        score->phase = PHASE_QUERIES;
        score->cursor = 0;
        score->head_first = 0;
        score->heads = CKV_MIN(score->group->kv_heads, score->band);
}

bool ckv__cpu_score_step(struct ckv_cpu_score *score, struct ckv_cpu_pool *pool, const struct ckv_cpu_kernel *kernel,
                         uint64_t until_nsec) {
        static const ckv_cpu_work work[] = {
                [PHASE_QUERIES] = queries_item, [PHASE_SUMS] = sums_item, [PHASE_COMBINE] = combine_item,
                [PHASE_WEIGHTS] = weights_item, [PHASE_FOLD] = fold_item,
        };

        score->kernel = kernel;
        while (score->phase != PHASE_DONE) {
                uint32_t items = phase_items(score);

                score->cursor = ckv__cpu_pool_run(pool, work[score->phase], score, score->cursor, items, until_nsec);
                if (score->cursor == items)
                        next_phase(score);
                if (ckv_now_nsec() >= until_nsec)
                        break;
        }
        return score->phase == PHASE_DONE;
}

const double *ckv__cpu_score_rows(const struct ckv_cpu_score *score) {
        return score->rows;
}

uint32_t ckv__cpu_score_bad_head(const struct ckv_cpu_score *score) {
        return score->bad_head;
}

static void set_shape(struct ckv_cpu_score *score) {
        const struct ckv_job_group *group = score->group;
        const struct ckv_policy *policy = &group->policy;
        double scale = ckv_ref_scale(group);
        uint64_t per_head;

        score->raw = policy->scorer == CKV_SCORER_RAW_QK;
        score->per_group = group->q_heads / group->kv_heads;
        score->query_count = score->raw ? score->per_group : score->per_group * policy->window;
        score->query_padded = divide_up(score->query_count, CKV_CPU_BLOCK) * CKV_CPU_BLOCK;
        score->segment_rows = ckv__cpu_segment_rows(score->query_count, group->head_dim_k);
        score->segments = divide_up(group->selection.rows, score->segment_rows);
        if (score->raw)
                score->factor = 1;
        else if (policy->softcap > 0) {
                score->factor = scale / policy->softcap;
                score->cap = (float)(policy->softcap * log2e);
        } else
                score->factor = scale * log2e;
        for (uint32_t t = 0; t < policy->window && !score->raw; t++)
                ckv_ref_visible(score->job, group, policy->window - 1 - t, &score->low[t], &score->high[t]);
        per_head = (uint64_t)score->per_group * group->selection.rows * sizeof(float) +
                   (uint64_t)score->query_padded * (group->head_dim_k + 2 * (uint64_t)score->segments + 2) * sizeof(float);
        score->band = (uint32_t)CKV_MIN(CKV_MAX(BAND_BYTES / per_head, 1), group->kv_heads);
}

int ckv__cpu_score_new(const struct ckv_job *job, const struct ckv_job_group *group, struct ckv_cpu_score **ret_score) {
        struct ckv_cpu_score *score = calloc(1, sizeof(*score));
        size_t partials, queries;

        if (!score)
                return -ENOMEM;
        score->job = job;
        score->group = group;
        set_shape(score);
        queries = (size_t)score->band * score->query_padded;
        partials = (size_t)score->band * score->segments * score->query_count;
        /* zeroed: the queries that fill up a block are computed with and thrown away */
        score->queries = calloc(queries * group->head_dim_k, sizeof(float));
        score->segment_max = malloc(partials * sizeof(float));
        score->segment_sum = malloc(partials * sizeof(float));
        score->max = malloc(queries * sizeof(float));
        score->inverse = malloc(queries * sizeof(float));
        score->a = malloc((size_t)score->band * score->per_group * group->selection.rows * sizeof(float));
        score->rows = malloc((size_t)ckv_score_heads(group) * group->selection.rows * sizeof(double));
        if (!score->queries || !score->segment_max || !score->segment_sum || !score->max || !score->inverse || !score->a ||
            !score->rows) {
                (void)ckv__cpu_score_free(score);
                return -ENOMEM;
        }
        *ret_score = score;
        return 0;
}

struct ckv_cpu_score *ckv__cpu_score_free(struct ckv_cpu_score *score) {
        if (!score)
                return NULL;
        free(score->queries);
        free(score->segment_max);
        free(score->segment_sum);
        free(score->max);
        free(score->inverse);
        free(score->a);
        free(score->rows);
        free(score);
        return NULL;
}
