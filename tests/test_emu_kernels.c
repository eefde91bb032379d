/*
 * The CUDA kernels in the emulator, held to the reference on random jobs: T[j]
 * and C[u] within R31, kept rows and moved bytes exactly, in three orders of
 * blocks and threads.
 *
 * What the kernels do not compute is passed over, and how much was compared is
 * asserted at the end.  That a kernel is right here says nothing of assembly,
 * of weak memory order or of speed.
 */
#include "base/macros.h"
#include "kernels/cuda/params.h"
#include "kernels/reference.h"
#include "kernels/steps.h"
#include "tests/emu/launch.h"
#include "tests/support_emu.h"
#include "tests/support_random.h"

#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* CKV_EMU_SEEDS of the environment: so many jobs, in random order alone (tests/emu/plant.py). 0: not asked for. */
static uint32_t brief;

static bool aligned(const struct ckv_plane *plane, uint64_t to) {
        return ((AT(plane->base) | plane->block_stride | plane->head_stride | plane->token.outer | plane->token.inner) & (to - 1)) == 0;
}

static bool can_read(const struct ckv_plane *plane) {
        uint32_t bytes = ckv_dtype_bytes(plane->dtype);

        return !plane->base || (plane->dtype <= CKV_DTYPE_BF16 && aligned(plane, bytes) &&
                                ((plane->dim.outer | plane->dim.inner) & (bytes - 1)) == 0);
}

static bool can_score(const struct ckv_job_group *group) {
        const struct ckv_policy *p = &group->policy;

        for (uint32_t l = 0; l < group->layer_count; l++)
                if (!can_read(&group->layers[l].k) || !can_read(&group->layers[l].v))
                        return false;
        return p->scorer != CKV_SCORER_DROP && p->scorer != CKV_SCORER_LAGKV;
}

/* With tensor: launch the kernels on tensor cores where they can be. taken: how many times. */
static bool tensor;
static uint32_t taken;
/* Groups from whose scores older queries were subtracted. */
static uint32_t contrasted;

static void assert_near(uint64_t seed, const char *what, const double *want, const float *got, size_t n) {
        double most = 0;

        for (size_t i = 0; i < n; i++)
                most = fmax(most, fabs(want[i]));
        for (size_t i = 0; i < n; i++)
                ck_assert_msg(fabs(want[i] - (double)got[i]) <= 2e-5 * fabs(want[i]) + 1e-6 * most,
                              "seed %llu: %s[%zu] is %.9g, not %.9g", (unsigned long long)seed, what, i, (double)got[i], want[i]);
}

/* The same weights from log-sum-exps that the caller gives, which are checked on the way; and a wrong one is found. */
static void check_given(struct ckv_k_score p, const struct ckv_k_layer *layers) {
        size_t given = (size_t)p.q_heads * p.query_rows, n = (size_t)p.layer_count * p.q_heads * p.rows;
        struct ckv_k_layer *with = emu_room(p.layer_count * sizeof(*with));
        float *lse = emu_room(p.layer_count * given * sizeof(*lse)), *weights = emu_room(n * sizeof(*weights));
        const float *found = (const float *)(uintptr_t)p.lse;
        const uint32_t *wrong = (const uint32_t *)(uintptr_t)p.wrong;
        double *want = emu_room(n * sizeof(*want));

        for (size_t i = 0; i < n; i++)
                want[i] = (double)((const float *)(uintptr_t)p.weights)[i];
        for (uint32_t i = 0; i < p.layer_count * p.q_heads * p.votes; i++)
                lse[i / p.votes * p.query_rows + (p.ring_start + p.query_first + i % p.votes) % p.query_rows] =
                        found[i] * 0.69314718F;
        memcpy(with, layers, p.layer_count * sizeof(*with));
        for (uint32_t l = 0; l < p.layer_count; l++)
                with[l].lse = AT(lse + l * given);
        p.layers = AT(with);
        p.given = 1;
        p.weights = AT(weights);
        memset((void *)(uintptr_t)p.part, 0xff, (size_t)p.layer_count * p.q_heads * p.votes * p.segments * 2 * sizeof(float));
        LAUNCH(mma_weights, &p);
        LAUNCH(lse, &p);
        ck_assert_uint_eq(wrong[0], UINT32_MAX);
        assert_near(0, "A, given", want, weights, n);
        lse[(p.q_heads - 1) * p.query_rows + (p.ring_start + p.query_first) % p.query_rows] += 0.2F;
        LAUNCH(mma_weights, &p);
        LAUNCH(lse, &p);
        ck_assert_uint_eq(wrong[0], p.q_heads - 1);
        free(with);
        free(lse);
        free(weights);
        free(want);
}

