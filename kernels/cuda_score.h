/*
 * S1 to S4 of one group on a GPU, as many layers in one go as the scratch and
 * the length of a slice allow.
 */
#ifndef CKV_KERNELS_CUDA_SCORE_H
#define CKV_KERNELS_CUDA_SCORE_H

#include "kernels/cuda_device.h"
#include "kernels/job.h"

#include <stdbool.h>
#include <stdint.h>

struct ckv_cuda_score;

/* How a batch of layers went. */
enum ckv_cuda_scored {
        CKV_CUDA_SCORED,
        CKV_CUDA_SCORED_NO_MEMORY,      /* of the host */
        CKV_CUDA_SCORED_NO_ROOM,        /* one layer needs more scratch than there is: ckv__cuda_score_need() */
        CKV_CUDA_SCORED_FAILED,         /* a call of the driver: device->code; nothing is on its way any more */
};

/* Scores of consecutive leaders, valid until the next batch. */
struct ckv_cuda_batch {
        uint32_t count;                 /* leaders */
        const uint32_t *wrong;          /* [count] lowest query head with a wrong log-sum-exp (R40); UINT32_MAX: none */
        const float *units;             /* [count][score heads][N] C[u], where the host selects or the caller asked for them */
        const float *rows;              /* [count][score heads][L] T32[j], likewise, and where the mass is wanted */
        const uint32_t *counts;         /* [count][score heads][3] as ckv_k_select writes them; NULL: the host selects */
        struct ckv_run *runs;           /* [count][score heads][runs_most] of these kept sets */
        uint32_t runs_most;
};

/**
 * ckv__cuda_score_new() - get ready; no call of the driver
 * @job, @group, @units:  borrowed; ckv_cuda_takes() says yes to the job, and the budget of the group is known
 * @protected_rows:       [L] borrowed
 *
 * Return: NULL if out of memory.
 */
struct ckv_cuda_score *ckv__cuda_score_new(const struct ckv_job *job, const struct ckv_job_group *group,
                                           const struct ckv_units *units, const uint8_t *protected_rows);

/* ckv__cuda_score_free() - NULL is fine. Return: NULL. */
struct ckv_cuda_score *ckv__cuda_score_free(struct ckv_cuda_score *score);

/* ckv__cuda_score_run() - score the leader with index @leader and those behind it, at most for about @slice_nsec, at least one */
enum ckv_cuda_scored ckv__cuda_score_run(struct ckv_cuda_score *score, struct ckv_cuda_device *device, uint32_t leader,
                                         uint64_t slice_nsec, struct ckv_cuda_batch *ret_batch);

/* ckv__cuda_score_need() - bytes of scratch that the group's tables and one layer take */
uint64_t ckv__cuda_score_need(const struct ckv_cuda_score *score);

#endif
