/*
 * The batch rule, and moving the rows of a batch; see forward.h.  This is the
 * way of a rescue, taken once after a crash: it goes row by row, head by head,
 * and is not fast.
 */
#include "clients/c/src/forward.h"

#include "base/macros.h"
#include "proto/runs.h"

#include <string.h>

size_t ckv__runs_split(const uint32_t *runs, size_t count, struct ckv__run *ret_runs) {
        uint32_t row = 0, first, length, dst = 0;
        size_t at = 0, n = 0;

        while (ckv_runs_next(runs, count, &at, &row, &first, &length)) {
                ret_runs[n++] = (struct ckv__run){ .src = first, .len = length, .dst = dst };
                dst += length;
        }
        return n;
}

/* The batch that begins with row @begin, in run cut->run or behind it */
static void cut_at(struct ckv__cut *cut, uint32_t batch_rows, uint32_t begin) {
        const struct ckv__run *run, *last;

        while (cut->run < cut->count && cut->runs[cut->run].dst + cut->runs[cut->run].len <= begin)
                cut->run++;
        cut->begin = cut->end = begin;
        if (cut->run == cut->count)
                return;
        run = &cut->runs[cut->run];
        last = &cut->runs[cut->count - 1];
        cut->end = CKV_MIN(last->dst + last->len, run->src + (begin - run->dst));
        if (batch_rows > 0 && cut->end - begin > batch_rows)
                cut->end = begin + batch_rows;
}

struct ckv__cut ckv__cut_first(const struct ckv__run *runs, size_t count, uint32_t batch_rows) {
        struct ckv__cut cut = { .runs = runs, .count = count };
        uint32_t begin = 0;

        for (size_t i = 0; i < count && runs[i].src == runs[i].dst; i++)
                begin = runs[i].dst + runs[i].len;
        cut_at(&cut, batch_rows, begin);
        return cut;
}

void ckv__cut_next(struct ckv__cut *cut, uint32_t batch_rows) {
        cut_at(cut, batch_rows, cut->end);
}

static uint64_t along(const struct chunkkv_axis *axis, uint64_t i) {
        uint64_t tile = axis->tile ? axis->tile : 1;

        return i / tile * axis->outer + i % tile * axis->inner;
}

static uint8_t *row_of(const struct ckv__mover *mover, const struct ckv__plane *plane, uint32_t layer, uint32_t head,
                       uint32_t row) {
        uint64_t block = mover->slots[row] / mover->tokens_per_block, token = mover->slots[row] % mover->tokens_per_block;

        return plane->memory + plane->plane.offset + (layer - plane->plane.layer_first) * plane->plane.layer_stride +
               block * plane->plane.block_stride + head * plane->plane.head_stride + along(&plane->plane.token, token);
}

/* A plane's part of one row and head */
static void copy_row(const struct ckv__plane *plane, uint8_t *to, const uint8_t *from) {
        const struct chunkkv_axis *dim = &plane->plane.dim;
        bool adjacent = (dim->tile <= 1 && dim->outer == plane->element_bytes) || plane->dims == 1;

        if (adjacent) {
                memcpy(to, from, (size_t)plane->dims * plane->element_bytes);
                return;
        }
        for (uint32_t d = 0; d < plane->dims; d++)
                memcpy(to + along(dim, d), from + along(dim, d), plane->element_bytes);
}

static void move_layer(const struct ckv__mover *mover, const struct ckv__plane *plane, uint32_t layer) {
        size_t at = mover->cut.run;

        for (uint32_t row = mover->cut.begin; row < mover->cut.end; row++) {
                const struct ckv__run *run = &mover->cut.runs[at];

                if (row >= run->dst + run->len)
                        run = &mover->cut.runs[++at];
                for (uint32_t head = mover->head_first; head < mover->head_end; head++)
                        copy_row(plane, row_of(mover, plane, layer, head, row),
                                 row_of(mover, plane, layer, head, run->src + (row - run->dst)));
        }
}

void ckv__mover_move(const struct ckv__mover *mover) {
        for (size_t i = 0; i < mover->layer_count; i++) {
                uint32_t layer = mover->layers[i];

                if (layer < mover->layer_first || layer >= mover->layer_end)
                        continue;
                for (size_t p = 0; p < mover->plane_count; p++) {
                        const struct chunkkv_plane *plane = &mover->planes[p].plane;

                        if (layer >= plane->layer_first && layer - plane->layer_first < plane->layer_count)
                                move_layer(mover, &mover->planes[p], layer);
                }
        }
}
