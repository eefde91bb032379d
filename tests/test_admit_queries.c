/*
 * Window queries: who needs them, where each layer's lie, and that not one
 * byte outside the slice is ever addressed.
 */
#include "base/macros.h"
#include "tests/support_core.h"

#include <check.h>
#include <string.h>

enum {
        ROWS = 100,
        LAYERS = 3,
        Q_HEADS = 4,
        DIMS = 4,
        WINDOW = 32,
        ROW = DIMS * 4,
        HEAD = 40 * ROW,
        LAYER = Q_HEADS * HEAD
};

static struct core core;
static struct core_ask ask;

/* Two groups: layers 0, 1, 2 and 3, 4, 5. */
static void setup(void) {
        core_init(&core, &(struct core_shape){ .groups = 2,
                                               .layers = LAYERS,
                                               .kv_heads = 2,
                                               .q_heads = Q_HEADS,
                                               .dims = DIMS,
                                               .tokens_per_block = 16,
                                               .num_blocks = 16 });
}

static void teardown(void) {
        core_deinit(&core);
}

/* ask_for() - queries of 40 rows in the spare memory, which ends exactly behind the last element */
static void ask_for(uint32_t layers) {
        core_ask(&core, &ask, ROWS);
        ask.body.query_rows = 40;
        ask.body.query_layer_stride = LAYER;
        ask.body.query_head_stride = HEAD;
        ask.body.query_row_stride = ROW;
        ask.body.queries = (struct ckv_record_slice){ .region_id = CORE_READ_ONLY,
                                                      .offset = core.spare_at,
                                                      .size = (uint64_t)layers * LAYER };
        memset(core.memory + core.spare_at, 0, layers * LAYER);
}

