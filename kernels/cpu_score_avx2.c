/*
 * The scoring kernel for AVX2 with FMA: vectors of eight floats, a register
 * tile of 16 rows by 6 queries (12 accumulators, 2 rows, 1 query of 16
 * registers).  Only this file may be compiled for that machine.
 */
#if !defined(__AVX2__) || !defined(__FMA__)
#error "this file needs -mavx2 -mfma"
#endif
#if defined(__AVX512F__)
#error "this file must not use AVX-512"
#endif

#include "kernels/cpu_kernel.h"

#include <immintrin.h>

#define NAME(x) x##_avx2
#define KERNEL "avx2"
#define LANES 8
#define VECTORS 2
#define GREATER(a, b) ((VEC)_mm256_max_ps((__m256)(a), (__m256)(b)))

/* Whoever asks for AVX2 asks for F16C too (cpu_paths.c). */
#define KEYS __attribute__((target("f16c")))
#define WIDEN_BF16(p) \
        _mm256_cvtps_pd(_mm_castsi128_ps(_mm_slli_epi32(_mm_cvtepu16_epi32(_mm_loadl_epi64((const void *)(p))), 16)))
#define EVEN_BF16(p) _mm256_cvtps_pd(_mm_castsi128_ps(_mm_slli_epi32(_mm_loadu_si128((const void *)(p)), 16)))
#define ODD_BF16(p) \
        _mm256_cvtps_pd(_mm_castsi128_ps(_mm_and_si128(_mm_loadu_si128((const void *)(p)), _mm_set1_epi32((int32_t)0xffff0000))))
#define ROOTS(v) _mm256_sqrt_pd(v)
#define WIDEN_F16(p) _mm256_cvtps_pd(_mm_cvtph_ps(_mm_loadl_epi64((const void *)(p))))
#define WIDEN_F32(p) _mm256_cvtps_pd(_mm_loadu_ps((const float *)(const void *)(p)))

#include "kernels/cpu_score_isa.inc"
