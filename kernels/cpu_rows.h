/*
 * Where many rows of one head lie, for the kernels that read K row by row: a
 * division for each run of rows that lie evenly, not for each row.
 */
#ifndef CKV_KERNELS_CPU_ROWS_H
#define CKV_KERNELS_CPU_ROWS_H

#include "base/macros.h"
#include "kernels/layout.h"

/* ckv__cpu_find_rows() - addresses of dimension 0 of rows row .. row+count-1 of the sequence: [count] */
static inline void ckv__cpu_find_rows(const struct ckv_plane *k, const struct ckv_row_table *table, uint32_t head, uint32_t row,
                                      uint32_t count, const uint8_t **ret_rows) {
        for (uint32_t i = 0, run; i < count; i += run) {
                const uint8_t *at = ckv_plane_row(k, table, row + i, head);
                uint64_t stride = 0;

                run = 1;
                if (!table->by_token) {
                        uint32_t token = (row + i) % table->tokens_per_block;

                        run = CKV_MIN(table->tokens_per_block - token, ckv_axis_even(&k->token, token, &stride));
                        run = CKV_MIN(run, count - i);
                }
                for (uint32_t n = 0; n < run; n++)
                        ret_rows[i + n] = at + n * stride;
        }
}

#endif
