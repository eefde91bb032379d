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

#include "kernels/cpu_score_isa.inc"