/* A[h][j] of query heads, [layers][q_heads][rows], by @votes query rows from @first on: with @most the largest weight of each row,
 * else their sum */
static float *attend(const struct ckv_job *job, const struct ckv_job_group *group, const struct ckv_k_layer *layers,
                     uint32_t first, uint32_t votes, bool most) {
        uint32_t rows = group->selection.rows;
        uint32_t *visible = emu_room(votes * 2 * sizeof(*visible)), *wrong = emu_room(group->layer_count * sizeof(*wrong));
        size_t queries = (size_t)group->layer_count * group->q_heads * votes;
        struct ckv_k_score p = {
                .layers = AT(layers), .visible = AT(visible), .wrong = AT(wrong), .table = emu_table(&group->table),
                .query_head_stride = job->queries.head_stride, .query_row_stride = job->queries.row_stride,
                .query_dtype = job->queries.dtype, .query_rows = job->queries.rows, .ring_start = job->queries.ring_start,
                .query_first = first, .votes = votes, .layer_count = group->layer_count, .kv_heads = group->kv_heads,
                .q_heads = group->q_heads, .head_dim = group->head_dim_k, .rows = rows, .segments = ckv_k_segments(rows),
                .raw = group->policy.scorer == CKV_SCORER_RAW_QK, .most = most,
                .scale = (float)ckv_ref_scale(group), .softcap = (float)group->policy.softcap,
        };
        float *part_of = emu_room(queries * p.segments * 2 * sizeof(float)), *lse = emu_room(queries * sizeof(float));
        float *weights = emu_room((size_t)group->layer_count * group->q_heads * rows * sizeof(float));

        for (uint32_t i = 0; i < votes; i++) {
                ckv_ref_visible(job, group, job->queries.rows - 1 - first - i, &visible[2 * i], &visible[2 * i + 1]);
                if (p.raw)
                        visible[2 * i] = 0, visible[2 * i + 1] = rows;
        }
        p.part = AT(part_of);
        p.lse = AT(lse);
        p.weights = AT(weights);
        if (tensor && ckv_k_mma_takes(&p, layers)) {
                LAUNCH(mma_lse_part, &p);
                LAUNCH(lse, &p);
                LAUNCH(mma_weights, &p);
                check_given(p, layers);
                taken++;
        } else {
                if (!p.raw) {
                        LAUNCH(lse_part, &p);
                        LAUNCH(lse, &p);
                }
                LAUNCH(weights, &p);
        }
        free(visible);
        free(wrong);
        free(part_of);
        free(lse);
        return weights;
}

/* S[g][j] of scorers that need no queries */
static float *score_keys(const struct ckv_job_group *group, const struct ckv_k_layer *layers) {
        uint32_t rows = group->selection.rows, segments = ckv_k_segments(rows);
        size_t heads = (size_t)group->layer_count * group->kv_heads;
        float *out = emu_room(heads * rows * sizeof(*out));
        double *part = emu_room(heads * segments * group->head_dim_k * sizeof(*part));
        struct ckv_k_keys keys = { .layers = AT(layers), .part = AT(part), .out = AT(out), .table = emu_table(&group->table),
                                   .layer_count = group->layer_count, .kv_heads = group->kv_heads, .rows = rows,
                                   .head_dim = group->head_dim_k, .segments = segments };
        struct ckv_k_norms norms = { .layers = AT(layers), .out = AT(out), .table = emu_table(&group->table),
                                     .layer_count = group->layer_count, .kv_heads = group->kv_heads, .rows = rows,
                                     .head_dim = group->head_dim_k,
                                     .kind = group->policy.scorer == CKV_SCORER_KNORM ? CKV_K_NORM_KNORM : CKV_K_NORM_VK_RATIO };

        if (group->policy.scorer == CKV_SCORER_KEYDIFF) {
                LAUNCH(key_sum, &keys);
                LAUNCH(keydiff, &keys);
        } else
                LAUNCH(norms, &norms);
        free(part);
        return out;
}

/* @begins: [rows + 1] 1 where a chunk of the caller's begins. Return: its address; 0: there are none */
static uint64_t begins_of(const struct ckv_selection *selection, uint8_t *begins) {
        uint32_t at = 0;

        memset(begins, 0, (size_t)selection->rows + 1);
        for (size_t i = 0; selection->chunk_lengths && i < selection->chunk_length_count; i++) {
                at += selection->chunk_lengths[i];
                begins[at] = 1;
        }
        return selection->chunk_lengths ? AT(begins) : 0;
}

