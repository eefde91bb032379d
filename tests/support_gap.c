/*
 * The band of R32, from reference scores that are computed once more:
 *
 *     t_in  = lowest R among units the reference took any row of
 *     t_out = highest R among units it left any row of
 *     X     = 2.01 * (rtol * max(|t_in|, |t_out|) + atol)
 *
 * A unit may differ if t_in - X <= R[u] <= t_out + X.  With mean, the kept mass
 * must be at least (1 - 2 rtol) times the reference's; scores can be negative,
 * and then 2 rtol of its size are allowed for.
 */
#include "tests/support_gap.h"

#include "base/macros.h"
#include "kernels/reference.h"

#include <check.h>
#include <float.h>
#include <math.h>
#include <string.h>

struct scores {
        struct ckv_units units;
        float *r;               /* [N] R[u] */
        uint32_t *ours, *theirs;        /* [N] rows kept of each unit: reference, fast */
        uint8_t *flags[2];      /* [L] of the two sets */
};

static void *must_alloc(size_t bytes) {
        void *p = calloc(1, bytes + 1);

        ck_assert_ptr_nonnull(p);
        return p;
}

/* raw_qk: the largest sum of absolute products that a row can have, norms of V and lengths of units included */
static double absolute_products(const struct ckv_job *job, const struct ckv_job_group *group) {
        uint32_t per_group = group->q_heads / group->kv_heads, w = group->policy.window, d = group->head_dim_k;
        double most = 0, factor = group->policy.unit_reduce == CKV_UNIT_SUM ? group->policy.chunk : 1;
        float key[1024], query[1024];

        for (uint32_t l = 0; l < group->layer_count; l++) {
                double *q = must_alloc(group->q_heads * d * sizeof(*q)), norm = 1;

                for (uint32_t h = 0; h < group->q_heads; h++)
                        for (uint32_t t = 0; t < w; t++) {
                                ckv_ref_load_query(job, group, &group->layers[l], job->queries.rows - w + t, h, query);
                                for (uint32_t x = 0; x < d; x++)
                                        q[h * d + x] += fabs((double)query[x]);
                        }
                for (uint32_t j = 0; j < group->selection.rows; j++) {
                        double sum = 0;

                        for (uint32_t h = 0; h < group->q_heads; h++) {
                                ckv_ref_load(&group->layers[l].k, &group->table, j, h / per_group, key);
                                for (uint32_t x = 0; x < d; x++)
                                        sum += fabs((double)key[x]) * q[h * d + x];
                        }
                        /* values are below 8 in magnitude: their l1 norm is below this */
                        if (group->policy.value_weight != CKV_WEIGHT_NONE)
                                norm = 8.0 * group->layers[l].v.dims;
                        most = CKV_MAX(most, sum * norm);
                }
                free(q);
        }
        return most * factor * (group->policy.layers == CKV_LAYERS_ONE ? group->layer_count : 1);
}

/* contrast: the largest score that a row has without it, of all layers that are added up, and all rows of a unit */
static double without_contrast(const struct ckv_job *job, const struct ckv_job_group *group) {
        struct ckv_job_group plain = *group;
        size_t count = (size_t)ckv_score_heads(group) * group->selection.rows;
        double *t = must_alloc(count * sizeof(*t)), most = 0;

        plain.policy.given &= ~(uint32_t)CKV_GIVEN_CONTRAST_FIRST;
        for (uint32_t l = 0; l < group->layer_count; l++) {
                ck_assert_int_eq(ckv_ref_score_rows(job, &plain, &group->layers[l], t), 0);
                for (size_t j = 0; j < count; j++)
                        most = CKV_MAX(most, t[j]);
        }
        free(t);
        return most * (group->policy.unit_reduce == CKV_UNIT_SUM ? group->policy.chunk : 1) *
               (group->policy.layers == CKV_LAYERS_ONE ? group->layer_count : 1);
}

void gap_tolerance(const struct ckv_job *job, const struct ckv_job_group *group, double *ret_rtol, double *ret_atol) {
        const struct ckv_policy *policy = &group->policy;

        *ret_rtol = 1e-4;
        *ret_atol = 1e-30;
        if (policy->scorer == CKV_SCORER_RAW_QK) {
                *ret_rtol = 0;
                *ret_atol = 1e-5 * absolute_products(job, group);
        } else if (policy->scorer == CKV_SCORER_WINDOW && (policy->given & CKV_GIVEN_CONTRAST_FIRST))
                *ret_atol = 1e-4 * without_contrast(job, group);
        else if (policy->scorer == CKV_SCORER_KNORM || policy->scorer == CKV_SCORER_VK_RATIO)
                *ret_rtol = 1e-5;
        else if (policy->scorer == CKV_SCORER_KEYDIFF) {
                *ret_rtol = 1e-5;
                *ret_atol = 1e-5 * group->kv_heads;
        } else if (policy->scorer == CKV_SCORER_LAGKV)
                *ret_rtol = *ret_atol = 0;
}

static void flag_rows(const struct ckv_kept *kept, uint8_t *flags) {
        for (size_t i = 0; i < kept->run_count; i++)
                memset(flags + kept->runs[i].src, 1, kept->runs[i].len);
}

