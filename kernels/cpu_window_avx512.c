/*
 * The window kernel for AVX-512 without BF16: rows are widened to binary32, a
 * block at a time.  Only this file may be compiled for that machine.
 */
#include "kernels/cpu_window_avx512.inc"

#include "kernels/cpu_kernel.h"

#include <string.h>

#define KERNEL "avx512"
#define NAME ckv__cpu_window_avx512
#define QVEC __m512
#define ELEMENT float
#define PER_STEP 1
#define IN_PLACE false
#define LOADQ _mm512_loadu_ps
#define SPREAD(p) _mm512_set1_ps(*(const float *)(const void *)(p))
#define MAC(sum, q, k) _mm512_fmadd_ps(q, k, sum)

static bool takes(enum ckv_dtype keys, enum ckv_dtype queries, uint32_t dims) {
        return (keys == CKV_DTYPE_BF16 || keys == CKV_DTYPE_F16 || keys == CKV_DTYPE_F32) &&
               (queries == CKV_DTYPE_BF16 || queries == CKV_DTYPE_F16 || queries == CKV_DTYPE_F32) && dims <= CKV_CPU_DIMS_MAX;
}

static float to_element(const float *values) {
        return values[0];
}

static inline __m512 widen_bf16(__m256i bits) {
        return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
}

static void widen_row(const struct ckv_cpu_window_segment *segment, const uint8_t *from, float *to) {
        enum ckv_dtype dtype = segment->k->dtype;

        for (uint32_t x = 0; x < segment->dims; x += LANES) {
                __mmask16 mask = (__mmask16)(segment->dims - x < LANES ? (1u << (segment->dims - x)) - 1 : 0xffff);
                __m512 wide;

                if (dtype == CKV_DTYPE_F32)
                        wide = _mm512_maskz_loadu_ps(mask, from + x * sizeof(float));
                else {
                        __m256i bits = _mm256_maskz_loadu_epi16(mask, from + x * sizeof(uint16_t));

                        wide = dtype == CKV_DTYPE_BF16 ? widen_bf16(bits) : _mm512_cvtph_ps(bits);
                }
                _mm512_mask_storeu_ps(to + x, mask, wide);
        }
}

#include "kernels/cpu_window_isa.inc"
