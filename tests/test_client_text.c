/*
 * chunkkv_text_chunks(): the vectors that Python's chunkkv.text has too, tokens
 * at the very ends of memory, and what it refuses.  No daemon is needed.
 */
#include "base/macros.h"
#include "clients/c/include/chunkkv.h"

#include <check.h>
#include <cjson/cJSON.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define VECTORS "tests/vectors/text.json"

static const cJSON *member(const cJSON *object, const char *name) {
        const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, name);

        ck_assert_msg(item != NULL, "%s", name);
        return item;
}

static cJSON *vectors_read(void) {
        _cleanup_free_ char *text = calloc(1, 1 << 20);
        FILE *file = fopen(VECTORS, "rb");
        cJSON *vectors;

        ck_assert_ptr_nonnull(text);
        if (!file || fread(text, 1, (1 << 20) - 1, file) == 0)
                ck_abort_msg("%s cannot be read: run the test from the root of the tree", VECTORS);
        (void)fclose(file);
        vectors = cJSON_Parse(text);
        ck_assert_ptr_nonnull(vectors);
        return vectors;
}

static void vector_check(const cJSON *vector) {
        const cJSON *offsets = member(vector, "offsets"), *lengths = member(vector, "lengths");
        const char *name = member(vector, "name")->valuestring, *text = member(vector, "text")->valuestring;
        uint32_t rows = (uint32_t)cJSON_GetArraySize(offsets) - 1, min = (uint32_t)member(vector, "min_rows")->valueint;
        /* memory of exactly the size that is promised, for the address sanitizer to watch */
        _cleanup_free_ uint64_t *places = calloc(rows + 1, sizeof(*places));
        _cleanup_free_ uint32_t *found = calloc(rows / min + 1, sizeof(*found));
        _cleanup_free_ char *bytes = malloc(strlen(text) + (strlen(text) == 0));
        struct chunkkv_error error;
        size_t count;

        ck_assert(places && found && bytes);
        memcpy(bytes, text, strlen(text));
        for (uint32_t i = 0; i <= rows; i++)
                places[i] = (uint64_t)cJSON_GetArrayItem(offsets, (int)i)->valuedouble;
        ck_assert_uint_eq(places[rows], strlen(text));
        ck_assert_int_eq(chunkkv_text_chunks(bytes, places, rows, min, (uint32_t)member(vector, "max_rows")->valueint,
                                             cJSON_IsTrue(member(vector, "wrapped")), found, &count, &error), 0);
        ck_assert_msg(count == (size_t)cJSON_GetArraySize(lengths), "%s: %zu chunks", name, count);
        for (size_t i = 0; i < count; i++)
                ck_assert_msg(found[i] == (uint32_t)cJSON_GetArrayItem(lengths, (int)i)->valueint, "%s: chunk %zu has %u rows",
                              name, i, found[i]);
}

START_TEST(vectors) {
        cJSON *all = vectors_read();
        const cJSON *vector;

        ck_assert_int_gt(cJSON_GetArraySize(all), 290);
        cJSON_ArrayForEach(vector, all)
                vector_check(vector);
        cJSON_Delete(all);
}
END_TEST

START_TEST(defaults) {
        uint64_t offsets[101];
        uint32_t lengths[26];
        size_t count;

        /* a table may begin in the middle of a text: what lies before it is not looked at */
        for (uint32_t i = 0; i <= 100; i++)
                offsets[i] = 3 + i;
        char text[104];
        memset(text, 'a', sizeof(text));
        ck_assert_int_eq(chunkkv_text_chunks(text, offsets, 100, 0, 0, false, lengths, &count, NULL), 0);
        ck_assert_uint_eq(count, 4);
        ck_assert_uint_eq(lengths[0], 32);
        ck_assert_uint_eq(lengths[3], 4);
        ck_assert_int_eq(chunkkv_text_chunks(text, offsets, 100, 20, 0, false, lengths, &count, NULL), 0);
        ck_assert_uint_eq(lengths[0], 40);
        ck_assert_int_eq(chunkkv_text_chunks(text, offsets, 0, 0, 0, false, lengths, &count, NULL), 0);
        ck_assert_uint_eq(count, 0);
}
END_TEST

START_TEST(refusals) {
        const uint64_t offsets[] = { 0, 2, 1 };
        struct chunkkv_error error;
        uint32_t lengths[3] = { 7 };
        size_t count = 9;

        ck_assert_int_eq(chunkkv_text_chunks("ab", offsets, 2, 1, 2, false, lengths, &count, &error), -EINVAL);
        ck_assert_str_eq(error.field, "offsets");
        ck_assert_str_eq(error.detail, "must not descend, entry 2 does");
        ck_assert_int_eq(chunkkv_text_chunks("ab", offsets, 1, 4, 7, false, lengths, &count, &error), -EINVAL);
        ck_assert_str_eq(error.field, "max_rows");
        ck_assert_int_eq(chunkkv_text_chunks("ab", offsets, 1, UINT32_MAX, 0, false, lengths, &count, &error), -EINVAL);
        ck_assert(lengths[0] == 7 && count == 9);
}
END_TEST

int main(void) {
        Suite *suite = suite_create("client_text");
        TCase *test = tcase_create("text");
        SRunner *runner = srunner_create(suite);
        int failed;

        tcase_add_test(test, vectors);
        tcase_add_test(test, defaults);
        tcase_add_test(test, refusals);
        suite_add_tcase(suite, test);
        srunner_run_all(runner, CK_NORMAL);
        failed = srunner_ntests_failed(runner);
        srunner_free(runner);
        return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
