/*
 * Scoring of one layer (S1 to S3) on the CPU: choose the method, then step
 * through its phases until the time is up.
 *
 * A phase may end anywhere between two items and goes on there in the next
 * slice.  Memory is taken once for all layers of a group.
 */
#include "kernels/cpu_score.h"

#include "base/clock.h"
#include "kernels/cpu_fold.h"
#include "kernels/cpu_scorer.h"
#include "kernels/reference.h"

#include <errno.h>
#include <stdlib.h>

void ckv__cpu_score_begin(struct ckv_cpu_score *score, const struct ckv_job_layer *layer) {
        score->layer = layer;
        score->cursor = 0;
        score->near.count = 0;
        score->bad_head = 0;
        score->no_memory = false;
        score->unit_scores = NULL;
        score->chosen = false;
        score->phase = 0;
}

/* The path for the layer at hand; scorers of KV heads have no queries */
static const struct ckv_cpu_path *path_of(const struct ckv_cpu_score *score, const struct ckv_cpu_choice *choice) {
        const struct ckv_job_group *group = score->group;
        uint32_t queries = score->method == &ckv__cpu_attention ? group->q_heads / group->kv_heads * group->policy.window : 0;

        return ckv__cpu_choice_path(choice, score->layer->k.dtype, score->job->queries.dtype, group->head_dim_k, queries);
}

bool ckv__cpu_score_step(struct ckv_cpu_score *score, struct ckv_cpu_pool *pool, const struct ckv_cpu_choice *choice,
                         uint64_t until_nsec) {
        if (!score->chosen) {
                score->path = path_of(score, choice);
                score->kernel = score->path->kernel;
                score->method->begin(score);
                score->chosen = true;
        }
        while (score->phase != CKV_CPU_PHASE_DONE) {
                uint32_t items = score->method->items(score);

                score->cursor = ckv__cpu_pool_run_near(pool, score->method->work[score->phase], score->method->where, score,
                                                       &score->near, score->cursor, items, until_nsec);
                if (score->cursor == items) {
                        score->cursor = 0;
                        score->method->next(score);
                }
                if (ckv_now_nsec() >= until_nsec)
                        break;
        }
        return score->phase == CKV_CPU_PHASE_DONE;
}

void ckv__cpu_score_expect_units(struct ckv_cpu_score *score, const struct ckv_units *units) {
        score->units = units;
}

const float *ckv__cpu_score_units(const struct ckv_cpu_score *score) {
        return score->unit_scores;
}

const double *ckv__cpu_score_rows(const struct ckv_cpu_score *score) {
        return score->rows;
}

bool ckv__cpu_score_no_memory(const struct ckv_cpu_score *score) {
        return score->no_memory;
}

uint32_t ckv__cpu_score_bad_head(const struct ckv_cpu_score *score) {
        return score->bad_head;
}

static const struct ckv_cpu_method *method_of(const struct ckv_policy *policy) {
        if (!ckv_ref_scores_kv_heads(policy))
                return &ckv__cpu_attention;
        return policy->scorer == CKV_SCORER_DROP ? &ckv__cpu_drop : &ckv__cpu_keys;
}

int ckv__cpu_score_new_in(const struct ckv_job *job, const struct ckv_job_group *group, struct ckv_cpu_scratch *scratch,
                          struct ckv_cpu_score **ret_score) {
        struct ckv_cpu_score *score = calloc(1, sizeof(*score));
        int r;

        if (!score)
                return -ENOMEM;
        score->method = method_of(&group->policy);
        score->job = job;
        score->group = group;
        score->scratch = scratch;
        score->rows = ckv__cpu_scratch_take(scratch, (size_t)ckv_score_heads(group) * group->selection.rows * sizeof(*score->rows));
        r = score->rows ? score->method->init(score) : -ENOMEM;
        if (r < 0) {
                (void)ckv__cpu_score_free(score);
                return r;
        }
        *ret_score = score;
        return 0;
}

int ckv__cpu_score_new(const struct ckv_job *job, const struct ckv_job_group *group, struct ckv_cpu_score **ret_score) {
        return ckv__cpu_score_new_in(job, group, NULL, ret_score);
}

struct ckv_cpu_score *ckv__cpu_score_free(struct ckv_cpu_score *score) {
        if (!score)
                return NULL;
        score->method->deinit(score);
        ckv__cpu_scratch_give(score->scratch, score->rows);
        free(score);
        return NULL;
}

void ckv__cpu_fold_heads(const struct ckv_cpu_score *score, const double *s, uint32_t item, float *scratch) {
        const struct ckv_cpu_fold fold = {
                .group = score->group, .layer = score->layer, .heads = score->group->kv_heads, .per_group = 1, .s = s,
                .rows = score->rows,
        };

        ckv__cpu_fold_rows(&fold, item, scratch);
}