/* T[j]: [layers][score heads][rows] */
static float *score_rows(const struct ckv_job *job, const struct ckv_job_group *group) {
        const struct ckv_policy *policy = &group->policy;
        bool keys = ckv_ref_scores_kv_heads(policy), weigh = policy->value_weight != CKV_WEIGHT_NONE;
        uint32_t rows = group->selection.rows, n = group->layer_count;
        struct ckv_k_layer *layers = calloc(n, sizeof(*layers));
        uint32_t *seen = emu_room(((size_t)rows + 1) * sizeof(*seen));
        uint8_t *begins = emu_room((size_t)rows + 1);
        float *norms = emu_room((size_t)n * group->kv_heads * rows * sizeof(*norms)), *in, *older = NULL;
        float *out = emu_room((size_t)n * ckv_score_heads(group) * rows * sizeof(*out));
        struct ckv_query_rows part = ckv_ref_query_rows(job, group);
        bool mean = !keys && policy->scorer != CKV_SCORER_RAW_QK && policy->window_reduce != CKV_ROWS_MAX;
        struct ckv_k_rows p = {
                .out = AT(out), .layer_count = n, .heads_in = keys ? group->kv_heads : group->q_heads, .kv_heads = group->kv_heads,
                .score_heads = ckv_score_heads(group), .rows = rows, .domain = ckv_ref_pool_domain(group), .pool = policy->pool,
                .pool_size = policy->pool_size, .group_heads = policy->group_heads, .heads = policy->heads,
                .divisor = mean && policy->norm == CKV_NORM_MEAN ? part.vote_end - part.vote_first : 0,
                .mute = !keys && policy->scorer != CKV_SCORER_RAW_QK ? policy->mute : 0,
        };
        struct ckv_k_norms v = { .layers = AT(layers), .out = AT(norms), .table = emu_table(&group->table), .layer_count = n,
                                 .kv_heads = group->kv_heads, .rows = rows, .head_dim = group->head_dim_k,
                                 .kind = policy->value_weight == CKV_WEIGHT_L1 ? CKV_K_NORM_L1 : CKV_K_NORM_L2 };

        for (uint32_t l = 0; l < n; l++)
                layers[l] = (struct ckv_k_layer){ .k = emu_plane(&group->layers[l].k), .v = emu_plane(&group->layers[l].v),
                                                  .query = AT(group->layers[l].query), .lse = AT(group->layers[l].lse),
                                                  .sink_logits = AT(group->layers[l].sink_logits) };
        if (mean && policy->norm == CKV_NORM_SEEN) {
                ckv_ref_seen(job, group, seen);
                p.seen = AT(seen);
        }
        if (weigh) {
                LAUNCH(norms, &v);
                p.value_norms = AT(norms);
        }
        in = keys ? score_keys(group, layers) :
             attend(job, group, layers, part.vote_first, part.vote_end - part.vote_first,
                    policy->scorer != CKV_SCORER_RAW_QK && policy->window_reduce == CKV_ROWS_MAX);
        p.in = AT(in);
        if (!keys && part.contrast_end > part.contrast_first) {
                p.older_rows = part.contrast_end - part.contrast_first;
                older = attend(job, group, layers, part.contrast_first, p.older_rows, false);
                p.older = AT(older);
                contrasted++;
        }
        if (policy->pool == CKV_POOL_LEAK) {
                struct ckv_k_leak leak = { .rows = p, .begins = begins_of(&group->selection, begins) };

                LAUNCH(leak, &leak);
                p.pool = CKV_POOL_NONE;
                p.seen = p.older = p.divisor = p.mute = 0;
        }
        LAUNCH(rows, &p);
        free(in);
        free(older);
        free(begins);
        free(norms);
        free(seen);
        free(layers);
        return out;
}

