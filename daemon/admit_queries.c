/*
 * The window queries: one slice of a region, common to all groups, strided by
 * layer, head and row.  A group needs them when its scorer is one of attention
 * and its sequence is long enough to be compressed at all (R20).
 */
#include "daemon/admit.h"

#include "base/checked.h"
#include "base/limits.h"
#include "base/macros.h"
#include "daemon/cache.h"
#include "daemon/daemon.h"
#include "daemon/extent.h"
#include "daemon/refuse.h"
#include "daemon/region.h"

#include <errno.h>

/* needs_queries() - is the group scored by queries? Then admit_policy.c saw to it that there are enough of them. */
static bool needs_queries(const struct ckv_job_group *group) {
        const struct ckv_policy *policy = &group->policy;
        uint32_t rows = group->selection.rows;

        return !group->given && !group->scores.in && ckv_policy_reads_queries(policy) && rows > 0 && rows >= policy->min_tokens &&
               rows >= ckv_policy_window(policy, rows);
}

/* check_last_row() - does the newest query lie in each group that needs queries, and all that vote with it? */
static bool check_last_row(const struct ckv_job *job, struct ckv_record_status *status) {
        for (uint32_t i = 0; i < job->group_count; i++) {
                const struct ckv_job_group *group = &job->groups[i];
                uint32_t window = ckv_policy_window(&group->policy, group->selection.rows), last;

                if (!needs_queries(group))
                        continue;
                last = ckv_job_last_row(job, group);
                if (last >= group->selection.rows)
                        return ckv_refuse(status, CKV_CODE_OUT_OF_RANGE, CKV_F_QUERIES_LAST_ROW, CKV_D_QUERY_PAST_END, last,
                                          group->selection.rows - 1, 0);
                if (last + 1 < window)
                        return ckv_refuse(status, CKV_CODE_OUT_OF_RANGE, CKV_F_QUERIES_LAST_ROW, CKV_D_AT_LEAST, window - 1, last, 0);
        }
        return true;
}

/* check_form() - dtype, counts (@most_rows: of queries), strides; *ret_element is the size of one element */
static bool check_form(const struct ckv_record_compress *body, uint32_t most_rows, uint64_t *ret_element,
                       struct ckv_record_status *status) {
        uint64_t element;

        if (body->query_dtype < CKV_DTYPE_F32 || body->query_dtype > CKV_DTYPE_BF16)
                return ckv_refuse(status, CKV_CODE_INVALID_ARGUMENT, CKV_F_QUERIES_DTYPE, CKV_D_ENUM, body->query_dtype, 0, 0);
        if (body->query_rows < 1 || body->query_rows > most_rows)
                return ckv_refuse(status, CKV_CODE_OUT_OF_RANGE, CKV_F_QUERIES_ROWS, CKV_D_RANGE, 1, most_rows, body->query_rows);
        if (body->query_ring_start >= body->query_rows)
                return ckv_refuse(status, CKV_CODE_OUT_OF_RANGE, CKV_F_QUERIES_RING_START, CKV_D_AT_MOST, body->query_rows - 1,
                                  body->query_ring_start, 0);
        element = ckv_dtype_bytes((enum ckv_dtype)body->query_dtype);
        if (body->query_layer_stride % element)
                return ckv_refuse(status, CKV_CODE_INVALID_ARGUMENT, CKV_F_QUERIES_LAYER_STRIDE, CKV_D_UNALIGNED, element,
                                  body->query_layer_stride, 0);
        if (body->query_head_stride % element)
                return ckv_refuse(status, CKV_CODE_INVALID_ARGUMENT, CKV_F_QUERIES_HEAD_STRIDE, CKV_D_UNALIGNED, element,
                                  body->query_head_stride, 0);
        if (body->query_row_stride % element)
                return ckv_refuse(status, CKV_CODE_INVALID_ARGUMENT, CKV_F_QUERIES_ROW_STRIDE, CKV_D_UNALIGNED, element,
                                  body->query_row_stride, 0);
        *ret_element = element;
        return true;
}

