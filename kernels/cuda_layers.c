/*
 * Engines have queries, log-sum-exps and sink logits where they like: in device
 * memory that they share, or in a memfd.  The kernels read both kinds by the
 * same strides, so what lies in the host's memory is packed densely into the
 * scratch, in the same ring; a batch has layers of one kind only, which go the
 * same way (cuda_scheme.h).
 *
 * The driver says what an address is.  An address that it does not know is the
 * host's: whatever was imported it knows.
 */
#include "kernels/cuda_layers.h"

#include "base/macros.h"
#include "kernels/cuda_shape.h"
#include "kernels/sets.h"

#include <string.h>

void ckv__cuda_layers_deinit(struct ckv__cuda_layers *layers) {
        free(layers->structs);
        *layers = (struct ckv__cuda_layers){ 0 };
}

static uint64_t query_bytes(const struct ckv_job *job, const struct ckv_job_group *group) {
        return (uint64_t)group->head_dim_k * ckv_dtype_bytes(job->queries.dtype);
}

void ckv__cuda_layers_rooms(const struct ckv_job *job, const struct ckv_job_group *group, bool queries,
                            uint64_t ret_each[_CKV__CUDA_LAYER_ROOMS]) {
        uint64_t rows = queries ? job->queries.rows : 0, heads = queries ? group->q_heads : 0;

        ret_each[CKV__CUDA_LAYER_STRUCTS] = sizeof(struct ckv_k_layer);
        ret_each[CKV__CUDA_LAYER_QUERIES] = heads * rows * (queries ? query_bytes(job, group) : 0);
        ret_each[CKV__CUDA_LAYER_LSE] = heads * rows * sizeof(float);
        ret_each[CKV__CUDA_LAYER_SINKS] = heads * sizeof(float);
}

/* Is this an address of the device? */
static bool on_device(struct ckv_cuda_device *device, const uint8_t *at) {
        unsigned int type = CU_MEMORYTYPE_HOST;
        CUresult code = device->cuda.cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, (CUdeviceptr)(uintptr_t)at);

        /* INVALID_VALUE is the answer to an address of the host */
        if (code != CUDA_ERROR_INVALID_VALUE)
                (void)ckv__cuda_said(device, "cuPointerGetAttribute", code);
        return code == CUDA_SUCCESS && type == CU_MEMORYTYPE_DEVICE;
}

struct ckv_cuda_kind ckv__cuda_layers_kind(struct ckv_cuda_device *device, const struct ckv_job *job,
                                           const struct ckv_job_group *group, uint32_t leader) {
        const struct ckv_job_layer *layer = &group->layers[leader];

        if (!ckv_policy_reads_queries(&group->policy))
                return (struct ckv_cuda_kind){ 0 };
        return ckv__cuda_kind(job, group, layer, layer->query && !on_device(device, layer->query));
}

static bool same_kind(const struct ckv_cuda_kind *a, const struct ckv_cuda_kind *b) {
        return a->staged == b->staged && a->lse == b->lse && a->tensor == b->tensor;
}

bool ckv__cuda_layers_choose(struct ckv__cuda_layers *layers, struct ckv_cuda_device *device, const struct ckv_job *job,
                             const struct ckv_job_group *group, uint32_t leader, uint32_t most) {
        struct ckv_cuda_kind kind = ckv__cuda_layers_kind(device, job, group, leader), next;

        most = CKV_MIN(most, group->layer_count - leader);
        if (most > layers->room) {
                free(layers->structs);
                layers->room = 0;
                layers->structs = malloc(most * sizeof(*layers->structs));
                if (!layers->structs)
                        return false;
                layers->room = most;
        }
        layers->staged = kind.staged;
        layers->count = 1;
        for (;;) {
                leader = ckv_sets_next_leader(group, leader);
                if (leader >= group->layer_count || layers->count == most)
                        return true;
                next = ckv__cuda_layers_kind(device, job, group, leader);
                if (!same_kind(&kind, &next))
                        return true;
                layers->count++;
        }
}

