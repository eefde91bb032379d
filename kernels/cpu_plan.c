/*
 * The PLAN stage as a state machine: for each layer group
 *
 *     budget -> is it settled? keep what it says, set by set
 *            -> else units, and for each layer that leads: score, units' scores head by head,
 *               then the sets of the layer and its followers one by one
 *
 * Only scoring is shared between threads and cut into slices.  Budget and
 * units, unit scores of one head, and selection of one set are linear in the
 * number of rows: for the longest sequences each is a few milliseconds.  They
 * run on the device thread, one between two looks at the clock.
 *
 * The order of groups and layers, and with it the failure that is reported
 * when there are several, is that of the reference.  layers = one puts the
 * scores of the layers together as they come, so memory does not grow with
 * layers; if the mass of each layer is asked for, they are scored once more.
 */
#include "kernels/cpu_plan.h"

#include "base/clock.h"
#include "base/macros.h"
#include "base/points.h"
#include "kernels/cpu_scheme.h"
#include "kernels/cpu_score.h"
#include "kernels/reference.h"
#include "kernels/scores.h"
#include "kernels/select.h"
#include "kernels/sets.h"

#include <errno.h>
#include <string.h>

struct ckv_cpu_plan {
        struct ckv_job *job;
        struct ckv_cpu_scratch *scratch;
        uint32_t group;                 /* index of the group at hand */
        uint32_t layer;                 /* index of the leader at hand, if scoring */
        bool settling;                  /* the sets of the group at hand need no scores */
        bool scoring;                   /* the group at hand is being scored */
        bool weighing;                  /* layers = one: the set is selected, and each layer scored again for its mass */
        uint32_t formed;                /* score heads whose scores are those of the layer at hand */
        uint32_t next_set;              /* sets that are done: of the group if settling, else of the leader and its followers */

        /* of the group at hand */
        struct ckv_units units;
        struct ckv_cpu_score *score;
        uint8_t *protected_rows;        /* [L] */
        float *unit_scores;             /* [heads][N] C[u] */
        float *row_scores;              /* [heads][L] T32[j]; NULL unless ckv_scores_need_rows() */
        double *unit_sums, *row_sums;   /* [N], [L] over layers; NULL unless layers = one (rows: and row_scores) */
        struct ckv_top4 *top;           /* [L]; NULL unless ckv_scores_top4() */
        uint32_t summed;                /* layers in the sums, or in top */
};

static void leave_group(struct ckv_cpu_plan *plan) {
        ckv_units_deinit(&plan->units);
        plan->score = ckv__cpu_score_free(plan->score);
        free(plan->protected_rows);
        free(plan->unit_scores);
        free(plan->row_scores);
        free(plan->unit_sums);
        free(plan->row_sums);
        free(plan->top);
        *plan = (struct ckv_cpu_plan){ .job = plan->job, .scratch = plan->scratch, .group = plan->group };
}

static bool is_one(const struct ckv_job_group *group) {
        return group->policy.layers == CKV_LAYERS_ONE;
}

/* Everything the layers of an unsettled group need. Return: 0 or -ENOMEM. */
static int allocate(struct ckv_cpu_plan *plan, const struct ckv_job_group *group) {
        bool one = is_one(group), need_rows = ckv_scores_need_rows(group), top4 = ckv_scores_top4(group);
        size_t heads = ckv_score_heads(group), rows = (size_t)group->selection.rows + 1, units;
        int r = ckv_units_init(&plan->units, &group->selection, plan->protected_rows);

        if (r < 0)
                return r;
        units = (size_t)plan->units.count + 1;
        plan->unit_scores = malloc(heads * units * sizeof(*plan->unit_scores));
        plan->row_scores = need_rows ? malloc(heads * rows * sizeof(*plan->row_scores)) : NULL;
        plan->unit_sums = one ? calloc(units, sizeof(*plan->unit_sums)) : NULL;
        plan->row_sums = one && need_rows ? calloc(rows, sizeof(*plan->row_sums)) : NULL;
        plan->top = top4 ? malloc(rows * sizeof(*plan->top)) : NULL;
        if (!plan->unit_scores || (need_rows && !plan->row_scores) || (one && !plan->unit_sums) ||
            (one && need_rows && !plan->row_sums) || (top4 && !plan->top))
                return -ENOMEM;
        if (!ckv_scores_fit(group, &plan->units, &plan->job->fail_need)) {
                plan->job->outcome = CKV_JOB_SCORES_SIZE;
                return 0;
        }
        if (group->scores.in)
                return 0;
        r = ckv__cpu_score_new_in(plan->job, group, plan->scratch, &plan->score);
        if (r == 0 && ckv_scores_units_will_do(group, plan->units.count))
                ckv__cpu_score_expect_units(plan->score, &plan->units);
        return r;
}

