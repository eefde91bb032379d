/*
 * S9, in place or to a destination.  The work is cut into columns: one plane of
 * one layer, whole rows where the heads of a row are one stretch of bytes and
 * keep the same rows, else one head.  The columns share no byte, so each may be
 * at another place of its own ascending walk, and on another thread; within a
 * column a row is written only after every row that it could overwrite was read
 * (dst <= src, ascending).
 *
 * A walk goes from stretch to stretch: as many rows as keep one distance in
 * memory at both ends, which a block border or a change of tile ends.  If that
 * is the length of the row's bytes, the whole stretch is one copy; else each row
 * is one; and where the dimensions of a row are not adjacent, each piece of the
 * row is treated so.  Bytes between the pieces are somebody else's.
 *
 * With steps (kernels/steps.h) all columns go as far as their batch of the step,
 * then the threads join, the step is counted, and they go on.  Without steps a
 * move is one step that nobody counts.  Inside a step, and on the way to a
 * destination, rows may be written in any order, so a column is cut into parts
 * there and several threads share it.  The parts are worked off until the slice
 * is over; the clock is looked at between parts, and within one that must stay
 * in order.  This stage knows no cancellation: once rows have moved, the only
 * way out is forward.
 */
#include "kernels/cpu_move.h"

#include "base/clock.h"
#include "base/macros.h"
#include "base/points.h"
#include "kernels/cpu_copy.h"
#include "kernels/reference.h"
#include "kernels/steps.h"

#include <string.h>

enum {
        PART_BYTES = 256 << 10,         /* written between two looks at the clock */
        ALONE_BYTES = 256 << 10,        /* all parts together that are not worth the waking of a thread */
        ON_THE_WAY = 128,               /* parts, at most: a slice of many threads */
};

/* Rows [row, end) of a table, which keep one distance in memory. None at first. */
struct stretch {
        uint8_t *base;                  /* of row */
        uint64_t stride;
        uint32_t row, end;
};

/* Rows of one column: all that a step moves, or a part of it. */
struct column {
        const struct ckv_plane *plane;
        const struct ckv_row_table *from_table, *to_table;      /* the same, if the move is in place */
        const struct ckv_kept *kept;
        uint32_t head;
        uint64_t piece_bytes;           /* adjacent bytes of one row */
        uint64_t row_bytes;             /* all pieces of a row */
        uint32_t piece_dims;            /* dimensions of a piece; 0: the row with all its heads is one piece */
        bool any_order;                 /* no row is read that the step writes */
        size_t run;                     /* the walk: the run with row, the next row to be written, and where to stop */
        uint32_t row, end;
        struct stretch to, from;
};

struct ckv_cpu_move {
        struct ckv_job *job;
        uint32_t step;                          /* the one that is on its way */
        uint32_t group, layer, plane, head;     /* the next column of it to begin; plane 0: K, 1: V */
        struct ckv_batch *batches;              /* of this step: kept sets of groups[0], groups[1], ..; those that move */
        struct ckv_batch *group_batches;        /* those of the group */
        struct column rest;                     /* what is still to be cut of the column begun last */
        uint64_t until_nsec;                    /* of the slice */
        uint32_t count;
        struct column columns[ON_THE_WAY];
        struct ckv_cpu_near near;               /* of the columns, in one turn */
};

/* From @row of a table on, to the end of its block; of slots at most @most rows. */
static struct stretch stretch_at(const struct column *column, const struct ckv_row_table *table, uint32_t row, uint32_t most) {
        struct stretch stretch = { .base = ckv_plane_row(column->plane, table, row, column->head), .row = row };
        uint32_t per_block = table->tokens_per_block, rows = 1;
        uint32_t token = (table->by_token ? table->entries[row] : row) % per_block;
        uint32_t even = ckv_axis_even(&column->plane->token, token, &stretch.stride);

        even = CKV_MIN(even, per_block - token);
        if (!table->by_token)
                rows = even;
        else
                while (rows < CKV_MIN(most, even) && table->entries[row + rows] == table->entries[row] + rows)
                        rows++;
        stretch.end = row + rows;
        return stretch;
}

/* The address of @row, which is not before the stretch; it is another one afterwards if the row lies behind it. */
static uint8_t *stretch_go(const struct column *column, const struct ckv_row_table *table, uint32_t row, uint32_t most,
                           struct stretch *stretch) {
        if (row >= stretch->end)
                *stretch = stretch_at(column, table, row, most);
        return stretch->base + (row - stretch->row) * stretch->stride;
}

