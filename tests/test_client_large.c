/*
 * Messages that would be too long: tables of a million rows, sets of hundreds
 * of layers.  The client sends and gets them through shared memory by itself;
 * what comes of it is compared with memory and with the long way round.
 */
#include "base/macros.h"
#include "tests/support_client.h"

#include <check.h>
#include <errno.h>
#include <string.h>

/* ---- a long table: one layer of one head with two elements, blocks of 16 rows */

enum { BLOCK = 16, BLOCKS = 65536, ROWS = BLOCK * BLOCKS, ROW_BYTES = 4, PLANE_BYTES = ROWS * ROW_BYTES };

struct long_table {
        struct chunkkv_client *client;
        struct chunkkv_memory memory;   /* K, then V; a row holds its slot and the plane */
        uint32_t region_id, cache_id;
        uint32_t *numbers;              /* [BLOCKS] */
};

static void long_table_open(struct long_table *ret_long) {
        const struct chunkkv_options options = { .endpoint = support_daemon.endpoint };
        const uint32_t layers[1] = { 0 };
        const struct chunkkv_group group = {
                .layers = layers, .layer_count = 1, .kv_heads = 1, .q_heads = 1, .head_dim_k = 2, .head_dim_v = 2,
                .tokens_per_block = BLOCK, .num_blocks = BLOCKS,
        };
        struct chunkkv_plane planes[2];
        struct chunkkv_region region = { .access = CHUNKKV_ACCESS_READ_WRITE };
        struct chunkkv_error error;
        uint32_t *words;

        *ret_long = (struct long_table){ .numbers = calloc(BLOCKS, sizeof(uint32_t)) };
        ck_assert_ptr_nonnull(ret_long->numbers);
        ck_assert_int_eq(chunkkv_connect(&options, &ret_long->client, &error), 0);
        ck_assert_int_eq(chunkkv_memory_create("long", 2 * PLANE_BYTES, CHUNKKV_ACCESS_READ_WRITE, &ret_long->memory,
                                               &error), 0);
        words = ret_long->memory.address;
        for (uint32_t i = 0; i < 2 * ROWS; i++)
                words[i] = i;
        region.fd = ret_long->memory.fd;
        ck_assert_int_eq(chunkkv_region_register(ret_long->client, &region, 0, &ret_long->region_id, &error), 0);
        for (uint32_t i = 0; i < 2; i++)
                planes[i] = (struct chunkkv_plane){
                        .kind = i ? CHUNKKV_PLANE_V : CHUNKKV_PLANE_K, .dtype = CHUNKKV_DTYPE_F16, .layer_count = 1,
                        .region_id = ret_long->region_id, .offset = i * PLANE_BYTES, .block_stride = BLOCK * ROW_BYTES,
                        .token = { .outer = ROW_BYTES }, .dim = { .outer = 2 },
                };
        ck_assert_int_eq(chunkkv_cache_register(ret_long->client, &group, 1, planes, 2, 0, &ret_long->cache_id, NULL,
                                                &error), 0);
}

static void long_table_close(struct long_table *long_table) {
        long_table->client = chunkkv_close(long_table->client);
        chunkkv_memory_release(&long_table->memory);
        free(long_table->numbers);
}

/* Keeps the last 20 rows, in place: the first rows of the table must hold them then. */
static void long_table_move(struct long_table *long_table) {
        const uint32_t keep_last[] = { ROWS - 20, 20 };
        const struct chunkkv_group_job group = {
                .physical_len = ROWS,
                .table = { .form = CHUNKKV_TABLE_BLOCKS, .numbers = long_table->numbers, .count = BLOCKS },
                .given_runs = keep_last, .given_run_count = 2,
        };
        const struct chunkkv_job job = {
                .cache_id = long_table->cache_id, .mode = CHUNKKV_MODE_IN_PLACE, .groups = &group, .group_count = 1,
        };
        const uint32_t *numbers = long_table->numbers, *words = long_table->memory.address;
        struct chunkkv_result *result;
        struct chunkkv_error error;
        int r;

        r = chunkkv_compress(long_table->client, &job, 60000, &result, &error);
        ck_assert_msg(r == 0, "%s: %s", error.field, error.detail);
        ck_assert_uint_eq(result->groups[0].physical_len, 20);
        ck_assert_uint_eq(result->groups[0].table_used, 2);
        result = chunkkv_result_free(result);
        for (uint32_t plane = 0; plane < 2; plane++)
                for (uint32_t row = 0; row < 20; row++) {
                        uint32_t from = ROWS - 20 + row;
                        uint32_t to_slot = numbers[row / BLOCK] * BLOCK + row % BLOCK;
                        uint32_t from_slot = numbers[from / BLOCK] * BLOCK + from % BLOCK;

                        ck_assert_uint_eq(words[plane * ROWS + to_slot], plane * ROWS + from_slot);
                }
}

