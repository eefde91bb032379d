/*
 * RegisterCache: groups of layers and planes of bytes.  Here each number is
 * checked by itself, and layer numbers against each other.  Whether the planes
 * cover each layer once and lie inside their regions is checked where the
 * regions are known, in the core.
 *
 * Two zeros that mean one are written out as 1 (tile, scale).
 */
#include "daemon/gate/check.h"

#include "base/limits.h"

#include <math.h>
#include <string.h>

enum { LAYER_NUMBERS = 65536 };         /* one more than the limit LAYER_NUMBER, as a constant expression */

/* check_layers() - ascending, below 65536, in no other group; @seen: one bit for each layer number */
static bool check_layers(struct ckv_check *check, const Chunkkv__V1__LayerGroup *group, size_t index, uint8_t *seen) {
        struct ckv_at at = ckv_at(CKV_F_CACHE_GROUP_LAYERS, index, 0);

        if (!ckv_check_count(check, at, group->n_layers, 1, CKV_LIMIT_LAYER_NUMBER + 1))
                return false;
        for (size_t i = 0; i < group->n_layers; i++) {
                uint32_t layer = group->layers[i];

                if (layer > CKV_LIMIT_LAYER_NUMBER)
                        return ckv_check_range(check, at, layer, 0, CKV_LIMIT_LAYER_NUMBER);
                if (i > 0 && layer <= group->layers[i - 1])
                        return ckv_check_refuse(check, CKV_CODE_INVALID_ARGUMENT, at, CKV_D_ORDER, i, 0, 0);
                if (seen[layer / 8] & (1u << layer % 8))
                        return ckv_check_refuse(check, CKV_CODE_INVALID_ARGUMENT, at, CKV_D_LAYER_TWICE, layer, 0, 0);
                seen[layer / 8] = (uint8_t)(seen[layer / 8] | 1u << layer % 8);
        }
        return true;
}

static bool check_cache_group(struct ckv_check *check, const Chunkkv__V1__LayerGroup *group, size_t index,
                              struct ckv_record_cache_group *record) {
        struct ckv_at q_heads = ckv_at(CKV_F_CACHE_GROUP_Q_HEADS, index, 0);

        if (!ckv_check_range(check, ckv_at(CKV_F_CACHE_GROUP_KV_HEADS, index, 0), group->kv_heads, 1, CKV_LIMIT_HEADS))
                return false;
        if (group->q_heads < group->kv_heads)
                return ckv_check_refuse(check, CKV_CODE_OUT_OF_RANGE, q_heads, CKV_D_AT_LEAST, group->kv_heads,
                                        group->q_heads, 0);
        if (group->q_heads % group->kv_heads)
                return ckv_check_refuse(check, CKV_CODE_INVALID_ARGUMENT, q_heads, CKV_D_MULTIPLE, group->kv_heads,
                                        group->q_heads, 0);
        if (!ckv_check_range(check, ckv_at(CKV_F_CACHE_GROUP_HEAD_DIM_K, index, 0), group->head_dim_k, 1,
                             CKV_LIMIT_HEAD_DIM) ||
            !ckv_check_range(check, ckv_at(CKV_F_CACHE_GROUP_HEAD_DIM_V, index, 0), group->head_dim_v, 0,
                             CKV_LIMIT_HEAD_DIM) ||
            !ckv_check_range(check, ckv_at(CKV_F_CACHE_GROUP_TOKENS_PER_BLOCK, index, 0), group->tokens_per_block, 1,
                             CKV_LIMIT_TOKENS_PER_BLOCK) ||
            !ckv_check_range(check, ckv_at(CKV_F_CACHE_GROUP_NUM_BLOCKS, index, 0), group->num_blocks, 1, UINT32_MAX))
                return false;
        *record = (struct ckv_record_cache_group){
                .layer_count = (uint32_t)group->n_layers,
                .kv_heads = group->kv_heads,
                .q_heads = group->q_heads,
                .head_dim_k = group->head_dim_k,
                .head_dim_v = group->head_dim_v,
                .tokens_per_block = group->tokens_per_block,
                .num_blocks = group->num_blocks,
        };
        return true;
}

