/*
 * RegisterCache.  The client describes planes by strides; here each plane is
 * checked against each layer it covers, for every block, head, token and
 * dimension at once by its extent, and turned into addresses.  After that a
 * block id below num_blocks is all that a compress request has to prove.
 *
 * Refused beyond what cannot be addressed: strides that let two elements share
 * bytes, because moving one row would then change another; and elements off
 * their natural alignment.
 */
#include "daemon/cache.h"

#include "base/checked.h"
#include "base/limits.h"
#include "base/macros.h"
#include "daemon/alias.h"
#include "daemon/daemon.h"
#include "daemon/extent.h"
#include "daemon/refuse.h"
#include "daemon/region.h"
#include "daemon/session.h"

#include <math.h>
#include <string.h>

/* The attachment of REGISTER_CACHE, by its parts. */
struct parts {
        const struct ckv_record_cache_group *groups;
        const struct ckv_record_plane *planes;
        const uint32_t *layers;
        uint32_t group_count, plane_count;
};

/* cut_attachment() - the counts of the body must give the attachment's length exactly */
static bool cut_attachment(const struct ckv_record_cache *body, const uint8_t *attachment, uint32_t bytes, struct parts *ret_parts,
                           struct ckv_record_status *status) {
        uint64_t groups, planes, words;

        if (body->group_count < 1 || body->group_count > CKV_LIMIT_GROUPS)
                return ckv_refuse(status, CKV_CODE_OUT_OF_RANGE, CKV_F_CACHE_GROUPS, CKV_D_COUNT, 1, CKV_LIMIT_GROUPS,
                                  body->group_count);
        if (body->plane_count < 1 || body->plane_count > CKV_LIMIT_PLANES)
                return ckv_refuse(status, CKV_CODE_OUT_OF_RANGE, CKV_F_CACHE_PLANES, CKV_D_COUNT, 1, CKV_LIMIT_PLANES,
                                  body->plane_count);
        groups = (uint64_t)body->group_count * sizeof(struct ckv_record_cache_group);
        planes = (uint64_t)body->plane_count * sizeof(struct ckv_record_plane);
        words = (uint64_t)body->layer_word_count * sizeof(uint32_t);
        if (groups + planes + words != bytes)
                return ckv_refuse(status, CKV_CODE_INTERNAL, CKV_F_NONE, CKV_D_INTERNAL, 0, 0, 0);
        *ret_parts = (struct parts){
                .groups = (const void *)attachment,
                .planes = (const void *)(attachment + groups),
                .layers = (const void *)(attachment + groups + planes),
                .group_count = body->group_count,
                .plane_count = body->plane_count,
        };
        for (uint32_t i = 0; i < body->group_count; i++) {
                if (ret_parts->groups[i].layer_count > body->layer_word_count)
                        return ckv_refuse(status, CKV_CODE_INTERNAL, CKV_F_NONE, CKV_D_INTERNAL, 0, 0, 0);
                words -= CKV_MIN(words, (uint64_t)ret_parts->groups[i].layer_count * sizeof(uint32_t));
        }
        return words == 0 || ckv_refuse(status, CKV_CODE_INTERNAL, CKV_F_NONE, CKV_D_INTERNAL, 0, 0, 0);
}

