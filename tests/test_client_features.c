/*
 * The C client's less common jobs, each on the worked example of
 * algorithm.md 6.4 (tests/support_client.h): copies into other blocks, sets
 * that are given, positions, scores that leave and come back, answers in a
 * region, protected rows, and a latent cache.
 */
#include "base/macros.h"
#include "tests/support_client.h"

#include <check.h>
#include <errno.h>
#include <math.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

/* algorithm.md 6.4, "default": 0-4 10-14 20-29 44-47 */
static const uint32_t kept_runs[] = { 0, 5, 5, 5, 5, 10, 14, 4 };
enum { KEPT_ROWS = 24 };

/* Fails the test with the daemon's words if there is no result. */
static struct chunkkv_result *ask(struct model *model) {
        struct chunkkv_result *result = NULL;
        struct chunkkv_error error;
        char text[CHUNKKV_ERROR_TEXT];

        if (chunkkv_compress(model->client, &model->job, 0, &result, &error)) {
                (void)chunkkv_error_format(&error, text, sizeof(text));
                ck_abort_msg("%s", text);
        }
        return result;
}

static void runs_expect(const struct chunkkv_set *set) {
        ck_assert_uint_eq(set->run_count, CKV_ARRAY_SIZE(kept_runs));
        ck_assert_mem_eq(set->runs, kept_runs, sizeof(kept_runs));
}

/* The rows of the only set. Return: how many. */
static size_t set_rows(const struct chunkkv_result *result, uint32_t *ret_rows, size_t room) {
        const struct chunkkv_set *set = &result->groups[0].sets[0];

        return chunkkv_runs_to_rows(set->runs, set->run_count, ret_rows, room);
}

/* More memory in the model's session, zero. */
static uint32_t memory_add(struct model *model, uint64_t size, struct chunkkv_memory *ret_memory) {
        struct chunkkv_region region = { .access = CHUNKKV_ACCESS_READ_WRITE };
        struct chunkkv_error error;
        uint32_t id;

        ck_assert_int_eq(chunkkv_memory_create("more", size, CHUNKKV_ACCESS_READ_WRITE, ret_memory, &error), 0);
        region.fd = ret_memory->fd;
        ck_assert_int_eq(chunkkv_region_register(model->client, &region, 0, &id, &error), 0);
        return id;
}

static void *copy_of(const struct chunkkv_memory *memory) {
        void *copy = malloc(memory->size);

        ck_assert_ptr_nonnull(copy);
        return memcpy(copy, memory->address, memory->size);
}

/* Row @row of a plane in block @block. */
static const float *slot(const void *base, uint32_t plane, uint32_t block, uint32_t row) {
        return (const float *)base + plane * (size_t)MODEL_PLANE_FLOATS +
               ((size_t)block * MODEL_BLOCK + row) * MODEL_ROW_FLOATS;
}

START_TEST(copy_out_leaves_the_source) {
        static const uint32_t spare[] = { 3 };
        _cleanup_free_ void *before = NULL;
        struct chunkkv_result *result;
        struct model model;
        uint32_t rows[MODEL_BLOCK];

        model_open(&model, CHUNKKV_MODE_COPY_OUT);
        before = copy_of(&model.memory);
        model.group.keep_ratio = 250000;
        model.group.destination = (struct chunkkv_table){ .form = CHUNKKV_TABLE_BLOCKS, .numbers = spare, .count = 1 };
        result = ask(&model);
        ck_assert_uint_eq(result->cache, CHUNKKV_CACHE_COMMITTED);
        ck_assert_uint_eq(result->groups[0].physical_len, 12);
        ck_assert_uint_eq(set_rows(result, rows, MODEL_BLOCK), 12);
        for (uint32_t plane = 0; plane < 2; plane++) {
                for (uint32_t i = 0; i < 12; i++)
                        ck_assert_mem_eq(slot(model.memory.address, plane, 3, i), model_row(before, plane, rows[i]),
                                         MODEL_ROW_FLOATS * sizeof(float));
                ck_assert_mem_eq(slot(model.memory.address, plane, 0, 0), slot(before, plane, 0, 0),
                                 sizeof(float) * 3 * MODEL_BLOCK * MODEL_ROW_FLOATS);
        }
        result = chunkkv_result_free(result);
        model_close(&model);
}
END_TEST

