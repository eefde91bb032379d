/*
 * The map of scheme B.  Everything between a weight and the score of a unit is
 * linear there: norm, average pooling, sums over rows, queries and heads.  So a
 * row's part in a unit is a number that no key changes, and one map serves all
 * layers of a group.
 *
 * Average pooling gives a row's weight to the rows around it in equal shares;
 * what matters is how many of those lie in which unit.  For nearly all rows
 * that is one unit, and the row counts as a whole.  Rows outside the pooling
 * domain stay as they are, and shares beyond its end are lost (S2).
 */
#include "kernels/cpu_parts.h"

#include "base/macros.h"
#include "kernels/cpu_kernel.h"
#include "kernels/cpu_scorer.h"
#include "kernels/reference.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

typedef float vec __attribute__((vector_size(16), may_alias));
typedef float stored __attribute__((vector_size(16), aligned(4), may_alias));

/* The map under construction */
struct builder {
        struct ckv_cpu_parts *parts;
        const struct ckv_units *units;
        const uint32_t *seen;
        uint32_t rows, domain, half, pool_size;
        uint32_t count, room;           /* of entries */
        uint32_t reached, equal_from;   /* the row that was looked at last; all from here to there are of the same unit */
};

/* Return: false if out of memory. */
static bool add(struct builder *b, uint32_t unit, float part) {
        struct ckv_cpu_window_part *grown;
        uint32_t room = b->room + b->room / 2 + 16;

        if (b->count == b->room) {
                grown = ckv__cpu_scratch_take(b->parts->scratch, (size_t)room * sizeof(*grown));
                if (!grown)
                        return false;
                memcpy(grown, b->parts->entries, b->count * sizeof(*grown));
                ckv__cpu_scratch_give(b->parts->scratch, b->parts->entries);
                b->parts->entries = grown;
                b->room = room;
        }
        b->parts->entries[b->count++] = (struct ckv_cpu_window_part){ .column = unit, .part = part };
        return true;
}

/* Entries of row @i, with units for columns */
static bool add_row(struct builder *b, uint32_t i) {
        const uint32_t *unit_of_row = b->units->unit_of_row;
        bool pooled = i < b->domain;
        uint32_t low = pooled && i < b->half ? 0 : pooled ? i - b->half : i;
        uint32_t high = pooled ? CKV_MIN(b->half, b->domain - 1 - i) + i : i;
        /* a row that nobody sees has weight 0 */
        float norm = b->seen && b->seen[i] > 1 ? 1.0f / (float)b->seen[i] : 1;
        float share = pooled ? norm / (float)b->pool_size : norm;
        uint32_t begin = b->count;

        if (high - low + 1 == b->pool_size && b->equal_from <= low)
                return unit_of_row[i] == UINT32_MAX || add(b, unit_of_row[i], norm);
        for (uint32_t j = low; j <= high;) {
                uint32_t unit = unit_of_row[j], n = 0;

                for (; j <= high && unit_of_row[j] == unit; j++)
                        n++;
                if (unit == UINT32_MAX)
                        continue;
                /* a unit may go on behind a protected span */
                if (b->count > begin && b->parts->entries[b->count - 1].column == unit)
                        b->parts->entries[b->count - 1].part += share * (float)n;
                else if (!add(b, unit, share * (float)n))
                        return false;
        }
        return true;
}

/* Look at the rows that row @i gives shares to. */
static void look_ahead(struct builder *b, uint32_t i) {
        uint32_t high = i < b->domain ? CKV_MIN(b->half, b->domain - 1 - i) + i : i;

        for (; b->reached < high; b->reached++)
                if (b->units->unit_of_row[b->reached + 1] != b->units->unit_of_row[b->reached])
                        b->equal_from = b->reached + 1;
}

