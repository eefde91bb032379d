/*
 * CKV_STAGE_PLAN on the CPU: what kernels/planner.c plans, with the scores of
 * kernels/cpu_score.c, one layer that leads after the other.
 *
 * Only scoring is shared between threads and cut into slices.  Unit scores of
 * one head are a piece of host work like those of the planner.  If the mass of
 * each layer is asked for with layers = one, layers are scored once more, so
 * memory does not grow with their number.
 */
#include "kernels/cpu_plan.h"

#include "base/clock.h"
#include "base/macros.h"
#include "base/points.h"
#include "kernels/cpu_score.h"
#include "kernels/planner.h"
#include "kernels/reference.h"
#include "kernels/scores.h"
#include "kernels/sets.h"

#include <errno.h>
#include <string.h>

struct ckv_cpu_plan {
        struct ckv_planner planner;     /* first: the two are converted into each other */
        struct ckv_cpu_scratch *scratch;

        /* of the group at hand */
        struct ckv_cpu_score *score;    /* NULL: the caller brought scores */
        uint32_t formed;                /* score heads whose scores are those of the layer at hand */
        float *unit_scores;             /* [heads][N] C[u] */
        float *row_scores;              /* [heads][L] T32[j]; NULL unless ckv_scores_need_rows() */
};

static struct ckv_cpu_plan *plan_of(struct ckv_planner *planner) {
        return (struct ckv_cpu_plan *)planner;
}

static void leave(struct ckv_planner *planner) {
        struct ckv_cpu_plan *plan = plan_of(planner);

        plan->score = ckv__cpu_score_free(plan->score);
        free(plan->unit_scores);
        free(plan->row_scores);
        plan->unit_scores = plan->row_scores = NULL;
}

/* The layer at hand is to be scored, or its scores were given. */
static void begin_layer(struct ckv_cpu_plan *plan, const struct ckv_job_group *group) {
        plan->formed = 0;
        if (plan->score)
                ckv__cpu_score_begin(plan->score, &group->layers[plan->planner.layer]);
}

static int prepare(struct ckv_planner *planner, struct ckv_job_group *group) {
        struct ckv_cpu_plan *plan = plan_of(planner);
        size_t heads = ckv_score_heads(group), rows = (size_t)group->selection.rows + 1;
        bool need_rows = ckv_scores_need_rows(group);
        int r = 0;

        plan->unit_scores = malloc(heads * ((size_t)planner->units.count + 1) * sizeof(*plan->unit_scores));
        plan->row_scores = need_rows ? malloc(heads * rows * sizeof(*plan->row_scores)) : NULL;
        if (!plan->unit_scores || (need_rows && !plan->row_scores))
                return -ENOMEM;
        if (!group->scores.in)
                r = ckv__cpu_score_new_in(planner->job, group, plan->scratch, &plan->score);
        if (r < 0)
                return r;
        if (plan->score && ckv_scores_units_will_do(group, planner->units.count))
                ckv__cpu_score_expect_units(plan->score, &planner->units);
        begin_layer(plan, group);
        return 0;
}

/* S4 of one score head of the layer at hand, or the scores that were given for it. Return: 0, 1 with an outcome, or -ENOMEM. */
static int form_scores(struct ckv_cpu_plan *plan, const struct ckv_job_group *group) {
        const struct ckv_units *grid = &plan->planner.units;
        size_t rows = group->selection.rows, head = plan->formed;
        float *units = plan->unit_scores + head * grid->count;
        float *of_rows = plan->row_scores ? plan->row_scores + head * rows : NULL;
        uint32_t bad_head = plan->score ? ckv__cpu_score_bad_head(plan->score) : 0;
        const double *t;

        if (plan->score && ckv__cpu_score_no_memory(plan->score))
                return -ENOMEM;
        if (bad_head > 0)
                return ckv__planner_fail(&plan->planner, group, CKV_JOB_BAD_LSE, bad_head - 1);
        plan->formed++;
        if (!plan->score)
                return ckv_scores_load(group, grid, plan->planner.layer, (uint32_t)head, units, of_rows);
        if (plan->planner.weighing)
                return 0;
        if (ckv__cpu_score_units(plan->score)) {
                memcpy(units, ckv__cpu_score_units(plan->score) + head * grid->count, grid->count * sizeof(*units));
                return 0;
        }
        t = ckv__cpu_score_rows(plan->score) + head * rows;
        ckv_ref_unit_scores(&group->policy, grid, (uint32_t)rows, t, units);
        for (size_t j = 0; of_rows && j < rows; j++)
                of_rows[j] = ckv_fl32(t[j]);
        return 0;
}

/* The layer at hand has its scores formed and its sets, if it has some of its own. */
static void weigh(struct ckv_cpu_plan *plan, struct ckv_job_group *group) {
        if (plan->score)
                ckv_sets_weigh(group, plan->planner.layer, ckv__cpu_score_rows(plan->score));
        ckv__planner_next_layer(&plan->planner, group);
}

/* layers = each: the next set of the layer at hand or of one that follows it */
static int select_next(struct ckv_cpu_plan *plan, struct ckv_job_group *group) {
        uint32_t sets = ckv__planner_store(&plan->planner, group, plan->unit_scores, plan->row_scores);
        int r = ckv__planner_select(&plan->planner, group, plan->unit_scores, plan->row_scores);

        if (r == 0 && plan->planner.next_set == sets)
                weigh(plan, group);
        return r;
}

static int piece(struct ckv_planner *planner, struct ckv_job_group *group) {
        struct ckv_cpu_plan *plan = plan_of(planner);
        uint32_t layer = planner->layer;
        bool weighing = planner->weighing;
        int r = 0;

        if (plan->formed < ckv_score_heads(group))
                return form_scores(plan, group);
        if (weighing)
                weigh(plan, group);
        else if (group->policy.layers == CKV_LAYERS_ONE)
                r = ckv__planner_join(planner, group, plan->unit_scores, plan->row_scores, plan->unit_scores, plan->row_scores);
        else
                r = select_next(plan, group);
        if (r == 0 && planner->scoring && (planner->layer != layer || planner->weighing != weighing))
                begin_layer(plan, group);
        return r;
}

static const struct ckv_planner_hooks hooks = { .prepare = prepare, .piece = piece, .leave = leave };

bool ckv__cpu_plan_step(struct ckv_cpu_plan *plan, struct ckv_cpu_pool *pool, const struct ckv_cpu_choice *choice,
                        uint64_t until_nsec) {
        bool done = plan->planner.group == plan->planner.job->group_count;

        while (!done) {
                if (plan->planner.scoring && plan->formed == 0 && plan->score) {
                        bool scored = ckv__cpu_score_step(plan->score, pool, choice, until_nsec);

                        CKV_POINT(score_slice);
                        if (!scored)
                                return false;
                }
                done = ckv__planner_step(&plan->planner);
                if (!done && ckv_now_nsec() >= until_nsec)
                        return false;
        }
        return true;
}

struct ckv_cpu_plan *ckv__cpu_plan_new(struct ckv_job *job, struct ckv_cpu_scratch *scratch) {
        struct ckv_cpu_plan *plan = calloc(1, sizeof(*plan));

        if (!plan)
                return NULL;
        ckv__planner_init(&plan->planner, &hooks, job);
        plan->scratch = scratch;
        return plan;
}

struct ckv_cpu_plan *ckv__cpu_plan_free(struct ckv_cpu_plan *plan) {
        if (!plan)
                return NULL;
        ckv__planner_deinit(&plan->planner);
        free(plan);
        return NULL;
}
