/*
 * The C client's way to ask for other methods, on the worked example of
 * algorithm.md 6.4 (tests/support_client.h): scorers without queries, a set for
 * each KV head, kept mass, log-sum-exp beside the queries, and which set holds
 * for a layer and head.
 */
#include "base/macros.h"
#include "tests/support_client.h"

#include <check.h>
#include <math.h>
#include <string.h>

enum { KEPT_ROWS = 24 };

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

static void refused(struct model *model, uint32_t code, const char *field) {
        struct chunkkv_result *result = NULL;
        struct chunkkv_error error;

        ck_assert_int_ne(chunkkv_compress(model->client, &model->job, 0, &result, &error), 0);
        ck_assert_uint_eq(error.code, code);
        ck_assert_str_eq(error.field, field);
        ck_assert_uint_eq(error.cache, CHUNKKV_CACHE_CLEAN);
}

/* algorithm.md 6.4: knorm 0-9 15-19 30-34 44-47, without queries; with others it says what to do */
START_TEST(keys_alone) {
        static const uint32_t kept[] = { 0, 10, 5, 5, 10, 5, 9, 4 };
        struct chunkkv_result *result;
        struct model model;

        model_open(&model, CHUNKKV_MODE_PLAN);
        model.job.queries = NULL;
        refused(&model, CHUNKKV_CODE_INVALID_ARGUMENT, "compress.queries");
        model.policy.scorer = CHUNKKV_SCORER_KNORM;
        result = ask(&model);
        ck_assert_uint_eq(result->groups[0].sets[0].run_count, CKV_ARRAY_SIZE(kept));
        ck_assert_mem_eq(result->groups[0].sets[0].runs, kept, sizeof(kept));
        ck_assert_uint_eq(result->groups[0].policies[0].scorer, CHUNKKV_SCORER_KNORM);
        result = chunkkv_result_free(result);
        model_close(&model);
}
END_TEST

START_TEST(a_set_for_each_head) {
        _cleanup_free_ void *before = malloc(1 << 20);
        const struct chunkkv_group_result *group;
        struct chunkkv_result *result;
        struct model model;
        uint32_t rows[KEPT_ROWS];

        model_open(&model, CHUNKKV_MODE_IN_PLACE);
        ck_assert(before && model.memory.size <= 1 << 20);
        memcpy(before, model.memory.address, model.memory.size);
        model.policy.heads = CHUNKKV_HEADS_EACH;
        model.policy.selector = CHUNKKV_SELECTOR_TOKEN;
        model.job.mode = CHUNKKV_MODE_PLAN;
        refused(&model, CHUNKKV_CODE_INVALID_ARGUMENT, "compress.groups[0].policies[0].heads");
        model.job.mode = CHUNKKV_MODE_IN_PLACE;
        result = ask(&model);
        group = &result->groups[0];
        ck_assert_uint_eq(group->set_count, MODEL_KV_HEADS);
        for (uint32_t head = 0; head < MODEL_KV_HEADS; head++) {
                const struct chunkkv_set *set = chunkkv_set_find(group, group->sets[0].layer_first, head);

                ck_assert_ptr_nonnull(set);
                ck_assert_uint_eq(set->kv_head, head);
                ck_assert_uint_eq(chunkkv_runs_to_rows(set->runs, set->run_count, rows, KEPT_ROWS), KEPT_ROWS);
                for (uint32_t plane = 0; plane < 2; plane++)
                        for (uint32_t i = 0; i < KEPT_ROWS; i++)
                                ck_assert_mem_eq(model_row(model.memory.address, plane, i) + head * (size_t)MODEL_DIM,
                                                 model_row(before, plane, rows[i]) + head * (size_t)MODEL_DIM,
                                                 MODEL_DIM * sizeof(float));
        }
        ck_assert_ptr_null(chunkkv_set_find(group, group->sets[0].layer_first, MODEL_KV_HEADS));
        result = chunkkv_result_free(result);
        model_close(&model);
}
END_TEST

START_TEST(kept_mass) {
        const float *mass = NULL;
        struct chunkkv_result *result;
        struct model model;

        model_open(&model, CHUNKKV_MODE_PLAN);
        result = ask(&model);
        ck_assert_uint_eq(chunkkv_kept_mass(result, 0, &mass), 0);
        ck_assert_ptr_null(mass);
        result = chunkkv_result_free(result);
        model.job.want_kept_mass = true;
        result = ask(&model);
        ck_assert_uint_eq(chunkkv_kept_mass(result, 0, &mass), 1);
        ck_assert(mass[0] > 0.5F && mass[0] < 1);
        ck_assert_uint_eq(chunkkv_kept_mass(result, 1, &mass), 0);
        result = chunkkv_result_free(result);
        model_close(&model);
}
END_TEST