/* Which layers have queries, by layer number. */
struct places {
        struct ckv_query_place *of;     /* [count] */
        uint32_t count, layers;         /* one more than the highest layer number of the cache; layers present */
        uint64_t heads;                 /* query heads of all layers present */
};

static void places_deinit(struct places *places) {
        free(places->of);
}

/* add_place() - the next layer present; layers that the cache does not have take no room */
static void add_place(struct places *places, uint32_t number) {
        struct ckv_query_place *place = number < places->count ? &places->of[number] : NULL;

        if (place) {
                place->present = true;
                place->index = places->layers;
                place->heads_before = places->heads;
                places->heads += place->q_heads;
        }
        places->layers++;
}

/* find_places() - of the listed layers, else of all layers of all groups named, ascending. Return: 0 or -ENOMEM. */
static int find_places(const struct ckv_request *request, const struct ckv_compress_parts *parts, struct places *ret_places) {
        const struct ckv_cache *cache = request->cache;
        struct places *places = ret_places;

        for (uint32_t i = 0; i < cache->group_count; i++)
                places->count = CKV_MAX(places->count, cache->groups[i].layers[cache->groups[i].layer_count - 1].number + 1);
        places->of = calloc(places->count, sizeof(*places->of));
        if (!places->of)
                return -ENOMEM;
        for (uint32_t i = 0; i < cache->group_count; i++)
                for (uint32_t k = 0; k < cache->groups[i].layer_count; k++)
                        places->of[cache->groups[i].layers[k].number].q_heads = cache->groups[i].q_heads;
        for (uint32_t i = 0; i < parts->body->query_layer_count; i++)
                add_place(places, parts->query_layers[i]);
        if (parts->body->query_layer_count)
                return 0;
        for (uint32_t i = 0; i < request->job->group_count; i++)
                for (uint32_t k = 0; k < request->job->groups[i].layer_count; k++)
                        places->of[request->job->groups[i].layers[k].number].present = true;
        for (uint32_t number = 0; number < places->count; number++)
                if (places->of[number].present)
                        add_place(places, number);
        return 0;
}

/* leads() - is layer @k of a part scored? Leaders are counted over the whole group; the first layer of a part leads itself. */
static bool leads(const struct ckv_job_group *group, uint32_t k) {
        return k == 0 || (group->layer_index + k) % group->policy.reuse == 0;
}

/* place_layer() - address of one layer's queries; all of them must lie in the slice, at bytes of their own */
static bool place_layer(const struct ckv_job_group *group, struct ckv_job_layer *layer, uint64_t index,
                        const struct ckv_record_compress *body, const uint8_t *address, uint64_t element,
                        struct ckv_record_status *status) {
        struct ckv_dim dims[] = {
                { index + 1, body->query_layer_stride }, { group->q_heads, body->query_head_stride },
                { body->query_rows, body->query_row_stride },
        };
        uint64_t bytes;

        if (!ckv_extent(dims, 3, group->head_dim_k * element, &bytes))
                return ckv_refuse(status, CKV_CODE_OUT_OF_RANGE, CKV_F_QUERIES_DATA, CKV_D_OVERFLOW, 0, 0, 0);
        if (bytes > body->queries.size)
                return ckv_refuse(status, CKV_CODE_OUT_OF_RANGE, CKV_F_QUERIES_DATA, CKV_D_AT_LEAST, bytes, body->queries.size, 0);
        if (!ckv_dims_distinct(dims, 3, group->head_dim_k * element))
                return ckv_refuse(status, CKV_CODE_INVALID_ARGUMENT, CKV_F_QUERIES_DATA, CKV_D_OVERLAP, 0, 0, 0);
        layer->query = address + index * body->query_layer_stride;
        return true;
}

