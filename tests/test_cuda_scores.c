/*
 * The CUDA backend on the stand-in driver, where scores come from elsewhere or go
 * elsewhere: a caller's log-sum-exp and sink logits, poison (R23, R34), scores
 * out and in (R5), the mass that is kept; queries in device memory; jobs of
 * several users at once; and memory that is imported and given back.
 */
#include "base/macros.h"
#include "kernels/cuda_api.h"
#include "kernels/cuda_score.h"
#include "kernels/reference.h"
#include "kernels/scores.h"
#include "kernels/steps.h"
#include "tests/support_fake.h"
#include "tests/support_gap.h"
#include "tests/support_random.h"
#include "tests/support_subject.h"

#include <check.h>
#include <inttypes.h>
#include <math.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct ckv_backend_ops *const ops = &ckv_backend_cuda;
static struct subject subject = { "cuda", &ckv_backend_cuda, { 0 } };

static const struct ckv_policy plain = { .window = 4, .chunk = 5, .given = CKV_GIVEN_MIN_TOKENS };
static const struct random_shape shape = {
        .groups = 1, .layers = 3, .rows = 150, .kv_heads = 2, .per_group = 2, .dims = 16, .dtype = CKV_DTYPE_BF16,
        .contiguous = true, .asked = &plain, .keep_ratio = 400000,
};

static struct ckv_backend *open_backend(void) {
        subject.options.library = support_fake_path();
        return subject_open(&subject);
}

/* Both the reference and the backend plan it, and agree. */
static void plan_both(struct ckv_backend *backend, struct random_job *reference, struct random_job *fast, uint64_t seed) {
        ck_assert_int_eq(ckv_ref_run_plan(reference->job), 0);
        subject_run(&subject, backend, fast->job, CKV_STAGE_PLAN);
        ck_assert_uint_eq(subject_compare_plans(&subject, seed, reference->job, fast->job), 0);
}

static void free_both(struct random_job *a, struct random_job *b) {
        (void)random_job_free(a);
        (void)random_job_free(b);
}

/* The right log-sum-exp of each query, sink included, at an address that is no multiple of 4; [heads][rows] in the ring. */
static uint8_t *lse_of(const struct ckv_job *job, const struct ckv_job_group *group, uint32_t layer) {
        uint32_t rows = job->queries.rows, dims = group->head_dim_k, per_group = group->q_heads / group->kv_heads;
        uint8_t *lse = malloc((size_t)group->q_heads * rows * sizeof(float) + 1);
        float query[128], key[128];

        ck_assert_ptr_nonnull(lse);
        lse++;
        for (uint32_t h = 0; h < group->q_heads; h++)
                for (uint32_t r = 0; r < rows; r++) {
                        double sum = exp((double)ckv_ref_sink_logit(&group->layers[layer], h));
                        uint32_t low, high, slot = (job->queries.ring_start + r) % rows;
                        float value;

                        ckv_ref_visible(job, group, rows - 1 - r, &low, &high);
                        ckv_ref_load_query(job, group, &group->layers[layer], r, h, query);
                        for (uint32_t j = low; j < high; j++) {
                                double dot = 0;

                                ckv_ref_load(&group->layers[layer].k, &group->table, j, h / per_group, key);
                                for (uint32_t x = 0; x < dims; x++)
                                        dot += (double)query[x] * (double)key[x];
                                sum += exp(dot * ckv_ref_scale(group));
                        }
                        value = (float)log(sum);
                        memcpy(lse + ((size_t)h * rows + slot) * sizeof(value), &value, sizeof(value));
                }
        return lse;
}

/* The caller's log-sum-exp, with and without sinks; a wrong one is found where the reference finds it. */
START_TEST(given_log_sum_exp) {
        const float sinks[4] = { 0.5f, -1, 2, 0 };
        bool with_sinks = _i & 1, wrong = _i & 2;
        struct random_job *jobs[2] = { random_job_new(7, &shape), random_job_new(7, &shape) };
        struct ckv_backend *backend = open_backend();
        uint8_t *lse[3];

        for (uint32_t l = 0; l < 3; l++) {
                for (uint32_t i = 0; i < 2; i++)
                        jobs[i]->job->groups[0].layers[l].sink_logits = with_sinks ? (const uint8_t *)sinks : NULL;
                lse[l] = lse_of(jobs[0]->job, &jobs[0]->job->groups[0], l);
                for (uint32_t i = 0; i < 2; i++)
                        jobs[i]->job->groups[0].layers[l].lse = lse[l];
        }
        if (wrong) {
                uint32_t rows = jobs[0]->job->queries.rows, slot = (jobs[0]->job->queries.ring_start + rows - 2) % rows;
                const float far = 20;

                memcpy(lse[1] + (2 * rows + slot) * sizeof(far), &far, sizeof(far));
        }
        plan_both(backend, jobs[0], jobs[1], 7);
        ck_assert_int_eq(jobs[1]->job->outcome, wrong ? CKV_JOB_BAD_LSE : CKV_JOB_OK);
        ck_assert_uint_eq(jobs[1]->job->fail_layer, wrong ? 7 : 0);
        ck_assert_uint_eq(jobs[1]->job->fail_unit, wrong ? 2 : 0);
        (void)ops->close(backend);
        for (uint32_t l = 0; l < 3; l++)
                free(lse[l] - 1);
        free_both(jobs[0], jobs[1]);
}
END_TEST

enum poison { POISON_KEY, POISON_KEY_INFINITE, POISON_QUERY, POISON_MASKED_KEY, POISON_VALUE, _POISONS };

START_TEST(poison_in_visible_data_only) {
        struct ckv_policy asked = { .window = 8, .pool = CKV_POOL_MAX, .heads = CKV_HEADS_MAX, .group_heads = CKV_GROUP_MAX };
        struct random_shape two = { .groups = 2, .layers = 3, .rows = 180, .kv_heads = 2, .per_group = 2, .dims = 16,
                                    .dtype = CKV_DTYPE_F32, .contiguous = true, .asked = &asked, .keep_ratio = 300000 };
        struct random_job *both[2] = { random_job_new(11, &two), random_job_new(11, &two) };
        struct ckv_backend *backend = open_backend();

        for (uint32_t i = 0; i < 2; i++) {
                struct ckv_job_group *group = &both[i]->job->groups[1];
                const struct ckv_job_queries *q = &both[i]->job->queries;
                const float nan = NAN, infinity = INFINITY;
                size_t newest = (q->ring_start + q->rows - 1) % q->rows * q->row_stride;

                both[i]->job->queries.last_row = 170;
                if (_i == POISON_QUERY)
                        memset((uint8_t *)(uintptr_t)group->layers[2].query + newest + q->head_stride, 0xff,
                               ckv_dtype_bytes(q->dtype));
                else
                        memcpy(random_element(group, _i == POISON_VALUE ? &group->layers[2].v : &group->layers[2].k,
                                              _i == POISON_MASKED_KEY ? 175 : 130, 1, 3),
                               _i == POISON_KEY_INFINITE ? &infinity : &nan, sizeof(nan));
        }
        plan_both(backend, both[0], both[1], 11);
        ck_assert_int_eq(both[1]->job->outcome, _i < POISON_MASKED_KEY ? CKV_JOB_NONFINITE : CKV_JOB_OK);
        (void)ops->close(backend);
        free_both(both[0], both[1]);
}
END_TEST