/* ckv_k_select against ckv_select() on the same scores, for the selections it knows */
static void check_select(uint64_t seed, const struct ckv_job_group *group, const struct ckv_units *units, const uint8_t *flags,
                         float *scores, float *t) {
        const struct ckv_policy *policy = &group->policy;
        uint32_t rows = group->selection.rows, most = ckv_k_runs_most(rows), counts[3];
        struct ckv_kept kept = { 0 };
        uint8_t *scratch = emu_room(rows);
        uint32_t *runs = emu_room((size_t)most * 3 * sizeof(*runs));
        struct ckv_k_select p = {
                .scores = AT(scores), .rows_in = policy->fill == CKV_FILL_BEST ? AT(t) : 0, .unit_of_row = AT(units->unit_of_row),
                .first_row = AT(units->first_row), .size = AT(units->size), .protect = AT(flags), .flags = AT(scratch),
                .runs = AT(runs), .counts = AT(counts), .sets = 1, .rows = rows, .units = units->count, .runs_most = most,
                .ranked = units->count, .sized = 1, .budget = group->budget.budget - group->budget.protected_rows,
                .fill = policy->fill, .room = UINT32_MAX,
        };

        if (policy->profile == CKV_PROFILE_PAPER) {
                p.sized = p.fill = 0;
                p.protect = 0;
                p.budget = group->budget.chunks;
                p.tail = policy->window;
                p.room = policy->join == CKV_JOIN_CUT ? group->budget.budget - policy->window : UINT32_MAX;
        }
        ck_assert_int_eq(ckv_select(&group->selection, units, &group->budget, flags, scores, t, &kept, NULL), 0);
        LAUNCH(select, &p);
        ck_assert_msg(counts[0] == kept.run_count && counts[1] == kept.count && counts[2] == UINT32_MAX,
                      "seed %llu: %u runs with %u rows, not %zu with %u", (unsigned long long)seed, counts[0], counts[1],
                      kept.run_count, kept.count);
        ck_assert_mem_eq(runs, kept.runs, kept.run_count * sizeof(*kept.runs));
        scores[units->count - 1] = NAN;
        LAUNCH(select, &p);
        ck_assert_uint_eq(counts[2], units->count - 1);
        ckv_kept_deinit(&kept);
        free(scratch);
        free(runs);
}

/* Return: was the group scored? */
static bool check_group(uint64_t seed, const struct ckv_job *job, struct ckv_job_group *group) {
        const struct ckv_policy *policy = &group->policy;
        uint32_t rows = group->selection.rows, heads = ckv_score_heads(group);
        uint8_t *flags = emu_room(rows);
        struct ckv_units units = { 0 };
        double *want;
        float *t, *c;

        if (!can_score(group) || ckv_select_budget(&group->selection, flags, &group->budget) != 0 || group->budget.settled ||
            group->budget.refused || ckv_units_init(&units, &group->selection, flags) != 0 || units.count == 0) {
                ckv_units_deinit(&units);
                free(flags);
                return false;
        }
        want = emu_room((size_t)heads * rows * sizeof(*want));
        t = score_rows(job, group);
        c = emu_room((size_t)group->layer_count * heads * units.count * sizeof(*c));
        struct ckv_k_units p = { .rows_in = AT(t), .unit_of_row = AT(units.unit_of_row), .first_row = AT(units.first_row),
                                 .size = AT(units.size), .out = AT(c), .sets = group->layer_count * heads, .rows = rows,
                                 .units = units.count, .unit_reduce = policy->unit_reduce };
        LAUNCH(units, &p);
        for (uint32_t l = 0; l < group->layer_count; l++) {
                float *exact = emu_room(units.count * sizeof(*exact));

                ck_assert_int_eq(ckv_ref_score_rows(job, group, &group->layers[l], want), 0);
                assert_near(seed, "T", want, t + (size_t)l * heads * rows, (size_t)heads * rows);
                for (uint32_t h = 0; h < heads; h++) {
                        double *row = want + (size_t)h * rows;
                        float *mine = t + ((size_t)l * heads + h) * rows, *units_of = c + ((size_t)l * heads + h) * units.count;

                        for (uint32_t j = 0; j < rows; j++)
                                row[j] = (double)mine[j];
                        ckv_ref_unit_scores(policy, &units, rows, row, exact);
                        for (uint32_t u = 0; u < units.count; u++)
                                ck_assert_float_eq(exact[u], units_of[u]);
                        if (policy->profile != CKV_PROFILE_KVPRESS)
                                check_select(seed, group, &units, flags, units_of, mine);
                }
                free(exact);
        }
        ckv_units_deinit(&units);
        free(flags);
        free(want);
        free(t);
        free(c);
        return true;
}

/* Few random jobs have a contrast: those asked for beside them. */
static const struct ckv_policy with_contrast = {
        .window = 8, .chunk = 5, .window_reduce = CKV_ROWS_MAX, .vote_rows = 3, .contrast_first = 3, .contrast_end = 8, .mute = 2,
        .pool = CKV_POOL_MAX, .pool_size = 3,
        .given = CKV_GIVEN_MIN_TOKENS | CKV_GIVEN_CONTRAST_FIRST | CKV_GIVEN_CONTRAST_END | CKV_GIVEN_MUTE,
};

static const struct ckv_policy with_leak = {
        .window = 8, .chunk = 5, .norm = CKV_NORM_SEEN, .mute = 3, .pool = CKV_POOL_LEAK,
        .contrast_first = 4, .contrast_end = 8,
        .given = CKV_GIVEN_MIN_TOKENS | CKV_GIVEN_CONTRAST_FIRST | CKV_GIVEN_CONTRAST_END | CKV_GIVEN_MUTE,
};

