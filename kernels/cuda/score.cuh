/*
 * S1 of the scorers window and raw_qk, for any layout, dtype and number of
 * dimensions: products in binary32 on the ordinary units, K read twice.
 *
 *     lse_part  m and z = sum of 2^(t - m) over the rows of a segment that a query sees, t = logit * log2 e
 *     lse       log2 of Z over all segments, in ascending order, and the sink; or the caller's, checked (R40)
 *     weights   A[h][j] = sum over the queries of 2^min(t - log2 Z, 0)
 *
 * A block takes one segment of one query head of one layer.  Its 32 lanes are
 * rows, and each of its four warps has 16 query rows, whose products are 16
 * accumulators of a lane.  Tiles of K and Q pass through shared memory, one
 * element apart from a power of two, so that lanes meet different banks.
 *
 * A pair that may not see each other adds nothing; it is not put through exp
 * as -infinity (R34).
 */
#ifndef CKV_KERNELS_CUDA_SCORE_CUH
#define CKV_KERNELS_CUDA_SCORE_CUH

#include "kernels/cuda/values.cuh"

#define CKV_LOG2E 1.4426950408889634f
#define CKV_FAR 1.2676506e30f           /* 2^100: sums above it call for another reference */
#define CKV_MOST 3.4028235e38f          /* the largest number */

enum { CKV_PITCH = CKV_K_DEPTH + 1, CKV_EACH = CKV_K_QUERIES / (CKV_K_THREADS / 32) };

/* dimensions [x0, x0 + DEPTH) of a tile of K and of queries; 0 where there is none */
CKV_DEVICE void load_tiles(const struct ckv_k_score &p, const struct ckv_k_layer &layer, uint32_t head, uint32_t row0,
                           uint32_t query0, uint32_t x0, float *k, float *q) {
        const uint32_t kv_head = head / (p.q_heads / p.kv_heads), bytes = p.query_dtype == 1 ? 4 : 2;

        for (uint32_t i = threadIdx.x; i < CKV_K_TILE * CKV_K_DEPTH; i += CKV_K_THREADS) {
                uint32_t r = i / CKV_K_DEPTH, x = i % CKV_K_DEPTH;
                bool ok = row0 + r < p.rows && x0 + x < p.head_dim;

                k[r * CKV_PITCH + x] = ok ? value_at(layer.k, row_at(layer.k, p.table, row0 + r, kv_head), x0 + x) : 0;
        }
        for (uint32_t i = threadIdx.x; i < CKV_K_QUERIES * CKV_K_DEPTH; i += CKV_K_THREADS) {
                uint32_t r = i / CKV_K_DEPTH, x = i % CKV_K_DEPTH;
                bool ok = query0 + r < p.votes && x0 + x < p.head_dim;
                uint32_t slot = (uint32_t)(((uint64_t)p.ring_start + p.query_first + query0 + r) % p.query_rows);
                const uint8_t *row = pointer<const uint8_t>(layer.query + head * p.query_head_stride + slot * p.query_row_stride);

                q[r * CKV_PITCH + x] = ok ? element_anywhere(row + (uint64_t)(x0 + x) * bytes, p.query_dtype) : 0;
        }
}

/* products of row row0 + lane with queries query0 + 16 * warp + i; all threads of the block take part */
CKV_DEVICE void products(const struct ckv_k_score &p, const struct ckv_k_layer &layer, uint32_t head, uint32_t row0,
                         uint32_t query0, float *tiles, float sum[CKV_EACH]) {
        const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
        float *k = tiles, *q = tiles + CKV_K_TILE * CKV_PITCH;

#pragma unroll
        for (int i = 0; i < CKV_EACH; i++)
                sum[i] = 0;
        for (uint32_t x0 = 0; x0 < p.head_dim; x0 += CKV_K_DEPTH) {
                __syncthreads();        /* the tile before has been read by all */
                load_tiles(p, layer, head, row0, query0, x0, k, q);
                __syncthreads();
#pragma unroll 1
                for (uint32_t x = 0; x < CKV_K_DEPTH; x++) {
                        float key = k[lane * CKV_PITCH + x];

#pragma unroll
                        for (int i = 0; i < CKV_EACH; i++)
                                sum[i] = fmaf(q[(warp * CKV_EACH + i) * CKV_PITCH + x], key, sum[i]);
                }
        }
}

