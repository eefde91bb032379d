/*
 * The CPU backend by itself: what it promises beyond being right, which
 * test_conformance.c looks at.  Identical bits whatever the threads, slices and
 * block table (R30); the error bound of each instruction set's kernel (R31);
 * poison that must or must not be seen (R23, R34); turns, cancellation,
 * deadlines, memory, mappings and the device's own sign of life.
 */
#include "base/clock.h"
#include "base/limits.h"
#include "base/macros.h"
#include "kernels/backend.h"
#include "kernels/cpu_machine.h"
#include "kernels/cpu_pool.h"
#include "kernels/cpu_score.h"
#include "kernels/reference.h"
#include "tests/support_random.h"

#include <check.h>
#include <math.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1
#else
#define SANITIZED 0
#endif

static const struct ckv_backend_ops *const ops = &ckv_backend_cpu;

/* Kernels that this machine can run, the chosen one last. */
static uint32_t list_kernels(const struct ckv_cpu_kernel *ret_kernels[3]) {
        const struct ckv_cpu_kernel *chosen = ckv__cpu_kernel();
        uint32_t count = 0;

        ret_kernels[count++] = &ckv__cpu_kernel_generic;
#if defined(__x86_64__)
        if (chosen == &ckv__cpu_kernel_avx512)
                ret_kernels[count++] = &ckv__cpu_kernel_avx2;
#endif
        if (chosen != ret_kernels[0])
                ret_kernels[count++] = chosen;
        return count;
}

static struct ckv_backend *open_backend(uint32_t threads, uint32_t slice_usec) {
        struct ckv_backend_options options = { .threads = threads, .slice_usec = slice_usec };
        struct ckv_backend *backend = NULL;

        ck_assert_int_eq(ops->open(&options, &backend), 0);
        return backend;
}

static struct ckv_job *reap(struct ckv_backend *backend, int timeout_ms) {
        struct pollfd done = { .fd = ops->wait_fd(backend), .events = POLLIN };

        return poll(&done, 1, timeout_ms) == 1 ? ops->reap(backend) : NULL;
}

static void run_plan(struct ckv_backend *backend, struct ckv_job *job) {
        job->stage = CKV_STAGE_PLAN;
        ops->submit(backend, job);
        ck_assert_ptr_eq(reap(backend, 60000), job);
}

/*
 * A job that is long to compute and small to hold: all rows are the same bytes,
 * because tokens have no distance. Not for moving.
 */
struct endless {
        struct ckv_job *job;
        uint8_t *bytes;
};

static void endless_init(struct endless *e, uint32_t rows, uint32_t q_heads, uint64_t fair_key) {
        struct ckv_policy asked = { 0 };
        struct ckv_policy_fault fault;
        struct ckv_job_group *group;
        uint32_t *entries = calloc(1, sizeof(*entries));

        e->job = ckv_job_new(1);
        e->bytes = calloc(64, 4);
        ck_assert(e->job && e->bytes && entries);
        group = &e->job->groups[0];
        ck_assert(ckv_policy_resolve(&asked, &group->policy, &fault));
        group->kv_heads = 1;
        group->q_heads = q_heads;
        group->head_dim_k = group->head_dim_v = 64;
        group->table = (struct ckv_row_table){ .entries = entries, .tokens_per_block = rows };
        group->layers = calloc(1, sizeof(*group->layers));
        ck_assert_ptr_nonnull(group->layers);
        group->layer_count = 1;
        group->layers[0].k = (struct ckv_plane){
                .base = e->bytes, .token = { .tile = 1 }, .dim = { .tile = 1, .outer = 4 }, .dtype = CKV_DTYPE_F32, .dims = 64,
        };
        group->layers[0].query = e->bytes;
        group->selection.rows = rows;
        group->selection.keep_ratio = 500000;
        e->job->queries = (struct ckv_job_queries){ .dtype = CKV_DTYPE_F32, .rows = 32, .last_row = rows - 1 };
        e->job->deadline_nsec = UINT64_MAX;
        e->job->fair_key = fair_key;
}

static void endless_deinit(struct endless *e) {
        e->job = ckv_job_free(e->job);
        free(e->bytes);
}

/* T[j] of the first layer of a job's first group, each step @step_usec long. */
static double *score_rows(const struct ckv_job *job, const struct ckv_cpu_kernel *kernel, uint32_t threads, uint32_t step_usec,
                          uint32_t *ret_steps) {
        const struct ckv_job_group *group = &job->groups[0];
        struct ckv_cpu_pool *pool;
        struct ckv_cpu_score *score;
        double *rows = calloc(group->selection.rows, sizeof(*rows));

        ck_assert_ptr_nonnull(rows);
        ck_assert_int_eq(ckv__cpu_pool_new(threads, &pool), 0);
        ck_assert_int_eq(ckv__cpu_score_new(job, group, &score), 0);
        ckv__cpu_score_begin(score, &group->layers[0]);
        *ret_steps = 1;
        while (!ckv__cpu_score_step(score, pool, kernel, ckv_now_nsec() + step_usec * CKV_NSEC_PER_USEC))
                (*ret_steps)++;
        memcpy(rows, ckv__cpu_score_rows(score), group->selection.rows * sizeof(*rows));
        (void)ckv__cpu_score_free(score);
        (void)ckv__cpu_pool_free(pool);
        return rows;
}