/* One piece of each of @rows rows; @to, @from: of the first of them */
static void move_piece(const struct column *column, struct ckv_copy *copy, uint8_t *to, const uint8_t *from, uint64_t bytes,
                       uint32_t rows) {
        if (column->to.stride == bytes && column->from.stride == bytes)
                ckv__copy_put(copy, to, from, rows * bytes);
        else
                for (uint32_t i = 0; i < rows; i++)
                        ckv__copy_put(copy, to + i * column->to.stride, from + i * column->from.stride, bytes);
}

/* As many rows further as both stretches have, but no more than @most */
static void column_advance(struct column *column, struct ckv_copy *copy, uint32_t most) {
        const struct ckv_plane *plane = column->plane;
        const struct ckv_run *run = &column->kept->runs[column->run];
        uint32_t source = run->src + (column->row - run->dst), bytes = ckv_dtype_bytes(plane->dtype);
        uint32_t rows = CKV_MIN(CKV_MIN(run->dst + run->len, column->end) - column->row, most);
        uint8_t *to = stretch_go(column, column->to_table, column->row, rows, &column->to);
        const uint8_t *from = stretch_go(column, column->from_table, source, rows, &column->from);

        rows = CKV_MIN(rows, CKV_MIN(column->to.end - column->row, column->from.end - source));
        if (column->piece_dims == 0)
                move_piece(column, copy, to, from, column->piece_bytes, rows);
        else
                for (uint32_t x = 0; x < plane->dims; x += column->piece_dims) {
                        uint64_t offset = ckv_axis_at(&plane->dim, x);

                        move_piece(column, copy, to + offset, from + offset,
                                   (uint64_t)CKV_MIN(plane->dims - x, column->piece_dims) * bytes, rows);
                }
        column->row += rows;
        if (column->row == run->dst + run->len)
                column->run++;
}

static void column_item(void *context, uint32_t item, float *scratch) {
        struct ckv_cpu_move *move = context;
        struct column *column = &move->columns[item];
        uint32_t most = (uint32_t)CKV_MAX(PART_BYTES / column->row_bytes, 1);
        struct ckv_copy copy = { 0 };

        (void)scratch;
        do {
                uint32_t begin = column->row;

                while (column->row < column->end && column->row - begin < most) {
                        column_advance(column, &copy, most);
                        CKV_POINT(step_stretch);
                }
        } while (column->row < column->end && ckv_now_nsec() < move->until_nsec);
        ckv__copy_end(&copy);
        CKV_POINT(step_column);
}

/* Where the next row of a column goes; what it was is near there, as a rule. */
static const void *column_where(const void *context, uint32_t item) {
        const struct ckv_cpu_move *move = context;
        const struct column *column = &move->columns[item];

        return ckv_plane_row(column->plane, column->to_table, column->row, column->head);
}

static struct column column_of(const struct ckv_job *job, const struct ckv_job_group *group, const struct ckv_plane *plane,
                               bool whole, uint32_t head, const struct ckv_kept *kept, const struct ckv_batch *batch) {
        uint32_t dims = ckv_plane_adjacent_dims(plane), bytes = ckv_dtype_bytes(plane->dtype), heads = whole ? group->kv_heads : 1;

        return (struct column){
                .plane = plane, .from_table = &group->table, .head = head, .kept = kept,
                .to_table = group->destination.entries ? &group->destination : &group->table,
                .piece_dims = whole ? 0 : dims, .piece_bytes = (uint64_t)dims * bytes * heads,
                .row_bytes = (uint64_t)plane->dims * bytes * heads,
                .any_order = job->steps.count > 0 || group->destination.entries,
                .run = batch->run, .row = batch->begin, .end = batch->end,
        };
}

/* The next column of this step to begin. Return: false if there is none left. */
static bool next_column(struct ckv_cpu_move *move, struct column *ret_column) {
        for (; move->group < move->job->group_count; move->group++, move->layer = 0) {
                const struct ckv_job_group *group = &move->job->groups[move->group];

                if (group->budget.kept_all != CKV_DROPPED)
                        continue;
                for (; move->layer < group->layer_count; move->layer++, move->plane = 0) {
                        const struct ckv_job_layer *layer = &group->layers[move->layer];

                        for (; move->plane < 2; move->plane++, move->head = 0) {
                                const struct ckv_plane *plane = move->plane == 0 ? &layer->k : &layer->v;
                                bool whole = group->kept_heads == 1 && ckv_plane_heads_adjacent(plane, group->kv_heads);

                                while (plane->base && move->head < (whole ? 1 : group->kv_heads)) {
                                        uint32_t head = move->head++;
                                        const struct ckv_kept *kept = ckv_job_kept(group, move->layer, head);
                                        const struct ckv_batch *batch = &move->group_batches[kept - group->kept];

                                        if (batch->begin == batch->end)
                                                continue;
                                        *ret_column = column_of(move->job, group, plane, whole, head, kept, batch);
                                        return true;
                                }
                        }
                }
                move->group_batches += group->kept_count;
        }
        return false;
}

