/*
 * S9 on a GPU: the host cuts the move into steps (kernels/steps.h) as it does
 * for the CPU, and each step into launches; the kernels copy.
 *
 * What moves together is a stretch of the group's parts, a part being one KV head
 * of one layer, K and V.  As many parts as the scratch holds are sent with their
 * kept rows, once; each launch then takes as many of them as make a slice.  Rows
 * of a step are waited for before the step is counted, and the step is counted
 * before the next one is launched, so no order between kernels and words written
 * by the stream is relied on.  A step that is done on the device and not counted
 * when the process dies is done again, which does no harm.
 *
 * Without steps a move in place is one launch in which a block walks each column
 * (ckv_k_move_pass); to a destination rows may go in any order (ckv_k_move).
 *
 * Once a row has moved there is no way back.  A launch that the driver refuses
 * wrote nothing and is tried again.
 */
#include "kernels/cuda_move.h"

#include "base/clock.h"
#include "base/macros.h"
#include "base/points.h"
#include "kernels/cuda_shape.h"
#include "kernels/reference.h"
#include "kernels/steps.h"

#include <string.h>
#include <time.h>

enum { TRIES = 5, PAUSE_NSEC = 2000000, COLUMNS = 2 };         /* of a part: K and V */

/* Parts [first, end) of a group, as they lie in the scratch. */
struct load {
        uint64_t owner;                         /* of the scratch; 0: nothing is loaded */
        uint32_t group;
        uint64_t first, end;
        uint32_t first_set, sets;
        struct ckv_k_move p;
};

struct ckv_cuda_move {
        struct ckv_job *job;
        uint32_t step, group;
        uint64_t part;                          /* next one of the step and group at hand */
        struct load load;
        uint32_t tries;
        uint32_t set_count;
        struct ckv_batch batches[];             /* [set_count] of this step: kept sets of groups[0], groups[1], ..; those that move */
};

static bool moves(const struct ckv_job_group *group) {
        return group->budget.kept_all == CKV_DROPPED && group->kept_count > 0;
}

static uint64_t parts_of(const struct ckv_job_group *group) {
        return moves(group) ? (uint64_t)group->layer_count * group->kv_heads : 0;
}

/* index of the kept set of a part */
static uint32_t set_of(const struct ckv_job_group *group, uint64_t part) {
        uint32_t layer = (uint32_t)(part / group->kv_heads), head = (uint32_t)(part % group->kv_heads);

        return (uint32_t)(ckv_job_kept(group, layer, head) - group->kept);
}

static struct ckv_batch *batches_of(struct ckv_cuda_move *move, uint32_t group) {
        struct ckv_batch *batches = move->batches;

        for (uint32_t i = 0; i < group; i++)
                batches += moves(&move->job->groups[i]) ? move->job->groups[i].kept_count : 0;
        return batches;
}

struct ckv_cuda_move *ckv__cuda_move_new(struct ckv_job *job) {
        struct ckv_cuda_move *move;
        size_t sets = 0;

        for (uint32_t i = 0; i < job->group_count; i++)
                sets += moves(&job->groups[i]) ? job->groups[i].kept_count : 0;
        move = calloc(1, sizeof(*move) + sets * sizeof(move->batches[0]));
        if (!move)
                return NULL;
        move->job = job;
        move->step = job->steps.first;
        move->set_count = (uint32_t)sets;
        for (uint32_t i = 0; i < job->group_count; i++) {
                struct ckv_job_group *group = &job->groups[i];
                struct ckv_batch *batches = batches_of(move, i);

                group->bytes_moved = ckv_ref_move_bytes(job, group);
                for (uint32_t k = 0; moves(group) && k < group->kept_count; k++)
                        batches[k] = ckv_steps_batch(job, group, &group->kept[k], move->step);
        }
        CKV_POINT(move_begin);
        return move;
}

struct ckv_cuda_move *ckv__cuda_move_free(struct ckv_cuda_move *move) {
        free(move);
        return NULL;
}

