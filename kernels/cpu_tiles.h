/*
 * The tile instructions of AMX, with two definitions: the instructions, and
 * with CKV_CPU_TILES_SOFTWARE the same in C, bit for bit, for machines without
 * them.  What is written with these can be tested anywhere; it runs in the
 * daemon only where the CPU has it.
 *
 * The instructions are written out because gcc's intrinsics do not say which
 * memory they read, and a copy made just before could still be on its way.  Tile
 * numbers are part of an instruction: literals 0 to 7.
 *
 * The software follows Intel's manual (volume 2, LDTILECFG and TDPBF16PS):
 * products of a pair's even and odd element are summed up apart, denormals are
 * zero going in and coming out, rounding is to nearest even whatever MXCSR says.
 * What would raise an exception ends the process.
 */
#ifndef CKV_KERNELS_CPU_TILES_H
#define CKV_KERNELS_CPU_TILES_H

#include <stddef.h>
#include <stdint.h>

enum {
        CKV_TILE_COUNT = 8,
        CKV_TILE_ROWS = 16,
        CKV_TILE_ROW_BYTES = 64,
        CKV_TILE_BYTES = CKV_TILE_ROWS * CKV_TILE_ROW_BYTES,
};

/* What LDTILECFG reads: 64 bytes */
struct ckv_tile_shapes {
        uint8_t palette, start_row, zero[14];
        uint16_t row_bytes[16];         /* of each tile; [8..15] zero */
        uint8_t rows[16];
};

_Static_assert(sizeof(struct ckv_tile_shapes) == 64, "as the CPU reads it");

/* All eight tiles whole: 16 rows of 64 bytes */
#define CKV_TILE_SHAPES_WHOLE { \
        .palette = 1, .row_bytes = { 64, 64, 64, 64, 64, 64, 64, 64 }, .rows = { 16, 16, 16, 16, 16, 16, 16, 16 }, \
}

#ifndef CKV_CPU_TILES_SOFTWARE

/* CKV_TILES_BEGIN() - set up the tiles of this thread, all zero; CKV_TILES_END() - back to none: their state need not be saved any more */
#define CKV_TILES_BEGIN(shapes) __asm__ volatile("ldtilecfg %0" : : "m"(*(shapes)))
#define CKV_TILES_END() __asm__ volatile("tilerelease" : : : "memory")

#define CKV_TILE_ZERO(tile) __asm__ volatile("tilezero %%tmm" #tile : :)

