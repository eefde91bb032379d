/*
 * Moving a row changes its bytes.  If another plane of the same group has some
 * of them too, it moves what was moved already, and both are wrong.  Such a
 * cache can still be scored (a file without values is planned with one small
 * stand-in for all of them), so it is registered, marked, and refused when a
 * request wants to move rows.
 */
#include "daemon/alias.h"

#include "base/macros.h"
#include "daemon/region.h"

#include <errno.h>

/* A plane, and the groups that its layers belong to, one bit each. */
struct mark {
        struct ckv_footprint footprint;
        uint32_t groups;
};

static void init_mark(struct mark *mark, const struct ckv_cache *cache, const struct ckv_record_plane *p, const struct ckv_region *region) {
        const struct ckv_cache_group *group = NULL;
        const struct ckv_cache_layer *layer = NULL;
        const struct ckv_plane *plane;
        struct ckv_place place;
        uint64_t bytes = 0;

        mark->groups = 0;
        for (uint32_t k = p->layer_count; k > 0; k--) {
                layer = ckv_cache_find_layer(cache, p->layer_first + k - 1, &group);
                plane = p->kind == CKV_PLANE_V ? &layer->v : &layer->k;
                mark->groups |= 1u << (group - cache->groups);
                bytes = CKV_MAX(bytes, (k - 1) * p->layer_stride + (p->kind == CKV_PLANE_V ? layer->v_place.bytes : layer->k_place.bytes));
        }
        place = ckv_region_place(region, region->mapping.base + p->offset, bytes);
        plane = p->kind == CKV_PLANE_V ? &layer->v : &layer->k;
        if (mark->groups & (mark->groups - 1)) {
                /* several shapes: from first to last byte as one element */
                ckv_footprint_init(&mark->footprint, &place, NULL, 0, bytes);
        } else {
                struct ckv_dim dims[7] = {
                        { p->layer_count, p->layer_stride }, { group->num_blocks, p->block_stride }, { group->kv_heads, p->head_stride },
                };

                ckv_axis_dims(&plane->token, group->tokens_per_block, &dims[3]);
                ckv_axis_dims(&plane->dim, plane->dims, &dims[5]);
                ckv_footprint_init(&mark->footprint, &place, dims, CKV_ARRAY_SIZE(dims), ckv_dtype_bytes(plane->dtype));
        }
}

int ckv_cache_mark_aliases(struct ckv_cache *cache, const struct ckv_record_plane *planes, uint32_t count) {
        _cleanup_free_ struct mark *marks = calloc(count, sizeof(*marks));
        uint32_t aliased = 0;

        if (!marks)
                return -ENOMEM;
        for (uint32_t i = 0; i < count; i++) {
                init_mark(&marks[i], cache, &planes[i], ckv_region_find(cache->session, planes[i].region_id));
                for (uint32_t k = 0; k < i; k++) {
                        uint32_t both = marks[i].groups & marks[k].groups & ~aliased;

                        if (both && ckv_footprints_overlap(&marks[i].footprint, &marks[k].footprint))
                                aliased |= both;
                }
        }
        for (uint32_t g = 0; g < cache->group_count; g++)
                cache->groups[g].aliased = aliased >> g & 1;
        return 0;
}
