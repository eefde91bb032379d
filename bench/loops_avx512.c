/*
 * Loops for AVX-512, vectors of 16 floats.
 */
#include "bench/loops.h"

#include "kernels/cpu_window_avx512.inc"

#define BEFORE_POWERS
#define ADD_POWER(s, t) ((s) + power(t))
#define FMA_PRODUCTS 1
#define TOUCH(v) __asm__ volatile("" : "+v"(v))
#include "bench/loops_isa.inc"

uint64_t bench_read_avx512(const void *from, size_t bytes) {
        const __m512i *v = from;
        __m512i a = _mm512_setzero_si512(), b = a, c = a, d = a;

        for (size_t i = 0; i < bytes / sizeof(*v); i += 4) {
                a = _mm512_xor_si512(a, v[i]);
                b = _mm512_xor_si512(b, v[i + 1]);
                c = _mm512_xor_si512(c, v[i + 2]);
                d = _mm512_xor_si512(d, v[i + 3]);
        }
        a = _mm512_xor_si512(_mm512_xor_si512(a, b), _mm512_xor_si512(c, d));
        TOUCH(a);
        return (uint64_t)_mm_extract_epi64(_mm512_castsi512_si128(a), 0);
}

const struct bench_loops bench_loops_avx512 = {
        .path = "avx512",
        .flops_of_round = 2.0 * LANES * CHAINS,
        .products = add_products,
        .exponentials_of_round = POWERS,
        .exponentials = add_powers,
};
