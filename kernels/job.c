/*
 * Birth and death of a job.  The daemon fills in what lies between; a job owns
 * every array that hangs from it, so one call frees a job at any stage, half
 * built or planned.
 */
#include "kernels/job.h"

#include "base/macros.h"

/* Arrays are const for whoever computes on a job; only their owner may free them. */
static void free_const(const void *p) {
        free((void *)(uintptr_t)p);
}

struct ckv_job *ckv_job_new(uint32_t group_count) {
        struct ckv_job *job = calloc(1, sizeof(*job));

        if (!job)
                return NULL;
        atomic_init(&job->cancel, false);
        job->groups = calloc((size_t)group_count + 1, sizeof(*job->groups));
        if (!job->groups)
                return ckv_job_free(job);
        job->group_count = group_count;
        for (uint32_t i = 0; i < group_count; i++) {
                job->groups[i].selection.policy = &job->groups[i].policy;
                job->groups[i].kept_heads = 1;
        }
        return job;
}

struct ckv_job *ckv_job_free(struct ckv_job *job) {
        if (!job)
                return NULL;
        for (uint32_t i = 0; i < job->group_count; i++) {
                struct ckv_job_group *group = &job->groups[i];

                for (uint32_t k = 0; k < group->kept_count; k++)
                        ckv_kept_deinit(&group->kept[k]);
                free(group->kept);
                free(group->budgets);
                free(group->kept_mass);
                free(group->layers);
                free(group->scores.in);
                if (group->shares_lists)
                        continue;
                free_const(group->table.entries);
                free_const(group->destination.entries);
                free_const(group->selection.positions);
                free_const(group->selection.spans);
                free_const(group->selection.chunk_lengths);
        }
        free(job->mirrors);
        free(job->spans);
        free(job->groups);
        free(job);
        return NULL;
}
