/*
 * Loops for AVX512-BF16: an instruction adds two products of bfloat16 to each
 * of sixteen floats.  Exponentials are those of AVX-512.
 */
#if !defined(__AVX512BF16__)
#error "this file needs -mavx512bf16"
#endif

#include "bench/loops.h"

#include "kernels/cpu_window_avx512.inc"

#define BEFORE_POWERS
#define ADD_POWER(s, t) ((s) + power(t))
#define FMA_PRODUCTS 0
#define TOUCH(v) __asm__ volatile("" : "+v"(v))
#include "bench/loops_isa.inc"

enum { FLOPS = 64 };

static void add_pairs(uint64_t rounds) {
        const __m512bh half = (__m512bh)_mm512_set1_epi16(0x3f00), quarter = (__m512bh)_mm512_set1_epi16(0x3e80);
        __m512 a = _mm512_setzero_ps(), b = a, c = a, d = a, e = a, f = a, g = a, h = a, i = a, j = a, k = a, l = a;

        for (uint64_t n = 0; n < rounds; n++) {
                a = _mm512_dpbf16_ps(a, half, quarter), b = _mm512_dpbf16_ps(b, half, quarter);
                c = _mm512_dpbf16_ps(c, half, quarter), d = _mm512_dpbf16_ps(d, half, quarter);
                e = _mm512_dpbf16_ps(e, half, quarter), f = _mm512_dpbf16_ps(f, half, quarter);
                g = _mm512_dpbf16_ps(g, half, quarter), h = _mm512_dpbf16_ps(h, half, quarter);
                i = _mm512_dpbf16_ps(i, half, quarter), j = _mm512_dpbf16_ps(j, half, quarter);
                k = _mm512_dpbf16_ps(k, half, quarter), l = _mm512_dpbf16_ps(l, half, quarter);
                TOUCH(a); TOUCH(b); TOUCH(c); TOUCH(d); TOUCH(e); TOUCH(f); TOUCH(g); TOUCH(h); TOUCH(i); TOUCH(j); TOUCH(k); TOUCH(l);
        }
}

const struct bench_loops bench_loops_avx512bf16 = {
        .path = "avx512bf16",
        .flops_of_round = CHAINS * FLOPS,
        .products = add_pairs,
        .exponentials_of_round = POWERS,
        .exponentials = add_powers,
};
