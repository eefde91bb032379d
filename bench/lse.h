/*
 * The log-sum-exp of a job's queries, which an engine's attention would have.
 */
#ifndef CKV_BENCH_LSE_H
#define CKV_BENCH_LSE_H

#include "kernels/job.h"

/* bench_lse() - of all layers of the first group, by the queries that are given: [layers][q_heads][queries.rows] */
void bench_lse(const struct ckv_job *job, float *ret_lse);

#endif