/* scores_out by unit and by row, with a guard behind; and the same scores given back select the same rows. */
START_TEST(scores_out_and_in) {
        const struct ckv_policy asked = { .window = 4, .chunk = 5, .reuse = 2, .given = CKV_GIVEN_MIN_TOKENS,
                                          .fill = _i & 2 ? CKV_FILL_BEST : CKV_FILL_LEAD,
                                          .layers = _i == 3 ? CKV_LAYERS_ONE : CKV_LAYERS_EACH };
        struct random_shape s = shape;
        bool by_row = _i & 1 || _i & 2;
        struct random_job *jobs[3];
        struct ckv_backend *backend = open_backend();
        struct ckv_units units = { 0 };
        uint8_t *flags = malloc(shape.rows), *rooms[2];
        struct ckv_job_group *group;
        double rtol, atol;
        uint64_t need;

        s.asked = &asked;
        for (uint32_t i = 0; i < 3; i++)
                jobs[i] = random_job_new(8, &s);
        group = &jobs[0]->job->groups[0];
        group->scores.by_row = by_row;
        ck_assert_int_eq(ckv_select_budget(&group->selection, flags, &group->budget), 0);
        ck_assert_int_eq(ckv_units_init(&units, &group->selection, flags), 0);
        (void)ckv_scores_fit(group, &units, &need);
        for (uint32_t i = 0; i < 2; i++) {
                rooms[i] = calloc(1, need + 64);
                jobs[i]->job->groups[0].scores.by_row = by_row;
                jobs[i]->job->groups[0].scores.out = rooms[i];
                jobs[i]->job->groups[0].scores.out_bytes = need;
        }
        plan_both(backend, jobs[0], jobs[1], 8);
        ck_assert_int_eq(jobs[1]->job->outcome, CKV_JOB_OK);
        gap_tolerance(jobs[0]->job, group, &rtol, &atol);
        for (uint64_t i = 0; i < need / sizeof(float); i++) {
                double want = (double)((float *)rooms[0])[i], got = (double)((float *)rooms[1])[i];

                ck_assert_msg(fabs(got - want) <= rtol * fabs(want) + atol, "score %" PRIu64 " is %g, not %g", i, got, want);
        }
        for (uint32_t i = 0; i < 64; i++)
                ck_assert_uint_eq(rooms[1][need + i], 0);
        group = &jobs[2]->job->groups[0];
        group->scores.by_row = by_row;
        group->scores.in = (float *)rooms[1];
        group->scores.in_count = need / sizeof(float);
        rooms[1] = NULL;
        for (uint32_t l = 0; l < group->layer_count; l++)
                group->layers[l].query = group->layers[l].k.base = group->layers[l].v.base = NULL;
        subject_run(&subject, backend, jobs[2]->job, CKV_STAGE_PLAN);
        ck_assert_int_eq(jobs[2]->job->outcome, CKV_JOB_OK);
        for (uint32_t k = 0; k < group->kept_count && !by_row; k++) {
                const struct ckv_kept *a = &group->kept[k], *b = &jobs[1]->job->groups[0].kept[k];

                ck_assert_uint_eq(a->run_count, b->run_count);
                ck_assert_mem_eq(a->runs, b->runs, a->run_count * sizeof(*a->runs));
        }
        (void)ops->close(backend);
        ckv_units_deinit(&units);
        free(flags);
        free(rooms[0]);
        free_both(jobs[0], jobs[1]);
        (void)random_job_free(jobs[2]);
}
END_TEST

/* One float too little room is an outcome with the bytes that are needed. */
START_TEST(scores_of_another_size) {
        struct random_job *jobs[2] = { random_job_new(8, &shape), random_job_new(8, &shape) };
        struct ckv_backend *backend = open_backend();
        float room[1] = { 0 };

        for (uint32_t i = 0; i < 2; i++) {
                jobs[i]->job->groups[0].scores.out = (uint8_t *)room;
                jobs[i]->job->groups[0].scores.out_bytes = sizeof(room);
        }
        plan_both(backend, jobs[0], jobs[1], 8);
        ck_assert_int_eq(jobs[1]->job->outcome, CKV_JOB_SCORES_SIZE);
        (void)ops->close(backend);
        free_both(jobs[0], jobs[1]);
}
END_TEST

START_TEST(mass_that_is_kept) {
        const struct ckv_policy asked = { .window = 4, .chunk = 5, .reuse = 2, .given = CKV_GIVEN_MIN_TOKENS,
                                          .heads = _i == 1 ? CKV_HEADS_EACH : CKV_HEADS_SUM,
                                          .layers = _i == 2 ? CKV_LAYERS_ONE : CKV_LAYERS_EACH };
        struct random_shape s = shape;
        struct random_job *jobs[2];
        struct ckv_backend *backend = open_backend();

        s.asked = &asked;
        for (uint32_t i = 0; i < 2; i++) {
                jobs[i] = random_job_new(9, &s);
                jobs[i]->job->groups[0].want_mass = true;
        }
        plan_both(backend, jobs[0], jobs[1], 9);
        ck_assert_ptr_nonnull(jobs[1]->job->groups[0].kept_mass);
        for (uint32_t l = 0; l < 3; l++)
                ck_assert_float_eq_tol(jobs[0]->job->groups[0].kept_mass[l], jobs[1]->job->groups[0].kept_mass[l], 1e-4f);
        (void)ops->close(backend);
        free_both(jobs[0], jobs[1]);
}
END_TEST

