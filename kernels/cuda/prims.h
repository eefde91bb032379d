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

/* copy_later() - 16 bytes to shared memory, or 16 zeros; both addresses are multiples of 16; @from is not read for zeros */
static __device__ __forceinline__ void copy_later(void *to, const void *from, bool ok) {
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                     :: "r"((uint32_t)__cvta_generic_to_shared(to)), "l"(from), "r"(ok ? 16 : 0) : "memory");
}

/* copies_wait() - until this thread's copies are there; others see them behind a barrier */
static __device__ __forceinline__ void copies_wait() {
        asm volatile("cp.async.wait_all;" ::: "memory");
}

/* load_tile() - four tiles of 8 x 8 elements of 16 bits; lane l gives the address of row l % 8 of tile l / 8 */
static __device__ __forceinline__ void load_tile(uint32_t ret[4], const void *row) {
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(ret[0]), "=r"(ret[1]), "=r"(ret[2]), "=r"(ret[3])
                     : "r"((uint32_t)__cvta_generic_to_shared(row)) : "memory");
}

/* multiply() - c += a * b for a of 16 x 16, b of 16 x 8, by the fragments of mma.m16n8k16 */
template <bool BF16> static __device__ __forceinline__ void multiply(float c[4], const uint32_t a[4], const uint32_t b[2]) {
        if (BF16)
                asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
                    "{%0, %1, %2, %3};" : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                    : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
        else
                asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
                    "{%0, %1, %2, %3};" : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                    : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
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

static inline void copy_later(void *to, const void *from, bool ok) {
        emu::copy_later(to, from, ok);
}

static inline void copies_wait() {
        emu::copies_wait();
}

static inline void load_tile(uint32_t ret[4], const void *row) {
        emu::load_tile(ret, row);
}

/* the fragments of mma.m16n8k16 (PTX manual): element (r, k) of a is half k % 2 of register r / 8 + k / 8 * 2 of lane
 * r % 8 * 4 + k % 8 / 2, element (k, n) of b half k % 2 of register k / 8 of lane n * 4 + k % 8 / 2 */
template <bool BF16> static inline void multiply(float c[4], const uint32_t a[4], const uint32_t b[2]) {
        const uint32_t mine[6] = { a[0], a[1], a[2], a[3], b[0], b[1] }, lane = threadIdx.x % 32;
        double sums[4];

        emu::show(mine, 6);
        for (uint32_t i = 0; i < 4; i++) {
                uint32_t r = lane / 4 + i / 2 * 8, n = lane % 4 * 2 + i % 2;

                sums[i] = (double)c[i];
                for (uint32_t k = 0; k < 16; k++) {
                        uint32_t x = emu::shown(r % 8 * 4 + k % 8 / 2)[r / 8 + k / 8 * 2] >> k % 2 * 16 & 0xffff;
                        uint32_t y = emu::shown(n * 4 + k % 8 / 2)[4 + k / 8] >> k % 2 * 16 & 0xffff;

                        if (BF16) {
                                float xf, yf;

                                x <<= 16;
                                y <<= 16;
                                memcpy(&xf, &x, 4);
                                memcpy(&yf, &y, 4);
                                sums[i] += (double)xf * (double)yf;
                        } else
                                sums[i] += (double)f16_value((uint16_t)x) * (double)f16_value((uint16_t)y);
                }
        }
        emu::seen();
        for (uint32_t i = 0; i < 4; i++)
                c[i] = (float)sums[i];
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