/* check_shape() - heads, dimensions and blocks of one group */
static bool check_shape(const struct ckv_record_cache_group *g, uint32_t i, struct ckv_record_status *status) {
        const struct {
                enum ckv_field field;
                uint64_t value, low, high;
        } bounds[] = {
                { CKV_F_CACHE_GROUP_LAYERS, g->layer_count, 1, CKV_LIMIT_LAYER_NUMBER + 1 },
                { CKV_F_CACHE_GROUP_KV_HEADS, g->kv_heads, 1, CKV_LIMIT_HEADS },
                { CKV_F_CACHE_GROUP_Q_HEADS, g->q_heads, 1, UINT32_MAX },
                { CKV_F_CACHE_GROUP_HEAD_DIM_K, g->head_dim_k, 1, CKV_LIMIT_HEAD_DIM },
                { CKV_F_CACHE_GROUP_HEAD_DIM_V, g->head_dim_v, 0, CKV_LIMIT_HEAD_DIM },
                { CKV_F_CACHE_GROUP_TOKENS_PER_BLOCK, g->tokens_per_block, 1, CKV_LIMIT_TOKENS_PER_BLOCK },
                { CKV_F_CACHE_GROUP_NUM_BLOCKS, g->num_blocks, 1, UINT32_MAX },
        };

        for (size_t k = 0; k < CKV_ARRAY_SIZE(bounds); k++)
                if (bounds[k].value < bounds[k].low || bounds[k].value > bounds[k].high)
                        return ckv_refuse_at(status, CKV_CODE_OUT_OF_RANGE, bounds[k].field, i, 0, CKV_D_RANGE, bounds[k].low,
                                             bounds[k].high, bounds[k].value);
        if (g->q_heads % g->kv_heads)
                return ckv_refuse_at(status, CKV_CODE_INVALID_ARGUMENT, CKV_F_CACHE_GROUP_Q_HEADS, i, 0, CKV_D_MULTIPLE, g->kv_heads,
                                     g->q_heads, 0);
        return true;
}

struct ckv_cache_layer *ckv_cache_find_layer(const struct ckv_cache *cache, uint32_t number,
                                             const struct ckv_cache_group **ret_group) {
        for (uint32_t i = 0; i < cache->group_count; i++) {
                const struct ckv_cache_group *group = &cache->groups[i];
                uint32_t low = 0, high = group->layer_count;

                while (low < high) {
                        uint32_t middle = low + (high - low) / 2;

                        if (group->layers[middle].number < number)
                                low = middle + 1;
                        else
                                high = middle;
                }
                if (low < group->layer_count && group->layers[low].number == number) {
                        *ret_group = group;
                        return &group->layers[low];
                }
        }
        return NULL;
}

/* add_group() - take over one group's shape and layer numbers; ascending, each layer in one group only */
static bool add_group(struct ckv_cache *cache, const struct ckv_record_cache_group *from, const uint32_t *numbers, uint32_t i,
                      struct ckv_record_status *status) {
        struct ckv_cache_group *group = &cache->groups[i];
        const struct ckv_cache_group *other = NULL;

        if (!check_shape(from, i, status))
                return false;
        *group = (struct ckv_cache_group){
                .kv_heads = from->kv_heads, .q_heads = from->q_heads, .head_dim_k = from->head_dim_k,
                .head_dim_v = from->head_dim_v, .tokens_per_block = from->tokens_per_block, .num_blocks = from->num_blocks,
        };
        group->layers = calloc(from->layer_count, sizeof(*group->layers));
        if (!group->layers)
                return ckv_refuse(status, CKV_CODE_NO_MEMORY, CKV_F_NONE, CKV_D_NO_MEMORY, 0, 0, 0);
        for (uint32_t k = 0; k < from->layer_count; k++) {
                if (numbers[k] > CKV_LIMIT_LAYER_NUMBER)
                        return ckv_refuse_at(status, CKV_CODE_OUT_OF_RANGE, CKV_F_CACHE_GROUP_LAYERS, i, 0, CKV_D_AT_MOST,
                                             CKV_LIMIT_LAYER_NUMBER, numbers[k], 0);
                if (k > 0 && numbers[k] <= numbers[k - 1])
                        return ckv_refuse_at(status, CKV_CODE_INVALID_ARGUMENT, CKV_F_CACHE_GROUP_LAYERS, i, 0, CKV_D_ORDER, k, 0, 0);
                if (ckv_cache_find_layer(cache, numbers[k], &other))
                        return ckv_refuse_at(status, CKV_CODE_INVALID_ARGUMENT, CKV_F_CACHE_GROUP_LAYERS, i, 0, CKV_D_LAYER_TWICE,
                                             numbers[k], 0, 0);
                group->layers[k].number = numbers[k];
                group->layer_count = k + 1;
        }
        return true;
}

