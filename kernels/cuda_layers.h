/*
 * The layers of a batch as the kernels read them, and their queries, which come
 * from the memory of engines on either side of the bus.
 */
#ifndef CKV_KERNELS_CUDA_LAYERS_H
#define CKV_KERNELS_CUDA_LAYERS_H

#include "kernels/cuda_device.h"
#include "kernels/cuda_scheme.h"
#include "kernels/job.h"

#include <stdbool.h>
#include <stdint.h>

/* What they have in the scratch. */
enum ckv__cuda_layer_room {
        CKV__CUDA_LAYER_STRUCTS, CKV__CUDA_LAYER_QUERIES, CKV__CUDA_LAYER_LSE, CKV__CUDA_LAYER_SINKS, _CKV__CUDA_LAYER_ROOMS,
};

struct ckv__cuda_layers {
        struct ckv_k_layer *structs;            /* [room] */
        uint32_t room, count;
        bool staged;                            /* queries lie in host memory, and are sent */
        uint64_t head_stride, row_stride;       /* of queries, as the kernels see them */
};

/* ckv__cuda_layers_deinit() - a zeroed struct is fine */
void ckv__cuda_layers_deinit(struct ckv__cuda_layers *layers);

/* ckv__cuda_layers_rooms() - bytes that one layer takes at most of each of the rooms; @queries: are any read? */
void ckv__cuda_layers_rooms(const struct ckv_job *job, const struct ckv_job_group *group, bool queries,
                            uint64_t ret_each[_CKV__CUDA_LAYER_ROOMS]);

/* ckv__cuda_layers_kind() - what the kernels will see of a layer; all 0 where no queries are read */
struct ckv_cuda_kind ckv__cuda_layers_kind(struct ckv_cuda_device *device, const struct ckv_job *job,
                                           const struct ckv_job_group *group, uint32_t leader);

/* ckv__cuda_layers_choose() - the leader @leader and those behind it that are of its kind, @most at most, at least one. Return:
 * false if out of memory. */
bool ckv__cuda_layers_choose(struct ckv__cuda_layers *layers, struct ckv_cuda_device *device, const struct ckv_job *job,
                             const struct ckv_job_group *group, uint32_t leader, uint32_t most);

/* ckv__cuda_layers_send() - queue all that the kernels need of the chosen layers. @at: the rooms. Return: false: an error. */
bool ckv__cuda_layers_send(struct ckv__cuda_layers *layers, struct ckv_cuda_device *device, const struct ckv_job *job,
                           const struct ckv_job_group *group, uint32_t leader, const CUdeviceptr at[_CKV__CUDA_LAYER_ROOMS]);

#endif
