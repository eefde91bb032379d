/*
 * Written by printf and not through cJSON: a page of 30 layers and 4096 rows
 * has a quarter of a million numbers, and a tree of them would take 100 bytes
 * for each.
 */
#include "tools/explain_data.h"

#include <inttypes.h>
#include <math.h>

double ckv_page_mass(const struct ckv_page *page, size_t index) {
        const struct ckv_plan_layer *layer = &page->plan->layers[index];

        if (!layer->scores)
                return NAN;
        return ckv_grid_mass(&page->grid, layer->scores, layer->ranges, layer->range_count,
                             page->plan->policy.unit_reduce == CHUNKKV_UNIT_SUM);
}

static void put_guards(const struct ckv_grid *grid, FILE *to) {
        const char *comma = "";

        (void)fputs("\"guards\":[", to);
        for (uint32_t row = 0; row < grid->rows; row++) {
                uint32_t first = row;

                while (row + 1 < grid->rows && grid->guards[row + 1] == grid->guards[first])
                        row++;
                if (grid->guards[first] == CKV_GUARD_NONE)
                        continue;
                (void)fprintf(to, "%s[%u,%" PRIu32 ",%" PRIu32 "]", comma, grid->guards[first], first, row + 1);
                comma = ",";
        }
        (void)fputs("]", to);
}

static void put_layer(const struct ckv_page *page, size_t index, FILE *to) {
        const struct ckv_plan_layer *layer = &page->plan->layers[index];
        double mass = ckv_page_mass(page, index);

        (void)fprintf(to, "{\"n\":%" PRIu32 ",\"mass\":", layer->number);
        if (isfinite(mass))
                (void)fprintf(to, "%.6f", mass);
        else
                (void)fputs("null", to);
        (void)fputs(",\"kept\":[", to);
        for (size_t i = 0; i < 2 * layer->range_count; i++)
                (void)fprintf(to, "%s%" PRIu32, i ? "," : "", layer->ranges[i]);
        (void)fputs(layer->scores ? "],\"scores\":[" : "],\"scores\":null}", to);
        if (!layer->scores)
                return;
        for (size_t i = 0; i < layer->score_count; i++)
                (void)fprintf(to, "%s%.4g", i ? "," : "", (double)layer->scores[i]);
        (void)fputs("]}", to);
}

void ckv_page_data(const struct ckv_page *page, FILE *to) {
        const struct ckv_grid *grid = &page->grid;

        (void)fprintf(to, "{\"rows\":%" PRIu32 ",\"byRow\":%s,\"guardsScored\":%s,", grid->rows,
                      page->plan->policy.selector == CHUNKKV_SELECTOR_TOKEN ||
                              page->plan->policy.selector == CHUNKKV_SELECTOR_H2O ? "true" : "false",
                      grid->guards_scored ? "true" : "false");
        put_guards(grid, to);
        (void)fputs(",\n\"units\":[", to);
        for (size_t i = 0; i < grid->unit_count; i++)
                (void)fprintf(to, "%s[%" PRIu32 ",%" PRIu32 ",%" PRIu32 ",%" PRIu32 "]", i ? "," : "",
                              grid->units[i].chunk, grid->units[i].first, grid->units[i].end, grid->units[i].rows);
        (void)fputs("],\n\"layers\":[\n", to);
        for (size_t i = 0; i < page->plan->layer_count; i++) {
                (void)fputs(i ? ",\n" : "", to);
                put_layer(page, i, to);
        }
        (void)fputs("]}", to);
}
