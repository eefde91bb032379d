/*
 * Numbers of the reference: our own exp, log and tanh (R14), exact widening of
 * stored elements (R4), and the one rounding to binary32 (R13).
 *
 * The transcendentals are not meant to be good, they are meant to be the same
 * everywhere: a fixed polynomial, one rounding for each operation, no libm
 * but for rint, sqrt and frexp, which are exact.  The build passes
 * -ffp-contract=off, without which a compiler may fuse s * y + a.
 *
 * fp8 and int8 arithmetic ends here; nothing behind ckv_ref_load() knows how an
 * element was stored.
 */
#include "kernels/reference.h"

#include <assert.h>
#include <math.h>
#include <string.h>

static const double log2e = 0x1.71547652b82fep+0;
static const double ln2_high = 0x1.62e42feep-1;                 /* bits 3fe62e42fee00000 */
static const double ln2_low = 0x1.a39ef35793c76p-33;            /* bits 3dea39ef35793c76 */

/* 2^n as a double, n in the range of normal numbers */
static double power_of_two(int n) {
        uint64_t bits = (uint64_t)(n + 1023) << 52;
        double v;

        memcpy(&v, &bits, sizeof(v));
        return v;
}

double ckv_ref_exp(double v) {
        /* a_k = 1 / k! */
        static const double a[] = {
                1.0, 1.0, 1.0 / 2, 1.0 / 6, 1.0 / 24, 1.0 / 120, 1.0 / 720, 1.0 / 5040, 1.0 / 40320, 1.0 / 362880,
                1.0 / 3628800, 1.0 / 39916800, 1.0 / 479001600, 1.0 / 6227020800,
        };
        double n, y, s = a[13];

        if (v != v)
                return v;
        if (v < -700)
                return 0.0;
        if (v > 700)
                return INFINITY;
        n = rint(v * log2e);
        y = (v - n * ln2_high) - n * ln2_low;
        for (int k = 12; k >= 0; k--)
                s = s * y + a[k];
        return s * power_of_two((int)n);
}

double ckv_ref_log(double v) {
        int e;
        double m = frexp(v, &e), f, z, s = 1.0 / 23;

        if (m < 0x1.6a09e667f3bcdp-1) {
                m = 2 * m;
                e--;
        }
        f = (m - 1) / (m + 1);
        z = f * f;
        for (int k = 21; k >= 1; k -= 2)
                s = s * z + 1.0 / k;
        return e * ln2_high + ((2 * f) * s + e * ln2_low);
}

double ckv_ref_tanh(double v) {
        double q = ckv_ref_exp(-2 * fabs(v));

        return copysign((1 - q) / (1 + q), v);
}

static float float_of_bits(uint32_t bits) {
        float v;

        memcpy(&v, &bits, sizeof(v));
        return v;
}

float ckv_bf16_to_f32(uint16_t bits) {
        return float_of_bits((uint32_t)bits << 16);
}

/* A small float of E exponent and M mantissa bits with IEEE's bias; infinities and NaN where @has_infinity */
static float widen_small(uint32_t bits, unsigned exponent_bits, unsigned mantissa_bits, bool has_infinity) {
        uint32_t sign = (bits >> (exponent_bits + mantissa_bits) & 1) << 31;
        uint32_t top = (1U << exponent_bits) - 1, bias = top >> 1;
        uint32_t exponent = bits >> mantissa_bits & top, mantissa = bits & ((1U << mantissa_bits) - 1);

        if (exponent == top && has_infinity)
                return float_of_bits(sign | 0x7f800000U | mantissa << (23 - mantissa_bits));
        if (exponent == 0) {
                /* subnormal: mantissa * 2^(1 - bias - mantissa_bits), exact in binary32 */
                float unit = float_of_bits((127 + 1 - bias - mantissa_bits) << 23);

                return float_of_bits(sign | 0x3f800000U) * ((float)mantissa * unit);
        }
        return float_of_bits(sign | (exponent + 127 - bias) << 23 | mantissa << (23 - mantissa_bits));
}

float ckv_f16_to_f32(uint16_t bits) {
        return widen_small(bits, 5, 10, true);
}

/* e4m3 ("fn"): no infinity, and 0x7f and 0xff are its only NaN */
static float e4m3_to_f32(uint8_t bits) {
        return (bits & 0x7f) == 0x7f ? float_of_bits((uint32_t)(bits & 0x80) << 24 | 0x7fc00000U)
                                     : widen_small(bits, 4, 3, false);
}

float ckv_fl32(double v) {
        float narrow = (float)v;

        return narrow == 0 ? 0.0f : narrow;
}

/* R4: the stored value as binary32, exactly */
static float stored_value(enum ckv_dtype dtype, const uint8_t *element) {
        uint16_t half;
        float single;
        int8_t byte;

        switch (dtype) {
        case CKV_DTYPE_F32:
                memcpy(&single, element, sizeof(single));
                return single;
        case CKV_DTYPE_F16:
                memcpy(&half, element, sizeof(half));
                return ckv_f16_to_f32(half);
        case CKV_DTYPE_BF16:
                memcpy(&half, element, sizeof(half));
                return ckv_bf16_to_f32(half);
        case CKV_DTYPE_F8_E4M3:
                return e4m3_to_f32(*element);
        case CKV_DTYPE_F8_E5M2:
                return ckv_f16_to_f32((uint16_t)(*element << 8));
        case CKV_DTYPE_I8:
                memcpy(&byte, element, sizeof(byte));
                return (float)byte;
        case CKV_DTYPE_NONE:
        case CKV_DTYPE_BYTE:
                break;
        }
        assert(false && "an element without a value");
        return 0;
}

void ckv_ref_load(const struct ckv_plane *plane, const struct ckv_row_table *table, uint32_t row, uint32_t head,
                  float *ret_values) {
        const uint8_t *base = ckv_plane_row(plane, table, row, head);
        uint32_t bytes = ckv_dtype_bytes(plane->dtype);
        bool adjacent = ckv_plane_dims_adjacent(plane);
        float scale = plane->scale == 0 ? 1.0f : plane->scale;

        for (uint32_t x = 0; x < plane->dims; x++)
                ret_values[x] =
                        scale * stored_value(plane->dtype, base + (adjacent ? (uint64_t)x * bytes : ckv_axis_at(&plane->dim, x)));
}

void ckv_ref_load_query(const struct ckv_job *job, const struct ckv_job_group *group, const struct ckv_job_layer *layer,
                        uint32_t row, uint32_t head, float *ret_values) {
        const struct ckv_job_queries *queries = &job->queries;
        uint64_t slot = ((uint64_t)queries->ring_start + row) % queries->rows;
        const uint8_t *base = layer->query + (uint64_t)head * queries->head_stride + slot * queries->row_stride;

        for (uint32_t x = 0; x < group->head_dim_k; x++)
                ret_values[x] = stored_value(queries->dtype, base + (uint64_t)x * ckv_dtype_bytes(queries->dtype));
}
