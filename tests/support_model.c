/*
 * Values are multiples of 1/8 below 2, so the encoders below can be exact and
 * independent of the decoders under test.
 */
#include "tests/support_model.h"

#include "base/macros.h"

#include <check.h>
#include <math.h>
#include <string.h>

static void fill(float *values, size_t n, uint64_t *s) {
        for (size_t i = 0; i < n; i++) {
                *s = (1103515245 * *s + 12345) % (UINT64_C(1) << 31);
                values[i] = (float)((int)(*s / 65536 % 31) - 15) / 8;
        }
}

static void *must_alloc(size_t bytes) {
        void *p = malloc(bytes + 1);

        ck_assert_ptr_nonnull(p);
        return p;
}

void model_init(struct model *model, struct model_shape shape, uint32_t layers) {
        size_t keys = (size_t)shape.kv_heads * shape.rows * shape.dims,
               queries = (size_t)shape.q_heads * shape.window * shape.dims;
        uint64_t s = 1;

        *model = (struct model){ .shape = shape, .layers = layers };
        model->k = must_alloc(layers * keys * sizeof(float));
        model->v = must_alloc(layers * keys * sizeof(float));
        model->q = must_alloc(layers * queries * sizeof(float));
        for (uint32_t l = 0; l < layers; l++) {
                fill(model->k + l * keys, keys, &s);
                fill(model->v + l * keys, keys, &s);
                fill(model->q + l * queries, queries, &s);
        }
}

void model_deinit(struct model *model) {
        free(model->k);
        free(model->v);
        free(model->q);
}

/* sign, exponent, mantissa of a value that is exact in the type */
static uint32_t encode(float value, int exponent_bits, int mantissa_bits) {
        int e, bias = (1 << (exponent_bits - 1)) - 1;
        float m = frexpf(fabsf(value), &e);             /* [0.5, 1) */
        uint32_t sign = signbit(value) ? 1U << (exponent_bits + mantissa_bits) : 0;

        if (value == 0)
                return sign;
        return sign | (uint32_t)(e - 1 + bias) << mantissa_bits | (uint32_t)((2 * m - 1) * (float)(1 << mantissa_bits));
}

static void store(uint8_t *to, enum ckv_dtype dtype, float value) {
        uint32_t bits = dtype == CKV_DTYPE_F32 ? encode(value, 8, 23) : dtype == CKV_DTYPE_F16 ? encode(value, 5, 10) :
                        dtype == CKV_DTYPE_BF16 ? encode(value, 8, 7) : encode(value, 4, 3);

        memcpy(to, &bits, ckv_dtype_bytes(dtype));
}

/* One plane of one layer in a block; all planes of all layers of a block lie together. */
static struct ckv_plane plane_of(const struct model *model, const struct model_layout *layout, uint32_t tokens,
                                 uint32_t which, uint64_t *ret_bytes) {
        enum ckv_dtype dtype = layout->dtype == CKV_DTYPE_NONE ? CKV_DTYPE_F32 : layout->dtype;
        uint64_t e = ckv_dtype_bytes(dtype), heads = model->shape.kv_heads,
                 head = (model->shape.dims + layout->padding) * e;
        struct ckv_plane plane = { .dtype = dtype, .dims = model->shape.dims, .scale = 1 };
        uint64_t plane_bytes = tokens * heads * head;

        plane.token.tile = plane.dim.tile = 1;
        plane.dim.outer = e;
        plane.head_stride = layout->head_major || layout->transposed ? tokens * head : head;
        plane.token.outer = layout->head_major ? head : heads * head;
        if (layout->transposed) {
                plane.token.outer = e;
                plane.dim.outer = tokens * e;
        }
        plane.block_stride = plane_bytes * 2 * model->layers;
        plane.base = (uint8_t *)(uintptr_t)(which * plane_bytes);       /* moved to the allocation by the caller */
        *ret_bytes = plane.block_stride;
        return plane;
}

/* Row table: blocks or slots, each used at most once. Return: number of blocks that must exist. */
static uint32_t make_table(struct ckv_row_table *table, const struct model_layout *layout, uint32_t rows) {
        uint32_t tokens = layout->block_tokens ? layout->block_tokens : rows, n, blocks;
        uint32_t *entries;

        n = layout->by_token ? rows : (rows + tokens - 1) / tokens;
        entries = must_alloc(n * sizeof(*entries));
        for (uint32_t i = 0; i < n; i++)
                entries[i] = layout->shuffled ? (i * 7 + 3) % n * 2 + 1 : i;    /* n is no multiple of 7 in the tests */
        *table = (struct ckv_row_table){ .entries = entries, .by_token = layout->by_token, .tokens_per_block = tokens };
        blocks = layout->by_token ? (2 * n + tokens - 1) / tokens : 2 * n;
        return blocks + 1;
}

