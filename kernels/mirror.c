/*
 * Which bytes a job needs, found by the same walk as that of the move: groups,
 * layers, planes, heads, rows; as many rows at a time as are one stretch of
 * bytes.  A block whose tokens and dimensions leave no gaps is one stretch even
 * where rows are cut into tiles.
 *
 * Bytes that belong to rows of nobody's table are pulled with a block that
 * has them in between, into memory that nobody else looks at; they are never
 * pushed, so an engine may write them meanwhile.
 *
 * A layout whose rows are cut into pieces and whose blocks are not dense costs
 * one system call for each piece.
 */
#include "kernels/mirror.h"

#include "base/clock.h"
#include "base/macros.h"
#include "kernels/job.h"
#include "kernels/steps.h"

#include <errno.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PIECE_BYTES = 1 << 20 };         /* copied between two looks at the clock */

/* copy() - some bytes of a span, all of which lie in its mirror. Return: how many, 0 if none can be. */
static uint64_t copy(const struct ckv_mirror_span *span, uint64_t bytes, bool push) {
        const struct ckv_mirror *mirror = span->mirror;
        off_t at = (off_t)(mirror->offset + (uint64_t)(span->address - mirror->base));
        struct stat st;
        ssize_t n;

        /* writing would make a file that was truncated as long as it was, of pages that we pay for */
        if (push && (fstat(mirror->fd, &st) < 0 || st.st_size < at + (off_t)bytes))
                return 0;
        do
                n = push ? pwrite(mirror->fd, span->address, bytes, at) : pread(mirror->fd, span->address, bytes, at);
        while (n < 0 && errno == EINTR);
        return n < 0 ? 0 : (uint64_t)n;
}

/* copy_some() - the next piece of a span, which is shorter afterwards; empty if the mirror is lost by it */
static void copy_some(struct ckv_mirror_span *span, bool push) {
        uint64_t n = 0;

        if (!atomic_load_explicit(&span->mirror->lost, memory_order_relaxed))
                n = copy(span, CKV_MIN(span->bytes, (uint64_t)PIECE_BYTES), push);
        if (n == 0) {
                /* relaxed: read by the loop after the job came back, which orders it */
                atomic_store_explicit(&span->mirror->lost, true, memory_order_relaxed);
                span->bytes = 0;
                return;
        }
        span->address += n;
        span->bytes -= n;
}

bool ckv_mirror_pull(struct ckv_mirror *mirror, uint8_t *address, uint64_t bytes) {
        struct ckv_mirror_span span = { mirror, address, bytes };

        while (span.bytes > 0)
                copy_some(&span, false);
        return !atomic_load_explicit(&mirror->lost, memory_order_relaxed);
}

static struct ckv_mirror *mirror_of(const struct ckv_job *job, const uint8_t *address) {
        for (uint32_t i = 0; i < job->mirror_count; i++)
                if (address >= job->mirrors[i]->base && address < job->mirrors[i]->base + job->mirrors[i]->size)
                        return job->mirrors[i];
        return NULL;
}

/* is_dense() - do all tokens of one block, of one head or of all, take exactly the bytes from the first to the last? */
static bool is_dense(const struct ckv_plane *plane, uint32_t tokens, uint32_t heads) {
        uint64_t bytes = ckv_dtype_bytes(plane->dtype), last;

        last = ckv_axis_at(&plane->token, tokens - 1) + ckv_axis_at(&plane->dim, plane->dims - 1) + (heads - 1) * plane->head_stride;
        return last + bytes == (uint64_t)tokens * plane->dims * heads * bytes;
}

/* Rows of one head, or of all heads together, on their way. */
struct rows {
        const struct ckv_plane *plane;
        const struct ckv_row_table *table;
        uint32_t head, heads, begin, end;
};

