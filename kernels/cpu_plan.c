/*
 * The PLAN stage as a state machine: for each layer group
 *
 *     budget -> is it settled? keep what it says
 *            -> else units, and for each layer that leads: score, units' scores, select
 *
 * Only scoring is shared between threads and cut into slices.  Budget and
 * units, unit scores, and selection are linear in the number of rows: for the
 * longest sequences each is a few milliseconds.  They run on the device thread,
 * one between two looks at the clock.
 *
 * The order of groups and layers, and with it the failure that is reported
 * when there are several, is that of the reference.  layers = one adds the
 * scores of the layers up as they come, so memory does not grow with layers.
 */
#include "kernels/cpu_plan.h"

#include "base/clock.h"
#include "base/macros.h"
#include "base/points.h"
#include "kernels/cpu_score.h"
#include "kernels/reference.h"
#include "kernels/scores.h"
#include "kernels/select.h"

#include <errno.h>
#include <string.h>

struct ckv_cpu_plan {
        struct ckv_job *job;
        uint32_t group;                 /* index of the group at hand */
        uint32_t layer;                 /* index of the layer at hand, if scoring */
        bool scoring;                   /* the group at hand is being scored */
        bool formed;                    /* unit_scores are those of the layer at hand */

        /* of the group at hand */
        struct ckv_units units;
        struct ckv_cpu_score *score;
        uint8_t *protected_rows;        /* [L] */
        float *unit_scores;             /* [N] C[u] */
        float *row_scores;              /* [L] T32[j]; NULL unless ckv_scores_need_rows() */
        double *unit_sums, *row_sums;   /* [N], [L] over layers; NULL unless layers = one (rows: and row_scores) */
};

static void leave_group(struct ckv_cpu_plan *plan) {
        ckv_units_deinit(&plan->units);
        plan->score = ckv__cpu_score_free(plan->score);
        free(plan->protected_rows);
        free(plan->unit_scores);
        free(plan->row_scores);
        free(plan->unit_sums);
        free(plan->row_sums);
        *plan = (struct ckv_cpu_plan){ .job = plan->job, .group = plan->group };
}

static bool is_one(const struct ckv_job_group *group) {
        return group->policy.layers == CKV_LAYERS_ONE;
}

/* Everything the layers of an unsettled group need. Return: 0 or -ENOMEM. */
static int allocate(struct ckv_cpu_plan *plan, const struct ckv_job_group *group) {
        bool one = is_one(group), need_rows = ckv_scores_need_rows(group);
        size_t rows = group->selection.rows, units;
        int r = ckv_units_init(&plan->units, &group->selection, plan->protected_rows);

        if (r < 0)
                return r;
        units = (size_t)plan->units.count + 1;
        plan->unit_scores = malloc(units * sizeof(*plan->unit_scores));
        plan->row_scores = need_rows ? malloc(rows * sizeof(*plan->row_scores)) : NULL;
        plan->unit_sums = one ? calloc(units, sizeof(*plan->unit_sums)) : NULL;
        plan->row_sums = one && need_rows ? calloc(rows, sizeof(*plan->row_sums)) : NULL;
        if (!plan->unit_scores || (need_rows && !plan->row_scores) || (one && !plan->unit_sums) ||
            (one && need_rows && !plan->row_sums))
                return -ENOMEM;
        if (!ckv_scores_fit(group, &plan->units, &plan->job->fail_need)) {
                plan->job->outcome = CKV_JOB_SCORES_SIZE;
                return 0;
        }
        return group->scores.in ? 0 : ckv__cpu_score_new(plan->job, group, &plan->score);
}

static enum ckv_job_outcome outcome_of_budget(const struct ckv_budget *budget, int r) {
        if (r == CKV_SELECT_E_UNSUPPORTED)
                return CKV_JOB_UNSUPPORTED;
        if (r == CKV_SELECT_E_WINDOW_OVER_BUDGET)
                return CKV_JOB_WINDOW_OVER_BUDGET;
        return r == 0 && budget->refused ? CKV_JOB_BUDGET : CKV_JOB_OK;
}

