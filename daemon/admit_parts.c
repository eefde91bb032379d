/*
 * The layers of a group, cut where its policies change.  A hybrid request has
 * several policies for one group (chunks in the lower half of the model, tokens
 * in the upper half); to a backend each of these parts is a group of its own.
 * Its lists are the same ones: they are read and paid for once, and the parts
 * behind the first borrow them.
 */
#include "daemon/admit.h"

#include "base/macros.h"
#include "daemon/cache.h"
#include "daemon/daemon.h"
#include "daemon/refuse.h"
#include "daemon/region.h"

/* first_layer() - index of the layer that a policy begins with; @after: where the policy before it begins */
static bool first_layer(const struct ckv_cache_group *group, const struct ckv_record_policy *policies, struct ckv_part part,
                        uint32_t after, uint32_t *ret_layer, struct ckv_record_status *status) {
        uint32_t number = policies[part.policy].layer_first;

        if (part.policy == 0) {
                if (number != 0 && number != group->layers[0].number)
                        return ckv_refuse_at(status, CKV_CODE_INVALID_ARGUMENT, CKV_F_POLICY_LAYER_FIRST, part.group, 0,
                                             CKV_D_FIRST_POLICY, group->layers[0].number, number, 0);
                *ret_layer = 0;
                return true;
        }
        for (uint32_t k = 0; k < group->layer_count; k++) {
                if (group->layers[k].number != number)
                        continue;
                if (k <= after)
                        return ckv_refuse_at(status, CKV_CODE_INVALID_ARGUMENT, CKV_F_POLICY_LAYER_FIRST, part.group, part.policy,
                                             CKV_D_ORDER, part.policy, 0, 0);
                *ret_layer = k;
                return true;
        }
        return ckv_refuse_at(status, CKV_CODE_INVALID_ARGUMENT, CKV_F_POLICY_LAYER_FIRST, part.group, part.policy,
                             CKV_D_NOT_IN_GROUP, number, 0, 0);
}

/* take_layers() - addresses of the layers of one part, and a use of each region; @first and @end: indices in the cache's group */
static bool take_layers(struct ckv_request *request, const struct ckv_cache_group *from, uint32_t first, uint32_t end,
                        struct ckv_job_group *group, struct ckv_record_status *status) {
        group->layers = calloc(end - first, sizeof(*group->layers));
        if (!group->layers)
                return ckv_refuse(status, CKV_CODE_NO_MEMORY, CKV_F_NONE, CKV_D_NO_MEMORY, 0, 0, 0);
        group->layer_index = first;
        group->layer_count = end - first;
        group->kv_heads = from->kv_heads;
        group->q_heads = from->q_heads;
        group->head_dim_k = from->head_dim_k;
        group->head_dim_v = from->head_dim_v;
        for (uint32_t k = 0; k < group->layer_count; k++) {
                const struct ckv_cache_layer *layer = &from->layers[first + k];
                struct ckv_region *regions[] = { layer->k_region, layer->v_region };

                group->layers[k] = (struct ckv_job_layer){ .number = layer->number, .k = layer->k, .v = layer->v };
                for (size_t r = 0; r < CKV_ARRAY_SIZE(regions); r++) {
                        if (!regions[r])
                                continue;       /* latent: no V */
                        if (request->mode != CKV_MODE_PLAN && !regions[r]->writable)
                                return ckv_refuse(status, CKV_CODE_PERMISSION, CKV_F_COMPRESS_MODE, CKV_D_READ_ONLY, regions[r]->id,
                                                  0, 0);
                        if (ckv_request_use_region(request, regions[r]))
                                return ckv_refuse(status, CKV_CODE_NO_MEMORY, CKV_F_NONE, CKV_D_NO_MEMORY, 0, 0, 0);
                }
        }
        return true;
}

bool ckv_admit_parts(struct ckv_request *request, const struct ckv_record_group *group, const struct ckv_record_policy *policies,
                     uint32_t index, struct ckv_record_status *ret_status) {
        const struct ckv_cache_group *from = &request->cache->groups[group->group];
        const struct ckv_request_group *parts = &request->groups[index];
        uint32_t first = 0;

        for (uint32_t k = 0; k < parts->part_count; k++) {
                struct ckv_job_group *part = &request->job->groups[parts->first_part + k];
                uint32_t end = from->layer_count;

                if ((k == 0 && !first_layer(from, policies, (struct ckv_part){ index, 0 }, 0, &first, ret_status)) ||
                    (k + 1 < parts->part_count &&
                     !first_layer(from, policies, (struct ckv_part){ index, k + 1 }, first, &end, ret_status)))
                        return false;
                part->number = group->group;
                part->selection.rows = group->physical_len;
                if (!take_layers(request, from, first, end, part, ret_status))
                        return false;
                first = end;
        }
        return true;
}

void ckv_parts_share(struct ckv_request *request, uint32_t index) {
        const struct ckv_request_group *parts = &request->groups[index];
        const struct ckv_job_group *owner = &request->job->groups[parts->first_part];

        for (uint32_t k = 1; k < parts->part_count; k++) {
                struct ckv_job_group *part = &request->job->groups[parts->first_part + k];

                part->shares_lists = true;
                part->table = owner->table;
                part->destination = owner->destination;
                part->destination_rows = owner->destination_rows;
                part->selection = owner->selection;
                part->selection.policy = &part->policy;
        }
}
