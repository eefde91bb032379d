/*
 * The generated tensors of algorithm.md 6.4, and their placing into a cache of
 * any layout.  Whatever is not an element of the sequence is filled with 0xff
 * bytes, which read as NaN in every float type: who touches it shows it.
 */
#ifndef CKV_TESTS_SUPPORT_MODEL_H
#define CKV_TESTS_SUPPORT_MODEL_H

#include "kernels/job.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct model_shape {
        uint32_t rows, dims, q_heads, kv_heads, window;         /* the same dims for K, Q and V */
};

/* Layers of generated values; layer 0 is that of section 6.4 for its shape. */
struct model {
        struct model_shape shape;
        uint32_t layers;
        float *k, *v;           /* [layers][kv_heads][rows][dims] */
        float *q;               /* [layers][q_heads][window][dims] */
};

/* Where rows lie. All zero: one f32 block that holds everything, [token, head, dim]. */
struct model_layout {
        enum ckv_dtype dtype;           /* F32 if NONE; F16, BF16, F8_E4M3 (values of 6.4 are exact in all) */
        uint32_t block_tokens;          /* 0 = all rows in one block */
        bool head_major;                /* [head, token, dim] inside a block */
        bool transposed;                /* token innermost: dimensions are not adjacent */
        bool shuffled;                  /* blocks (by_token: slots) in a scrambled order, with unused ones between */
        bool by_token;
        uint32_t padding;               /* elements behind each head of each row */
        uint32_t older_queries;         /* query rows before the window, poisoned */
        uint32_t ring_start;
};

/* A job with one group and the memory it points into. */
struct model_job {
        struct ckv_job *job;
        struct ckv_job_group *group;
        uint8_t *cache, *queries;
        size_t cache_bytes;
};

/* model_init() - generated values for a shape: layer 0 is section 6.4's, others continue. Aborts without memory. */
void model_init(struct model *model, struct model_shape shape, uint32_t layers);

/* model_deinit() - free the values; jobs made of them have their own copy */
void model_deinit(struct model *model);

/**
 * model_job_init() - place a model and make a job of it
 * @asked: resolved here; a policy that does not resolve aborts the test
 *
 * Aborts when out of memory. model_job_deinit() frees everything.
 */
void model_job_init(struct model_job *mj, const struct model *model, const struct model_layout *layout,
                    const struct ckv_policy *asked, uint32_t keep_ratio, uint32_t max_tokens);

/* model_job_deinit() - free the job and the memory it points into */
void model_job_deinit(struct model_job *mj);

/* model_poke() - overwrite all dimensions of (layer, row, head) of K or V with 0xff bytes (NaN) or 0 */
void model_poke(struct model_job *mj, uint32_t layer, bool value, uint32_t row, uint32_t head, uint8_t byte);

#endif
