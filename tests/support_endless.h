/*
 * A job that is long to compute and small to hold: all rows are the same bytes,
 * because tokens have no distance.  Not for moving.
 */
#ifndef CKV_TESTS_SUPPORT_ENDLESS_H
#define CKV_TESTS_SUPPORT_ENDLESS_H

#include "kernels/job.h"

#include <stdint.h>

struct endless {
        struct ckv_job *job;
        uint8_t *bytes;
};

/* endless_init() - one layer, one KV head of 64 dimensions, profile default; aborts the test when out of memory */
void endless_init(struct endless *e, uint32_t rows, uint32_t q_heads, uint64_t fair_key);
void endless_deinit(struct endless *e);

#endif
