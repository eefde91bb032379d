/*
 * What a launch that moves rows reads: columns, kept rows and tables of as many
 * parts of a group as the scratch holds.  A part is one KV head of one layer, K
 * and V; parts are numbered heads inside layers.
 */
#ifndef CKV_KERNELS_CUDA_LOAD_H
#define CKV_KERNELS_CUDA_LOAD_H

#include "kernels/cuda_device.h"
#include "kernels/job.h"

#include <stdbool.h>
#include <stdint.h>

enum { CKV__CUDA_LOAD_COLUMNS = 2 };            /* of a part: K and V; where there is no V, one without bytes */

/* Parts [first, end) of a group, as they lie in the scratch. */
struct ckv__cuda_load {
        uint64_t owner;                         /* of the scratch; 0: nothing is loaded */
        uint32_t group;
        uint64_t first, end;
        uint32_t first_set, sets;
        struct ckv_k_move p;                    /* rows_most and column_count are the launch's */
};

/* ckv__cuda_moves() - does the group move at all? */
static inline bool ckv__cuda_moves(const struct ckv_job_group *group) {
        return group->budget.kept_all == CKV_DROPPED && group->kept_count > 0;
}

/* ckv__cuda_load_parts() - parts of a group; 0 if it does not move */
static inline uint64_t ckv__cuda_load_parts(const struct ckv_job_group *group) {
        return ckv__cuda_moves(group) ? (uint64_t)group->layer_count * group->kv_heads : 0;
}

/**
 * ckv__cuda_load() - see to it that a part is in the scratch, and those behind it
 * @load:  as it was left for an earlier part; zeroed: nothing is loaded
 * @index: of the group
 *
 * Nothing is sent if the part is there already.  Batches have their place in the scratch, and are the caller's.
 *
 * Return: false: an error, and load->owner must be set to 0 before the next try.
 */
bool ckv__cuda_load(struct ckv__cuda_load *load, struct ckv_cuda_device *device, const struct ckv_job_group *group, uint32_t index,
                    uint64_t part);

#endif
