/*
 * The plan of a whole job with nothing but the reference; reference_move.c has
 * the other half.
 *
 * This is what every backend must equal.  It runs to the end in one go on the
 * caller's thread; slices, cancellation, deadlines and times are a backend's
 * business.
 */
#include "kernels/reference.h"

#include "base/macros.h"
#include "kernels/scores.h"

#include <errno.h>

/* Scores of one layer, or sums over layers. */
struct scores {
        double *t;              /* [L] T[j] */
        float *units;           /* [N] C[u] */
        float *rows;            /* [L] T32[j]; NULL unless ckv_scores_need_rows() */
};

static void scores_deinit(struct scores *scores) {
        free(scores->t);
        free(scores->units);
        free(scores->rows);
}

static int scores_init(struct scores *scores, const struct ckv_job_group *group, const struct ckv_units *units) {
        size_t rows = (size_t)group->selection.rows + 1;
        bool need_rows = ckv_scores_need_rows(group);

        scores->t = malloc(rows * sizeof(*scores->t));
        scores->units = malloc(((size_t)units->count + 1) * sizeof(*scores->units));
        scores->rows = need_rows ? malloc(rows * sizeof(*scores->rows)) : NULL;
        return !scores->t || !scores->units || (need_rows && !scores->rows) ? -ENOMEM : 0;
}

static int score_layer(const struct ckv_job *job, const struct ckv_job_group *group, uint32_t layer,
                       const struct ckv_units *units, struct scores *scores) {
        uint32_t rows = group->selection.rows;
        int r;

        if (group->scores.in)
                return ckv_scores_load(group, units, layer, scores->units, scores->rows);
        r = ckv_ref_score_rows(job, group, &group->layers[layer], scores->t);
        if (r < 0)
                return r;
        ckv_ref_unit_scores(&group->policy, units, rows, scores->t, scores->units);
        if (scores->rows)
                for (uint32_t j = 0; j < rows; j++)
                        scores->rows[j] = ckv_fl32(scores->t[j]);
        return 0;
}

/* S7 for one kept set; a score that is not finite becomes the job's outcome */
static int select_kept(struct ckv_job *job, const struct ckv_job_group *group, uint32_t layer,
                       const struct ckv_units *units, const uint8_t *flags, const struct scores *scores,
                       struct ckv_kept *ret_kept) {
        uint32_t unit = 0;
        int r = ckv_select(&group->selection, units, &group->budget, flags, scores->units, scores->rows, ret_kept,
                           &unit);

        if (r == CKV_SELECT_E_NONFINITE) {
                job->outcome = CKV_JOB_NONFINITE;
                job->fail_layer = group->layers[layer].number;
                job->fail_unit = unit;
        }
        return r;
}

/* layers = each: leaders are scored and selected, followers keep what their leader keeps (section 5) */
static int plan_each(struct ckv_job *job, struct ckv_job_group *group, const struct ckv_units *units,
                     const uint8_t *flags) {
        _cleanup_(scores_deinit) struct scores scores = { 0 };
        int r = scores_init(&scores, group, units);

        for (uint32_t i = 0; i < group->layer_count && r == 0; i++) {
                uint32_t leader = i - i % group->policy.reuse;

                if (leader < i) {
                        r = ckv_kept_copy(&group->kept[leader], &group->kept[i]);
                        continue;
                }
                r = score_layer(job, group, i, units, &scores);
                if (r == 0)
                        ckv_scores_store(group, units, i, CKV_MIN(group->policy.reuse, group->layer_count - i) - 1, scores.units,
                                         scores.rows);
                if (r == 0)
                        r = select_kept(job, group, i, units, flags, &scores, &group->kept[i]);
        }
        return r;
}

