/*
 * What kernels/reference_job.c does with the scores of several layers, once
 * more: sums in binary64, in the order of the layers, rounded once at the end.
 * Layers are added as they come, so memory does not grow with them.
 *
 * A kernel for it would save the way down from a GPU of one float for each unit
 * and layer; layers = one is asked for by those who want one set of rows, mostly
 * of a few layers, and the way is short.
 */
#include "kernels/together.h"

#include "kernels/reference.h"

#include <errno.h>
#include <stdlib.h>

void ckv__together_deinit(struct ckv__together *together) {
        free(together->units);
        free(together->rows);
        free(together->top);
        *together = (struct ckv__together){ 0 };
}

int ckv__together_init(struct ckv__together *together, const struct ckv_job_group *group, const struct ckv_units *units) {
        bool need_rows = ckv_scores_need_rows(group), top4 = ckv_scores_top4(group);
        size_t rows = (size_t)group->selection.rows + 1;

        *together = (struct ckv__together){ 0 };
        together->units = calloc((size_t)units->count + 1, sizeof(*together->units));
        together->rows = need_rows ? calloc(rows, sizeof(*together->rows)) : NULL;
        together->top = top4 ? calloc(rows, sizeof(*together->top)) : NULL;
        if (together->units && (together->rows || !need_rows) && (together->top || !top4))
                return 0;
        ckv__together_deinit(together);
        return -ENOMEM;
}

void ckv__together_add(struct ckv__together *together, const struct ckv_job_group *group, const struct ckv_units *units,
                            const float *unit_scores, const float *row_scores) {
        uint32_t rows = group->selection.rows;

        if (together->top)
                ckv_top4_add(together->top, together->layers, rows, row_scores);
        else {
                for (uint32_t u = 0; u < units->count; u++)
                        together->units[u] += (double)unit_scores[u];
                for (uint32_t j = 0; together->rows && j < rows; j++)
                        together->rows[j] += (double)row_scores[j];
        }
        together->layers++;
}

void ckv__together_finish(struct ckv__together *together, const struct ckv_job_group *group,
                               const struct ckv_units *units, float *ret_units, float *ret_rows) {
        uint32_t rows = group->selection.rows;

        if (together->top) {
                ckv_top4_reduce(together->top, together->layers, rows, together->rows);
                ckv_ref_unit_scores(&group->policy, units, rows, together->rows, ret_units);
        } else
                for (uint32_t u = 0; u < units->count; u++)
                        ret_units[u] = ckv_fl32(together->units[u]);
        for (uint32_t j = 0; together->rows && j < rows; j++)
                ret_rows[j] = ckv_fl32(together->rows[j]);
}
