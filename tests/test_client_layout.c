/*
 * The C client's arithmetic, without a daemon: addresses of all layouts in
 * tests/vectors/layouts.json, bounds of planes, errors as text, and sets as
 * they lie in memory, well-formed and not.
 */
#include "base/macros.h"
#include "clients/c/include/chunkkv.h"

#include <check.h>
#include <cjson/cJSON.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define VECTORS "tests/vectors/layouts.json"

static char *file_read(const char *path) {
        FILE *file = fopen(path, "rb");
        char *text = calloc(1, 1 << 20);

        ck_assert_ptr_nonnull(text);
        if (!file || fread(text, 1, (1 << 20) - 1, file) == 0)
                ck_abort_msg("%s cannot be read: run the test from the root of the tree", path);
        (void)fclose(file);
        return text;
}

static uint64_t number(const cJSON *object, const char *name) {
        const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, name);

        ck_assert_msg(cJSON_IsNumber(item), "%s", name);
        return (uint64_t)item->valuedouble;
}

static struct chunkkv_axis axis(const cJSON *plane, const char *name) {
        const cJSON *item = cJSON_GetObjectItemCaseSensitive(plane, name);

        return (struct chunkkv_axis){ (uint32_t)number(item, "tile"), number(item, "outer"), number(item, "inner") };
}

static uint32_t kind(const cJSON *plane) {
        const char *name = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(plane, "kind"));

        if (strcmp(name, "K") == 0)
                return CHUNKKV_PLANE_K;
        return strcmp(name, "V") == 0 ? CHUNKKV_PLANE_V : CHUNKKV_PLANE_LATENT;
}

static uint32_t dtype(const cJSON *plane) {
        const char *name = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(plane, "dtype"));

        if (strcmp(name, "F32") == 0)
                return CHUNKKV_DTYPE_F32;
        return strcmp(name, "F16") == 0 ? CHUNKKV_DTYPE_F16 : CHUNKKV_DTYPE_BF16;
}

static struct chunkkv_group group_of(const cJSON *layout) {
        const cJSON *group = cJSON_GetObjectItemCaseSensitive(layout, "group");

        return (struct chunkkv_group){
                .kv_heads = (uint32_t)number(group, "kv_heads"), .q_heads = (uint32_t)number(group, "q_heads"),
                .head_dim_k = (uint32_t)number(group, "head_dim_k"),
                .head_dim_v = (uint32_t)number(group, "head_dim_v"),
                .tokens_per_block = (uint32_t)number(group, "tokens_per_block"),
                .num_blocks = (uint32_t)number(group, "num_blocks"),
        };
}

static struct chunkkv_plane plane_of(const cJSON *plane) {
        return (struct chunkkv_plane){
                .kind = kind(plane), .dtype = dtype(plane), .layer_first = (uint32_t)number(plane, "layer_first"),
                .layer_count = (uint32_t)number(plane, "layer_count"), .offset = number(plane, "offset"),
                .layer_stride = number(plane, "layer_stride"), .block_stride = number(plane, "block_stride"),
                .head_stride = number(plane, "head_stride"), .token = axis(plane, "token"), .dim = axis(plane, "dim"),
        };
}

/* Return: how many examples the layout has. */
static size_t layout_check(const cJSON *layout) {
        const char *name = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(layout, "name"));
        const cJSON *planes = cJSON_GetObjectItemCaseSensitive(layout, "planes"), *example;
        const struct chunkkv_group group = group_of(layout);
        struct chunkkv_error error;
        uint64_t offset, end;
        size_t count = 0;

        cJSON_ArrayForEach(example, cJSON_GetObjectItemCaseSensitive(layout, "examples")) {
                const struct chunkkv_plane plane = plane_of(cJSON_GetArrayItem(planes, (int)number(example, "plane")));

                ck_assert_int_eq(chunkkv_plane_offset(&group, &plane, (uint32_t)number(example, "layer"),
                                                      (uint32_t)number(example, "block"),
                                                      (uint32_t)number(example, "head"),
                                                      (uint32_t)number(example, "token"),
                                                      (uint32_t)number(example, "dim"), &offset, &error), 0);
                ck_assert_msg(offset == number(example, "offset"), "%s: %llu", name, (unsigned long long)offset);
                ck_assert_int_eq(chunkkv_plane_check(&group, &plane, UINT64_MAX, &end, &error), 0);
                ck_assert_uint_lt(offset, end);
                ck_assert_int_eq(chunkkv_plane_check(&group, &plane, end, NULL, &error), 0);
                ck_assert_int_eq(chunkkv_plane_check(&group, &plane, end - 1, NULL, &error), -ERANGE);
                count++;
        }
        return count;
}

