/*
 * Which path scores what.  All shapes are divided into classes by types of keys
 * and queries, into three by dimensions and into three by queries of a KV head;
 * each cell of that table has a trial, and its paths in order of their time.
 *
 * Every path must first be right: one that is wrong in any class is never used
 * again, whatever its time.  Then all of a cell's paths take turns, three times,
 * and the best time of each counts.  Rows that are not bfloat16 are tried at 128
 * dimensions alone: there, paths differ in the width of their vectors, which
 * matters the same for all.
 *
 * A path's window kernel does not take every shape.  What it refuses goes to the
 * next in the order that takes it, and to the first one's general kernel if
 * none does.
 */
#include "kernels/cpu_choice.h"

#include "base/error.h"
#include "base/macros.h"
#include "kernels/cpu_trial.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum {
        PATHS_MAX = 8,
        CLASSES = 4, WIDTHS = 3, BUCKETS = 3,
        ROUNDS = 3,
        TRIAL_BYTES = 65536,            /* of keys: a segment's worth, more than the first cache */
        CHECKED_ROWS = 250,             /* not whole tiles of anything */
};

static const struct {
        const char *name;
        enum ckv_dtype keys;
        bool exact;                     /* queries are of the same type */
        uint32_t widths;                /* that have trials of their own */
} classes[CLASSES] = {
        { "bf16", CKV_DTYPE_BF16, true, WIDTHS }, { "bf16 with other queries", CKV_DTYPE_BF16, false, 1 },
        { "f16", CKV_DTYPE_F16, false, 1 }, { "f32", CKV_DTYPE_F32, false, 1 },
};

/* Where dimensions and queries are tried, and up to where that counts */
static const struct { uint32_t tried, most; } widths[WIDTHS] = { { 128, 160 }, { 64, 80 }, { 256, UINT32_MAX } };
static const struct { uint32_t tried, most; } buckets[BUCKETS] = { { 16, 24 }, { 64, 96 }, { 128, UINT32_MAX } };

struct cell {
        uint8_t order[PATHS_MAX];       /* indices of paths, best first */
        uint32_t count;                 /* at least 1 */
};

struct ckv_cpu_choice {
        const struct ckv_cpu_path *paths;
        size_t count;
        bool usable[PATHS_MAX], wrong[PATHS_MAX];
        struct cell cells[CLASSES][WIDTHS][BUCKETS];
};

static uint32_t class_of(enum ckv_dtype keys, enum ckv_dtype queries, uint32_t query_count) {
        if (keys == CKV_DTYPE_BF16)
                return query_count > 0 && queries == CKV_DTYPE_BF16 ? 0 : 1;
        return keys == CKV_DTYPE_F16 ? 2 : 3;
}

static uint32_t width_of(uint32_t dims) {
        return dims <= widths[1].most ? 1 : dims <= widths[0].most ? 0 : 2;
}

static uint32_t bucket_of(uint32_t query_count) {
        if (query_count == 0)
                return BUCKETS - 1;
        return query_count <= buckets[0].most ? 0 : query_count <= buckets[1].most ? 1 : 2;
}

const struct ckv_cpu_path *ckv__cpu_choice_path(const struct ckv_cpu_choice *choice, enum ckv_dtype keys, enum ckv_dtype queries,
                                                uint32_t dims, uint32_t query_count) {
        const struct cell *cell = &choice->cells[class_of(keys, queries, query_count)][width_of(dims)][bucket_of(query_count)];

        for (uint32_t i = 0; i < cell->count && query_count > 0; i++) {
                const struct ckv_cpu_path *path = &choice->paths[cell->order[i]];

                if (path->window && path->window->takes(keys, queries, dims))
                        return path;
        }
        return &choice->paths[cell->order[0]];
}

/* ---- trials */

static struct ckv_cpu_trial *trial_new(uint32_t class, uint32_t width, uint32_t bucket, bool check) {
        uint32_t dims = widths[width].tried, rows = TRIAL_BYTES / (dims * ckv_dtype_bytes(classes[class].keys));
        const struct ckv_cpu_trial_shape shape = {
                .keys = classes[class].keys, .exact_queries = classes[class].exact, .dims = dims,
                .rows = check ? CKV_MIN(rows, (uint32_t)CHECKED_ROWS) - 6 : rows, .query_count = buckets[bucket].tried,
                .window = buckets[bucket].tried / 4,
        };

        return ckv__cpu_trial_new(&shape);
}

static bool may_try(const struct ckv_cpu_choice *choice, size_t i, const struct ckv_cpu_trial *trial) {
        return choice->usable[i] && !choice->wrong[i] && ckv__cpu_trial_takes(trial, choice->paths[i].window);
}