/* R30: any number of threads, any cut into slices, any order of blocks */
START_TEST(bits_same_for_threads_slices_tables) {
        const struct ckv_cpu_kernel *kernels[3];
        uint32_t n = list_kernels(kernels), steps, most_steps = 0;
        struct ckv_policy asked = { .window = 40, .pool = CKV_POOL_AVG, .value_weight = CKV_WEIGHT_L2, .norm = CKV_NORM_SEEN };
        struct random_shape shape = { .groups = 1, .layers = 1, .rows = 2100, .kv_heads = 3, .per_group = 3, .dims = 64,
                                      .contiguous = true, .own_tables = true, .asked = &asked };
        size_t bytes = shape.rows * sizeof(double);

        for (uint32_t k = 0; k < n; k++) {
                struct random_job *random = random_job_new(7, &shape);
                double *first = score_rows(random->job, kernels[k], 1, 60000000, &steps);

                ck_assert_uint_eq(steps, 1);
                for (uint32_t variant = 0; variant < 6; variant++) {
                        struct random_shape other = shape;
                        struct random_job *moved;
                        double *rows;

                        other.table_seed = variant;
                        moved = random_job_new(7, &other);
                        if (variant > 0)
                                ck_assert_mem_ne(random->job->groups[0].table.entries, moved->job->groups[0].table.entries,
                                                 100 * sizeof(uint32_t));
                        rows = score_rows(moved->job, kernels[k], 1 + variant % 3, variant % 2 ? 100 : 5000, &steps);
                        most_steps = CKV_MAX(most_steps, steps);
                        ck_assert_msg(memcmp(first, rows, bytes) == 0, "%s, variant %u: other bits", kernels[k]->name, variant);
                        free(rows);
                        (void)random_job_free(moved);
                }
                free(first);
                (void)random_job_free(random);
        }
        ck_assert_uint_gt(most_steps, 3);
}
END_TEST

/* A segment's length may depend on the shape alone, and is made of whole tiles. */
START_TEST(segment_rows_of_shapes) {
        ck_assert_uint_eq(ckv__cpu_segment_rows(1, 1), 256);
        ck_assert_uint_eq(ckv__cpu_segment_rows(128, 128), 256);
        ck_assert_uint_eq(ckv__cpu_segment_rows(129, 128), 128);
        ck_assert_uint_eq(ckv__cpu_segment_rows(128 * 256, 576), 64);
        ck_assert_uint_eq(CKV_CPU_DIMS_MAX, CKV_LIMIT_HEAD_DIM);
}
END_TEST

/* Other jobs on the device, other threads, other slices: the same rows. */
START_TEST(kept_same_among_other_jobs) {
        struct random_shape shape = { .groups = 1, .rows = 1500, .kv_heads = 2, .dims = 64 };
        struct random_job *alone = random_job_new(99, &shape), *among = random_job_new(99, &shape);
        struct random_job *others[4];
        struct ckv_backend *backend = open_backend(1, 5000);
        uint32_t reaped = 0;

        run_plan(backend, alone->job);
        (void)ops->close(backend);
        backend = open_backend(3, 100);
        for (uint32_t i = 0; i < CKV_ARRAY_SIZE(others); i++) {
                others[i] = random_job_new(i + 1, &shape);
                others[i]->job->fair_key = i;
                ops->submit(backend, others[i]->job);
                if (i == 1)
                        ops->submit(backend, among->job);
        }
        while (reaped < CKV_ARRAY_SIZE(others) + 1) {
                ck_assert_ptr_nonnull(reap(backend, 60000));
                reaped++;
        }
        (void)ops->close(backend);
        ck_assert_int_eq(alone->job->outcome, CKV_JOB_OK);
        ck_assert_int_eq(among->job->outcome, CKV_JOB_OK);
        ck_assert_uint_eq(alone->job->groups[0].kept_count, among->job->groups[0].kept_count);
        for (uint32_t k = 0; k < alone->job->groups[0].kept_count; k++) {
                const struct ckv_kept *a = &alone->job->groups[0].kept[k], *b = &among->job->groups[0].kept[k];

                ck_assert_uint_eq(a->run_count, b->run_count);
                ck_assert_mem_eq(a->runs, b->runs, a->run_count * sizeof(*a->runs));
        }
        for (uint32_t i = 0; i < CKV_ARRAY_SIZE(others); i++)
                (void)random_job_free(others[i]);
        (void)random_job_free(alone);
        (void)random_job_free(among);
}
END_TEST