static uint64_t regions_used(struct chunkkv_client *client) {
        struct chunkkv_budget budgets[CHUNKKV_BUDGETS_MAX];
        size_t count = 0;

        ck_assert_int_eq(chunkkv_budgets(client, 0, budgets, &count, NULL), 0);
        for (size_t i = 0; i < count; i++)
                if (budgets[i].slot == CHUNKKV_SLOT_REGIONS)
                        return budgets[i].used;
        ck_abort_msg("no budget of regions");
}

START_TEST(long_table_in_runs) {
        struct long_table long_table;

        long_table_open(&long_table);
        for (uint32_t i = 0; i < BLOCKS; i++)
                long_table.numbers[i] = (i + BLOCKS / 2) % BLOCKS;
        long_table_move(&long_table);
        /* two runs: nothing had to be put into shared memory */
        ck_assert_uint_eq(regions_used(long_table.client), 1);
        long_table_close(&long_table);
}
END_TEST

START_TEST(long_table_in_a_region) {
        struct long_table long_table;
        uint32_t *words;

        long_table_open(&long_table);
        /* no two neighbours */
        for (uint32_t i = 0; i < BLOCKS; i++)
                long_table.numbers[i] = (uint32_t)((uint64_t)i * 40503 % BLOCKS);
        long_table_move(&long_table);
        ck_assert_uint_eq(regions_used(long_table.client), 2);
        /* the same piece serves the next */
        words = long_table.memory.address;
        for (uint32_t i = 0; i < 2 * ROWS; i++)
                words[i] = i;
        long_table_move(&long_table);
        ck_assert_uint_eq(regions_used(long_table.client), 2);
        long_table_close(&long_table);
}
END_TEST

/* ---- long answers: single rows of many layers */

enum { MANY_LAYERS = 320, MANY_ROWS = 4096 };

struct many_sets {
        struct chunkkv_client *client;
        struct chunkkv_dense dense;
        uint32_t table[1];
        struct chunkkv_policy policy;
        struct chunkkv_queries queries;
        struct chunkkv_group_job group;
        struct chunkkv_job job;
};

static void many_sets_open(struct many_sets *ret_many) {
        const struct chunkkv_options options = { .endpoint = support_daemon.endpoint };
        const struct chunkkv_shape shape = {
                .layers = MANY_LAYERS, .rows = MANY_ROWS, .kv_heads = 1, .q_heads = 1, .head_dim = 4, .query_rows = 1,
                .dtype = CHUNKKV_DTYPE_F32,
        };
        struct chunkkv_error error;
        uint32_t state = 7;
        float *values;
        int r;

        *ret_many = (struct many_sets){ .client = NULL };
        ck_assert_int_eq(chunkkv_connect(&options, &ret_many->client, &error), 0);
        r = chunkkv_dense_create(ret_many->client, &shape, &ret_many->dense, &error);
        ck_assert_msg(r == 0, "%s: %s", error.field, error.detail);
        values = ret_many->dense.memory.address;
        for (uint64_t i = 0; i < ret_many->dense.memory.size / sizeof(float); i++) {
                state = 1664525u * state + 1013904223u;
                values[i] = (float)(state >> 8) / (float)(1 << 24) - 0.5f;
        }
        ret_many->policy = (struct chunkkv_policy){
                .selector = CHUNKKV_SELECTOR_TOKEN, .window = 1, .pool = CHUNKKV_POOL_NONE,
        };
        ret_many->queries = (struct chunkkv_queries){
                .data = { ret_many->dense.region_id, ret_many->dense.shape.query,
                          ret_many->dense.memory.size - ret_many->dense.shape.query },
                .dtype = CHUNKKV_DTYPE_F32, .rows = 1, .layer_stride = ret_many->dense.shape.layer_stride,
                .head_stride = 16, .row_stride = 16,
        };
        ret_many->group = (struct chunkkv_group_job){
                .physical_len = MANY_ROWS,
                .table = { .form = CHUNKKV_TABLE_BLOCKS, .numbers = ret_many->table, .count = 1 },
                .policies = &ret_many->policy, .policy_count = 1, .keep_ratio = 500000,
        };
        ret_many->job = (struct chunkkv_job){
                .cache_id = ret_many->dense.cache_id, .mode = CHUNKKV_MODE_PLAN, .groups = &ret_many->group,
                .group_count = 1, .queries = &ret_many->queries,
        };
}

static void many_sets_close(struct many_sets *many) {
        chunkkv_dense_release(many->client, &many->dense);
        many->client = chunkkv_close(many->client);
}

static struct chunkkv_result *many_sets_ask(struct many_sets *many) {
        struct chunkkv_result *result;
        struct chunkkv_error error;
        int r = chunkkv_compress(many->client, &many->job, 60000, &result, &error);

        ck_assert_msg(r == 0, "%s: %s", error.field, error.detail);
        ck_assert_uint_eq(result->groups[0].physical_len, MANY_ROWS / 2);
        return result;
}