static int check_class(struct ckv_cpu_choice *choice, uint32_t class, uint32_t width) {
        struct ckv_cpu_trial *trial = trial_new(class, width, 0, true);
        int r = 0;

        if (!trial)
                return ckv_error_origin(-ENOMEM);
        for (size_t i = 0; r == 0 && i < choice->count; i++) {
                bool right = true;

                if (may_try(choice, i, trial))
                        r = ckv__cpu_trial_right(trial, choice->paths[i].window, &right);
                choice->wrong[i] = choice->wrong[i] || !right;
        }
        (void)ckv__cpu_trial_free(trial);
        return r < 0 ? ckv_error_origin(r) : 0;
}

static size_t windows(const struct ckv_cpu_choice *choice) {
        size_t count = 0;

        for (size_t i = 0; i < choice->count; i++)
                count += choice->usable[i] && choice->paths[i].window;
        return count;
}

static int check_paths(struct ckv_cpu_choice *choice) {
        int r = 0;

        for (uint32_t class = 0; r == 0 && windows(choice) > 0 && class < CLASSES; class++)
                for (uint32_t width = 0; r == 0 && width < classes[class].widths; width++)
                        r = check_class(choice, class, width);
        return r;
}

/* Best time of each path; UINT64_MAX for those that cannot */
static int time_paths(struct ckv_cpu_choice *choice, uint32_t class, uint32_t width, uint32_t bucket, uint64_t ret_nsec[PATHS_MAX]) {
        struct ckv_cpu_trial *trial = trial_new(class, width, bucket, false);
        double expected = 0;
        int r = 0;

        if (!trial)
                return ckv_error_origin(-ENOMEM);
        for (size_t i = 0; i < PATHS_MAX; i++)
                ret_nsec[i] = UINT64_MAX;
        for (uint32_t round = 0; round < ROUNDS; round++)
                for (size_t i = 0; r == 0 && i < choice->count; i++) {
                        uint64_t nsec = UINT64_MAX;
                        double total = 0;

                        if (!may_try(choice, i, trial))
                                continue;
                        r = ckv__cpu_trial_nsec(trial, choice->paths[i].window, &nsec, &total);
                        if (r < 0)
                                break;
                        expected = expected > 0 ? expected : total;
                        if (total > expected * 0.9999 && total < expected * 1.0001)
                                ret_nsec[i] = CKV_MIN(ret_nsec[i], nsec);
                        else
                                choice->wrong[i] = true;
                }
        (void)ckv__cpu_trial_free(trial);
        return r < 0 ? ckv_error_origin(r) : 0;
}

/* Best first, and behind those that were timed the rest, from the last in the table down: they may take what the others refuse */
static struct cell cell_of(const struct ckv_cpu_choice *choice, const uint64_t nsec[PATHS_MAX]) {
        struct cell cell = { 0 };
        bool placed[PATHS_MAX] = { false };

        for (;;) {
                size_t best = PATHS_MAX;

                for (size_t i = choice->count; i-- > 0;)
                        if (choice->usable[i] && !choice->wrong[i] && !placed[i] && (best == PATHS_MAX || nsec[i] < nsec[best]))
                                best = i;
                if (best == PATHS_MAX)
                        return cell;
                placed[best] = true;
                cell.order[cell.count++] = (uint8_t)best;
        }
}

static int measure(struct ckv_cpu_choice *choice) {
        static const uint64_t none[PATHS_MAX] = { 0 };
        uint64_t nsec[CLASSES][WIDTHS][BUCKETS][PATHS_MAX];
        int r = 0;

        for (uint32_t class = 0; r == 0 && class < CLASSES; class++)
                for (uint32_t width = 0; r == 0 && width < WIDTHS; width++)
                        for (uint32_t bucket = 0; r == 0 && bucket < BUCKETS; bucket++) {
                                uint64_t *to = nsec[class][width][bucket];

                                if (windows(choice) == 0)
                                        memcpy(to, none, sizeof(none));
                                else if (width >= classes[class].widths)
                                        memcpy(to, nsec[class][0][bucket], sizeof(none));
                                else
                                        r = time_paths(choice, class, width, bucket, to);
                        }
        /* only now is it known who is wrong */
        for (uint32_t n = 0; r == 0 && n < CLASSES * WIDTHS * BUCKETS; n++)
                choice->cells[n / (WIDTHS * BUCKETS)][n / BUCKETS % WIDTHS][n % BUCKETS] =
                        cell_of(choice, nsec[n / (WIDTHS * BUCKETS)][n / BUCKETS % WIDTHS][n % BUCKETS]);
        return r;
}

/* The one that was asked for, then those before it in the table */
static void force(struct ckv_cpu_choice *choice, size_t forced) {
        struct cell cell = { 0 };

        for (size_t i = forced + 1; i-- > 0;)
                if (choice->usable[i] && !choice->wrong[i])
                        cell.order[cell.count++] = (uint8_t)i;
        for (uint32_t n = 0; n < CLASSES * WIDTHS * BUCKETS; n++)
                choice->cells[n / (WIDTHS * BUCKETS)][n / BUCKETS % WIDTHS][n % BUCKETS] = cell;
}