/* Turn to the layer at hand: it is to be scored, or its scores were given. */
static void begin_layer(struct ckv_cpu_plan *plan, const struct ckv_job_group *group) {
        plan->scoring = true;
        if (plan->score)
                ckv__cpu_score_begin(plan->score, &group->layers[plan->layer]);
}

/* S5 and S6, and what follows from them without scores. Return: 0, a CKV_SELECT_E_* outcome, or -ENOMEM. */
static int enter_group(struct ckv_cpu_plan *plan, struct ckv_job_group *group) {
        const struct ckv_selection *selection = &group->selection;
        int r;

        plan->protected_rows = malloc((size_t)selection->rows + 1);
        if (!plan->protected_rows)
                return -ENOMEM;
        r = ckv_select_budget(selection, plan->protected_rows, &group->budget);
        plan->job->outcome = outcome_of_budget(&group->budget, r);
        if (r != 0 || plan->job->outcome != CKV_JOB_OK)
                return r;
        group->kept = calloc((size_t)group->layer_count + 1, sizeof(*group->kept));
        if (!group->kept)
                return -ENOMEM;
        group->kept_count = is_one(group) ? CKV_MIN(group->layer_count, 1) : group->layer_count;
        if (group->kept_count == 0)
                return 0;
        if (!group->budget.settled) {
                r = allocate(plan, group);
                if (r == 0 && plan->job->outcome == CKV_JOB_OK)
                        begin_layer(plan, group);
                return r;
        }
        r = ckv_select_settled(selection, &group->budget, plan->protected_rows, &group->kept[0]);
        for (uint32_t i = 1; i < group->kept_count && r == 0; i++)
                r = ckv_kept_copy(&group->kept[0], &group->kept[i]);
        return r;
}

static int fail_nonfinite(struct ckv_cpu_plan *plan, uint32_t layer_number, uint32_t unit) {
        plan->job->outcome = CKV_JOB_NONFINITE;
        plan->job->fail_layer = layer_number;
        plan->job->fail_unit = unit;
        return CKV_SELECT_E_NONFINITE;
}

/* S7 and S8 for the scores at hand; layers that follow @layer get copies */
static int select_kept(struct ckv_cpu_plan *plan, struct ckv_job_group *group, uint32_t layer, uint32_t followers) {
        uint32_t unit = 0;
        int r = ckv_select(&group->selection, &plan->units, &group->budget, plan->protected_rows, plan->unit_scores,
                           plan->row_scores, &group->kept[layer], &unit);

        CKV_POINT(select_set);
        if (r == CKV_SELECT_E_NONFINITE)
                return fail_nonfinite(plan, group->layers[layer].number, unit);
        for (uint32_t i = 1; i <= followers && r == 0; i++)
                r = ckv_kept_copy(&group->kept[layer], &group->kept[layer + i]);
        return r;
}

/* layers = one: the scores at hand join the sums. Return: 0 or CKV_SELECT_E_NONFINITE. */
static int add_layer(struct ckv_cpu_plan *plan, const struct ckv_job_group *group) {
        uint32_t bad = ckv_scores_first_nonfinite(plan->unit_scores, plan->units.count);

        /* looked at here, because the sum does not know whose it was */
        if (bad < plan->units.count)
                return fail_nonfinite(plan, group->layers[plan->layer].number, plan->units.index[bad]);
        for (uint32_t u = 0; u < plan->units.count; u++)
                plan->unit_sums[u] += (double)plan->unit_scores[u];
        for (uint32_t j = 0; plan->row_sums && j < group->selection.rows; j++)
                plan->row_sums[j] += (double)plan->row_scores[j];
        return 0;
}

static void scores_of_sums(struct ckv_cpu_plan *plan, uint32_t rows) {
        for (uint32_t u = 0; u < plan->units.count; u++)
                plan->unit_scores[u] = ckv_fl32(plan->unit_sums[u]);
        for (uint32_t j = 0; plan->row_sums && j < rows; j++)
                plan->row_scores[j] = ckv_fl32(plan->row_sums[j]);
}