/* check_plane() - what can be said of a plane without its layers */
static bool check_plane(const struct ckv_record_plane *p, uint32_t i, struct ckv_record_status *status) {
        if (p->kind == CKV_PLANE_OPAQUE)
                return ckv_refuse_at(status, CKV_CODE_UNSUPPORTED, CKV_F_CACHE_PLANE_KIND, i, 0, CKV_D_NOT_BUILT, 0, 0, 0);
        if (p->kind < CKV_PLANE_K || p->kind > CKV_PLANE_LATENT)
                return ckv_refuse_at(status, CKV_CODE_INVALID_ARGUMENT, CKV_F_CACHE_PLANE_KIND, i, 0, CKV_D_ENUM, p->kind, 0, 0);
        if (p->dtype < CKV_DTYPE_F32 || p->dtype > CKV_DTYPE_BYTE)
                return ckv_refuse_at(status, CKV_CODE_INVALID_ARGUMENT, CKV_F_CACHE_PLANE_DTYPE, i, 0, CKV_D_ENUM, p->dtype, 0, 0);
        if (p->dtype > CKV_DTYPE_BF16)
                return ckv_refuse_at(status, CKV_CODE_UNSUPPORTED, CKV_F_CACHE_PLANE_DTYPE, i, 0, CKV_D_NOT_BUILT, 0, 0, 0);
        if (p->layer_count < 1 || p->layer_count > CKV_LIMIT_PLANE_LAYERS)
                return ckv_refuse_at(status, CKV_CODE_OUT_OF_RANGE, CKV_F_CACHE_PLANE_LAYER_COUNT, i, 0, CKV_D_RANGE, 1,
                                     CKV_LIMIT_PLANE_LAYERS, p->layer_count);
        if (p->layer_first > CKV_LIMIT_LAYER_NUMBER)
                return ckv_refuse_at(status, CKV_CODE_OUT_OF_RANGE, CKV_F_CACHE_PLANE_LAYER_FIRST, i, 0, CKV_D_AT_MOST,
                                     CKV_LIMIT_LAYER_NUMBER, p->layer_first, 0);
        if (!isfinite(p->scale))
                return ckv_refuse_at(status, CKV_CODE_INVALID_ARGUMENT, CKV_F_CACHE_PLANE_SCALE, i, 0, CKV_D_FINITE, 0, 0, 0);
        return true;
}

/* check_alignment() - elements must lie at multiples of their size, whatever indices lead to them */
static bool check_alignment(const struct ckv_record_plane *p, const struct ckv_region *region, uint32_t i,
                            struct ckv_record_status *status) {
        uint64_t element = ckv_dtype_bytes((enum ckv_dtype)p->dtype);
        const struct {
                enum ckv_field field;
                uint64_t value;
        } strides[] = {
                { CKV_F_CACHE_PLANE_OFFSET, (uintptr_t)region->mapping.base % element + p->offset % element },
                { CKV_F_CACHE_PLANE_LAYER_STRIDE, p->layer_stride }, { CKV_F_CACHE_PLANE_BLOCK_STRIDE, p->block_stride },
                { CKV_F_CACHE_PLANE_HEAD_STRIDE, p->head_stride }, { CKV_F_CACHE_PLANE_TOKEN, p->token_outer },
                { CKV_F_CACHE_PLANE_TOKEN, p->token_inner }, { CKV_F_CACHE_PLANE_DIM, p->dim_outer },
                { CKV_F_CACHE_PLANE_DIM, p->dim_inner },
        };

        for (size_t k = 0; k < CKV_ARRAY_SIZE(strides); k++)
                if (strides[k].value % element)
                        return ckv_refuse_at(status, CKV_CODE_INVALID_ARGUMENT, strides[k].field, i, 0, CKV_D_UNALIGNED, element,
                                             strides[k].value, 0);
        return true;
}

