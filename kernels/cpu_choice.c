/*
 * Which path scores what.  All shapes are divided into classes by types of keys
 * and queries, into three by dimensions and into three by queries of a KV head;
 * each cell of that table has a trial, and its paths in order of their time.
 *
 * Every path must first be right: one that is wrong in any class is never used
 * again, whatever its time.  Then all paths take turns at all trials
 * (cpu_contest.c), and the best time of each counts.
 *
 * Paths that are as good as equally fast are not told apart by chance: the later
 * one in the table has the place, so that the next start picks it again.
 *
 * A path's window kernel does not take every shape.  What it refuses goes to the
 * next in the order that takes it, and to the first one's general kernel if
 * none does.
 */
#include "kernels/cpu_choice.h"

#include "base/error.h"
#include "base/macros.h"
#include "kernels/cpu_contest.h"

#include <errno.h>
#include <string.h>

enum {
        PATHS_MAX = CKV_CPU_ENTRANTS_MOST,
        CLASSES = 4, WIDTHS = 3, BUCKETS = 3, CELLS = CLASSES * WIDTHS * BUCKETS,
        TIE_PERCENT = 2,
        TRIAL_BYTES = 65536,            /* of keys: a segment's worth, more than the first cache */
        CHECKED_ROWS = 250,             /* not whole tiles of anything */
};

static const struct {
        enum ckv_dtype keys;
        bool exact;                     /* queries are of the same type */
} classes[CLASSES] = {
        { CKV_DTYPE_BF16, true }, { CKV_DTYPE_BF16, false }, { CKV_DTYPE_F16, false }, { CKV_DTYPE_F32, false },
};

/* Where dimensions and queries are tried, and up to where that counts */
static const struct { uint32_t tried, most; } widths[WIDTHS] = { { 64, 80 }, { 128, 160 }, { 256, UINT32_MAX } };
static const struct { uint32_t tried, most; } buckets[BUCKETS] = { { 16, 24 }, { 64, 96 }, { 128, UINT32_MAX } };

static_assert((int)CELLS == (int)CKV_CPU_PICKS_MOST, "each cell has a pick");

struct cell {
        uint8_t order[PATHS_MAX];       /* indices of paths, best first */
        uint32_t count;                 /* at least 1 */
};

struct ckv_cpu_choice {
        const struct ckv_cpu_path *paths;
        size_t count;
        bool usable[PATHS_MAX], wrong[PATHS_MAX];
        struct cell cells[CELLS];
};

static uint32_t cell_number(uint32_t class, uint32_t width, uint32_t bucket) {
        return (class * WIDTHS + width) * BUCKETS + bucket;
}

static uint32_t class_of(enum ckv_dtype keys, enum ckv_dtype queries, uint32_t query_count) {
        if (keys == CKV_DTYPE_BF16)
                return query_count > 0 && queries == CKV_DTYPE_BF16 ? 0 : 1;
        return keys == CKV_DTYPE_F16 ? 2 : 3;
}

static uint32_t width_of(uint32_t dims) {
        return dims <= widths[0].most ? 0 : dims <= widths[1].most ? 1 : 2;
}

static uint32_t bucket_of(uint32_t query_count) {
        if (query_count == 0)
                return BUCKETS - 1;
        return query_count <= buckets[0].most ? 0 : query_count <= buckets[1].most ? 1 : 2;
}

const struct ckv_cpu_path *ckv__cpu_choice_path(const struct ckv_cpu_choice *choice, enum ckv_dtype keys, enum ckv_dtype queries,
                                                uint32_t dims, uint32_t query_count) {
        const struct cell *cell =
                &choice->cells[cell_number(class_of(keys, queries, query_count), width_of(dims), bucket_of(query_count))];

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
                for (uint32_t width = 0; r == 0 && width < WIDTHS; width++)
                        r = check_class(choice, class, width);
        return r;
}

/* Best first, and behind those that were timed the rest, from the last in the table down: they may take what the others refuse */
static struct cell cell_of(const struct ckv_cpu_choice *choice, const struct ckv_cpu_contest *contest) {
        struct cell cell = { 0 };
        bool left[PATHS_MAX] = { false };
        uint64_t nsec[PATHS_MAX] = { 0 };