/* |F[u] - R[u]| <= rtol * |R[u]| + atol for each unit and each row. Return: the largest relative difference. */
static double compare_scores(const struct random_job *random, const struct ckv_cpu_kernel *kernel, uint64_t seed) {
        const struct ckv_job *job = random->job;
        const struct ckv_job_group *group = &job->groups[0];
        uint32_t rows = group->selection.rows, steps;
        double *fast = score_rows(job, kernel, 1, 60000000, &steps), *slow = calloc(rows, sizeof(*slow)), worst = 0;
        float *units[2];
        uint8_t *flags = calloc(rows, 1);
        struct ckv_budget budget;
        struct ckv_units u;

        ck_assert(slow && flags);
        ck_assert_int_eq(ckv_ref_score_rows(job, group, &group->layers[0], slow), 0);
        ck_assert_int_eq(ckv_select_budget(&group->selection, flags, &budget), 0);
        ck_assert_int_eq(ckv_units_init(&u, &group->selection, flags), 0);
        for (uint32_t i = 0; i < 2; i++) {
                units[i] = calloc((size_t)u.count + 1, sizeof(float));
                ck_assert_ptr_nonnull(units[i]);
                ckv_ref_unit_scores(&group->policy, &u, rows, i ? slow : fast, units[i]);
        }
        for (uint32_t i = 0; i < u.count + rows; i++) {
                double f = i < rows ? fast[i] : (double)units[0][i - rows], r = i < rows ? slow[i] : (double)units[1][i - rows];

                ck_assert_msg(fabs(f - r) <= 1e-4 * fabs(r) + 1e-30, "%s, job %u: score %u is %g instead of %g", kernel->name,
                              (unsigned)seed, i, f, r);
                if (r > 1e-12)
                        worst = CKV_MAX(worst, fabs(f - r) / r);
        }
        ckv_units_deinit(&u);
        free(units[0]);
        free(units[1]);
        free(flags);
        free(slow);
        free(fast);
        return worst;
}

START_TEST(scores_within_r31) {
        const struct ckv_cpu_kernel *kernels[3];
        uint32_t n = list_kernels(kernels), tried = 0;

        for (uint32_t k = 0; k < n; k++) {
                double worst = 0;

                tried = 0;
                for (uint64_t seed = 200; seed < 260; seed++) {
                        struct random_shape shape = { .groups = 1, .layers = 1 };
                        struct random_job *random = random_job_new(seed, &shape);
                        const struct ckv_job_group *group = &random->job->groups[0];
                        struct ckv_budget budget;

                        if (group->policy.window < group->selection.rows && group->policy.scorer == CKV_SCORER_WINDOW &&
                            ckv_select_budget(&group->selection, NULL, &budget) == 0) {
                                worst = CKV_MAX(worst, compare_scores(random, kernels[k], seed));
                                tried++;
                        }
                        (void)random_job_free(random);
                }
                printf("%s: worst relative error of a score %.2g\n", kernels[k]->name, worst);
                ck_assert_uint_gt(tried, 20);
        }
}
END_TEST

/* The widest pool looks 15 rows over the borders of the stretches that rows are folded in. */
START_TEST(pools_across_stretches) {
        for (uint32_t pool = CKV_POOL_AVG; pool <= CKV_POOL_MAX; pool++) {
                struct ckv_policy asked = { .window = 4, .chunk = 1, .pool = pool, .pool_size = 31 };
                struct random_shape shape = { .groups = 1, .layers = 1, .rows = 1100, .dims = 8, .asked = &asked, .no_ties = true };
                struct random_job *random = random_job_new(31, &shape);

                (void)compare_scores(random, ckv__cpu_kernel(), 31);
                (void)random_job_free(random);
        }
}
END_TEST

/* More heads than a band holds: eight equal heads score exactly eight times what one scores. */
START_TEST(bands_add_up) {
        double *t[2];
        uint32_t steps, rows = 300000;

        for (uint32_t i = 0; i < 2; i++) {
                struct endless e;
                struct ckv_job_group *group;

                endless_init(&e, rows, 16, 0);
                group = &e.job->groups[0];
                group->policy.window = 1;
                group->head_dim_k = 4;
                group->kv_heads = i ? 8 : 1;
                group->q_heads = 16 * group->kv_heads;
                e.job->queries.rows = 1;
                t[i] = score_rows(e.job, ckv__cpu_kernel(), 2, 2000, &steps);
                endless_deinit(&e);
        }
        for (uint32_t j = 0; j < rows; j++)
                ck_assert(t[0][j] > 0 && t[1][j] == 8 * t[0][j]);
        free(t[0]);
        free(t[1]);
}
END_TEST

