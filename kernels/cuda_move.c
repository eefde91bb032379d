/*
 * S9 on a GPU: the host cuts the move into steps (kernels/steps.h) as it does
 * for the CPU, and each step into launches; the kernels copy.
 *
 * What moves together is a stretch of the group's parts (kernels/cuda_load.h).
 * As many as the scratch holds are sent with their kept rows, once; each launch then takes as many of them as make a slice.  Rows
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
#include "kernels/cuda_load.h"
#include "kernels/reference.h"
#include "kernels/steps.h"

#include <string.h>
#include <time.h>

enum { TRIES = 5, PAUSE_NSEC = 2000000 };

struct ckv_cuda_move {
        struct ckv_job *job;
        uint32_t step, group;
        uint64_t part;                          /* next one of the step and group at hand */
        struct ckv__cuda_load load;
        uint32_t tries;
        uint32_t set_count;
        struct ckv_batch batches[];             /* [set_count] of this step: kept sets of groups[0], groups[1], ..; of those that
                                                   move */
};

static struct ckv_batch *batches_of(struct ckv_cuda_move *move, uint32_t group) {
        struct ckv_batch *batches = move->batches;

        for (uint32_t i = 0; i < group; i++)
                batches += ckv__cuda_moves(&move->job->groups[i]) ? move->job->groups[i].kept_count : 0;
        return batches;
}

struct ckv_cuda_move *ckv__cuda_move_new(struct ckv_job *job) {
        struct ckv_cuda_move *move;
        size_t sets = 0;

        for (uint32_t i = 0; i < job->group_count; i++)
                sets += ckv__cuda_moves(&job->groups[i]) ? job->groups[i].kept_count : 0;
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
                for (uint32_t k = 0; ckv__cuda_moves(group) && k < group->kept_count; k++)
                        batches[k] = ckv_steps_batch(job, group, &group->kept[k], move->step);
        }
        CKV_POINT(move_begin);
        return move;
}

struct ckv_cuda_move *ckv__cuda_move_free(struct ckv_cuda_move *move) {
        free(move);
        return NULL;
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

        if (!ckv__cuda_load(&move->load, device, group, move->group, move->part))
                return false;
        p = move->load.p;
        if (!send_batches(move, device, &p.rows_most))
                return false;
        bytes = bytes_of_part(group, p.rows_most);
        in_time = (double)slice_nsec / (device->nsec_per_byte * bytes);
        /* columns are the second dimension of a grid, which has 65,535 at most */
        parts = CKV_MIN(move->load.end - move->part, UINT64_C(65535) / CKV__CUDA_LOAD_COLUMNS);
        if (in_time < (double)parts)
                parts = in_time > 1 ? (uint64_t)in_time : 1;
        p.columns += (move->part - move->load.first) * CKV__CUDA_LOAD_COLUMNS * sizeof(struct ckv_k_column);
        p.column_count = (uint32_t)parts * CKV__CUDA_LOAD_COLUMNS;
        start = ckv_now_nsec();
        queued = pass ? CKV__CUDA_LAUNCH(device, move_pass, &p) : CKV__CUDA_LAUNCH(device, move, &p);
        if (!queued || !ckv__cuda_finish(device))
                return false;
        CKV_POINT(step_column);
        if (p.rows_most > 0)
                ckv__cuda_learn(&device->nsec_per_byte, (double)parts * bytes, ckv_now_nsec() - start, slice_nsec);
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

                for (uint32_t k = 0; ckv__cuda_moves(group) && k < group->kept_count; k++)
                        if (group->destination.entries)
                                batches[k] = ckv_steps_batch(job, group, &group->kept[k], move->step);
                        else
                                batches[k] = ckv_batch_next(&group->kept[k], job->steps.batch_rows, &batches[k]);
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

                while (move->group < job->group_count && move->part >= ckv__cuda_load_parts(&job->groups[move->group])) {
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