/* take_rows() - as many rows as are one stretch; of a row cut into pieces, one piece */
static void take_rows(struct ckv_mirror_walk *walk, const struct rows *rows, bool push) {
        const struct ckv_plane *plane = rows->plane;
        const struct ckv_row_table *table = rows->table;
        uint32_t per_block = table->tokens_per_block, left = rows->end - walk->row;
        uint32_t token = (table->by_token ? table->entries[walk->row] : walk->row) % per_block, dims = ckv_plane_adjacent_dims(plane), n = 1;
        uint64_t row_bytes = (uint64_t)plane->dims * ckv_dtype_bytes(plane->dtype) * rows->heads, stride;
        uint32_t even = CKV_MIN(ckv_axis_even(&plane->token, token, &stride), per_block - token);

        walk->now.address = ckv_plane_row(plane, table, walk->row, rows->head);
        if (dims == plane->dims) {
                while (stride == row_bytes && n < CKV_MIN(left, even) &&
                       (!table->by_token || table->entries[walk->row + n] == table->entries[walk->row] + n))
                        n++;
                walk->now.bytes = n * row_bytes;
                walk->row += n;
        } else if (!table->by_token && token == 0 && walk->dim == 0 && (!push || left >= per_block) &&
                   is_dense(plane, per_block, rows->heads)) {
                walk->now.bytes = per_block * row_bytes;
                walk->row += CKV_MIN(left, per_block);
        } else {
                n = CKV_MIN(dims, plane->dims - walk->dim);
                walk->now.address += ckv_axis_at(&plane->dim, walk->dim);
                walk->now.bytes = (uint64_t)n * ckv_dtype_bytes(plane->dtype);
                walk->dim += n;
                if (walk->dim == plane->dims) {
                        walk->dim = 0;
                        walk->row++;
                }
        }
}

/* rows_of() - the rows of the head that the walk is at */
static struct rows rows_of(const struct ckv_job_group *group, const struct ckv_mirror_walk *walk, const struct ckv_plane *plane,
                           bool whole, bool push) {
        struct rows rows = {
                .plane = plane, .table = &group->table, .head = walk->head, .heads = whole ? group->kv_heads : 1,
                .end = group->selection.rows,
        };

        if (push) {
                const struct ckv_kept *kept = ckv_job_kept(group, walk->layer, walk->head);

                if (group->destination.entries)
                        rows.table = &group->destination;
                else
                        rows.begin = ckv_kept_stay(kept);
                rows.end = kept->count;
        }
        return rows;
}

/* next_of_plane() - the next stretch of one plane. Return: false if there is none left. */
static bool next_of_plane(struct ckv_mirror_walk *walk, const struct ckv_job *job, const struct ckv_job_group *group,
                          const struct ckv_plane *plane, bool push) {
        bool whole = (!push || group->kept_heads == 1) && ckv_plane_heads_adjacent(plane, group->kv_heads);

        walk->now.mirror = plane->base ? mirror_of(job, plane->base) : NULL;
        for (; walk->now.mirror && walk->head < (whole ? 1 : group->kv_heads); walk->head++, walk->begun = false) {
                struct rows rows = rows_of(group, walk, plane, whole, push);

                if (!walk->begun)
                        walk->row = rows.begin;
                walk->begun = true;
                if (walk->row < rows.end) {
                        take_rows(walk, &rows, push);
                        return true;
                }
        }
        walk->head = 0;
        walk->begun = false;
        return false;
}

/* next_span() - Return: false if there is none left */
static bool next_span(struct ckv_mirror_walk *walk, const struct ckv_job *job) {
        bool push = job->stage == CKV_STAGE_MOVE;

        if (!push && walk->span < job->span_count) {
                walk->now = job->spans[walk->span++];
                return true;
        }
        for (; walk->group < job->group_count; walk->group++, walk->layer = 0) {
                const struct ckv_job_group *group = &job->groups[walk->group];

                if (push && group->budget.kept_all != CKV_DROPPED)
                        continue;
                for (; walk->layer < group->layer_count; walk->layer++, walk->plane = 0)
                        for (; walk->plane < 2; walk->plane++) {
                                const struct ckv_job_layer *layer = &group->layers[walk->layer];

                                if (next_of_plane(walk, job, group, walk->plane == 0 ? &layer->k : &layer->v, push))
                                        return true;
                        }
        }
        return false;
}

bool ckv_mirrors_step(struct ckv_job *job, uint64_t until_nsec) {
        struct ckv_mirror_walk *walk = &job->walk;

        if (job->mirror_count == 0)
                return true;
        for (;;) {
                while (walk->now.bytes == 0)
                        if (!next_span(walk, job))
                                return true;
                copy_some(&walk->now, job->stage == CKV_STAGE_MOVE);
                if (ckv_now_nsec() >= until_nsec)
                        return false;
        }
}
