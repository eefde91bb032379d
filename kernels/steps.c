/*
 * Batches and steps of a move in place.
 *
 * The rule is greedy, so it has one answer: core, device and client cut the
 * same kept rows into the same batches without telling each other more than
 * batch_rows.
 *
 * A batch is found from the one before by galloping over the runs: a set of
 * half a million runs that needs five steps is not read to find them.  The
 * event loop counts, between the stages of a job, and has no time to lose.
 */
#include "kernels/steps.h"

#include "base/macros.h"
#include "base/points.h"

/* ThreadSanitizer does not know fences; nothing it looks for depends on this one */
static void fence(void) {
#ifndef __SANITIZE_THREAD__
        atomic_thread_fence(memory_order_seq_cst);
#endif
}

/* Runs at the front whose rows stay */
static size_t stay_runs(const struct ckv_kept *kept) {
        size_t i = 0;

        while (i < kept->run_count && kept->runs[i].src == kept->runs[i].dst)
                i++;
        return i;
}

/* The batch that begins with row @begin, which @run holds */
static struct ckv_batch batch_at(const struct ckv_kept *kept, uint32_t batch_rows, size_t run, uint32_t begin) {
        uint32_t end = kept->count;

        if (run < kept->run_count)
                end = CKV_MIN(end, kept->runs[run].src + (begin - kept->runs[run].dst));
        if (batch_rows > 0 && end - begin > batch_rows)
                end = begin + batch_rows;
        return (struct ckv_batch){ .begin = begin, .end = end, .run = run };
}

uint32_t ckv_kept_stay(const struct ckv_kept *kept) {
        size_t run = stay_runs(kept);

        return run < kept->run_count ? kept->runs[run].dst : kept->count;
}

size_t ckv_kept_run(const struct ckv_kept *kept, size_t from, uint32_t row) {
        size_t low = from, step = 1, high;

        if (row >= kept->count)
                return kept->run_count;
        while (step < kept->run_count - low && kept->runs[low + step].dst <= row) {
                low += step;
                step *= 2;
        }
        high = CKV_MIN(low + step, kept->run_count);
        while (high - low > 1) {
                size_t middle = low + (high - low) / 2;

                if (kept->runs[middle].dst <= row)
                        low = middle;
                else
                        high = middle;
        }
        return low;
}

struct ckv_batch ckv_batch_first(const struct ckv_kept *kept, uint32_t batch_rows) {
        return batch_at(kept, batch_rows, stay_runs(kept), ckv_kept_stay(kept));
}

struct ckv_batch ckv_batch_next(const struct ckv_kept *kept, uint32_t batch_rows, const struct ckv_batch *batch) {
        return batch_at(kept, batch_rows, ckv_kept_run(kept, batch->run, batch->end), batch->end);
}

/* The whole move of one kept set */
static struct ckv_batch batch_whole(const struct ckv_kept *kept, bool in_place) {
        struct ckv_batch batch = { .end = kept->count };

        if (in_place) {
                batch.run = stay_runs(kept);
                batch.begin = ckv_kept_stay(kept);
        }
        return batch;
}

struct ckv_batch ckv_steps_batch(const struct ckv_job *job, const struct ckv_job_group *group, const struct ckv_kept *kept,
                                 uint32_t step) {
        bool in_place = !group->destination.entries;
        struct ckv_batch batch;

        if (job->steps.count == 0 || (!in_place && step == job->steps.first))
                return batch_whole(kept, in_place);
        if (!in_place)
                return (struct ckv_batch){ .begin = kept->count, .end = kept->count, .run = kept->run_count };
        batch = ckv_batch_first(kept, job->steps.batch_rows);
        for (uint32_t p = 0; p < step && batch.begin < batch.end; p++)
                batch = ckv_batch_next(kept, job->steps.batch_rows, &batch);
        return batch;
}

void ckv_steps_finish(const struct ckv_job *job, uint32_t step) {
        CKV_POINT(step_written);
        if (job->steps.count == 0)
                return;
        atomic_store_explicit(job->steps.done, step + 1, memory_order_release);
        /* a release store lets later stores be moved in front of it, and a count that is late loses data */
        fence();
        CKV_POINT(step_counted);
}

/* Batches of one kept set, not beyond @most */
static uint32_t count_batches(const struct ckv_kept *kept, uint32_t batch_rows, uint32_t most) {
        struct ckv_batch batch = ckv_batch_first(kept, batch_rows);
        uint32_t n = 0;

        for (; n < most && batch.begin < batch.end; n++)
                batch = ckv_batch_next(kept, batch_rows, &batch);
        return n;
}

uint32_t ckv_steps_count(const struct ckv_job *job, uint32_t batch_rows, uint32_t limit) {
        uint32_t most = limit == UINT32_MAX ? limit : limit + 1, steps = 0;

        for (uint32_t i = 0; i < job->group_count && steps < most; i++) {
                const struct ckv_job_group *group = &job->groups[i];

                if (group->budget.kept_all != CKV_DROPPED || group->destination.entries)
                        continue;
                for (uint32_t k = 0; k < group->kept_count && steps < most; k++)
                        steps = CKV_MAX(steps, count_batches(&group->kept[k], batch_rows, most));
        }
        return steps;
}
