/*
 * The window kernel for AVX2 with FMA and F16C: rows are widened to binary32,
 * a block at a time.  Only this file may be compiled for that machine.
 *
 * Of sixteen registers ten hold sums, and six are left for the rest.
 */
#if !defined(__AVX2__) || !defined(__FMA__) || !defined(__F16C__)
#error "this file needs -mavx2 -mfma -mf16c"
#endif
#if defined(__AVX512F__)
#error "this file must not use AVX-512"
#endif

#include "kernels/cpu_kernel.h"
#include "kernels/cpu_window.h"

#include <immintrin.h>
#include <string.h>

#define KERNEL "avx2"
#define NAME ckv__cpu_window_avx2
#define VEC __m256
#define LANES 8
#define QVEC __m256
#define ELEMENT float
#define PER_STEP 1
#define IN_PLACE false
#define LOADQ _mm256_loadu_ps
#define SPREAD(p) _mm256_broadcast_ss((const float *)(const void *)(p))
#define MAC(sum, q, k) _mm256_fmadd_ps(q, k, sum)
#define LOAD _mm256_loadu_ps
#define STORE _mm256_storeu_ps
#define SET1 _mm256_set1_ps
#define ADD _mm256_add_ps
#define MUL _mm256_mul_ps
/* of a NaN and a number: the second operand */
#define MAX _mm256_max_ps
#define MIN _mm256_min_ps
#define FMADD _mm256_fmadd_ps
#define FMSUB _mm256_fmsub_ps
#define LOAD_FIRST(p, n) _mm256_maskload_ps(p, first_lanes(n))
#define SEEN(low, high, row) \
        _mm256_castsi256_ps(_mm256_andnot_si256( \
                _mm256_cmpgt_epi32(_mm256_loadu_si256((const void *)(low)), _mm256_set1_epi32(row)), \
                _mm256_cmpgt_epi32(_mm256_loadu_si256((const void *)(high)), _mm256_set1_epi32(row))))
#define KEEP(mask, x, otherwise) _mm256_blendv_ps(otherwise, x, mask)
#define EACH_TILE(M) M(5, 2)

/* The number of queries is padded to two vectors. */
static inline uint32_t group_vectors(uint32_t left) {
        return left < 2 ? left : 2;
}

static inline __m256i first_lanes(uint32_t n) {
        return _mm256_cmpgt_epi32(_mm256_set1_epi32((int32_t)n), _mm256_set_epi32(7, 6, 5, 4, 3, 2, 1, 0));
}

/*
 * 2^t = 2^n * 2^f with n the nearest integer. Minimax polynomial of degree 5 on [-1/2, 1/2], relative error 7.5e-8 before
 * rounding (R31 asks for 2^-20). At the bounds the factor 2^n is 0 or infinity; a NaN stays one.
 */
static inline __attribute__((always_inline)) VEC power(VEC t) {
        /* adding it rounds to an integer and leaves n + 127 in the low bits of the sum */
        const VEC magic = SET1(0x1.8p23f + 127);
        VEC n, f, p;

        t = MIN(SET1(128), MAX(SET1(-127), t));
        n = ADD(t, magic);
        f = _mm256_sub_ps(t, _mm256_sub_ps(n, magic));
        p = FMADD(SET1(0.00132764717f), f, SET1(0.00967554154f));
        p = FMADD(p, f, SET1(0.0555071328f));
        p = FMADD(p, f, SET1(0.240221197f));
        p = FMADD(p, f, SET1(0.693146967f));
        p = FMADD(p, f, SET1(1.00000007f));
        return MUL(p, _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_castps_si256(n), 23)));
}

/* tanh(v) = (2^t - 1) / (2^t + 1) with t = v * 2 / ln 2; kernels/cpu_tanh_avx512.inc says more */
#define TANGENT_UNIT 0x1.715476p+1f

static inline __attribute__((always_inline)) VEC tangent(VEC t) {
        const VEC magic = SET1(0x1.8p23f + 127);
        VEC n, f, p, scale;

        t = MIN(SET1(40), MAX(SET1(-40), t));
        n = ADD(t, magic);
        f = _mm256_sub_ps(t, _mm256_sub_ps(n, magic));
        scale = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_castps_si256(n), 23));
        p = FMADD(SET1(0x1.41d334p-13f), f, SET1(0x1.5f456ap-10f));
        p = FMADD(p, f, SET1(0x1.3b2dbcp-7f));
        p = FMADD(p, f, SET1(0x1.c6aed4p-5f));
        p = FMADD(p, f, SET1(0x1.ebfbdap-3f));
        p = FMADD(p, f, SET1(0x1.62e430p-1f));
        p = FMADD(scale, MUL(p, f), _mm256_sub_ps(scale, SET1(1)));
        return _mm256_div_ps(p, ADD(p, SET1(2)));
}

/* Weights are not negative, so their bits are in order, and a NaN is above all of them, whatever its sign. */
static inline VEC join(VEC a, VEC b, bool most) {
        return most ? _mm256_castsi256_ps(_mm256_max_epu32(_mm256_castps_si256(a), _mm256_castps_si256(b))) : ADD(a, b);
}

/* Of each four lanes, two joined: a's and b's in turns */
static inline VEC fold_lanes(VEC a, VEC b, bool most) {
        return join(_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b), most);
}

static inline VEC fold_pairs(VEC a, VEC b, bool most) {
        __m256d x = _mm256_castps_pd(a), y = _mm256_castps_pd(b);

        return join(_mm256_castpd_ps(_mm256_unpacklo_pd(x, y)), _mm256_castpd_ps(_mm256_unpackhi_pd(x, y)), most);
}

/* Both quads of a joined, then those of b */
static inline VEC fold_quads(VEC a, VEC b, bool most) {
        return join(_mm256_permute2f128_ps(a, b, 0x20), _mm256_permute2f128_ps(a, b, 0x31), most);
}

static bool takes(enum ckv_dtype keys, enum ckv_dtype queries, uint32_t dims) {
        return (keys == CKV_DTYPE_BF16 || keys == CKV_DTYPE_F16 || keys == CKV_DTYPE_F32) &&
               (queries == CKV_DTYPE_BF16 || queries == CKV_DTYPE_F16 || queries == CKV_DTYPE_F32) && dims <= CKV_CPU_DIMS_MAX;
}

static float to_element(const float *values) {
        return values[0];
}

/* Eight elements */
static inline __m256 widen(enum ckv_dtype dtype, const void *from) {
        __m128i bits;

        if (dtype == CKV_DTYPE_F32)
                return _mm256_loadu_ps(from);
        bits = _mm_loadu_si128(from);
        if (dtype == CKV_DTYPE_F16)
                return _mm256_cvtph_ps(bits);
        return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
}

static void widen_row(const struct ckv_cpu_window_segment *segment, const uint8_t *from, float *to) {
        enum ckv_dtype dtype = segment->k->dtype;
        uint32_t bytes = ckv_dtype_bytes(dtype), x = 0;

        for (; x + LANES <= segment->dims; x += LANES)
                _mm256_storeu_ps(to + x, widen(dtype, from + x * bytes));
        if (x < segment->dims) {
                uint8_t last[LANES * sizeof(float)] = { 0 };
                float wide[LANES];

                memcpy(last, from + x * bytes, (segment->dims - x) * bytes);
                _mm256_storeu_ps(wide, widen(dtype, last));
                memcpy(to + x, wide, (segment->dims - x) * sizeof(*to));
        }
}

#include "kernels/cpu_window_isa.inc"