/* Turn to a layer: it is to be scored, or its scores were given. */
static void begin_layer(struct ckv_cpu_plan *plan, const struct ckv_job_group *group, uint32_t layer) {
        plan->layer = layer;
        plan->scoring = true;
        plan->formed = plan->next_set = 0;
        if (plan->score)
                ckv__cpu_score_begin(plan->score, &group->layers[layer]);
}

/* S5 and S6. Return: 0, a CKV_SELECT_E_* outcome, or -ENOMEM. */
static int enter_group(struct ckv_cpu_plan *plan, struct ckv_job_group *group) {
        const struct ckv_selection *selection = &group->selection;
        int r;

        plan->protected_rows = malloc((size_t)selection->rows + 1);
        if (!plan->protected_rows)
                return -ENOMEM;
        r = ckv_select_budget(selection, plan->protected_rows, &group->budget);
        plan->job->outcome = ckv_sets_outcome(&group->budget, r);
        if (r != 0 || plan->job->outcome != CKV_JOB_OK)
                return r;
        r = ckv_sets_init(plan->job, group);
        if (r < 0 || group->kept_count == 0)
                return r;
        plan->settling = group->budget.settled;
        if (plan->settling)
                return 0;
        r = allocate(plan, group);
        if (r == 0 && plan->job->outcome == CKV_JOB_OK)
                begin_layer(plan, group, 0);
        return r;
}

static int settle_set(struct ckv_cpu_plan *plan, struct ckv_job_group *group) {
        int r = ckv_sets_settle(group, plan->protected_rows, plan->next_set);

        plan->next_set++;
        plan->settling = plan->next_set < group->kept_count;
        return r;
}

/* The layer at hand is the one at fault. Return: 1, which is no error of ours. */
static int fail_layer(struct ckv_cpu_plan *plan, const struct ckv_job_group *group, enum ckv_job_outcome outcome, uint32_t unit) {
        plan->job->outcome = outcome;
        plan->job->fail_layer = group->layers[plan->layer].number;
        plan->job->fail_unit = unit;
        return 1;
}

/* S4 of one score head of the layer at hand, or the scores that were given for it. Return: 0, 1 with an outcome, or -ENOMEM. */
static int form_scores(struct ckv_cpu_plan *plan, const struct ckv_job_group *group) {
        size_t rows = group->selection.rows, head = plan->formed;
        float *units = plan->unit_scores + head * plan->units.count;
        float *of_rows = plan->row_scores ? plan->row_scores + head * rows : NULL;
        uint32_t bad_head = plan->score ? ckv__cpu_score_bad_head(plan->score) : 0;
        const double *t;

        if (plan->score && ckv__cpu_score_no_memory(plan->score))
                return -ENOMEM;
        if (bad_head > 0)
                return fail_layer(plan, group, CKV_JOB_BAD_LSE, bad_head - 1);
        plan->formed++;
        if (!plan->score)
                return ckv_scores_load(group, &plan->units, plan->layer, (uint32_t)head, units, of_rows);
        if (plan->weighing)
                return 0;
        if (ckv__cpu_score_units(plan->score)) {
                memcpy(units, ckv__cpu_score_units(plan->score) + head * plan->units.count, plan->units.count * sizeof(*units));
                return 0;
        }
        t = ckv__cpu_score_rows(plan->score) + head * rows;
        ckv_ref_unit_scores(&group->policy, &plan->units, (uint32_t)rows, t, units);
        for (size_t j = 0; of_rows && j < rows; j++)
                of_rows[j] = ckv_fl32(t[j]);
        return 0;
}

/* S7 and S8 of one set. Return: 0, 1 with an outcome, or -ENOMEM. */
static int select_set(struct ckv_cpu_plan *plan, struct ckv_job_group *group, uint32_t layer, uint32_t head) {
        uint32_t unit = 0;
        int r = ckv_sets_select(group, &plan->units, plan->protected_rows, layer, plan->layer, head, plan->unit_scores,
                                plan->row_scores, &unit);

        CKV_POINT(select_set);
        return r == CKV_SELECT_E_NONFINITE ? fail_layer(plan, group, CKV_JOB_NONFINITE, unit) : r;
}

/* Turn to the next leader, or be through with the group. */
static void next_layer(struct ckv_cpu_plan *plan, struct ckv_job_group *group) {
        uint32_t next = ckv_sets_next_leader(group, plan->layer);

        plan->scoring = next < group->layer_count;
        if (plan->scoring)
                begin_layer(plan, group, next);
        else
                ckv_sets_end(group);
}