/* lse_of() - ln of the softmax sum of one query over the rows it sees */
static float lse_of(const struct model *model, uint32_t row, uint32_t head) {
        const float *query = (const float *)model->memory.address + 2 * (size_t)MODEL_PLANE_FLOATS;
        double sum = 0;

        for (uint32_t j = 0; j <= MODEL_ROWS - MODEL_WINDOW + row; j++) {
                const float *key = model_row(model->memory.address, 0, j) +
                                   head / (MODEL_Q_HEADS / MODEL_KV_HEADS) * (size_t)MODEL_DIM;
                double dot = 0;

                for (uint32_t x = 0; x < MODEL_DIM; x++)
                        dot += (double)key[x] *
                               (double)query[model->queries.row_stride / sizeof(float) * row +
                                             model->queries.head_stride / sizeof(float) * head + x];
                sum += exp(dot / sqrt(MODEL_DIM));
        }
        return (float)log(sum);
}

START_TEST(log_sum_exp) {
        static const uint32_t kept[] = { 0, 5, 5, 5, 5, 10, 14, 4 };
        struct chunkkv_region region = { .access = CHUNKKV_ACCESS_READ };
        struct chunkkv_memory memory;
        struct chunkkv_result *result;
        struct chunkkv_error error;
        struct model model;
        uint32_t id;
        float *lse;

        model_open(&model, CHUNKKV_MODE_PLAN);
        ck_assert_int_eq(chunkkv_memory_create("lse", 4096, CHUNKKV_ACCESS_READ_WRITE, &memory, &error), 0);
        region.fd = memory.fd;
        ck_assert_int_eq(chunkkv_region_register(model.client, &region, 0, &id, &error), 0);
        lse = memory.address;
        for (uint32_t head = 0; head < MODEL_Q_HEADS; head++)
                for (uint32_t row = 0; row < MODEL_WINDOW; row++)
                        lse[head * MODEL_WINDOW + row] = lse_of(&model, row, head);
        model.queries.lse = (struct chunkkv_slice){ id, 0, MODEL_Q_HEADS * MODEL_WINDOW * sizeof(float) };
        result = ask(&model);
        ck_assert_uint_eq(result->groups[0].sets[0].run_count, CKV_ARRAY_SIZE(kept));
        ck_assert_mem_eq(result->groups[0].sets[0].runs, kept, sizeof(kept));
        result = chunkkv_result_free(result);
        lse[5] -= 1;
        refused(&model, CHUNKKV_CODE_BAD_LSE, "compress.queries.lse");
        model.queries.lse.size -= 4;
        refused(&model, CHUNKKV_CODE_INVALID_ARGUMENT, "compress.queries.lse");
        chunkkv_memory_release(&memory);
        model_close(&model);
}
END_TEST

/* Layers 2 to 4 have a set for each of two heads, those from 5 on one for all; nothing is known of layers 0 and 1. */
START_TEST(sets_of_layers_and_heads) {
        static const struct chunkkv_set sets[] = {
                { .layer_first = 2, .kv_head = 0 }, { .layer_first = 2, .kv_head = 1 }, { .layer_first = 5 },
                { .layer_first = 9, .kv_head = 0 }, { .layer_first = 9, .kv_head = 1 },
        };
        const struct chunkkv_group_result group = { .sets = sets, .set_count = CKV_ARRAY_SIZE(sets) };

        ck_assert_ptr_null(chunkkv_set_find(&group, 1, 0));
        ck_assert_ptr_eq(chunkkv_set_find(&group, 2, 0), &sets[0]);
        ck_assert_ptr_eq(chunkkv_set_find(&group, 4, 1), &sets[1]);
        ck_assert_ptr_eq(chunkkv_set_find(&group, 5, 0), &sets[2]);
        ck_assert_ptr_eq(chunkkv_set_find(&group, 8, 1), &sets[2]);
        ck_assert_ptr_eq(chunkkv_set_find(&group, 20, 1), &sets[4]);
        ck_assert_ptr_null(chunkkv_set_find(&group, 20, 2));
}
END_TEST

int main(void) {
        const TTest *const tests[] = { keys_alone, a_set_for_each_head, kept_mass, log_sum_exp,
                                       sets_of_layers_and_heads };

        return support_client_run("client_methods", tests, CKV_ARRAY_SIZE(tests));
}