/* Budgets that differ between layers, sets of more runs than were expected, the best rows of a large unit: the host selects. */
START_TEST(selected_by_the_host) {
        const struct ckv_policy policies[] = {
                { .window = 4, .chunk = 5, .beta = 4, .reuse = 2, .given = CKV_GIVEN_MIN_TOKENS },
                { .window = 4, .chunk = 5, .given = CKV_GIVEN_MIN_TOKENS },
                { .window = 4, .selector = CKV_SELECTOR_CHUNK_AT, .fill = CKV_FILL_BEST, .given = CKV_GIVEN_MIN_TOKENS },
        };
        struct random_shape s = shape;
        struct random_job *jobs[2];
        struct ckv_backend *backend = open_backend();

        s.asked = &policies[_i];
        s.rows = _i ? 700 : 300;
        for (uint32_t i = 0; i < 2; i++) {
                jobs[i] = random_job_new(13, &s);
                if (_i == 1) {
                        /* rows so far apart that each is a chunk: as many runs as rows, almost */
                        uint32_t *positions = malloc(s.rows * sizeof(*positions));

                        for (uint32_t j = 0; j < s.rows; j++)
                                positions[j] = 7 * j;
                        free((void *)(uintptr_t)jobs[i]->job->groups[0].selection.positions);
                        jobs[i]->job->groups[0].selection.positions = positions;
                }
                if (_i == 2) {
                        uint32_t *lengths = malloc(3 * sizeof(*lengths));

                        lengths[0] = 300;
                        lengths[1] = 290;
                        lengths[2] = 110;
                        jobs[i]->job->groups[0].selection.chunk_lengths = lengths;
                        jobs[i]->job->groups[0].selection.chunk_length_count = 3;
                }
        }
        plan_both(backend, jobs[0], jobs[1], 13);
        ck_assert_int_eq(jobs[1]->job->outcome, CKV_JOB_OK);
        ck_assert_int_eq(jobs[1]->job->groups[0].budget.kept_all, CKV_DROPPED);
        ck_assert(_i != 1 || jobs[1]->job->groups[0].kept[0].run_count > 150);
        (void)ops->close(backend);
        free_both(jobs[0], jobs[1]);
}
END_TEST

/* Jobs of four users, planned and moved while the others are: each as if it were alone. */
START_TEST(several_at_once) {
        enum { JOBS = 6 };
        struct random_shape s = shape;
        struct random_job *fast[JOBS], *reference[JOBS];
        struct pollfd done = { .events = POLLIN };
        struct ckv_backend *backend;
        uint32_t moved = 0;

        s.layers = 6;
        subject.options.slice_usec = 1;
        backend = open_backend();
        done.fd = ops->wait_fd(backend);
        for (uint32_t i = 0; i < JOBS; i++) {
                s.rows = 90 + 20 * i;
                fast[i] = random_job_new(20 + i, &s);
                reference[i] = random_job_new(20 + i, &s);
                ck_assert_int_eq(ckv_ref_run_plan(reference[i]->job), 0);
                fast[i]->job->fair_key = i % 4;
                ops->submit(backend, fast[i]->job);
        }
        while (moved < JOBS) {
                struct ckv_job *job;

                ck_assert_int_eq(poll(&done, 1, 60000), 1);
                while ((job = ops->reap(backend)))
                        if (job->stage == CKV_STAGE_PLAN) {
                                job->stage = CKV_STAGE_MOVE;
                                ops->submit(backend, job);
                        } else
                                moved++;
        }
        for (uint32_t i = 0; i < JOBS; i++) {
                ck_assert_int_eq(fast[i]->job->outcome, CKV_JOB_OK);
                ck_assert_uint_eq(subject_compare_plans(&subject, i, reference[i]->job, fast[i]->job), 0);
                ckv_ref_run_move(reference[i]->job);
                for (uint32_t m = 0; m < fast[i]->memory_count; m++)
                        ck_assert_mem_eq(fast[i]->memory[m].bytes, reference[i]->memory[m].bytes, fast[i]->memory[m].size);
                free_both(fast[i], reference[i]);
        }
        (void)ops->close(backend);
}
END_TEST

/* Moves that take turns: each finds its own rows in the scratch, or sends them again. */
START_TEST(several_moves_at_once) {
        enum { JOBS = 4 };
        struct random_shape s = shape;
        struct random_job *fast[JOBS], *reference[JOBS];
        struct pollfd done = { .events = POLLIN };
        struct ckv_backend *backend;
        _Atomic uint32_t steps[JOBS] = { 0 };
        uint32_t moved = 0;

        subject.options.slice_usec = 1;
        backend = open_backend();
        done.fd = ops->wait_fd(backend);
        for (uint32_t i = 0; i < JOBS; i++) {
                s.rows = 150 + 20 * i;
                fast[i] = random_job_new(30 + i, &s);
                reference[i] = random_job_new(30 + i, &s);
                ck_assert_int_eq(ckv_ref_run_plan(reference[i]->job), 0);
                ck_assert_int_eq(ckv_ref_run_plan(fast[i]->job), 0);
                ckv_ref_run_move(reference[i]->job);
                fast[i]->job->steps = (struct ckv_job_steps){ .batch_rows = 8, .done = &steps[i] };
                fast[i]->job->steps.count = ckv_steps_count(fast[i]->job, 8, UINT32_MAX);
                fast[i]->job->stage = CKV_STAGE_MOVE;
                fast[i]->job->fair_key = i;
        }
        for (uint32_t i = 0; i < JOBS; i++)
                ops->submit(backend, fast[i]->job);
        while (moved < JOBS) {
                ck_assert_int_eq(poll(&done, 1, 60000), 1);
                while (ops->reap(backend))
                        moved++;
        }
        for (uint32_t i = 0; i < JOBS; i++) {
                ck_assert_int_eq(fast[i]->job->outcome, CKV_JOB_OK);
                ck_assert_uint_eq(steps[i], fast[i]->job->steps.count);
                for (uint32_t m = 0; m < fast[i]->memory_count; m++)
                        ck_assert_mem_eq(fast[i]->memory[m].bytes, reference[i]->memory[m].bytes, fast[i]->memory[m].size);
                fast[i]->job->steps = (struct ckv_job_steps){ 0 };
                free_both(fast[i], reference[i]);
        }
        (void)ops->close(backend);
}
END_TEST

