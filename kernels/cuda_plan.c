/*
 * The PLAN stage as a state machine: for each layer group
 *
 *     budget -> is it settled? keep what it says, set by set
 *            -> else units, and scores of a batch of leaders (kernels/cuda_score.h), or the caller's,
 *               then for each leader the sets of its layer and its followers, one by one
 *
 * Groups, layers and sets come in the order of the reference, and so does the
 * failure that is reported when there are several.  A batch is one slice; what
 * is done on the host stops between two sets when the slice is over.
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
#include "kernels/cuda_together.h"
#include "kernels/scores.h"
#include "kernels/select.h"
#include "kernels/sets.h"

#include <errno.h>
#include <string.h>

struct ckv_cuda_plan {
        struct ckv_job *job;
        bool begun;                     /* the job has been looked at as a whole */
        uint32_t group;                 /* index of the group at hand */
        bool settling, scoring;         /* its sets need no scores, or they do */
        uint32_t layer;                 /* scoring: index of the leader at hand */
        uint32_t next_set;              /* sets that are done: of the group if settling, else of the leader and its followers */

        /* of the group at hand */
        struct ckv_units units;
        struct ckv_cuda_score *score;   /* NULL: the caller brought scores */
        struct ckv_cuda_batch batch;
        uint32_t in_batch;              /* leaders of the batch that are done */
        uint8_t *protected_rows;        /* [L] */
        float *own_units, *own_rows;    /* the caller's, of the leader at hand, or of layers put together: [heads][N], [heads][L] */
        struct ckv__cuda_together together;     /* layers = one */
        bool weighing;                  /* its set is selected, and each layer is scored again for its mass */
        double *t;                      /* [heads][L], for the mass; else NULL */
};

static void leave_group(struct ckv_cuda_plan *plan) {
        ckv_units_deinit(&plan->units);
        plan->score = ckv__cuda_score_free(plan->score);
        free(plan->protected_rows);
        free(plan->own_units);
        free(plan->own_rows);
        free(plan->t);
        ckv__cuda_together_deinit(&plan->together);
        *plan = (struct ckv_cuda_plan){ .job = plan->job, .begun = plan->begun, .group = plan->group };
}

static bool is_one(const struct ckv_job_group *group) {
        return group->policy.layers == CKV_LAYERS_ONE;
}

/* What the layers of an unsettled group need. Return: 0, or -ENOMEM, or 1 with the job's outcome. */
static int allocate(struct ckv_cuda_plan *plan, const struct ckv_job_group *group) {
        size_t heads = ckv_score_heads(group), rows = (size_t)group->selection.rows + 1;
        bool need_rows = ckv_scores_need_rows(group);
        int r = ckv_units_init(&plan->units, &group->selection, plan->protected_rows);

        if (r < 0)
                return r;
        if (!ckv_scores_fit(group, &plan->units, &plan->job->fail_need)) {
                plan->job->outcome = CKV_JOB_SCORES_SIZE;
                return 1;
        }
        if (group->kept_mass) {
                plan->t = malloc(heads * rows * sizeof(*plan->t));
                if (!plan->t)
                        return -ENOMEM;
        }
        if (is_one(group) && ckv__cuda_together_init(&plan->together, group, &plan->units) < 0)
                return -ENOMEM;
        if (!group->scores.in) {
                plan->score = ckv__cuda_score_new(plan->job, group, &plan->units, plan->protected_rows);
                if (!plan->score)
                        return -ENOMEM;
        }
        if (!group->scores.in && !is_one(group))
                return 0;
        plan->own_units = malloc(heads * ((size_t)plan->units.count + 1) * sizeof(*plan->own_units));
        plan->own_rows = need_rows ? malloc(heads * rows * sizeof(*plan->own_rows)) : NULL;
        return !plan->own_units || (need_rows && !plan->own_rows) ? -ENOMEM : 0;
}

