/*
 * Row prims: every primitive of kernels/cuda/prims.h on the GPU beside what the
 * emulator takes it for, on numbers of all sizes, so that results of the
 * emulator stand for something.  binary16 must agree in every bit, the others in
 * the error that prims.h promises.
 *
 * Row peaks: what the machine can do at most, by the same instructions: the
 * denominators of every share in the report.
 */
#include "tests/gpu/gpu.h"
#include "tests/gpu/probes.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { COUNT = 1 << 16, BLOCK = 256 };

/* Half of them small, as kernels meet them, half of any bits. */
static void make_input(uint32_t which, uint32_t in[COUNT]) {
        for (uint32_t i = 0; i < COUNT; i++) {
                float x = ((float)(int32_t)(i - COUNT / 2) * 0.01f);

                memcpy(&in[i], &x, sizeof(x));
                if (which == PROBE_F16)
                        in[i] = i;
                else if (i % 2)
                        in[i] = i * UINT32_C(2654435761);
                if (which == PROBE_ROOT)
                        in[i] &= 0x7fffffff;
        }
}

/* may these two be the results of one primitive? */
static bool agree(uint32_t which, uint32_t a, uint32_t b) {
        float x, y;

        memcpy(&x, &a, sizeof(x));
        memcpy(&y, &b, sizeof(y));
        if (a == b || (isnan(x) && isnan(y)))
                return true;
        if (which == PROBE_F16 || isnan(x) || isnan(y))
                return false;
        /* results below 2^-126 are 0 or not, as the machine likes: the kernels add them to larger ones */
        return fabsf(x - y) <= 0x1p-21f * fabsf(y) || (fabsf(x) <= 0x1p-126f && fabsf(y) <= 0x1p-126f);
}

void gpu_row_prims(struct gpu *gpu) {
        static const char *const names[PROBES] = { "exp2_fast", "root_fast", "quotient_fast", "f16_value" };
        CUfunction function = gpu_function(gpu, "probe_prims");
        static uint32_t in[COUNT], ours[COUNT], theirs[COUNT];

        if (gpu_skip(gpu, "primitives"))
                return;
        if (!function) {
                gpu_say("primitives: skipped: no image of the probes");
                return;
        }
        for (uint32_t which = 0; which < PROBES; which++) {
                struct probe_prims p = { .in = gpu_alloc(gpu, sizeof(in)), .out = gpu_alloc(gpu, sizeof(in)), .count = COUNT,
                                         .which = which };
                uint32_t wrong = 0, equal = 0, first = 0;

                make_input(which, in);
                gpu_upload(gpu, p.in, in, sizeof(in));
                gpu_launch(gpu, function, COUNT / BLOCK, BLOCK, &p);
                gpu_download(gpu, theirs, p.out, sizeof(theirs));
                probe_host(which, in, ours, COUNT);
                for (uint32_t i = COUNT; i-- > 0;)
                        if (!agree(which, theirs[i], ours[i])) {
                                wrong++;
                                first = i;
                        } else
                                equal += theirs[i] == ours[i];
                gpu_judge(gpu, wrong == 0, "%s: %u of %d bit for bit, %u outside the bound (in %08x: GPU %08x, emulator %08x)",
                          names[which], equal, COUNT, wrong, in[first], theirs[first], ours[first]);
        }
}

void gpu_row_peaks(struct gpu *gpu) {
        CUfunction copy = gpu_function(gpu, "probe_copy"), exp2 = gpu_function(gpu, "probe_exp2");
        CUfunction mma = gpu_function(gpu, "probe_mma");
        const size_t bytes = (size_t)1 << 30;
        uint32_t grid = 8 * (uint32_t)gpu->processors;
        double seconds;

        if (gpu_skip(gpu, "peaks"))
                return;
        if (!copy) {
                gpu_say("peaks: skipped: no image of the probes");
                return;
        }
        {
                struct probe_copy p = { .from = gpu_alloc(gpu, bytes), .to = gpu_alloc(gpu, bytes), .vectors = bytes / 16 };

                seconds = gpu_seconds(gpu, copy, grid, BLOCK, &p, 4);
                gpu_say("copy on the device, read + written: %.0f GB/s", 2e-9 * (double)bytes / seconds);
        }
        {
                struct probe_peak p = { .out = gpu_alloc(gpu, (size_t)grid * BLOCK * 4), .rounds = 4096 };
                double threads = (double)grid * BLOCK;

                seconds = gpu_seconds(gpu, exp2, grid, BLOCK, &p, 2);
                gpu_say("exponentials: %.0f G/s", 1e-9 * threads * p.rounds * PROBE_EXP2_EACH / seconds);
                seconds = gpu_seconds(gpu, mma, grid, BLOCK, &p, 2);
                gpu_say("mma.sync, bf16: %.0f TFLOP/s",
                        1e-12 * threads / 32 * p.rounds * PROBE_MMA_EACH * 2 * 16 * 8 * 16 / seconds);
        }
}
