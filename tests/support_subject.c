/*
 * Every backend that this build has, in the forms that differ: how many
 * threads there are, and how short the slices.
 */
#include "tests/support_subject.h"

#include "kernels/reference.h"
#include "kernels/steps.h"
#include "tests/support_gap.h"

#include <check.h>
#include <inttypes.h>
#include <poll.h>
#include <string.h>

const struct subject subjects[SUBJECTS] = {
        { "cpu, one thread", &ckv_backend_cpu, { .threads = 1, .slice_usec = 2000 } },
        { "cpu, three threads, short slices", &ckv_backend_cpu, { .threads = 3, .slice_usec = 50 } },
};

void subject_run(const struct subject *subject, struct ckv_backend *backend, struct ckv_job *job,
                 enum ckv_stage stage) {
        const struct ckv_backend_ops *ops = subject->ops;
        struct pollfd done = { .fd = ops->wait_fd(backend), .events = POLLIN };

        job->stage = stage;
        ops->submit(backend, job);
        ck_assert_int_eq(poll(&done, 1, 60000), 1);
        ck_assert_ptr_eq(ops->reap(backend), job);
        ck_assert_ptr_null(ops->reap(backend));
        ck_assert_int_eq(poll(&done, 1, 0), 0);
}

struct ckv_backend *subject_open(const struct subject *subject) {
        struct ckv_backend *backend = NULL;

        ck_assert_int_eq(subject->ops->open(&subject->options, &backend), 0);
        return backend;
}

uint32_t subject_compare_plans(const struct subject *subject, uint64_t seed, const struct ckv_job *reference,
                               const struct ckv_job *fast) {
        uint32_t within = 0;

        ck_assert_msg(reference->outcome == fast->outcome, "%s, job %" PRIu64 ": outcome %d instead of %d",
                      subject->name, seed, (int)fast->outcome, (int)reference->outcome);
        if (reference->outcome != CKV_JOB_OK) {
                ck_assert_uint_eq(reference->fail_group, fast->fail_group);
                ck_assert_uint_eq(reference->fail_layer, fast->fail_layer);
                ck_assert_uint_eq(reference->fail_unit, fast->fail_unit);
                if (reference->outcome == CKV_JOB_SCORES_SIZE)
                        ck_assert_uint_eq(reference->fail_need, fast->fail_need);
                return 0;
        }
        for (uint32_t i = 0; i < reference->group_count; i++) {
                const struct ckv_job_group *ours = &reference->groups[i], *theirs = &fast->groups[i];

                ck_assert_mem_eq(&ours->budget, &theirs->budget, sizeof(ours->budget));
                ck_assert_uint_eq(ours->kept_count, theirs->kept_count);
                for (uint32_t k = 0; k < ours->kept_count; k++) {
                        enum gap gap = gap_judge(reference, i, k, &theirs->kept[k]);

                        ck_assert_msg(gap != GAP_OUTSIDE, "%s, job %" PRIu64 ", group %u, set %u: other rows kept",
                                      subject->name, seed, i, k);
                        within += gap == GAP_WITHIN;
                }
        }
        return within;
}

void subject_compare_moves(const struct subject *subject, struct ckv_backend *backend, uint64_t seed,
                           struct random_job *reference, struct random_job *fast) {
        const uint32_t batch_rows = (uint32_t)(seed % 4) * 20;
        _Atomic uint32_t done = 0;

        for (uint32_t i = 0; i < reference->job->group_count; i++)
                for (uint32_t k = 0; k < reference->job->groups[i].kept_count; k++) {
                        ckv_kept_deinit(&fast->job->groups[i].kept[k]);
                        ck_assert_int_eq(
                                ckv_kept_copy(&reference->job->groups[i].kept[k], &fast->job->groups[i].kept[k]), 0);
                }
        ckv_ref_run_move(reference->job);
        if (seed % 2)
                fast->job->steps = (struct ckv_job_steps){
                        .batch_rows = batch_rows, .count = ckv_steps_count(fast->job, batch_rows, UINT32_MAX), .done = &done };
        subject_run(subject, backend, fast->job, CKV_STAGE_MOVE);
        ck_assert_int_eq(fast->job->outcome, CKV_JOB_OK);
        ck_assert_uint_eq(done, fast->job->steps.count);
        fast->job->steps = (struct ckv_job_steps){ 0 };
        for (uint32_t i = 0; i < reference->memory_count; i++)
                ck_assert_msg(memcmp(reference->memory[i].bytes, fast->memory[i].bytes, reference->memory[i].size) == 0,
                              "%s, job %" PRIu64 ": other bytes in allocation %u", subject->name, seed, i);
        for (uint32_t i = 0; i < reference->job->group_count; i++)
                ck_assert_uint_eq(reference->job->groups[i].bytes_moved, fast->job->groups[i].bytes_moved);
}

/* Return: false: the backend does not take it, and said so. */
static bool run_taken(const struct subject *subject, struct ckv_backend *backend, struct ckv_job *job) {
        enum ckv_policy_field field;
        uint32_t group;
        bool taken = !subject->ops->takes || subject->ops->takes(job, &group, &field);

        subject_run(subject, backend, job, CKV_STAGE_PLAN);
        if (taken)
                return true;
        ck_assert_int_eq(job->outcome, CKV_JOB_NOT_ON_DEVICE);
        ck_assert_uint_eq(job->fail_group, group);
        ck_assert_int_eq(job->fail_field, field);
        return false;
}

void subject_run_random(const struct subject *subject, struct ckv_backend *backend, uint64_t seed, const struct random_shape *shape,
                        struct tally *tally) {
        struct random_job *reference = random_job_new(seed, shape), *fast = random_job_new(seed, shape);

        if (!run_taken(subject, backend, fast->job)) {
                tally->left_out++;
        } else {
                ck_assert_int_eq(ckv_ref_run_plan(reference->job), 0);
                tally->within += subject_compare_plans(subject, seed, reference->job, fast->job);
                tally->planned++;
                for (uint32_t i = 0; i < fast->job->group_count; i++) {
                        struct ckv_query_rows part = ckv_ref_query_rows(fast->job, &fast->job->groups[i]);

                        tally->contrasted += part.contrast_end > part.contrast_first;
                }
                if (reference->job->outcome == CKV_JOB_OK) {
                        subject_compare_moves(subject, backend, seed, reference, fast);
                        for (uint32_t i = 0; i < reference->job->group_count; i++)
                                tally->moved += reference->job->groups[i].bytes_moved > 0;
                } else
                        tally->failed++;
        }
        (void)random_job_free(reference);
        (void)random_job_free(fast);
}
