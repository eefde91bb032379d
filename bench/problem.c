/*
 * Jobs out of nothing.  What the keys are does not matter to their speed, but
 * zeros or one row over and over would: equal sums need no exponent, and pages
 * that are the same may be one page.
 */
#include "bench/problem.h"

#include "base/macros.h"
#include "bench/lse.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
        NORMALS = 1 << 14, KEPT_MILLIONTHS = 200000, VOTE_QUERY_ROWS = 64,
        USUAL_VOTES = 32 * 32,          /* query heads and rows of the window of one layer of Llama-3-8B, profile default */
};
static const float QUERY_SIZE = 3;      /* logits of some size: weights differ by a factor of a hundred */

static uint64_t next_random(uint64_t *state) {
        *state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        return *state >> 33;
}

static float normal(uint64_t *state) {
        float sum = -6;

        for (uint32_t i = 0; i < 12; i++)
                sum += (float)(next_random(state) & 0xffff) * 0x1p-16f;
        return sum;
}

/* Halves are cut, not rounded: they are as good as any. A normal number of either type stays one. */
static void store(float value, enum ckv_dtype dtype, uint8_t *ret_bytes) {
        uint32_t bits;

        memcpy(&bits, &value, sizeof(bits));
        if (dtype == CKV_DTYPE_BF16)
                bits >>= 16;
        else if (dtype == CKV_DTYPE_F16)
                bits = (bits >> 16 & 0x8000) | ((bits & 0x7fffffff) < 0x38800000 ? 0 : (bits - (UINT32_C(112) << 23)) >> 13 & 0x7fff);
        memcpy(ret_bytes, &bits, ckv_dtype_bytes(dtype));
}

static void fill(enum ckv_dtype dtype, float size, uint64_t state, uint8_t *ret_bytes, size_t bytes) {
        static uint8_t normals[NORMALS * sizeof(float)];
        uint32_t each = ckv_dtype_bytes(dtype);

        for (uint32_t i = 0; i < NORMALS; i++)
                store(size * normal(&state), dtype, normals + (size_t)i * each);
        /* sixteen bytes at a time from any place of them */
        for (size_t at = 0; at < bytes; at += 16)
                memcpy(ret_bytes + at, normals + next_random(&state) % (NORMALS - 16) * each, CKV_MIN(bytes - at, 16));
}

void bench_pool_fill(struct bench_pool *pool, enum ckv_dtype dtype) {
        fill(dtype, 1, 1, pool->bytes, pool->size);
        pool->dtype = dtype;
}

static uint32_t query_rows_of(const struct bench_case *c) {
        return c->asked.profile == CKV_PROFILE_VOTE ? VOTE_QUERY_ROWS : c->window;
}

static size_t layer_bytes_of(const struct bench_case *c, uint32_t tokens) {
        return (size_t)tokens * c->kv_heads * c->dims * ckv_dtype_bytes(c->dtype);
}

uint32_t bench_problem_layers(const struct bench_case *c, uint32_t tokens, uint32_t job_tokens, size_t pool_bytes) {
        uint64_t fit = pool_bytes / layer_bytes_of(c, tokens), votes = (uint64_t)c->q_heads * query_rows_of(c), layers = fit;

        /* bare products may be summed up over the queries before K is read */
        if (bench_has_weights(c))
                layers = (uint64_t)job_tokens * CKV_MAX(USUAL_VOTES, votes) / votes / tokens;
        return (uint32_t)CKV_MAX(CKV_MIN(layers, fit), 1);
}

void bench_problem_init(const struct bench_case *c, uint32_t tokens, uint32_t layers, const struct bench_pool *pool,
                        struct bench_problem *ret_problem) {
        uint32_t query_rows = query_rows_of(c);
        size_t bytes = (size_t)layers * c->q_heads * query_rows * c->dims * ckv_dtype_bytes(c->dtype);

        *ret_problem = (struct bench_problem){ .of = c, .tokens = tokens, .layers = layers, .query_rows = query_rows, .pool = pool };
        ret_problem->layer_bytes = layer_bytes_of(c, tokens);
        ret_problem->queries = malloc(bytes);
        ret_problem->places = pool->size / (layers * ret_problem->layer_bytes);
        ret_problem->lse = c->lse ? calloc(ret_problem->places + 1, sizeof(*ret_problem->lse)) : NULL;
        if (!ret_problem->queries || ret_problem->places == 0 || (c->lse && !ret_problem->lse)) {
                (void)fprintf(stderr, "no memory for %u tokens\n", tokens);
                exit(EXIT_FAILURE);
        }
        fill(c->dtype, QUERY_SIZE, 2, ret_problem->queries, bytes);
}

void bench_problem_deinit(struct bench_problem *problem) {
        for (size_t i = 0; problem->lse && i < problem->places; i++)
                free(problem->lse[i]);
        free(problem->lse);
        free(problem->queries);
        problem->lse = NULL;
        problem->queries = NULL;
}

uint8_t *bench_problem_keys(const struct bench_problem *problem, uint32_t turn) {
        return problem->pool->bytes + turn % problem->places * problem->layers * problem->layer_bytes;
}