CKV_DEVICE bool sees(const struct ckv_k_score &p, uint32_t query, uint32_t row) {
        const uint32_t *range = pointer<const uint32_t>(p.visible) + 2 * query;

        return query < p.votes && row < p.rows && row >= range[0] && row < range[1];
}

/* in log2 units */
CKV_DEVICE float logit(const struct ckv_k_score &p, float product) {
        float s = product * p.scale;

        if (p.softcap > 0)
                s = p.softcap * tanhf(s / p.softcap);
        return s * CKV_LOG2E;
}

/* (m, z) takes in (more, sum), both the sum of 2^(t - m). Of what is no number z becomes NaN (R23), while m stays the largest
 * logit, infinity included, or a wrong log-sum-exp would go unseen (R40). */
CKV_DEVICE void join(float more, float sum, float *m, float *z) {
        if (more > *m) {
                *z = *z * exp2_fast(*m - more) + sum;
                *m = more;
        } else
                *z += more > CKV_MINUS_INF ? sum * exp2_fast(more - *m) : sum;  /* of -infinity alone: 0, or NaN */
}

/* a natural logarithm in log2 units; what is finite stays so, as a row's weight of 0 is legal beside it */
CKV_DEVICE float log2_units(float v) {
        return v - v == 0 ? fminf(fmaxf(v * CKV_LOG2E, -CKV_MOST), CKV_MOST) : v;
}

extern "C" __global__ void __launch_bounds__(CKV_K_THREADS, 4) ckv_k_lse_part(const struct ckv_k_score p) {
        CKV_SHARED(float, tiles);
        const struct ckv_k_layer &layer = pointer<const struct ckv_k_layer>(p.layers)[blockIdx.z];
        const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, head = blockIdx.y, first = blockIdx.x * CKV_K_SEGMENT;
        const uint32_t end = p.rows - first < CKV_K_SEGMENT ? p.rows : first + CKV_K_SEGMENT;

        for (uint32_t query0 = 0; query0 < p.votes; query0 += CKV_K_QUERIES) {
                float m = CKV_MINUS_INF, z = 0;         /* lane i has those of the warp's query i */
                uint32_t mine = query0 + warp * CKV_EACH + lane;

                for (uint32_t row0 = first; row0 < end; row0 += CKV_K_TILE) {
                        float sum[CKV_EACH];

                        products(p, layer, head, row0, query0, tiles, sum);
#pragma unroll
                        for (int i = 0; i < CKV_EACH; i++) {
                                bool ok = sees(p, query0 + warp * CKV_EACH + i, row0 + lane);
                                float t = ok ? logit(p, sum[i]) : CKV_MINUS_INF, most = warp_most(t);
                                /* logits of -infinity alone weigh nothing, and have no difference */
                                float total = warp_sum(ok ? exp2_fast(t - (most == CKV_MINUS_INF ? 0 : most)) : 0.0f);

                                if (lane == (uint32_t)i)
                                        join(most, total, &m, &z);
                        }
                }
                if (lane < CKV_EACH && mine < p.votes) {
                        float *out = pointer<float>(p.part) +
                                     2 * ((((uint64_t)blockIdx.z * p.q_heads + head) * p.votes + mine) * p.segments + blockIdx.x);

                        out[0] = m;
                        out[1] = z;
                }
        }
}

/* R40, as ckv_ref_lse_wrong(); all in log2 units */
CKV_DEVICE bool lse_wrong(float lse, float sink, float m, float z) {
        float above = m > sink ? m - lse : sink - lse, sum = z * exp2_fast(m - lse);

        return lse - lse != 0 || sink != sink || above > 0.1f * CKV_LOG2E || sum < 0.9f || sum > 1.1f;
}

