/*
 * The scoring kernel for AVX-512: vectors of sixteen floats, a register tile of
 * 64 rows by 6 queries (24 accumulators, 4 rows, 1 query of 32 registers).
 * Only this file may be compiled for that machine.
 */
#if !defined(__AVX512F__) || !defined(__AVX512BW__) || !defined(__AVX512VL__) || !defined(__AVX512DQ__)
#error "this file needs -mavx512f -mavx512bw -mavx512vl -mavx512dq -mfma"
#endif

#include "kernels/cpu_kernel.h"

#include <immintrin.h>

#define NAME(x) x##_avx512
#define KERNEL "avx512"
#define LANES 16
#define VECTORS 4
#define GREATER(a, b) ((VEC)_mm512_max_ps((__m512)(a), (__m512)(b)))

#define WIDEN_BF16(p) \
        _mm512_cvtps_pd(_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const void *)(p))), 16)))
#define EVEN_BF16(p) _mm512_cvtps_pd(_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_loadu_si256((const void *)(p)), 16)))
#define ODD_BF16(p) \
        _mm512_cvtps_pd(_mm256_castsi256_ps(_mm256_and_si256(_mm256_loadu_si256((const void *)(p)), \
                                                             _mm256_set1_epi32((int32_t)0xffff0000))))
#define ROOTS(v) _mm512_sqrt_pd(v)
#define WIDEN_F16(p) _mm512_cvtps_pd(_mm256_maskz_cvtph_ps(0xff, _mm_loadu_si128((const void *)(p))))
#define WIDEN_F32(p) _mm512_cvtps_pd(_mm256_loadu_ps((const float *)(const void *)(p)))

#include "kernels/cpu_score_isa.inc"