/* The next part of this step: of the column that is being cut, or of the next. Return: false if there is none left. */
static bool next_part(struct ckv_cpu_move *move, struct column *ret_part) {
        struct column *rest = &move->rest;
        uint32_t rows;

        if (rest->row == rest->end && !next_column(move, rest))
                return false;
        rows = rest->end - rest->row;
        if (rest->any_order)
                rows = CKV_MIN(rows, (uint32_t)CKV_MAX(PART_BYTES / rest->row_bytes, 1));
        *ret_part = *rest;
        rest->row += rows;
        ret_part->end = rest->row;
        if (rest->row < rest->end)
                rest->run = ckv_kept_run(rest->kept, rest->run, rest->row);
        return true;
}

/* Parts that are through make room for new ones, behind those that are not. Return: bytes that are left to write in all. */
static uint64_t refill(struct ckv_cpu_move *move) {
        uint64_t bytes = 0;
        uint32_t left = 0;

        for (uint32_t i = 0; i < move->count; i++)
                if (move->columns[i].row < move->columns[i].end)
                        move->columns[left++] = move->columns[i];
        while (left < ON_THE_WAY && next_part(move, &move->columns[left]))
                left++;
        move->count = left;
        for (uint32_t i = 0; i < left; i++)
                bytes += (move->columns[i].end - move->columns[i].row) * move->columns[i].row_bytes;
        return bytes;
}

/* As many parts as the slice has time for, at least one. */
static void work_off(struct ckv_cpu_move *move, struct ckv_cpu_pool *pool, uint64_t bytes) {
        if (bytes > ALONE_BYTES) {
                move->near.count = 0;
                (void)ckv__cpu_pool_run_near(pool, column_item, column_where, move, &move->near, 0, move->count, move->until_nsec);
        } else
                for (uint32_t i = 0; i < move->count; i++)
                        column_item(move, i, NULL);
        CKV_POINT(step_turn);
}

/* Back to the first column, with the batches of the step */
static void begin_step(struct ckv_cpu_move *move) {
        move->group = move->layer = move->plane = move->head = 0;
        move->group_batches = move->batches;
}

/* All rows of the step are written: count it. Return: is there another one? */
static bool finish_step(struct ckv_cpu_move *move) {
        const struct ckv_job *job = move->job;
        struct ckv_batch *batch = move->batches;

        ckv_steps_finish(job, move->step);
        if (++move->step == ckv_steps_end(job)) {
                CKV_POINT(move_end);
                return false;
        }
        for (uint32_t i = 0; i < job->group_count; i++) {
                const struct ckv_job_group *group = &job->groups[i];

                if (group->budget.kept_all != CKV_DROPPED)
                        continue;
                for (uint32_t k = 0; k < group->kept_count; k++, batch++)
                        *batch = ckv_batch_next(&group->kept[k], job->steps.batch_rows, batch);
        }
        begin_step(move);
        return true;
}

bool ckv__cpu_move_step(struct ckv_cpu_move *move, struct ckv_cpu_pool *pool, uint64_t until_nsec) {
        uint64_t bytes;

        if (move->step >= ckv_steps_end(move->job))
                return true;
        move->until_nsec = until_nsec;
        for (bool moved = false;; moved = true) {
                while ((bytes = refill(move)) == 0)
                        if (!finish_step(move))
                                return true;
                if (moved && ckv_now_nsec() >= until_nsec)
                        return false;
                work_off(move, pool, bytes);
        }
}

struct ckv_cpu_move *ckv__cpu_move_new(struct ckv_job *job) {
        struct ckv_cpu_move *move = calloc(1, sizeof(*move));
        struct ckv_batch *batch;
        size_t sets = 0;

        for (uint32_t i = 0; i < job->group_count; i++)
                sets += job->groups[i].budget.kept_all == CKV_DROPPED ? job->groups[i].kept_count : 0;
        batch = calloc(sets + 1, sizeof(*batch));
        if (!move || !batch) {
                free(batch);
                free(move);
                return NULL;
        }
        *move = (struct ckv_cpu_move){ .job = job, .step = job->steps.first, .batches = batch };
        for (uint32_t i = 0; i < job->group_count; i++) {
                struct ckv_job_group *group = &job->groups[i];

                group->bytes_moved = ckv_ref_move_bytes(job, group);
                for (uint32_t k = 0; group->budget.kept_all == CKV_DROPPED && k < group->kept_count; k++)
                        *batch++ = ckv_steps_batch(job, group, &group->kept[k], move->step);
        }
        begin_step(move);
        CKV_POINT(move_begin);
        return move;
}

struct ckv_cpu_move *ckv__cpu_move_free(struct ckv_cpu_move *move) {
        if (move)
                free(move->batches);
        free(move);
        return NULL;
}