static void scores_init(struct scores *s, const struct ckv_job *job, const struct ckv_job_group *group, uint32_t kept,
                        const struct ckv_kept *fast) {
        const struct ckv_policy *policy = &group->policy;
        uint32_t rows = group->selection.rows;
        bool one = policy->layers == CKV_LAYERS_ONE;
        uint8_t *flags = must_alloc(rows);
        /* sets of a layer stand side by side, one for each KV head with heads = each */
        uint32_t heads = ckv_score_heads(group), layer = kept / heads;
        double *t = must_alloc((size_t)heads * rows * sizeof(*t)), *sum;
        struct ckv_budget budget;

        ck_assert_int_eq(ckv_select_budget(&group->selection, flags, &budget), 0);
        ck_assert_int_eq(ckv_units_init(&s->units, &group->selection, flags), 0);
        s->r = must_alloc(s->units.count * sizeof(*s->r));
        s->ours = must_alloc(s->units.count * sizeof(*s->ours));
        s->theirs = must_alloc(s->units.count * sizeof(*s->theirs));
        sum = must_alloc(s->units.count * sizeof(*sum));
        for (uint64_t l = one ? 0 : layer - layer % policy->reuse; l < group->layer_count; l += policy->reuse) {
                ck_assert_int_eq(ckv_ref_score_rows(job, group, &group->layers[l], t), 0);
                ckv_ref_unit_scores(policy, &s->units, rows, t + (size_t)(kept % heads) * rows, s->r);
                for (uint32_t u = 0; u < s->units.count; u++)
                        sum[u] += (double)s->r[u];
                if (!one)
                        break;
        }
        for (uint32_t u = 0; u < s->units.count; u++)
                s->r[u] = ckv_fl32(sum[u]);
        for (uint32_t i = 0; i < 2; i++) {
                s->flags[i] = must_alloc(rows);
                flag_rows(i == 0 ? &group->kept[kept] : fast, s->flags[i]);
                for (uint32_t j = 0; j < rows; j++)
                        if (s->flags[i][j] && s->units.unit_of_row[j] != UINT32_MAX)
                                (i == 0 ? s->ours : s->theirs)[s->units.unit_of_row[j]]++;
        }
        free(sum);
        free(t);
        free(flags);
}

static void scores_deinit(struct scores *s) {
        ckv_units_deinit(&s->units);
        free(s->r);
        free(s->ours);
        free(s->theirs);
        free(s->flags[0]);
        free(s->flags[1]);
}

/* profile kvpress: chunks that touch the window rank before all scores */
static bool ranked_by_score(const struct ckv_job_group *group, const struct ckv_units *units, uint32_t u) {
        return group->policy.profile != CKV_PROFILE_KVPRESS ||
               units->first_row[u] + units->size[u] <= group->selection.rows - group->policy.window;
}

static enum gap judge(const struct ckv_job *job, const struct ckv_job_group *group, const struct scores *s) {
        double t_in = DBL_MAX, t_out = -DBL_MAX, rtol, atol, x, mass[2] = { 0 };
        bool any = false, all = true;

        for (uint32_t u = 0; u < s->units.count; u++) {
                if (!ranked_by_score(group, &s->units, u))
                        continue;
                if (s->ours[u] > 0)
                        t_in = CKV_MIN(t_in, (double)s->r[u]);
                if (s->ours[u] < s->units.size[u])
                        t_out = CKV_MAX(t_out, (double)s->r[u]);
        }
        gap_tolerance(job, group, &rtol, &atol);
        x = 2.01 * (rtol * CKV_MAX(fabs(t_in), fabs(t_out)) + atol);
        for (uint32_t j = 0; j < group->selection.rows; j++) {
                uint32_t u = s->units.unit_of_row[j];
                bool within = u != UINT32_MAX && ranked_by_score(group, &s->units, u) && (double)s->r[u] >= t_in - x &&
                              (double)s->r[u] <= t_out + x;

                if (s->flags[0][j] == s->flags[1][j])
                        continue;
                any = any || within;
                all = all && within;
        }
        for (uint32_t u = 0; u < s->units.count; u++) {
                mass[0] += (double)s->r[u] * s->ours[u];
                mass[1] += (double)s->r[u] * s->theirs[u];
        }
        if (group->policy.profile == CKV_PROFILE_PAPER)
                return any ? GAP_WITHIN : GAP_OUTSIDE;
        if (rtol > 0 && group->policy.unit_reduce == CKV_UNIT_MEAN && group->policy.fill != CKV_FILL_NONE &&
            mass[1] < mass[0] - 2 * rtol * fabs(mass[0]) - 2 * atol * group->selection.rows)
                return GAP_OUTSIDE;
        return all ? GAP_WITHIN : GAP_OUTSIDE;
}

enum gap gap_judge(const struct ckv_job *job, uint32_t group, uint32_t kept, const struct ckv_kept *fast) {
        const struct ckv_job_group *g = &job->groups[group];
        const struct ckv_kept *ours = &g->kept[kept];
        struct scores scores = { 0 };
        enum gap gap;

        if (ours->run_count == fast->run_count && memcmp(ours->runs, fast->runs, fast->run_count * sizeof(*fast->runs)) == 0)
                return ours->count == fast->count ? GAP_EQUAL : GAP_OUTSIDE;
        if (g->budget.settled)
                return GAP_OUTSIDE;
        scores_init(&scores, job, g, kept, fast);
        gap = judge(job, g, &scores);
        scores_deinit(&scores);
        return gap;
}