/* check_extent() - every element of the plane of one group's shape lies in the region, at bytes of its own;
 * *ret_layer_bytes: from the first byte of a layer to its last */
static bool check_extent(const struct ckv_record_plane *p, const struct ckv_cache_group *group, const struct ckv_plane *plane,
                         const struct ckv_region *region, uint32_t i, uint64_t *ret_layer_bytes, struct ckv_record_status *status) {
        struct ckv_dim dims[7] = {
                { p->layer_count, p->layer_stride }, { group->num_blocks, p->block_stride }, { group->kv_heads, p->head_stride },
        };
        uint64_t element = ckv_dtype_bytes(plane->dtype), token_reach, dim_reach, bytes;

        if (!ckv_axis_reach(&plane->token, group->tokens_per_block, &token_reach) ||
            !ckv_axis_reach(&plane->dim, plane->dims, &dim_reach) || !ckv_add_u64(element, token_reach, &bytes) ||
            !ckv_add_u64(bytes, dim_reach, &bytes) || !ckv_extent(dims, 3, bytes, &bytes) || !ckv_add_u64(bytes, p->offset, &bytes))
                return ckv_refuse_at(status, CKV_CODE_OUT_OF_RANGE, CKV_F_CACHE_PLANE, i, 0, CKV_D_OVERFLOW, 0, 0, 0);
        if (bytes > region->mapping.size)
                return ckv_refuse_at(status, CKV_CODE_OUT_OF_RANGE, CKV_F_CACHE_PLANE, i, 0, CKV_D_OUTSIDE_REGION, bytes, region->id,
                                     region->mapping.size);
        *ret_layer_bytes = bytes - p->offset - (p->layer_count - 1) * p->layer_stride;
        ckv_axis_dims(&plane->token, group->tokens_per_block, &dims[3]);
        ckv_axis_dims(&plane->dim, plane->dims, &dims[5]);
        if (!ckv_dims_distinct(dims, 7, element))
                return ckv_refuse_at(status, CKV_CODE_INVALID_ARGUMENT, CKV_F_CACHE_PLANE, i, 0, CKV_D_OVERLAP, 0, 0, 0);
        return true;
}

