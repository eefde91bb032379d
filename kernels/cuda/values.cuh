/*
 * Where rows lie and what they hold, for any layout that strides can say: axis,
 * row table and plane of kernels/layout.h once more, for the device.
 *
 * Values are widened to binary32 exactly and multiplied by the plane's scale
 * (R4).  Base and strides are multiples of the element's size.
 */
#ifndef CKV_KERNELS_CUDA_VALUES_CUH
#define CKV_KERNELS_CUDA_VALUES_CUH

#include "kernels/cuda/params.h"
#include "kernels/cuda/prims.h"

#define CKV_DEVICE static __device__ __forceinline__
/* Where __launch_bounds__ names blocks for each SM as well: ptxas would otherwise aim at fewer registers, and spill. */
#define CKV_NO_ROW UINT32_C(0xffffffff)
#define CKV_MINUS_INF float_of_bits(UINT32_C(0xff800000))

template <class T> CKV_DEVICE T *pointer(uint64_t address) {
        return reinterpret_cast<T *>(static_cast<uintptr_t>(address));
}

CKV_DEVICE uint64_t axis_at(uint32_t tile, uint64_t outer, uint64_t inner, uint32_t i) {
        return (uint64_t)(i / tile) * outer + (uint64_t)(i % tile) * inner;
}

/* block and token of row j */
CKV_DEVICE void place_of(const struct ckv_k_table &table, uint32_t j, uint32_t *ret_block, uint32_t *ret_token) {
        const uint32_t *entries = pointer<const uint32_t>(table.entries);
        uint32_t slot = table.by_token ? entries[j] : j;

        *ret_block = table.by_token ? slot / table.tokens_per_block : entries[j / table.tokens_per_block];
        *ret_token = slot % table.tokens_per_block;
}

CKV_DEVICE const uint8_t *row_at(const struct ckv_k_plane &plane, const struct ckv_k_table &table, uint32_t j, uint32_t head) {
        uint32_t block, token;

        place_of(table, j, &block, &token);
        return pointer<const uint8_t>(plane.base + block * plane.block_stride + head * plane.head_stride +
                                      axis_at(plane.token_tile, plane.token_outer, plane.token_inner, token));
}

CKV_DEVICE float element(const uint8_t *at, uint32_t dtype) {
        uint16_t bits;

        if (dtype == 1)
                return *reinterpret_cast<const float *>(at);
        bits = *reinterpret_cast<const uint16_t *>(at);
        return dtype == 2 ? f16_value(bits) : float_of_bits((uint32_t)bits << 16);
}

/* dimension x of a row that begins at @row */
CKV_DEVICE float value_at(const struct ckv_k_plane &plane, const uint8_t *row, uint32_t x) {
        float v = element(row + axis_at(plane.dim_tile, plane.dim_outer, plane.dim_inner, x), plane.dtype);

        return plane.scale != 0 ? v * plane.scale : v;
}

/* a binary32 at any address */
CKV_DEVICE float float_at(uint64_t base, uint64_t index) {
        const uint8_t *at = pointer<const uint8_t>(base) + 4 * index;

        return float_of_bits((uint32_t)at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24);
}

/* an element at any address, for queries: engines pack them as they like */
CKV_DEVICE float element_anywhere(const uint8_t *at, uint32_t dtype) {
        uint32_t bits = (uint32_t)at[0] | (uint32_t)at[1] << 8;

        if (dtype == 1)
                return float_of_bits(bits | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24);
        return dtype == 2 ? f16_value((uint16_t)bits) : float_of_bits(bits << 16);
}

/* R11's maximum: replaces only by a greater one; a NaN is kept, or a poisoned head would go unseen (R23) */
template <class T> CKV_DEVICE T greater_of(T old, T value) {
        return value > old || value != value ? value : old;
}

/* sum over the lanes of a warp, the same bits in all of them */
template <class T> CKV_DEVICE T warp_sum(T v) {
        for (int x = 16; x > 0; x >>= 1)
                v += __shfl_xor_sync(0xffffffffU, v, x);
        return v;
}

/* largest over the lanes of a warp; a NaN only if all are */
CKV_DEVICE float warp_most(float v) {
        for (int x = 16; x > 0; x >>= 1)
                v = fmaxf(v, __shfl_xor_sync(0xffffffffU, v, x));
        return v;
}

#endif