static uint8_t *element(const struct ckv_job_group *group, const struct ckv_plane *plane, uint32_t row, uint32_t head,
                        uint32_t x) {
        return ckv_plane_row(plane, &group->table, row, head) + ckv_axis_at(&plane->dim, x);
}

static void place_keys(struct model_job *mj, const struct model *model) {
        const struct model_shape *s = &model->shape;

        for (uint32_t l = 0; l < model->layers; l++)
                for (uint32_t g = 0; g < s->kv_heads; g++)
                        for (uint32_t j = 0; j < s->rows; j++)
                                for (uint32_t x = 0; x < s->dims; x++) {
                                        const struct ckv_job_layer *layer = &mj->group->layers[l];
                                        size_t at = (((size_t)l * s->kv_heads + g) * s->rows + j) * s->dims + x;

                                        store(element(mj->group, &layer->k, j, g, x), layer->k.dtype, model->k[at]);
                                        store(element(mj->group, &layer->v, j, g, x), layer->v.dtype, model->v[at]);
                                }
}

/* Queries are f32 [layer][row][head][dims], older rows first and left poisoned. */
static void place_queries(struct model_job *mj, const struct model *model, const struct model_layout *layout) {
        const struct model_shape *s = &model->shape;
        uint32_t rows = s->window + layout->older_queries;
        size_t row_bytes = (size_t)s->q_heads * s->dims * sizeof(float), bytes = model->layers * rows * row_bytes;

        mj->queries = must_alloc(bytes);
        memset(mj->queries, 0xff, bytes);
        mj->job->queries = (struct ckv_job_queries){
                .dtype = CKV_DTYPE_F32,
                .rows = rows,
                .ring_start = layout->ring_start,
                .head_stride = s->dims * sizeof(float),
                .row_stride = row_bytes,
                .last_row = s->rows - 1,
        };
        for (uint32_t l = 0; l < model->layers; l++) {
                uint8_t *base = mj->queries + l * rows * row_bytes;

                mj->group->layers[l].query = base;
                for (uint32_t h = 0; h < s->q_heads; h++)
                        for (uint32_t t = 0; t < s->window; t++) {
                                uint32_t slot = (layout->ring_start + layout->older_queries + t) % rows;

                                memcpy(base + slot * row_bytes + h * s->dims * sizeof(float),
                                       model->q + (((size_t)l * s->q_heads + h) * s->window + t) * s->dims,
                                       s->dims * sizeof(float));
                        }
        }
}

void model_job_init(struct model_job *mj, const struct model *model, const struct model_layout *layout,
                    const struct ckv_policy *asked, uint32_t keep_ratio, uint32_t max_tokens) {
        struct ckv_policy_fault fault;
        struct ckv_job_group *group;
        uint32_t blocks;
        uint64_t block_bytes = 0;

        mj->job = ckv_job_new(1);
        ck_assert_ptr_nonnull(mj->job);
        mj->group = group = &mj->job->groups[0];
        ck_assert_msg(ckv_policy_resolve(asked, &group->policy, &fault), "%s", ckv_policy_field_name(fault.field));
        blocks = make_table(&group->table, layout, model->shape.rows);
        group->layers = must_alloc(model->layers * sizeof(*group->layers));
        for (uint32_t l = 0; l < model->layers; l++)
                group->layers[l] = (struct ckv_job_layer){
                        .number = 10 + 2 * l,
                        .k = plane_of(model, layout, group->table.tokens_per_block, 2 * l, &block_bytes),
                        .v = plane_of(model, layout, group->table.tokens_per_block, 2 * l + 1, &block_bytes),
                };
        mj->cache_bytes = blocks * block_bytes;
        mj->cache = must_alloc(mj->cache_bytes);
        memset(mj->cache, 0xff, mj->cache_bytes);
        for (uint32_t l = 0; l < model->layers; l++) {
                group->layers[l].k.base = mj->cache + (uintptr_t)group->layers[l].k.base;
                group->layers[l].v.base = mj->cache + (uintptr_t)group->layers[l].v.base;
        }
        group->layer_count = model->layers;
        group->kv_heads = model->shape.kv_heads;
        group->q_heads = model->shape.q_heads;
        group->head_dim_k = group->head_dim_v = model->shape.dims;
        group->selection.rows = model->shape.rows;
        group->selection.keep_ratio = keep_ratio;
        group->selection.max_tokens = max_tokens;
        place_keys(mj, model);
        place_queries(mj, model, layout);
}

void model_job_deinit(struct model_job *mj) {
        mj->job = ckv_job_free(mj->job);
        free(mj->cache);
        free(mj->queries);
}

void model_poke(struct model_job *mj, uint32_t layer, bool value, uint32_t row, uint32_t head, uint8_t byte) {
        const struct ckv_plane *plane = value ? &mj->group->layers[layer].v : &mj->group->layers[layer].k;

        for (uint32_t x = 0; x < plane->dims; x++)
                memset(element(mj->group, plane, row, head, x), byte, ckv_dtype_bytes(plane->dtype));
}