/* raw_qk: 1e-5 of the sum of absolute products. Sums over heads and no pools, so that sum is easy to write down. */
START_TEST(products_within_r31) {
        const struct ckv_cpu_kernel *kernels[3];
        uint32_t n = list_kernels(kernels), steps;
        struct ckv_policy asked = { .scorer = CKV_SCORER_RAW_QK, .window = 24 };
        struct random_shape shape = { .groups = 1, .layers = 1, .rows = 300, .kv_heads = 2, .per_group = 2, .dims = 96, .asked = &asked };
        struct random_job *random = random_job_new(5, &shape);
        const struct ckv_job_group *group = &random->job->groups[0];
        double slow[300], absolute[300] = { 0 };
        float key[96], query[96];

        ck_assert_int_eq(ckv_ref_score_rows(random->job, group, &group->layers[0], slow), 0);
        for (uint32_t j = 0; j < 300; j++)
                for (uint32_t h = 0; h < 4; h++)
                        for (uint32_t t = 0; t < 24; t++) {
                                ckv_ref_load(&group->layers[0].k, &group->table, j, h / 2, key);
                                ckv_ref_load_query(random->job, group, &group->layers[0], random->job->queries.rows - 24 + t, h, query);
                                for (uint32_t x = 0; x < 96; x++)
                                        absolute[j] += fabs((double)key[x] * (double)query[x]);
                        }
        for (uint32_t k = 0; k < n; k++) {
                double *fast = score_rows(random->job, kernels[k], 1, 60000000, &steps);

                for (uint32_t j = 0; j < 300; j++)
                        ck_assert_msg(fabs(fast[j] - slow[j]) <= 1e-5 * absolute[j], "%s, row %u", kernels[k]->name, j);
                free(fast);
        }
        (void)random_job_free(random);
}
END_TEST

/* One query of 1 against keys of one dimension: weights are 2^key, and the bound is the one of R31 for exp. */
static void weigh(const struct ckv_cpu_kernel *kernel, const float *keys, uint32_t count, float cap, float *ret_weights) {
        const float query[CKV_CPU_BLOCK] = { 1 }, max = 0, inverse = 1;
        const uint32_t entry = 0, low = 0;
        struct ckv_plane k = {
                .base = (uint8_t *)(uintptr_t)keys, .token = { .tile = 1, .outer = 4 }, .dim = { .tile = 1, .outer = 4 },
                .dtype = CKV_DTYPE_F32, .dims = 1, .scale = 1,
        };
        struct ckv_row_table table = { .entries = &entry, .tokens_per_block = count };
        struct ckv_cpu_segment segment = {
                .k = &k, .table = &table, .rows = count, .dims = 1, .queries = query, .query_count = 1, .window = 1, .low = &low,
                .high = &count, .cap = cap, .scratch = aligned_alloc(CKV_CPU_ALIGN, CKV_CPU_SCRATCH_FLOATS * sizeof(float)),
        };

        ck_assert_ptr_nonnull(segment.scratch);
        kernel->weights(&segment, &max, &inverse, ret_weights, count);
        free(segment.scratch);
}

START_TEST(exponential_within_r31) {
        enum { N = 4096 };
        static float keys[N], weights[N];
        const struct ckv_cpu_kernel *kernels[3];
        uint32_t n = list_kernels(kernels);

        for (uint32_t i = 0; i < N; i++)
                keys[i] = -126.0f * (float)i / N;
        for (uint32_t k = 0; k < n; k++) {
                double worst = 0;

                weigh(kernels[k], keys, N, 0, weights);
                for (uint32_t i = 0; i < N; i++)
                        worst = CKV_MAX(worst, fabs((double)weights[i] / exp2((double)keys[i]) - 1));
                printf("%s: relative error of the exponential %.2g\n", kernels[k]->name, worst);
                ck_assert_double_le(worst, 0x1p-20);
        }
}
END_TEST

START_TEST(exponential_at_the_edges) {
        static const float keys[8] = { 0, -126.75f, -1e30f, -INFINITY, NAN, -0.5f, -0.0f, -126.0f };
        const struct ckv_cpu_kernel *kernels[3];
        uint32_t n = list_kernels(kernels);

        for (uint32_t k = 0; k < n; k++) {
                float weights[8];

                weigh(kernels[k], keys, 8, 0, weights);
                ck_assert(weights[0] == 1 && weights[6] == 1 && weights[7] == 0x1p-126f);
                ck_assert(weights[1] == 0 && weights[2] == 0 && weights[3] == 0);
                ck_assert(isnan(weights[4]));
        }
}
END_TEST

