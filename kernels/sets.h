/*
 * Which kept sets a group has, and how each comes about: layers that lead and
 * layers that follow (section 5), a set for each KV head, a budget for each
 * layer, the mass that is kept.  The reference and the CPU share it; a device
 * with selection of its own must equal it.
 */
#ifndef CKV_KERNELS_SETS_H
#define CKV_KERNELS_SETS_H

#include "kernels/job.h"

#include <stdint.h>

/* ckv_sets_next_leader() - the next layer behind @layer that scores, by index; layer_count if there is none. The first of a
 * group always leads: a part of a hybrid group has a grid or protected rows of its own. */
uint32_t ckv_sets_next_leader(const struct ckv_job_group *group, uint32_t layer);

/* ckv_sets_outcome() - how a job stands after ckv_select_budget() returned @r; CKV_JOB_OK too where memory ran out */
enum ckv_job_outcome ckv_sets_outcome(const struct ckv_budget *budget, int r);

/**
 * ckv_sets_init() - room for the kept sets, layer budgets and kept mass, once the budget is known and not refused
 * @job: its other groups with the same number are parts of the same layer group, whose layers count for beta
 *
 * Fills in kept (empty), kept_count, kept_heads, budgets where they differ, and kept_mass (each NaN) where it is wanted and
 * scores will be formed.
 *
 * Return: 0 or -ENOMEM.
 */
int ckv_sets_init(const struct ckv_job *job, struct ckv_job_group *group);

/* ckv_sets_budget() - the budget of one layer */
struct ckv_budget ckv_sets_budget(const struct ckv_job_group *group, uint32_t layer);

/**
 * ckv_sets_settle() - one kept set of a settled group; to be called for all of them in ascending order
 * @set: 0 .. kept_count - 1
 *
 * Return: 0 or -ENOMEM.
 */
int ckv_sets_settle(struct ckv_job_group *group, const uint8_t *protected_rows, uint32_t set);

/**
 * ckv_sets_select() - one kept set of a group from scores (S7, S8)
 * @layer, @leader: indices; a layer whose budget is that of its leader gets a copy, which must exist already
 * @head:           0 .. kept_heads - 1
 * @unit_scores:    [kept_heads][units->count] of the leader
 * @row_scores:     [kept_heads][L] of the leader, or NULL
 * @ret_unit:       with CKV_SELECT_E_NONFINITE
 *
 * Return: as ckv_select().
 */
int ckv_sets_select(struct ckv_job_group *group, const struct ckv_units *units, const uint8_t *protected_rows, uint32_t layer,
                    uint32_t leader, uint32_t head, const float *unit_scores, const float *row_scores, uint32_t *ret_unit);

/**
 * ckv_sets_weigh() - the kept mass of the layers of one leader, whose sets are all selected
 * @layer: the leader; those that follow it are weighed by its scores too
 * @t:     [kept_heads][L] T[j] of the leader
 */
void ckv_sets_weigh(struct ckv_job_group *group, uint32_t layer, const double *t);

/* ckv_sets_end() - all layers are weighed: a mass that is not known for one of them is not known at all */
void ckv_sets_end(struct ckv_job_group *group);

#endif