/* The walks that count chunks, and those whose last unit is cut */
START_TEST(selected_by_the_gpu) {
        const struct ckv_policy policies[] = {
                { .profile = CKV_PROFILE_KVPRESS, .window = 23, .chunk = 5 },   /* the window's chunks first, one at its edge */
                { .profile = CKV_PROFILE_KVPRESS, .window = 20, .chunk = 5 },
                { .profile = CKV_PROFILE_KVPRESS, .scorer = CKV_SCORER_KNORM, .chunk = 7 },
                { .profile = CKV_PROFILE_PAPER, .window = 6, .chunk = 7 },
                { .profile = CKV_PROFILE_PAPER, .window = 6, .chunk = 7, .join = CKV_JOIN_UNION },
                { .window = 4, .chunk = 16, .fill = CKV_FILL_BEST, .given = CKV_GIVEN_MIN_TOKENS },
                { .window = 4, .chunk = 16, .fill = CKV_FILL_NONE, .given = CKV_GIVEN_MIN_TOKENS },
        };
        struct ckv_backend *backend = open_backend();

        for (uint32_t i = 0; i < CKV_ARRAY_SIZE(policies); i++)
                for (uint32_t ratio = 200000; ratio <= 800000; ratio += 300000) {
                        struct random_shape s = shape;
                        struct random_job *reference, *fast;

                        s.asked = &policies[i];
                        s.keep_ratio = ratio;
                        s.layers = 1;
                        s.no_ties = true;
                        reference = random_job_new(40 + i, &s);
                        fast = random_job_new(40 + i, &s);
                        plan_both(backend, reference, fast, 40 + i);
                        ck_assert_int_eq(fast->job->outcome, CKV_JOB_OK);
                        ck_assert_int_eq(fast->job->groups[0].budget.kept_all, CKV_DROPPED);
                        free_both(reference, fast);
                }
        (void)ops->close(backend);
}
END_TEST

/* A table of entry points and a context of this process' own, beside the backend's */
static void load_cuda(struct ckv_cuda *ret_cuda) {
        struct ckv_cuda_fault fault;
        CUcontext context;

        ck_assert_int_eq(ckv_cuda_load(support_fake_path(), 0, ret_cuda, &fault), 0);
        ck_assert_int_eq(ret_cuda->cuDevicePrimaryCtxRetain(&context, 0), CUDA_SUCCESS);
        ck_assert_int_eq(ret_cuda->cuCtxSetCurrent(context), CUDA_SUCCESS);
}

/* Kernels that were launched, by the stand-in's log */
static uint32_t count_launches(const char *path) {
        FILE *log = fopen(path, "re");
        char line[128];
        uint32_t n = 0;

        ck_assert_ptr_nonnull(log);
        while (fgets(line, sizeof(line), log))
                n += strstr(line, "call cuLaunchKernel") != NULL;
        (void)fclose(log);
        return n;
}

/* Keys and queries of one 16-bit type in rows of 64 or 128: the kernels for tensor cores, which read K once where the caller
 * brought a log-sum-exp. A wrong one is found all the same. */
START_TEST(tensor_cores) {
        const struct { uint32_t dims; enum ckv_dtype dtype; bool given, wrong; } cases[] = {
                { 64, CKV_DTYPE_BF16, false, false }, { 128, CKV_DTYPE_F16, false, false }, { 64, CKV_DTYPE_F16, true, false },
                { 64, CKV_DTYPE_BF16, true, true },
        };
        struct random_shape s = shape;
        struct random_job *jobs[2] = { NULL };
        struct ckv_backend *backend = open_backend();
        char log[] = "/tmp/test-cuda-scores-XXXXXX";
        int fd = mkstemp(log);
        uint8_t *lse[2] = { NULL };

        s.dims = cases[_i].dims;
        s.dtype = cases[_i].dtype;
        s.layers = 2;
        for (uint64_t seed = 50; !jobs[0] || jobs[0]->job->queries.dtype != cases[_i].dtype; seed++)
                for (uint32_t i = 0; i < 2; i++) {
                        jobs[i] = random_job_free(jobs[i]);
                        jobs[i] = random_job_new(seed, &s);
                }
        for (uint32_t l = 0; l < 2 && cases[_i].given; l++) {
                const float far = 20;

                lse[l] = lse_of(jobs[0]->job, &jobs[0]->job->groups[0], l);
                if (cases[_i].wrong && l == 1)
                        memcpy(lse[l] + (jobs[0]->job->queries.ring_start + jobs[0]->job->queries.rows - 1) %
                                                jobs[0]->job->queries.rows * sizeof(far), &far, sizeof(far));
                for (uint32_t i = 0; i < 2; i++)
                        jobs[i]->job->groups[0].layers[l].lse = lse[l];
        }
        ck_assert_int_ge(fd, 0);
        (void)setenv("FAKECUDA_LOG", log, 1);
        plan_both(backend, jobs[0], jobs[1], 50);
        ck_assert_int_eq(jobs[1]->job->outcome, cases[_i].wrong ? CKV_JOB_BAD_LSE : CKV_JOB_OK);
        /* lse_part only where no log-sum-exp was given, lse, weights, rows, units, select */
        ck_assert_uint_eq(count_launches(log), cases[_i].given ? 5 : 6);
        (void)ckv_close(fd);
        (void)unlink(log);
        (void)ops->close(backend);
        for (uint32_t l = 0; l < 2; l++)
                free(lse[l] ? lse[l] - 1 : NULL);
        free_both(jobs[0], jobs[1]);
}
END_TEST

/* Two equal jobs for tensor cores on a grid without gaps: their units are scored by sums */
static void jobs_of_units(const struct random_shape *s, struct random_job *jobs[2]) {
        uint64_t seed = 60;

        jobs[0] = NULL;
        do {
                jobs[0] = random_job_free(jobs[0]);
                jobs[0] = random_job_new(++seed, s);
        } while (jobs[0]->job->queries.dtype != s->dtype || jobs[0]->job->groups[0].selection.positions ||
                 jobs[0]->job->groups[0].selection.span_count > 0);
        jobs[1] = random_job_new(seed, s);
        ck_assert(ckv_scores_units_will_do(&jobs[0]->job->groups[0], 1));
}

/* All elements of a row of a key plane: a logit that may lie far above those of the first rows */
static void set_key(const struct random_job *random, uint32_t layer, uint32_t row, uint32_t head, float value) {
        const struct ckv_job_group *group = &random->job->groups[0];

        for (uint32_t x = 0; x < group->head_dim_k; x++)
                random_store(random_element(group, &group->layers[layer].k, row, head, x), group->layers[layer].k.dtype, value);
}

enum far { FAR_NONE, FAR_SECOND, FAR_FIRST, FAR_ALL, FAR_NO_NUMBER, NOT_SO_FAR, _FARS };

/* Scores of units from one pass over K. Where the first rows said too little of a layer's logits, it is scored again by rows, and
 * only this one; where a logit is no number the refusal is the reference's. */
