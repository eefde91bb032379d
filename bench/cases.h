/*
 * What is measured: the shapes of models, and ways to ask.
 */
#ifndef CKV_BENCH_CASES_H
#define CKV_BENCH_CASES_H

#include "kernels/job.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum bench_layout {
        BENCH_ROWS_OUTSIDE,     /* [T, H, D] */
        BENCH_HEADS_OUTSIDE,    /* [H, T, D] */
        BENCH_PAGED_16,         /* pages of 16 rows [T, H, D] in any order */
        BENCH_PAGED_128,
};

struct bench_case {
        const char *model;      /* "Llama-3-8B" */
        const char *what;       /* "profile default", "knorm": of the table */
        bool main;              /* of the large table: all lengths, all paths */
        const char *profile;    /* "default": the policy's, by name */
        uint32_t kv_heads, q_heads, dims, window, chunk;
        enum ckv_dtype dtype;   /* of K and of the queries */
        enum bench_layout layout;
        bool lse;               /* the queries come with their log-sum-exp */
        struct ckv_policy asked;        /* window and chunk are added */
};

extern const struct bench_case bench_cases[];
extern const size_t bench_case_count;

/* bench_layout_name() - "[T,H,D]" */
const char *bench_layout_name(enum bench_layout layout);

/* bench_dtype_name() - "bf16" */
const char *bench_dtype_name(enum ckv_dtype dtype);

/* bench_has_queries() - do queries vote? */
bool bench_has_queries(const struct bench_case *c);

/* bench_has_weights() - is its work a product and an exponential for each query and row, so that floor and peak mean something? */
bool bench_has_weights(const struct bench_case *c);

#endif
