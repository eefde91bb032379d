/*
 * Which rows are protected, and which rows a score stands for: what a reader of
 * scores_out has to work out for itself, by sections S4 and S5 of
 * docs/algorithm.md.
 */
#ifndef CKV_TOOLS_GRID_H
#define CKV_TOOLS_GRID_H

#include "clients/c/include/chunkkv.h"
#include "tools/settings.h"

/* Why a row is protected; of several reasons the first. */
enum ckv_guard { CKV_GUARD_NONE, CKV_GUARD_SINK, CKV_GUARD_RECENT, CKV_GUARD_SPAN, CKV_GUARD_PREFIX };

struct ckv_unit {
        uint32_t chunk;                 /* number of the chunk on the whole grid, or of the row */
        uint32_t first, end;            /* its rows lie in [first, end), between protected ones perhaps */
        uint32_t rows;                  /* how many they are */
};

struct ckv_grid {
        uint32_t rows;
        uint8_t *guards;                /* [rows] ckv_guard */
        uint32_t *unit_of_row;          /* [rows] index of a unit; UINT32_MAX = none */
        struct ckv_unit *units;         /* [unit_count] ascending */
        size_t unit_count;
        bool guards_scored;             /* protected rows belong to units, too */
};

/**
 * ckv_grid_init() - the grid of one sequence whose rows are its positions
 * @settings: spans, prefix and lengths of chunks that were asked for
 * @policy:   as the answer gave it, every value present
 * @ret_grid: ends with ckv_grid_deinit()
 *
 * Return: 0 or -ENOMEM.
 */
int ckv_grid_init(const struct ckv_settings *settings, const struct chunkkv_policy *policy, uint32_t rows,
                  struct ckv_grid *ret_grid);

/* ckv_grid_deinit() - free its lists */
void ckv_grid_deinit(struct ckv_grid *grid);

/**
 * ckv_grid_mass() - the part of the scores that falls on kept rows (docs/algorithm.md, R32)
 * @scores: [grid->unit_count] of one layer
 * @ranges: [range_count][2] kept rows
 * @sum:    scores are sums over their rows (unit_reduce), else values for each row
 *
 *     sum of C[u] * rows taken of u / sum of C[u] * rows of u        and without `* rows of u` for sums
 *
 * Protected rows have no score and count in neither sum.
 *
 * Return: 0 to 1; NaN where that means nothing, because a score is negative or all are 0.
 */
double ckv_grid_mass(const struct ckv_grid *grid, const float *scores, const uint32_t *ranges, size_t range_count,
                     bool sum);

#endif
