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

#include "kernels/cpu_score_isa.inc"