/* The soft cap: 2^(cap * tanh(key)), and a cap is not there to hide a NaN. */
START_TEST(softcap_of_logits) {
        enum { N = 1000 };
        static float keys[N], weights[N];
        const struct ckv_cpu_kernel *kernels[3];
        uint32_t n = list_kernels(kernels);

        for (uint32_t i = 0; i < N; i++)
                keys[i] = -4.0f * (float)i / N;
        keys[N - 1] = NAN;
        keys[N - 2] = -INFINITY;
        for (uint32_t k = 0; k < n; k++) {
                weigh(kernels[k], keys, N, 60, weights);
                for (uint32_t i = 0; i < N - 1; i++)
                        ck_assert_double_le(fabs((double)weights[i] / exp2(60 * tanh((double)keys[i])) - 1), 2e-5);
                ck_assert(isnan(weights[N - 1]));
        }
}
END_TEST

/* Where a NaN or an infinity lies, and whether it must be found. */
enum poison { POISON_KEY, POISON_KEY_INFINITE, POISON_QUERY, POISON_MASKED_KEY, POISON_VALUE, POISON_LAST_KEY, POISON_SINK_KEY };

START_TEST(poison_in_visible_data_only) {
        struct ckv_policy asked = { .window = 8, .pool = CKV_POOL_MAX, .heads = CKV_HEADS_MAX, .group_heads = CKV_GROUP_MAX };
        struct random_shape shape = { .groups = 2, .layers = 3, .rows = 700, .kv_heads = 2, .per_group = 2, .dims = 16,
                                      .dtype = CKV_DTYPE_F32, .asked = &asked, .keep_ratio = 300000 };
        struct random_job *random = random_job_new(11, &shape), *reference = random_job_new(11, &shape), *both[] = { random, reference };
        struct ckv_backend *backend = open_backend(2, 1000);
        bool bad = _i < POISON_MASKED_KEY;

        for (uint32_t i = 0; i < 2; i++) {
                struct ckv_job_group *group = &both[i]->job->groups[1];
                struct ckv_job_layer *layer = &group->layers[2];
                const float nan = NAN, infinity = INFINITY;
                uint32_t row = _i == POISON_MASKED_KEY ? 695 : 300;

                both[i]->job->queries.last_row = 690;
                if (_i == POISON_LAST_KEY || _i == POISON_SINK_KEY) {
                        /* a query that sees its own row alone, which is no row of any unit: those are before it, or behind */
                        bool last = _i == POISON_LAST_KEY;

                        both[i]->job->queries.last_row = row = last ? 699 : 690;
                        group->policy.sliding = 1;
                        group->policy.pool = CKV_POOL_NONE;
                        group->policy.sinks = last ? 0 : 691;
                        group->policy.recent = last ? 1 : 0;
                        group->selection.keep_ratio = 999000;
                }
                if (_i == POISON_QUERY) {
                        const struct ckv_job_queries *q = &both[i]->job->queries;
                        size_t newest = (q->ring_start + q->rows - 1) % q->rows * q->row_stride;

                        memset((uint8_t *)(uintptr_t)layer->query + newest + q->head_stride, 0xff, ckv_dtype_bytes(q->dtype));
                } else if (_i == POISON_VALUE) {
                        ck_assert_ptr_nonnull(layer->v.base);
                        memcpy(random_element(group, &layer->v, row, 1, 3), &nan, sizeof(nan));
                } else
                        memcpy(random_element(group, &layer->k, row, 1, 3), _i == POISON_KEY_INFINITE ? &infinity : &nan,
                               sizeof(nan));
        }
        ck_assert_int_eq(ckv_ref_run_plan(reference->job), 0);
        run_plan(backend, random->job);
        ck_assert_int_eq(random->job->outcome, bad ? CKV_JOB_NONFINITE : CKV_JOB_OK);
        ck_assert_int_eq(reference->job->outcome, random->job->outcome);
        if (bad) {
                ck_assert_uint_eq(random->job->fail_group, 1);
                ck_assert_uint_eq(random->job->fail_layer, 9);
                ck_assert_uint_eq(random->job->fail_unit, reference->job->fail_unit);
        }
        (void)ops->close(backend);
        (void)random_job_free(random);
        (void)random_job_free(reference);
}
END_TEST

/* Nothing is scored where the budget settles the answer: there may be no queries at all (R20). */
START_TEST(settled_budget_needs_no_queries) {
        struct endless e;
        struct ckv_backend *backend = open_backend(1, 0);

        endless_init(&e, 1000, 8, 0);
        e.job->groups[0].selection.keep_ratio = 1000000;
        e.job->groups[0].layers[0].query = NULL;
        e.job->groups[0].layers[0].k.base = NULL;
        run_plan(backend, e.job);
        ck_assert_int_eq(e.job->outcome, CKV_JOB_OK);
        ck_assert_int_eq(e.job->groups[0].budget.kept_all, CKV_KEPT_FITS);
        ck_assert_uint_eq(e.job->groups[0].kept[0].count, 1000);
        (void)ops->close(backend);
        endless_deinit(&e);
}
END_TEST