/* S5 and S6. Return: 0, or -ENOMEM, or 1 with the job's outcome. */
static int enter_group(struct ckv_cuda_plan *plan, struct ckv_job_group *group) {
        int r;

        plan->protected_rows = malloc((size_t)group->selection.rows + 1);
        if (!plan->protected_rows)
                return -ENOMEM;
        r = ckv_select_budget(&group->selection, plan->protected_rows, &group->budget);
        plan->job->outcome = ckv_sets_outcome(&group->budget, r);
        if (r != 0 || plan->job->outcome != CKV_JOB_OK)
                return r < 0 ? r : 1;
        r = ckv_sets_init(plan->job, group);
        if (r < 0 || group->kept_count == 0)
                return r;
        plan->settling = group->budget.settled;
        plan->scoring = !plan->settling;
        return plan->settling ? 0 : allocate(plan, group);
}

static int settle_set(struct ckv_cuda_plan *plan, struct ckv_job_group *group) {
        int r = ckv_sets_settle(group, plan->protected_rows, plan->next_set);

        plan->next_set++;
        plan->settling = plan->next_set < group->kept_count;
        return r;
}

/* The layer at hand is the one at fault. Return: 1. */
static int fail_layer(struct ckv_cuda_plan *plan, const struct ckv_job_group *group, enum ckv_job_outcome outcome, uint32_t unit) {
        plan->job->outcome = outcome;
        plan->job->fail_layer = group->layers[plan->layer].number;
        plan->job->fail_unit = unit;
        return 1;
}

/* C[u] and T32[j] of the leader at hand */
static const float *units_of(const struct ckv_cuda_plan *plan, const struct ckv_job_group *group) {
        size_t set = (size_t)plan->in_batch * ckv_score_heads(group);

        return plan->score ? plan->batch.units + set * plan->units.count : plan->own_units;
}

static const float *rows_of(const struct ckv_cuda_plan *plan, const struct ckv_job_group *group) {
        size_t set = (size_t)plan->in_batch * ckv_score_heads(group);

        return plan->score ? plan->batch.rows + set * group->selection.rows : plan->own_rows;
}

/* Before the first set of a leader: is its log-sum-exp good, or what are the caller's scores? Return: 0, or -ENOMEM, or 1
 * with the job's outcome. */
static int begin_leader(struct ckv_cuda_plan *plan, const struct ckv_job_group *group) {
        uint32_t wrong = plan->score ? plan->batch.wrong[plan->in_batch] : UINT32_MAX;
        int r = 0;

        if (wrong != UINT32_MAX)
                return fail_layer(plan, group, CKV_JOB_BAD_LSE, wrong);
        for (uint32_t h = 0; !plan->score && h < ckv_score_heads(group) && r == 0; h++)
                r = ckv_scores_load(group, &plan->units, plan->layer, h, plan->own_units + (size_t)h * plan->units.count,
                                    plan->own_rows ? plan->own_rows + (size_t)h * group->selection.rows : NULL);
        return r;
}

static void weigh(struct ckv_cuda_plan *plan, struct ckv_job_group *group) {
        const float *rows = rows_of(plan, group);

        for (size_t j = 0; plan->t && j < (size_t)ckv_score_heads(group) * group->selection.rows; j++)
                plan->t[j] = (double)rows[j];
        if (plan->t)
                ckv_sets_weigh(group, plan->layer, plan->t);
}

/* Turn to the next leader, or be through with the group. */
static void next_leader(struct ckv_cuda_plan *plan, struct ckv_job_group *group) {
        plan->layer = ckv_sets_next_leader(group, plan->layer);
        plan->next_set = 0;
        plan->in_batch++;
        plan->scoring = plan->layer < group->layer_count;
        if (!plan->scoring)
                ckv_sets_end(group);
}