static bool build(struct builder *b) {
        struct ckv_cpu_parts *parts = b->parts;
        uint32_t columns = 0;

        for (uint32_t s = 0; s < parts->segments; s++) {
                uint32_t row = s * parts->segment_rows, rows = CKV_MIN(b->rows - row, parts->segment_rows);
                uint32_t *first = parts->first + row + s, begin = b->count, low = UINT32_MAX, high = 0;

                parts->first_entry[s] = begin;
                for (uint32_t i = 0; i < rows; i++) {
                        uint32_t before = b->count;

                        first[i] = before - begin;
                        look_ahead(b, row + i);
                        if (!add_row(b, row + i))
                                return false;
                        for (uint32_t e = before; e < b->count; e++) {
                                low = CKV_MIN(low, parts->entries[e].column);
                                high = CKV_MAX(high, parts->entries[e].column);
                        }
                }
                first[rows] = b->count - begin;
                for (uint32_t e = begin; e < b->count; e++)
                        parts->entries[e].column -= low;
                parts->first_column[s] = columns;
                parts->first_unit[s] = low;
                columns += low == UINT32_MAX ? 0 : high - low + 1;
        }
        parts->first_column[parts->segments] = parts->columns = columns;
        return true;
}

/* Return: of the sums of one KV head. */
static uint64_t sums_bytes(const struct ckv_cpu_parts *parts) {
        return ((uint64_t)parts->columns + 1) * parts->stride * sizeof(float);
}

/* Entries that the map begins with room for */
static uint32_t room_of(uint32_t rows) {
        return rows + rows / 4 + 64;
}

/* Return: of everything but the sums. */
static uint64_t map_bytes(const struct ckv_cpu_parts *parts, const struct ckv_job_group *group, const struct ckv_units *units,
                          uint32_t room) {
        return (uint64_t)room * sizeof(*parts->entries) +
               ((uint64_t)group->selection.rows + parts->segments + 1) * sizeof(*parts->first) +
               ((uint64_t)group->kv_heads * parts->columns + 1) * sizeof(*parts->heads) +
               ((uint64_t)ckv_score_heads(group) * units->count + 1) * sizeof(*parts->scores);
}

static bool allocate_sums(struct ckv_cpu_parts *parts, const struct ckv_job_group *group, const struct ckv_units *units,
                          uint32_t band, uint64_t bytes) {
        uint64_t per_head = sums_bytes(parts);

        parts->band = (uint32_t)CKV_MIN(bytes / per_head, band);
        parts->sums = ckv__cpu_scratch_take(parts->scratch, (size_t)parts->band * per_head);
        parts->heads = ckv__cpu_scratch_take(parts->scratch,
                                             ((size_t)group->kv_heads * parts->columns + 1) * sizeof(*parts->heads));
        parts->scores = malloc(((size_t)ckv_score_heads(group) * units->count + 1) * sizeof(*parts->scores));
        return parts->sums && parts->heads && parts->scores;
}

int ckv__cpu_parts_new(const struct ckv_job_group *group, const struct ckv_units *units, uint32_t domain, const uint32_t *seen,
                       uint32_t segment_rows, size_t stride, uint32_t band, struct ckv_cpu_scratch *scratch, uint64_t bytes,
                       struct ckv_cpu_parts **ret_parts) {
        struct ckv_cpu_parts *parts = calloc(1, sizeof(*parts));
        bool pool = group->policy.pool == CKV_POOL_AVG;
        struct builder builder = {
                .parts = parts, .units = units, .seen = seen, .rows = group->selection.rows, .domain = pool ? domain : 0,
                .half = pool ? (group->policy.pool_size - 1) / 2 : 0, .pool_size = pool ? group->policy.pool_size : 1,
                .room = room_of(group->selection.rows),
        };
        uint64_t map;
        bool made;
        size_t segments;

        if (!parts)
                return -ENOMEM;
        parts->scratch = scratch;
        parts->segment_rows = segment_rows;
        parts->stride = stride;
        segments = parts->segments = ckv__cpu_pieces(group->selection.rows, segment_rows);
        parts->first_column = malloc((segments + 1) * sizeof(*parts->first_column));
        parts->first_unit = malloc((segments + 1) * sizeof(*parts->first_unit));
        parts->first_entry = malloc((segments + 1) * sizeof(*parts->first_entry));
        parts->first = ckv__cpu_scratch_take(scratch, (group->selection.rows + segments + 1) * sizeof(*parts->first));
        parts->entries = ckv__cpu_scratch_take(scratch, builder.room * sizeof(*parts->entries));
        made = parts->first_column && parts->first_unit && parts->first_entry && parts->first && parts->entries && build(&builder);
        map = made ? map_bytes(parts, group, units, builder.room) : 0;
        if (made && map + sums_bytes(parts) > bytes) {
                *ret_parts = ckv__cpu_parts_free(parts);
                return 0;
        }
        if (!made || !allocate_sums(parts, group, units, band, bytes - map)) {
                (void)ckv__cpu_parts_free(parts);
                return -ENOMEM;
        }
        *ret_parts = parts;
        return 0;
}