/* S4 of the layer at hand, or the scores that were given for it. Return: 0 or -ENOMEM. */
static int form_scores(struct ckv_cpu_plan *plan, const struct ckv_job_group *group) {
        uint32_t rows = group->selection.rows;
        const double *t;

        if (!plan->score)
                return ckv_scores_load(group, &plan->units, plan->layer, plan->unit_scores, plan->row_scores);
        t = ckv__cpu_score_rows(plan->score);
        ckv_ref_unit_scores(&group->policy, &plan->units, rows, t, plan->unit_scores);
        for (uint32_t j = 0; plan->row_scores && j < rows; j++)
                plan->row_scores[j] = ckv_fl32(t[j]);
        return 0;
}

/* The layer at hand has its scores formed: S7, or the sum over layers; and turn to the next leader. */
static int finish_layer(struct ckv_cpu_plan *plan, struct ckv_job_group *group) {
        uint32_t left = group->layer_count - plan->layer, followers = CKV_MIN(left, group->policy.reuse) - 1;
        /* what a caller gives for one set is the sum over layers already */
        bool last = group->policy.reuse >= left || (is_one(group) && !plan->score);
        int r;

        if (is_one(group)) {
                r = add_layer(plan, group);
                if (r == 0 && last) {
                        scores_of_sums(plan, group->selection.rows);
                        ckv_scores_store(group, &plan->units, 0, 0, plan->unit_scores, plan->row_scores);
                        r = select_kept(plan, group, 0, 0);
                }
        } else {
                ckv_scores_store(group, &plan->units, plan->layer, followers, plan->unit_scores, plan->row_scores);
                r = select_kept(plan, group, plan->layer, followers);
        }
        if (r != 0)
                return r;
        plan->scoring = plan->formed = false;
        if (!last) {
                plan->layer += group->policy.reuse;
                begin_layer(plan, group);
        }
        return 0;
}

/* The part between two pieces of scoring. Return: is the plan through? */
static bool advance(struct ckv_cpu_plan *plan) {
        struct ckv_job *job = plan->job;
        struct ckv_job_group *group = &job->groups[plan->group];
        int r = 0;

        if (plan->scoring && !plan->formed) {
                r = form_scores(plan, group);
                plan->formed = true;
        } else if (plan->scoring)
                r = finish_layer(plan, group);
        else if (!group->given)
                r = enter_group(plan, group);

        if (r < 0)
                job->outcome = CKV_JOB_NO_MEMORY;
        if (job->outcome != CKV_JOB_OK) {
                job->fail_group = plan->group;
                return true;
        }
        if (!plan->scoring) {
                leave_group(plan);
                plan->group++;
        }
        return plan->group == job->group_count;
}

bool ckv__cpu_plan_step(struct ckv_cpu_plan *plan, struct ckv_cpu_pool *pool, const struct ckv_cpu_kernel *kernel,
                        uint64_t until_nsec) {
        bool done = plan->group == plan->job->group_count;

        while (!done) {
                uint64_t before;

                if (plan->scoring && !plan->formed && plan->score) {
                        bool scored = ckv__cpu_score_step(plan->score, pool, kernel, until_nsec);

                        CKV_POINT(score_slice);
                        if (!scored)
                                return false;
                }
                before = ckv_now_nsec();
                done = advance(plan);
                plan->job->select_nsec += ckv_now_nsec() - before;
                if (!done && ckv_now_nsec() >= until_nsec)
                        return false;
        }
        return true;
}

struct ckv_cpu_plan *ckv__cpu_plan_new(struct ckv_job *job) {
        struct ckv_cpu_plan *plan = calloc(1, sizeof(*plan));

        if (!plan)
                return NULL;
        plan->job = job;
        job->outcome = CKV_JOB_OK;
        return plan;
}

struct ckv_cpu_plan *ckv__cpu_plan_free(struct ckv_cpu_plan *plan) {
        if (!plan)
                return NULL;
        leave_group(plan);
        free(plan);
        return NULL;
}