START_TEST(given_runs_need_no_queries) {
        static const uint32_t given[] = { 3, 7, 20, 2 };
        _cleanup_free_ void *before = NULL;
        struct chunkkv_result *result;
        struct model model;

        model_open(&model, CHUNKKV_MODE_IN_PLACE);
        before = copy_of(&model.memory);
        model.job.queries = NULL;
        model.group.keep_ratio = 0;
        model.group.policy_count = 0;
        model.group.given_runs = given;
        model.group.given_run_count = CKV_ARRAY_SIZE(given);
        result = ask(&model);
        ck_assert_uint_eq(result->groups[0].physical_len, 9);
        for (uint32_t plane = 0; plane < 2; plane++)
                for (uint32_t i = 0; i < 9; i++)
                        ck_assert_mem_eq(model_row(model.memory.address, plane, i),
                                         model_row(before, plane, i < 7 ? 3 + i : 30 + i - 7),
                                         MODEL_ROW_FLOATS * sizeof(float));
        result = chunkkv_result_free(result);
        model_close(&model);
}
END_TEST

START_TEST(positions_come_with_the_sets) {
        /* rows 0-19 are positions 0-19, rows 20-47 are positions 100-127 */
        static const uint32_t positions[] = { 0, 20, 80, 28 };
        const struct chunkkv_set *set;
        struct chunkkv_result *result;
        struct model model;
        uint32_t rows[KEPT_ROWS], places[KEPT_ROWS];

        model_open(&model, CHUNKKV_MODE_PLAN);
        model.group.position_runs = positions;
        model.group.position_run_count = CKV_ARRAY_SIZE(positions);
        result = ask(&model);
        set = &result->groups[0].sets[0];
        ck_assert_uint_eq(set_rows(result, rows, KEPT_ROWS), KEPT_ROWS);
        ck_assert_uint_eq(chunkkv_runs_to_rows(set->position_runs, set->position_run_count, places, KEPT_ROWS),
                          KEPT_ROWS);
        for (size_t i = 0; i < KEPT_ROWS; i++)
                ck_assert_uint_eq(places[i], rows[i] < 20 ? rows[i] : rows[i] + 80);
        result = chunkkv_result_free(result);
        model_close(&model);
}
END_TEST

START_TEST(scores_out_and_in) {
        struct chunkkv_memory scores;
        struct chunkkv_result *result;
        struct model model;
        float *values, best = 0;
        uint32_t id;

        model_open(&model, CHUNKKV_MODE_PLAN);
        id = memory_add(&model, MODEL_ROWS * sizeof(float), &scores);
        model.group.score_kind = CHUNKKV_SCORE_ROWS;
        model.group.scores_out = (struct chunkkv_slice){ id, 0, MODEL_ROWS * sizeof(float) };
        result = ask(&model);
        runs_expect(&result->groups[0].sets[0]);
        result = chunkkv_result_free(result);
        values = scores.address;
        for (size_t i = 0; i < MODEL_ROWS; i++)
                best = CKV_MAX(best, values[i]);
        ck_assert(best > 0);
        /* the same scores give the same set, without queries */
        model.group.scores_out = (struct chunkkv_slice){ 0 };
        model.group.scores_in = (struct chunkkv_slice){ id, 0, MODEL_ROWS * sizeof(float) };
        model.job.queries = NULL;
        result = ask(&model);
        runs_expect(&result->groups[0].sets[0]);
        result = chunkkv_result_free(result);
        /* and other scores another: the chunk of rows 30-34 becomes the best */
        for (size_t i = 30; i < 35; i++)
                values[i] = 10 * best;
        result = ask(&model);
        ck_assert(chunkkv_runs_kept(result->groups[0].sets[0].runs, result->groups[0].sets[0].run_count) == KEPT_ROWS);
        ck_assert_mem_ne(result->groups[0].sets[0].runs, kept_runs,
                         sizeof(uint32_t) * CKV_MIN(result->groups[0].sets[0].run_count, CKV_ARRAY_SIZE(kept_runs)));
        result = chunkkv_result_free(result);
        chunkkv_memory_release(&scores);
        model_close(&model);
}
END_TEST