START_TEST(turns_between_keys_order_within) {
        struct endless long_one, second, other;
        struct ckv_backend *backend = open_backend(1, 500);

        endless_init(&long_one, 300000, 8, 1);
        endless_init(&second, 2000, 1, 1);
        endless_init(&other, 2000, 1, 2);
        ops->submit(backend, long_one.job);
        ops->submit(backend, second.job);
        ops->submit(backend, other.job);
        /* another key does not wait for the long job; the same key does, although it is short */
        ck_assert_ptr_eq(reap(backend, 60000), other.job);
        ck_assert_ptr_eq(reap(backend, 60000), long_one.job);
        ck_assert_ptr_eq(reap(backend, 60000), second.job);
        ck_assert_int_eq(long_one.job->outcome, CKV_JOB_OK);
        ck_assert_uint_gt(long_one.job->score_nsec, other.job->score_nsec);
        ck_assert_uint_le(long_one.job->device_nsec, long_one.job->score_nsec + long_one.job->select_nsec);
        ck_assert_uint_gt(long_one.job->select_nsec, 0);
        (void)ops->close(backend);
        endless_deinit(&long_one);
        endless_deinit(&second);
        endless_deinit(&other);
}
END_TEST

START_TEST(cancel_running_and_queued) {
        struct endless running, queued;
        struct ckv_backend *backend = open_backend(1, 500);
        struct ckv_backend_health health;
        uint64_t start;

        endless_init(&running, 1000000, 8, 1);
        endless_init(&queued, 1000000, 8, 1);
        ops->submit(backend, running.job);
        ops->submit(backend, queued.job);
        do
                ops->health(backend, &health);
        while (health.running == 0);
        ops->health(backend, &health);
        ck_assert_uint_eq(health.running, 1);
        ck_assert_uint_eq(health.queued, 1);
        start = ckv_now_nsec();
        ops->cancel(backend, queued.job);
        ck_assert_ptr_eq(reap(backend, 60000), queued.job);
        ops->cancel(backend, running.job);
        ck_assert_ptr_eq(reap(backend, 60000), running.job);
        /* both together are many seconds of work */
        ck_assert_uint_lt(ckv_now_nsec() - start, 2 * CKV_NSEC_PER_SEC);
        ck_assert_int_eq(queued.job->outcome, CKV_JOB_CANCELLED);
        ck_assert_int_eq(running.job->outcome, CKV_JOB_CANCELLED);
        ck_assert_uint_eq(queued.job->started_nsec, 0);
        ops->health(backend, &health);
        ck_assert_uint_eq(health.running + health.queued, 0);
        (void)ops->close(backend);
        endless_deinit(&running);
        endless_deinit(&queued);
}
END_TEST

START_TEST(deadline_ends_plan) {
        struct endless e, late;
        struct ckv_backend *backend = open_backend(2, 500);
        uint64_t start = ckv_now_nsec();

        endless_init(&e, 1000000, 8, 1);
        endless_init(&late, 100, 8, 2);
        e.job->deadline_nsec = start + 20 * CKV_NSEC_PER_MSEC;
        late.job->deadline_nsec = start - 1;
        ops->submit(backend, late.job);
        ops->submit(backend, e.job);
        ck_assert_ptr_eq(reap(backend, 60000), late.job);
        ck_assert_ptr_eq(reap(backend, 60000), e.job);
        ck_assert_uint_ge(ckv_now_nsec(), e.job->deadline_nsec);
        ck_assert_int_eq(e.job->outcome, CKV_JOB_EXPIRED);
        ck_assert_int_eq(late.job->outcome, CKV_JOB_EXPIRED);
        ck_assert_uint_eq(late.job->device_nsec, 0);
        (void)ops->close(backend);
        endless_deinit(&e);
        endless_deinit(&late);
}
END_TEST

