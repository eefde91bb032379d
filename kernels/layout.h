/*
 * Where the bytes of a KV cache lie.  A cache is described by strides, not by
 * an enum of engines: element (block b, head h, token t, dimension x) of one
 * plane of one layer lies at
 *
 *     base + b * block_stride + h * head_stride + axis(token, t) + axis(dim, x)
 *     axis(a, i) = (i / a.tile) * a.outer + (i % a.tile) * a.inner
 *
 * All strides are bytes.  Whoever fills in a plane has checked that every
 * address that its block count, heads, tokens and dimensions can form lies in
 * the mapped region; nothing below checks again.
 */
#ifndef CKV_KERNELS_LAYOUT_H
#define CKV_KERNELS_LAYOUT_H

#include <stdbool.h>
#include <stdint.h>

/* Numbers as in proto/chunkkv.proto. */
enum ckv_dtype {
        CKV_DTYPE_NONE, CKV_DTYPE_F32, CKV_DTYPE_F16, CKV_DTYPE_BF16, CKV_DTYPE_F8_E4M3, CKV_DTYPE_F8_E5M2, CKV_DTYPE_I8,
        CKV_DTYPE_BYTE,
};

struct ckv_axis {
        uint32_t tile;                  /* >= 1 */
        uint64_t outer, inner;          /* bytes */
};

struct ckv_plane {
        uint8_t *base;                  /* element (0, 0, 0, 0) of this layer; NULL = no such plane. A device address on CUDA. */
        uint64_t block_stride, head_stride;
        struct ckv_axis token, dim;
        enum ckv_dtype dtype;
        uint32_t dims;                  /* elements of one head of one row */
        float scale;                    /* value = stored value * scale, one rounding; 0 = 1.0 */
};

/* Which physical place row j of a sequence has. */
struct ckv_row_table {
        const uint32_t *entries;        /* by_token: slot numbers, one a row; else block ids, one for tokens_per_block rows */
        bool by_token;
        uint32_t tokens_per_block;      /* >= 1; slot = block * tokens_per_block + token */
};

/* ckv_dtype_bytes() - size of one element; 0 for CKV_DTYPE_NONE */
static inline uint32_t ckv_dtype_bytes(enum ckv_dtype dtype) {
        static const uint8_t bytes[] = { 0, 4, 2, 2, 1, 1, 1, 1 };

        return bytes[dtype];
}

/* ckv_axis_at() - bytes from index 0 of an axis to index i */
static inline uint64_t ckv_axis_at(const struct ckv_axis *axis, uint32_t i) {
        return (uint64_t)(i / axis->tile) * axis->outer + (uint64_t)(i % axis->tile) * axis->inner;
}

/* ckv_plane_row() - address of dimension 0 of (row j, head h) */
static inline uint8_t *ckv_plane_row(const struct ckv_plane *plane, const struct ckv_row_table *table, uint32_t j, uint32_t h) {
        uint32_t slot, block, token;

        if (table->by_token) {
                slot = table->entries[j];
                block = slot / table->tokens_per_block;
                token = slot % table->tokens_per_block;
        } else {
                block = table->entries[j / table->tokens_per_block];
                token = j % table->tokens_per_block;
        }
        return plane->base + (uint64_t)block * plane->block_stride + (uint64_t)h * plane->head_stride +
               ckv_axis_at(&plane->token, token);
}

/* ckv_plane_dims_adjacent() - are the dimensions of a row consecutive elements? */
static inline bool ckv_plane_dims_adjacent(const struct ckv_plane *plane) {
        uint64_t bytes = ckv_dtype_bytes(plane->dtype);

        if (plane->dim.tile == 1)
                return plane->dim.outer == bytes;
        return plane->dim.inner == bytes && (plane->dims <= plane->dim.tile || plane->dim.outer == plane->dim.tile * bytes);
}

/* ckv_plane_adjacent_dims() - dimensions that lie next to one another in memory: all of a row, or a tile of it, or one */
static inline uint32_t ckv_plane_adjacent_dims(const struct ckv_plane *plane) {
        if (ckv_plane_dims_adjacent(plane))
                return plane->dims;
        return plane->dim.tile > 1 && plane->dim.inner == ckv_dtype_bytes(plane->dtype) ? plane->dim.tile : 1;
}

/* ckv_plane_heads_adjacent() - is a row with all its heads one stretch of bytes? */
static inline bool ckv_plane_heads_adjacent(const struct ckv_plane *plane, uint32_t heads) {
        return ckv_plane_dims_adjacent(plane) &&
               (heads == 1 || plane->head_stride == (uint64_t)plane->dims * ckv_dtype_bytes(plane->dtype));
}

/* ckv_axis_even() - distance and number of indices that lie evenly from @i on: a tile, or all if tiles follow each other so */
static inline uint32_t ckv_axis_even(const struct ckv_axis *axis, uint32_t i, uint64_t *ret_stride) {
        *ret_stride = axis->tile == 1 ? axis->outer : axis->inner;
        if (axis->tile == 1 || axis->outer == axis->tile * axis->inner)
                return UINT32_MAX;
        return axis->tile - i % axis->tile;
}

#endif