static void copy_axis(const Chunkkv__V1__Axis *axis, uint32_t *ret_tile, uint64_t *ret_outer, uint64_t *ret_inner) {
        *ret_tile = axis && axis->tile ? axis->tile : 1;
        *ret_outer = axis ? axis->outer : 0;
        *ret_inner = axis ? axis->inner : 0;
}

static bool check_plane(struct ckv_check *check, const Chunkkv__V1__Plane *plane, size_t index,
                        struct ckv_record_plane *record) {
        struct ckv_at layer_count = ckv_at(CKV_F_CACHE_PLANE_LAYER_COUNT, index, 0);

        if (!ckv_check_enum(check, ckv_at(CKV_F_CACHE_PLANE_KIND, index, 0), &chunkkv__v1__plane_kind__descriptor,
                            (int)plane->kind, true) ||
            !ckv_check_enum(check, ckv_at(CKV_F_CACHE_PLANE_DTYPE, index, 0), &chunkkv__v1__dtype__descriptor,
                            (int)plane->dtype, true) ||
            !ckv_check_range(check, ckv_at(CKV_F_CACHE_PLANE_LAYER_FIRST, index, 0), plane->layer_first, 0,
                             CKV_LIMIT_LAYER_NUMBER) ||
            !ckv_check_range(check, layer_count, plane->layer_count, 1,
                             CKV_MIN(CKV_LIMIT_PLANE_LAYERS, CKV_LIMIT_LAYER_NUMBER + 1 - plane->layer_first)))
                return false;
        if (plane->region_id == 0)
                return ckv_check_missing(check, ckv_at(CKV_F_CACHE_PLANE_REGION_ID, index, 0));
        if (!isfinite(plane->scale))
                return ckv_check_refuse(check, CKV_CODE_INVALID_ARGUMENT, ckv_at(CKV_F_CACHE_PLANE_SCALE, index, 0),
                                        CKV_D_FINITE_SIGNED, 0, 0, 0);
        *record = (struct ckv_record_plane){
                .kind = (uint16_t)plane->kind,
                .dtype = (uint16_t)plane->dtype,
                .layer_first = plane->layer_first,
                .layer_count = plane->layer_count,
                .region_id = plane->region_id,
                .offset = plane->offset,
                .layer_stride = plane->layer_stride,
                .block_stride = plane->block_stride,
                .head_stride = plane->head_stride,
                .scale = fpclassify(plane->scale) == FP_ZERO ? 1.0f : plane->scale,
        };
        copy_axis(plane->token, &record->token_tile, &record->token_outer, &record->token_inner);
        copy_axis(plane->dim, &record->dim_tile, &record->dim_outer, &record->dim_inner);
        return true;
}

bool ckv_check_cache(struct ckv_check *check, const Chunkkv__V1__RegisterCache *cache) {
        uint8_t seen[LAYER_NUMBERS / 8] = { 0 };
        struct ckv_record_cache *record = &check->out->record.body.cache;
        struct ckv_record_cache_group *groups;
        struct ckv_record_plane *planes;

        assert(LAYER_NUMBERS == CKV_LIMIT_LAYER_NUMBER + 1);
        if (!ckv_check_count(check, ckv_at(CKV_F_CACHE_GROUPS, 0, 0), cache->n_groups, 1, check->limits->groups) ||
            !ckv_check_count(check, ckv_at(CKV_F_CACHE_PLANES, 0, 0), cache->n_planes, 1, check->limits->planes))
                return false;
        groups = ckv_check_append(check, cache->n_groups * sizeof(*groups));
        if (!groups)
                return false;
        planes = ckv_check_append(check, cache->n_planes * sizeof(*planes));
        if (!planes)
                return false;

        for (size_t i = 0; i < cache->n_groups; i++) {
                const Chunkkv__V1__LayerGroup *group = cache->groups[i];

                if (!check_layers(check, group, i, seen) || !check_cache_group(check, group, i, &groups[i]) ||
                    !ckv_check_append_words(check, group->layers, group->n_layers))
                        return false;
                record->layer_word_count += (uint32_t)group->n_layers;
        }
        for (size_t i = 0; i < cache->n_planes; i++)
                if (!check_plane(check, cache->planes[i], i, &planes[i]))
                        return false;
        record->group_count = (uint32_t)cache->n_groups;
        record->plane_count = (uint32_t)cache->n_planes;
        return true;
}
