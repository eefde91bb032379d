/*
 * Loops for AVX-512, vectors of 16 floats.
 */
#if !defined(__AVX512F__)
#error "this file needs -mavx512f -mavx512bw -mavx512vl -mavx512dq -mfma"
#endif

#include "bench/loops.h"

#include "kernels/cpu_kernel.h"

#include <immintrin.h>

#define NAME(x) x##_bench_avx512
#define KERNEL "bench"
#define LANES 16
#define VECTORS 4
#define GREATER(a, b) ((VEC)_mm512_max_ps((__m512)(a), (__m512)(b)))

#include "kernels/cpu_score_isa.inc"

#define PRODUCTS 1
#define KEEP(v) __asm__ volatile("" : "+v"(v))
#include "bench/loops_isa.inc"

uint64_t bench_read_avx512(const void *from, size_t bytes) {
        const VEC *v = from;
        IVEC a = { 0 }, b = { 0 }, c = { 0 }, d = { 0 };

        for (size_t i = 0; i < bytes / sizeof(*v); i += 4) {
                a ^= (IVEC)v[i];
                b ^= (IVEC)v[i + 1];
                c ^= (IVEC)v[i + 2];
                d ^= (IVEC)v[i + 3];
                KEEP(a); KEEP(b); KEEP(c); KEEP(d);
        }
        a ^= b ^ c ^ d;
        return (uint32_t)a[0];
}

const struct bench_loops bench_loops_avx512 = {
        .path = "avx512",
        .flops_of_round = 2.0 * LANES * NAME(ACCUMULATORS),
        .products = NAME(bench_products),
        .exponentials_of_round = NAME(EXPONENTIALS),
        .exponentials = NAME(bench_exponentials),
};
