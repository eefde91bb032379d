/*
 * Loops for AVX512-BF16: an instruction adds two products of bfloat16 to each
 * of sixteen floats.  Exponentials are those of AVX-512.
 */
#if !defined(__AVX512BF16__)
#error "this file needs -mavx512f -mavx512bw -mavx512vl -mavx512dq -mfma -mavx512bf16"
#endif

#include "bench/loops.h"

#include "kernels/cpu_kernel.h"

#include <immintrin.h>

#define NAME(x) x##_bench_avx512bf16
#define KERNEL "bench"
#define LANES 16
#define VECTORS 4
#define GREATER(a, b) ((VEC)_mm512_max_ps((__m512)(a), (__m512)(b)))

#include "kernels/cpu_score_isa.inc"

#define PRODUCTS 0
#define KEEP(v) __asm__ volatile("" : "+v"(v))
#include "bench/loops_isa.inc"

enum { CHAINS = 12, FLOPS = 64 };

static void products(uint64_t rounds) {
        const __m512bh half = (__m512bh)_mm512_set1_epi16(0x3f00), quarter = (__m512bh)_mm512_set1_epi16(0x3e80);
        __m512 a = _mm512_setzero_ps(), b = a, c = a, d = a, e = a, f = a, g = a, h = a, i = a, j = a, k = a, l = a;

        for (uint64_t n = 0; n < rounds; n++) {
                a = _mm512_dpbf16_ps(a, half, quarter), b = _mm512_dpbf16_ps(b, half, quarter);
                c = _mm512_dpbf16_ps(c, half, quarter), d = _mm512_dpbf16_ps(d, half, quarter);
                e = _mm512_dpbf16_ps(e, half, quarter), f = _mm512_dpbf16_ps(f, half, quarter);
                g = _mm512_dpbf16_ps(g, half, quarter), h = _mm512_dpbf16_ps(h, half, quarter);
                i = _mm512_dpbf16_ps(i, half, quarter), j = _mm512_dpbf16_ps(j, half, quarter);
                k = _mm512_dpbf16_ps(k, half, quarter), l = _mm512_dpbf16_ps(l, half, quarter);
                __asm__ volatile("" : "+v"(a), "+v"(b), "+v"(c), "+v"(d), "+v"(e), "+v"(f), "+v"(g), "+v"(h), "+v"(i), "+v"(j),
                                      "+v"(k), "+v"(l));
        }
}

const struct bench_loops bench_loops_avx512bf16 = {
        .path = "avx512bf16",
        .flops_of_round = CHAINS * FLOPS,
        .products = products,
        .exponentials_of_round = NAME(EXPONENTIALS),
        .exponentials = NAME(bench_exponentials),
};