/* layers = each: the next set of the layer at hand or of one that follows it */
static int select_next(struct ckv_cpu_plan *plan, struct ckv_job_group *group) {
        uint32_t followers = ckv_sets_next_leader(group, plan->layer) - plan->layer - 1;
        uint32_t layer = plan->layer + plan->next_set / group->kept_heads, head = plan->next_set % group->kept_heads;
        int r;

        if (plan->next_set == 0)
                ckv_scores_store(group, &plan->units, plan->layer, followers, plan->unit_scores, plan->row_scores);
        r = select_set(plan, group, layer, head);
        plan->next_set++;
        if (r != 0 || plan->next_set < (followers + 1) * group->kept_heads)
                return r;
        if (plan->score)
                ckv_sets_weigh(group, plan->layer, ckv__cpu_score_rows(plan->score));
        next_layer(plan, group);
        return 0;
}

/* layers = one: the scores at hand join those of the layers before */
static void add_layer(struct ckv_cpu_plan *plan, const struct ckv_job_group *group) {
        uint32_t rows = group->selection.rows;

        if (plan->top)
                ckv_top4_add(plan->top, plan->summed, rows, plan->row_scores);
        else {
                for (uint32_t u = 0; u < plan->units.count; u++)
                        plan->unit_sums[u] += (double)plan->unit_scores[u];
                for (uint32_t j = 0; plan->row_sums && j < rows; j++)
                        plan->row_sums[j] += (double)plan->row_scores[j];
        }
        plan->summed++;
}

static void put_together(struct ckv_cpu_plan *plan, const struct ckv_job_group *group) {
        uint32_t rows = group->selection.rows;

        if (plan->top) {
                ckv_top4_reduce(plan->top, plan->summed, rows, plan->row_sums);
                ckv_ref_unit_scores(&group->policy, &plan->units, rows, plan->row_sums, plan->unit_scores);
        } else
                for (uint32_t u = 0; u < plan->units.count; u++)
                        plan->unit_scores[u] = ckv_fl32(plan->unit_sums[u]);
        for (uint32_t j = 0; plan->row_sums && j < rows; j++)
                plan->row_scores[j] = ckv_fl32(plan->row_sums[j]);
}

/* layers = one: the layer at hand has its scores formed */
static int finish_layer(struct ckv_cpu_plan *plan, struct ckv_job_group *group) {
        /* what a caller gives for one set is together already */
        bool last = !plan->score || ckv_sets_next_leader(group, plan->layer) == group->layer_count;
        uint32_t unit = 0;
        int r;

        if (plan->weighing) {
                ckv_sets_weigh(group, plan->layer, ckv__cpu_score_rows(plan->score));
                next_layer(plan, group);
                return 0;
        }
        if (!ckv_scores_finite(group, &plan->units, plan->unit_scores, plan->row_scores, &unit))
                return fail_layer(plan, group, CKV_JOB_NONFINITE, unit);
        add_layer(plan, group);
        if (!last) {
                next_layer(plan, group);
                return 0;
        }
        put_together(plan, group);
        ckv_scores_store(group, &plan->units, 0, 0, plan->unit_scores, plan->row_scores);
        plan->layer = 0;
        r = select_set(plan, group, 0, 0);
        plan->scoring = false;
        plan->weighing = r == 0 && group->kept_mass;
        if (plan->weighing)
                begin_layer(plan, group, 0);
        return r;
}

/* The part between two pieces of scoring. Return: is the plan through? */
static bool advance(struct ckv_cpu_plan *plan) {
        struct ckv_job *job = plan->job;
        struct ckv_job_group *group = &job->groups[plan->group];
        int r = 0;

        if (plan->settling)
                r = settle_set(plan, group);
        else if (plan->scoring && plan->formed < ckv_score_heads(group))
                r = form_scores(plan, group);
        else if (plan->scoring)
                r = is_one(group) ? finish_layer(plan, group) : select_next(plan, group);
        else if (!group->given)
                r = enter_group(plan, group);

        if (r < 0)
                job->outcome = CKV_JOB_NO_MEMORY;
        if (job->outcome != CKV_JOB_OK) {
                job->fail_group = plan->group;
                return true;
        }
        if (!plan->scoring && !plan->settling) {
                leave_group(plan);
                plan->group++;
        }
        return plan->group == job->group_count;
}

bool ckv__cpu_plan_step(struct ckv_cpu_plan *plan, struct ckv_cpu_pool *pool, const struct ckv_cpu_choice *choice,
                        uint64_t until_nsec) {
        bool done = plan->group == plan->job->group_count;

        while (!done) {
                uint64_t before;

                if (plan->scoring && plan->formed == 0 && plan->score) {
                        bool scored = ckv__cpu_score_step(plan->score, pool, choice, until_nsec);

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

struct ckv_cpu_plan *ckv__cpu_plan_new(struct ckv_job *job, struct ckv_cpu_scratch *scratch) {
        struct ckv_cpu_plan *plan = calloc(1, sizeof(*plan));

        if (!plan)
                return NULL;
        plan->job = job;
        plan->scratch = scratch;
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