/* One kept set that the GPU selected, or a copy for a layer that follows. Return: as ckv_select(). */
static int take_set(struct ckv_cuda_plan *plan, struct ckv_job_group *group, uint32_t layer, uint32_t head, uint32_t *ret_unit) {
        uint64_t set = (uint64_t)plan->in_batch * group->kept_heads + head;
        const uint32_t *counts = plan->batch.counts + 3 * set;
        struct ckv_kept *kept = &group->kept[(uint64_t)layer * group->kept_heads + head];

        if (counts[2] != UINT32_MAX) {
                *ret_unit = plan->units.index[counts[2]];
                return CKV_SELECT_E_NONFINITE;
        }
        return ckv_kept_copy(&(struct ckv_kept){ .runs = plan->batch.runs + set * plan->batch.runs_most, .run_count = counts[0],
                                                 .count = counts[1] }, kept);
}

/* The next set of the leader at hand or of one that follows it. Return: 0, or -ENOMEM, or 1 with the job's outcome. */
static int select_next(struct ckv_cuda_plan *plan, struct ckv_job_group *group) {
        uint32_t end = ckv_sets_next_leader(group, plan->layer), unit = 0;
        uint32_t layer = plan->layer + plan->next_set / group->kept_heads, head = plan->next_set % group->kept_heads;
        int r = plan->next_set == 0 ? begin_leader(plan, group) : 0;

        if (r != 0)
                return r;
        if (plan->next_set == 0)
                ckv_scores_store(group, &plan->units, plan->layer, end - plan->layer - 1, units_of(plan, group),
                                 rows_of(plan, group));
        if (plan->score && plan->batch.counts)
                r = take_set(plan, group, layer, head, &unit);
        else
                r = ckv_sets_select(group, &plan->units, plan->protected_rows, layer, plan->layer, head, units_of(plan, group),
                                    rows_of(plan, group), &unit);
        CKV_POINT(select_set);
        if (r == CKV_SELECT_E_NONFINITE)
                return fail_layer(plan, group, CKV_JOB_NONFINITE, unit);
        plan->next_set++;
        if (r != 0 || plan->next_set < (end - plan->layer) * group->kept_heads)
                return r;
        weigh(plan, group);
        next_leader(plan, group);
        return 0;
}

/* layers = one: the set of all layers, whose scores are together. Return: 0, or -ENOMEM, or 1 with the job's outcome. */
static int select_one(struct ckv_cuda_plan *plan, struct ckv_job_group *group) {
        uint32_t unit = 0;
        int r;

        ckv__cuda_together_finish(&plan->together, group, &plan->units, plan->own_units, plan->own_rows);
        ckv_scores_store(group, &plan->units, 0, 0, plan->own_units, plan->own_rows);
        plan->layer = 0;
        r = ckv_sets_select(group, &plan->units, plan->protected_rows, 0, 0, 0, plan->own_units, plan->own_rows, &unit);
        CKV_POINT(select_set);
        if (r == CKV_SELECT_E_NONFINITE)
                return fail_layer(plan, group, CKV_JOB_NONFINITE, unit);
        /* their own scores are gone by now, and formed again */
        plan->weighing = plan->scoring = group->kept_mass != NULL;
        plan->in_batch = plan->batch.count;
        return r;
}

/* layers = one: the leader at hand joins those before it. Return: 0, or -ENOMEM, or 1 with the job's outcome. */
static int join_next(struct ckv_cuda_plan *plan, struct ckv_job_group *group) {
        /* what a caller gives for one set is together already */
        bool last = !plan->score || ckv_sets_next_leader(group, plan->layer) == group->layer_count;
        uint32_t unit = 0;
        int r = begin_leader(plan, group);

        if (r != 0)
                return r;
        if (plan->weighing) {
                weigh(plan, group);
                next_leader(plan, group);
                return 0;
        }
        if (!ckv_scores_finite(group, &plan->units, units_of(plan, group), rows_of(plan, group), &unit))
                return fail_layer(plan, group, CKV_JOB_NONFINITE, unit);
        ckv__cuda_together_add(&plan->together, group, &plan->units, units_of(plan, group), rows_of(plan, group));
        if (last)
                return select_one(plan, group);
        next_leader(plan, group);
        return 0;
}

