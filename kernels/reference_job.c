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
#include "kernels/sets.h"

#include <errno.h>

/* Scores of one layer, or of layers put together, for each score head. */
struct scores {
        double *t;              /* [heads][L] T[j] */
        float *units;           /* [heads][N] C[u] */
        float *rows;            /* [heads][L] T32[j]; NULL unless ckv_scores_need_rows() */
};

static void scores_deinit(struct scores *scores) {
        free(scores->t);
        free(scores->units);
        free(scores->rows);
}

static int scores_init(struct scores *scores, const struct ckv_job_group *group, const struct ckv_units *units) {
        size_t heads = ckv_score_heads(group), rows = heads * group->selection.rows + 1;
        bool need_rows = ckv_scores_need_rows(group);

        scores->t = malloc(rows * sizeof(*scores->t));
        scores->units = malloc((heads * units->count + 1) * sizeof(*scores->units));
        scores->rows = need_rows ? malloc(rows * sizeof(*scores->rows)) : NULL;
        return !scores->t || !scores->units || (need_rows && !scores->rows) ? -ENOMEM : 0;
}

/* S1 to S4 of a layer, or what the caller brought. Return: 0, -ENOMEM, or 1 with the job's outcome. */
static int score_layer(struct ckv_job *job, const struct ckv_job_group *group, uint32_t layer, const struct ckv_units *units,
                       struct scores *scores) {
        size_t rows = group->selection.rows, heads = ckv_score_heads(group);
        int r = 0;

        for (uint32_t h = 0; group->scores.in && h < heads && r == 0; h++)
                r = ckv_scores_load(group, units, layer, h, scores->units + h * units->count,
                                    scores->rows ? scores->rows + h * rows : NULL);
        if (group->scores.in)
                return r;
        r = ckv_ref_score_rows(job, group, &group->layers[layer], scores->t);
        if (r > 0) {
                job->outcome = CKV_JOB_BAD_LSE;
                job->fail_layer = group->layers[layer].number;
                job->fail_unit = (uint32_t)r - 1;
                return 1;
        }
        for (uint32_t h = 0; h < heads && r == 0; h++)
                ckv_ref_unit_scores(&group->policy, units, (uint32_t)rows, scores->t + h * rows, scores->units + h * units->count);
        for (size_t j = 0; scores->rows && j < heads * rows; j++)
                scores->rows[j] = ckv_fl32(scores->t[j]);
        return r;
}

static int fail_nonfinite(struct ckv_job *job, const struct ckv_job_group *group, uint32_t layer, uint32_t unit) {
        job->outcome = CKV_JOB_NONFINITE;
        job->fail_layer = group->layers[layer].number;
        job->fail_unit = unit;
        return CKV_SELECT_E_NONFINITE;
}

/* layers = each: leaders are scored, and every layer selects by the scores of its leader (section 5) */
static int plan_each(struct ckv_job *job, struct ckv_job_group *group, const struct ckv_units *units, const uint8_t *flags) {
        _cleanup_(scores_deinit) struct scores scores = { 0 };
        int r = scores_init(&scores, group, units);

        for (uint32_t leader = 0, end; leader < group->layer_count && r == 0; leader = end) {
                uint32_t unit = 0;

                end = ckv_sets_next_leader(group, leader);
                r = score_layer(job, group, leader, units, &scores);
                if (r != 0)
                        return r;
                ckv_scores_store(group, units, leader, end - leader - 1, scores.units, scores.rows);
                for (uint32_t i = leader; i < end && r == 0; i++)
                        for (uint32_t h = 0; h < group->kept_heads && r == 0; h++)
                                r = ckv_sets_select(group, units, flags, i, leader, h, scores.units, scores.rows, &unit);
                if (r == CKV_SELECT_E_NONFINITE)
                        return fail_nonfinite(job, group, leader, unit);
                if (r == 0)
                        ckv_sets_weigh(group, leader, scores.t);
        }
        return r;
}

/* What is put together over layers. */
struct sums {
        double *units;          /* [N] */
        double *rows;           /* [L] */
        struct ckv_top4 *top;   /* [L] */
        uint32_t layers;        /* that were added */
};

static void sums_deinit(struct sums *sums) {
        free(sums->units);
        free(sums->rows);
        free(sums->top);
}

/* layers = one: C[u] = fl32(sum of C_l[u] over the scored layers, ascending), and T32 likewise; or, with top4, T[j] of the four
 * layers that score row j highest, and C[u] from that */