/* chunks of the caller's, in whole jobs of one group */
static void give_lengths(struct ckv_selection *selection) {
        uint32_t *lengths = emu_room(selection->rows * sizeof(*lengths)), left = selection->rows;

        selection->chunk_lengths = lengths;
        for (size_t i = 0; left > 0; left -= lengths[i++]) {
                lengths[i] = CKV_MIN(left, (uint32_t)(1 + i * 7 % 23));
                selection->chunk_length_count++;
        }
}

START_TEST(scores_and_kept_rows_are_those_of_the_reference) {
        uint32_t compared = 0;

        ckv_emu_set_order((enum ckv_emu_order)_i, 12345);
        for (uint64_t seed = 0; seed < (brief ? brief : CKV_SANITIZED ? 40 : 100); seed++) {
                struct random_shape shape = { .layers = 1 + seed % 2, .kv_heads = 2, .dtype = CKV_DTYPE_F32 + seed % 3 };
                struct random_job *random;

                if (seed % 5 == 3) {
                        shape.asked = seed % 10 == 3 ? &with_contrast : &with_leak;
                        shape.rows = seed % 10 == 3 ? 90 : 140;
                        shape.contiguous = true;
                        shape.keep_ratio = 300000;
                }
                random = random_job_new(seed, &shape);
                if (seed % 20 == 8)
                        give_lengths(&random->job->groups[0].selection);
                for (uint32_t i = 0; i < random->job->group_count && random->job->groups[i].selection.rows <= 300; i++)
                        compared += check_group(seed, random->job, &random->job->groups[i]);
                random_job_free(random);
        }
        ck_assert_uint_ge(compared, brief ? 1 : CKV_SANITIZED ? 3 : 12);
        ck_assert_uint_ge(contrasted, brief ? 1 : 3);
}
END_TEST

/* One head's weights before and behind pool = leak: the bits are those of one walk over all rows, so that rows as far from a score
 * stay equal (R21). */
START_TEST(leaks_have_the_bits_of_one_walk) {
        const uint32_t domains[] = { 1, 15, 16, 17, 33, 140, 800, 2049, 3100 };
        struct dice dice = { .state = 77 };

        ckv_emu_set_order((enum ckv_emu_order)_i, 999);
        for (uint32_t n = 0; n < 2 * CKV_ARRAY_SIZE(domains); n++) {
                uint32_t domain = domains[n / 2], rows = domain + 3;
                struct ckv_selection selection = { .rows = rows };
                uint8_t *begins = emu_room((size_t)rows + 1);
                float *a = emu_room(rows * sizeof(*a));
                double *want = emu_room(rows * sizeof(*want));
                struct ckv_k_leak p = { .rows = { .in = AT(a), .heads_in = 1, .layer_count = 1, .rows = rows, .domain = domain } };

                if (n % 2)
                        give_lengths(&selection);
                p.begins = begins_of(&selection, begins);
                for (uint32_t j = 0; j < rows; j++) {
                        /* peaks among nothing, or among small weights */
                        a[j] = dice_roll(&dice, 40) == 0 ? 1 + (float)dice_roll(&dice, 1000) / 999 :
                               j < domain / 2 ? 0 : (float)dice_roll(&dice, 1000) * 1e-6F;
                        want[j] = (double)a[j];
                }
                ckv_ref_leak(&selection, domain, want);
                LAUNCH(leak, &p);
                for (uint32_t j = 0; j < rows; j++)
                        ck_assert_msg(a[j] == (float)want[j], "domain %u: row %u is %.9g, not %.9g", domain, j, (double)a[j], want[j]);
                a[domain / 3] = NAN;
                LAUNCH(leak, &p);
                for (uint32_t j = 0; j < domain; j++)
                        ck_assert(isnan(a[j]));
                free((void *)(uintptr_t)selection.chunk_lengths);
                free(begins);
                free(a);
                free(want);
        }
}
END_TEST

/* Would tensor cores take it, but for alignment? */
static bool may_be_taken(const struct ckv_job *job, const struct ckv_job_group *group) {
        const struct ckv_policy *policy = &group->policy;

        return group->selection.rows <= 400 && !group->given && policy->scorer == CKV_SCORER_WINDOW && policy->softcap <= 0 &&
               policy->window_reduce != CKV_ROWS_MAX && job->queries.dtype == group->layers[0].k.dtype &&
               (job->queries.head_stride | job->queries.row_stride) % 4 == 0;
}

