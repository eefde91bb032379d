/*
 * What an engine may bring beside its queries: the log-sum-exp of each query
 * row, which saves one pass over the keys, and the sink logits of models that
 * have them.  Both are dense binary32 over the listed layers, [q_heads][rows]
 * and [q_heads] of each; layers of groups with other numbers of heads take
 * other room.  Their sizes must be exact: a slice of another size is of other
 * queries.
 */
#include "daemon/admit.h"

#include "base/macros.h"
#include "daemon/cache.h"
#include "daemon/daemon.h"
#include "daemon/refuse.h"
#include "daemon/region.h"

/* One of the two slices on its way into the job. */
struct floats {
        enum ckv_field field;
        const struct ckv_record_slice *slice;
        uint64_t head_bytes;            /* of one query head */
        const uint8_t *address;         /* NULL: not given */
};

static bool is_given(const struct ckv_record_slice *slice) {
        return slice->region_id || slice->size || slice->offset;
}

/* take() - check the slice, and set floats->address */
static bool take(struct ckv_request *request, uint32_t layers, uint64_t heads, struct floats *floats,
                 struct ckv_record_status *status) {
        struct ckv_region *region;
        uint8_t *address;

        if (!is_given(floats->slice))
                return true;
        if (!ckv_region_slice(request->session, floats->slice, 0, (uint16_t)floats->field, status, &region, &address))
                return false;
        if (floats->slice->size != heads * floats->head_bytes)
                return ckv_refuse(status, CKV_CODE_INVALID_ARGUMENT, floats->field, CKV_D_FLOATS_SIZE, heads * floats->head_bytes,
                                  layers, floats->slice->size);
        if (ckv_request_use_region(request, region) || ckv_request_pull(request, region, address, floats->slice->size))
                return ckv_refuse(status, CKV_CODE_NO_MEMORY, CKV_F_NONE, CKV_D_NO_MEMORY, 0, 0, 0);
        floats->address = address;
        return true;
}

/* check_listed() - a layer that the cache does not have would take room of an unknown size */
static bool check_listed(const struct ckv_request *request, const struct ckv_compress_parts *parts,
                         const struct ckv_query_place *places, struct ckv_record_status *status) {
        const struct ckv_cache *cache = request->cache;
        uint32_t highest = 0;

        for (uint32_t i = 0; i < cache->group_count; i++)
                highest = CKV_MAX(highest, cache->groups[i].layers[cache->groups[i].layer_count - 1].number);
        for (uint32_t i = 0; i < parts->body->query_layer_count; i++)
                if (parts->query_layers[i] > highest || places[parts->query_layers[i]].q_heads == 0)
                        return ckv_refuse_at(status, CKV_CODE_INVALID_ARGUMENT, CKV_F_QUERIES_LAYERS, i, 0, CKV_D_LAYER_UNKNOWN,
                                             parts->query_layers[i], 0, 0);
        return true;
}

bool ckv_admit_floats(struct ckv_request *request, const struct ckv_compress_parts *parts, const struct ckv_query_place *places,
                      uint32_t layers, uint64_t heads, struct ckv_record_status *ret_status) {
        const struct ckv_record_compress *body = parts->body;
        struct floats lse = { CKV_F_QUERIES_LSE, &body->lse, body->query_rows * sizeof(float), NULL };
        struct floats sinks = { CKV_F_QUERIES_SINK_LOGITS, &body->sink_logits, sizeof(float), NULL };

        if (!is_given(lse.slice) && !is_given(sinks.slice))
                return true;
        if (!check_listed(request, parts, places, ret_status) || !take(request, layers, heads, &lse, ret_status) ||
            !take(request, layers, heads, &sinks, ret_status))
                return false;
        for (uint32_t i = 0; i < request->job->group_count; i++) {
                struct ckv_job_group *group = &request->job->groups[i];

                for (uint32_t k = 0; k < group->layer_count; k++) {
                        struct ckv_job_layer *layer = &group->layers[k];
                        uint64_t before = places[layer->number].heads_before;

                        if (!layer->query)
                                continue;       /* not listed, or not scored by queries */
                        if (lse.address)
                                layer->lse = lse.address + before * lse.head_bytes;
                        if (sinks.address)
                                layer->sink_logits = sinks.address + before * sinks.head_bytes;
                }
        }
        return true;
}