/* Return: 0, or -ENOMEM, or 1 with the job's outcome. */
static int score_batch(struct ckv_cuda_plan *plan, struct ckv_cuda_device *device, uint64_t until_nsec) {
        uint64_t now = ckv_now_nsec(), slice = until_nsec > now ? until_nsec - now : 1;

        plan->in_batch = 0;
        switch (ckv__cuda_score_run(plan->score, device, plan->layer, slice, &plan->batch)) {
        case CKV_CUDA_SCORED:
                CKV_POINT(score_slice);
                return 0;
        case CKV_CUDA_SCORED_NO_MEMORY:
                return -ENOMEM;
        case CKV_CUDA_SCORED_NO_ROOM:
                plan->job->outcome = CKV_JOB_NOT_ON_DEVICE;
                plan->job->fail_need = ckv__cuda_score_need(plan->score);
                plan->job->fail_field = CKV_FIELD_NONE;
                return 1;
        case CKV_CUDA_SCORED_FAILED:
                break;
        }
        plan->job->fail_code = device->code;
        if (device->lost != CUDA_SUCCESS)
                plan->job->outcome = CKV_JOB_DEVICE_LOST;
        else
                plan->job->outcome = device->code == CUDA_ERROR_OUT_OF_MEMORY ? CKV_JOB_NO_MEMORY : CKV_JOB_DEVICE_FAILED;
        return 1;
}

static bool needs_batch(const struct ckv_cuda_plan *plan) {
        return plan->scoring && plan->score && plan->in_batch == plan->batch.count;
}

/* One piece of the work that is done on the host. Return: is the plan through? */
static bool finish_piece(struct ckv_cuda_plan *plan, int r) {
        struct ckv_job *job = plan->job;

        if (r < 0)
                job->outcome = CKV_JOB_NO_MEMORY;
        if (r != 0) {
                job->fail_group = plan->group;
                return true;
        }
        if (!plan->scoring && !plan->settling) {
                leave_group(plan);
                plan->group++;
        }
        return plan->group == job->group_count;
}

static bool advance(struct ckv_cuda_plan *plan) {
        struct ckv_job_group *group = &plan->job->groups[plan->group];
        int r = 0;

        if (plan->settling)
                r = settle_set(plan, group);
        else if (plan->scoring)
                r = is_one(group) ? join_next(plan, group) : select_next(plan, group);
        else if (!group->given)
                r = enter_group(plan, group);
        return finish_piece(plan, r);
}

bool ckv__cuda_plan_step(struct ckv_cuda_plan *plan, struct ckv_cuda_device *device, uint64_t until_nsec) {
        struct ckv_job *job = plan->job;
        bool done = plan->group == job->group_count;

        if (!plan->begun && !ckv_cuda_takes(job, &job->fail_group, &job->fail_field)) {
                job->outcome = CKV_JOB_NOT_ON_DEVICE;
                return true;
        }
        plan->begun = true;
        while (!done) {
                uint64_t before;
                int r;

                if (needs_batch(plan)) {
                        r = score_batch(plan, device, until_nsec);
                        if (r != 0)
                                return finish_piece(plan, r);
                }
                before = ckv_now_nsec();
                done = advance(plan);
                job->select_nsec += ckv_now_nsec() - before;
                if (!done && ckv_now_nsec() >= until_nsec)
                        return false;
        }
        return true;
}

struct ckv_cuda_plan *ckv__cuda_plan_new(struct ckv_job *job) {
        struct ckv_cuda_plan *plan = calloc(1, sizeof(*plan));

        if (!plan)
                return NULL;
        plan->job = job;
        job->outcome = CKV_JOB_OK;
        job->fail_need = 0;
        return plan;
}

struct ckv_cuda_plan *ckv__cuda_plan_free(struct ckv_cuda_plan *plan) {
        if (!plan)
                return NULL;
        leave_group(plan);
        free(plan);
        return NULL;
}
