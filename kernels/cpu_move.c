/*
 * S9, in place or to a destination.  The work is cut into columns: one plane of one layer, whole
 * rows where the heads of a row are one stretch of bytes, else one head.  The
 * columns share no byte, so each may be at another place of its own ascending
 * walk, and on another thread; within a column a row is written only after
 * every row that it could overwrite was read (dst <= src, ascending).
 *
 * A walk goes from stretch to stretch: as many rows as keep one distance in
 * memory at the source and at the destination, which a block border or a
 * change of tile ends.  If that distance is the length of the row's bytes at
 * both ends, the whole stretch is one memmove; else each row is one; and where
 * the dimensions of a row are not adjacent, each piece of the row is treated
 * so.  Bytes between the pieces are somebody else's and are never touched.
 *
 * A few columns are on their way at a time, and each does at most TURN_BYTES
 * before the clock is looked at: a slice is bounded whatever a column's size.
 * This stage knows no cancellation: once rows have moved, the only way out is
 * forward.
 */
#include "kernels/cpu_move.h"

#include "base/clock.h"
#include "base/macros.h"
#include "kernels/reference.h"

#include <string.h>

enum {
        TURN_BYTES = 512 << 10,         /* written by one column in one turn */
        ON_THE_WAY = 64,                /* columns, at most */
};

/* Rows that keep one distance in memory: those that are left of them. */
struct stretch {
        uint8_t *base;
        uint64_t stride;
        uint32_t rows;
};

struct column {
        const struct ckv_plane *plane;
        const struct ckv_row_table *from_table, *to_table;      /* the same, if the move is in place */
        const struct ckv_kept *kept;
        uint32_t head;
        uint64_t piece_bytes;           /* adjacent bytes of one row */
        uint32_t piece_dims;            /* dimensions of a piece; 0: the row with all its heads is one piece */
        size_t run;                     /* the walk: next run, and rows of it that have moved */
        uint32_t moved;
        struct stretch to, from;
};

struct ckv_cpu_move {
        struct ckv_job *job;
        uint32_t group, layer, plane, head;     /* the next column to begin; plane 0: K, 1: V */
        uint32_t count;
        struct column columns[ON_THE_WAY];
};

/* Distance and number of tokens that lie evenly from @token on: a tile, or everything if tiles follow each other so. */
static uint32_t even_tokens(const struct ckv_axis *axis, uint32_t token, uint64_t *ret_stride) {
        *ret_stride = axis->tile == 1 ? axis->outer : axis->inner;
        if (axis->tile == 1 || axis->outer == axis->tile * axis->inner)
                return UINT32_MAX;
        return axis->tile - token % axis->tile;
}

/* From @row of a table on, at most @most rows. */
static struct stretch stretch_at(const struct column *column, const struct ckv_row_table *table, uint32_t row, uint32_t most) {
        struct stretch stretch = { .base = ckv_plane_row(column->plane, table, row, column->head), .rows = 1 };
        uint32_t per_block = table->tokens_per_block;
        uint32_t token = (table->by_token ? table->entries[row] : row) % per_block;
        uint32_t even = even_tokens(&column->plane->token, token, &stretch.stride);

        most = CKV_MIN(CKV_MIN(most, even), per_block - token);
        if (!table->by_token)
                stretch.rows = most;
        else
                while (stretch.rows < most && table->entries[row + stretch.rows] == table->entries[row] + stretch.rows)
                        stretch.rows++;
        return stretch;
}

static void move_piece(const struct stretch *to, const struct stretch *from, uint64_t offset, uint64_t bytes, uint32_t rows) {
        if (to->stride == bytes && from->stride == bytes) {
                memmove(to->base + offset, from->base + offset, rows * bytes);
                return;
        }
        for (uint32_t i = 0; i < rows; i++)
                memmove(to->base + i * to->stride + offset, from->base + i * from->stride + offset, bytes);
}

static void stretch_pass(struct stretch *stretch, uint32_t rows) {
        stretch->base += rows * stretch->stride;
        stretch->rows -= rows;
}

/* As many rows further as both stretches have, but no more than @most. Return: bytes written. */
static uint64_t column_advance(struct column *column, uint32_t most) {
        const struct ckv_plane *plane = column->plane;
        const struct ckv_run *run = &column->kept->runs[column->run];
        uint32_t left = run->len - column->moved, rows, bytes = ckv_dtype_bytes(plane->dtype), pieces = 0;

        if (column->to.rows == 0)
                column->to = stretch_at(column, column->to_table, run->dst + column->moved, left);
        if (column->from.rows == 0)
                column->from = stretch_at(column, column->from_table, run->src + column->moved, left);
        rows = CKV_MIN(CKV_MIN(column->to.rows, column->from.rows), most);
        if (column->piece_dims == 0) {
                move_piece(&column->to, &column->from, 0, column->piece_bytes, rows);
                pieces = 1;
        } else
                for (uint32_t x = 0; x < plane->dims; x += column->piece_dims, pieces++)
                        move_piece(&column->to, &column->from, ckv_axis_at(&plane->dim, x),
                                   (uint64_t)CKV_MIN(plane->dims - x, column->piece_dims) * bytes, rows);
        stretch_pass(&column->to, rows);
        stretch_pass(&column->from, rows);
        column->moved += rows;
        if (column->moved == run->len) {
                column->run++;
                column->moved = 0;
        }
        return (uint64_t)rows * pieces * column->piece_bytes;
}

