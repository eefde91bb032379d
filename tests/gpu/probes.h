/* Parameters of the kernels in tests/gpu/probes.cu, read by both sides. */
#ifndef CKV_TESTS_GPU_PROBES_H
#define CKV_TESTS_GPU_PROBES_H

#include <stdint.h>

enum { PROBE_EXP2, PROBE_ROOT, PROBE_QUOTIENT, PROBE_F16, PROBES };     /* primitives of kernels/cuda/prims.h */

/* probe_prims: out[i] = the primitive of in[i], both binary32 by their bits; a thread a number */
struct probe_prims {
        uint64_t in, out;
        uint32_t count, which;
};

/* probe_copy: vectors of 16 bytes, by all threads in turn */
struct probe_copy {
        uint64_t from, to, vectors;
};

/* probe_exp2, probe_mma: rounds of a loop; what comes out is stored so that it has to be computed */
struct probe_peak {
        uint64_t out;
        uint32_t rounds, reserved;
};
enum {
        PROBE_EXP2_EACH = 8,            /* of a thread and round */
        PROBE_MMA_EACH = 8,             /* of a warp and round, 16 x 8 x 16 products each */
};

/* probe_stamp: data[i] = stamp, a thread a word */
struct probe_stamp {
        uint64_t data;
        uint32_t count, stamp;
};

#ifndef __CUDACC__
#ifdef __cplusplus
extern "C"
#endif
/* probe_host() - what probe_prims does, by the emulator's definitions */
void probe_host(uint32_t which, const uint32_t *in, uint32_t *ret_out, uint32_t count);
#endif

#endif