/* Once rows move, neither a cancellation nor a deadline stops them; and a move of many slices shares the device. */
START_TEST(move_knows_no_way_back) {
        struct random_shape shape = { .groups = 1, .layers = 4, .rows = 6000, .kv_heads = 2, .per_group = 1, .dims = 256,
                                      .dtype = CKV_DTYPE_F32, .keep_ratio = 500000,
                                      .asked = &(struct ckv_policy){ .window = 1, .chunk = 3 } };
        struct random_job *fast = random_job_new(21, &shape), *slow = random_job_new(21, &shape);
        struct ckv_backend *backend = open_backend(2, 20);

        run_plan(backend, fast->job);
        ck_assert_int_eq(fast->job->outcome, CKV_JOB_OK);
        for (uint32_t k = 0; k < 4; k++) {
                slow->job->groups[0].kept = slow->job->groups[0].kept ? slow->job->groups[0].kept : calloc(4, sizeof(struct ckv_kept));
                ck_assert_int_eq(ckv_kept_copy(&fast->job->groups[0].kept[k], &slow->job->groups[0].kept[k]), 0);
                slow->job->groups[0].kept_count = k + 1;
        }
        ckv_ref_run_move(slow->job);
        fast->job->stage = CKV_STAGE_MOVE;
        fast->job->deadline_nsec = 1;
        ops->cancel(backend, fast->job);
        ops->submit(backend, fast->job);
        ck_assert_ptr_eq(reap(backend, 60000), fast->job);
        ck_assert_int_eq(fast->job->outcome, CKV_JOB_OK);
        ck_assert_uint_gt(fast->job->move_nsec, 0);
        ck_assert_uint_gt(fast->job->groups[0].bytes_moved, 16 << 20);
        ck_assert_uint_eq(fast->job->groups[0].bytes_moved, slow->job->groups[0].bytes_moved);
        for (uint32_t i = 0; i < fast->memory_count; i++)
                ck_assert_mem_eq(fast->memory[i].bytes, slow->memory[i].bytes, fast->memory[i].size);
        (void)ops->close(backend);
        (void)random_job_free(fast);
        (void)random_job_free(slow);
}
END_TEST

/* Scratch that cannot be had is an outcome of the job, and the device goes on. */
START_TEST(no_memory_is_an_outcome) {
        struct endless huge, small;
        struct ckv_backend *backend = open_backend(1, 0);
        struct rlimit limit, before;

        endless_init(&huge, 1000000, 512, 1);
        endless_init(&small, 100, 1, 1);
        if (SANITIZED) {
                printf("no_memory_is_an_outcome: left out, sanitizers need the address space that the test would take away\n");
        } else {
                ck_assert_int_eq(getrlimit(RLIMIT_AS, &before), 0);
                limit = before;
                limit.rlim_cur = (rlim_t)1 << 30;
                ck_assert_int_eq(setrlimit(RLIMIT_AS, &limit), 0);
                run_plan(backend, huge.job);
                ck_assert_int_eq(huge.job->outcome, CKV_JOB_NO_MEMORY);
                ck_assert_uint_eq(huge.job->fail_group, 0);
                run_plan(backend, small.job);
                ck_assert_int_eq(small.job->outcome, CKV_JOB_OK);
                ck_assert_int_eq(setrlimit(RLIMIT_AS, &before), 0);
        }
        (void)ops->close(backend);
        endless_deinit(&huge);
        endless_deinit(&small);
}
END_TEST

/* Is a flag among the VmFlags of the mapping that holds an address? */
static bool mapping_has_flag(const void *address, const char *flag) {
        FILE *maps = fopen("/proc/self/smaps", "re");
        char line[512];
        bool here = false, found = false;

        ck_assert_ptr_nonnull(maps);
        while (fgets(line, sizeof(line), maps)) {
                unsigned long from, to;

                if (sscanf(line, "%lx-%lx ", &from, &to) == 2)
                        here = (uintptr_t)address >= from && (uintptr_t)address < to;
                else if (here && strncmp(line, "VmFlags:", 8) == 0)
                        found = found || strstr(line, flag) != NULL;
        }
        (void)fclose(maps);
        return found;
}

START_TEST(map_at_any_offset) {
        struct ckv_backend *backend = open_backend(1, 0);
        struct ckv_mapping mapping, read_only, none;
        int fd = memfd_create("test", MFD_CLOEXEC);
        char there[4] = { 0 };

        ck_assert_int_ge(fd, 0);
        ck_assert_int_eq(ftruncate(fd, 20000), 0);
        ck_assert_int_eq((int)pwrite(fd, "abcd", 4, 4999), 4);
        ck_assert_int_eq(ops->map(backend, fd, 4999, 10000, true, &mapping), 0);
        ck_assert_int_eq(ops->map(backend, fd, 4999, 4, false, &read_only), 0);
        ck_assert_int_lt(ops->map(backend, fd, 0, 0, true, &none), 0);
        ck_assert_int_lt(ops->map(backend, -1, 0, 1, true, &none), 0);
        ck_assert_int_lt(ops->map(backend, fd, UINT64_MAX - 5, 100, true, &none), 0);
        ck_assert_mem_eq(mapping.base, "abcd", 4);
        mapping.base[1] = 'x';
        ck_assert_mem_eq(read_only.base, "axcd", 4);
        ck_assert_int_eq((int)pread(fd, there, 4, 4999), 4);
        ck_assert_mem_eq(there, "axcd", 4);
        ck_assert(mapping.writable && !read_only.writable && mapping.size == 10000);
        ck_assert(mapping_has_flag(mapping.base, " wr") && !mapping_has_flag(read_only.base, " wr"));
        ck_assert(mapping_has_flag(mapping.base, " dc") && mapping_has_flag(mapping.base, " dd"));
        ops->unmap(backend, &mapping);
        ck_assert_ptr_null(mapping.base);
        ops->unmap(backend, &mapping);
        ops->unmap(backend, &read_only);
        (void)close(fd);
        (void)ops->close(backend);
}
END_TEST