#define REFUSED(code, field, detail, ...) \
        do { \
                ask_for(2 * LAYERS); \
                __VA_ARGS__; \
                core_refused(&core, &ask, CKV_CODE_##code, CKV_F_##field, CKV_D_##detail); \
        } while (0)
#define ADMITTED(...) \
        do { \
                ask_for(2 * LAYERS); \
                __VA_ARGS__; \
                ck_assert_int_eq(core_run(&core, &ask)->code, CKV_CODE_OK); \
        } while (0)

START_TEST(forms) {
        ADMITTED(ask.body.query_rows = WINDOW);
        REFUSED(INVALID_ARGUMENT, QUERIES_ROWS, QUERY_ROWS, ask.body.query_rows = WINDOW - 1);
        REFUSED(INVALID_ARGUMENT, QUERIES, NEEDS_QUERIES, ask.body.query_rows = 0);
        REFUSED(OUT_OF_RANGE, QUERIES_ROWS, RANGE, ask.body.query_rows = 257);
        ADMITTED(ask.body.query_ring_start = 39);
        REFUSED(OUT_OF_RANGE, QUERIES_RING_START, AT_MOST, ask.body.query_ring_start = 40);
        REFUSED(INVALID_ARGUMENT, QUERIES_DTYPE, ENUM, ask.body.query_dtype = CKV_DTYPE_NONE);
        REFUSED(INVALID_ARGUMENT, QUERIES_DTYPE, ENUM, ask.body.query_dtype = CKV_DTYPE_F8_E4M3);
        REFUSED(INVALID_ARGUMENT, QUERIES_LAYER_STRIDE, UNALIGNED, ask.body.query_layer_stride += 2);
        REFUSED(INVALID_ARGUMENT, QUERIES_HEAD_STRIDE, UNALIGNED, ask.body.query_head_stride += 1);
        REFUSED(INVALID_ARGUMENT, QUERIES_ROW_STRIDE, UNALIGNED, ask.body.query_row_stride += 3);
        REFUSED(INVALID_ARGUMENT, QUERIES_DATA, UNALIGNED, ask.body.queries.offset += 2);
        REFUSED(INVALID_ARGUMENT, QUERIES, NEEDS_QUERIES, ask.body.has_queries = 0);
        REFUSED(NOT_FOUND, QUERIES_DATA, UNKNOWN_ID, ask.body.queries.region_id = 3);
}
END_TEST

START_TEST(slices_that_end_exactly) {
        ADMITTED();
        REFUSED(OUT_OF_RANGE, QUERIES_DATA, AT_LEAST, ask.body.queries.size--);
        REFUSED(OUT_OF_RANGE, QUERIES_DATA, AT_LEAST, ask.body.query_layer_stride += 4);
        REFUSED(OUT_OF_RANGE, QUERIES_DATA, AT_LEAST, ask.body.query_row_stride += 4; ask.body.query_head_stride += 160;
                ask.body.query_layer_stride += 640);
        REFUSED(OUT_OF_RANGE, QUERIES_DATA, OVERFLOW, ask.body.query_layer_stride = UINT64_MAX - 3);
        REFUSED(INVALID_ARGUMENT, QUERIES_DATA, OVERLAP, ask.body.query_head_stride -= 4);
        REFUSED(INVALID_ARGUMENT, QUERIES_DATA, OVERLAP, ask.body.query_row_stride = 0);
        REFUSED(OUT_OF_RANGE, QUERIES_DATA, OUTSIDE_REGION, ask.body.queries.size = core.bytes - core.spare_at + 1);
        ADMITTED(ask.body.queries.offset = core.bytes - ask.body.queries.size);
}
END_TEST

START_TEST(row_of_the_newest_query) {
        ADMITTED(ask.body.query_last_row = ROWS - 1);
        REFUSED(OUT_OF_RANGE, QUERIES_LAST_ROW, QUERY_PAST_END, ask.body.query_last_row = ROWS);
        ADMITTED(ask.body.query_last_row = WINDOW - 1);
        REFUSED(OUT_OF_RANGE, QUERIES_LAST_ROW, AT_LEAST, ask.body.query_last_row = WINDOW - 2);
        /* groups of different lengths: 0 is the end of each, another row must lie in all that are scored */
        ADMITTED(ask.groups[1].physical_len = 70);
        REFUSED(OUT_OF_RANGE, QUERIES_LAST_ROW, QUERY_PAST_END, ask.groups[1].physical_len = 70;
                ask.body.query_last_row = 70);
        ADMITTED(ask.groups[1].physical_len = 20; ask.body.query_last_row = 70);
}
END_TEST

static const uint8_t *query_of(uint32_t group, uint32_t layer) {
        return core.request->job->groups[group].layers[layer].query;
}

START_TEST(places_of_layers) {
        static const uint32_t listed[] = { 0, 2, 4, 5, 9 }, unsorted[] = { 0, 2, 2, 4 };
        struct ckv_record_status status;

        ask_for(2 * LAYERS);
        ck_assert(core_start(&core, &ask, &status));
        for (uint32_t i = 0; i < 2 * LAYERS; i++)
                ck_assert_ptr_eq(query_of(i / LAYERS, i % LAYERS), core.memory + core.spare_at + i * LAYER);
        core_finish(&core);

        /* listed layers: those in between are not scored */
        ask_for(4);
        ask.query_layers = listed;
        ask.body.query_layer_count = 4;
        core_refused(&core, &ask, CKV_CODE_INVALID_ARGUMENT, CKV_F_QUERIES, CKV_D_QUERY_LAYER_MISSING);
        ask.policies[0].reuse = 2;
        ask.groups[1].keep_ratio = 1000000;
        core_refused(&core, &ask, CKV_CODE_INVALID_ARGUMENT, CKV_F_QUERIES, CKV_D_QUERY_LAYER_MISSING);
        ask.body.group_count = ask.body.policy_count = 1;
        ck_assert(core_start(&core, &ask, &status));
        ck_assert_ptr_eq(query_of(0, 0), core.memory + core.spare_at);
        ck_assert_ptr_null(query_of(0, 1));
        ck_assert_ptr_eq(query_of(0, 2), core.memory + core.spare_at + LAYER);
        core_finish(&core);
        ck_assert_int_eq(core.answer.record.body.result.status.code, CKV_CODE_OK);
        ask.query_layers = unsorted;
        core_refused(&core, &ask, CKV_CODE_INVALID_ARGUMENT, CKV_F_QUERIES_LAYERS, CKV_D_ORDER);
        /* one group alone: without a list, its own layers are counted from 0 */
        ask_for(LAYERS);
        ask.groups[0].group = 1;
        ask.body.group_count = ask.body.policy_count = 1;
        ck_assert(core_start(&core, &ask, &status));
        ck_assert_ptr_eq(query_of(0, 2), core.memory + core.spare_at + 2 * LAYER);
        core_finish(&core);
}
END_TEST

/* Groups that decide without queries do not ask for them. */
START_TEST(not_needed) {
        static const uint32_t given[] = { 0, 40 };

        memset(core.memory + core.spare_at, 0, 2 * LAYERS * ROWS * sizeof(float));
        for (uint32_t i = 0; i < 2; i++) {
                ask_for(2 * LAYERS);
                ask.body.has_queries = 0;
                ask.words[i].given_runs = given;
                ask.groups[i].given_run_count = 2;
                core_refused(&core, &ask, CKV_CODE_INVALID_ARGUMENT, CKV_F_QUERIES, CKV_D_NEEDS_QUERIES);
                ask.groups[1 - i].score_kind = 1;
                ask.groups[1 - i].scores_in = (struct ckv_record_slice){ .region_id = CORE_WRITABLE,
                                                                         .offset = core.spare_at,
                                                                         .size = LAYERS * ROWS * sizeof(float) };
                ck_assert_int_eq(core_run(&core, &ask)->code, CKV_CODE_OK);
        }
        ADMITTED(ask.body.has_queries = 0; ask.groups[0].physical_len = 45; ask.groups[1].physical_len = 0);
        REFUSED(INVALID_ARGUMENT, QUERIES, NEEDS_QUERIES, ask.body.has_queries = 0; ask.groups[0].physical_len = 46;
                ask.groups[1].physical_len = 0);
}
END_TEST

/* 1 / sqrt(d) is the scale of no latent attention, and there is no V to weigh by. */
START_TEST(latent_groups) {
        static struct core latent;

        core_init(&latent, &(struct core_shape){ .groups = 1,
                                                 .layers = 1,
                                                 .kv_heads = 1,
                                                 .q_heads = 8,
                                                 .dims = 8,
                                                 .tokens_per_block = 16,
                                                 .num_blocks = 16,
                                                 .latent = true });
        core_ask(&latent, &ask, ROWS);
        core_refused(&latent, &ask, CKV_CODE_INVALID_ARGUMENT, CKV_F_POLICY_SCALE, CKV_D_LATENT_SCALE);
        ask.policies[0].scale = 0.1;
        ck_assert_int_eq(core_run(&latent, &ask)->code, CKV_CODE_OK);
        ask.body.mode = CKV_MODE_IN_PLACE;
        ck_assert_int_eq(core_run(&latent, &ask)->code, CKV_CODE_OK);
        ask.policies[0].value_weight = CKV_WEIGHT_L1;
        core_refused(&latent, &ask, CKV_CODE_INVALID_ARGUMENT, CKV_F_POLICY_VALUE_WEIGHT, CKV_D_NEEDS_VALUES);
        core_deinit(&latent);
}
END_TEST

int main(void) {
        Suite *suite = suite_create("admit_queries");
        TCase *tcase = tcase_create("queries");
        SRunner *runner = srunner_create(suite);
        int failed;

        suite_add_tcase(suite, tcase);
        tcase_set_timeout(tcase, 60);
        tcase_add_checked_fixture(tcase, setup, teardown);
        tcase_add_test(tcase, forms);
        tcase_add_test(tcase, slices_that_end_exactly);
        tcase_add_test(tcase, row_of_the_newest_query);
        tcase_add_test(tcase, places_of_layers);
        tcase_add_test(tcase, not_needed);
        tcase_add_test(tcase, latent_groups);
        srunner_run_all(runner, CK_NORMAL);
        failed = srunner_ntests_failed(runner);
        srunner_free(runner);
        return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