/* add_plane() - give each layer that the plane covers its addresses */
static bool add_plane(struct ckv_cache *cache, const struct ckv_record_plane *p, uint32_t i, struct ckv_record_status *status) {
        const struct ckv_cache_group *checked = NULL;
        struct ckv_region *region;
        uint64_t layer_bytes = 0;

        if (!check_plane(p, i, status))
                return false;
        region = ckv_region_find(cache->session, p->region_id);
        if (!region)
                return ckv_refuse_at(status, CKV_CODE_NOT_FOUND, CKV_F_CACHE_PLANE_REGION_ID, i, 0, CKV_D_UNKNOWN_ID, p->region_id, 0,
                                     0);
        /* kernels follow no address of the other kind */
        if (region->mapping.on_device != (cache->session->daemon->ops->import != NULL))
                return ckv_refuse_at(status, CKV_CODE_DEVICE_MISMATCH, CKV_F_CACHE_PLANE_REGION_ID, i, 0, CKV_D_PLANES_ON_DEVICE,
                                     p->region_id, 0, 0);
        if (!check_alignment(p, region, i, status))
                return false;
        for (uint32_t k = 0; k < p->layer_count; k++) {
                const struct ckv_cache_group *group = NULL;
                struct ckv_cache_layer *layer = ckv_cache_find_layer(cache, p->layer_first + k, &group);
                struct ckv_plane plane = {
                        .block_stride = p->block_stride, .head_stride = p->head_stride,
                        .token = { CKV_MAX(p->token_tile, 1u), p->token_outer, p->token_inner },
                        .dim = { CKV_MAX(p->dim_tile, 1u), p->dim_outer, p->dim_inner },
                        .dtype = (enum ckv_dtype)p->dtype, .scale = p->scale == 0 ? 1.0f : p->scale,
                };

                if (!layer)
                        return ckv_refuse_at(status, CKV_CODE_INVALID_ARGUMENT, CKV_F_CACHE_PLANE, i, 0, CKV_D_LAYER_UNKNOWN,
                                             p->layer_first + k, 0, 0);
                if ((p->kind == CKV_PLANE_LATENT) != (group->head_dim_v == 0) || (p->kind == CKV_PLANE_LATENT && group->kv_heads != 1))
                        return ckv_refuse_at(status, CKV_CODE_INVALID_ARGUMENT, CKV_F_CACHE_PLANE_KIND, i, 0, CKV_D_LATENT_SHAPE, 0, 0,
                                             0);
                if (p->kind == CKV_PLANE_V ? layer->v_region != NULL : layer->k_region != NULL)
                        return ckv_refuse_at(status, CKV_CODE_INVALID_ARGUMENT, CKV_F_CACHE_PLANE, i, 0, CKV_D_PLANE_TWICE,
                                             layer->number, p->kind, 0);
                plane.dims = p->kind == CKV_PLANE_V ? group->head_dim_v : group->head_dim_k;
                /* the extent is that of all layers of the plane, so one look for each group is enough */
                if (group != checked && !check_extent(p, group, &plane, region, i, &layer_bytes, status))
                        return false;
                checked = group;
                plane.base = region->mapping.base + p->offset + k * p->layer_stride;
                cache->fast_path = cache->fast_path && ckv_plane_dims_adjacent(&plane);
                *(p->kind == CKV_PLANE_V ? &layer->v : &layer->k) = plane;
                *(p->kind == CKV_PLANE_V ? &layer->v_place : &layer->k_place) = ckv_region_place(region, plane.base, layer_bytes);
                *(p->kind == CKV_PLANE_V ? &layer->v_region : &layer->k_region) = region;
                region->cache_uses++;
        }
        return true;
}

/* check_complete() - each layer has both its planes, or its latent one */
static bool check_complete(const struct ckv_cache *cache, struct ckv_record_status *status) {
        for (uint32_t i = 0; i < cache->group_count; i++)
                for (uint32_t k = 0; k < cache->groups[i].layer_count; k++) {
                        const struct ckv_cache_layer *layer = &cache->groups[i].layers[k];

                        if (!layer->k_region || (!layer->v_region && cache->groups[i].head_dim_v > 0))
                                return ckv_refuse(status, CKV_CODE_INVALID_ARGUMENT, CKV_F_CACHE_PLANES, CKV_D_PLANE_MISSING,
                                                  layer->number, layer->k_region ? CKV_PLANE_V : CKV_PLANE_K, 0);
                }
        return true;
}

static bool fill(struct ckv_cache *cache, const struct parts *parts, struct ckv_record_status *status) {
        const uint32_t *numbers = parts->layers;

        cache->groups = calloc(parts->group_count, sizeof(*cache->groups));
        if (!cache->groups)
                return ckv_refuse(status, CKV_CODE_NO_MEMORY, CKV_F_NONE, CKV_D_NO_MEMORY, 0, 0, 0);
        for (uint32_t i = 0; i < parts->group_count; i++) {
                cache->group_count = i + 1;
                if (!add_group(cache, &parts->groups[i], numbers, i, status))
                        return false;
                numbers += parts->groups[i].layer_count;
        }
        for (uint32_t i = 0; i < parts->plane_count; i++)
                if (!add_plane(cache, &parts->planes[i], i, status))
                        return false;
        if (!check_complete(cache, status))
                return false;
        return !ckv_cache_mark_aliases(cache, parts->planes, parts->plane_count) ||
               ckv_refuse(status, CKV_CODE_NO_MEMORY, CKV_F_NONE, CKV_D_NO_MEMORY, 0, 0, 0);
}

