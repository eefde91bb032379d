/*
 * The scalar reference of compaction (S9): CKV_STAGE_MOVE of one job, on the
 * caller's thread, to the end in one go.  It is what every backend must equal,
 * and what moves the rows when a backend has no memory left for anything else;
 * so it takes none.
 *
 * In place, runs ascend and a row never moves up (dst <= src), so a write can
 * only reach rows that were read before; the same forward walk serves
 * contiguous rows, pages and slots alike, because row j is wherever the row
 * table says.  With steps it is the same walk, cut at the ends of batches and
 * counted on the way.
 *
 * It looks every batch up from the first one on, which is quadratic in the
 * number of steps: whoever limits that number bounds it.
 */
#include "kernels/reference.h"

#include "base/points.h"
#include "kernels/steps.h"

#include <string.h>

/* The rows of @batch, in one plane of one head of @from, to the same rows of the result in @to (the same table, or one that
 * shares no row with it), ascending */
static void compact(const struct ckv_plane *plane, const struct ckv_row_table *from, const struct ckv_row_table *to, uint32_t head,
                    const struct ckv_kept *kept, const struct ckv_batch *batch) {
        uint32_t bytes = ckv_dtype_bytes(plane->dtype);
        bool adjacent = ckv_plane_dims_adjacent(plane);

        for (size_t i = batch->run; i < kept->run_count && kept->runs[i].dst < batch->end; i++) {
                const struct ckv_run run = ckv_batch_part(batch, &kept->runs[i]);

                for (uint32_t n = 0; n < run.len; n++) {
                        uint8_t *target = ckv_plane_row(plane, to, run.dst + n, head);
                        const uint8_t *source = ckv_plane_row(plane, from, run.src + n, head);

                        if (adjacent) {
                                memmove(target, source, (size_t)plane->dims * bytes);
                                continue;
                        }
                        for (uint32_t x = 0; x < plane->dims; x++)
                                memmove(target + ckv_axis_at(&plane->dim, x), source + ckv_axis_at(&plane->dim, x), bytes);
                }
        }
}

static void move_step(const struct ckv_job *job, const struct ckv_job_group *group, uint32_t step) {
        bool copy = group->destination.entries != NULL;
        const struct ckv_row_table *to = copy ? &group->destination : &group->table;

        for (uint32_t l = 0; l < group->layer_count; l++)
                for (uint32_t g = 0; g < group->kv_heads; g++) {
                        const struct ckv_kept *kept = ckv_job_kept(group, l, g);
                        const struct ckv_batch batch = ckv_steps_batch(job, group, kept, step);

                        compact(&group->layers[l].k, &group->table, to, g, kept, &batch);
                        if (group->layers[l].v.base)
                                compact(&group->layers[l].v, &group->table, to, g, kept, &batch);
                        CKV_POINT(step_column);
                }
}

void ckv_ref_run_move(struct ckv_job *job) {
        for (uint32_t i = 0; i < job->group_count; i++)
                job->groups[i].bytes_moved = ckv_ref_move_bytes(job, &job->groups[i]);
        for (uint32_t step = job->steps.first; step < ckv_steps_end(job); step++) {
                for (uint32_t i = 0; i < job->group_count; i++)
                        if (job->groups[i].budget.kept_all == CKV_DROPPED)
                                move_step(job, &job->groups[i], step);
                ckv_steps_finish(job, step);
        }
}

uint64_t ckv_ref_move_bytes(const struct ckv_job *job, const struct ckv_job_group *group) {
        uint32_t layer_sets = group->kept_count / group->kept_heads, heads = group->kv_heads / group->kept_heads;
        uint64_t bytes = 0;

        if (group->budget.kept_all != CKV_DROPPED)
                return 0;
        /* rows of each set once: a set may serve all layers, all heads, or both */
        for (uint32_t k = 0; k < group->kept_count; k++) {
                const struct ckv_kept *kept = &group->kept[k];
                const struct ckv_batch batch = ckv_steps_batch(job, group, kept, job->steps.first);
                uint32_t layer = layer_sets == 1 ? 0 : k / group->kept_heads;
                uint32_t layers_end = layer_sets == 1 ? group->layer_count : layer + 1;

                for (; layer < layers_end; layer++) {
                        const struct ckv_plane *planes[] = { &group->layers[layer].k, &group->layers[layer].v };

                        for (uint32_t p = 0; p < 2; p++)
                                if (planes[p]->base)
                                        bytes += (uint64_t)(kept->count - batch.begin) * heads * planes[p]->dims *
                                                 ckv_dtype_bytes(planes[p]->dtype);
                }
        }
        return 2 * bytes;
}