START_TEST(engines_addresses) {
        _cleanup_free_ char *text = file_read(VECTORS);
        cJSON *all = cJSON_Parse(text), *layout;
        size_t layouts = 0, examples = 0;

        ck_assert_ptr_nonnull(all);
        cJSON_ArrayForEach(layout, all) {
                examples += layout_check(layout);
                layouts++;
        }
        ck_assert_uint_ge(layouts, 16);
        ck_assert_uint_ge(examples, layouts);
        cJSON_Delete(all);
}
END_TEST

/* 3 blocks of 4 tokens, 2 heads of 8 elements in tiles of 2: row 1 of the second tile lies farthest, not the last */
static const struct chunkkv_group small = {
        .kv_heads = 2, .q_heads = 2, .head_dim_k = 8, .head_dim_v = 3, .tokens_per_block = 3, .num_blocks = 3,
};
static const struct chunkkv_plane tiled = {
        .kind = CHUNKKV_PLANE_K, .dtype = CHUNKKV_DTYPE_F16, .layer_first = 5, .layer_count = 2, .offset = 64,
        .layer_stride = 1000, .block_stride = 300, .head_stride = 100, .token = { .tile = 2, .outer = 16, .inner = 32 },
        .dim = { .outer = 2 },
};

START_TEST(plane_bounds) {
        struct chunkkv_plane plane = tiled;
        struct chunkkv_error error;
        uint64_t offset, end;

        /* layer, 2 blocks, head, token 1 (behind token 2), 7 elements and the last one's size */
        ck_assert_int_eq(chunkkv_plane_check(&small, &tiled, UINT64_MAX, &end, &error), 0);
        ck_assert_uint_eq(end, 64 + 1000 + 2 * 300 + 100 + 32 + 7 * 2 + 2);
        ck_assert_int_eq(chunkkv_plane_offset(&small, &tiled, 6, 2, 1, 1, 7, &offset, &error), 0);
        ck_assert_uint_eq(offset, end - 2);
        plane.kind = CHUNKKV_PLANE_V;
        ck_assert_int_eq(chunkkv_plane_check(&small, &plane, UINT64_MAX, &end, &error), 0);
        ck_assert_uint_eq(end, 64 + 1000 + 2 * 300 + 100 + 32 + 2 * 2 + 2);
        plane.block_stride = UINT64_MAX / 2;
        ck_assert_int_eq(chunkkv_plane_check(&small, &plane, UINT64_MAX, &end, &error), -EOVERFLOW);
        ck_assert_int_eq(chunkkv_plane_offset(&small, &plane, 6, 2, 1, 1, 2, &offset, &error), -EOVERFLOW);
        plane.block_stride = 0;
        plane.dtype = CHUNKKV_DTYPE_NONE;
        ck_assert_int_eq(chunkkv_plane_check(&small, &plane, UINT64_MAX, &end, &error), -EINVAL);
        ck_assert_str_eq(error.field, "dtype");
}
END_TEST

START_TEST(elements_outside) {
        const struct { uint32_t layer, block, head, token, dim; const char *field; } outside[] = {
                { 4, 0, 0, 0, 0, "layer" }, { 7, 0, 0, 0, 0, "layer" }, { 5, 3, 0, 0, 0, "block" },
                { 5, 0, 2, 0, 0, "head" }, { 5, 0, 0, 3, 0, "token" }, { 5, 0, 0, 0, 8, "dim" },
        };
        struct chunkkv_error error;
        uint64_t offset;

        for (size_t i = 0; i < CKV_ARRAY_SIZE(outside); i++) {
                ck_assert_int_eq(chunkkv_plane_offset(&small, &tiled, outside[i].layer, outside[i].block,
                                                      outside[i].head, outside[i].token, outside[i].dim, &offset,
                                                      &error), -EINVAL);
                ck_assert_str_eq(error.field, outside[i].field);
        }
}
END_TEST

