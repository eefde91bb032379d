/* One primitive of one number: the same source for the GPU and for the emulator, whose definitions differ. */
#ifndef CKV_TESTS_GPU_PROBES_CUH
#define CKV_TESTS_GPU_PROBES_CUH

#include "kernels/cuda/prims.h"
#include "tests/gpu/probes.h"

static __device__ __forceinline__ uint32_t probe_value(uint32_t which, uint32_t bits) {
        float x = float_of_bits(bits);

        switch (which) {
        case PROBE_EXP2:
                return bits_of_float(exp2_fast(x));
        case PROBE_ROOT:
                return bits_of_float(root_fast(x));
        case PROBE_QUOTIENT:
                return bits_of_float(quotient_fast(1.7182818f, x));
        default:
                return bits_of_float(f16_value((uint16_t)bits));
        }
}

#endif
