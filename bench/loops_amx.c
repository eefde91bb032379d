/*
 * Loops for AMX-BF16: a tile instruction adds the products of two tiles of 16 x
 * 32 numbers to a third.  The kernel must have given permission
 * (ckv__cpu_paths(), usable()); each thread shapes its tiles itself.
 * Exponentials are those of the AMX kernel.
 */
#include "bench/loops.h"

#include "base/macros.h"
#include "kernels/cpu_kernel.h"
#include "kernels/cpu_tiles.h"
#include "kernels/cpu_window.h"

#include <string.h>

/* of the kernel's step its exponential alone */
#pragma GCC diagnostic ignored "-Wunused-function"
#include "kernels/cpu_amx_step.inc"

#define VEC __m512

INLINE __m512 add_power(__m512 sum, __m512 t, const struct power_constants *constants) {
        struct power p = power_of_two(t, constants);

        return _mm512_fmadd_ps(p.scale, p.rest, sum);
}

#define BEFORE_POWERS const struct power_constants constants = power_constants();
#define ADD_POWER(s, t) add_power(s, t, &constants)
#define FMA_PRODUCTS 0
#define TOUCH(v) __asm__ volatile("" : "+v"(v))
#include "bench/loops_isa.inc"

enum { DOTS = 4, FLOPS = 2 * 16 * 16 * 32 };

/* Four sums, two tiles of rows and two of queries: each dot waits for the one four before it. */
static void add_dots(uint64_t rounds) {
        static const uint8_t numbers[CKV_TILE_BYTES] __attribute__((aligned(64)));
        static const struct ckv_tile_shapes shapes = CKV_TILE_SHAPES_WHOLE;

        CKV_TILES_BEGIN(&shapes);
        CKV_TILE_ZERO(0);
        CKV_TILE_ZERO(1);
        CKV_TILE_ZERO(2);
        CKV_TILE_ZERO(3);
        CKV_TILE_LOAD(4, numbers, CKV_TILE_ROW_BYTES);
        CKV_TILE_LOAD(5, numbers, CKV_TILE_ROW_BYTES);
        CKV_TILE_LOAD(6, numbers, CKV_TILE_ROW_BYTES);
        CKV_TILE_LOAD(7, numbers, CKV_TILE_ROW_BYTES);
        for (uint64_t n = 0; n < rounds; n++) {
                CKV_TILE_DOT(0, 4, 6);
                CKV_TILE_DOT(1, 4, 7);
                CKV_TILE_DOT(2, 5, 6);
                CKV_TILE_DOT(3, 5, 7);
        }
        CKV_TILES_END();
}

const struct bench_loops bench_loops_amx = {
        .path = "amx",
        .flops_of_round = DOTS * FLOPS,
        .products = add_dots,
        .exponentials_of_round = POWERS,
        .exponentials = add_powers,
};
