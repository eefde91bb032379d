/* See support_client.h.  The numbers come from the generator of algorithm.md 6.4, in its order: K, V, then Q. */
#include "tests/support_client.h"

#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

struct ckv_private support_daemon;
const uint32_t model_table[3] = { 2, 0, 1 };

static const uint32_t layers[1] = { 7 };

void support_daemon_start(void) {
        char why[CKV_PRIVATE_WHY] = "";
        int r = ckv_private_start(20000, &support_daemon, why);

        ck_assert_msg(r == 0, "%s", why);
}

void support_daemon_stop(void) {
        ckv_private_stop(&support_daemon);
}

void support_daemon_again(void) {
        char why[CKV_PRIVATE_WHY] = "";

        ck_assert_int_eq(waitpid(support_daemon.pid, NULL, 0), support_daemon.pid);
        ck_assert_msg(ckv_private_again(&support_daemon, 20000, why) == 0, "%s", why);
}

static int remove_one(const char *path, const struct stat *info, int type, struct FTW *where) {
        (void)info;
        (void)type;
        (void)where;
        return remove(path);
}

int support_client_run(const char *name, const TTest *const *tests, size_t count) {
        char program[4096], directory[] = "/tmp/chunkkv-test-XXXXXX";
        Suite *suite = suite_create(name);
        TCase *cases = tcase_create("with a daemon");
        SRunner *runner;
        int failed;

        if (!ckv_private_program(program, sizeof(program))) {
                puts("skipped: no chunkkvd beside this program");
                return 77;
        }
        if (!mkdtemp(directory) || setenv("TMPDIR", directory, 1) < 0) {
                perror(directory);
                return 1;
        }
        tcase_add_checked_fixture(cases, support_daemon_start, support_daemon_stop);
        tcase_set_timeout(cases, 60);
        for (size_t i = 0; i < count; i++)
                tcase_add_test(cases, tests[i]);
        suite_add_tcase(suite, cases);
        runner = srunner_create(suite);
        srunner_run_all(runner, CK_NORMAL);
        failed = srunner_ntests_failed(runner);
        srunner_free(runner);
        (void)nftw(directory, remove_one, 16, FTW_DEPTH | FTW_PHYS);
        return failed ? 1 : 0;
}

float *model_row(void *base, uint32_t plane, uint32_t row) {
        size_t slot = (size_t)model_table[row / MODEL_BLOCK] * MODEL_BLOCK + row % MODEL_BLOCK;

        return (float *)base + plane * (size_t)MODEL_PLANE_FLOATS + slot * MODEL_ROW_FLOATS;
}

static float next_value(uint32_t *state) {
        *state = (1103515245u * *state + 12345u) & 0x7fffffffu;
        return (float)((int)(*state / 65536 % 31) - 15) / 8.0f;
}

static void memory_fill(void *base) {
        float *queries = (float *)base + 2 * (size_t)MODEL_PLANE_FLOATS;
        uint32_t state = 1;

        /* rows behind the last one hold NaN: nothing may depend on them */
        memset(base, 0xff, 2 * (size_t)MODEL_PLANE_FLOATS * sizeof(float));
        for (uint32_t plane = 0; plane < 2; plane++)
                for (uint32_t head = 0; head < MODEL_KV_HEADS; head++)
                        for (uint32_t row = 0; row < MODEL_ROWS; row++)
                                for (uint32_t x = 0; x < MODEL_DIM; x++)
                                        model_row(base, plane, row)[head * MODEL_DIM + x] = next_value(&state);
        for (uint32_t i = 0; i < MODEL_QUERY_FLOATS; i++)
                queries[i] = next_value(&state);
}

static struct chunkkv_plane plane_of(const struct model *model, uint32_t kind, uint64_t offset) {
        return (struct chunkkv_plane){
                .kind = kind, .dtype = CHUNKKV_DTYPE_F32, .layer_first = layers[0], .layer_count = 1,
                .region_id = model->region_id,
                .offset = offset, .block_stride = (uint64_t)MODEL_BLOCK * MODEL_ROW_FLOATS * sizeof(float),
                .head_stride = MODEL_DIM * sizeof(float), .token = { .outer = MODEL_ROW_FLOATS * sizeof(float) },
                .dim = { .outer = sizeof(float) },
        };
}

