/*
 * CKV_STAGE_PLAN of one job as every device plans it, one piece after the other:
 * which group, which layer, which set is at hand, and what becomes of scores once
 * there are any.  Where they come from is the device's, in its hooks.
 */
#ifndef CKV_KERNELS_PLANNER_H
#define CKV_KERNELS_PLANNER_H

#include "kernels/job.h"
#include "kernels/together.h"

#include <stdbool.h>
#include <stdint.h>

struct ckv_planner;

/* All return 0, or -ENOMEM, or 1 with the job's outcome. */
struct ckv_planner_hooks {
        /* prepare() - the group at hand is to be scored, or its scores were given: get what that needs; the leader is layer 0 */
        int (*prepare)(struct ckv_planner *planner, struct ckv_job_group *group);
        /* piece() - the next piece of host work while planner->scoring */
        int (*piece)(struct ckv_planner *planner, struct ckv_job_group *group);
        /* leave() - free what the group at hand needed; it may be half there */
        void (*leave)(struct ckv_planner *planner);
};

/* The head of a device's own struct. */
struct ckv_planner {
        const struct ckv_planner_hooks *hooks;
        struct ckv_job *job;            /* borrowed */
        uint32_t group;                 /* index of the group at hand; group_count: all are planned */

        /* of the group at hand */
        bool settling, scoring;         /* its sets need no scores, or they do */
        bool weighing;                  /* layers = one: the set is selected, and each layer is scored again for its mass */
        uint32_t layer;                 /* scoring: index of the leader at hand */
        uint32_t next_set;              /* sets that are done: of the group if settling, else of the leader and its followers */
        struct ckv_units units;
        uint8_t *protected_rows;        /* [L] */
        struct ckv__together together;  /* layers = one */
};

/* ckv__planner_init() - nothing is planned; the job is CKV_JOB_OK */
void ckv__planner_init(struct ckv_planner *planner, const struct ckv_planner_hooks *hooks, struct ckv_job *job);

/* ckv__planner_deinit() - at any point; what was written into the job stays there */
void ckv__planner_deinit(struct ckv_planner *planner);

/* ckv__planner_step() - one piece of host work, a few milliseconds at most, added to the job's select_nsec. Return: is the plan through? */
bool ckv__planner_step(struct ckv_planner *planner);

/* ckv__planner_said() - after a piece that returned @r: go on to the next group, or end with a failure. Return: is the plan through? */
bool ckv__planner_said(struct ckv_planner *planner, int r);

/* ckv__planner_fail() - the leader at hand is at fault, with its outcome. Return: 1. */
int ckv__planner_fail(struct ckv_planner *planner, const struct ckv_job_group *group, enum ckv_job_outcome outcome, uint32_t unit);

/**
 * ckv__planner_select() - the next set of the leader at hand or of a layer that follows it (S7, S8)
 * @unit_scores: [heads][N] of the leader
 * @row_scores:  [heads][L]; NULL unless ckv_scores_need_rows()
 *
 * Return: 0, -ENOMEM, or 1 with the outcome.
 */
int ckv__planner_select(struct ckv_planner *planner, struct ckv_job_group *group, const float *unit_scores, const float *row_scores);

/* ckv__planner_selected() - a device selected that set by itself and says @r, as ckv_select(), and @unit. Return: as above. */
int ckv__planner_selected(struct ckv_planner *planner, const struct ckv_job_group *group, int r, uint32_t unit);

/* ckv__planner_next_layer() - turn to the next leader once the one at hand has its sets, or be through with the group */
void ckv__planner_next_layer(struct ckv_planner *planner, struct ckv_job_group *group);

/* ckv__planner_store() - the scores of the leader at hand, for the caller, and of the layers that follow it. Return: sets of all these. */
uint32_t ckv__planner_store(struct ckv_planner *planner, const struct ckv_job_group *group, const float *unit_scores,
                            const float *row_scores);

/**
 * ckv__planner_join() - layers = one: the scores of the leader at hand join those before it; after the last the one set is selected
 * @unit_scores: [N] of the leader
 * @row_scores:  [L]; NULL unless ckv_scores_need_rows()
 * @all_units:   [N] room for the scores of all layers, may be the leader's
 * @all_rows:    [L] likewise
 *
 * Afterwards the next leader is at hand, if planner->scoring; if planner->weighing it is the first one again.
 *
 * Return: 0, -ENOMEM, or 1 with the outcome.
 */
int ckv__planner_join(struct ckv_planner *planner, struct ckv_job_group *group, const float *unit_scores, const float *row_scores,
                      float *all_units, float *all_rows);

#endif