        for (size_t i = 0; i < choice->count; i++) {
                left[i] = choice->usable[i] && !choice->wrong[i];
                nsec[i] = ckv__cpu_contest_best(contest, i);
        }
        for (;;) {
                uint64_t least = UINT64_MAX;
                size_t i;

                for (i = 0; i < choice->count; i++)
                        if (left[i])
                                least = CKV_MIN(least, nsec[i]);
                for (i = choice->count; i-- > 0;)
                        if (left[i] && nsec[i] - least <= least / 100 * TIE_PERCENT)
                                break;
                if (i >= choice->count)
                        return cell;
                left[i] = false;
                cell.order[cell.count++] = (uint8_t)i;
        }
}

static int measure_all(struct ckv_cpu_choice *choice, struct ckv_cpu_contest contests[CELLS]) {
        const struct ckv_cpu_window_kernel *kernels[PATHS_MAX] = { NULL };
        int r = 0;

        for (size_t i = 0; i < choice->count; i++)
                kernels[i] = choice->usable[i] ? choice->paths[i].window : NULL;
        for (uint32_t n = 0; n < CELLS; n++) {
                contests[n].trial = trial_new(n / (WIDTHS * BUCKETS), n / BUCKETS % WIDTHS, n % BUCKETS, false);
                if (!contests[n].trial)
                        r = ckv_error_origin(-ENOMEM);
        }
        if (r == 0)
                r = ckv_error_trace(ckv__cpu_contests_run(contests, CELLS, kernels, choice->count, choice->wrong));
        for (uint32_t n = 0; n < CELLS; n++)
                contests[n].trial = ckv__cpu_trial_free(contests[n].trial);
        return r;
}

static int measure(struct ckv_cpu_choice *choice) {
        _cleanup_free_ struct ckv_cpu_contest *contests = calloc(CELLS, sizeof(*contests));
        int r = 0;

        if (!contests)
                return ckv_error_origin(-ENOMEM);
        if (windows(choice) > 0)
                r = measure_all(choice, contests);
        /* only now is it known who is wrong */
        for (uint32_t n = 0; r == 0 && n < CELLS; n++)
                choice->cells[n] = cell_of(choice, &contests[n]);
        return r;
}

/* The one that was asked for, then those before it in the table */
static void force(struct ckv_cpu_choice *choice, size_t forced) {
        struct cell cell = { 0 };

        for (size_t i = forced + 1; i-- > 0;)
                if (choice->usable[i] && !choice->wrong[i])
                        cell.order[cell.count++] = (uint8_t)i;
        for (uint32_t n = 0; n < CELLS; n++)
                choice->cells[n] = cell;
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

/* ---- what was chosen */

const struct ckv_cpu_path *ckv__cpu_choice_paths(const struct ckv_cpu_choice *choice, size_t *ret_count) {
        *ret_count = choice->count;
        return choice->paths;
}

bool ckv__cpu_choice_is_wrong(const struct ckv_cpu_choice *choice, size_t path) {
        return choice->wrong[path];
}

static struct ckv_cpu_pick pick_of(const struct ckv_cpu_choice *choice, uint32_t class, uint32_t width, uint32_t bucket) {
        enum ckv_dtype keys = classes[class].keys, queries = classes[class].exact ? keys : CKV_DTYPE_NONE;

        return (struct ckv_cpu_pick){
                .path = ckv__cpu_choice_path(choice, keys, queries ? queries : CKV_DTYPE_F32, widths[width].tried, buckets[bucket].tried)->name,
                .keys = keys, .queries = queries,
                .dims_first = width > 0 ? widths[width - 1].most + 1 : 1, .dims_last = widths[width].most,
                .queries_first = bucket > 0 ? buckets[bucket - 1].most + 1 : 1, .queries_last = buckets[bucket].most,
        };
}

size_t ckv__cpu_choice_picks(const struct ckv_cpu_choice *choice, struct ckv_cpu_pick ret_picks[CKV_CPU_PICKS_MOST]) {
        for (uint32_t n = 0; n < CELLS; n++)
                ret_picks[n] = pick_of(choice, n / (WIDTHS * BUCKETS), n / BUCKETS % WIDTHS, n % BUCKETS);
        return CELLS;
}