static void put_together(const struct ckv_job_group *group, const struct ckv_units *units, struct sums *sums,
                         struct scores *scores) {
        uint32_t rows = group->selection.rows;

        if (ckv_scores_top4(group)) {
                ckv_top4_reduce(sums->top, sums->layers, rows, sums->rows);
                ckv_ref_unit_scores(&group->policy, units, rows, sums->rows, scores->units);
        } else
                for (uint32_t u = 0; u < units->count; u++)
                        scores->units[u] = ckv_fl32(sums->units[u]);
        for (uint32_t j = 0; scores->rows && j < rows; j++)
                scores->rows[j] = ckv_fl32(sums->rows[j]);
}

static void add_layer(const struct ckv_job_group *group, const struct ckv_units *units, const struct scores *scores,
                      struct sums *sums) {
        if (ckv_scores_top4(group))
                ckv_top4_add(sums->top, sums->layers, group->selection.rows, scores->rows);
        else {
                for (uint32_t u = 0; u < units->count; u++)
                        sums->units[u] += (double)scores->units[u];
                for (uint32_t j = 0; scores->rows && j < group->selection.rows; j++)
                        sums->rows[j] += (double)scores->rows[j];
        }
        sums->layers++;
}

/* The mass that the one set keeps of each layer's own scores: these are gone by now, and formed again */
static int weigh_layers(struct ckv_job *job, struct ckv_job_group *group, const struct ckv_units *units, struct scores *scores) {
        int r = 0;

        for (uint32_t i = 0; group->kept_mass && i < group->layer_count && r == 0; i = ckv_sets_next_leader(group, i)) {
                r = score_layer(job, group, i, units, scores);
                if (r == 0)
                        ckv_sets_weigh(group, i, scores->t);
        }
        return r;
}

static int plan_one(struct ckv_job *job, struct ckv_job_group *group, const struct ckv_units *units, const uint8_t *flags) {
        _cleanup_(scores_deinit) struct scores scores = { 0 };
        _cleanup_(sums_deinit) struct sums sums = { 0 };
        uint32_t unit = 0;
        int r = scores_init(&scores, group, units);

        sums.units = calloc((size_t)units->count + 1, sizeof(*sums.units));
        sums.rows = calloc((size_t)group->selection.rows + 1, sizeof(*sums.rows));
        sums.top = ckv_scores_top4(group) ? malloc(((size_t)group->selection.rows + 1) * sizeof(*sums.top)) : NULL;
        if (r < 0 || !sums.units || !sums.rows || (ckv_scores_top4(group) && !sums.top))
                return -ENOMEM;
        for (uint32_t i = 0; i < group->layer_count; i = ckv_sets_next_leader(group, i)) {
                r = score_layer(job, group, i, units, &scores);
                if (r != 0)
                        return r;
                if (!ckv_scores_finite(group, units, scores.units, scores.rows, &unit))
                        return fail_nonfinite(job, group, i, unit);
                add_layer(group, units, &scores, &sums);
                if (group->scores.in)
                        break;          /* what a caller gives for one set is together already */
        }
        put_together(group, units, &sums, &scores);
        ckv_scores_store(group, units, 0, 0, scores.units, scores.rows);
        r = ckv_sets_select(group, units, flags, 0, 0, 0, scores.units, scores.rows, &unit);
        if (r == CKV_SELECT_E_NONFINITE)
                return fail_nonfinite(job, group, 0, unit);
        return r == 0 ? weigh_layers(job, group, units, &scores) : r;
}

/* What the budget decided without scores, as an outcome. Return: is there nothing more to plan? */
static bool refused(struct ckv_job *job, const struct ckv_budget *budget, int r) {
        job->outcome = ckv_sets_outcome(budget, r);
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
        r = ckv_sets_init(job, group);
        for (uint32_t i = 0; group->budget.settled && i < group->kept_count && r == 0; i++)
                r = ckv_sets_settle(group, flags, i);
        if (r < 0 || group->budget.settled)
                return r;
        r = ckv_units_init(&units, selection, flags);
        if (r < 0 || group->kept_count == 0)
                return r;
        if (!ckv_scores_fit(group, &units, &job->fail_need)) {
                job->outcome = CKV_JOB_SCORES_SIZE;
                return 0;
        }
        r = group->policy.layers == CKV_LAYERS_ONE ? plan_one(job, group, &units, flags) : plan_each(job, group, &units, flags);
        if (r == 0)
                ckv_sets_end(group);
        return r;
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
