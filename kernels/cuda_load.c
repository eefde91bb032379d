/*
 * Loading parts of a move.  Most moves are loaded once, whole; those of many
 * heads with a kept set each, or of the longest sequences, in turn.
 */
#include "kernels/cuda_load.h"

#include "base/macros.h"
#include "kernels/cuda_shape.h"

#include <string.h>

/* index of the kept set of a part */
static uint32_t set_of(const struct ckv_job_group *group, uint64_t part) {
        uint32_t layer = (uint32_t)(part / group->kv_heads), head = (uint32_t)(part % group->kv_heads);

        return (uint32_t)(ckv_job_kept(group, layer, head) - group->kept);
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
        return ckv__cuda_rounded((end - first) * CKV__CUDA_LOAD_COLUMNS * sizeof(struct ckv_k_column)) +
               ckv__cuda_rounded(runs_of(group, first_set, sets) * sizeof(struct ckv_run)) +
               ckv__cuda_rounded(sets * sizeof(uint64_t)) + ckv__cuda_rounded(sets * sizeof(uint32_t)) +
               ckv__cuda_rounded(sets * sizeof(struct ckv_k_batch));
}

/* As many parts from @first on as fit into @bytes; one always does: 2^20 slots twice and 2^19 runs are 14 MiB, and the
 * scratch has 16 at least. */
static uint64_t parts_that_fit(const struct ckv_job_group *group, uint64_t first, uint64_t bytes) {
        uint64_t low = first + 1, high = ckv__cuda_load_parts(group);

        while (low < high) {
                uint64_t middle = low + (high - low + 1) / 2;

                if (bytes_of(group, first, middle) <= bytes)
                        low = middle;
                else
                        high = middle - 1;
        }
        return low;
}

static bool send_table(struct ckv_cuda_device *device, const struct ckv_row_table *table, uint32_t rows,
                       struct ckv_k_table *ret_table) {
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

static bool send_columns(struct ckv_cuda_device *device, const struct ckv_job_group *group, struct ckv__cuda_load *load) {
        uint64_t most = CKV__CUDA_STAGE_BYTES / (CKV__CUDA_LOAD_COLUMNS * sizeof(struct ckv_k_column));
        CUdeviceptr to = load->p.columns;

        for (uint64_t part = load->first; part < load->end;) {
                uint64_t n = CKV_MIN(load->end - part, most), bytes = n * CKV__CUDA_LOAD_COLUMNS * sizeof(struct ckv_k_column);
                struct ckv_k_column *column = ckv__cuda_up_room(device, bytes), *room = column;

                if (!column)
                        return false;
                for (uint64_t i = 0; i < n; i++, part++) {
                        const struct ckv_job_layer *layer = &group->layers[part / group->kv_heads];
                        uint32_t head = (uint32_t)(part % group->kv_heads), set = set_of(group, part) - load->first_set;

                        for (uint32_t v = 0; v < CKV__CUDA_LOAD_COLUMNS; v++, column++) {
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

/* All runs of the sets that are loaded, one set after the other: as many in one copy as there is pinned memory for. */
static bool send_runs(struct ckv_cuda_device *device, const struct ckv_job_group *group, const struct ckv__cuda_load *load) {
        CUdeviceptr to = load->p.runs;
        uint64_t left = runs_of(group, load->first_set, load->sets);
        uint32_t set = 0;
        size_t run = 0;

        static_assert(sizeof(struct ckv_run) == 3 * sizeof(uint32_t), "as params.h has runs");
        while (left > 0) {
                size_t most = CKV_MIN(left, CKV__CUDA_STAGE_BYTES / sizeof(struct ckv_run)), count = 0;
                struct ckv_run *room = ckv__cuda_up_room(device, most * sizeof(*room));

                if (!room)
                        return false;
                for (; set < load->sets && count < most; set++, run = 0) {
                        const struct ckv_kept *kept = &group->kept[load->first_set + set];
                        size_t n = CKV_MIN(kept->run_count - run, most - count);

                        if (n > 0)
                                memcpy(room + count, kept->runs + run, n * sizeof(*room));
                        count += n;
                        run += n;
                        if (run < kept->run_count)
                                break;
                }
                if (!ckv__cuda_up_send(device, to, room, count * sizeof(*room)))
                        return false;
                to += count * sizeof(*room);
                left -= count;
        }
        return true;
}

/* Where the runs of each set begin, and how many there are. */
static bool send_counts(struct ckv_cuda_device *device, const struct ckv_job_group *group, const struct ckv__cuda_load *load) {
        uint32_t most = CKV__CUDA_STAGE_BYTES / (sizeof(uint64_t) + sizeof(uint32_t)) - 1;
        uint64_t at = 0;

        for (uint32_t done = 0; done < load->sets;) {
                uint32_t n = CKV_MIN(load->sets - done, most);
                uint64_t *runs_at = ckv__cuda_up_room(device, n * sizeof(*runs_at));
                uint32_t *counts;

                if (!runs_at)
                        return false;
                for (uint32_t k = 0; k < n; k++) {
                        runs_at[k] = at;
                        at += group->kept[load->first_set + done + k].run_count;
                }
                if (!ckv__cuda_up_send(device, load->p.runs_at + done * sizeof(*runs_at), runs_at, n * sizeof(*runs_at)))
                        return false;
                counts = ckv__cuda_up_room(device, n * sizeof(*counts));
                if (!counts)
                        return false;
                for (uint32_t k = 0; k < n; k++)
                        counts[k] = (uint32_t)group->kept[load->first_set + done + k].run_count;
                if (!ckv__cuda_up_send(device, load->p.run_counts + done * sizeof(*counts), counts, n * sizeof(*counts)))
                        return false;
                done += n;
        }
        return true;
}

bool ckv__cuda_load(struct ckv__cuda_load *load, struct ckv_cuda_device *device, const struct ckv_job_group *group, uint32_t index,
                    uint64_t part) {
        if (load->owner > 0 && load->owner == device->owner && load->group == index && part >= load->first && part < load->end)
                return true;
        *load = (struct ckv__cuda_load){ .owner = ++device->owner, .group = index, .first = part };
        device->used = 0;
        if (!send_tables(device, group, &load->p))
                return false;
        load->end = parts_that_fit(group, load->first, device->scratch_bytes - device->used);
        sets_of(group, load->first, load->end, &load->first_set, &load->sets);
        load->p.columns = ckv__cuda_room(device, (load->end - load->first) * CKV__CUDA_LOAD_COLUMNS * sizeof(struct ckv_k_column));
        load->p.runs = ckv__cuda_room(device, runs_of(group, load->first_set, load->sets) * sizeof(struct ckv_run));
        load->p.runs_at = ckv__cuda_room(device, load->sets * sizeof(uint64_t));
        load->p.run_counts = ckv__cuda_room(device, load->sets * sizeof(uint32_t));
        load->p.batches = ckv__cuda_room(device, load->sets * sizeof(struct ckv_k_batch));
        return send_columns(device, group, load) && send_runs(device, group, load) && send_counts(device, group, load);
}