START_TEST(tensor_cores_score_as_the_reference) {
        static const uint32_t dims[] = { 64, 96, 128, 256 };

        tensor = true;
        for (uint64_t seed = 0; seed < 250; seed++) {
                struct random_shape shape = { .layers = 1 + seed % 2, .groups = 1, .dims = dims[seed / 2 % 4],
                                              .dtype = seed % 2 ? CKV_DTYPE_F16 : CKV_DTYPE_BF16, .contiguous = seed % 3 != 0 };
                struct random_job *random = random_job_new(seed, &shape);

                ckv_emu_set_order((enum ckv_emu_order)(seed % 3), (uint32_t)(seed / 3));
                if (may_be_taken(random->job, &random->job->groups[0]))
                        (void)check_group(seed, random->job, &random->job->groups[0]);
                random_job_free(random);
        }
        ck_assert_uint_ge(taken, 1);
}
END_TEST

static struct dice dice = { 4711 };

static uint16_t *random_values(size_t n, enum ckv_dtype dtype) {
        uint16_t *at = emu_room(n * sizeof(*at));

        for (size_t i = 0; i < n; i++)
                random_store((uint8_t *)&at[i], dtype, 2 * dice_normal(&dice));
        return at;
}

/* Both types and all dimensions, pages in any order; several segments; a head with more queries than a block has columns, and
 * blocks with several heads: the same as by the other kernels. */
START_TEST(tensor_cores_go_round) {
        enum { PAGE = 16, PAGES = 133, HEADS = 3 };
        static const uint32_t dims[] = { 64, 96, 128, 256 };
        uint32_t d = dims[_i / 2], rows = _i == 0 ? 2048 + 77 : 150, votes = _i % 4 < 2 ? 130 : 11, dtype = CKV_DTYPE_F16 + _i % 2;
        uint32_t entries[PAGES], visible[130][2], wrong = UINT32_MAX;
        uint16_t *k = random_values((size_t)PAGES * PAGE * d, dtype), *q = random_values((size_t)HEADS * votes * d, dtype);
        struct ckv_k_layer layer = {
                .k = { .base = AT(k), .block_stride = PAGE * d * 2, .token_inner = d * 2, .token_tile = 1, .token_outer = d * 2,
                       .dim_tile = d, .dim_inner = 2, .dtype = dtype, .dims = d },
                .query = AT(q),
        };
        float *part[2], *lse[2], *weights[2];
        struct ckv_k_score p = {
                .layers = AT(&layer), .visible = AT(visible), .wrong = AT(&wrong),
                .table = { .entries = AT(entries), .tokens_per_block = PAGE }, .query_head_stride = votes * d * 2,
                .query_row_stride = d * 2, .query_dtype = dtype, .query_rows = votes, .ring_start = 3, .votes = votes,
                .layer_count = 1, .kv_heads = 1, .q_heads = HEADS, .head_dim = d, .rows = rows, .segments = ckv_k_segments(rows),
                .scale = 0.1F,
        };

        for (uint32_t i = 0; i < PAGES; i++)
                entries[i] = i * 5 % PAGES;
        for (uint32_t i = 0; i < votes; i++) {
                visible[i][0] = i % 3 ? 0 : 9;
                visible[i][1] = rows - votes + 1 + i;
        }
        ck_assert(ckv_k_mma_takes(&p, &layer));
        ckv_emu_set_order(CKV_EMU_RANDOM, (uint32_t)_i + 7);
        for (uint32_t i = 0; i < 2; i++) {
                part[i] = emu_room((size_t)HEADS * votes * p.segments * 2 * sizeof(float));
                lse[i] = emu_room(HEADS * votes * sizeof(float));
                weights[i] = emu_room((size_t)HEADS * rows * sizeof(float));
                p.part = AT(part[i]);
                p.lse = AT(lse[i]);
                p.weights = AT(weights[i]);
                if (i == 0)
                        LAUNCH(lse_part, &p);
                else
                        LAUNCH(mma_lse_part, &p);
                LAUNCH(lse, &p);
                if (i == 0)
                        LAUNCH(weights, &p);
                else
                        LAUNCH(mma_weights, &p);
        }
        for (uint32_t i = 0; i < HEADS * votes; i++)
                ck_assert_float_eq_tol(lse[0][i], lse[1][i], 1e-4F);
        for (uint32_t i = 0; i < HEADS * rows; i++)
                ck_assert_float_eq_tol(weights[0][i], weights[1][i], 1e-5F + 1e-4F * weights[0][i]);
        layer.k.base += 2;
        ck_assert(!ckv_k_mma_takes(&p, &layer));
        for (uint32_t i = 0; i < 2; i++) {
                free(part[i]);
                free(lse[i]);
                free(weights[i]);
        }
        free(k);
        free(q);
}
END_TEST