static struct ckv_row_table table_of(const struct bench_problem *problem) {
        enum bench_layout layout = problem->of->layout;
        uint32_t page = layout == BENCH_PAGED_16 ? 16 : layout == BENCH_PAGED_128 ? 128 : problem->tokens;
        uint32_t pages = (problem->tokens - 1) / page + 1, *entries = malloc(pages * sizeof(*entries));
        uint64_t state = 3;

        if (!entries)
                return (struct ckv_row_table){ 0 };
        for (uint32_t i = 0; i < pages; i++)
                entries[i] = i;
        for (uint32_t i = pages; i > 1; i--) {
                uint32_t at = (uint32_t)(next_random(&state) % i), last = entries[i - 1];

                entries[i - 1] = entries[at];
                entries[at] = last;
        }
        return (struct ckv_row_table){ .entries = entries, .tokens_per_block = page };
}

static struct ckv_plane plane_of(const struct bench_problem *problem, uint8_t *keys, uint32_t page) {
        const struct bench_case *c = problem->of;
        uint64_t element = ckv_dtype_bytes(c->dtype), row = element * c->dims, all = row * c->kv_heads;
        bool heads_outside = c->layout == BENCH_HEADS_OUTSIDE;

        return (struct ckv_plane){
                .base = keys, .dtype = c->dtype, .dims = c->dims, .dim = { .tile = 1, .outer = element },
                .block_stride = page * all, .head_stride = heads_outside ? row * problem->tokens : row,
                .token = { .tile = 1, .outer = heads_outside ? row : all },
        };
}

/* What the case asks; an illegal one is a mistake here. */
static void resolve(const struct bench_problem *problem, struct ckv_policy *ret_policy) {
        struct ckv_policy asked = problem->of->asked;
        struct ckv_policy_fault fault;
        bool queries = bench_has_queries(problem->of);

        asked.window = queries ? problem->of->window : 0;
        asked.chunk = asked.selector == CKV_SELECTOR_TOKEN || asked.profile == CKV_PROFILE_VOTE ? 0 : problem->of->chunk;
        if (ckv_policy_resolve(&asked, ret_policy, &fault))
                return;
        (void)fprintf(stderr, "%s: %s is refused\n", problem->of->what, ckv_policy_field_name(fault.field));
        exit(EXIT_FAILURE);
}

/* The caller's log-sum-exp for a job that is ready but for it */
static void add_lse(const struct bench_problem *problem, uint32_t turn, struct ckv_job *job) {
        size_t of_layer = (size_t)problem->of->q_heads * problem->query_rows;
        float **lse = &problem->lse[turn % problem->places];

        if (!*lse) {
                *lse = malloc(problem->layers * of_layer * sizeof(**lse));
                if (!*lse) {
                        (void)fprintf(stderr, "no memory for a log-sum-exp\n");
                        exit(EXIT_FAILURE);
                }
                bench_lse(job, *lse);
        }
        for (uint32_t i = 0; i < problem->layers; i++)
                job->groups[0].layers[i].lse = (const uint8_t *)(*lse + i * of_layer);
}

struct ckv_job *bench_problem_job(const struct bench_problem *problem, uint32_t turn) {
        const struct bench_case *c = problem->of;
        uint64_t row = (uint64_t)c->dims * ckv_dtype_bytes(c->dtype), head = row * problem->query_rows;
        uint8_t *keys = bench_problem_keys(problem, turn);
        struct ckv_job *job = ckv_job_new(1);
        struct ckv_job_group *group = job ? job->groups : NULL;

        if (group) {
                group->table = table_of(problem);
                group->layers = calloc(problem->layers, sizeof(*group->layers));
        }
        if (!group || !group->table.entries || !group->layers) {
                (void)fprintf(stderr, "no memory for a job\n");
                exit(EXIT_FAILURE);
        }
        resolve(problem, &group->policy);
        group->kv_heads = c->kv_heads;
        group->q_heads = c->q_heads;
        group->head_dim_k = group->head_dim_v = c->dims;
        group->layer_count = problem->layers;
        for (uint32_t i = 0; i < problem->layers; i++) {
                group->layers[i].number = i;
                group->layers[i].k = plane_of(problem, keys + i * problem->layer_bytes, group->table.tokens_per_block);
                group->layers[i].query = problem->queries + (uint64_t)i * c->q_heads * head;
        }
        group->selection.rows = problem->tokens;
        group->selection.keep_ratio = KEPT_MILLIONTHS;
        job->queries = (struct ckv_job_queries){
                .dtype = c->dtype, .rows = problem->query_rows, .head_stride = head, .row_stride = row,
        };
        job->deadline_nsec = UINT64_MAX;
        job->stage = CKV_STAGE_PLAN;
        if (problem->lse)
                add_lse(problem, turn, job);
        return job;
}

double bench_problem_flops(const struct bench_problem *problem) {
        const struct bench_case *c = problem->of;

        return 2.0 * problem->layers * problem->tokens * c->q_heads * problem->query_rows * c->dims;
}

double bench_problem_exponentials(const struct bench_problem *problem) {
        return (double)problem->layers * problem->tokens * problem->of->q_heads * problem->query_rows;
}