/* place_groups() - the queries of every layer that has them, and that each layer to be scored does */
static bool place_groups(const struct ckv_job *job, const struct ckv_record_compress *body, const struct places *places,
                         const uint8_t *address, uint64_t element, struct ckv_record_status *status) {
        for (uint32_t i = 0; i < job->group_count; i++) {
                struct ckv_job_group *group = &job->groups[i];

                for (uint32_t k = 0; needs_queries(group) && k < group->layer_count; k++) {
                        const struct ckv_query_place *place = &places->of[group->layers[k].number];

                        if (!place->present && leads(group, k))
                                return ckv_refuse(status, CKV_CODE_INVALID_ARGUMENT, CKV_F_QUERIES, CKV_D_QUERY_LAYER_MISSING,
                                                  group->layers[k].number, 0, 0);
                        if (place->present && !place_layer(group, &group->layers[k], place->index, body, address, element, status))
                                return false;
                }
        }
        return true;
}

bool ckv_admit_queries(struct ckv_request *request, const struct ckv_compress_parts *parts, struct ckv_record_status *ret_status) {
        const struct ckv_record_compress *body = parts->body;
        _cleanup_(places_deinit) struct places places = { 0 };
        struct ckv_job *job = request->job;
        struct ckv_region *region;
        uint8_t *address;
        uint64_t element;
        bool all_rows = false;

        for (uint32_t i = 0; i < job->group_count; i++)
                all_rows = all_rows || job->groups[i].policy.selector == CKV_SELECTOR_H2O;
        if (!body->has_queries && (body->lse.region_id || body->sink_logits.region_id))
                return ckv_refuse(ret_status, CKV_CODE_INVALID_ARGUMENT, body->lse.region_id ? CKV_F_QUERIES_LSE : CKV_F_QUERIES_SINK_LOGITS,
                                  CKV_D_NOT_USED, 0, 0, 0);
        if (!body->has_queries)
                return true;    /* who needs them was refused by its policy */
        if (!check_form(body, all_rows ? (uint32_t)CKV_H2O_ROWS_MAX : (uint32_t)CKV_LIMIT_QUERY_ROWS, &element, ret_status))
                return false;
        for (uint32_t i = 1; i < body->query_layer_count; i++)
                if (parts->query_layers[i] <= parts->query_layers[i - 1])
                        return ckv_refuse_at(ret_status, CKV_CODE_INVALID_ARGUMENT, CKV_F_QUERIES_LAYERS, i, 0, CKV_D_ORDER, i, 0, 0);
        if (!ckv_region_slice(request->session, &body->queries, 0, CKV_F_QUERIES_DATA, ret_status, &region, &address))
                return false;
        if ((uintptr_t)address % element)
                return ckv_refuse(ret_status, CKV_CODE_INVALID_ARGUMENT, CKV_F_QUERIES_DATA, CKV_D_UNALIGNED, element,
                                  body->queries.offset, 0);
        if (ckv_request_use_region(request, region) || ckv_request_pull(request, region, address, body->queries.size))
                return ckv_refuse(ret_status, CKV_CODE_NO_MEMORY, CKV_F_NONE, CKV_D_NO_MEMORY, 0, 0, 0);
        job->queries = (struct ckv_job_queries){
                .dtype = (enum ckv_dtype)body->query_dtype, .rows = body->query_rows, .ring_start = body->query_ring_start,
                .head_stride = body->query_head_stride, .row_stride = body->query_row_stride, .last_row = body->query_last_row,
        };
        if (!check_last_row(job, ret_status))
                return false;
        if (find_places(request, parts, &places))
                return ckv_refuse(ret_status, CKV_CODE_NO_MEMORY, CKV_F_NONE, CKV_D_NO_MEMORY, 0, 0, 0);
        return place_groups(job, body, &places, address, element, ret_status) &&
               ckv_admit_floats(request, parts, places.of, places.layers, places.heads, ret_status);
}