START_TEST(sums_by_unit) {
        const struct ckv_policy policies[] = {
                { .window = 8, .chunk = 5, .given = CKV_GIVEN_MIN_TOKENS },
                { .window = 8, .chunk = 8, .pool = CKV_POOL_AVG, .norm = CKV_NORM_SEEN, .given = CKV_GIVEN_MIN_TOKENS },
                { .profile = CKV_PROFILE_KVPRESS, .window = 12, .chunk = 20 },
                { .window = 8, .chunk = 10, .heads = CKV_HEADS_EACH, .sliding = 100, .given = CKV_GIVEN_MIN_TOKENS },
        };
        const uint32_t launches[_FARS] = {
                [FAR_NONE] = 5, [FAR_SECOND] = 5 + 6 + 5, [FAR_FIRST] = 5 + 6 + 5, [FAR_ALL] = 3 * (5 + 6),
                [FAR_NO_NUMBER] = 5 + 6, [NOT_SO_FAR] = 5,
        };
        enum far far = (enum far)(_i / 2);
        uint32_t policy = (uint32_t)_i % 2 * 2 + far % 2;
        struct random_shape s = shape;
        struct random_job *jobs[2];
        struct ckv_backend *backend;
        char log[] = "/tmp/test-cuda-scores-XXXXXX";
        int fd = mkstemp(log);

        s.asked = &policies[policy];
        s.rows = 260;
        s.dims = policy == 1 ? 128 : 64;
        s.dtype = far == FAR_FIRST ? CKV_DTYPE_F16 : CKV_DTYPE_BF16;
        jobs_of_units(&s, jobs);
        for (uint32_t i = 0; i < 2; i++)
                for (uint32_t l = 0; l < 3; l++)
                        if (far == FAR_ALL || (far == FAR_SECOND && l == 1) || (far == FAR_FIRST && l == 0))
                                set_key(jobs[i], l, 240, l % 2, 100);
                        else if (far == FAR_NO_NUMBER && l == 1)
                                set_key(jobs[i], l, 240, 1, NAN);
                        else if (far == NOT_SO_FAR)
                                set_key(jobs[i], l, 240, 1, 2);
        subject.options.slice_usec = 2000000;
        backend = open_backend();
        ck_assert_int_ge(fd, 0);
        (void)setenv("FAKECUDA_LOG", log, 1);
        plan_both(backend, jobs[0], jobs[1], 60);
        ck_assert_int_eq(jobs[1]->job->outcome, far == FAR_NO_NUMBER ? CKV_JOB_NONFINITE : CKV_JOB_OK);
        ck_assert_uint_eq(count_launches(log), launches[far]);
        (void)ckv_close(fd);
        (void)unlink(log);
        (void)ops->close(backend);
        free_both(jobs[0], jobs[1]);
}
END_TEST

/* A group's scores go out by unit. *ret_need: their bytes */
static float *let_scores_out(struct random_job *random, uint64_t *ret_need) {
        struct ckv_job_group *group = &random->job->groups[0];
        uint8_t *flags = malloc(group->selection.rows);
        struct ckv_units units = { 0 };

        ck_assert_int_eq(ckv_select_budget(&group->selection, flags, &group->budget), 0);
        ck_assert_int_eq(ckv_units_init(&units, &group->selection, flags), 0);
        (void)ckv_scores_fit(group, &units, ret_need);
        ckv_units_deinit(&units);
        free(flags);
        group->scores.out = calloc(1, *ret_need);
        group->scores.out_bytes = *ret_need;
        return (float *)group->scores.out;
}

/* What such sums give out is within R31, and the same bits however many layers a batch has. */
START_TEST(sums_by_unit_come_out) {
        const struct ckv_policy asked = { .window = 32, .chunk = 5, .pool = CKV_POOL_AVG, .pool_size = 3,
                                          .given = CKV_GIVEN_MIN_TOKENS };
        const uint32_t slices[2] = { 2000000, 1 }, launches[2] = { 5, 3 * 5 };
        struct random_shape s = shape;
        struct random_job *jobs[4];
        float *scores[4];
        double rtol, atol;
        uint64_t need;

        s.asked = &asked;
        s.dims = 64;
        s.rows = 300;
        jobs_of_units(&s, jobs);
        jobs_of_units(&s, jobs + 2);
        for (uint32_t i = 0; i < 4; i++)
                scores[i] = let_scores_out(jobs[i], &need);
        ck_assert_int_eq(ckv_ref_run_plan(jobs[3]->job), 0);
        gap_tolerance(jobs[3]->job, &jobs[3]->job->groups[0], &rtol, &atol);
        for (uint32_t i = 0; i < 2; i++) {
                char log[] = "/tmp/test-cuda-scores-XXXXXX";
                int fd = mkstemp(log);
                struct ckv_backend *backend;

                ck_assert_int_ge(fd, 0);
                subject.options.slice_usec = slices[i];
                backend = open_backend();
                (void)setenv("FAKECUDA_LOG", log, 1);
                subject_run(&subject, backend, jobs[i]->job, CKV_STAGE_PLAN);
                (void)unsetenv("FAKECUDA_LOG");
                ck_assert_int_eq(jobs[i]->job->outcome, CKV_JOB_OK);
                ck_assert_uint_eq(count_launches(log), launches[i]);
                for (uint64_t u = 0; u < need / sizeof(float); u++)
                        ck_assert_float_eq_tol(scores[i][u], scores[3][u], (float)(rtol * (double)scores[3][u] + atol));
                (void)ckv_close(fd);
                (void)unlink(log);
                (void)ops->close(backend);
        }
        ck_assert_mem_eq(scores[0], scores[1], need);
        for (uint32_t i = 0; i < 4; i++) {
                free(scores[i]);
                (void)random_job_free(jobs[i]);
        }
}
END_TEST

/* What one layer takes of the scratch, weights by row */
static uint64_t scratch_need(const struct random_job *random) {
        const struct ckv_job_group *group = &random->job->groups[0];
        uint8_t *flags = malloc(group->selection.rows);
        struct ckv_units units = { 0 };
        struct ckv_budget budget;
        struct ckv_cuda_score *score;
        uint64_t need;

        ck_assert_int_eq(ckv_select_budget(&group->selection, flags, &budget), 0);
        ck_assert_int_eq(ckv_units_init(&units, &group->selection, flags), 0);
        score = ckv__cuda_score_new(random->job, group, &units, flags);
        ck_assert_ptr_nonnull(score);
        need = ckv__cuda_score_need(score);
        (void)ckv__cuda_score_free(score);
        ckv_units_deinit(&units);
        free(flags);
        return need;
}

/* The same queries behind many older ones, which nobody reads. Return: to be freed. */
static uint8_t *many_queries(struct random_job *random, uint32_t rows) {
        struct ckv_job_queries *q = &random->job->queries;
        struct ckv_job_layer *layer = &random->job->groups[0].layers[0];
        uint8_t *all = calloc(rows, q->row_stride);

        ck_assert_ptr_nonnull(all);
        for (uint32_t r = 0; r < q->rows; r++)
                memcpy(all + (rows - q->rows + r) * q->row_stride, layer->query + (q->ring_start + r) % q->rows * q->row_stride,
                       q->row_stride);
        layer->query = all;
        q->rows = rows;
        q->ring_start = 0;
        return all;
}

