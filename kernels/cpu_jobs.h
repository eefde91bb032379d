/*
 * Lists of jobs, linked by job->next: a job is in one list at a time, and
 * changing hands never allocates.
 */
#ifndef CKV_KERNELS_CPU_JOBS_H
#define CKV_KERNELS_CPU_JOBS_H

#include "kernels/job.h"

struct ckv_jobs {
        struct ckv_job *first, **last;          /* last: where the next one is linked in */
};

/* ckv__jobs_init() - an empty list; a list cannot be copied, because it may point into itself */
static inline void ckv__jobs_init(struct ckv_jobs *jobs) {
        jobs->first = NULL;
        jobs->last = &jobs->first;
}

/* ckv__jobs_append() - behind the last */
static inline void ckv__jobs_append(struct ckv_jobs *jobs, struct ckv_job *job) {
        job->next = NULL;
        *jobs->last = job;
        jobs->last = &job->next;
}

/* ckv__jobs_take() - the first job, no longer in the list; or NULL */
static inline struct ckv_job *ckv__jobs_take(struct ckv_jobs *jobs) {
        struct ckv_job *job = jobs->first;

        if (!job)
                return NULL;
        jobs->first = job->next;
        if (!jobs->first)
                jobs->last = &jobs->first;
        job->next = NULL;
        return job;
}

/* ckv__jobs_move() - all jobs of one list behind those of another, in unchanged order */
static inline void ckv__jobs_move(struct ckv_jobs *jobs, struct ckv_jobs *to) {
        if (!jobs->first)
                return;
        *to->last = jobs->first;
        to->last = jobs->last;
        ckv__jobs_init(jobs);
}

#endif