int ckv__cpu_choice_of(const struct ckv_cpu_path *paths, size_t count, const char *forced, struct ckv_cpu_choice **ret_choice) {
        struct ckv_cpu_choice *choice = calloc(1, sizeof(*choice));
        size_t n = count;
        int r = 0;

        assert(count > 0 && count <= PATHS_MAX);
        if (!choice)
                return ckv_error_origin(-ENOMEM);
        choice->paths = paths;
        choice->count = count;
        for (size_t i = 0; i < count; i++) {
                choice->usable[i] = paths[i].usable();
                if (forced && strcmp(paths[i].name, forced) == 0 && choice->usable[i])
                        n = i;
        }
        if (forced && n == count)
                r = ckv_error_origin(-EOPNOTSUPP);
        else
                r = check_paths(choice);
        if (r == 0 && !forced)
                r = measure(choice);
        else if (r == 0 && choice->wrong[n])
                r = ckv_error_origin(-EIO);
        else if (r == 0)
                force(choice, n);
        if (r < 0) {
                free(choice);
                return r;
        }
        *ret_choice = choice;
        return 0;
}

int ckv__cpu_choice_new(const char *forced, struct ckv_cpu_choice **ret_choice) {
        size_t count;
        const struct ckv_cpu_path *paths = ckv__cpu_paths(&count);

        return ckv_error_trace(ckv__cpu_choice_of(paths, count, forced, ret_choice));
}

struct ckv_cpu_choice *ckv__cpu_choice_free(struct ckv_cpu_choice *choice) {
        free(choice);
        return NULL;
}

/* ---- text */

struct text { char *at; size_t left; };

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

static bool picked(const struct ckv_cpu_choice *choice, size_t path, uint32_t class, uint32_t width, uint32_t bucket) {
        return choice->cells[class][width][bucket].order[0] == path;
}

/* Cells of a class in which the path is the pick; the last two widths are those of the first where they have no trials */
static uint32_t picked_cells(const struct ckv_cpu_choice *choice, size_t path, uint32_t class) {
        uint32_t cells = 0;

        for (uint32_t n = 0; n < classes[class].widths * BUCKETS; n++)
                cells += picked(choice, path, class, n / BUCKETS, n % BUCKETS);
        return cells;
}

/* "bf16", or "bf16 128 x 16" for head dimension and queries where it is not all of the class */
static void put_class(struct text *text, const struct ckv_cpu_choice *choice, size_t path, uint32_t class, const char *before) {
        uint32_t cells = picked_cells(choice, path, class);

        if (cells == 0)
                return;
        put(text, "%s%s", before, classes[class].name);
        for (uint32_t n = 0; n < classes[class].widths * BUCKETS && cells < classes[class].widths * BUCKETS; n++)
                if (picked(choice, path, class, n / BUCKETS, n % BUCKETS))
                        put(text, " %ux%u", widths[n / BUCKETS].tried, buckets[n % BUCKETS].tried);
}

void ckv__cpu_choice_text(const struct ckv_cpu_choice *choice, char *ret_text, size_t size) {
        struct text text = { .at = ret_text, .left = size };

        *ret_text = 0;
        for (size_t i = choice->count; i-- > 0;) {
                const char *before = "";
                uint32_t cells = 0, all = 0;

                for (uint32_t class = 0; class < CLASSES; class++) {
                        cells += picked_cells(choice, i, class);
                        all += classes[class].widths * BUCKETS;
                }
                if (cells == 0)
                        continue;
                put(&text, "%s%s", text.at == ret_text ? "" : "; ", choice->paths[i].name);
                for (uint32_t class = 0; class < CLASSES && cells < all; class++) {
                        put_class(&text, choice, i, class, *before ? before : ": ");
                        before = picked_cells(choice, i, class) || *before ? ", " : "";
                }
        }
}

void ckv__cpu_choice_names(const struct ckv_cpu_choice *choice, char *ret_text, size_t size) {
        struct text text = { .at = ret_text, .left = size };

        *ret_text = 0;
        for (size_t i = choice->count; i-- > 0;) {
                uint32_t cells = 0;

                for (uint32_t class = 0; class < CLASSES; class++)
                        cells += picked_cells(choice, i, class);
                if (cells > 0)
                        put(&text, "%s%s", text.at == ret_text ? "" : "+", choice->paths[i].name);
        }
}

void ckv__cpu_choice_wrong(const struct ckv_cpu_choice *choice, char *ret_text, size_t size) {
        struct text text = { .at = ret_text, .left = size };

        *ret_text = 0;
        for (size_t i = 0; i < choice->count; i++)
                if (choice->wrong[i])
                        put(&text, "%s%s", text.at == ret_text ? "" : ", ", choice->paths[i].name);
}
