/*
 * The backends that the conformance suites run, and what it means for one to
 * equal the reference: PLAN in outcome, failure, budget and kept rows (which
 * may differ inside the gap band of R32), MOVE in every byte.
 */
#ifndef CKV_TESTS_SUPPORT_SUBJECT_H
#define CKV_TESTS_SUPPORT_SUBJECT_H

#include "kernels/backend.h"
#include "tests/support_random.h"

#include <stdint.h>

struct subject {
        const char *name;
        const struct ckv_backend_ops *ops;
        struct ckv_backend_options options;
};

enum { SUBJECTS = 2 };
extern const struct subject subjects[SUBJECTS];

/* subject_open() - aborts the test on failure; close with subject->ops->close() */
struct ckv_backend *subject_open(const struct subject *subject);

/* subject_run() - one stage of a job, start to end */
void subject_run(const struct subject *subject, struct ckv_backend *backend, struct ckv_job *job, enum ckv_stage stage);

/**
 * subject_compare_plans() - asserts that a plan is the reference's
 * @seed: named when it is not
 *
 * Return: kept sets that differ inside the band.
 */
uint32_t subject_compare_plans(const struct subject *subject, uint64_t seed, const struct ckv_job *reference,
                               const struct ckv_job *fast);

/* subject_compare_moves() - both move the reference's rows, the backend in steps if @seed is odd; asserts that all bytes of all
 * allocations are equal, and the count of steps */
void subject_compare_moves(const struct subject *subject, struct ckv_backend *backend, uint64_t seed,
                           struct random_job *reference, struct random_job *fast);

/* What became of random jobs. */
struct tally {
        uint32_t planned, moved, failed, within;        /* jobs, groups, jobs, kept sets inside the band */
        uint32_t contrasted;            /* groups whose scores have contrast */
        uint32_t left_out;              /* jobs that the backend does not take */
};

/* subject_run_random() - one random job through the backend and through the reference; asserts that they come out the same, and
 * that one which the backend does not take is refused as takes() says */
void subject_run_random(const struct subject *subject, struct ckv_backend *backend, uint64_t seed, const struct random_shape *shape,
                        struct tally *tally);

#endif
