/*
 * Loops for AVX2 with FMA, vectors of 8 floats.
 */
#include "bench/loops.h"

/* the whole kernel once more, for its exponential */
#define ckv__cpu_window_avx2 bench_window_avx2
#include "kernels/cpu_window_avx2.c"

#define BEFORE_POWERS
#define ADD_POWER(s, t) ((s) + power(t))
#define FMA_PRODUCTS 1
#define TOUCH(v) __asm__ volatile("" : "+x"(v))
#include "bench/loops_isa.inc"

uint64_t bench_read_avx2(const void *from, size_t bytes) {
        const __m256i *v = from;
        __m256i a = _mm256_setzero_si256(), b = a, c = a, d = a;

        for (size_t i = 0; i < bytes / sizeof(*v); i += 4) {
                a = _mm256_xor_si256(a, v[i]);
                b = _mm256_xor_si256(b, v[i + 1]);
                c = _mm256_xor_si256(c, v[i + 2]);
                d = _mm256_xor_si256(d, v[i + 3]);
        }
        a = _mm256_xor_si256(_mm256_xor_si256(a, b), _mm256_xor_si256(c, d));
        TOUCH(a);
        return (uint64_t)_mm256_extract_epi64(a, 0);
}

const struct bench_loops bench_loops_avx2 = {
        .path = "avx2",
        .flops_of_round = 2.0 * LANES * CHAINS,
        .products = add_products,
        .exponentials_of_round = POWERS,
        .exponentials = add_powers,
};
