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
        uint32_t line;                  /* of golden.json */
        uint32_t file, layer;           /* index into golden.files; the model's layer number */
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

enum {
        _GOLDEN_E_SUCCESS,
        GOLDEN_E_UNSUPPORTED,           /* ckv_policy_resolve() says CKV_FAULT_UNSUPPORTED */
};

/* golden_open() - read golden.json and map both tensor files. Return: 0 or -errno; -EBADMSG: an unknown parameter */
int golden_open(struct golden *ret_golden);

/* golden_close() - unmap and free; a zeroed struct is fine */
void golden_close(struct golden *golden);

/**
 * golden_job() - a case as a job of one group with one layer
 * @golden:    its files are what the job's planes point at: read only, so plan and never move
 * @ret_job:   free with ckv_job_free()
 * @ret_fault: written when resolving fails
 *
 * Return: 0, GOLDEN_E_UNSUPPORTED, or -errno.
 */
int golden_job(const struct golden *golden, const struct golden_case *c, struct ckv_job **ret_job,
               struct ckv_policy_fault *ret_fault);

/* golden_equal() - does @kept hold exactly the rows of the case? */
bool golden_equal(const struct golden_case *c, const struct ckv_kept *kept);

#endif
