/*
 * The border between scoring and selection, where the caller may stand.  What
 * crosses it is binary32 and nothing else, so a job that is given back the
 * scores it gave out selects the same rows, bit for bit.
 */
#include "kernels/scores.h"

#include "base/macros.h"
#include "kernels/reference.h"

#include <errno.h>
#include <string.h>

bool ckv_scores_need_rows(const struct ckv_job_group *group) {
        return ckv_policy_selects_rows(&group->policy) || (group->scores.by_row && (group->scores.in || group->scores.out));
}

/* count_of() - floats of one layer */
static uint64_t count_of(const struct ckv_job_group *group, const struct ckv_units *units) {
        return group->scores.by_row ? group->selection.rows : units->count;
}

bool ckv_scores_fit(const struct ckv_job_group *group, const struct ckv_units *units, uint64_t *ret_need) {
        uint64_t layers = group->policy.layers == CKV_LAYERS_ONE ? 1 : group->layer_count;

        *ret_need = layers * count_of(group, units) * sizeof(float);
        return (!group->scores.in || group->scores.in_count * sizeof(float) == *ret_need) &&
               (!group->scores.out || group->scores.out_bytes >= *ret_need);
}

int ckv_scores_load(const struct ckv_job_group *group, const struct ckv_units *units, uint32_t layer, float *ret_units,
                    float *ret_rows) {
        uint64_t count = count_of(group, units);
        const float *from = group->scores.in + layer * count;
        _cleanup_free_ double *t = NULL;

        if (!group->scores.by_row) {
                memcpy(ret_units, from, count * sizeof(float));
                return 0;
        }
        t = malloc((count + 1) * sizeof(*t));
        if (!t)
                return -ENOMEM;
        for (uint64_t j = 0; j < count; j++)
                t[j] = (double)from[j];
        ckv_ref_unit_scores(&group->policy, units, group->selection.rows, t, ret_units);
        memcpy(ret_rows, from, count * sizeof(float));
        return 0;
}

void ckv_scores_store(const struct ckv_job_group *group, const struct ckv_units *units, uint32_t layer, uint32_t followers,
                      const float *unit_scores, const float *row_scores) {
        uint64_t bytes = count_of(group, units) * sizeof(float);

        if (!group->scores.out)
                return;
        for (uint32_t i = layer; i <= layer + followers; i++)
                memcpy(group->scores.out + i * bytes, group->scores.by_row ? row_scores : unit_scores, bytes);
}