struct ckv_cpu_parts *ckv__cpu_parts_free(struct ckv_cpu_parts *parts) {
        if (!parts)
                return NULL;
        free(parts->first_column);
        free(parts->first_unit);
        free(parts->first_entry);
        ckv__cpu_scratch_give(parts->scratch, parts->first);
        ckv__cpu_scratch_give(parts->scratch, parts->entries);
        ckv__cpu_scratch_give(parts->scratch, parts->sums);
        ckv__cpu_scratch_give(parts->scratch, parts->heads);
        free(parts->scores);
        free(parts);
        return NULL;
}

struct ckv_cpu_window_map ckv__cpu_parts_map(const struct ckv_cpu_parts *parts, uint32_t segment) {
        return (struct ckv_cpu_window_map){
                .first = parts->first + (size_t)segment * (parts->segment_rows + 1),
                .parts = parts->entries + parts->first_entry[segment],
                .columns = parts->first_column[segment + 1] - parts->first_column[segment],
        };
}

void ckv__cpu_parts_reduce(const struct ckv_cpu_parts *parts, uint32_t head, uint32_t query_count, const float *inverse,
                           uint32_t first, uint32_t end, double *ret_heads) {
        for (uint32_t c = first; c < end; c++) {
                const float *sums = parts->sums + ((size_t)head * parts->columns + c) * parts->stride;
                vec a = { 0 }, b = { 0 };
                double total = 0;
                uint32_t n = 0;

                for (; n + 8 <= query_count; n += 8) {
                        a += *(const stored *)(sums + n) * *(const stored *)(inverse + n);
                        b += *(const stored *)(sums + n + 4) * *(const stored *)(inverse + n + 4);
                }
                for (; n < query_count; n++)
                        total += (double)sums[n] * (double)inverse[n];
                a += b;
                ret_heads[c] = total + ((double)a[0] + (double)a[1]) + ((double)a[2] + (double)a[3]);
        }
}

/* Sums of one KV head join those of its units */
static void add_head(const struct ckv_cpu_parts *parts, const double *head, double *sums) {
        for (uint32_t s = 0; s < parts->segments; s++)
                for (uint32_t c = parts->first_column[s]; c < parts->first_column[s + 1]; c++)
                        sums[parts->first_unit[s] + c - parts->first_column[s]] += head[c];
}

void ckv__cpu_parts_form(struct ckv_cpu_parts *parts, const struct ckv_job_group *group, const struct ckv_units *units,
                         uint32_t votes) {
        const struct ckv_policy *policy = &group->policy;
        uint32_t per_group = group->q_heads / group->kv_heads, heads = ckv_score_heads(group), n = units->count;
        double mean = policy->norm == CKV_NORM_MEAN ? (double)votes : 1;
        double divisor = mean * (policy->group_heads == CKV_GROUP_MEAN ? (double)per_group : 1);
        /* the memory of the sums is done with */
        double *sums = (double *)(void *)parts->sums;

        for (uint32_t g = 0; g < heads; g++) {
                memset(sums, 0, n * sizeof(*sums));
                for (uint32_t h = heads == 1 ? 0 : g; h < (heads == 1 ? group->kv_heads : g + 1); h++)
                        add_head(parts, parts->heads + (size_t)h * parts->columns, sums);
                for (uint32_t u = 0; u < n; u++)
                        parts->scores[(size_t)g * n + u] = ckv_fl32(
                                sums[u] / (divisor * (policy->unit_reduce == CKV_UNIT_SUM ? 1 : (double)units->size[u])));
        }
}
