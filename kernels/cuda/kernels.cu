/*
 * The image that the CUDA device loads: every kernel of kernels/cuda/kernels.def.
 * The code is in the headers, which the emulator of tests/emu compiles as well.
 */
#include "kernels/cuda/keys.cuh"
#include "kernels/cuda/leak.cuh"
#include "kernels/cuda/mma.cuh"
#include "kernels/cuda/move.cuh"
#include "kernels/cuda/score.cuh"
#include "kernels/cuda/select.cuh"
#include "kernels/cuda/sums.cuh"
#include "kernels/cuda/units.cuh"