START_TEST(sets_in_a_region_of_the_callers) {
        struct chunkkv_memory sets;
        struct chunkkv_region_set set;
        struct chunkkv_result *result;
        struct chunkkv_error error;
        struct model model;
        uint64_t at = 64;
        uint32_t id;

        model_open(&model, CHUNKKV_MODE_IN_PLACE);
        id = memory_add(&model, 4096, &sets);
        model.job.reply_form = CHUNKKV_REPLY_IN_REGION;
        model.job.reply_to = (struct chunkkv_slice){ id, 64, 4000 };
        result = ask(&model);
        ck_assert_uint_eq(result->groups[0].set_total, 1);
        ck_assert_ptr_null(chunkkv_set_find(&result->groups[0], 7, 0));
        ck_assert(chunkkv_region_set_next(sets.address, sets.size, &at, &set));
        ck_assert_uint_eq(set.layer_first, 7);
        ck_assert_uint_eq(set.physical_before, MODEL_ROWS);
        ck_assert_uint_eq(set.run_count, CKV_ARRAY_SIZE(kept_runs));
        ck_assert_mem_eq(set.runs, kept_runs, sizeof(kept_runs));
        result = chunkkv_result_free(result);
        /* the caller's own region is his to choose: too small is an error */
        model.job.reply_to.size = 40;
        ck_assert_int_eq(chunkkv_compress(model.client, &model.job, 0, &result, &error), -EREMOTEIO);
        ck_assert_uint_eq(error.code, CHUNKKV_CODE_REPLY_TOO_LARGE);
        chunkkv_memory_release(&sets);
        model_close(&model);
}
END_TEST

START_TEST(a_protected_prefix_stays) {
        _cleanup_free_ void *before = NULL;
        struct chunkkv_result *result;
        struct model model;
        uint32_t rows[MODEL_ROWS];

        model_open(&model, CHUNKKV_MODE_IN_PLACE);
        before = copy_of(&model.memory);
        model.group.protect_prefix = 3;         /* rounded up to a block */
        result = ask(&model);
        ck_assert_uint_ge(result->groups[0].physical_len, MODEL_BLOCK);
        (void)set_rows(result, rows, MODEL_ROWS);
        for (uint32_t i = 0; i < result->groups[0].physical_len; i++) {
                if (i < MODEL_BLOCK)
                        ck_assert_uint_eq(rows[i], i);
                ck_assert_mem_eq(model_row(model.memory.address, 1, i), model_row(before, 1, rows[i]),
                                 MODEL_ROW_FLOATS * sizeof(float));
        }
        result = chunkkv_result_free(result);
        model_close(&model);
}
END_TEST

