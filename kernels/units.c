/*
 * S4, the grid: which rows are kept or dropped together.
 *
 * A chunk is a stretch of positions, not of rows: after an earlier compression
 * what is left of an original chunk stays together (E14).  Protected rows
 * belong to no unit, neither in score nor in size, and a chunk that has none
 * left has no unit.  Pages are blocks of memory, so they go by row, and so do
 * profiles kvpress and paper, because that is what they are defined as; where
 * those count chunks, they cut all rows, protected or not.
 *
 * The scores of units are S4's other half and live in reference.c.
 */
#include "kernels/select.h"

#include "base/macros.h"

#include <errno.h>

/* Walks the rows upwards and says which chunk each lies in. */
struct grid {
        const struct ckv_selection *selection;
        bool by_row;
        size_t next_length;             /* chunk_at: lengths passed so far, the current one included */
        uint64_t end;                   /* chunk_at: first row behind the current chunk */
};

static uint32_t grid_index(struct grid *grid, uint32_t row) {
        const struct ckv_selection *selection = grid->selection;
        const struct ckv_policy *policy = selection->policy;

        switch (policy->selector) {
        case CKV_SELECTOR_TOKEN:
        case CKV_SELECTOR_H2O:
                return row;
        case CKV_SELECTOR_PAGE:
                return row / policy->page;
        case CKV_SELECTOR_CHUNK_AT:
                while (row >= grid->end && grid->next_length < selection->chunk_length_count)
                        grid->end += selection->chunk_lengths[grid->next_length++];
                return grid->next_length > 0 ? (uint32_t)(grid->next_length - 1) : 0;
        default:
                return (selection->positions && !grid->by_row ? selection->positions[row] : row) / policy->chunk;
        }
}

int ckv_units_init(struct ckv_units *units, const struct ckv_selection *selection, const uint8_t *protected_rows) {
        _cleanup_(ckv_units_deinit) struct ckv_units u = { 0 };
        bool all = ckv_policy_counts_chunks(selection->policy);
        struct grid grid = { .selection = selection, .by_row = all || selection->policy->profile == CKV_PROFILE_KVPRESS };
        size_t n = (size_t)selection->rows + 1;         /* never 0: an empty array is no failure */

        u.unit_of_row = malloc(n * sizeof(*u.unit_of_row));
        u.size = malloc(n * sizeof(*u.size));
        u.first_row = malloc(n * sizeof(*u.first_row));
        u.index = malloc(n * sizeof(*u.index));
        if (!u.unit_of_row || !u.size || !u.first_row || !u.index)
                return -ENOMEM;
        for (uint32_t j = 0; j < selection->rows; j++) {
                uint32_t index;

                if (!all && protected_rows[j]) {
                        u.unit_of_row[j] = UINT32_MAX;
                        continue;
                }
                index = grid_index(&grid, j);
                if (u.count == 0 || u.index[u.count - 1] != index) {
                        u.index[u.count] = index;
                        u.first_row[u.count] = j;
                        u.size[u.count] = 0;
                        u.count++;
                }
                u.size[u.count - 1]++;
                u.unit_of_row[j] = u.count - 1;
        }
        *units = u;
        u = (struct ckv_units){ 0 };    /* handed over */
        return 0;
}

void ckv_units_deinit(struct ckv_units *units) {
        free(units->unit_of_row);
        free(units->size);
        free(units->first_row);
        free(units->index);
        *units = (struct ckv_units){ 0 };
}