/* All queries of a layer, head by head, packed. */
static bool send_queries(struct ckv_cuda_device *device, CUdeviceptr to, const struct ckv_job *job,
                         const struct ckv_job_group *group, const uint8_t *from) {
        const struct ckv_job_queries *queries = &job->queries;
        uint64_t bytes = query_bytes(job, group), most = CKV__CUDA_STAGE_BYTES / bytes;
        uint64_t rows = queries->rows, all = group->q_heads * rows;

        for (uint64_t done = 0; done < all;) {
                uint64_t n = CKV_MIN(all - done, most);
                uint8_t *room = ckv__cuda_up_room(device, n * bytes);

                if (!room)
                        return false;
                for (uint64_t i = 0; i < n; i++)
                        memcpy(room + i * bytes,
                               from + (done + i) / rows * queries->head_stride + (done + i) % rows * queries->row_stride, bytes);
                if (!ckv__cuda_up_send(device, to + done * bytes, room, n * bytes))
                        return false;
                done += n;
        }
        return true;
}

/* Floats of a layer that lie at any address of either side. *ret_at: where the kernels find them; 0: there are none. */
static bool send_floats(struct ckv_cuda_device *device, const uint8_t *from, uint64_t bytes, CUdeviceptr room, uint64_t *ret_at) {
        *ret_at = 0;
        if (!from)
                return true;
        *ret_at = on_device(device, from) ? (CUdeviceptr)(uintptr_t)from : room;
        return *ret_at != room || ckv__cuda_up(device, room, from, bytes);
}

static bool send_layer(struct ckv__cuda_layers *layers, struct ckv_cuda_device *device, const struct ckv_job *job,
                       const struct ckv_job_group *group, const struct ckv_job_layer *layer, uint32_t i,
                       const CUdeviceptr at[_CKV__CUDA_LAYER_ROOMS]) {
        uint64_t rows = job->queries.rows, heads = group->q_heads;
        uint64_t lse_bytes = heads * rows * sizeof(float), sink_bytes = heads * sizeof(float);
        CUdeviceptr queries = at[CKV__CUDA_LAYER_QUERIES] + i * heads * rows * query_bytes(job, group);
        struct ckv_k_layer *to = &layers->structs[i];

        *to = (struct ckv_k_layer){ .k = ckv__cuda_plane(&layer->k), .v = ckv__cuda_plane(&layer->v) };
        if (!ckv_policy_reads_queries(&group->policy))
                return true;
        to->query = layers->staged ? queries : (CUdeviceptr)(uintptr_t)layer->query;
        return (!layers->staged || send_queries(device, queries, job, group, layer->query)) &&
               send_floats(device, layer->lse, lse_bytes, at[CKV__CUDA_LAYER_LSE] + i * lse_bytes, &to->lse) &&
               send_floats(device, layer->sink_logits, sink_bytes, at[CKV__CUDA_LAYER_SINKS] + i * sink_bytes, &to->sink_logits);
}

bool ckv__cuda_layers_send(struct ckv__cuda_layers *layers, struct ckv_cuda_device *device, const struct ckv_job *job,
                           const struct ckv_job_group *group, uint32_t leader, const CUdeviceptr at[_CKV__CUDA_LAYER_ROOMS]) {
        layers->row_stride = layers->staged ? query_bytes(job, group) : job->queries.row_stride;
        layers->head_stride = layers->staged ? job->queries.rows * layers->row_stride : job->queries.head_stride;
        for (uint32_t i = 0; i < layers->count; i++, leader = ckv_sets_next_leader(group, leader))
                if (!send_layer(layers, device, job, group, &group->layers[leader], i, at))
                        return false;
        return ckv__cuda_up(device, at[CKV__CUDA_LAYER_STRUCTS], layers->structs, layers->count * sizeof(*layers->structs));
}
