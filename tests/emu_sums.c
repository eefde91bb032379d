/*
 * Scores of units from one pass over K (kernels/cuda/sums.cuh) in the emulator,
 * held to the reference within R31 on random jobs of all options that such sums
 * serve: grids with holes and short units, pools over their borders, sliding
 * windows, sinks; and the same bits in whatever order blocks and threads run.
 */
#include "base/macros.h"
#include "kernels/cuda_scheme.h"
#include "kernels/reference.h"
#include "kernels/scores.h"
#include "tests/emu/launch.h"
#include "tests/support_emu.h"
#include "tests/support_random.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static uint32_t asked_seeds;

/* A job whose queries are of the keys' type and lie as tensor cores want them */
struct subject {
        struct random_job *random;
        struct ckv_job_group *group;
        struct ckv_units units;
        uint8_t *flags;
        uint16_t *queries;              /* [layers][heads][rows][dims], in the ring */
        uint32_t *bounds;
};

static void make_queries(struct subject *s, struct dice *dice) {
        struct ckv_job_queries *q = &s->random->job->queries;
        const struct ckv_job_group *group = s->group;
        size_t each = (size_t)group->q_heads * q->rows * group->head_dim_k;

        q->dtype = group->layers[0].k.dtype;
        q->row_stride = 2ULL * group->head_dim_k;
        q->head_stride = q->rows * q->row_stride;
        s->queries = emu_room(group->layer_count * each * sizeof(*s->queries));
        for (uint32_t l = 0; l < group->layer_count; l++) {
                s->group->layers[l].query = (const uint8_t *)(s->queries + l * each);
                for (size_t i = 0; i < each; i++)
                        random_store((uint8_t *)&s->queries[l * each + i], q->dtype, 2 * dice_normal(dice));
        }
}

/* Return: is this a job whose units are scored so? */
static bool subject_init(struct subject *s, uint64_t seed, const struct random_shape *shape, struct dice *dice) {
        struct ckv_job_group *group;

        *s = (struct subject){ .random = random_job_new(seed, shape) };
        s->group = group = &s->random->job->groups[0];
        group->scores = (struct ckv_job_scores){ 0 };
        group->want_mass = false;
        s->flags = emu_room(group->selection.rows);
        s->bounds = emu_room(ckv_k_segments(group->selection.rows) * 2 * sizeof(*s->bounds));
        if (group->given || !ckv_scores_units_will_do(group, 1) ||
            ckv_select_budget(&group->selection, s->flags, &group->budget) != 0 || group->budget.settled ||
            group->budget.refused || ckv_units_init(&s->units, &group->selection, s->flags) != 0)
                return false;
        make_queries(s, dice);
        for (uint32_t l = 0; l < group->layer_count; l++)
                group->layers[l].lse = NULL;
        return ckv__cuda_sums_bounds(group, &s->units, s->bounds);
}

static void subject_deinit(struct subject *s) {
        (void)random_job_free(s->random);
        ckv_units_deinit(&s->units);
        free(s->flags);
        free(s->queries);
        free(s->bounds);
}

/* What the kernels are told, but for what they write */
static struct ckv_k_sums parameters_of(const struct subject *s, struct ckv_k_layer *layers, uint32_t *visible, uint32_t *seen) {
        const struct ckv_job *job = s->random->job;
        const struct ckv_job_group *group = s->group;
        const struct ckv_policy *policy = &group->policy;
        struct ckv_query_rows part = ckv_ref_query_rows(job, group);
        uint32_t rows = group->selection.rows, votes = part.vote_end - part.vote_first, segments = ckv_k_segments(rows);