START_TEST(long_answer_is_the_same) {
        struct chunkkv_memory memory;
        struct chunkkv_region region = { .access = CHUNKKV_ACCESS_READ_WRITE };
        struct chunkkv_result *automatic, *rows, *by_hand;
        struct chunkkv_region_set set;
        struct chunkkv_error error;
        struct many_sets many;
        uint32_t region_id, single[MANY_ROWS];
        uint64_t at = 0;

        many_sets_open(&many);
        automatic = many_sets_ask(&many);
        ck_assert_uint_eq(automatic->groups[0].set_count, MANY_LAYERS);
        many.job.reply_form = CHUNKKV_REPLY_ROWS;
        rows = many_sets_ask(&many);
        ck_assert_uint_eq(rows->groups[0].set_count, MANY_LAYERS);

        ck_assert_int_eq(chunkkv_memory_create("sets", 16 << 20, CHUNKKV_ACCESS_READ_WRITE, &memory, &error), 0);
        region.fd = memory.fd;
        ck_assert_int_eq(chunkkv_region_register(many.client, &region, 0, &region_id, &error), 0);
        many.job.reply_form = CHUNKKV_REPLY_IN_REGION;
        many.job.reply_to = (struct chunkkv_slice){ region_id, 0, memory.size };
        by_hand = many_sets_ask(&many);
        ck_assert_uint_eq(by_hand->groups[0].set_count, 0);
        ck_assert_uint_eq(by_hand->groups[0].set_total, MANY_LAYERS);
        for (size_t i = 0; i < MANY_LAYERS; i++) {
                const struct chunkkv_set *one = &automatic->groups[0].sets[i], *other = &rows->groups[0].sets[i];

                ck_assert(chunkkv_region_set_next(memory.address, memory.size, &at, &set));
                ck_assert(set.layer_first == i && one->layer_first == i && other->layer_first == i);
                ck_assert_uint_eq(set.run_count, one->run_count);
                ck_assert_mem_eq(set.runs, one->runs, set.run_count * sizeof(uint32_t));
                ck_assert_uint_eq(chunkkv_runs_to_rows(set.runs, set.run_count, single, MANY_ROWS), MANY_ROWS / 2);
                ck_assert_uint_eq(other->row_count, MANY_ROWS / 2);
                ck_assert_mem_eq(other->rows, single, sizeof(uint32_t) * MANY_ROWS / 2);
        }
        automatic = chunkkv_result_free(automatic);
        rows = chunkkv_result_free(rows);
        by_hand = chunkkv_result_free(by_hand);
        chunkkv_memory_release(&memory);
        many_sets_close(&many);
}
END_TEST

START_TEST(long_answer_with_positions) {
        /* an earlier compression has dropped positions 1000-1099 and 2100-2199 */
        const uint32_t positions[] = { 0, 1000, 100, 1000, 100, MANY_ROWS - 2000 };
        struct chunkkv_result *result;
        struct many_sets many;
        uint32_t rows[MANY_ROWS], places[MANY_ROWS];

        many_sets_open(&many);
        many.group.position_runs = positions;
        many.group.position_run_count = CKV_ARRAY_SIZE(positions);
        many.job.logical_len = MANY_ROWS + 200;
        result = many_sets_ask(&many);
        for (size_t i = 0; i < MANY_LAYERS; i++) {
                const struct chunkkv_set *set = &result->groups[0].sets[i];

                ck_assert_uint_eq(chunkkv_runs_to_rows(set->runs, set->run_count, rows, MANY_ROWS), MANY_ROWS / 2);
                ck_assert_uint_eq(chunkkv_runs_to_rows(set->position_runs, set->position_run_count, places, MANY_ROWS),
                                  MANY_ROWS / 2);
                for (size_t k = 0; k < MANY_ROWS / 2; k++)
                        ck_assert_uint_eq(places[k], rows[k] + CKV_MIN(rows[k] / 1000, 2u) * 100);
        }
        result = chunkkv_result_free(result);
        many_sets_close(&many);
}
END_TEST

START_TEST(what_cannot_shrink_is_refused_here) {
        static uint32_t lengths[300000];
        struct chunkkv_result *result;
        struct chunkkv_error error;
        struct model model;

        model_open(&model, CHUNKKV_MODE_PLAN);
        memset(lengths, 1, sizeof(lengths));
        model.group.chunk_lengths = lengths;
        model.group.chunk_length_count = CKV_ARRAY_SIZE(lengths);
        ck_assert_int_eq(chunkkv_compress(model.client, &model.job, 0, &result, &error), -EMSGSIZE);
        ck_assert_ptr_nonnull(strstr(error.detail, ", the daemon takes 262144: a table can lie in a region, all else"));
        ck_assert_str_eq(error.detail + strlen(error.detail) - 13, "chunk lengths");
        ck_assert_uint_eq(error.cache, CHUNKKV_CACHE_CLEAN);
        model_close(&model);
}
END_TEST

int main(void) {
        const TTest *const tests[] = {
                long_table_in_runs, long_table_in_a_region, long_answer_is_the_same, long_answer_with_positions,
                what_cannot_shrink_is_refused_here,
        };

        return support_client_run("client_large", tests, CKV_ARRAY_SIZE(tests));
}