static void model_register(struct model *model, struct chunkkv_error *error) {
        const struct chunkkv_group group = {
                .layers = layers, .layer_count = 1, .kv_heads = MODEL_KV_HEADS, .q_heads = MODEL_Q_HEADS,
                .head_dim_k = MODEL_DIM,
                .head_dim_v = MODEL_DIM, .tokens_per_block = MODEL_BLOCK, .num_blocks = MODEL_BLOCKS,
        };
        const struct chunkkv_region region = { .fd = model->memory.fd, .access = CHUNKKV_ACCESS_READ_WRITE };
        struct chunkkv_plane planes[2];
        bool fast;
        int r;

        r = chunkkv_region_register(model->client, &region, 0, &model->region_id, error);
        ck_assert_msg(r == 0, "%s: %s", error->field, error->detail);
        planes[0] = plane_of(model, CHUNKKV_PLANE_K, 0);
        planes[1] = plane_of(model, CHUNKKV_PLANE_V, MODEL_PLANE_FLOATS * sizeof(float));
        r = chunkkv_cache_register(model->client, &group, 1, planes, 2, 0, &model->cache_id, &fast, error);
        ck_assert_msg(r == 0, "%s: %s", error->field, error->detail);
}

static void job_fill(struct model *model, enum chunkkv_mode mode) {
        model->policy = (struct chunkkv_policy){
                .chunk = 5, .window = MODEL_WINDOW, .sinks = { true, 2 }, .recent = { true, 4 }, .min_tokens = { true,
                        0 },
        };
        model->queries = (struct chunkkv_queries){
                .data = { .region_id = model->region_id, .offset = 2 * (uint64_t)MODEL_PLANE_FLOATS * sizeof(float),
                          .size = MODEL_QUERY_FLOATS * sizeof(float) },
                .dtype = CHUNKKV_DTYPE_F32, .rows = MODEL_WINDOW, .row_stride = MODEL_DIM * sizeof(float),
                .head_stride = MODEL_WINDOW * MODEL_DIM * sizeof(float),
                .layer_stride = MODEL_QUERY_FLOATS * sizeof(float),
        };
        model->group = (struct chunkkv_group_job){
                .physical_len = MODEL_ROWS, .table = { .form = CHUNKKV_TABLE_BLOCKS, .numbers = model_table,
                        .count = 3 },
                .policies = &model->policy, .policy_count = 1, .keep_ratio = 500000,
        };
        model->job = (struct chunkkv_job){
                .cache_id = model->cache_id, .mode = mode, .logical_len = 1000, .generation = 4711,
                .groups = &model->group,
                .group_count = 1, .queries = &model->queries,
        };
}

void model_open(struct model *ret_model, enum chunkkv_mode mode) {
        model_open_with(ret_model, mode, (struct chunkkv_options){ .name = "test/1" });
}

void model_open_with(struct model *ret_model, enum chunkkv_mode mode, struct chunkkv_options options) {
        uint64_t size = (2 * (uint64_t)MODEL_PLANE_FLOATS + MODEL_QUERY_FLOATS) * sizeof(float);
        struct chunkkv_error error;
        int r;

        *ret_model = (struct model){ 0 };
        options.endpoint = support_daemon.endpoint;
        r = chunkkv_connect(&options, &ret_model->client, &error);
        ck_assert_msg(r == 0, "%s", error.detail);
        r = chunkkv_memory_create("model", size, CHUNKKV_ACCESS_READ_WRITE, &ret_model->memory, &error);
        ck_assert_msg(r == 0, "%s", error.detail);
        memory_fill(ret_model->memory.address);
        model_register(ret_model, &error);
        job_fill(ret_model, mode);
}

void model_close(struct model *model) {
        model->client = chunkkv_close(model->client);
        chunkkv_memory_release(&model->memory);
}