/* A scratch that has just room for weights by row, and not for sums, is enough. */
START_TEST(sums_by_unit_without_room) {
        const struct ckv_policy asked = { .window = 64, .chunk = 5, .recent = 4, .given = CKV_GIVEN_MIN_TOKENS | CKV_GIVEN_RECENT };
        const uint64_t scratch = 16 << 20;
        struct random_shape s = shape;
        struct random_job *jobs[2];
        struct ckv_backend *backend;
        char log[] = "/tmp/test-cuda-scores-XXXXXX";
        uint8_t *queries[2];
        uint64_t more;
        int fd = mkstemp(log);

        s.asked = &asked;
        s.dims = 64;
        s.layers = 1;
        jobs_of_units(&s, jobs);
        /* what is sent of the queries grows with their rows; a row of them is a hundredth of the sums */
        more = (scratch - scratch_need(jobs[0])) / (jobs[0]->job->groups[0].q_heads * (2 * s.dims + sizeof(float))) - 4;
        for (uint32_t i = 0; i < 2; i++)
                queries[i] = many_queries(jobs[i], jobs[i]->job->queries.rows + (uint32_t)more);
        ck_assert_uint_le(scratch_need(jobs[0]), scratch);
        subject.options.scratch_bytes = scratch;
        backend = open_backend();
        ck_assert_int_ge(fd, 0);
        (void)setenv("FAKECUDA_LOG", log, 1);
        plan_both(backend, jobs[0], jobs[1], 61);
        ck_assert_int_eq(jobs[1]->job->outcome, CKV_JOB_OK);
        ck_assert_uint_eq(count_launches(log), 6);
        (void)ckv_close(fd);
        (void)unlink(log);
        (void)ops->close(backend);
        for (uint32_t i = 0; i < 2; i++)
                free(queries[i]);
        free_both(jobs[0], jobs[1]);
}
END_TEST

/* Older queries are subtracted, by the kernels for tensor cores and by the others; their log-sum-exps are checked as those of the
 * queries that vote are. */
START_TEST(older_queries_are_subtracted) {
        enum { NONE, GIVEN, WRONG, FEW, _KINDS };
        const bool most = _i / _KINDS % 2, general = _i / _KINDS / 2;
        const uint32_t kind = _i % _KINDS;
        const struct ckv_policy asked = {
                .window = 9, .chunk = 5, .window_reduce = most ? CKV_ROWS_MAX : CKV_ROWS_SUM, .vote_rows = most ? 3 : 0,
                .contrast_first = kind == FEW ? 40 : 3, .contrast_end = kind == FEW ? 60 : 9, .mute = 2,
                .given = CKV_GIVEN_MIN_TOKENS | CKV_GIVEN_CONTRAST_FIRST | CKV_GIVEN_CONTRAST_END | CKV_GIVEN_MUTE,
        };
        struct random_shape s = shape;
        struct random_job *jobs[2] = { NULL };
        uint8_t *lse[2] = { NULL };
        struct ckv_backend *backend = open_backend();

        s.asked = &asked;
        s.dims = general ? 40 : 64;
        s.layers = 2;
        for (uint64_t seed = 60; !jobs[0] || jobs[0]->job->queries.dtype != CKV_DTYPE_BF16; seed++)
                for (uint32_t i = 0; i < 2; i++) {
                        jobs[i] = random_job_free(jobs[i]);
                        jobs[i] = random_job_new(seed, &s);
                }
        for (uint32_t l = 0; l < 2 && (kind == GIVEN || kind == WRONG); l++) {
                const uint32_t rows = jobs[0]->job->queries.rows, slot = (jobs[0]->job->queries.ring_start + rows - 6) % rows;
                const float far = 20;

                lse[l] = lse_of(jobs[0]->job, &jobs[0]->job->groups[0], l);
                if (kind == WRONG && l == 1)
                        memcpy(lse[l] + (2 * rows + slot) * sizeof(far), &far, sizeof(far));
                for (uint32_t i = 0; i < 2; i++)
                        jobs[i]->job->groups[0].layers[l].lse = lse[l];
        }
        plan_both(backend, jobs[0], jobs[1], 60);
        ck_assert_int_eq(jobs[1]->job->outcome, kind == WRONG ? CKV_JOB_BAD_LSE : CKV_JOB_OK);
        ck_assert_uint_eq(jobs[1]->job->fail_unit, kind == WRONG ? 2 : 0);
        (void)ops->close(backend);
        for (uint32_t l = 0; l < 2; l++)
                free(lse[l] ? lse[l] - 1 : NULL);
        free_both(jobs[0], jobs[1]);
}
END_TEST

/* pool = leak, which the ends of the caller's chunks hold back: the table of them is sent, and again for the second batch */
START_TEST(scores_leak_within_chunks) {
        static const uint32_t lengths[] = { 7, 60, 1, 50, 32 };
        const struct ckv_policy asked = { .window = 4, .chunk = 5, .pool = CKV_POOL_LEAK, .given = CKV_GIVEN_MIN_TOKENS };
        struct random_shape s = shape;
        struct random_job *jobs[2];
        struct ckv_backend *backend;

        s.asked = &asked;
        subject.options.slice_usec = 1;
        backend = open_backend();
        for (uint32_t i = 0; i < 2; i++) {
                uint32_t *own = malloc(sizeof(lengths));

                ck_assert_ptr_nonnull(own);
                memcpy(own, lengths, sizeof(lengths));
                jobs[i] = random_job_new(70, &s);
                jobs[i]->job->groups[0].selection.chunk_lengths = own;
                jobs[i]->job->groups[0].selection.chunk_length_count = CKV_ARRAY_SIZE(lengths);
        }
        plan_both(backend, jobs[0], jobs[1], 70);
        ck_assert_int_eq(jobs[1]->job->outcome, CKV_JOB_OK);
        ck_assert_int_eq(jobs[1]->job->groups[0].budget.kept_all, CKV_DROPPED);
        (void)ops->close(backend);
        free_both(jobs[0], jobs[1]);
}
END_TEST

/* A query's element x in the job's memory */
static void set_query(const struct random_job *random, uint32_t layer, uint32_t row, uint32_t head, uint32_t x, float value) {
        const struct ckv_job_queries *q = &random->job->queries;

        random_store((uint8_t *)(uintptr_t)random->job->groups[0].layers[layer].query + (q->ring_start + row) % q->rows * q->row_stride +
                             head * q->head_stride + (uint64_t)x * ckv_dtype_bytes(q->dtype), q->dtype, value);
}

