/*
 * The sets of a group, one at a time: whoever plans decides when, so that a
 * backend can look at the clock between two of them.
 *
 * What followers share with their leader is its scores.  Where the budget is
 * the same, the same scores give the same rows, and a copy does.
 *
 * No tensor is read here, and nothing is scored.
 */
#include "kernels/sets.h"

#include "base/macros.h"

#include <errno.h>
#include <math.h>

uint32_t ckv_sets_next_leader(const struct ckv_job_group *group, uint32_t layer) {
        uint64_t reuse = group->policy.reuse, place = (uint64_t)group->layer_index + layer;
        uint64_t next = layer + (reuse - place % reuse);

        return (uint32_t)CKV_MIN(next, group->layer_count);
}

/* Layers of all parts of the layer group */
static uint32_t layers_of_group(const struct ckv_job *job, const struct ckv_job_group *group) {
        uint32_t count = 0;

        for (uint32_t i = 0; i < job->group_count; i++)
                if (job->groups[i].number == group->number)
                        count += job->groups[i].layer_count;
        return count;
}

static int init_budgets(const struct ckv_job *job, struct ckv_job_group *group) {
        if (group->policy.beta == 0 || group->budget.kept_all != CKV_DROPPED || group->budget.raised || group->layer_count == 0)
                return 0;
        group->budgets = malloc(group->layer_count * sizeof(*group->budgets));
        if (!group->budgets)
                return -ENOMEM;
        if (!ckv_select_layer_budgets(&group->selection, &group->budget, layers_of_group(job, group), group->layer_index,
                                      group->layer_count, group->budgets)) {
                free(group->budgets);
                group->budgets = NULL;
        }
        return 0;
}

enum ckv_job_outcome ckv_sets_outcome(const struct ckv_budget *budget, int r) {
        if (r == CKV_SELECT_E_UNSUPPORTED)
                return CKV_JOB_UNSUPPORTED;
        if (r == CKV_SELECT_E_WINDOW_OVER_BUDGET)
                return CKV_JOB_WINDOW_OVER_BUDGET;
        return r == 0 && budget->refused ? CKV_JOB_BUDGET : CKV_JOB_OK;
}

int ckv_sets_init(const struct ckv_job *job, struct ckv_job_group *group) {
        bool one = group->policy.layers == CKV_LAYERS_ONE;
        size_t layers = one ? CKV_MIN(group->layer_count, 1) : group->layer_count;
        uint32_t heads = ckv_score_heads(group);

        group->kept = calloc(layers * heads + 1, sizeof(*group->kept));
        if (!group->kept)
                return -ENOMEM;
        group->kept_heads = heads;
        group->kept_count = (uint32_t)(layers * heads);
        if (group->want_mass && !group->budget.settled && !group->scores.in) {
                group->kept_mass = malloc(((size_t)group->layer_count + 1) * sizeof(*group->kept_mass));
                if (!group->kept_mass)
                        return -ENOMEM;
                for (uint32_t i = 0; i < group->layer_count; i++)
                        group->kept_mass[i] = NAN;
        }
        return init_budgets(job, group);
}

struct ckv_budget ckv_sets_budget(const struct ckv_job_group *group, uint32_t layer) {
        struct ckv_budget budget = group->budget;

        if (group->budgets)
                budget.budget = group->budgets[layer];
        return budget;
}

/* Does the layer keep the same rows as one before it that has the same scores, or needs none? */
static bool same_budget(const struct ckv_job_group *group, uint32_t layer, uint32_t other) {
        return !group->budgets || group->budgets[layer] == group->budgets[other];
}

int ckv_sets_settle(struct ckv_job_group *group, const uint8_t *protected_rows, uint32_t set) {
        uint32_t layer = set / group->kept_heads;
        struct ckv_budget budget = ckv_sets_budget(group, layer);

        if (set > 0 && same_budget(group, layer, (set - 1) / group->kept_heads))
                return ckv_kept_copy(&group->kept[set - 1], &group->kept[set]);
        return ckv_select_settled(&group->selection, &budget, protected_rows, &group->kept[set]);
}

int ckv_sets_select(struct ckv_job_group *group, const struct ckv_units *units, const uint8_t *protected_rows, uint32_t layer,
                    uint32_t leader, uint32_t head, const float *unit_scores, const float *row_scores, uint32_t *ret_unit) {
        struct ckv_budget budget = ckv_sets_budget(group, layer);
        size_t set = (size_t)layer * group->kept_heads + head, of_leader = (size_t)leader * group->kept_heads + head;

        if (layer > leader && same_budget(group, layer, leader))
                return ckv_kept_copy(&group->kept[of_leader], &group->kept[set]);
        return ckv_select(&group->selection, units, &budget, protected_rows, unit_scores + (size_t)head * units->count,
                          row_scores ? row_scores + (size_t)head * group->selection.rows : NULL, &group->kept[set], ret_unit);
}

void ckv_sets_weigh(struct ckv_job_group *group, uint32_t layer, const double *t) {
        uint32_t end = ckv_sets_next_leader(group, layer);

        if (!group->kept_mass)
                return;
        for (uint32_t i = layer; i < end; i++)
                group->kept_mass[i] = ckv_kept_mass(ckv_job_kept(group, i, 0), group->kept_heads, group->selection.rows, t);
}

void ckv_sets_end(struct ckv_job_group *group) {
        for (uint32_t i = 0; i < group->layer_count && group->kept_mass; i++)
                if (isnan(group->kept_mass[i])) {
                        free(group->kept_mass);
                        group->kept_mass = NULL;
                }
}
