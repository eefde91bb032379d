/* The emulator's definitions of the primitives, for comparison with a GPU's. */
#include "tests/gpu/probes.cuh"

void probe_host(uint32_t which, const uint32_t *in, uint32_t *ret_out, uint32_t count) {
        for (uint32_t i = 0; i < count; i++)
                ret_out[i] = probe_value(which, in[i]);
}