/* The sets of parts [first, end): consecutive ones. */
static void sets_of(const struct ckv_job_group *group, uint64_t first, uint64_t end, uint32_t *ret_first, uint32_t *ret_count) {
        if (group->kept_count == group->kept_heads) {           /* all layers share theirs */
                *ret_first = 0;
                *ret_count = group->kept_count;
                return;
        }
        *ret_first = set_of(group, first);
        *ret_count = set_of(group, end - 1) + 1 - *ret_first;
}

static uint64_t runs_of(const struct ckv_job_group *group, uint32_t first_set, uint32_t sets) {
        uint64_t runs = 0;

        for (uint32_t k = 0; k < sets; k++)
                runs += group->kept[first_set + k].run_count;
        return runs;
}

/* bytes of scratch that parts [first, end) take beside the tables */
static uint64_t bytes_of(const struct ckv_job_group *group, uint64_t first, uint64_t end) {
        uint32_t first_set, sets;

        sets_of(group, first, end, &first_set, &sets);
        return ckv__cuda_rounded((end - first) * COLUMNS * sizeof(struct ckv_k_column)) +
               ckv__cuda_rounded(runs_of(group, first_set, sets) * sizeof(struct ckv_run)) +
               ckv__cuda_rounded(sets * sizeof(uint64_t)) + ckv__cuda_rounded(sets * sizeof(uint32_t)) +
               ckv__cuda_rounded(sets * sizeof(struct ckv_k_batch));
}

/* As many parts from @first on as fit into @bytes; one always does (scratch has 32 MiB at least). */
static uint64_t parts_that_fit(const struct ckv_job_group *group, uint64_t first, uint64_t bytes) {
        uint64_t low = first + 1, high = parts_of(group);

        while (low < high) {
                uint64_t middle = low + (high - low + 1) / 2;

                if (bytes_of(group, first, middle) <= bytes)
                        low = middle;
                else
                        high = middle - 1;
        }
        return low;
}

static bool send_table(struct ckv_cuda_device *device, const struct ckv_row_table *table, uint32_t rows, struct ckv_k_table *ret_table) {
        uint64_t bytes = ckv__cuda_table_entries(table, rows) * sizeof(uint32_t);
        CUdeviceptr at = ckv__cuda_room(device, bytes);

        *ret_table = ckv__cuda_table(table, at);
        return ckv__cuda_up(device, at, table->entries, bytes);
}

/* rows of the destination that are named: the longest kept set */
static uint32_t rows_to(const struct ckv_job_group *group) {
        uint32_t rows = 0;

        for (uint32_t k = 0; k < group->kept_count; k++)
                rows = CKV_MAX(rows, group->kept[k].count);
        return rows;
}

static bool send_tables(struct ckv_cuda_device *device, const struct ckv_job_group *group, struct ckv_k_move *p) {
        if (!send_table(device, &group->table, group->selection.rows, &p->from))
                return false;
        p->to = p->from;
        return !group->destination.entries || send_table(device, &group->destination, rows_to(group), &p->to);
}

static bool send_columns(struct ckv_cuda_device *device, const struct ckv_job_group *group, struct load *load) {
        uint64_t most = CKV__CUDA_STAGE_BYTES / (COLUMNS * sizeof(struct ckv_k_column));
        CUdeviceptr to = load->p.columns;

        for (uint64_t part = load->first; part < load->end;) {
                uint64_t n = CKV_MIN(load->end - part, most), bytes = n * COLUMNS * sizeof(struct ckv_k_column);
                struct ckv_k_column *column = ckv__cuda_up_room(device, bytes), *room = column;

                if (!column)
                        return false;
                for (uint64_t i = 0; i < n; i++, part++) {
                        const struct ckv_job_layer *layer = &group->layers[part / group->kv_heads];
                        uint32_t head = (uint32_t)(part % group->kv_heads), set = set_of(group, part) - load->first_set;

                        for (uint32_t v = 0; v < COLUMNS; v++, column++) {
                                (void)ckv__cuda_column(v ? &layer->v : &layer->k, head, set, column);
                                load->p.vectors_most = CKV_MAX(load->p.vectors_most, column->vectors);
                        }
                }
                if (!ckv__cuda_up_send(device, to, room, bytes))
                        return false;
                to += bytes;
        }
        return true;
}

