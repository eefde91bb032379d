/*
 * The window kernel for AMX-BF16: products on the tile unit, everything else in
 * AVX-512 beside it.
 *
 * K and queries are bfloat16 and are multiplied as such; sums are binary32.
 * While tile instructions are in flight the vector units issue one instruction
 * a clock instead of two, and reading K takes as long as either, so what decides
 * is that the three overlap: kernels/cpu_amx_step.inc mixes the first two and
 * fetches rows ahead.
 *
 * The file is compiled a second time by a test, with tiles in software
 * (kernels/cpu_tiles.h).  Only this file may be compiled for that machine.
 */
#if !defined(__AVX512F__) || !defined(__AVX512BW__) || !defined(__AVX512VL__) || !defined(__AVX512DQ__)
#error "this file needs -mavx512f -mavx512bw -mavx512vl -mavx512dq -mfma"
#endif

#include "base/macros.h"
#include "kernels/cpu_kernel.h"
#include "kernels/cpu_tiles.h"
#include "kernels/cpu_window.h"

#include <math.h>
#include <string.h>

#include "kernels/cpu_amx_step.inc"

enum {
        PANEL = 4096,                   /* queries whose sums are kept while a segment is walked; a multiple of PAIR */
};

/*
 * What the map says of 16 rows: the open column takes rows whole, some are shared with the column behind it, and now and then
 * the open column ends. Bit r is row r's.
 */
struct tile_plan {
        uint32_t events;                /* moves | mixed: for the others there is nothing to do but add */
        uint32_t moves;                 /* before this row the open column ends */
        uint32_t mixed;                 /* the row is not one whole of the open column */
        uint32_t column[ROWS];          /* moves: the column that ends */
        bool past_next[ROWS];           /* moves: so does the one behind it */
        float own[ROWS], next[ROWS];    /* mixed: parts of the open column and of the one behind */
        float rest[ROWS];               /* mixed: 1 - own - next: to the total alone */
};

/* Of the thread, in the segment's scratch; nothing is kept from one call to the next. */
struct scratch {
        float x[RING][ROWS * PAIR];                     /* products */
        float sums[ROWS * LANES], weights[ROWS * LANES];
        float open[PANEL], next[PANEL], total[PANEL];
        uint8_t rows[ROWS * CKV_CPU_DIMS_MAX * 2];      /* a copy of rows that do not lie evenly */
        struct tile_plan plans[RING];
};

_Static_assert(sizeof(struct scratch) <= CKV_CPU_SCRATCH_FLOATS * sizeof(float), "what a thread has");

static const struct ckv_tile_shapes tile_shapes = CKV_TILE_SHAPES_WHOLE;

static bool takes(enum ckv_dtype keys, enum ckv_dtype queries, uint32_t dims) {
        return keys == CKV_DTYPE_BF16 && queries == CKV_DTYPE_BF16 && dims > 0 && dims <= CKV_CPU_DIMS_MAX && dims % CHANNELS == 0;
}

static uint32_t pair_count(uint32_t query_count) {
        return query_count / PAIR + (query_count % PAIR != 0);
}

static size_t pack_bytes(uint32_t query_count, uint32_t dims) {
        return (size_t)pair_count(query_count) * PAIR * dims * 2;
}

/* [pairs][channels / 32][2 tiles]; of a tile, row i holds channels 2i and 2i+1 of 16 queries, side by side */
static void pack(const float *values, uint32_t query_count, uint32_t dims, void *ret_pack) {
        uint16_t *to = ret_pack;

        for (uint32_t pair = 0; pair < pair_count(query_count); pair++)
                for (uint32_t x = 0; x < dims; x += CHANNELS)
                        for (uint32_t n = pair * PAIR; n < (pair + 1) * PAIR; n += LANES)
                                for (uint32_t i = 0; i < CHANNELS * LANES; i++) {
                                        uint32_t query = n + i % (2 * LANES) / 2, channel = x + i / (2 * LANES) * 2 + i % 2, bits = 0;

                                        if (query < query_count)
                                                memcpy(&bits, values + (size_t)query * dims + channel, sizeof(bits));
                                        *to++ = (uint16_t)(bits >> 16);
                                }
}

/* ---- who sees what (R34) */

static bool rows_visible(const struct ckv_cpu_window_segment *segment, uint32_t row) {
        return row < segment->high[segment->window - 1] && row + ROWS > segment->low[0];
}

static bool rows_seen_by_all(const struct ckv_cpu_window_segment *segment, uint32_t row) {
        return row >= segment->low[segment->window - 1] && row + ROWS <= segment->high[0];
}

