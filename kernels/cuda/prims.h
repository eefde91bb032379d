/*
 * What C++ cannot say, twice: as an instruction for the GPU, and as plain C++ for the emulator of tests/emu.
 *
 * This is the only file of the kernels with assembly in it.  That both definitions of a primitive agree can be seen on
 * a GPU alone; the second one follows the PTX manual.  The emulator's own header comes before this one
 * (g++ -include tests/emu/emu.h).
 */
#ifndef CKV_KERNELS_CUDA_PRIMS_H
#define CKV_KERNELS_CUDA_PRIMS_H

#ifdef __CUDACC__
#include <stdint.h>

/* CKV_SHARED() - the block's dynamic shared memory as an array of @type */
#define CKV_SHARED(type, name)                                            \
        extern __shared__ __align__(16) unsigned char name##_bytes[];     \
        type *name = reinterpret_cast<type *>(name##_bytes)

/* exp2_fast() - 2^x, relative error at most 2^-22; results below 2^-126 are 0 */
static __device__ __forceinline__ float exp2_fast(float x) {
        float y;

        asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
        return y;
}

/* root_fast() - square root, relative error at most 2^-22 */
static __device__ __forceinline__ float root_fast(float x) {
        float y;

        asm("sqrt.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
        return y;
}

/* quotient_fast() - a / b, error at most 2 units in the last place for b from 2^-126 to 2^126 */
static __device__ __forceinline__ float quotient_fast(float a, float b) {
        float y;

        asm("div.approx.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
        return y;
}

/* f16_value() - a binary16 by its bits, exactly */
static __device__ __forceinline__ float f16_value(uint16_t bits) {
        float y;

        asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(bits));
        return y;
}

#else

#define CKV_SHARED(type, name) type *name = static_cast<type *>(emu::shared_memory())

static inline float exp2_fast(float x) {
        float y = exp2f(x);

        return y < 0x1p-126f ? 0 : y;
}

static inline float root_fast(float x) {
        return sqrtf(x);
}

static inline float quotient_fast(float a, float b) {
        return a / b;
}

static inline float f16_value(uint16_t bits) {
        int exponent = bits >> 10 & 31, fraction = bits & 0x3ff;
        float y;

        if (exponent == 31)
                y = fraction ? NAN : INFINITY;
        else
                y = exponent ? ldexpf((float)(fraction + 1024), exponent - 25) : ldexpf((float)fraction, -24);
        return bits & 0x8000 ? -y : y;
}

#endif

/* float_of_bits() - bits_of_float(): a binary32 and its bits */
static __device__ __forceinline__ float float_of_bits(uint32_t bits) {
        union {
                uint32_t u;
                float f;
        } both;

        both.u = bits;
        return both.f;
}

static __device__ __forceinline__ uint32_t bits_of_float(float value) {
        union {
                uint32_t u;
                float f;
        } both;

        both.f = value;
        return both.u;
}

#endif