START_TEST(errors_as_text) {
        struct chunkkv_error error = {
                .error = -EREMOTEIO, .code = CHUNKKV_CODE_OUT_OF_RANGE, .cache = CHUNKKV_CACHE_CLEAN,
                .field = "compress.mode", .detail = "is 9",
        };
        char text[CHUNKKV_ERROR_TEXT];
        size_t n;

        n = chunkkv_error_format(&error, text, sizeof(text));
        ck_assert_str_eq(text, "OUT_OF_RANGE, compress.mode: is 9; the cache is CLEAN");
        ck_assert_uint_eq(n, strlen(text));
        error = (struct chunkkv_error){ .error = -EOWNERDEAD, .cache = CHUNKKV_CACHE_TORN };
        (void)chunkkv_error_format(&error, text, sizeof(text));
        ck_assert_str_eq(text, "EOWNERDEAD; the cache is TORN");
        /* the longest there can be */
        error = (struct chunkkv_error){ .error = -EREMOTEIO, .code = CHUNKKV_CODE_BUDGET_BELOW_PROTECTED,
                                        .cache = CHUNKKV_CACHE_TORN_REPAIRABLE };
        memset(error.field, 'f', sizeof(error.field) - 1);
        memset(error.detail, 'd', sizeof(error.detail) - 1);
        ck_assert_uint_lt(chunkkv_error_format(&error, text, sizeof(text)), sizeof(text));
        ck_assert_uint_ge(chunkkv_error_format(&error, text, 10), 10);
        ck_assert_str_eq(text, "BUDGET_BE");
        ck_assert_str_eq(chunkkv_cache_state_to_string(5), "?");
}
END_TEST

START_TEST(sets_in_memory) {
        /* two sets: rows 0-3 and 6-7 of 8, then rows 2-4 */
        const uint32_t good[] = { 0, 3, 0, 8, 6, 4, 0, 4, 2, 2, 1, 4, 1, 8, 3, 2, 2, 3 };
        uint32_t words[CKV_ARRAY_SIZE(good)];
        struct chunkkv_region_set set;
        uint64_t at = 0;

        ck_assert(chunkkv_region_set_next(good, sizeof(good), &at, &set));
        ck_assert(set.group == 0 && set.layer_first == 3 && set.kv_head == 0 && set.physical_len == 6);
        ck_assert_uint_eq(set.run_count, 4);
        ck_assert_ptr_eq(set.runs, good + 6);
        ck_assert(chunkkv_region_set_next(good, sizeof(good), &at, &set));
        ck_assert(set.group == 1 && set.layer_first == 4 && set.kv_head == 1 && set.physical_before == 8);
        ck_assert(!chunkkv_region_set_next(good, sizeof(good), &at, &set));
        ck_assert_uint_eq(at, sizeof(good));
        /* each word that can be wrong by itself: length kept, run count, a run too long, a run of none */
        for (size_t i = 0; i < 4; i++) {
                const struct { size_t word; uint32_t value; } bad[] = { { 4, 5 }, { 5, 13 }, { 9, 3 }, { 8, 0 } };

                memcpy(words, good, sizeof(words));
                words[bad[i].word] = bad[i].value;
                at = 0;
                ck_assert_msg(!chunkkv_region_set_next(words, sizeof(words), &at, &set), "case %zu", i);
        }
        for (uint64_t size = 0; size < 10 * sizeof(uint32_t); size++) {
                at = 0;
                ck_assert(!chunkkv_region_set_next(good, size, &at, &set));
        }
        at = sizeof(good) + 4;
        ck_assert(!chunkkv_region_set_next(good, sizeof(good), &at, &set));
}
END_TEST

START_TEST(runs_to_rows) {
        const uint32_t runs[] = { 1, 2, 3, 1 };
        uint32_t rows[3] = { 0 };

        ck_assert_uint_eq(chunkkv_runs_to_rows(runs, 4, rows, 3), 3);
        ck_assert(rows[0] == 1 && rows[1] == 2 && rows[2] == 6);
        rows[1] = 99;
        ck_assert_uint_eq(chunkkv_runs_to_rows(runs, 4, rows, 1), 3);
        ck_assert_uint_eq(rows[1], 99);
        ck_assert_uint_eq(chunkkv_runs_to_rows(NULL, 0, NULL, 0), 0);
}
END_TEST

int main(void) {
        const TTest *const tests[] = {
                engines_addresses, plane_bounds, elements_outside, errors_as_text, sets_in_memory, runs_to_rows,
        };
        Suite *suite = suite_create("client_layout");
        TCase *cases = tcase_create("without a daemon");
        SRunner *runner;
        int failed;

        for (size_t i = 0; i < CKV_ARRAY_SIZE(tests); i++)
                tcase_add_test(cases, tests[i]);
        suite_add_tcase(suite, cases);
        runner = srunner_create(suite);
        srunner_run_all(runner, CK_NORMAL);
        failed = srunner_ntests_failed(runner);
        srunner_free(runner);
        return failed ? 1 : 0;
}