bool ckv_cache_register(struct ckv_session *session, const struct ckv_record *record, const uint8_t *attachment, uint32_t bytes,
                        struct ckv_record_status *ret_status, struct ckv_cache **ret_cache) {
        uint64_t cost = sizeof(struct ckv_cache) + record->body.cache.layer_word_count * sizeof(struct ckv_cache_layer);
        struct parts parts;
        struct ckv_cache *cache;

        ckv_assert_loop_thread();
        if (!cut_attachment(&record->body.cache, attachment, bytes, &parts, ret_status))
                return false;
        if (session->cache_count >= CKV_LIMIT_CACHES)
                return ckv_refuse(ret_status, CKV_CODE_QUOTA, CKV_F_NONE, CKV_D_QUOTA, session->cache_count, CKV_LIMIT_CACHES, 1);
        cache = calloc(1, sizeof(*cache));
        if (!cache)
                return ckv_refuse(ret_status, CKV_CODE_NO_MEMORY, CKV_F_NONE, CKV_D_NO_MEMORY, 0, 0, 0);
        cache->session = session;
        if (ckv_charge_init(&cache->charge, session->tenant, CKV_SLOT_QUEUED_BYTES, cost)) {
                ckv_refuse_quota(ret_status, session->tenant, CKV_SLOT_QUEUED_BYTES, cost, CKV_F_CACHE_GROUPS);
                ckv_cache_free(cache);
                return false;
        }
        cache->id = session->last_cache_id + 1;
        cache->fast_path = true;
        if (!fill(cache, &parts, ret_status)) {
                ckv_cache_free(cache);
                return false;
        }
        HASH_ADD(hh, session->caches, id, sizeof(cache->id), cache);
        if (!CKV_HASH_ADDED(cache)) {
                ckv_cache_free(cache);
                return ckv_refuse(ret_status, CKV_CODE_NO_MEMORY, CKV_F_NONE, CKV_D_NO_MEMORY, 0, 0, 0);
        }
        session->last_cache_id = cache->id;
        session->cache_count++;
        *ret_cache = cache;
        return true;
}

struct ckv_cache *ckv_cache_free(struct ckv_cache *cache) {
        if (!cache)
                return NULL;
        ckv_assert_loop_thread();
        assert(cache->request_uses == 0);
        for (uint32_t i = 0; i < cache->group_count; i++) {
                struct ckv_cache_group *group = &cache->groups[i];

                for (uint32_t k = 0; k < group->layer_count; k++) {
                        if (group->layers[k].k_region)
                                group->layers[k].k_region->cache_uses--;
                        if (group->layers[k].v_region)
                                group->layers[k].v_region->cache_uses--;
                }
                free(group->layers);
        }
        free(cache->groups);
        ckv_charge_deinit(&cache->charge);
        free(cache);
        return NULL;
}

bool ckv_cache_unregister(struct ckv_session *session, uint32_t id, struct ckv_record_status *ret_status) {
        struct ckv_cache *cache = ckv_cache_find(session, id);

        if (!cache)
                return ckv_refuse(ret_status, CKV_CODE_NOT_FOUND, CKV_F_UNREGISTER_CACHE_ID, CKV_D_UNKNOWN_ID, id, 0, 0);
        if (cache->request_uses) {
                ckv_refuse(ret_status, CKV_CODE_BUSY, CKV_F_UNREGISTER_CACHE_ID, CKV_D_IN_USE, cache->request_uses, 0, 0);
                ret_status->retry_after_ms = CKV_RETRY_MS;
                return false;
        }
        HASH_DELETE(hh, session->caches, cache);
        session->cache_count--;
        ckv_cache_free(cache);
        return true;
}

struct ckv_cache *ckv_cache_find(struct ckv_session *session, uint32_t id) {
        struct ckv_cache *cache;

        ckv_assert_loop_thread();
        HASH_FIND(hh, session->caches, &id, sizeof(id), cache);
        return cache;
}