START_TEST(idle_device_answers) {
        struct ckv_backend *backend = open_backend(2, 0);
        struct ckv_backend_health before, after;
        struct timespec second = { .tv_sec = 1 };

        ops->health(backend, &before);
        (void)nanosleep(&second, NULL);
        ops->health(backend, &after);
        ck_assert_uint_gt(after.last_progress_nsec, before.last_progress_nsec);
        ck_assert_uint_lt(ckv_now_nsec() - after.last_progress_nsec, CKV_NSEC_PER_SEC);
        ck_assert_uint_eq(after.queued + after.running, 0);
        (void)ops->close(backend);
}
END_TEST

START_TEST(describe_names_path_and_threads) {
        struct ckv_backend *backend = open_backend(3, 0);
        struct ckv_backend_info info;

        ops->describe(backend, &info);
        ck_assert_uint_eq(info.threads, 3);
        ck_assert_str_eq(info.path, ckv__cpu_kernel()->name);
        ck_assert_ptr_nonnull(strstr(info.name, info.path));
        ck_assert_ptr_nonnull(strstr(info.name, "3 threads"));
        printf("%s\n", info.name);
        (void)ops->close(backend);
        backend = open_backend(0, 0);
        ops->describe(backend, &info);
        ck_assert_uint_eq(info.threads, ckv__cpu_threads());
        ck_assert_uint_ge(info.threads, 1);
        (void)ops->close(backend);
        ck_assert_ptr_null(ops->close(NULL));
}
END_TEST

static void count_item(void *context, uint32_t item, float *scratch) {
        _Atomic uint32_t *counts = context;

        scratch[0] = (float)item;
        atomic_fetch_add(&counts[item], 1);
}

/* Every item once; what is left when the time is up is a tail. */
START_TEST(pool_does_each_item_once) {
        enum { N = 200 };
        static _Atomic uint32_t counts[N];
        struct ckv_cpu_pool *pool;

        ck_assert_int_eq(ckv__cpu_pool_new(3, &pool), 0);
        for (uint32_t round = 0; round < 40; round++) {
                uint32_t at = 0, runs = 0;

                for (; at < N; runs++) {
                        uint32_t next = ckv__cpu_pool_run(pool, count_item, counts, at, N, round % 2 ? UINT64_MAX : ckv_now_nsec() + 5000);

                        ck_assert_uint_gt(next, at);
                        for (uint32_t i = 0; i < N; i++)
                                ck_assert_uint_eq(counts[i], round + (i < next));
                        at = next;
                }
                ck_assert(round % 2 == 0 || runs == 1);
        }
        ck_assert_uint_eq(ckv__cpu_pool_run(pool, count_item, counts, N, N, 0), N);
        ck_assert_uint_eq(ckv__cpu_pool_run(pool, count_item, counts, 0, N, 0), 1);
        (void)ckv__cpu_pool_free(pool);
}
END_TEST

int main(void) {
        Suite *suite = suite_create("backend_cpu");
        TCase *scores = tcase_create("scores"), *device = tcase_create("device");
        SRunner *runner = srunner_create(suite);
        int failed;

        suite_add_tcase(suite, scores);
        suite_add_tcase(suite, device);
        tcase_set_timeout(scores, 300);
        tcase_set_timeout(device, 120);
        tcase_add_test(scores, bits_same_for_threads_slices_tables);
        tcase_add_test(scores, segment_rows_of_shapes);
        tcase_add_test(scores, kept_same_among_other_jobs);
        tcase_add_test(scores, scores_within_r31);
        tcase_add_test(scores, products_within_r31);
        tcase_add_test(scores, pools_across_stretches);
        tcase_add_test(scores, bands_add_up);
        tcase_add_test(scores, exponential_within_r31);
        tcase_add_test(scores, exponential_at_the_edges);
        tcase_add_test(scores, softcap_of_logits);
        tcase_add_loop_test(scores, poison_in_visible_data_only, POISON_KEY, POISON_SINK_KEY + 1);
        tcase_add_test(device, settled_budget_needs_no_queries);
        tcase_add_test(device, turns_between_keys_order_within);
        tcase_add_test(device, cancel_running_and_queued);
        tcase_add_test(device, deadline_ends_plan);
        tcase_add_test(device, move_knows_no_way_back);
        tcase_add_test(device, no_memory_is_an_outcome);
        tcase_add_test(device, map_at_any_offset);
        tcase_add_test(device, idle_device_answers);
        tcase_add_test(device, describe_names_path_and_threads);
        tcase_add_test(device, pool_does_each_item_once);
        srunner_run_all(runner, CK_NORMAL);
        failed = srunner_ntests_failed(runner);
        srunner_free(runner);
        return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