/* Rows that each of 16 queries sees; the padding sees none */
struct lanes { __m512i low, high; };

static struct lanes lanes_of(const struct ckv_cpu_window_segment *segment, uint32_t query) {
        uint32_t low[LANES] __attribute__((aligned(64))) = { 0 }, high[LANES] __attribute__((aligned(64))) = { 0 };

        for (uint32_t i = 0; i < LANES && query + i < segment->query_count; i++) {
                low[i] = segment->low[(query + i) % segment->window];
                high[i] = segment->high[(query + i) % segment->window];
        }
        return (struct lanes){ .low = _mm512_load_si512(low), .high = _mm512_load_si512(high) };
}

INLINE __mmask16 lanes_see(const struct lanes *lanes, uint32_t row) {
        __m512i at = _mm512_set1_epi32((int32_t)row);

        return _mm512_mask_cmplt_epu32_mask(_mm512_cmple_epu32_mask(lanes->low, at), at, lanes->high);
}

/* ---- rows at hand and rows ahead */

/* Rows i .. i+count-1 of the segment, where they lie or as a copy that is good until the next call */
static const uint8_t *find_rows(const struct ckv_cpu_window_segment *segment, struct scratch *s, uint32_t i, uint32_t count,
                                size_t *ret_stride) {
        const uint8_t *rows = count == ROWS ? even_rows(segment, segment->head, segment->first + i, ret_stride) : NULL;

        if (rows)
                return rows;
        copy_rows(segment, segment->first + i, count, s->rows);
        *ret_stride = (size_t)segment->dims * 2;
        return s->rows;
}

struct fetcher {
        const struct ckv_cpu_window_segment *segment;
        uint32_t pairs;                 /* steps that 16 rows take */
        uint32_t distance;              /* in tiles of 16 rows */
        uint32_t next;                  /* tiles before it have been asked for */
};

static struct fetcher fetcher_new(const struct ckv_cpu_window_segment *segment, uint32_t pairs) {
        return (struct fetcher){
                .segment = segment, .pairs = pairs, .distance = CKV_MAX(AHEAD_BYTES / (ROWS * segment->dims * 2), 1U), .next = 1,
        };
}

/* Tile @n of the segment, or of what comes behind it. Return: NULL if there is none that lies evenly. */
static const uint8_t *tile_rows(const struct ckv_cpu_window_segment *segment, uint32_t n, size_t *ret_stride) {
        uint32_t tiles = (segment->rows + ROWS - 1) / ROWS;

        if (n < tiles)
                return (n + 1) * ROWS <= segment->rows ? even_rows(segment, segment->head, segment->first + n * ROWS, ret_stride) : NULL;
        n -= tiles;
        return (n + 1) * ROWS <= segment->next_rows ?
               even_rows(segment, segment->next_head, segment->next_first + n * ROWS, ret_stride) : NULL;
}

/*
 * What is to be fetched while row @i and the 15 behind it are worked on: one tile, part by part.  A segment begins with
 * nothing fetched, and catches up with two tiles for each that is worked on.  Where 16 rows take few steps there are too few
 * places for all of a tile, and its first rows are asked for at once.
 */
static struct ahead fetcher_next(struct fetcher *fetcher, uint32_t i) {
        const struct ckv_cpu_window_segment *segment = fetcher->segment;
        uint32_t n = i / ROWS, target = CKV_MIN(2 * n + 2, n + fetcher->distance), channels = segment->dims / CHANNELS;
        uint32_t in_steps = has_places(channels) ? CKV_MIN(fetcher->pairs * FETCH_ROWS, (uint32_t)ROWS) : 0;
        struct ahead ahead = { 0 };

        for (fetcher->next = CKV_MAX(fetcher->next, n + 1); fetcher->next <= target; fetcher->next++) {
                uint32_t at_once = fetcher->next < target ? ROWS : ROWS - in_steps;
                size_t stride = 0;
                const uint8_t *rows = tile_rows(segment, fetcher->next, &stride);

                if (!rows)
                        continue;
                for (uint32_t r = 0; r < at_once; r++)
                        for (uint32_t line = 0; line < channels; line++)
                                fetch_line(rows + r * stride, line);
                if (fetcher->next == target)
                        ahead = (struct ahead){ .rows = rows + at_once * stride, .stride = stride, .count = in_steps };
        }
        return ahead;
}

#include "kernels/cpu_amx_units.inc"
#include "kernels/cpu_amx_rows.inc"

const struct ckv_cpu_window_kernel ckv__cpu_window_amx = {
        .name = "amx",
        .takes = takes,
        .pack_bytes = pack_bytes,
        .pack = pack,
        .units = units,
        .rows = rows,
};