static void column_item(void *context, uint32_t item, float *scratch) {
        struct ckv_cpu_move *move = context;
        struct column *column = &move->columns[item];
        uint64_t row_bytes = column->piece_bytes;
        uint64_t written = 0;

        (void)scratch;
        if (column->piece_dims > 0)
                row_bytes = (uint64_t)column->plane->dims * ckv_dtype_bytes(column->plane->dtype);
        while (column->run < column->kept->run_count && written < TURN_BYTES) {
                if (column->from_table == column->to_table &&
                    column->kept->runs[column->run].src == column->kept->runs[column->run].dst)
                        column->run++;
                else
                        written += column_advance(column, (uint32_t)CKV_MAX(TURN_BYTES / row_bytes, 1));
        }
}

/* Dimensions that lie next to one another in memory */
static uint32_t adjacent_dims(const struct ckv_plane *plane) {
        if (ckv_plane_dims_adjacent(plane))
                return plane->dims;
        return plane->dim.tile > 1 && plane->dim.inner == ckv_dtype_bytes(plane->dtype) ? plane->dim.tile : 1;
}

/* Is a row with all its heads one stretch of bytes? */
static bool heads_adjacent(const struct ckv_plane *plane, uint32_t heads) {
        return ckv_plane_dims_adjacent(plane) &&
               (heads == 1 || plane->head_stride == (uint64_t)plane->dims * ckv_dtype_bytes(plane->dtype));
}

/* The next column to begin. Return: false if there is none left. */
static bool next_column(struct ckv_cpu_move *move, struct column *ret_column) {
        for (; move->group < move->job->group_count; move->group++, move->layer = 0) {
                const struct ckv_job_group *group = &move->job->groups[move->group];

                if (group->budget.kept_all != CKV_DROPPED)
                        continue;
                for (; move->layer < group->layer_count; move->layer++, move->plane = 0) {
                        const struct ckv_job_layer *layer = &group->layers[move->layer];

                        for (; move->plane < 2; move->plane++, move->head = 0) {
                                const struct ckv_plane *plane = move->plane == 0 ? &layer->k : &layer->v;
                                bool whole = heads_adjacent(plane, group->kv_heads);
                                uint32_t dims = adjacent_dims(plane);

                                if (!plane->base || move->head >= (whole ? 1 : group->kv_heads))
                                        continue;
                                *ret_column = (struct column){
                                        .plane = plane, .from_table = &group->table, .head = move->head++,
                                        .to_table = group->destination.entries ? &group->destination : &group->table,
                                        .kept = &group->kept[group->kept_count == 1 ? 0 : move->layer],
                                        .piece_dims = whole ? 0 : dims,
                                        .piece_bytes = (uint64_t)dims * ckv_dtype_bytes(plane->dtype) *
                                                       (whole ? group->kv_heads : 1),
                                };
                                return true;
                        }
                }
        }
        return false;
}

/* Columns that are through make room for new ones. Return: is any column on its way? */
static bool refill(struct ckv_cpu_move *move, uint32_t most) {
        uint32_t kept = 0;

        for (uint32_t i = 0; i < move->count; i++)
                if (move->columns[i].run < move->columns[i].kept->run_count)
                        move->columns[kept++] = move->columns[i];
        move->count = kept;
        while (move->count < most && next_column(move, &move->columns[move->count]))
                move->count++;
        return move->count > 0;
}

bool ckv__cpu_move_step(struct ckv_cpu_move *move, struct ckv_cpu_pool *pool, uint64_t until_nsec) {
        uint32_t most = CKV_MIN(2 * ckv__cpu_pool_threads(pool), ON_THE_WAY);

        while (refill(move, most)) {
                /* a turn is short, and a column that missed one would fall behind: no item is left out */
                (void)ckv__cpu_pool_run(pool, column_item, move, 0, move->count, UINT64_MAX);
                if (ckv_now_nsec() >= until_nsec)
                        break;
        }
        return !refill(move, most);
}

struct ckv_cpu_move *ckv__cpu_move_new(struct ckv_job *job) {
        struct ckv_cpu_move *move = calloc(1, sizeof(*move));

        if (!move)
                return NULL;
        move->job = job;
        for (uint32_t i = 0; i < job->group_count; i++) {
                struct ckv_job_group *group = &job->groups[i];

                group->bytes_moved = 0;
                if (group->budget.kept_all != CKV_DROPPED)
                        continue;
                for (uint32_t l = 0; l < group->layer_count; l++) {
                        const struct ckv_job_layer *layer = &group->layers[l];
                        const struct ckv_kept *kept = &group->kept[group->kept_count == 1 ? 0 : l];

                        group->bytes_moved += ckv_ref_move_bytes(group, &layer->k, kept);
                        if (layer->v.base)
                                group->bytes_moved += ckv_ref_move_bytes(group, &layer->v, kept);
                }
        }
        return move;
}

struct ckv_cpu_move *ckv__cpu_move_free(struct ckv_cpu_move *move) {
        free(move);
        return NULL;
}
