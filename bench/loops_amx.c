/*
 * Loops for AMX-BF16: a tile instruction adds the products of two tiles of 16 x
 * 32 numbers to a third.  The kernel must have given permission
 * (ckv__cpu_paths(), usable()); each thread shapes its tiles itself.
 * Exponentials are those of AVX-512.
 */
#if !defined(__AMX_BF16__) || !defined(__AVX512F__)
#error "this file needs -mamx-tile -mamx-bf16 and the flags of AVX-512"
#endif

#include "bench/loops.h"

#include "kernels/cpu_kernel.h"

#include <immintrin.h>

#define NAME(x) x##_bench_amx
#define KERNEL "bench"
#define LANES 16
#define VECTORS 4
#define GREATER(a, b) ((VEC)_mm512_max_ps((__m512)(a), (__m512)(b)))

#include "kernels/cpu_score_isa.inc"

#define PRODUCTS 0
#define KEEP(v) __asm__ volatile("" : "+v"(v))
#include "bench/loops_isa.inc"

enum { ROWS = 16, ROW_BYTES = 64, TILES = 8, CHAINS = 4, FLOPS = 2 * 16 * 16 * 32 };

struct tile_shape {
        uint8_t palette, start, zero[14];
        uint16_t row_bytes[16];
        uint8_t rows[16];
};

/* Four sums, two tiles of rows and two of queries, as large tiles in registers have it. */
static void products(uint64_t rounds) {
        static const uint16_t numbers[ROWS * ROW_BYTES / 2] __attribute__((aligned(64)));
        struct tile_shape shape = { .palette = 1 };

        for (uint32_t i = 0; i < TILES; i++) {
                shape.row_bytes[i] = ROW_BYTES;
                shape.rows[i] = ROWS;
        }
        _tile_loadconfig(&shape);
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
        _tile_loadd(4, numbers, ROW_BYTES);
        _tile_loadd(5, numbers, ROW_BYTES);
        _tile_loadd(6, numbers, ROW_BYTES);
        _tile_loadd(7, numbers, ROW_BYTES);
        for (uint64_t n = 0; n < rounds; n++) {
                _tile_dpbf16ps(0, 4, 6);
                _tile_dpbf16ps(1, 4, 7);
                _tile_dpbf16ps(2, 5, 6);
                _tile_dpbf16ps(3, 5, 7);
        }
        _tile_release();
}

const struct bench_loops bench_loops_amx = {
        .path = "amx",
        .flops_of_round = CHAINS * FLOPS,
        .products = products,
        .exponentials_of_round = NAME(EXPONENTIALS),
        .exponentials = NAME(bench_exponentials),
};
