/*
 * A job for the CPU device out of a case: keys and queries that look random,
 * more of them than caches hold.
 */
#ifndef CKV_BENCH_PROBLEM_H
#define CKV_BENCH_PROBLEM_H

#include "bench/cases.h"

#include <stddef.h>
#include <stdint.h>

/* Memory full of numbers of one type that are normally distributed, read by whatever shape comes. */
struct bench_pool {
        uint8_t *bytes;
        size_t size;
        enum ckv_dtype dtype;
};

/* bench_pool_fill() - @pool->bytes and size are there; the numbers depend on nothing but their place */
void bench_pool_fill(struct bench_pool *pool, enum ckv_dtype dtype);

/* One case at one length, and everything of it that jobs share. */
struct bench_problem {
        const struct bench_case *of;
        uint32_t tokens, layers, query_rows;
        size_t layer_bytes;             /* of K */
        uint8_t *queries;               /* [layers][q_heads][query_rows][dims] */
        float **lse;                    /* [places] of [layers][q_heads][query_rows], found when a job wants it; NULL: not given */
        size_t places;                  /* of the pool, for the K of a job */
        const struct bench_pool *pool;
};

/**
 * bench_problem_layers() - how many layers a job is to score, so that it takes long enough to be measured
 * @job_tokens: rows of all layers together, for as many queries as the profile default has
 * @pool_bytes: of K there are
 *
 * Fewer queries, more layers, as many as fit; without queries all that fit, because K is then read as fast as memory gives it.
 *
 * Return: at least 1
 */
uint32_t bench_problem_layers(const struct bench_case *c, uint32_t tokens, uint32_t job_tokens, size_t pool_bytes);

/**
 * bench_problem_init() - make queries for a case
 * @layers: that one job scores
 * @pool:   borrowed; of the type of the case, and no smaller than the K of all layers
 */
void bench_problem_init(const struct bench_case *c, uint32_t tokens, uint32_t layers, const struct bench_pool *pool,
                        struct bench_problem *ret_problem);
void bench_problem_deinit(struct bench_problem *problem);

/**
 * bench_problem_keys() - the K of a job: layers * layer_bytes bytes of the pool
 * @turn: jobs of one turn after the other read other places until all of the pool was read
 */
uint8_t *bench_problem_keys(const struct bench_problem *problem, uint32_t turn);

/* bench_problem_job() - a job of CKV_STAGE_PLAN that keeps a fifth; ckv_job_free() */
struct ckv_job *bench_problem_job(const struct bench_problem *problem, uint32_t turn);

/* bench_problem_flops() - of the products of all queries with all rows */
double bench_problem_flops(const struct bench_problem *problem);

/* bench_problem_exponentials() - one for each query and row */
double bench_problem_exponentials(const struct bench_problem *problem);

#endif
