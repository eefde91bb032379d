/*
 * Kernels that only measure or compare: what primitives give, how fast memory,
 * tensor cores and exponentials are, and in which order stores are seen.  They
 * are no part of the product, so the assembly here may stand beside them.
 */
#include "tests/gpu/probes.cuh"

extern "C" __global__ void probe_prims(const struct probe_prims p) {
        const uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;

        if (i < p.count)
                reinterpret_cast<uint32_t *>(p.out)[i] = probe_value(p.which, reinterpret_cast<const uint32_t *>(p.in)[i]);
}

extern "C" __global__ void probe_copy(const struct probe_copy p) {
        const uint4 *from = reinterpret_cast<const uint4 *>(p.from);
        uint4 *to = reinterpret_cast<uint4 *>(p.to);
        const uint64_t step = (uint64_t)gridDim.x * blockDim.x;
        uint64_t i = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x;

        for (; i + 3 * step < p.vectors; i += 4 * step) {
                uint4 a = from[i], b = from[i + step], c = from[i + 2 * step], d = from[i + 3 * step];

                to[i] = a;
                to[i + step] = b;
                to[i + 2 * step] = c;
                to[i + 3 * step] = d;
        }
        for (; i < p.vectors; i += step)
                to[i] = from[i];
}

extern "C" __global__ void probe_exp2(const struct probe_peak p) {
        float x[PROBE_EXP2_EACH];

        for (int n = 0; n < PROBE_EXP2_EACH; n++)
                x[n] = 0.001f * (float)(threadIdx.x + n);
        for (uint32_t i = 0; i < p.rounds; i++)
#pragma unroll
                for (int n = 0; n < PROBE_EXP2_EACH; n++)
                        asm volatile("ex2.approx.ftz.f32 %0, %0;" : "+f"(x[n]));
        for (int n = 1; n < PROBE_EXP2_EACH; n++)
                x[0] += x[n];
        reinterpret_cast<float *>(p.out)[blockIdx.x * blockDim.x + threadIdx.x] = x[0];
}

extern "C" __global__ void probe_mma(const struct probe_peak p) {
        float d[PROBE_MMA_EACH][4] = { { 0 } };
        uint32_t a = 0x3c003c00u + threadIdx.x, b = 0x3b003b00u + threadIdx.x;

        for (uint32_t i = 0; i < p.rounds; i++)
#pragma unroll
                for (int n = 0; n < PROBE_MMA_EACH; n++)
                        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %4, %4, %4}, "
                                     "{%5, %5}, {%0, %1, %2, %3};"
                                     : "+f"(d[n][0]), "+f"(d[n][1]), "+f"(d[n][2]), "+f"(d[n][3])
                                     : "r"(a), "r"(b));
        for (int n = 1; n < PROBE_MMA_EACH; n++)
                d[0][0] += d[n][0] + d[n][1] + d[n][2] + d[n][3];
        reinterpret_cast<float *>(p.out)[blockIdx.x * blockDim.x + threadIdx.x] = d[0][0];
}

extern "C" __global__ void probe_stamp(const struct probe_stamp p) {
        const uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;

        if (i < p.count)
                reinterpret_cast<volatile uint32_t *>(p.data)[i] = p.stamp;
}