START_TEST(a_latent_cache) {
        static const uint32_t layers[] = { 7 };
        const struct chunkkv_group group = {
                .layers = layers, .layer_count = 1, .kv_heads = 1, .q_heads = MODEL_Q_HEADS, .head_dim_k = MODEL_DIM,
                .tokens_per_block = MODEL_BLOCK, .num_blocks = MODEL_BLOCKS,
        };
        struct chunkkv_plane plane = {
                .kind = CHUNKKV_PLANE_LATENT, .dtype = CHUNKKV_DTYPE_F32, .layer_first = 7, .layer_count = 1,
                .block_stride = MODEL_BLOCK * MODEL_ROW_FLOATS * sizeof(float),
                .token = { .outer = MODEL_ROW_FLOATS * sizeof(float) }, .dim = { .outer = sizeof(float) },
        };
        _cleanup_free_ void *before = NULL;
        struct chunkkv_result *result;
        struct chunkkv_error error;
        struct model model;
        uint32_t rows[MODEL_ROWS];
        int r;

        model_open(&model, CHUNKKV_MODE_IN_PLACE);
        before = copy_of(&model.memory);
        model.policy.scale = 0.25;      /* a latent cache has no default */
        plane.region_id = model.region_id;
        ck_assert_int_eq(chunkkv_cache_unregister(model.client, model.cache_id, 0, &error), 0);
        r = chunkkv_cache_register(model.client, &group, 1, &plane, 1, 0, &model.job.cache_id, NULL, &error);
        ck_assert_msg(r == 0, "%s: %s", error.field, error.detail);
        result = ask(&model);
        ck_assert_uint_eq(set_rows(result, rows, MODEL_ROWS), KEPT_ROWS);
        for (uint32_t i = 0; i < KEPT_ROWS; i++)
                ck_assert_mem_eq(model_row(model.memory.address, 0, i), model_row(before, 0, rows[i]),
                                 MODEL_DIM * sizeof(float));
        /* the other half of each row is none of the cache's */
        ck_assert_mem_eq(model_row(model.memory.address, 1, 0), model_row(before, 1, 0),
                         MODEL_ROW_FLOATS * sizeof(float));
        result = chunkkv_result_free(result);
        model_close(&model);
}
END_TEST

START_TEST(a_dense_sequence) {
        const struct chunkkv_options options = { .endpoint = support_daemon.endpoint };
        struct chunkkv_shape shape = {
                .layers = 3, .rows = 500, .kv_heads = 2, .q_heads = 6, .head_dim = 16, .query_rows = 8,
                .dtype = CHUNKKV_DTYPE_F32, .key = 4096, .query = 0, .value = 100000, .layer_stride = 200000,
        };
        _cleanup_free_ uint8_t *before = NULL;
        const struct chunkkv_set *set;
        struct chunkkv_dense dense;
        struct chunkkv_result *result;
        struct chunkkv_client *client;
        struct chunkkv_error error;
        uint32_t rows[500];

        ck_assert_int_eq(chunkkv_connect(&options, &client, &error), 0);
        ck_assert_int_eq(chunkkv_dense_create(client, &shape, &dense, &error), 0);
        ck_assert_uint_eq(dense.memory.size, 2 * 200000 + 100000 + 500 * 2 * 16 * 4);
        for (size_t i = 0; i < dense.memory.size / sizeof(float); i++)
                ((float *)dense.memory.address)[i] = (float)(i * 7919 % 1009) / 1009;
        before = copy_of(&dense.memory);
        ck_assert_int_eq(chunkkv_dense_compress(client, &dense, CHUNKKV_MODE_IN_PLACE, 400, 300000, &result, &error),
                         0);
        ck_assert_uint_eq(result->groups[0].physical_len, 120);
        for (uint32_t layer = 0; layer < 3; layer++) {
                set = chunkkv_set_find(&result->groups[0], layer, 0);
                ck_assert_uint_eq(chunkkv_runs_to_rows(set->runs, set->run_count, rows, 500), 120);
                for (uint32_t i = 0; i < 120; i++) {
                        const uint8_t *now = chunkkv_dense_row(&dense, CHUNKKV_PLANE_V, layer, i);
                        const uint8_t *from = chunkkv_dense_row(&dense, CHUNKKV_PLANE_V, layer, rows[i]);

                        ck_assert_mem_eq(now, before + (from - (uint8_t *)dense.memory.address),
                                         2 * 16 * sizeof(float));
                }
        }
        ck_assert_ptr_null(chunkkv_dense_row(&dense, CHUNKKV_PLANE_K, 0, 500));
        ck_assert_ptr_null(chunkkv_dense_row(&dense, CHUNKKV_PLANE_NONE, 0, 8));
        ck_assert_ptr_null(chunkkv_dense_row(&dense, CHUNKKV_PLANE_K, 3, 0));
        result = chunkkv_result_free(result);
        for (uint32_t asked = 0; asked <= 501; asked += 501) {
                int r = chunkkv_dense_compress(client, &dense, CHUNKKV_MODE_PLAN, asked, 300000, &result, &error);

                ck_assert_int_eq(r, -EINVAL);
                ck_assert_str_eq(error.field, "rows");
        }
        chunkkv_dense_release(client, &dense);
        chunkkv_dense_release(client, &dense);
        shape.query_rows = 257;
        ck_assert_int_eq(chunkkv_dense_create(client, &shape, &dense, &error), -EINVAL);
        ck_assert_str_eq(error.field, "query_rows");
        shape.query_rows = 8;
        shape.layer_stride = UINT64_MAX / 2;
        ck_assert_int_eq(chunkkv_dense_create(client, &shape, &dense, &error), -EOVERFLOW);
        client = chunkkv_close(client);
}
END_TEST

