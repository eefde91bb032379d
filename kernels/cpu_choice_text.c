/*
 * The picks in words, for log and status.  A path is named with what it scores:
 * a class of types alone where it has all of it, else the ranges of head
 * dimensions and of queries of a KV head that are its.
 */
#include "kernels/cpu_choice.h"

#include "base/macros.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

struct text { char *at; size_t left; };

struct picks { struct ckv_cpu_pick items[CKV_CPU_PICKS_MOST]; size_t count; };

static _printf_(2, 3) void put(struct text *text, const char *format, ...) {
        va_list args;
        int n;

        va_start(args, format);
        n = vsnprintf(text->at, text->left, format, args);
        va_end(args);
        if (n > 0) {
                size_t bytes = CKV_MIN((size_t)n, text->left - 1);

                text->at += bytes;
                text->left -= bytes;
        }
}

/* "1-24", "97+" */
static void put_range(struct text *text, const char *before, uint32_t first, uint32_t last) {
        if (last == UINT32_MAX)
                put(text, "%s%" PRIu32 "+", before, first);
        else
                put(text, "%s%" PRIu32 "-%" PRIu32, before, first, last);
}

static bool same_class(const struct ckv_cpu_pick *a, const struct ckv_cpu_pick *b) {
        return a->keys == b->keys && a->queries == b->queries;
}

static bool same_dims(const struct ckv_cpu_pick *a, const struct ckv_cpu_pick *b) {
        return same_class(a, b) && a->dims_first == b->dims_first;
}

/* End of those from @first on that are like it */
static size_t end_of(const struct picks *picks, size_t first, bool (*like)(const struct ckv_cpu_pick *, const struct ckv_cpu_pick *)) {
        size_t end = first;

        while (end < picks->count && like(&picks->items[first], &picks->items[end]))
                end++;
        return end;
}

static size_t count_of(const struct picks *picks, size_t first, size_t end, const char *path) {
        size_t count = 0;

        for (size_t i = first; i < end; i++)
                count += strcmp(picks->items[i].path, path) == 0;
        return count;
}

static const char *class_name(const struct ckv_cpu_pick *pick) {
        if (pick->keys == CKV_DTYPE_BF16)
                return pick->queries ? "bf16" : "bf16 with other queries";
        return pick->keys == CKV_DTYPE_F16 ? "f16" : "f32";
}

/* "head_dim 81-160 with 25-96 or 97+ queries" */
static void put_dims(struct text *text, const struct picks *picks, size_t first, size_t end, const char *path) {
        size_t left = count_of(picks, first, end, path);
        const char *before = "";

        if (picks->items[first].dims_first > 1 || picks->items[first].dims_last < UINT32_MAX) {
                put_range(text, "head_dim ", picks->items[first].dims_first, picks->items[first].dims_last);
                before = left < end - first ? " with " : "";
        }
        if (left == end - first)
                return;
        for (size_t i = first; i < end; i++)
                if (strcmp(picks->items[i].path, path) == 0) {
                        put_range(text, before, picks->items[i].queries_first, picks->items[i].queries_last);
                        before = " or ";
                }
        put(text, " queries");
}

/* "bf16", or "bf16 (...)" where it is not all of the class */
static void put_class(struct text *text, const struct picks *picks, size_t first, size_t end, const char *path) {
        const char *before = " (";

        put(text, "%s", class_name(&picks->items[first]));
        if (count_of(picks, first, end, path) == end - first)
                return;
        for (size_t i = first, next; i < end; i = next) {
                next = end_of(picks, i, same_dims);
                if (count_of(picks, i, next, path) == 0)
                        continue;
                put(text, "%s", before);
                put_dims(text, picks, i, next, path);
                before = ", ";
        }
        put(text, ")");
}

static void put_path(struct text *text, const struct picks *picks, const char *path) {
        const char *before = ": ";

        put(text, "%s", path);
        if (count_of(picks, 0, picks->count, path) == picks->count)
                return;
        for (size_t i = 0, next; i < picks->count; i = next) {
                next = end_of(picks, i, same_class);
                if (count_of(picks, i, next, path) == 0)
                        continue;
                put(text, "%s", before);
                put_class(text, picks, i, next, path);
                before = ", ";
        }
}

/* All paths that are used, the fastest by the table first; each by @put_one, or its name alone if that is NULL */
static void put_paths(const struct ckv_cpu_choice *choice, struct text *text, const char *between,
                      void (*put_one)(struct text *, const struct picks *, const char *)) {
        size_t count;
        const struct ckv_cpu_path *paths = ckv__cpu_choice_paths(choice, &count);
        const char *before = "";
        struct picks picks;

        picks.count = ckv__cpu_choice_picks(choice, picks.items);
        for (size_t i = count; i-- > 0;)
                if (count_of(&picks, 0, picks.count, paths[i].name) > 0) {
                        put(text, "%s", before);
                        if (put_one)
                                put_one(text, &picks, paths[i].name);
                        else
                                put(text, "%s", paths[i].name);
                        before = between;
                }
}

void ckv__cpu_choice_text(const struct ckv_cpu_choice *choice, char *ret_text, size_t size) {
        struct text text = { .at = ret_text, .left = size };

        *ret_text = 0;
        put_paths(choice, &text, "; ", put_path);
}

void ckv__cpu_choice_names(const struct ckv_cpu_choice *choice, char *ret_text, size_t size) {
        struct text text = { .at = ret_text, .left = size };

        *ret_text = 0;
        put_paths(choice, &text, "+", NULL);
}

void ckv__cpu_choice_wrong(const struct ckv_cpu_choice *choice, char *ret_text, size_t size) {
        struct text text = { .at = ret_text, .left = size };
        size_t count;
        const struct ckv_cpu_path *paths = ckv__cpu_choice_paths(choice, &count);

        *ret_text = 0;
        for (size_t i = 0; i < count; i++)
                if (ckv__cpu_choice_is_wrong(choice, i))
                        put(&text, "%s%s", text.at == ret_text ? "" : ", ", paths[i].name);
}
