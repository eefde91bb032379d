/*
 * Norms of rows (scorers knorm and vk_ratio, option value_weight) and the
 * scorer keydiff.  A warp takes a row, a lane every 32nd dimension of it; sums
 * are binary64, because that costs nothing beside reading the row, but roots and
 * quotients binary32: those of binary64, and exact ones, are subroutines that
 * want a stack.
 *
 *     keydiff   S = -cos(K[j], mean of the directions of all keys): key_sum adds directions up by segment, keydiff the
 *               segments, in ascending order
 */
#ifndef CKV_KERNELS_CUDA_KEYS_CUH
#define CKV_KERNELS_CUDA_KEYS_CUH

#include "kernels/cuda/values.cuh"

enum { CKV_WARPS = CKV_K_THREADS / 32 };

/* sum over dims of |v| or v * v, in all lanes */
CKV_DEVICE double row_sum(const struct ckv_k_plane &plane, const uint8_t *row, uint32_t dims, bool squares) {
        double sum = 0;

        for (uint32_t x = threadIdx.x % 32; x < dims; x += 32) {
                double v = (double)value_at(plane, row, x);

                sum += squares ? v * v : fabs(v);
        }
        return warp_sum(sum);
}

CKV_DEVICE float at_least(float v, float least) {
        return v < least ? least : v;
}

extern "C" __global__ void __launch_bounds__(CKV_K_THREADS, 8) ckv_k_norms(const struct ckv_k_norms p) {
        const struct ckv_k_layer &layer = pointer<const struct ckv_k_layer>(p.layers)[blockIdx.z];
        const uint32_t j = blockIdx.x * CKV_WARPS + threadIdx.x / 32;

        if (j < p.rows) {
                float s = 0, key;

                if (p.kind != CKV_K_NORM_KNORM) {
                        s = (float)row_sum(layer.v, row_at(layer.v, p.table, j, blockIdx.y), layer.v.dims, p.kind != CKV_K_NORM_L1);
                        s = p.kind != CKV_K_NORM_L1 ? root_fast(s) : s;
                }
                if (p.kind == CKV_K_NORM_KNORM || p.kind == CKV_K_NORM_VK_RATIO) {
                        key = root_fast((float)row_sum(layer.k, row_at(layer.k, p.table, j, blockIdx.y), p.head_dim, true));
                        s = p.kind == CKV_K_NORM_KNORM ? -key : quotient_fast(s, at_least(key, 1e-12f));
                }
                if (threadIdx.x % 32 == 0)
                        pointer<float>(p.out)[((uint64_t)blockIdx.z * p.kv_heads + blockIdx.y) * p.rows + j] = s;
        }
}

extern "C" __global__ void __launch_bounds__(CKV_K_THREADS, 8) ckv_k_key_sum(const struct ckv_k_keys p) {
        CKV_SHARED(double, sums);               /* [4 warps][head_dim] */
        const struct ckv_k_layer &layer = pointer<const struct ckv_k_layer>(p.layers)[blockIdx.z];
        const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, first = blockIdx.x * CKV_K_SEGMENT;
        const uint32_t end = p.rows - first < CKV_K_SEGMENT ? p.rows : first + CKV_K_SEGMENT;
        double *mine = sums + warp * p.head_dim;
        double *out = pointer<double>(p.part) +
                      (((uint64_t)blockIdx.z * p.kv_heads + blockIdx.y) * p.segments + blockIdx.x) * p.head_dim;

        for (uint32_t x = lane; x < p.head_dim; x += 32)
                mine[x] = 0;
        for (uint32_t j = first + warp; j < end; j += CKV_WARPS) {
                const uint8_t *row = row_at(layer.k, p.table, j, blockIdx.y);
                float n = at_least(root_fast((float)row_sum(layer.k, row, p.head_dim, true)), 1e-12f);

                for (uint32_t x = lane; x < p.head_dim; x += 32)
                        mine[x] += (double)(value_at(layer.k, row, x) / n);
        }
        __syncthreads();
        for (uint32_t x = threadIdx.x; x < p.head_dim; x += CKV_K_THREADS) {
                double sum = 0;

                for (uint32_t w = 0; w < CKV_WARPS; w++)
                        sum += sums[w * p.head_dim + x];
                out[x] = sum;
        }
}

extern "C" __global__ void __launch_bounds__(CKV_K_THREADS) ckv_k_keydiff(const struct ckv_k_keys p) {
        CKV_SHARED(double, mean);               /* [head_dim] */
        const struct ckv_k_layer &layer = pointer<const struct ckv_k_layer>(p.layers)[blockIdx.z];
        const uint32_t lane = threadIdx.x % 32, first = blockIdx.x * CKV_K_SEGMENT;
        const uint32_t end = p.rows - first < CKV_K_SEGMENT ? p.rows : first + CKV_K_SEGMENT;
        const uint64_t head = (uint64_t)blockIdx.z * p.kv_heads + blockIdx.y;
        double squares = 0;
        float length;

        for (uint32_t x = threadIdx.x; x < p.head_dim; x += CKV_K_THREADS) {
                double sum = 0;

                for (uint32_t s = 0; s < p.segments; s++)
                        sum += pointer<const double>(p.part)[(head * p.segments + s) * p.head_dim + x];
                mean[x] = (double)((float)sum / (float)p.rows);
        }
        __syncthreads();
        for (uint32_t x = lane; x < p.head_dim; x += 32)
                squares += mean[x] * mean[x];
        length = at_least(root_fast((float)warp_sum(squares)), 1e-8f);
        for (uint32_t j = first + threadIdx.x / 32; j < end; j += CKV_WARPS) {
                const uint8_t *row = row_at(layer.k, p.table, j, blockIdx.y);
                float n = at_least(root_fast((float)row_sum(layer.k, row, p.head_dim, true)), 1e-8f);
                double dot = 0;

                for (uint32_t x = lane; x < p.head_dim; x += 32)
                        dot += (double)value_at(layer.k, row, x) * mean[x];
                dot = warp_sum(dot);
                if (lane == 0)
                        pointer<float>(p.out)[head * p.rows + j] = -((float)dot / (n * length));
        }
}

#endif