/* A row of a plane as vectors. Return: false if elements do not lie on multiples of their size. */
static bool column_of(const struct ckv_plane *plane, uint32_t head, uint32_t set, struct ckv_k_column *ret_column) {
        uint32_t bytes = ckv_dtype_bytes(plane->dtype), adjacent = ckv_plane_adjacent_dims(plane), width = 16;
        uint64_t inner = plane->dim.inner, outer = plane->dim.outer, tile = plane->dim.tile;

        if (adjacent > 1 || ckv_plane_dims_adjacent(plane)) {
                bool all = adjacent == plane->dims;

                while (!aligned(plane, width) || adjacent * bytes % width != 0 || (!all && outer % width != 0) ||
                       plane->dims * bytes % width != 0)
                        width /= 2;
                tile = adjacent * bytes / width;
                inner = width;
        } else {
                width = bytes;
                if (!aligned(plane, width) || (outer | inner) % width != 0)
                        return false;
        }
        *ret_column = (struct ckv_k_column){
                .base = AT(plane->base) + head * plane->head_stride, .block_stride = plane->block_stride,
                .token_outer = plane->token.outer, .token_inner = plane->token.inner, .outer = outer, .inner = inner,
                .token_tile = plane->token.tile, .tile = (uint32_t)tile, .vectors = plane->dims * bytes / width, .width = width,
                .set = set,
        };
        return true;
}

/* What moves of a group; sets are those of its kept rows, layer by layer and head by head. */
struct moves {
        struct ckv_k_column *columns;
        struct ckv_k_batch *batches;
        uint64_t *runs_at;
        uint32_t *runs, *run_counts;
        struct ckv_k_move p;
};

static bool moves_init(struct moves *m, const struct ckv_job_group *group) {
        uint32_t sets = group->layer_count * group->kv_heads, runs = 0;

        *m = (struct moves){ .columns = emu_room(2 * sets * sizeof(*m->columns)), .batches = emu_room(sets * sizeof(*m->batches)),
                             .runs_at = emu_room(sets * sizeof(*m->runs_at)), .run_counts = emu_room(sets * sizeof(*m->run_counts)) };
        m->runs = emu_room((size_t)sets * ckv_k_runs_most(group->selection.rows) * 3 * sizeof(*m->runs));
        m->p = (struct ckv_k_move){ .columns = AT(m->columns), .batches = AT(m->batches), .runs = AT(m->runs),
                                    .runs_at = AT(m->runs_at), .run_counts = AT(m->run_counts), .from = emu_table(&group->table),
                                    .to = emu_table(group->destination.entries ? &group->destination : &group->table) };
        for (uint32_t s = 0; s < sets; s++) {
                const struct ckv_job_layer *layer = &group->layers[s / group->kv_heads];
                const struct ckv_kept *kept = ckv_job_kept(group, s / group->kv_heads, s % group->kv_heads);

                m->runs_at[s] = runs;
                m->run_counts[s] = (uint32_t)kept->run_count;
                memcpy(m->runs + 3 * runs, kept->runs, kept->run_count * sizeof(*kept->runs));
                runs += (uint32_t)kept->run_count;
                for (uint32_t v = 0; v < (layer->v.base ? 2 : 1); v++) {
                        struct ckv_k_column *column = &m->columns[m->p.column_count++];

                        if (!column_of(v ? &layer->v : &layer->k, s % group->kv_heads, s, column))
                                return false;
                        m->p.vectors_most = CKV_MAX(m->p.vectors_most, column->vectors);
                }
        }
        return true;
}

static void moves_deinit(struct moves *m) {
        free(m->columns);
        free(m->batches);
        free(m->runs_at);
        free(m->runs);
        free(m->run_counts);
}

static void move_step(struct moves *m, const struct ckv_job *job, const struct ckv_job_group *group, uint32_t step, bool pass) {
        m->p.rows_most = 0;
        for (uint32_t s = 0; s < group->layer_count * group->kv_heads; s++) {
                const struct ckv_kept *kept = ckv_job_kept(group, s / group->kv_heads, s % group->kv_heads);
                struct ckv_batch batch = ckv_steps_batch(job, group, kept, step);

                m->batches[s] = (struct ckv_k_batch){ .begin = batch.begin, .end = batch.end, .run = (uint32_t)batch.run };
                m->p.rows_most = CKV_MAX(m->p.rows_most, batch.end - batch.begin);
        }
        if (pass)
                LAUNCH(move_pass, &m->p);
        else
                LAUNCH(move, &m->p);
}

