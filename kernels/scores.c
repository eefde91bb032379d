/*
 * The border between scoring and selection, where the caller may stand.  What
 * crosses it is binary32 and nothing else, so a job that is given back the
 * scores it gave out selects the same rows, bit for bit.
 */
#include "kernels/scores.h"

#include "base/macros.h"
#include "kernels/reference.h"

#include <errno.h>
#include <math.h>
#include <string.h>

bool ckv_scores_need_rows(const struct ckv_job_group *group) {
        return ckv_policy_selects_rows(&group->policy) || ckv_scores_top4(group) ||
               (group->scores.by_row && (group->scores.in || group->scores.out));
}

bool ckv_scores_units_will_do(const struct ckv_job_group *group, uint32_t units) {
        const struct ckv_policy *policy = &group->policy;

        return units > 0 && (uint64_t)units * CKV_UNIT_ROWS_LEAST <= group->selection.rows &&
               (policy->heads == CKV_HEADS_SUM || policy->heads == CKV_HEADS_EACH) && policy->group_heads != CKV_GROUP_MAX &&
               policy->unit_reduce != CKV_UNIT_MAX && (policy->pool == CKV_POOL_NONE || policy->pool == CKV_POOL_AVG) &&
               policy->value_weight == CKV_WEIGHT_NONE && policy->mute == 0 && !(policy->given & CKV_GIVEN_CONTRAST_FIRST) &&
               policy->window_reduce != CKV_ROWS_MAX && !group->want_mass && !ckv_scores_need_rows(group);
}

/* count_of() - floats of one layer and score head */
static uint64_t count_of(const struct ckv_job_group *group, const struct ckv_units *units) {
        return group->scores.by_row ? group->selection.rows : units->count;
}

bool ckv_scores_fit(const struct ckv_job_group *group, const struct ckv_units *units, uint64_t *ret_need) {
        uint64_t layers = group->policy.layers == CKV_LAYERS_ONE ? 1 : group->layer_count;

        *ret_need = layers * ckv_score_heads(group) * count_of(group, units) * sizeof(float);
        return (!group->scores.in || group->scores.in_count * sizeof(float) == *ret_need) &&
               (!group->scores.out || group->scores.out_bytes >= *ret_need);
}

int ckv_scores_load(const struct ckv_job_group *group, const struct ckv_units *units, uint32_t layer, uint32_t head,
                    float *ret_units, float *ret_rows) {
        uint64_t count = count_of(group, units);
        const float *from = group->scores.in + ((uint64_t)layer * ckv_score_heads(group) + head) * count;
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
        uint64_t bytes = ckv_score_heads(group) * count_of(group, units) * sizeof(float);

        if (!group->scores.out)
                return;
        for (uint32_t i = layer; i <= layer + followers; i++)
                memcpy(group->scores.out + i * bytes, group->scores.by_row ? row_scores : unit_scores, bytes);
}

bool ckv_scores_finite(const struct ckv_job_group *group, const struct ckv_units *units, const float *unit_scores,
                       const float *row_scores, uint32_t *ret_unit) {
        bool top4 = ckv_scores_top4(group);
        uint32_t bad = top4 ? units->count : ckv_scores_first_nonfinite(unit_scores, units->count);

        if (top4 || ckv_policy_selects_rows(&group->policy))
                for (uint32_t j = 0; j < group->selection.rows; j++)
                        if (units->unit_of_row[j] < bad && !isfinite(row_scores[j])) {
                                bad = units->unit_of_row[j];
                                break;
                        }
        if (bad == units->count)
                return true;
        *ret_unit = units->index[bad];
        return false;
}

void ckv_top4_add(struct ckv_top4 *top, uint32_t layers, uint32_t rows, const float *row_scores) {
        uint32_t have = CKV_MIN(layers, 4);

        for (uint32_t j = 0; j < rows; j++) {
                float *score = top[j].score, s = row_scores[j];
                uint32_t at = have;

                for (; at > 0 && score[at - 1] < s; at--)
                        if (at < 4)
                                score[at] = score[at - 1];
                if (at < 4)
                        score[at] = s;
        }
}

void ckv_top4_reduce(const struct ckv_top4 *top, uint32_t layers, uint32_t rows, double *ret_t) {
        uint32_t have = CKV_MIN(layers, 4);

        for (uint32_t j = 0; j < rows; j++) {
                double sum = 0;

                for (uint32_t i = 0; i < have; i++)
                        sum += (double)top[j].score[i];
                ret_t[j] = sum / (double)have;
        }
}