/* the runs of all sets, where they begin, and how many there are */
static bool send_runs(struct ckv_cuda_device *device, const struct ckv_job_group *group, const struct load *load) {
        uint64_t at = 0;

        static_assert(sizeof(struct ckv_run) == 3 * sizeof(uint32_t), "as params.h has runs");
        for (uint32_t k = 0; k < load->sets; k++) {
                const struct ckv_kept *kept = &group->kept[load->first_set + k];
                uint32_t count = (uint32_t)kept->run_count;

                if (!ckv__cuda_up(device, load->p.runs + at * sizeof(struct ckv_run), kept->runs, kept->run_count * sizeof(*kept->runs)) ||
                    !ckv__cuda_up(device, load->p.runs_at + k * sizeof(at), &at, sizeof(at)) ||
                    !ckv__cuda_up(device, load->p.run_counts + k * sizeof(count), &count, sizeof(count)))
                        return false;
                at += count;
        }
        return true;
}

/* The part at hand is in the scratch, with others. Return: false: an error. */
static bool load_parts(struct ckv_cuda_move *move, struct ckv_cuda_device *device) {
        const struct ckv_job_group *group = &move->job->groups[move->group];
        struct load *load = &move->load;

        if (load->owner > 0 && load->owner == device->owner && load->group == move->group && move->part >= load->first &&
            move->part < load->end)
                return true;
        *load = (struct load){ .owner = ++device->owner, .group = move->group, .first = move->part };
        device->used = 0;
        if (!send_tables(device, group, &load->p))
                return false;
        load->end = parts_that_fit(group, load->first, device->scratch_bytes - device->used);
        sets_of(group, load->first, load->end, &load->first_set, &load->sets);
        load->p.columns = ckv__cuda_room(device, (load->end - load->first) * COLUMNS * sizeof(struct ckv_k_column));
        load->p.runs = ckv__cuda_room(device, runs_of(group, load->first_set, load->sets) * sizeof(struct ckv_run));
        load->p.runs_at = ckv__cuda_room(device, load->sets * sizeof(uint64_t));
        load->p.run_counts = ckv__cuda_room(device, load->sets * sizeof(uint32_t));
        load->p.batches = ckv__cuda_room(device, load->sets * sizeof(struct ckv_k_batch));
        return send_columns(device, group, load) && send_runs(device, group, load);
}

/* Batches of the step for the sets that are loaded. *ret_rows: the most rows of one. Return: false: an error. */
static bool send_batches(struct ckv_cuda_move *move, struct ckv_cuda_device *device, uint32_t *ret_rows) {
        const struct ckv_batch *batches = batches_of(move, move->group) + move->load.first_set;
        uint32_t most = CKV__CUDA_STAGE_BYTES / sizeof(struct ckv_k_batch), rows = 0;

        for (uint32_t done = 0; done < move->load.sets;) {
                uint32_t n = CKV_MIN(move->load.sets - done, most);
                struct ckv_k_batch *room = ckv__cuda_up_room(device, n * sizeof(*room));

                if (!room)
                        return false;
                for (uint32_t k = 0; k < n; k++) {
                        const struct ckv_batch *batch = &batches[done + k];

                        room[k] = (struct ckv_k_batch){ .begin = batch->begin, .end = batch->end, .run = (uint32_t)batch->run };
                        rows = CKV_MAX(rows, batch->end - batch->begin);
                }
                if (!ckv__cuda_up_send(device, move->load.p.batches + done * sizeof(*room), room, n * sizeof(*room)))
                        return false;
                done += n;
        }
        *ret_rows = rows;
        return true;
}

/* Bytes that one part reads and writes when @rows rows of it move */
static double bytes_of_part(const struct ckv_job_group *group, uint32_t rows) {
        const struct ckv_job_layer *layer = &group->layers[0];
        double row = (double)layer->k.dims * ckv_dtype_bytes(layer->k.dtype);

        if (layer->v.base)
                row += (double)layer->v.dims * ckv_dtype_bytes(layer->v.dtype);
        return 2 * row * (double)rows + 1;
}