        for (uint32_t l = 0; l < group->layer_count; l++)
                layers[l] = (struct ckv_k_layer){ .k = emu_plane(&group->layers[l].k), .query = AT(group->layers[l].query),
                                                  .sink_logits = AT(group->layers[l].sink_logits) };
        for (uint32_t i = 0; i < votes; i++)
                ckv_ref_visible(job, group, job->queries.rows - 1 - part.vote_first - i, &visible[2 * i], &visible[2 * i + 1]);
        ckv_ref_seen(job, group, seen);
        return (struct ckv_k_sums){
                .score = {
                        .layers = AT(layers), .visible = AT(visible), .table = emu_table(&group->table),
                        .query_head_stride = job->queries.head_stride, .query_row_stride = job->queries.row_stride,
                        .query_dtype = job->queries.dtype, .query_rows = job->queries.rows,
                        .ring_start = job->queries.ring_start, .query_first = part.vote_first, .votes = votes,
                        .layer_count = group->layer_count, .kv_heads = group->kv_heads, .q_heads = group->q_heads,
                        .head_dim = group->head_dim_k, .rows = rows, .segments = segments,
                        .scale = (float)ckv_ref_scale(group), .looks_far = 1,
                },
                .seen = policy->norm == CKV_NORM_SEEN ? AT(seen) : 0, .unit_of_row = AT(s->units.unit_of_row),
                .first_row = AT(s->units.first_row), .size = AT(s->units.size), .bounds = AT(s->bounds), .units = s->units.count,
                .columns = ckv_k_columns(s->units.count, segments),
                .domain = policy->pool == CKV_POOL_AVG ? ckv_ref_pool_domain(group) : 0, .half = ckv__cuda_sums_half(policy),
                .score_heads = ckv_score_heads(group),
                .divisor = (policy->norm == CKV_NORM_MEAN ? votes : 1) *
                           (policy->group_heads == CKV_GROUP_MEAN ? group->q_heads / group->kv_heads : 1),
                .mean = policy->unit_reduce == CKV_UNIT_MEAN,
        };
}

/* C[u], [layers][score heads][N]; *ret_far: lowest head whose reference was far, [layers] */
static float *score(const struct subject *s, uint32_t *ret_far) {
        uint32_t rows = s->group->selection.rows, n = s->group->layer_count, most = CKV_MAX(s->group->policy.window, 1);
        uint32_t *visible = emu_room(most * 2 * sizeof(*visible)), *seen = emu_room(((size_t)rows + 1) * sizeof(*seen));
        struct ckv_k_layer *layers = calloc(n, sizeof(*layers));
        struct ckv_k_sums p = parameters_of(s, layers, visible, seen);
        uint32_t votes = p.score.votes;
        size_t queries = (size_t)n * p.score.q_heads * votes;
        float *reference = emu_room(queries * 2 * sizeof(float)), *lse = emu_room(queries * sizeof(float));
        float *parts = emu_room(queries * p.score.segments * 2 * sizeof(float));
        float *sums = emu_room((size_t)n * p.score.q_heads * CKV_K_MMA_WIDTH(votes) * p.columns * sizeof(float));
        float *out = emu_room((size_t)n * p.score_heads * p.units * sizeof(*out));
        struct ckv_k_score few;

        memset(ret_far, 0xff, n * sizeof(*ret_far));
        p.reference = AT(reference);
        p.sums = AT(sums);
        p.out = AT(out);
        p.score.wrong = AT(ret_far);
        p.score.part = AT(parts);
        p.score.lse = AT(lse);
        few = p.score;
        few.part = p.reference;
        few.segments = 1;
        few.first = CKV_MIN(visible[2 * (votes - 1)], rows - 1);
        few.rows = CKV_MIN(rows - few.first, (uint32_t)CKV_K_REFERENCE_ROWS) + few.first;
        ck_assert_uint_le(votes, most);
        ck_assert(ckv_k_mma_takes(&p.score, layers));
        LAUNCH(mma_lse_part, &few);
        LAUNCH(mma_sums, &p);
        LAUNCH(lse, &p.score);
        LAUNCH(sum_units, &p);
        free(layers);
        free(visible);
        free(seen);
        free(reference);
        free(lse);
        free(parts);
        free(sums);
        return out;
}

