/*
 * The batches of a move in place, and the steps of a job: what makes a torn
 * move repairable (reliability.md 8.3, kernels.md 6.1).
 *
 * Row i of the result is row k[i] of the kept rows, k[i] >= i.  Leading rows
 * with k[i] = i stay and are never written.  The rest of the destination rows
 * is cut in ascending order into batches [begin, end), each as long as it may
 * be: end <= k[begin], end - begin <= batch_rows (if that is not 0), end <=
 * the number of kept rows.  A batch reads rows >= end only, so it may be done
 * in any order, in part, and again.
 *
 * Step p of a job is batch p of every kept set that moves in place.  Whoever
 * keeps "rows of step p, count = p + 1, rows of step p + 1" in this order can
 * be killed anywhere, and anybody can go on from the count.
 *
 * All functions take kept rows as ckv_select() makes them: runs ascending and
 * not empty, dst the sum of the lengths before, src >= dst.  Runs that came
 * from a stranger are checked before they get here.
 */
#ifndef CKV_KERNELS_STEPS_H
#define CKV_KERNELS_STEPS_H

#include "kernels/job.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ckv_batch {
        uint32_t begin, end;            /* destination rows; begin = end: there is no such batch */
        size_t run;                     /* the run with destination row begin; run_count if there is none */
};

/* ckv_kept_stay() - rows at the front that are already where they belong: they are never written in place */
uint32_t ckv_kept_stay(const struct ckv_kept *kept);

/* ckv_kept_run() - the run that holds destination row @row, at run @from or behind it; run_count if there is no such row. Time:
 * logarithm of the runs between the two. */
size_t ckv_kept_run(const struct ckv_kept *kept, size_t from, uint32_t row);

/* ckv_batch_first() - batch 0 of one kept set; takes time only for runs that stay */
struct ckv_batch ckv_batch_first(const struct ckv_kept *kept, uint32_t batch_rows);

/* ckv_batch_next() - the batch after @batch; time: logarithm of the runs that @batch covers */
struct ckv_batch ckv_batch_next(const struct ckv_kept *kept, uint32_t batch_rows, const struct ckv_batch *batch);

/* ckv_batch_part() - what of @run lies in @batch; runs [batch.run, ..) with dst < batch.end have a part of at least a row */
static inline struct ckv_run ckv_batch_part(const struct ckv_batch *batch, const struct ckv_run *run) {
        uint32_t begin = run->dst > batch->begin ? run->dst : batch->begin;
        uint32_t end = run->dst + run->len < batch->end ? run->dst + run->len : batch->end;

        return (struct ckv_run){ .src = run->src + (begin - run->dst), .len = end - begin, .dst = begin };
}

/**
 * ckv_steps_batch() - what of one kept set of a job moves in step @step
 * @kept: a set of @group
 *
 * In a job without steps there is one step, and everything moves in it.  Where it is in doubt (a group with a destination
 * in a job with steps) everything moves in the first step, job->steps.first.  Time: logarithm of the runs, for each step
 * before; whoever goes through many keeps the batch and calls ckv_batch_next().
 */
struct ckv_batch ckv_steps_batch(const struct ckv_job *job, const struct ckv_job_group *group, const struct ckv_kept *kept,
                                 uint32_t step);

/* ckv_steps_end() - the step behind the last: steps run from job->steps.first to here; 1 in a job without steps */
static inline uint32_t ckv_steps_end(const struct ckv_job *job) {
        return job->steps.count > 0 ? job->steps.count : 1;
}

/**
 * ckv_steps_finish() - say that all rows of step @step are written, before any row of the next one is
 *
 * All threads that wrote rows have been joined.  Nothing happens in a job without steps.
 */
void ckv_steps_finish(const struct ckv_job *job, uint32_t step);

/**
 * ckv_steps_count() - steps of a whole job: the most batches that any of its kept sets has
 * @job:        planned with CKV_JOB_OK
 * @batch_rows: most rows of a step; 0: no cap
 * @limit:      counting ends there; UINT32_MAX: never
 *
 * Groups with a destination and groups that keep all their rows have no batches.
 *
 * Return: the number; limit + 1 stands for any number above @limit.  0: nothing moves in place.
 */
uint32_t ckv_steps_count(const struct ckv_job *job, uint32_t batch_rows, uint32_t limit);

#endif