/* Some parts of the step, in one launch that is waited for. Return: false: an error. */
static bool move_parts(struct ckv_cuda_move *move, struct ckv_cuda_device *device, uint64_t slice_nsec) {
        const struct ckv_job_group *group = &move->job->groups[move->group];
        bool pass = move->job->steps.count == 0 && !group->destination.entries, queued;
        struct ckv_k_move p;
        double bytes, in_time;
        uint64_t start, parts;

        if (!load_parts(move, device))
                return false;
        p = move->load.p;
        if (!send_batches(move, device, &p.rows_most))
                return false;
        bytes = bytes_of_part(group, p.rows_most);
        in_time = (double)slice_nsec / (device->nsec_per_byte * bytes);
        /* columns are the second dimension of a grid, which has 65,535 at most */
        parts = CKV_MIN(move->load.end - move->part, UINT64_C(65535) / COLUMNS);
        if (in_time < (double)parts)
                parts = in_time > 1 ? (uint64_t)in_time : 1;
        p.columns += (move->part - move->load.first) * COLUMNS * sizeof(struct ckv_k_column);
        p.column_count = (uint32_t)parts * COLUMNS;
        start = ckv_now_nsec();
        queued = pass ? CKV__CUDA_LAUNCH(device, move_pass, &p) : CKV__CUDA_LAUNCH(device, move, &p);
        if (!queued || !ckv__cuda_finish(device))
                return false;
        CKV_POINT(step_column);
        if (p.rows_most > 0)
                device->nsec_per_byte = (device->nsec_per_byte + (double)(ckv_now_nsec() - start) / ((double)parts * bytes)) / 2;
        move->part += parts;
        return true;
}

/* All rows of the step are written. */
static void finish_step(struct ckv_cuda_move *move) {
        struct ckv_job *job = move->job;

        ckv_steps_finish(job, move->step);
        move->step++;
        move->group = 0;
        move->part = 0;
        if (move->step >= ckv_steps_end(job))
                return;
        for (uint32_t i = 0; i < job->group_count; i++) {
                const struct ckv_job_group *group = &job->groups[i];
                struct ckv_batch *batches = batches_of(move, i);

                for (uint32_t k = 0; moves(group) && k < group->kept_count; k++)
                        batches[k] = group->destination.entries ? ckv_steps_batch(job, group, &group->kept[k], move->step)
                                                                : ckv_batch_next(&group->kept[k], job->steps.batch_rows, &batches[k]);
        }
}

/* Return: is the job done with that? */
static bool failed(struct ckv_cuda_move *move, struct ckv_cuda_device *device) {
        const struct timespec pause = { .tv_nsec = PAUSE_NSEC };

        (void)ckv__cuda_finish(device);
        move->load.owner = 0;
        if (device->lost == CUDA_SUCCESS && ++move->tries < TRIES) {
                (void)nanosleep(&pause, NULL);
                return false;
        }
        if (device->lost == CUDA_SUCCESS)
                device->lost = device->code;
        move->job->outcome = CKV_JOB_DEVICE_LOST;
        move->job->fail_code = device->lost;
        return true;
}

bool ckv__cuda_move_step(struct ckv_cuda_move *move, struct ckv_cuda_device *device, uint64_t until_nsec) {
        const struct ckv_job *job = move->job;

        while (move->step < ckv_steps_end(job)) {
                uint64_t now = ckv_now_nsec();

                while (move->group < job->group_count && move->part >= parts_of(&job->groups[move->group])) {
                        move->group++;
                        move->part = 0;
                }
                if (move->group == job->group_count) {
                        finish_step(move);
                        continue;
                }
                if (now >= until_nsec)
                        return false;
                if (move_parts(move, device, until_nsec - now))
                        move->tries = 0;
                else if (failed(move, device))
                        return true;
        }
        return true;
}