/* Return: was the job one that moves and that the kernels take? */
static bool check_moves(uint64_t seed, bool copy_out, bool pass) {
        struct random_shape shape = { .layers = 1, .groups = 1, .copy_out = copy_out };
        struct random_job *reference = random_job_new(seed, &shape), *fast = random_job_new(seed, &shape);
        struct ckv_job *job = fast->job;
        struct ckv_job_group *group = &job->groups[0];
        _Atomic uint32_t done = 0;
        struct moves m = { 0 };
        bool moved = false;

        /* the plan takes most of the time */
        if (group->selection.rows <= 300) {
                ck_assert_int_eq(ckv_ref_run_plan(reference->job), 0);
                ck_assert_int_eq(ckv_ref_run_plan(job), 0);
        } else
                job->outcome = CKV_JOB_EXPIRED;
        if (job->outcome == CKV_JOB_OK && group->budget.kept_all == CKV_DROPPED && moves_init(&m, group)) {
                ckv_ref_run_move(reference->job);
                if (!pass && !copy_out)
                        job->steps = (struct ckv_job_steps){ .batch_rows = seed % 2 ? 7 : 0, .done = &done };
                if (!pass && !copy_out)
                        job->steps.count = ckv_steps_count(job, job->steps.batch_rows, UINT32_MAX);
                for (uint32_t step = 0; step < ckv_steps_end(job); step++)
                        move_step(&m, job, group, step, pass);
                for (uint32_t i = 0; i < fast->memory_count; i++)
                        ck_assert_msg(memcmp(fast->memory[i].bytes, reference->memory[i].bytes, fast->memory[i].size) == 0,
                                      "seed %llu: memory %u", (unsigned long long)seed, i);
                moved = true;
        }
        moves_deinit(&m);
        random_job_free(fast);
        random_job_free(reference);
        return moved;
}

START_TEST(moves_are_those_of_the_reference) {
        uint32_t moved[3] = { 0 };

        ckv_emu_set_order((enum ckv_emu_order)_i, 54321);
        for (uint64_t seed = 0; seed < (brief ? brief : CKV_SANITIZED ? 25 : 60); seed++) {
                moved[0] += check_moves(seed, false, false);
                moved[1] += check_moves(seed, false, true);
                moved[2] += check_moves(seed, true, false);
        }
        for (uint32_t i = 0; i < 3; i++)
                ck_assert_uint_ge(moved[i], brief ? 1 : 10);
}
END_TEST

START_TEST(names_are_known) {
#define KERNEL(name, parameters)                                                                                \
        ck_assert(ckv_emu_find("ckv_k_" #name) != NULL);                                                \
        ck_assert_uint_eq(ckv_emu_parameter_bytes("ckv_k_" #name), sizeof(struct ckv_k_##parameters));
#include "kernels/cuda/kernels.def"
#undef KERNEL
        ck_assert(ckv_emu_find("ckv_k_none") == NULL);
}
END_TEST

int main(void) {
        Suite *suite = suite_create("emu_kernels");
        TCase *scores = tcase_create("scores"), *mma = tcase_create("mma"), *moves = tcase_create("moves");
        SRunner *runner;
        int failed;

        brief = getenv("CKV_EMU_SEEDS") ? (uint32_t)atoi(getenv("CKV_EMU_SEEDS")) : 0;
        tcase_set_timeout(scores, 300);
        tcase_set_timeout(mma, 300);
        tcase_set_timeout(moves, 300);
        tcase_add_test(scores, names_are_known);
        tcase_add_loop_test(scores, scores_and_kept_rows_are_those_of_the_reference, brief ? 2 : 0, 3);
        tcase_add_loop_test(scores, leaks_have_the_bits_of_one_walk, brief ? 2 : 0, 3);
        tcase_add_loop_test(moves, moves_are_those_of_the_reference, brief ? 2 : 0, 3);
        suite_add_tcase(suite, scores);
        tcase_add_loop_test(mma, tensor_cores_score_as_the_reference, 0, brief ? 0 : 1);
        tcase_add_loop_test(mma, tensor_cores_go_round, brief ? 2 : 0, brief ? 5 : 8);
        suite_add_tcase(suite, mma);
        suite_add_tcase(suite, moves);
        suite_add_tcase(suite, emu_sums_case(brief));
        runner = srunner_create(suite);
        srunner_run_all(runner, CK_NORMAL);
        failed = srunner_ntests_failed(runner);
        srunner_free(runner);
        return failed != 0;
}