/* Two equal jobs whose keys and queries have one type, which tensor cores take in rows of 64 */
static void jobs_of_type(const struct random_shape *s, struct random_job *jobs[2]) {
        jobs[0] = jobs[1] = NULL;
        for (uint64_t seed = 60; !jobs[0] || jobs[0]->job->queries.dtype != s->dtype; seed++)
                for (uint32_t i = 0; i < 2; i++) {
                        jobs[i] = random_job_free(jobs[i]);
                        jobs[i] = random_job_new(seed, s);
                }
}

/* Policies whose sums differ: by unit where tensor cores serve, by largest weights, with a contrast and a leak, by row */
static const struct ckv_policy kinds[] = {
        { .window = 4, .chunk = 5, .given = CKV_GIVEN_MIN_TOKENS },
        { .window = 9, .chunk = 5, .window_reduce = CKV_ROWS_MAX, .vote_rows = 3, .contrast_first = 3, .contrast_end = 9,
          .given = CKV_GIVEN_MIN_TOKENS | CKV_GIVEN_CONTRAST_FIRST | CKV_GIVEN_CONTRAST_END },
        { .window = 9, .chunk = 5, .contrast_first = 6, .contrast_end = 9, .pool = CKV_POOL_LEAK,
          .given = CKV_GIVEN_MIN_TOKENS | CKV_GIVEN_CONTRAST_FIRST | CKV_GIVEN_CONTRAST_END },
        { .window = 4, .selector = CKV_SELECTOR_TOKEN, .given = CKV_GIVEN_MIN_TOKENS },
};
enum { KINDS = CKV_ARRAY_SIZE(kinds) };

static void jobs_of_kind(uint32_t kind, bool tensor, struct random_job *jobs[2]) {
        struct random_shape s = shape;

        s.asked = &kinds[kind];
        s.dims = tensor ? 64 : 40;
        s.layers = 2;
        if (kind == 0)
                jobs_of_units(&s, jobs);
        else
                jobs_of_type(&s, jobs);
}

/* An infinity in one key or query beside log-sum-exps that are right without it: far above them, R40 and not R23 has the word. */
START_TEST(infinite_beside_log_sum_exp) {
        const uint32_t rows[] = { 0, 33, 140 };
        struct ckv_backend *backend = open_backend();

        for (uint32_t n = 0; n < 3 * 4; n++) {
                const float value = n & 1 ? -INFINITY : INFINITY;
                const bool key = n & 2;
                struct random_job *jobs[2];
                uint8_t *lse[2];

                jobs_of_kind((uint32_t)_i % KINDS, _i / KINDS, jobs);
                for (uint32_t l = 0; l < 2; l++)
                        lse[l] = lse_of(jobs[0]->job, &jobs[0]->job->groups[0], l);
                for (uint32_t i = 0; i < 2; i++) {
                        struct ckv_job_group *group = &jobs[i]->job->groups[0];

                        for (uint32_t l = 0; l < 2; l++)
                                group->layers[l].lse = lse[l];
                        if (key)
                                random_store(random_element(group, &group->layers[1].k, rows[n / 4], 1, 3),
                                             group->layers[1].k.dtype, value);
                        else
                                set_query(jobs[i], 1, jobs[i]->job->queries.rows - 1 - n / 4, 3, 3, value);
                }
                plan_both(backend, jobs[0], jobs[1], n);
                ck_assert_int_eq(jobs[1]->job->outcome, CKV_JOB_BAD_LSE);
                ck_assert_uint_eq(jobs[1]->job->fail_layer, jobs[0]->job->fail_layer);
                ck_assert_uint_eq(jobs[1]->job->fail_unit, jobs[0]->job->fail_unit);
                for (uint32_t l = 0; l < 2; l++)
                        free(lse[l] - 1);
                free_both(jobs[0], jobs[1]);
        }
        (void)ops->close(backend);
}
END_TEST

/* Logits of -infinity weigh nothing, however many lie together; where there are no others, a softmax has no value. */
START_TEST(logits_of_minus_infinity) {
        const uint32_t ends[][2] = { { 0, 120 }, { 16, 97 }, { 0, 150 } };
        struct ckv_backend *backend = open_backend();

        for (uint32_t n = 0; n < 3; n++) {
                struct random_job *jobs[2];

                jobs_of_kind((uint32_t)_i % KINDS, _i / KINDS, jobs);
                for (uint32_t i = 0; i < 2; i++) {
                        struct ckv_job_group *group = &jobs[i]->job->groups[0];

                        for (uint32_t r = 0; r < jobs[i]->job->queries.rows; r++)
                                for (uint32_t h = 0; h < group->q_heads; h++)
                                        set_query(jobs[i], 1, r, h, 0, 0.5f);
                        for (uint32_t j = ends[n][0]; j < ends[n][1]; j++)
                                random_store(random_element(group, &group->layers[1].k, j, 0, 0), group->layers[1].k.dtype, -INFINITY);
                }
                plan_both(backend, jobs[0], jobs[1], n);
                ck_assert_int_eq(jobs[1]->job->outcome, n == 2 ? CKV_JOB_NONFINITE : CKV_JOB_OK);
                free_both(jobs[0], jobs[1]);
        }
        (void)ops->close(backend);
}
END_TEST

/* A sink that takes all weight leaves 0 to the rows, which is legal up to the largest number; infinity over itself has no value. */
START_TEST(sinks_of_any_size) {
        const struct { float sink; enum ckv_job_outcome outcome; } cases[] = {
                { 1e30f, CKV_JOB_OK }, { 1e32f, CKV_JOB_OK }, { 1e38f, CKV_JOB_OK }, { 3.4e38f, CKV_JOB_OK },
                { -3.4e38f, CKV_JOB_OK }, { -INFINITY, CKV_JOB_OK }, { INFINITY, CKV_JOB_NONFINITE }, { NAN, CKV_JOB_NONFINITE },
        };
        struct ckv_backend *backend = open_backend();

        for (uint32_t n = 0; n < 2 * CKV_ARRAY_SIZE(cases); n++) {
                /* of one head alone, or of all */
                const float sink = cases[n / 2].sink, sinks[4] = { n % 2 ? 0 : sink, n % 2 ? 0 : sink, sink, n % 2 ? 0 : sink };
                struct random_job *jobs[2];

                jobs_of_kind((uint32_t)_i % KINDS, _i / KINDS, jobs);
                for (uint32_t i = 0; i < 2; i++)
                        jobs[i]->job->groups[0].layers[1].sink_logits = (const uint8_t *)sinks;
                plan_both(backend, jobs[0], jobs[1], n);
                ck_assert_int_eq(jobs[1]->job->outcome, cases[n / 2].outcome);
                free_both(jobs[0], jobs[1]);
        }
        (void)ops->close(backend);
}
END_TEST

