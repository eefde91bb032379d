/* What the page of `explain` is about, and its numbers as JSON. */
#ifndef CKV_TOOLS_EXPLAIN_DATA_H
#define CKV_TOOLS_EXPLAIN_DATA_H

#include "tools/grid.h"
#include "tools/options.h"
#include "tools/plan.h"
#include "tools/tokens.h"

#include <stdio.h>

struct ckv_page {
        const struct ckv_settings *settings;
        const char *label;              /* name of the file of tensors */
        const struct ckv_plan *plan;    /* layers of grid.rows rows each */
        const struct ckv_tokens *tokens;
        struct ckv_grid grid;
};

/* ckv_page_mass() - kept mass of layer @index of the plan, 0 to 1. Return: NaN without scores, or as ckv_grid_mass(). */
double ckv_page_mass(const struct ckv_page *page, size_t index);

/**
 * ckv_page_data() - the block of JSON that the page's script reads
 *
 *     {"rows": L, "byRow": a unit is a row, "guardsScored": ..,
 *      "guards": [[enum ckv_guard, first row, end], ..], "units": [[chunk, first row, end, rows], ..],
 *      "layers": [{"n": number, "mass": kept or null, "kept": [first, end, ..], "scores": [of each unit] or null}, ..]}
 *
 * Numbers alone, with four digits for a score, so that nothing in it can end the block.
 */
void ckv_page_data(const struct ckv_page *page, FILE *to);

#endif