/* CKV_TILE_LOAD(), CKV_TILE_STORE() - the tile's rows, @stride bytes apart */
#define CKV_TILE_LOAD(tile, from, stride) \
        __asm__ volatile("tileloadd (%0,%1,1), %%tmm" #tile : : "r"((const void *)(from)), "r"((size_t)(stride)) : "memory")
#define CKV_TILE_STORE(tile, to, stride) \
        __asm__ volatile("tilestored %%tmm" #tile ", (%0,%1,1)" : : "r"((void *)(to)), "r"((size_t)(stride)) : "memory")

/* CKV_TILE_DOT() - sum[m][n] += over k of a[m][2k] * b[k][2n] + a[m][2k+1] * b[k][2n+1]; a and b bfloat16, sum binary32 */
#define CKV_TILE_DOT(sum, a, b) __asm__ volatile("tdpbf16ps %%tmm" #b ", %%tmm" #a ", %%tmm" #sum : :)

#else

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct ckv_tile {
        uint32_t rows, row_bytes;       /* 0, 0: not configured */
        uint8_t bytes[CKV_TILE_ROWS][CKV_TILE_ROW_BYTES];
};

/* of the thread, as the registers are */
static _Thread_local struct ckv_tile ckv__tiles[CKV_TILE_COUNT];

static inline void ckv__tile_require(int condition) {
        if (!condition)
                abort();
}

static inline struct ckv_tile *ckv__tile(uint32_t n) {
        ckv__tile_require(n < CKV_TILE_COUNT && ckv__tiles[n].rows > 0);
        return &ckv__tiles[n];
}

static inline void ckv__tiles_begin(const struct ckv_tile_shapes *shapes) {
        ckv__tile_require(shapes->palette == 1);
        for (size_t i = 0; i < sizeof(shapes->zero); i++)
                ckv__tile_require(shapes->zero[i] == 0);
        for (uint32_t n = 0; n < 16; n++) {
                uint32_t rows = shapes->rows[n], row_bytes = shapes->row_bytes[n];

                ckv__tile_require(rows <= CKV_TILE_ROWS && row_bytes <= CKV_TILE_ROW_BYTES && (rows == 0) == (row_bytes == 0));
                ckv__tile_require(n < CKV_TILE_COUNT || rows == 0);
                if (n < CKV_TILE_COUNT)
                        ckv__tiles[n] = (struct ckv_tile){ .rows = rows, .row_bytes = row_bytes };
        }
}

static inline void ckv__tiles_end(void) {
        memset(ckv__tiles, 0, sizeof(ckv__tiles));
}

static inline void ckv__tile_zero(uint32_t n) {
        struct ckv_tile *tile = ckv__tile(n);

        memset(tile->bytes, 0, sizeof(tile->bytes));
}

static inline void ckv__tile_load(uint32_t n, const void *from, size_t stride) {
        struct ckv_tile *tile = ckv__tile(n);

        memset(tile->bytes, 0, sizeof(tile->bytes));
        for (uint32_t i = 0; i < tile->rows; i++)
                memcpy(tile->bytes[i], (const uint8_t *)from + i * stride, tile->row_bytes);
}

static inline void ckv__tile_store(uint32_t n, void *to, size_t stride) {
        const struct ckv_tile *tile = ckv__tile(n);

        for (uint32_t i = 0; i < tile->rows; i++)
                memcpy((uint8_t *)to + i * stride, tile->bytes[i], tile->row_bytes);
}

static inline float ckv__tile_flush(float v) {
        return fabsf(v) < 0x1p-126f ? copysignf(0, v) : v;
}

static inline float ckv__tile_bf16(const uint8_t *at) {
        uint32_t bits = (uint32_t)at[0] << 16 | (uint32_t)at[1] << 24;
        float v;

        memcpy(&v, &bits, sizeof(v));
        return ckv__tile_flush(v);
}

static inline void ckv__tile_dot(uint32_t sum, uint32_t first, uint32_t second) {
        struct ckv_tile *c = ckv__tile(sum);
        const struct ckv_tile *a = ckv__tile(first), *b = ckv__tile(second);
        uint32_t pairs = a->row_bytes / 4, columns = c->row_bytes / 4;

        ckv__tile_require(sum != first && sum != second && first != second);
        ckv__tile_require(a->row_bytes % 4 == 0 && c->row_bytes % 4 == 0);
        ckv__tile_require(c->rows == a->rows && c->row_bytes == b->row_bytes && pairs == b->rows);
        for (uint32_t m = 0; m < c->rows; m++) {
                float of_pair[2][CKV_TILE_ROW_BYTES / 4] = { { 0 } }, row[CKV_TILE_ROW_BYTES / 4];

                for (uint32_t k = 0; k < pairs; k++)
                        for (uint32_t i = 0; i < 2; i++) {
                                float factor = ckv__tile_bf16(&a->bytes[m][4 * k + 2 * i]);

                                for (uint32_t n = 0; n < columns; n++)
                                        of_pair[i][n] = ckv__tile_flush(
                                                fmaf(factor, ckv__tile_bf16(&b->bytes[k][4 * n + 2 * i]), of_pair[i][n]));
                        }
                memcpy(row, c->bytes[m], sizeof(row));
                for (uint32_t n = 0; n < columns; n++)
                        row[n] = ckv__tile_flush(ckv__tile_flush(row[n]) + ckv__tile_flush(of_pair[0][n] + of_pair[1][n]));
                memcpy(c->bytes[m], row, sizeof(row));
        }
}

#define CKV_TILES_BEGIN(shapes) ckv__tiles_begin(shapes)
#define CKV_TILES_END() ckv__tiles_end()
#define CKV_TILE_ZERO(tile) ckv__tile_zero(tile)
#define CKV_TILE_LOAD(tile, from, stride) ckv__tile_load(tile, from, stride)
#define CKV_TILE_STORE(tile, to, stride) ckv__tile_store(tile, to, stride)
#define CKV_TILE_DOT(sum, a, b) ckv__tile_dot(sum, a, b)

#endif

#endif