extern "C" __global__ void __launch_bounds__(CKV_K_THREADS) ckv_k_lse(const struct ckv_k_score p) {
        const struct ckv_k_layer &layer = pointer<const struct ckv_k_layer>(p.layers)[blockIdx.z];
        const uint32_t query = blockIdx.x * CKV_K_THREADS + threadIdx.x, head = blockIdx.y;
        const uint64_t index = ((uint64_t)blockIdx.z * p.q_heads + head) * p.votes + query;

        if (query < p.votes) {
                const float *part = pointer<const float>(p.part) + 2 * index * p.segments;
                float sink = layer.sink_logits ? log2_units(float_at(layer.sink_logits, head)) : CKV_MINUS_INF;
                float m = CKV_MINUS_INF, z = 0, lse;
                bool far;

                for (uint32_t s = 0; s < p.segments; s++)
                        join(part[2 * s], part[2 * s + 1], &m, &z);
                far = !(z >= 0.5f && z <= CKV_FAR);
                if (sink != CKV_MINUS_INF)
                        join(sink, 1 + (sink - sink), &m, &z);          /* +infinity over itself has no value */
                lse = m + log2f(z);
                if (p.looks_far && (far || lse - lse != 0))
                        atomicMin(pointer<uint32_t>(p.wrong) + blockIdx.z, head);
                if (layer.lse) {
                        uint64_t slot = ((uint64_t)p.ring_start + p.query_first + query) % p.query_rows;

                        lse = log2_units(float_at(layer.lse, (uint64_t)head * p.query_rows + slot));
                        if (lse_wrong(lse, sink, m, z))
                                atomicMin(pointer<uint32_t>(p.wrong) + blockIdx.z, head);
                }
                pointer<float>(p.lse)[index] = lse;
        }
}

/* the weight that one query gives one row, added to *a or, with window_reduce = max, kept if greater */
CKV_DEVICE void weigh(const struct ckv_k_score &p, float product, float lse, float *a) {
        float x;

        if (p.raw) {
                *a += product;
                return;
        }
        x = logit(p, product) - lse;
        x = exp2_fast(x > 0 ? 0 : x);
        *a = p.most ? greater_of(*a, x) : *a + x;
}

extern "C" __global__ void __launch_bounds__(CKV_K_THREADS, 8) ckv_k_weights(const struct ckv_k_score p) {
        CKV_SHARED(float, tiles);
        float *parts = tiles + (CKV_K_TILE + CKV_K_QUERIES) * CKV_PITCH;        /* [4 warps][32 rows] */
        const struct ckv_k_layer &layer = pointer<const struct ckv_k_layer>(p.layers)[blockIdx.z];
        const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, head = blockIdx.y, first = blockIdx.x * CKV_K_SEGMENT;
        const uint32_t end = p.rows - first < CKV_K_SEGMENT ? p.rows : first + CKV_K_SEGMENT;
        const uint64_t at = (uint64_t)blockIdx.z * p.q_heads + head;

        for (uint32_t row0 = first; row0 < end; row0 += CKV_K_TILE) {
                float a = 0;

                for (uint32_t query0 = 0; query0 < p.votes; query0 += CKV_K_QUERIES) {
                        float sum[CKV_EACH];

                        products(p, layer, head, row0, query0, tiles, sum);
#pragma unroll
                        for (int i = 0; i < CKV_EACH; i++) {
                                uint32_t query = query0 + warp * CKV_EACH + i;

                                if (sees(p, query, row0 + lane))
                                        weigh(p, sum[i], p.raw ? 0 : pointer<const float>(p.lse)[at * p.votes + query], &a);
                        }
                }
                parts[threadIdx.x] = a;
                __syncthreads();
                if (warp == 0 && row0 + lane < p.rows) {
                        for (uint32_t w = 1; w < CKV_K_THREADS / 32; w++) {
                                float more = parts[w * 32 + lane];

                                a = p.most ? greater_of(a, more) : a + more;
                        }
                        pointer<float>(p.weights)[at * p.rows + row0 + lane] = a;
                }
        }
}

#endif