/* Queries of every second layer in device memory: three batches of one kind each, and the same rows. */
START_TEST(queries_on_either_side) {
        char log[] = "/tmp/test-cuda-scores-XXXXXX";
        int fd = mkstemp(log);
        struct random_job *jobs[2] = { random_job_new(14, &shape), random_job_new(14, &shape) };
        struct ckv_backend *backend = open_backend();
        const struct ckv_job_queries *q = &jobs[1]->job->queries;
        struct ckv_cuda cuda;
        CUdeviceptr at = 0;

        load_cuda(&cuda);
        for (uint32_t l = 0; l < 3; l += 2) {
                struct ckv_job_layer *layer = &jobs[1]->job->groups[0].layers[l];

                ck_assert_int_eq(cuda.cuMemAlloc_v2(&at, q->rows * q->row_stride), CUDA_SUCCESS);
                /* the stand-in's device memory is memory of this process */
                memcpy((void *)(uintptr_t)at, layer->query, q->rows * q->row_stride);
                layer->query = (const uint8_t *)(uintptr_t)at;
        }
        ck_assert_int_ge(fd, 0);
        (void)setenv("FAKECUDA_LOG", log, 1);
        plan_both(backend, jobs[0], jobs[1], 14);
        ck_assert_int_eq(jobs[1]->job->outcome, CKV_JOB_OK);
        /* lse_part, lse, weights, rows, units, select */
        ck_assert_uint_eq(count_launches(log), 3 * 6);
        (void)ckv_close(fd);
        (void)unlink(log);
        (void)ops->close(backend);
        free_both(jobs[0], jobs[1]);
}
END_TEST

static void import(struct ckv_backend *backend, struct ckv_import *import) {
        struct pollfd done = { .fd = ops->wait_fd(backend), .events = POLLIN };

        ops->import(backend, import);
        ck_assert_int_eq(poll(&done, 1, 60000), 1);
        ck_assert_ptr_null(ops->reap(backend));
        ck_assert_ptr_eq(ops->reap_import(backend), import);
        ck_assert_ptr_null(ops->reap_import(backend));
        ck_assert_int_eq(poll(&done, 1, 0), 0);
}

/* Imported by the device thread and given back in both ways; what cannot be opened comes back as well. */
START_TEST(imports_come_back) {
        struct ckv_backend *backend = open_backend();
        const CUmemAllocationProp prop = { .type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                           .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                                           .location = { CU_MEM_LOCATION_TYPE_DEVICE, 0 } };
        struct ckv_import ipc = { .kind = CKV_IMPORT_IPC, .size = 1 }, vmm, close_again;
        const uint64_t bytes = 1 << 20;
        CUmemGenericAllocationHandle handle;
        struct ckv_cuda cuda;
        int fd = -1;

        load_cuda(&cuda);
        import(backend, &ipc);
        ck_assert_int_eq(ipc.outcome, CKV_IMPORT_REFUSED);
        ck_assert_int_eq(ipc.driver_code, CUDA_ERROR_INVALID_HANDLE);
        ck_assert_int_eq(cuda.cuMemCreate(&handle, bytes, &prop, 0), CUDA_SUCCESS);
        ck_assert_int_eq(cuda.cuMemExportToShareableHandle(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0), CUDA_SUCCESS);
        for (uint32_t i = 0; i < 2; i++) {
                vmm = (struct ckv_import){ .kind = CKV_IMPORT_VMM, .fds = &fd, .fd_bytes = &bytes, .fd_count = 1, .size = bytes,
                                           .writable = true };
                import(backend, &vmm);
                ck_assert_int_eq(vmm.outcome, CKV_IMPORT_OK);
                ck_assert(vmm.mapping.on_device && vmm.mapping.size == bytes);
                vmm.mapping.base[bytes - 1] = 1;
                if (i == 0) {
                        ops->unmap(backend, &vmm.mapping);
                        ck_assert_ptr_null(vmm.mapping.base);
                        continue;
                }
                close_again = (struct ckv_import){ .kind = CKV_IMPORT_CLOSE, .mapping = vmm.mapping };
                import(backend, &close_again);
                ck_assert_int_eq(close_again.outcome, CKV_IMPORT_OK);
                ck_assert_ptr_null(close_again.mapping.base);
        }
        (void)ckv_close(fd);
        (void)ops->close(backend);
}
END_TEST

int main(void) {
        Suite *suite = suite_create("cuda_scores");
        TCase *tcase = tcase_create("scores");
        SRunner *runner = srunner_create(suite);
        int failed;

        suite_add_tcase(suite, tcase);
        tcase_set_timeout(tcase, 120);
        tcase_add_loop_test(tcase, given_log_sum_exp, 0, 4);
        tcase_add_loop_test(tcase, poison_in_visible_data_only, 0, _POISONS);
        tcase_add_loop_test(tcase, scores_out_and_in, 0, 4);
        tcase_add_test(tcase, scores_of_another_size);
        tcase_add_loop_test(tcase, mass_that_is_kept, 0, 3);
        tcase_add_loop_test(tcase, selected_by_the_host, 0, 3);
        tcase_add_test(tcase, selected_by_the_gpu);
        tcase_add_test(tcase, several_at_once);
        tcase_add_test(tcase, several_moves_at_once);
        tcase_add_test(tcase, queries_on_either_side);
        tcase_add_loop_test(tcase, tensor_cores, 0, 4);
        tcase_add_loop_test(tcase, sums_by_unit, 0, 2 * _FARS);
        tcase_add_test(tcase, sums_by_unit_come_out);
        tcase_add_test(tcase, sums_by_unit_without_room);
        tcase_add_loop_test(tcase, older_queries_are_subtracted, 0, 16);
        tcase_add_test(tcase, scores_leak_within_chunks);
        tcase_add_loop_test(tcase, infinite_beside_log_sum_exp, 0, 2 * KINDS);
        tcase_add_loop_test(tcase, logits_of_minus_infinity, 0, 2 * KINDS);
        tcase_add_loop_test(tcase, sinks_of_any_size, 0, 2 * KINDS);
        tcase_add_test(tcase, imports_come_back);
        srunner_run_all(runner, CK_NORMAL);
        failed = srunner_ntests_failed(runner);
        srunner_free(runner);
        return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
