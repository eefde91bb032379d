/*
 * S1's norm, contrast and mute, S2, S3: a thread makes T[j] of one row; then S4: a thread
 * makes C[u] of one unit.  Sums are binary64 and in the order of
 * kernels/reference.c; what is stored between them is binary32.
 */
#ifndef CKV_KERNELS_CUDA_UNITS_CUH
#define CKV_KERNELS_CUDA_UNITS_CUH

#include "kernels/cuda/values.cuh"

/* numbers of kernels/policy.h; host code asserts that they are the same */
enum { CKV_K_POOL_NONE = 1, CKV_K_POOL_AVG, CKV_K_POOL_MAX };
enum { CKV_K_GROUP_SUM = 1, CKV_K_GROUP_MAX, CKV_K_GROUP_MEAN };
enum { CKV_K_HEADS_SUM = 1, CKV_K_HEADS_MAX, CKV_K_HEADS_EACH };
enum { CKV_K_UNIT_MEAN = 1, CKV_K_UNIT_SUM, CKV_K_UNIT_MAX };
enum { CKV_K_FILL_LEAD = 1, CKV_K_FILL_BEST, CKV_K_FILL_NONE };

/* A[h][j] with norm, contrast and mute; @a: [rows] of one head */
CKV_DEVICE double weight_of(const struct ckv_k_rows &p, const float *a, uint32_t j) {
        double v = (double)a[j];

        if (p.divisor > 0)
                v = v / (double)p.divisor;
        if (p.seen) {
                uint32_t seen = pointer<const uint32_t>(p.seen)[j];

                v = seen > 0 ? v / (double)seen : 0;
        }
        if (p.older) {
                /* older sums lie as those that vote do; a NaN stays */
                v = v - (double)pointer<const float>(p.older)[a - pointer<const float>(p.in) + j] / (double)p.older_rows;
                v = v < 0 ? 0 : v;
        }
        return j < p.mute ? 0 : v;
}

CKV_DEVICE double pooled(const struct ckv_k_rows &p, const float *a, uint32_t j) {
        uint32_t half = (p.pool_size - 1) / 2, low = j > half ? j - half : 0, high;
        double sum = 0, most;

        if (p.pool == CKV_K_POOL_NONE || j >= p.domain)
                return weight_of(p, a, j);
        high = half < p.domain - 1 - j ? j + half : p.domain - 1;
        most = weight_of(p, a, low);
        for (uint32_t i = low; i <= high; i++) {
                double v = weight_of(p, a, i);

                sum += v;
                most = greater_of(most, v);
        }
        return p.pool == CKV_K_POOL_AVG ? sum / (double)p.pool_size : most;
}

/* S[g][j] */
CKV_DEVICE double group_score(const struct ckv_k_rows &p, uint32_t g, uint32_t j) {
        const uint32_t per_group = p.heads_in / p.kv_heads;
        const float *in = pointer<const float>(p.in) + ((uint64_t)blockIdx.z * p.heads_in + g * per_group) * p.rows;
        double sum = 0, most = 0, s;

        for (uint32_t h = 0; h < per_group; h++) {
                double v = pooled(p, in + (uint64_t)h * p.rows, j);

                sum += v;
                most = h == 0 ? v : greater_of(most, v);
        }
        s = p.group_heads == CKV_K_GROUP_MAX ? most : p.group_heads == CKV_K_GROUP_MEAN ? sum / (double)per_group : sum;
        if (p.value_norms)
                s = s * (double)pointer<const float>(p.value_norms)[((uint64_t)blockIdx.z * p.kv_heads + g) * p.rows + j];
        return s;
}

extern "C" __global__ void __launch_bounds__(CKV_K_THREADS, 4) ckv_k_rows(const struct ckv_k_rows p) {
        const uint32_t j = blockIdx.x * CKV_K_THREADS + threadIdx.x;
        const bool each = p.heads == CKV_K_HEADS_EACH;

        if (j < p.rows) {
                double sum = 0, most = 0;

                for (uint32_t g = each ? blockIdx.y : 0; g < (each ? blockIdx.y + 1 : p.kv_heads); g++) {
                        double s = group_score(p, g, j);

                        most = each || g == 0 ? s : greater_of(most, s);
                        sum += s;
                }
                pointer<float>(p.out)[((uint64_t)blockIdx.z * p.score_heads + blockIdx.y) * p.rows + j] =
                        (float)(p.heads == CKV_K_HEADS_MAX ? most : sum);
        }
}

extern "C" __global__ void __launch_bounds__(CKV_K_THREADS) ckv_k_units(const struct ckv_k_units p) {
        const uint32_t u = blockIdx.x * CKV_K_THREADS + threadIdx.x;

        if (u < p.units) {
                const uint32_t *unit_of_row = pointer<const uint32_t>(p.unit_of_row);
                const float *rows = pointer<const float>(p.rows_in) + (uint64_t)blockIdx.y * p.rows;
                const uint32_t size = pointer<const uint32_t>(p.size)[u];
                double sum = 0, most = 0;

                /* rows that are protected may lie between those of a unit */
                for (uint32_t j = pointer<const uint32_t>(p.first_row)[u], n = 0; n < size; j++) {
                        if (unit_of_row[j] != u)
                                continue;
                        sum += (double)rows[j];
                        most = n == 0 ? (double)rows[j] : greater_of(most, (double)rows[j]);
                        n++;
                }
                if (p.unit_reduce == CKV_K_UNIT_MEAN)
                        sum = sum / (double)size;
                /* + 0: a zero is stored as +0 (R13) */
                pointer<float>(p.out)[(uint64_t)blockIdx.y * p.units + u] =
                        (float)(p.unit_reduce == CKV_K_UNIT_MAX ? most : sum) + 0.0f;
        }
}

#endif