/* layers = one: C[u] = fl32(sum of C_l[u] over the scored layers, ascending), and T32 likewise */
static int plan_one(struct ckv_job *job, struct ckv_job_group *group, const struct ckv_units *units,
                    const uint8_t *flags) {
        _cleanup_(scores_deinit) struct scores scores = { 0 };
        _cleanup_free_ double *unit_sum = calloc((size_t)units->count + 1, sizeof(*unit_sum));
        _cleanup_free_ double *row_sum = calloc((size_t)group->selection.rows + 1, sizeof(*row_sum));
        int r = scores_init(&scores, group, units);

        if (r < 0 || !unit_sum || !row_sum)
                return -ENOMEM;
        for (uint32_t i = 0; i < group->layer_count; i += group->policy.reuse) {
                uint32_t bad;

                r = score_layer(job, group, i, units, &scores);
                if (r < 0)
                        return r;
                bad = ckv_scores_first_nonfinite(scores.units, units->count);
                if (bad < units->count) {
                        /* here, because the sum no longer knows whose it was */
                        job->outcome = CKV_JOB_NONFINITE;
                        job->fail_layer = group->layers[i].number;
                        job->fail_unit = units->index[bad];
                        return CKV_SELECT_E_NONFINITE;
                }
                for (uint32_t u = 0; u < units->count; u++)
                        unit_sum[u] += (double)scores.units[u];
                for (uint32_t j = 0; scores.rows && j < group->selection.rows; j++)
                        row_sum[j] += (double)scores.rows[j];
                if (group->scores.in || group->policy.reuse >= group->layer_count - i)
                        break;          /* what a caller gives for one set is the sum already */
        }
        for (uint32_t u = 0; u < units->count; u++)
                scores.units[u] = ckv_fl32(unit_sum[u]);
        for (uint32_t j = 0; scores.rows && j < group->selection.rows; j++)
                scores.rows[j] = ckv_fl32(row_sum[j]);
        ckv_scores_store(group, units, 0, 0, scores.units, scores.rows);
        return select_kept(job, group, 0, units, flags, &scores, &group->kept[0]);
}

/* What the budget decided without scores, as an outcome. Return: is there nothing more to plan? */
static bool refused(struct ckv_job *job, const struct ckv_budget *budget, int r) {
        if (r == CKV_SELECT_E_UNSUPPORTED)
                job->outcome = CKV_JOB_UNSUPPORTED;
        else if (r == CKV_SELECT_E_WINDOW_OVER_BUDGET)
                job->outcome = CKV_JOB_WINDOW_OVER_BUDGET;
        else if (r == 0 && budget->refused)
                job->outcome = CKV_JOB_BUDGET;
        return job->outcome != CKV_JOB_OK;
}

static int plan_group(struct ckv_job *job, struct ckv_job_group *group) {
        const struct ckv_selection *selection = &group->selection;
        _cleanup_(ckv_units_deinit) struct ckv_units units = { 0 };
        _cleanup_free_ uint8_t *flags = malloc((size_t)selection->rows + 1);
        int r;

        if (!flags)
                return -ENOMEM;
        r = ckv_select_budget(selection, flags, &group->budget);
        if (refused(job, &group->budget, r) || r < 0)
                return r;
        group->kept_count =
                group->policy.layers == CKV_LAYERS_ONE ? CKV_MIN(group->layer_count, 1) : group->layer_count;
        group->kept = calloc((size_t)group->kept_count + 1, sizeof(*group->kept));
        if (!group->kept) {
                group->kept_count = 0;
                return -ENOMEM;
        }
        if (group->budget.settled) {
                for (uint32_t i = 0; i < group->kept_count && r == 0; i++)
                        r = ckv_select_settled(selection, &group->budget, flags, &group->kept[i]);
                return r;
        }
        r = ckv_units_init(&units, selection, flags);
        if (r < 0 || group->kept_count == 0)
                return r;
        if (!ckv_scores_fit(group, &units, &job->fail_need)) {
                job->outcome = CKV_JOB_SCORES_SIZE;
                return 0;
        }
        return group->policy.layers == CKV_LAYERS_ONE ? plan_one(job, group, &units, flags)
                                                       : plan_each(job, group, &units, flags);
}

int ckv_ref_run_plan(struct ckv_job *job) {
        job->outcome = CKV_JOB_OK;
        for (uint32_t i = 0; i < job->group_count; i++) {
                int r = job->groups[i].given ? 0 : plan_group(job, &job->groups[i]);

                if (r < 0)
                        job->outcome = CKV_JOB_NO_MEMORY;
                if (job->outcome != CKV_JOB_OK) {
                        job->fail_group = i;
                        return r < 0 ? r : 0;
                }
        }
        return 0;
}
