/*
 * The window kernel for AVX512-BF16: two products of bfloat16 in a lane and
 * instruction, keys and queries as they are.  Only this file may be compiled
 * for that machine.
 *
 * VDPBF16PS takes denormals for zero, whatever the mode of the thread; R31
 * allows that of results, and a denormal bfloat16 is no larger than they are.
 */
#if !defined(__AVX512BF16__)
#error "this file needs -mavx512bf16"
#endif

#include "kernels/cpu_window_avx512.inc"

#include "kernels/cpu_kernel.h"

#include <string.h>

#define KERNEL "avx512bf16"
#define NAME ckv__cpu_window_avx512bf16
#define QVEC __m512i
#define ELEMENT uint32_t
#define PER_STEP 2
#define IN_PLACE true
#define LOADQ(p) _mm512_loadu_si512(p)
#define SPREAD(p) _mm512_set1_epi32(*(const pair_at *)(p))
#define MAC(sum, q, k) _mm512_dpbf16_ps(sum, (__m512bh)(q), (__m512bh)(k))

/* Two elements in a tenant's memory: any alignment, any alias. */
typedef int32_t pair_at __attribute__((aligned(1), may_alias));

static bool takes(enum ckv_dtype keys, enum ckv_dtype queries, uint32_t dims) {
        return keys == CKV_DTYPE_BF16 && queries == CKV_DTYPE_BF16 && dims % PER_STEP == 0 && dims <= CKV_CPU_DIMS_MAX;
}

static uint32_t to_element(const float *values) {
        uint32_t bits[2];

        memcpy(bits, values, sizeof(bits));
        return bits[0] >> 16 | (bits[1] & 0xffff0000);
}

static void widen_row(const struct ckv_cpu_window_segment *segment, const uint8_t *from, uint32_t *to) {
        uint32_t steps = segment->dims / PER_STEP, s = 0;

        for (; s + LANES <= steps; s += LANES)
                _mm512_storeu_si512(to + s, _mm512_loadu_si512(from + s * sizeof(*to)));
        memcpy(to + s, from + s * sizeof(*to), (steps - s) * sizeof(*to));
}

#include "kernels/cpu_window_isa.inc"
