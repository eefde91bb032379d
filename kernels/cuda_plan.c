/*
 * CKV_STAGE_PLAN on a GPU: what kernels/planner.c plans, with the scores of
 * kernels/cuda_score.h, a batch of layers that lead at a time.  A batch is one
 * slice; what is done on the host stops between two pieces when the slice is over.
 *
 * Kept sets come from the GPU as runs, or where it does not select them
 * (kernels/cuda_select.h) from ckv_select(), by scores that come down.
 */
#include "kernels/cuda_plan.h"

#include "base/clock.h"
#include "base/macros.h"
#include "base/points.h"
#include "kernels/cuda_score.h"
#include "kernels/cuda_shape.h"
#include "kernels/planner.h"
#include "kernels/scores.h"
#include "kernels/select.h"
#include "kernels/sets.h"

#include <errno.h>

struct ckv_cuda_plan {
        struct ckv_planner planner;     /* first: the two are converted into each other */
        bool begun;                     /* the job has been looked at as a whole */

        /* of the group at hand */
        struct ckv_cuda_score *score;   /* NULL: the caller brought scores */
        struct ckv_cuda_batch batch;
        uint32_t in_batch;              /* leaders of the batch that are done */
        float *own_units, *own_rows;    /* the caller's, of the leader at hand, or of layers put together: [heads][N], [heads][L] */
        double *t;                      /* [heads][L], for the mass; else NULL */
};

static struct ckv_cuda_plan *plan_of(struct ckv_planner *planner) {
        return (struct ckv_cuda_plan *)planner;
}

static void leave(struct ckv_planner *planner) {
        struct ckv_cuda_plan *plan = plan_of(planner);

        plan->score = ckv__cuda_score_free(plan->score);
        free(plan->own_units);
        free(plan->own_rows);
        free(plan->t);
        plan->own_units = plan->own_rows = NULL;
        plan->t = NULL;
        plan->batch = (struct ckv_cuda_batch){ 0 };
        plan->in_batch = 0;
}

static int prepare(struct ckv_planner *planner, struct ckv_job_group *group) {
        struct ckv_cuda_plan *plan = plan_of(planner);
        size_t heads = ckv_score_heads(group), rows = (size_t)group->selection.rows + 1;
        bool need_rows = ckv_scores_need_rows(group);

        if (group->kept_mass) {
                plan->t = malloc(heads * rows * sizeof(*plan->t));
                if (!plan->t)
                        return -ENOMEM;
        }
        if (!group->scores.in) {
                plan->score = ckv__cuda_score_new(planner->job, group, &planner->units, planner->protected_rows);
                if (!plan->score)
                        return -ENOMEM;
        }
        if (!group->scores.in && group->policy.layers != CKV_LAYERS_ONE)
                return 0;
        plan->own_units = malloc(heads * ((size_t)planner->units.count + 1) * sizeof(*plan->own_units));
        plan->own_rows = need_rows ? malloc(heads * rows * sizeof(*plan->own_rows)) : NULL;
        return !plan->own_units || (need_rows && !plan->own_rows) ? -ENOMEM : 0;
}

/* C[u] and T32[j] of the leader at hand */
static const float *units_of(const struct ckv_cuda_plan *plan, const struct ckv_job_group *group) {
        size_t set = (size_t)plan->in_batch * ckv_score_heads(group);

        return plan->score ? plan->batch.units + set * plan->planner.units.count : plan->own_units;
}

static const float *rows_of(const struct ckv_cuda_plan *plan, const struct ckv_job_group *group) {
        size_t set = (size_t)plan->in_batch * ckv_score_heads(group);

        return plan->score ? plan->batch.rows + set * group->selection.rows : plan->own_rows;
}

/* Before the first set of a leader: is its log-sum-exp good, or what are the caller's scores? Return: 0, or -ENOMEM, or 1
 * with the job's outcome. */
static int begin_leader(struct ckv_cuda_plan *plan, const struct ckv_job_group *group) {
        uint32_t wrong = plan->score ? plan->batch.wrong[plan->in_batch] : UINT32_MAX;
        const struct ckv_units *units = &plan->planner.units;
        int r = 0;

        if (wrong != UINT32_MAX)
                return ckv__planner_fail(&plan->planner, group, CKV_JOB_BAD_LSE, wrong);
        for (uint32_t h = 0; !plan->score && h < ckv_score_heads(group) && r == 0; h++)
                r = ckv_scores_load(group, units, plan->planner.layer, h, plan->own_units + (size_t)h * units->count,
                                    plan->own_rows ? plan->own_rows + (size_t)h * group->selection.rows : NULL);
        return r;
}

/* The leader at hand has its sets, if it has some of its own. */
static void weigh(struct ckv_cuda_plan *plan, struct ckv_job_group *group) {
        const float *rows = rows_of(plan, group);

        for (size_t j = 0; plan->t && j < (size_t)ckv_score_heads(group) * group->selection.rows; j++)
                plan->t[j] = (double)rows[j];
        if (plan->t)
                ckv_sets_weigh(group, plan->planner.layer, plan->t);
        ckv__planner_next_layer(&plan->planner, group);
        plan->in_batch++;
}