/* Vote is one set for all layers; keys alone need no queries, and who gave none is told of it. */
START_TEST(a_dense_sequence_by_other_methods) {
        const struct chunkkv_options options = { .endpoint = support_daemon.endpoint };
        const struct chunkkv_policy vote = { .profile = CHUNKKV_PROFILE_VOTE };
        const struct chunkkv_policy keydiff = { .scorer = CHUNKKV_SCORER_KEYDIFF, .selector = CHUNKKV_SELECTOR_TOKEN };
        struct chunkkv_shape shape = { .layers = 3, .rows = 200, .kv_heads = 2, .q_heads = 2, .head_dim = 16,
                                       .query_rows = 64, .dtype = CHUNKKV_DTYPE_F32 };
        struct chunkkv_client *client;
        struct chunkkv_dense dense;
        struct chunkkv_error error;
        struct chunkkv_result *result;

        ck_assert_int_eq(chunkkv_connect(&options, &client, &error), 0);
        for (uint32_t i = 0; i < 2; i++) {
                ck_assert_int_eq(chunkkv_dense_create(client, &shape, &dense, &error), 0);
                for (size_t k = 0; k < dense.memory.size / sizeof(float); k++)
                        ((float *)dense.memory.address)[k] = (float)(k * 7919 % 1009) / 1009;
                ck_assert_int_eq(chunkkv_dense_compress_by(client, &dense, i ? &keydiff : &vote, CHUNKKV_MODE_PLAN, 200,
                                                           300000, &result, &error), 0);
                ck_assert_uint_eq(result->groups[0].physical_len, 60);
                ck_assert_uint_eq(result->groups[0].set_count, i ? 3 : 1);
                ck_assert_uint_eq(result->groups[0].policies[0].scorer, i ? keydiff.scorer : CHUNKKV_SCORER_WINDOW);
                result = chunkkv_result_free(result);
                shape.query_rows = 0;
                if (i) {
                        ck_assert_int_eq(chunkkv_dense_compress_by(client, &dense, &vote, CHUNKKV_MODE_PLAN, 200, 300000,
                                                                   &result, &error), -EREMOTEIO);
                        ck_assert_str_eq(error.field, "compress.queries");
                }
                chunkkv_dense_release(client, &dense);
        }
        client = chunkkv_close(client);
}
END_TEST

