/*
 * For each layer group
 *
 *     budget -> is it settled? keep what it says, set by set
 *            -> else units, and for each layer that leads its scores, or the caller's,
 *               then the sets of the layer and its followers one by one
 *
 * Groups, layers and sets come in the order of the reference, and so does the
 * failure that is reported when there are several.
 *
 * Budget and units, and selection of one set, are linear in the number of rows:
 * for the longest sequences each is a few milliseconds.  They run on the device
 * thread, one between two looks at the clock.
 */
#include "kernels/planner.h"

#include "base/clock.h"
#include "base/points.h"
#include "kernels/scores.h"
#include "kernels/select.h"
#include "kernels/sets.h"

#include <errno.h>
#include <stdlib.h>

void ckv__planner_init(struct ckv_planner *planner, const struct ckv_planner_hooks *hooks, struct ckv_job *job) {
        *planner = (struct ckv_planner){ .hooks = hooks, .job = job };
        job->outcome = CKV_JOB_OK;
}

void ckv__planner_deinit(struct ckv_planner *planner) {
        planner->hooks->leave(planner);
        ckv_units_deinit(&planner->units);
        free(planner->protected_rows);
        ckv__together_deinit(&planner->together);
        *planner = (struct ckv_planner){ .hooks = planner->hooks, .job = planner->job, .group = planner->group };
}

/* S5 and S6, and what an unsettled group needs. Return: 0, or -ENOMEM, or 1 with the job's outcome. */
static int enter_group(struct ckv_planner *planner, struct ckv_job_group *group) {
        struct ckv_job *job = planner->job;
        int r;

        planner->protected_rows = malloc((size_t)group->selection.rows + 1);
        if (!planner->protected_rows)
                return -ENOMEM;
        r = ckv_select_budget(&group->selection, planner->protected_rows, &group->budget);
        job->outcome = ckv_sets_outcome(&group->budget, r);
        if (r != 0 || job->outcome != CKV_JOB_OK)
                return r < 0 ? r : 1;
        r = ckv_sets_init(job, group);
        if (r < 0 || group->kept_count == 0)
                return r;
        planner->settling = group->budget.settled;
        if (planner->settling)
                return 0;
        planner->scoring = true;
        r = ckv_units_init(&planner->units, &group->selection, planner->protected_rows);
        if (r < 0)
                return r;
        if (!ckv_scores_fit(group, &planner->units, &job->fail_need)) {
                job->outcome = CKV_JOB_SCORES_SIZE;
                return 1;
        }
        if (group->policy.layers == CKV_LAYERS_ONE)
                r = ckv__together_init(&planner->together, group, &planner->units);
        return r < 0 ? r : planner->hooks->prepare(planner, group);
}

static int settle_set(struct ckv_planner *planner, struct ckv_job_group *group) {
        int r = ckv_sets_settle(group, planner->protected_rows, planner->next_set);

        planner->next_set++;
        planner->settling = planner->next_set < group->kept_count;
        return r;
}

bool ckv__planner_said(struct ckv_planner *planner, int r) {
        if (r < 0)
                planner->job->outcome = CKV_JOB_NO_MEMORY;
        if (r != 0) {
                planner->job->fail_group = planner->group;
                return true;
        }
        if (!planner->scoring && !planner->settling) {
                ckv__planner_deinit(planner);
                planner->group++;
        }
        return planner->group == planner->job->group_count;
}

bool ckv__planner_step(struct ckv_planner *planner) {
        struct ckv_job *job = planner->job;
        struct ckv_job_group *group = &job->groups[planner->group];
        uint64_t before = ckv_now_nsec();
        bool done;
        int r = 0;

        if (planner->settling)
                r = settle_set(planner, group);
        else if (planner->scoring)
                r = planner->hooks->piece(planner, group);
        else if (!group->given)
                r = enter_group(planner, group);
        done = ckv__planner_said(planner, r);
        job->select_nsec += ckv_now_nsec() - before;
        return done;
}

int ckv__planner_fail(struct ckv_planner *planner, const struct ckv_job_group *group, enum ckv_job_outcome outcome, uint32_t unit) {
        planner->job->outcome = outcome;
        planner->job->fail_layer = group->layers[planner->layer].number;
        planner->job->fail_unit = unit;
        return 1;
}

int ckv__planner_selected(struct ckv_planner *planner, const struct ckv_job_group *group, int r, uint32_t unit) {
        CKV_POINT(select_set);
        planner->next_set++;
        return r == CKV_SELECT_E_NONFINITE ? ckv__planner_fail(planner, group, CKV_JOB_NONFINITE, unit) : r;
}

int ckv__planner_select(struct ckv_planner *planner, struct ckv_job_group *group, const float *unit_scores, const float *row_scores) {
        uint32_t layer = planner->layer + planner->next_set / group->kept_heads, head = planner->next_set % group->kept_heads, unit = 0;
        int r = ckv_sets_select(group, &planner->units, planner->protected_rows, layer, planner->layer, head, unit_scores, row_scores,
                                &unit);

        return ckv__planner_selected(planner, group, r, unit);
}

void ckv__planner_next_layer(struct ckv_planner *planner, struct ckv_job_group *group) {
        planner->layer = ckv_sets_next_leader(group, planner->layer);
        planner->next_set = 0;
        planner->scoring = planner->layer < group->layer_count;
        if (!planner->scoring)
                ckv_sets_end(group);
}

uint32_t ckv__planner_store(struct ckv_planner *planner, const struct ckv_job_group *group, const float *unit_scores,
                            const float *row_scores) {
        uint32_t layers = ckv_sets_next_leader(group, planner->layer) - planner->layer;

        if (planner->next_set == 0)
                ckv_scores_store(group, &planner->units, planner->layer, layers - 1, unit_scores, row_scores);
        return layers * group->kept_heads;
}

int ckv__planner_join(struct ckv_planner *planner, struct ckv_job_group *group, const float *unit_scores, const float *row_scores,
                      float *all_units, float *all_rows) {
        /* what a caller gives for one set is together already */
        bool last = group->scores.in || ckv_sets_next_leader(group, planner->layer) == group->layer_count;
        uint32_t unit = 0;
        int r;

        if (!ckv_scores_finite(group, &planner->units, unit_scores, row_scores, &unit))
                return ckv__planner_fail(planner, group, CKV_JOB_NONFINITE, unit);
        ckv__together_add(&planner->together, group, &planner->units, unit_scores, row_scores);
        if (!last) {
                ckv__planner_next_layer(planner, group);
                return 0;
        }
        ckv__together_finish(&planner->together, group, &planner->units, all_units, all_rows);
        ckv_scores_store(group, &planner->units, 0, 0, all_units, all_rows);
        planner->layer = 0;
        r = ckv__planner_select(planner, group, all_units, all_rows);
        /* their own scores are gone by now, and formed again */
        planner->weighing = planner->scoring = r == 0 && group->kept_mass;
        planner->next_set = 0;
        return r;
}
