/*
 * R32: may a fast kernel's kept rows differ from the reference's where they do?
 */
#ifndef CKV_TESTS_SUPPORT_GAP_H
#define CKV_TESTS_SUPPORT_GAP_H

#include "kernels/job.h"

enum gap {
        GAP_EQUAL,
        GAP_WITHIN,             /* they differ in units of the gap band only */
        GAP_OUTSIDE,            /* the fast kernel is wrong */
};

/**
 * gap_judge() - compare one kept set of a group with the reference's
 * @job:  planned by the reference with CKV_JOB_OK, the cache not moved yet
 * @kept: index into kept of the group
 * @fast: the rows that the fast kernel kept
 *
 * Profile paper: cutting at L_max - w makes one unit within the band shift the end of others, so there the band only
 * has to hold a unit that differs.
 */
enum gap gap_judge(const struct ckv_job *job, uint32_t group, uint32_t kept, const struct ckv_kept *fast);

/* gap_tolerance() - R31 of a group's scores: *ret_rtol of R, and *ret_atol */
void gap_tolerance(const struct ckv_job *job, const struct ckv_job_group *group, double *ret_rtol, double *ret_atol);

#endif