/* One block would be too long: the blocks are as long as divides the rows, 32769 here and 1 (65537 is prime). */
START_TEST(a_dense_sequence_of_many_blocks) {
        const struct chunkkv_options options = { .endpoint = support_daemon.endpoint };
        const struct { uint32_t rows, asked; } cases[] = { { 65538, 65538 }, { 65537, 65537 }, { 98307, 70000 } };
        struct chunkkv_client *client;
        struct chunkkv_error error;

        ck_assert_int_eq(chunkkv_connect(&options, &client, &error), 0);
        for (size_t i = 0; i < CKV_ARRAY_SIZE(cases); i++) {
                const struct chunkkv_shape shape = {
                        .layers = 1, .rows = cases[i].rows, .kv_heads = 1, .q_heads = 1, .head_dim = 4,
                        .query_rows = 8, .dtype = CHUNKKV_DTYPE_F32,
                };
                struct chunkkv_dense dense;
                struct chunkkv_result *result = NULL;
                struct chunkkv_cursor cursor = { 0 };
                uint32_t first, end, row = 0;
                const struct chunkkv_set *set;
                int r;

                ck_assert_int_eq(chunkkv_dense_create(client, &shape, &dense, &error), 0);
                for (uint32_t k = 0; k < shape.rows; k++) {
                        *(float *)chunkkv_dense_row(&dense, CHUNKKV_PLANE_K, 0, k) = (float)(k * 7919 % 1009) / 1009;
                        *(float *)chunkkv_dense_row(&dense, CHUNKKV_PLANE_V, 0, k) = (float)k;
                }
                for (uint32_t k = 0; k < shape.query_rows; k++)
                        *(float *)chunkkv_dense_row(&dense, CHUNKKV_PLANE_NONE, 0, k) = 1;
                r = chunkkv_dense_compress(client, &dense, CHUNKKV_MODE_IN_PLACE, cases[i].asked, 200000, &result,
                                           &error);
                ck_assert_msg(r == 0, "%s: %s", error.field, error.detail);
                ck_assert_uint_eq(result->groups[0].physical_len, cases[i].asked / 5);
                set = chunkkv_set_find(&result->groups[0], 0, 0);
                while (chunkkv_runs_next(set->runs, set->run_count, &cursor, &first, &end)) {
                        for (; first < end; first++)
                                ck_assert_float_eq(*(float *)chunkkv_dense_row(&dense, CHUNKKV_PLANE_V, 0, row++),
                                                   (float)first);
                }
                ck_assert_uint_eq(row, cases[i].asked / 5);
                result = chunkkv_result_free(result);
                chunkkv_dense_release(client, &dense);
        }
        client = chunkkv_close(client);
}
END_TEST

/* The cache is filled when the job has been submitted already, and the word says when. */
START_TEST(a_job_in_step_with_a_stream) {
        struct chunkkv_timeline wait = { .offset = 8, .value = 3 }, end = { .offset = 16, .value = 4 };
        struct chunkkv_result *result = NULL;
        struct chunkkv_memory words;
        struct chunkkv_error error;
        _Atomic uint64_t *word;
        struct model model;
        uint64_t id;
        float key;
        int r;

        model_open(&model, CHUNKKV_MODE_PLAN);
        wait.region_id = end.region_id = memory_add(&model, 4096, &words);
        word = words.address;
        key = *model_row(model.memory.address, 0, 20);
        *model_row(model.memory.address, 0, 20) = NAN;  /* NONFINITE_SCORE, were it read now */
        ck_assert_int_eq(chunkkv_compress_submit_ordered(model.client, &model.job, &wait, &end, 5000, &id, &error), 0);
        (void)usleep(50000);
        ck_assert_uint_eq(atomic_load(&word[2]), 0);
        *model_row(model.memory.address, 0, 20) = key;
        atomic_store(&word[1], 3);
        ck_assert_int_eq(chunkkv_compress_wait(model.client, id, &result, &error), 0);
        runs_expect(&result->groups[0].sets[0]);
        ck_assert_uint_eq(atomic_load(&word[2]), 4);
        chunkkv_result_free(result);
        wait.value = 4;
        ck_assert_int_eq(chunkkv_compress_submit_ordered(model.client, &model.job, &wait, NULL, 50, &id, &error), 0);
        /* the client's clock and the daemon's run out together: either may be the first to say so */
        r = chunkkv_compress_wait(model.client, id, &result, &error);
        ck_assert(r == -ETIMEDOUT || (r == -EREMOTEIO && error.code == CHUNKKV_CODE_EXPIRED));
        chunkkv_memory_release(&words);
        model_close(&model);
}
END_TEST

int main(void) {
        const TTest *const tests[] = {
                copy_out_leaves_the_source, given_runs_need_no_queries, positions_come_with_the_sets, scores_out_and_in,
                sets_in_a_region_of_the_callers, a_protected_prefix_stays, a_latent_cache, a_dense_sequence,
                a_dense_sequence_of_many_blocks, a_dense_sequence_by_other_methods, a_job_in_step_with_a_stream,
        };

        return support_client_run("client_features", tests, CKV_ARRAY_SIZE(tests));
}
