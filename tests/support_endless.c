/*
 * Time for tests that need some: every row and query row is the same 256 bytes
 * of zeros, so a million rows cost nothing but arithmetic.  A soft cap keeps
 * them off the fast kernels, which would be through too soon.
 */
#include "tests/support_endless.h"

#include <check.h>
#include <stdlib.h>

void endless_init(struct endless *e, uint32_t rows, uint32_t q_heads, uint64_t fair_key) {
        struct ckv_policy asked = { .softcap = 30 };
        struct ckv_policy_fault fault;
        struct ckv_job_group *group;
        uint32_t *entries = calloc(1, sizeof(*entries));

        e->job = ckv_job_new(1);
        e->bytes = calloc(64, 4);
        ck_assert(e->job && e->bytes && entries);
        group = &e->job->groups[0];
        ck_assert(ckv_policy_resolve(&asked, &group->policy, &fault));
        group->kv_heads = 1;
        group->q_heads = q_heads;
        group->head_dim_k = group->head_dim_v = 64;
        group->table = (struct ckv_row_table){ .entries = entries, .tokens_per_block = rows };
        group->layers = calloc(1, sizeof(*group->layers));
        ck_assert_ptr_nonnull(group->layers);
        group->layer_count = 1;
        group->layers[0].k = (struct ckv_plane){
                .base = e->bytes, .token = { .tile = 1 }, .dim = { .tile = 1, .outer = 4 }, .dtype = CKV_DTYPE_F32, .dims = 64,
        };
        group->layers[0].query = e->bytes;
        group->selection.rows = rows;
        group->selection.keep_ratio = 500000;
        e->job->queries = (struct ckv_job_queries){ .dtype = CKV_DTYPE_F32, .rows = 32, .last_row = rows - 1 };
        e->job->deadline_nsec = UINT64_MAX;
        e->job->fair_key = fair_key;
}

void endless_deinit(struct endless *e) {
        e->job = ckv_job_free(e->job);
        free(e->bytes);
}
