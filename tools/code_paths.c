/*
 * The daemon sends one entry for each range of shapes.  Entries that follow one
 * another and differ in their queries alone are a row of the table; its head is
 * printed again should other ranges of queries follow.
 */
#include "tools/code_paths.h"

#include "base/macros.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { WIDTH = 12 };                    /* of a column; the last one has none */

static const char *const dtype_words[] = { "none", "f32", "f16", "bf16", "f8_e4m3", "f8_e5m2", "i8", "byte" };

#define WORD(number) ((number) < CKV_ARRAY_SIZE(dtype_words) ? dtype_words[number] : "?")

struct range { char text[32]; };

/* "97+", "25-96", "all" */
static struct range range_of(uint32_t first, uint32_t last) {
        struct range range;

        if (last == UINT32_MAX && first <= 1)
                (void)snprintf(range.text, sizeof(range.text), "all");
        else if (last == UINT32_MAX)
                (void)snprintf(range.text, sizeof(range.text), "%" PRIu32 "+", first);
        else
                (void)snprintf(range.text, sizeof(range.text), "%" PRIu32 "-%" PRIu32, first, last);
        return range;
}

static bool same_row(const struct chunkkv_code_path *a, const struct chunkkv_code_path *b) {
        return a->key_dtype == b->key_dtype && a->query_dtype == b->query_dtype && a->head_dim_first == b->head_dim_first &&
               a->head_dim_last == b->head_dim_last;
}

static size_t row_end(const struct chunkkv_code_path *paths, size_t count, size_t first) {
        size_t end = first;

        while (end < count && same_row(&paths[first], &paths[end]))
                end++;
        return end;
}

static bool same_queries(const struct chunkkv_code_path *a, const struct chunkkv_code_path *b, size_t count) {
        for (size_t i = 0; i < count; i++)
                if (a[i].queries_first != b[i].queries_first || a[i].queries_last != b[i].queries_last)
                        return false;
        return true;
}

static void print_head(const struct chunkkv_code_path *row, size_t count) {
        printf("%-6s %-9s %-9s", "keys", "queries", "head_dim");
        for (size_t i = 0; i < count; i++)
                printf(" %-*s", i + 1 < count ? WIDTH : 0, range_of(row[i].queries_first, row[i].queries_last).text);
        printf("\n");
}

/* "bf16"; of those that no entry names: "others" where an entry does for these keys, "all" else */
static const char *queries_word(const struct chunkkv_code_path *paths, size_t count, const struct chunkkv_code_path *row) {
        if (row->query_dtype)
                return WORD(row->query_dtype);
        for (size_t i = 0; i < count; i++)
                if (paths[i].key_dtype == row->key_dtype && paths[i].query_dtype)
                        return "others";
        return "all";
}

void ckv_code_paths_print(const struct chunkkv_code_path *paths, size_t count) {
        size_t above = 0, above_count = 0;

        if (count > 0)
                printf("code paths, by types, head dimension and, across, queries of one KV head (query heads of its group x window):\n");
        for (size_t first = 0, end; first < count; first = end) {
                end = row_end(paths, count, first);
                if (end - first != above_count || !same_queries(&paths[above], &paths[first], above_count))
                        print_head(&paths[first], end - first);
                above = first;
                above_count = end - first;
                printf("%-6s %-9s %-9s", WORD(paths[first].key_dtype), queries_word(paths, count, &paths[first]),
                       range_of(paths[first].head_dim_first, paths[first].head_dim_last).text);
                for (size_t i = first; i < end; i++)
                        printf(" %-*s", i + 1 < end ? WIDTH : 0, paths[i].path);
                printf("\n");
        }
}

static void range_add(cJSON *to, const char *name, uint32_t first, uint32_t last) {
        cJSON *range = cJSON_AddArrayToObject(to, name);

        (void)cJSON_AddItemToArray(range, cJSON_CreateNumber(first));
        (void)cJSON_AddItemToArray(range, last == UINT32_MAX ? cJSON_CreateNull() : cJSON_CreateNumber(last));
}

void ckv_code_paths_add(cJSON *to, const struct chunkkv_code_path *paths, size_t count) {
        cJSON *list = cJSON_AddArrayToObject(to, "code_paths");

        for (size_t i = 0; i < count; i++) {
                const struct chunkkv_code_path *path = &paths[i];
                cJSON *object = cJSON_CreateObject();

                (void)cJSON_AddItemToArray(list, object);
                (void)cJSON_AddStringToObject(object, "key_dtype", WORD(path->key_dtype));
                if (path->query_dtype)
                        (void)cJSON_AddStringToObject(object, "query_dtype", WORD(path->query_dtype));
                else
                        (void)cJSON_AddNullToObject(object, "query_dtype");
                range_add(object, "head_dim", path->head_dim_first, path->head_dim_last);
                range_add(object, "queries", path->queries_first, path->queries_last);
                (void)cJSON_AddStringToObject(object, "path", path->path);
        }
}