/* Return: the largest relative error of a unit */
static double check_subject(uint64_t seed, const struct subject *s) {
        const struct ckv_job_group *group = s->group;
        uint32_t rows = group->selection.rows, heads = ckv_score_heads(group), n = s->units.count, far[8];
        double *t = emu_room((size_t)heads * rows * sizeof(*t)), most = 0;
        float *got, *again, *want = emu_room(n * sizeof(*want));

        ck_assert_uint_le(group->layer_count, CKV_ARRAY_SIZE(far));
        ckv_emu_set_order(CKV_EMU_ASCENDING, (uint32_t)seed);
        got = score(s, far);
        for (uint32_t l = 0; l < group->layer_count; l++) {
                ck_assert_uint_eq(far[l], UINT32_MAX);
                ck_assert_int_eq(ckv_ref_score_rows(s->random->job, group, &group->layers[l], t), 0);
                for (uint32_t h = 0; h < heads; h++) {
                        ckv_ref_unit_scores(&group->policy, &s->units, rows, t + (size_t)h * rows, want);
                        for (uint32_t u = 0; u < n; u++) {
                                float c = got[((size_t)l * heads + h) * n + u];
                                double error = fabs((double)c - (double)want[u]);

                                /* R31 allows 1e-4 of it */
                                ck_assert_msg(error <= 2e-5 * fabs((double)want[u]) + 1e-30, "seed %llu: C[%u] is %.9g, not %.9g",
                                              (unsigned long long)seed, u, (double)c, (double)want[u]);
                                most = fmax(most, error / ((double)want[u] + 1e-30));
                        }
                }
        }
        ckv_emu_set_order(CKV_EMU_RANDOM, (uint32_t)seed + 1);
        again = score(s, far);
        ck_assert_mem_eq(got, again, (size_t)group->layer_count * heads * n * sizeof(*got));
        free(t);
        free(got);
        free(again);
        free(want);
        return most;
}

static struct ckv_policy random_asked(struct dice *dice) {
        uint32_t chunk = 1 + dice_roll(dice, dice_roll(dice, 2) ? 8 : 40);
        struct ckv_policy asked = { .profile = dice_roll(dice, 4) ? CKV_PROFILE_DEFAULT : CKV_PROFILE_KVPRESS,
                                    .window = 1 + dice_roll(dice, 20), .chunk = chunk, .given = 0,
                                    .pool = dice_roll(dice, 2) ? CKV_POOL_AVG : CKV_POOL_NONE,
                                    .pool_size = 1 + 2 * dice_roll(dice, CKV_MIN(chunk + 1, 6)) };

        if (asked.profile == CKV_PROFILE_KVPRESS)
                return asked;
        asked.given = CKV_GIVEN_MIN_TOKENS;
        asked.norm = CKV_NORM_SUM + dice_roll(dice, 3);
        asked.heads = dice_roll(dice, 3) ? CKV_HEADS_SUM : CKV_HEADS_EACH;
        asked.group_heads = dice_roll(dice, 2) ? CKV_GROUP_SUM : CKV_GROUP_MEAN;
        asked.unit_reduce = dice_roll(dice, 2) ? CKV_UNIT_MEAN : CKV_UNIT_SUM;
        asked.sliding = dice_roll(dice, 3) ? 0 : 20 + dice_roll(dice, 200);
        return asked;
}

START_TEST(sums_are_those_of_the_reference) {
        static const uint32_t dims[] = { 64, 96, 128, 256 };
        uint32_t compared = 0, seeds = asked_seeds ? asked_seeds : CKV_SANITIZED ? 15 : 40;
        double most = 0;

        for (uint64_t seed = 0; seed < seeds; seed++) {
                struct dice dice = { seed * 4 + (uint64_t)_i + 1 };
                struct ckv_policy asked = random_asked(&dice);
                const float sinks[16] = { 0.5f, -1, 2, 0, 30, -INFINITY };
                struct random_shape shape = { .layers = 1 + seed % 2, .groups = 1, .rows = 60 + dice_roll(&dice, 180),
                                              .dims = dims[_i], .kv_heads = 1 + seed % 2, .per_group = 1 + dice_roll(&dice, 3),
                                              .dtype = seed % 2 ? CKV_DTYPE_F16 : CKV_DTYPE_BF16, .contiguous = true,
                                              .asked = &asked, .keep_ratio = 300000 };
                struct subject s;

                if (subject_init(&s, seed, &shape, &dice)) {
                        for (uint32_t l = 0; l < s.group->layer_count && seed % 3 == 0; l++)
                                s.group->layers[l].sink_logits = (const uint8_t *)sinks;
                        most = fmax(most, check_subject(seed, &s));
                        compared++;
                }
                subject_deinit(&s);
        }
        printf("sums, %u dimensions: %u jobs, error up to %.1e\n", dims[_i], compared, most);
        ck_assert_uint_ge(compared, seeds / 3);
}
END_TEST

/* Several segments, and units and pools that lie over their borders; a unit longer than a segment; more queries of a head than a
 * block has columns. */
