/*
 * The window queries: one slice of a region, common to all groups, strided by
 * layer, head and row.  A group needs them when its scorer is one of attention
 * and its sequence is long enough to be compressed at all (R20).
 */
#include "daemon/admit.h"

#include "base/checked.h"
#include "base/limits.h"
#include "base/macros.h"
#include "daemon/daemon.h"
#include "daemon/extent.h"
#include "daemon/refuse.h"
#include "daemon/region.h"

static bool needs_queries(const struct ckv_job_group *group) {
        const struct ckv_policy *policy = &group->policy;

        return !group->given && !group->scores.in && (policy->scorer == CKV_SCORER_WINDOW || policy->scorer == CKV_SCORER_RAW_QK) &&
               policy->selector != CKV_SELECTOR_STREAMING && group->selection.rows > 0 &&
               group->selection.rows >= policy->min_tokens && group->selection.rows >= policy->window;
}

/* check_rows() - do the given rows serve each group that needs them? */
static bool check_rows(const struct ckv_job *job, const struct ckv_record_compress *body, struct ckv_record_status *status) {
        for (uint32_t i = 0; i < job->group_count; i++) {
                const struct ckv_job_group *group = &job->groups[i];
                uint32_t last;

                if (!needs_queries(group))
                        continue;
                if (body->query_rows < group->policy.window)
                        return ckv_refuse(status, CKV_CODE_INVALID_ARGUMENT, CKV_F_QUERIES_ROWS, CKV_D_QUERY_ROWS, group->policy.window,
                                          body->query_rows, 0);
                last = ckv_job_last_row(job, group);
                if (last >= group->selection.rows)
                        return ckv_refuse(status, CKV_CODE_OUT_OF_RANGE, CKV_F_QUERIES_LAST_ROW, CKV_D_QUERY_PAST_END, last,
                                          group->selection.rows - 1, 0);
                if (last + 1 < group->policy.window)
                        return ckv_refuse(status, CKV_CODE_OUT_OF_RANGE, CKV_F_QUERIES_LAST_ROW, CKV_D_AT_LEAST,
                                          group->policy.window - 1, last, 0);
        }
        return true;
}

/* check_form() - dtype, counts, strides; *ret_element is the size of one element */
static bool check_form(const struct ckv_record_compress *body, uint64_t *ret_element, struct ckv_record_status *status) {
        uint64_t element;

        if (body->query_dtype < CKV_DTYPE_F32 || body->query_dtype > CKV_DTYPE_BF16)
                return ckv_refuse(status, CKV_CODE_INVALID_ARGUMENT, CKV_F_QUERIES_DTYPE, CKV_D_ENUM, body->query_dtype, 0, 0);
        if (body->query_rows < 1 || body->query_rows > 256)
                return ckv_refuse(status, CKV_CODE_OUT_OF_RANGE, CKV_F_QUERIES_ROWS, CKV_D_RANGE, 1, 256, body->query_rows);
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

/* find_index() - place of a layer among those whose queries are present: its index in the given list, or its rank
 * among the layers of all groups; -1 if it is not listed */
static int64_t find_index(const struct ckv_job *job, const struct ckv_compress_parts *parts, uint32_t number) {
        const uint32_t *listed = parts->query_layers;
        int64_t rank = 0;

        if (parts->body->query_layer_count) {
                for (uint32_t i = 0; i < parts->body->query_layer_count && listed[i] <= number; i++)
                        if (listed[i] == number)
                                return i;
                return -1;
        }
        for (uint32_t i = 0; i < job->group_count; i++)
                for (uint32_t k = 0; k < job->groups[i].layer_count && job->groups[i].layers[k].number < number; k++)
                        rank++;
        return rank;
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

bool ckv_admit_queries(struct ckv_request *request, const struct ckv_compress_parts *parts, struct ckv_record_status *ret_status) {
        const struct ckv_record_compress *body = parts->body;
        struct ckv_job *job = request->job;
        struct ckv_region *region;
        uint8_t *address;
        uint64_t element;
        bool needed = false;

        for (uint32_t i = 0; i < job->group_count; i++)
                needed = needed || needs_queries(&job->groups[i]);
        if (!body->has_queries)
                return !needed || ckv_refuse(ret_status, CKV_CODE_INVALID_ARGUMENT, CKV_F_QUERIES, CKV_D_MISSING, 0, 0, 0);
        if (!check_form(body, &element, ret_status))
                return false;
        for (uint32_t i = 1; i < body->query_layer_count; i++)
                if (parts->query_layers[i] <= parts->query_layers[i - 1])
                        return ckv_refuse_at(ret_status, CKV_CODE_INVALID_ARGUMENT, CKV_F_QUERIES_LAYERS, i, 0, CKV_D_ORDER, i, 0, 0);
        if (!ckv_region_slice(request->session, &body->queries, 0, CKV_F_QUERIES_DATA, ret_status, &region, &address))
                return false;
        if ((uintptr_t)address % element)
                return ckv_refuse(ret_status, CKV_CODE_INVALID_ARGUMENT, CKV_F_QUERIES_DATA, CKV_D_UNALIGNED, element,
                                  body->queries.offset, 0);
        if (ckv_request_use_region(request, region))
                return ckv_refuse(ret_status, CKV_CODE_NO_MEMORY, CKV_F_NONE, CKV_D_NO_MEMORY, 0, 0, 0);
        job->queries = (struct ckv_job_queries){
                .dtype = (enum ckv_dtype)body->query_dtype, .rows = body->query_rows, .ring_start = body->query_ring_start,
                .head_stride = body->query_head_stride, .row_stride = body->query_row_stride, .last_row = body->query_last_row,
        };
        if (!check_rows(job, body, ret_status))
                return false;
        for (uint32_t i = 0; i < job->group_count; i++) {
                struct ckv_job_group *group = &job->groups[i];

                if (!needs_queries(group))
                        continue;
                for (uint32_t k = 0; k < group->layer_count; k++) {
                        int64_t index = find_index(job, parts, group->layers[k].number);
                        bool scored = k % group->policy.reuse == 0;

                        if (index < 0 && scored)
                                return ckv_refuse(ret_status, CKV_CODE_INVALID_ARGUMENT, CKV_F_QUERIES, CKV_D_QUERY_LAYER_MISSING,
                                                  group->layers[k].number, 0, 0);
                        if (index >= 0 && !place_layer(group, &group->layers[k], (uint64_t)index, body, address, element, ret_status))
                                return false;
                }
        }
        return true;
}
