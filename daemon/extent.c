/*
 * Addresses are sums of index * stride, so the highest one has every index at
 * its end.  A two-level axis {tile, outer, inner} of n elements is two such
 * indices when tile divides n; otherwise the last tile is partial, and taking
 * it for a full one would ask for bytes that are never touched.  That matters:
 * the last token of the last block may end a region exactly.  So the extent of
 * an axis is computed exactly, and the two dims serve the question of overlap.
 */
#include "daemon/extent.h"

#include "base/checked.h"
#include "base/macros.h"

uint32_t ckv_axis_dims(const struct ckv_axis *axis, uint32_t n, struct ckv_dim ret_dims[static 2]) {
        uint32_t tile = CKV_MIN(axis->tile, n);

        ret_dims[0] = (struct ckv_dim){ .count = tile, .stride = axis->inner };
        ret_dims[1] = (struct ckv_dim){ .count = (n + axis->tile - 1) / axis->tile, .stride = axis->outer };
        return 2;
}

bool ckv_axis_reach(const struct ckv_axis *axis, uint32_t n, uint64_t *ret_bytes) {
        uint32_t full = n / axis->tile, rest = n % axis->tile;
        uint64_t last_full = 0, last_part = 0;

        if (full > 0 && (!ckv_madd_u64(full - 1, axis->outer, &last_full) || !ckv_madd_u64(axis->tile - 1, axis->inner, &last_full)))
                return false;
        if (rest > 0 && (!ckv_madd_u64(full, axis->outer, &last_part) || !ckv_madd_u64(rest - 1, axis->inner, &last_part)))
                return false;
        *ret_bytes = CKV_MAX(last_full, last_part);
        return true;
}

bool ckv_extent(const struct ckv_dim *dims, uint32_t n, uint64_t element, uint64_t *ret_bytes) {
        uint64_t bytes = element;

        for (uint32_t i = 0; i < n; i++)
                if (!ckv_madd_u64(dims[i].count - 1, dims[i].stride, &bytes))
                        return false;
        *ret_bytes = bytes;
        return true;
}

bool ckv_dims_distinct(struct ckv_dim *dims, uint32_t n, uint64_t element) {
        uint64_t inside = element;

        for (uint32_t i = 1; i < n; i++)
                for (uint32_t j = i; j > 0 && dims[j].stride < dims[j - 1].stride; j--) {
                        struct ckv_dim swap = dims[j];

                        dims[j] = dims[j - 1];
                        dims[j - 1] = swap;
                }
        for (uint32_t i = 0; i < n; i++) {
                if (dims[i].count == 1)
                        continue;
                if (dims[i].stride < inside || !ckv_madd_u64(dims[i].count - 1, dims[i].stride, &inside))
                        return false;
        }
        return true;
}