/* The next set of the leader at hand, which the GPU selected, or a copy for a layer that follows. Return: as ckv__planner_select(). */
static int take_set(struct ckv_cuda_plan *plan, struct ckv_job_group *group) {
        uint64_t set = (uint64_t)plan->in_batch * group->kept_heads + plan->planner.next_set % group->kept_heads;
        const uint32_t *counts = plan->batch.counts + 3 * set;
        uint64_t to = (uint64_t)plan->planner.layer * group->kept_heads + plan->planner.next_set;
        struct ckv_kept kept = { .runs = plan->batch.runs + set * plan->batch.runs_most, .run_count = counts[0], .count = counts[1] };
        bool finite = counts[2] == UINT32_MAX;

        return ckv__planner_selected(&plan->planner, group, finite ? ckv_kept_copy(&kept, &group->kept[to]) : CKV_SELECT_E_NONFINITE,
                                     finite ? 0 : plan->planner.units.index[counts[2]]);
}

/* layers = each: the next set of the leader at hand or of one that follows it. Return: 0, or -ENOMEM, or 1 with the job's outcome. */
static int select_next(struct ckv_cuda_plan *plan, struct ckv_job_group *group) {
        const float *units = units_of(plan, group), *rows = rows_of(plan, group);
        uint32_t sets = ckv__planner_store(&plan->planner, group, units, rows);
        int r = plan->score && plan->batch.counts ? take_set(plan, group) : ckv__planner_select(&plan->planner, group, units, rows);

        if (r == 0 && plan->planner.next_set == sets)
                weigh(plan, group);
        return r;
}

static int piece(struct ckv_planner *planner, struct ckv_job_group *group) {
        struct ckv_cuda_plan *plan = plan_of(planner);
        int r = planner->next_set == 0 ? begin_leader(plan, group) : 0;

        if (r != 0)
                return r;
        if (group->policy.layers != CKV_LAYERS_ONE)
                return select_next(plan, group);
        if (planner->weighing) {
                weigh(plan, group);
                return 0;
        }
        r = ckv__planner_join(planner, group, units_of(plan, group), rows_of(plan, group), plan->own_units, plan->own_rows);
        /* from the first leader on again: what is left of the batch is of no use */
        plan->in_batch = planner->weighing ? plan->batch.count : plan->in_batch + 1;
        return r;
}

/* Return: 0, or -ENOMEM, or 1 with the job's outcome. */
static int score_batch(struct ckv_cuda_plan *plan, struct ckv_cuda_device *device, uint64_t until_nsec) {
        uint64_t now = ckv_now_nsec(), slice = until_nsec > now ? until_nsec - now : 1;

        plan->in_batch = 0;
        switch (ckv__cuda_score_run(plan->score, device, plan->planner.layer, slice, &plan->batch)) {
        case CKV_CUDA_SCORED:
                CKV_POINT(score_slice);
                return 0;
        case CKV_CUDA_SCORED_NO_MEMORY:
                return -ENOMEM;
        case CKV_CUDA_SCORED_NO_ROOM:
                plan->planner.job->outcome = CKV_JOB_NOT_ON_DEVICE;
                plan->planner.job->fail_need = ckv__cuda_score_need(plan->score);
                plan->planner.job->fail_field = CKV_FIELD_NONE;
                return 1;
        case CKV_CUDA_SCORED_FAILED:
                break;
        }
        plan->planner.job->fail_code = device->code;
        if (device->lost != CUDA_SUCCESS)
                plan->planner.job->outcome = CKV_JOB_DEVICE_LOST;
        else
                plan->planner.job->outcome = device->code == CUDA_ERROR_OUT_OF_MEMORY ? CKV_JOB_NO_MEMORY : CKV_JOB_DEVICE_FAILED;
        return 1;
}

static bool needs_batch(const struct ckv_cuda_plan *plan) {
        return plan->planner.scoring && plan->score && plan->in_batch == plan->batch.count;
}

static const struct ckv_planner_hooks hooks = { .prepare = prepare, .piece = piece, .leave = leave };

bool ckv__cuda_plan_step(struct ckv_cuda_plan *plan, struct ckv_cuda_device *device, uint64_t until_nsec) {
        struct ckv_job *job = plan->planner.job;
        bool done = plan->planner.group == job->group_count;

        if (!plan->begun && !ckv_cuda_takes(job, &job->fail_group, &job->fail_field)) {
                job->outcome = CKV_JOB_NOT_ON_DEVICE;
                return true;
        }
        plan->begun = true;
        while (!done) {
                int r = needs_batch(plan) ? score_batch(plan, device, until_nsec) : 0;

                if (r != 0)
                        return ckv__planner_said(&plan->planner, r);
                done = ckv__planner_step(&plan->planner);
                if (!done && ckv_now_nsec() >= until_nsec)
                        return false;
        }
        return true;
}

struct ckv_cuda_plan *ckv__cuda_plan_new(struct ckv_job *job) {
        struct ckv_cuda_plan *plan = calloc(1, sizeof(*plan));

        if (!plan)
                return NULL;
        ckv__planner_init(&plan->planner, &hooks, job);
        job->fail_need = 0;
        return plan;
}

struct ckv_cuda_plan *ckv__cuda_plan_free(struct ckv_cuda_plan *plan) {
        if (!plan)
                return NULL;
        ckv__planner_deinit(&plan->planner);
        free(plan);
        return NULL;
}
