/*
 * Random jobs: shapes, layouts, types, policies and values from one number, so
 * that the same job can be made twice, once for the reference and once for a
 * backend, and a failure can be repeated by its number.
 *
 * Every plane has an allocation of its own whose bytes are compared whole.
 * Bytes that are no element of a row of the sequence start as 0xff, which is
 * NaN in every float type: who computes with them shows it.
 */
#ifndef CKV_TESTS_SUPPORT_RANDOM_H
#define CKV_TESTS_SUPPORT_RANDOM_H

#include "kernels/job.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct dice {
        uint64_t state;
};

/* dice_roll() - 0 .. n-1; dice_normal() - about normal, mean 0, deviation 1, never beyond 6 */
uint32_t dice_roll(struct dice *dice, uint32_t n);
float dice_normal(struct dice *dice);

/* What is fixed; 0 or NULL leaves it to chance. */
struct random_shape {
        uint32_t groups, layers, rows, kv_heads, per_group, dims;
        enum ckv_dtype dtype;           /* of K and V */
        bool contiguous;                /* [block, token, head, dim] without gaps, blocks of 16 */
        bool no_ties;                   /* no row is a copy of another */
        bool own_tables;                /* table_seed decides about block order alone */
        bool copy_out;                  /* with a destination for all rows, of blocks or of slots, whatever the source has */
        bool lengths;                   /* each group has a length of its own, and the newest query sits at the end of each */
        bool given;                     /* some groups bring their kept set, and have no queries */
        uint64_t table_seed;
        const struct ckv_policy *asked; /* resolved here; aborts the test if it is not legal */
        uint32_t keep_ratio, max_tokens;
};

struct random_memory {
        uint8_t *bytes;
        size_t size;
};

struct random_job {
        struct ckv_job *job;
        struct random_memory *memory;   /* planes, then queries */
        uint32_t memory_count;
};

/* random_job_new() - aborts the test when out of memory */
struct random_job *random_job_new(uint64_t seed, const struct random_shape *shape);
struct random_job *random_job_free(struct random_job *random);

/* random_element() - address of one element of a plane */
uint8_t *random_element(const struct ckv_job_group *group, const struct ckv_plane *plane, uint32_t row, uint32_t head, uint32_t x);

/* random_store() - a value as an element: F32, F16 (magnitudes 2^-13 to 2^15, and 0), BF16, F8_E4M3 (to 8) or I8 */
void random_store(uint8_t *to, enum ckv_dtype dtype, float value);

#endif
