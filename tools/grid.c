/*
 * Scores come as a bare list, one for each unit, and a unit is a chunk that has
 * rows which are not protected: the seventh score is that of the seventh such
 * chunk, wherever it lies.  The grid here is made from the answer's policy and
 * not by the daemon's own code, so equal numbers of units on both sides are a
 * check of either.
 */
#include "tools/grid.h"

#include "base/macros.h"
#include "tools/batch.h"

#include <errno.h>
#include <math.h>

static void guard_set(struct ckv_grid *grid, enum ckv_guard guard, uint64_t first, uint64_t end) {
        for (uint64_t row = first; row < CKV_MIN(end, (uint64_t)grid->rows); row++) {
                if (grid->guards[row] == CKV_GUARD_NONE)
                        grid->guards[row] = (uint8_t)guard;
        }
}

/* A page with a protected row is kept, and so is a last one that is not full. */
static void pages_guard(struct ckv_grid *grid, uint32_t page) {
        for (uint32_t first = 0; first < grid->rows; first += page) {
                uint64_t end = CKV_MIN((uint64_t)first + page, (uint64_t)grid->rows);
                uint8_t guard = end - first < page ? CKV_GUARD_RECENT : CKV_GUARD_NONE;

                for (uint64_t row = first; row < end; row++)
                        guard = grid->guards[row] ? grid->guards[row] : guard;
                if (guard)
                        guard_set(grid, guard, first, end);
        }
}

static void guards_fill(const struct ckv_settings *settings, const struct chunkkv_policy *policy,
                        struct ckv_grid *grid) {
        uint64_t blocks = ((uint64_t)settings->protect_prefix + CKV_BATCH_BLOCK - 1) / CKV_BATCH_BLOCK;
        uint64_t recent = policy->selector == CHUNKKV_SELECTOR_H2O ? grid->rows * (uint64_t)policy->recent_part / 1000000
                                                                   : policy->recent.value;

        guard_set(grid, CKV_GUARD_SINK, 0, policy->sinks.value);
        guard_set(grid, CKV_GUARD_RECENT, grid->rows - CKV_MIN(recent, (uint64_t)grid->rows), grid->rows);
        for (size_t i = 0; i < settings->protect_count; i++)
                guard_set(grid, CKV_GUARD_SPAN, settings->protect[i].first,
                          (uint64_t)settings->protect[i].first + settings->protect[i].count);
        guard_set(grid, CKV_GUARD_PREFIX, 0, blocks * CKV_BATCH_BLOCK);
        if (policy->selector == CHUNKKV_SELECTOR_PAGE)
                pages_guard(grid, CKV_MAX(policy->page, 1u));
}

/* Number of the chunk that a row lies in; @length and @end are the place in caller-given lengths. */
static uint32_t chunk_of(const struct ckv_settings *settings, const struct chunkkv_policy *policy, uint32_t row,
                         size_t *length, uint64_t *end) {
        if (policy->selector == CHUNKKV_SELECTOR_TOKEN || policy->selector == CHUNKKV_SELECTOR_H2O)
                return row;
        if (policy->selector == CHUNKKV_SELECTOR_PAGE)
                return row / CKV_MAX(policy->page, 1u);
        if (policy->selector != CHUNKKV_SELECTOR_CHUNK_AT)
                return row / CKV_MAX(policy->chunk, 1u);
        while (row >= *end && *length < settings->chunk_length_count)
                *end += settings->chunk_lengths[(*length)++];
        return (uint32_t)CKV_MAX(*length, (size_t)1) - 1;
}

static void units_fill(const struct ckv_settings *settings, const struct chunkkv_policy *policy,
                       struct ckv_grid *grid) {
        uint64_t end = 0;
        size_t length = 0;

        grid->guards_scored = policy->profile == CHUNKKV_PROFILE_KVPRESS || policy->profile == CHUNKKV_PROFILE_PAPER;
        for (uint32_t row = 0; row < grid->rows; row++) {
                uint32_t chunk = chunk_of(settings, policy, row, &length, &end);
                struct ckv_unit *unit;

                grid->unit_of_row[row] = UINT32_MAX;
                if (grid->guards[row] && !grid->guards_scored)
                        continue;
                if (grid->unit_count == 0 || grid->units[grid->unit_count - 1].chunk != chunk)
                        grid->units[grid->unit_count++] = (struct ckv_unit){ .chunk = chunk, .first = row };
                unit = &grid->units[grid->unit_count - 1];
                unit->end = row + 1;
                unit->rows++;
                grid->unit_of_row[row] = (uint32_t)grid->unit_count - 1;
        }
}

int ckv_grid_init(const struct ckv_settings *settings, const struct chunkkv_policy *policy, uint32_t rows,
                  struct ckv_grid *ret_grid) {
        struct ckv_grid grid = {
                .rows = rows,
                .guards = calloc((size_t)rows + 1, sizeof(*grid.guards)),
                .unit_of_row = calloc((size_t)rows + 1, sizeof(*grid.unit_of_row)),
                .units = calloc((size_t)rows + 1, sizeof(*grid.units)),
        };

        if (!grid.guards || !grid.unit_of_row || !grid.units) {
                ckv_grid_deinit(&grid);
                return -ENOMEM;
        }
        guards_fill(settings, policy, &grid);
        units_fill(settings, policy, &grid);
        *ret_grid = grid;
        return 0;
}

void ckv_grid_deinit(struct ckv_grid *grid) {
        free(grid->guards);
        free(grid->unit_of_row);
        free(grid->units);
        *grid = (struct ckv_grid){ 0 };
}

double ckv_grid_mass(const struct ckv_grid *grid, const float *scores, const uint32_t *ranges, size_t range_count,
                     bool sum) {
        double all = 0, kept = 0;

        for (size_t u = 0; u < grid->unit_count; u++) {
                if (!(scores[u] >= 0))
                        return NAN;
                all += (double)scores[u] * (sum ? 1 : grid->units[u].rows);
        }
        for (size_t i = 0; i < range_count; i++) {
                for (uint32_t row = ranges[2 * i]; row < ranges[2 * i + 1]; row++) {
                        uint32_t u = grid->unit_of_row[row];

                        if (u != UINT32_MAX)
                                kept += (double)scores[u] / (sum ? grid->units[u].rows : 1);
                }
        }
        return all > 0 ? CKV_MIN(kept / all, 1.0) : NAN;
}
