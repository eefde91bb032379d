/*
 * The golden cases of tests/data as jobs, for every test that runs them
 * through some backend: the scalar reference alone, or all of them.
 */
#ifndef CKV_TESTS_SUPPORT_GOLDEN_H
#define CKV_TESTS_SUPPORT_GOLDEN_H

#include "kernels/job.h"
#include "tests/support_safetensors.h"

#include <stdbool.h>
#include <stdint.h>

struct golden_range {
        uint32_t first, end;            /* half open */
};

struct golden_case {
        uint32_t line;                  /* of its file of cases */
        uint32_t file;                  /* index into golden.files */
        uint32_t layers[8], layer_count;        /* the model's layer numbers */
        uint32_t query_rows;            /* newest rows of queries that are given; 0: all of the file */
        struct ckv_policy asked;
        uint32_t keep_ratio, max_tokens;
        struct golden_range *spans, *kept;
        uint32_t span_count, kept_ranges, kept_count;
};

struct golden {
        struct st_file files[2];        /* needle-1k, novel-4k */
        struct golden_case *cases;
        uint32_t count;
};

/* golden_open() - read a file of cases, "golden.json" or "golden_vote.json", and map both tensor files. Return: 0 or -errno;
 * -EBADMSG: an unknown parameter */
int golden_open(const char *name, struct golden *ret_golden);

/* golden_close() - unmap and free; a zeroed struct is fine */
void golden_close(struct golden *golden);

/**
 * golden_job() - a case as a job of one group with the layers of the case
 * @golden:    its files are what the job's planes point at: read only, so plan and never move
 * @ret_job:   free with ckv_job_free()
 * @ret_fault: written when resolving fails
 *
 * Return: 0 or -errno; -EINVAL: the policy does not resolve.
 */
int golden_job(const struct golden *golden, const struct golden_case *c, struct ckv_job **ret_job,
               struct ckv_policy_fault *ret_fault);

/* golden_equal() - does @kept hold exactly the rows of the case? */
bool golden_equal(const struct golden_case *c, const struct ckv_kept *kept);

#endif
