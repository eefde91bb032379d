/*
 * Addresses of a plane, in checked arithmetic: the formula of protocol.md 2
 * once for one element and once for the last that can be reached.  The daemon
 * does the same before it touches anything; this is for engines that want to
 * test their description of a layout against their own, and for sizes.
 */
#include "base/checked.h"
#include "clients/c/src/client.h"

#include <errno.h>
#include <inttypes.h>

/* *sum += place of index @i on the axis */
static bool add_axis(uint64_t *sum, const struct chunkkv_axis *axis, uint64_t i) {
        uint64_t tile = axis->tile ? axis->tile : 1;

        return ckv_madd_u64(i / tile, axis->outer, sum) && ckv_madd_u64(i % tile, axis->inner, sum);
}

/* *sum += the farthest place of indices 0 .. count-1: the last, or the last of the last whole tile */
static bool add_axis_last(uint64_t *sum, const struct chunkkv_axis *axis, uint64_t count) {
        uint64_t tile = axis->tile ? axis->tile : 1, whole = (count - 1) / tile * tile, last = *sum, before = *sum;

        if (!add_axis(&last, axis, count - 1) || (whole > 0 && !add_axis(&before, axis, whole - 1)))
                return false;
        *sum = CKV_MAX(last, before);
        return true;
}

static uint32_t dims_of(const struct chunkkv_group *group, const struct chunkkv_plane *plane) {
        return plane->kind == CHUNKKV_PLANE_V ? group->head_dim_v : group->head_dim_k;
}

uint32_t ckv__dtype_bytes(uint32_t dtype) {
        switch (dtype) {
        case CHUNKKV_DTYPE_F32:
                return 4;
        case CHUNKKV_DTYPE_F16:
        case CHUNKKV_DTYPE_BF16:
                return 2;
        case CHUNKKV_DTYPE_NONE:
                return 0;
        default:
                return 1;
        }
}

int chunkkv_plane_offset(const struct chunkkv_group *group, const struct chunkkv_plane *plane, uint32_t layer,
                         uint32_t block, uint32_t head, uint32_t token, uint32_t dim, uint64_t *ret_offset,
                         struct chunkkv_error *ret_error) {
        const struct { const char *name; uint32_t value, end; } indices[] = {
                { "block", block, group->num_blocks }, { "head", head, group->kv_heads },
                { "token", token, group->tokens_per_block }, { "dim", dim, dims_of(group, plane) },
        };
        uint64_t offset = plane->offset;

        if (layer < plane->layer_first || layer - plane->layer_first >= plane->layer_count)
                return ckv__fault(ret_error, -EINVAL, "layer", "%" PRIu32 " is none of the %" PRIu32 " from %" PRIu32,
                                  layer, plane->layer_count, plane->layer_first);
        for (size_t i = 0; i < CKV_ARRAY_SIZE(indices); i++) {
                if (indices[i].value >= indices[i].end)
                        return ckv__fault(ret_error, -EINVAL, indices[i].name, "must be below %" PRIu32 ", is %" PRIu32,
                                          indices[i].end, indices[i].value);
        }
        if (!ckv_madd_u64(layer - plane->layer_first, plane->layer_stride, &offset) ||
            !ckv_madd_u64(block, plane->block_stride, &offset) || !ckv_madd_u64(head, plane->head_stride, &offset) ||
            !add_axis(&offset, &plane->token, token) || !add_axis(&offset, &plane->dim, dim))
                return ckv__fault(ret_error, -EOVERFLOW, "offset", "the element would lie beyond 2^64 bytes");
        *ret_offset = offset;
        return 0;
}

int chunkkv_plane_check(const struct chunkkv_group *group, const struct chunkkv_plane *plane, uint64_t region_size,
                        uint64_t *ret_end, struct chunkkv_error *ret_error) {
        const struct { const char *name; uint32_t value; } positive[] = {
                { "layer_count", plane->layer_count }, { "num_blocks", group->num_blocks },
                { "kv_heads", group->kv_heads }, { "tokens_per_block", group->tokens_per_block },
                { "head_dim", dims_of(group, plane) }, { "dtype", ckv__dtype_bytes(plane->dtype) },
        };
        uint64_t end = plane->offset;

        for (size_t i = 0; i < CKV_ARRAY_SIZE(positive); i++) {
                if (positive[i].value == 0)
                        return ckv__fault(ret_error, -EINVAL, positive[i].name, "must be given");
        }
        if (!ckv_madd_u64(plane->layer_count - 1, plane->layer_stride, &end) ||
            !ckv_madd_u64(group->num_blocks - 1, plane->block_stride, &end) ||
            !ckv_madd_u64(group->kv_heads - 1, plane->head_stride, &end) ||
            !add_axis_last(&end, &plane->token, group->tokens_per_block) ||
            !add_axis_last(&end, &plane->dim, dims_of(group, plane)) ||
            !ckv_madd_u64(1, ckv__dtype_bytes(plane->dtype), &end))
                return ckv__fault(ret_error, -EOVERFLOW, "offset", "the plane would end beyond 2^64 bytes");
        if (end > region_size)
                return ckv__fault(ret_error, -ERANGE, "offset", "the plane ends at byte %" PRIu64 ", the region at %"
                                  PRIu64, end, region_size);
        if (ret_end)
                *ret_end = end;
        return 0;
}