START_TEST(sums_over_segments) {
        const struct ckv_policy policies[] = {
                { .window = 8, .chunk = 8, .pool = CKV_POOL_AVG, .given = CKV_GIVEN_MIN_TOKENS },
                { .window = 140, .chunk = 7, .given = CKV_GIVEN_MIN_TOKENS },
                { .window = 5, .selector = CKV_SELECTOR_CHUNK_AT, .pool = CKV_POOL_AVG, .given = CKV_GIVEN_MIN_TOKENS },
                { .profile = CKV_PROFILE_KVPRESS, .window = 8, .chunk = 2048 / 16 },
        };
        struct random_shape shape = { .layers = 1, .groups = 1, .rows = 2 * CKV_K_SEGMENT + 333, .dims = 64, .kv_heads = 1,
                                      .per_group = 1, .dtype = CKV_DTYPE_BF16, .contiguous = true, .asked = &policies[_i],
                                      .keep_ratio = 300000 };
        uint32_t lengths[] = { 2046, 3, 2, 2044, 334 }, long_ones[] = { 30, 4300, 99 };
        struct dice dice = { 5 };
        struct subject s;

        if (_i <= 1)
                shape.rows = CKV_K_SEGMENT + 100;
        for (uint32_t i = 0; i < (_i == 2 ? 2 : 1); i++) {
                uint64_t seed = 100;
                bool taken;

                /* what is asked for, with all rows next to one another */
                for (;; seed++) {
                        struct random_job *random = random_job_new(seed, &shape);
                        const struct ckv_selection *selection = &random->job->groups[0].selection;
                        bool plain = !selection->positions && selection->span_count == 0;

                        (void)random_job_free(random);
                        if (plain)
                                break;
                }
                taken = subject_init(&s, seed, &shape, &dice);
                ck_assert(taken);
                if (_i == 2) {
                        struct ckv_selection *selection = &s.group->selection;

                        ckv_units_deinit(&s.units);
                        free((void *)(uintptr_t)selection->chunk_lengths);
                        selection->chunk_lengths = i ? long_ones : lengths;
                        selection->chunk_length_count = i ? 3 : 5;
                        ck_assert_int_eq(ckv_units_init(&s.units, selection, s.flags), 0);
                        ck_assert(ckv__cuda_sums_bounds(s.group, &s.units, s.bounds));
                }
                (void)check_subject(seed, &s);
                if (_i == 2)
                        s.group->selection.chunk_lengths = NULL;
                subject_deinit(&s);
        }
}
END_TEST

/* A key whose logit lies far above those of the first rows, or is no number, is told; one that is not so far is served. */
START_TEST(far_references_are_told) {
        const struct ckv_policy asked = { .window = 4, .chunk = 10, .given = CKV_GIVEN_MIN_TOKENS };
        struct random_shape shape = { .layers = 2, .groups = 1, .rows = 150, .dims = 64, .kv_heads = 2, .per_group = 2,
                                      .dtype = CKV_DTYPE_BF16, .contiguous = true, .asked = &asked, .keep_ratio = 300000 };
        const float values[] = { 3, 1000, NAN };
        struct dice dice = { 9 };
        struct subject s;
        uint32_t far[2];
        float *got;

        ck_assert(subject_init(&s, 3, &shape, &dice));
        for (uint32_t x = 0; x < 64; x++)
                random_store(random_element(s.group, &s.group->layers[1].k, 100, 1, x), CKV_DTYPE_BF16, x ? 0 : values[_i]);
        got = score(&s, far);
        ck_assert_uint_eq(far[0], UINT32_MAX);
        if (_i == 0)
                ck_assert_uint_eq(far[1], UINT32_MAX);
        else
                ck_assert(far[1] == 2 || far[1] == 3);
        free(got);
        subject_deinit(&s);
}
END_TEST

TCase *emu_sums_case(uint32_t seeds) {
        TCase *sums = tcase_create("sums");

        asked_seeds = seeds;
        tcase_set_timeout(sums, 300);
        tcase_add_loop_test(sums, sums_are_those_of_the_reference, seeds ? 2 : 0, seeds ? 3 : 4);
        tcase_add_loop_test(sums, far_references_are_told, 0, 3);
        /* long ones: sanitizers see what there is to see in the first, and where few jobs are asked for there is no time */
        if (seeds == 0 || seeds > 10)
                tcase_add_loop_test(sums, sums_over_segments, 0, CKV_SANITIZED || seeds ? 1 : 4);
        return sums;
}
