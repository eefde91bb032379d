/*
 * The common case in three calls: one sequence, contiguous, in memory of its
 * own.  It is the general interface with the numbers filled in: one group
 * whose blocks are adjacent and together the whole sequence, one plane of keys
 * and one of values for all layers.  Where the parts of a layer lie is free, so that a file can
 * be read into the memory as it is.
 */
#include "base/checked.h"
#include "clients/c/src/client.h"

#include <errno.h>
#include <inttypes.h>

#define BLOCK_MOST_ROWS 65536u
#define MOST_ROWS 1048576u

struct sizes {
        uint64_t element, key_row, query_row;   /* bytes */
};

static struct sizes sizes_of(const struct chunkkv_shape *shape) {
        uint64_t element = shape->dtype == CHUNKKV_DTYPE_F32 ? 4 : 2;

        /* all factors are checked to be small */
        return (struct sizes){
                .element = element, .key_row = element * shape->kv_heads * shape->head_dim,
                .query_row = element * shape->q_heads * shape->head_dim,
        };
}

/* The fewest equal blocks: one, unless that would be too long. */
static uint32_t block_rows(const struct chunkkv_shape *shape) {
        uint32_t rows = CKV_MIN(shape->rows, BLOCK_MOST_ROWS);

        while (shape->rows % rows != 0)
                rows--;
        return rows;
}

static int shape_check(const struct chunkkv_shape *shape, struct chunkkv_error *ret_error) {
        const struct { const char *name; uint32_t value, least, most; } numbers[] = {
                { "layers", shape->layers, 1, 1024 }, { "rows", shape->rows, 1, MOST_ROWS },
                { "kv_heads", shape->kv_heads, 1, 1024 }, { "q_heads", shape->q_heads, 1, 65536 },
                { "head_dim", shape->head_dim, 1, 1024 }, { "query_rows", shape->query_rows, 0, 256 },
        };

        for (size_t i = 0; i < CKV_ARRAY_SIZE(numbers); i++) {
                if (numbers[i].value < numbers[i].least || numbers[i].value > numbers[i].most)
                        return ckv__fault(ret_error, -EINVAL, numbers[i].name,
                                          "must be %" PRIu32 " to %" PRIu32 ", is %" PRIu32, numbers[i].least,
                                          numbers[i].most, numbers[i].value);
        }
        if (shape->dtype != CHUNKKV_DTYPE_F32 && shape->dtype != CHUNKKV_DTYPE_F16 &&
            shape->dtype != CHUNKKV_DTYPE_BF16)
                return ckv__fault(ret_error, -EINVAL, "dtype", "must be F32, F16 or BF16");
        return 0;
}

/* Fills in what the caller left 0. Return: 0 or -EOVERFLOW, and then the bytes of it all. */
static int shape_complete(struct chunkkv_shape *shape, uint64_t *ret_bytes, struct chunkkv_error *ret_error) {
        const struct sizes sizes = sizes_of(shape);
        uint64_t kv_bytes = sizes.key_row * shape->rows, query_bytes = sizes.query_row * shape->query_rows, end, bytes;

        if (!shape->key && !shape->value && !shape->query) {
                shape->value = kv_bytes;
                shape->query = 2 * kv_bytes;
        }
        if (!ckv_add_u64(CKV_MAX(shape->key, shape->value), kv_bytes, &end) ||
            !ckv_add_u64(shape->query, query_bytes, &bytes))
                return ckv__fault(ret_error, -EOVERFLOW, "query", "a layer would end beyond 2^64 bytes");
        end = CKV_MAX(end, bytes);
        if (!shape->layer_stride)
                shape->layer_stride = end;
        if (!ckv_mul_u64(shape->layer_stride, (uint64_t)shape->layers - 1, &bytes) ||
            !ckv_add_u64(bytes, end, &bytes))
                return ckv__fault(ret_error, -EOVERFLOW, "layer_stride", "the layers would end beyond 2^64 bytes");
        *ret_bytes = bytes;
        return 0;
}

static int dense_register(struct chunkkv_client *client, struct chunkkv_dense *dense, struct chunkkv_error *ret_error) {
        const struct chunkkv_shape *shape = &dense->shape;
        const struct sizes sizes = sizes_of(shape);
        const struct chunkkv_region region = { .fd = dense->memory.fd, .access = CHUNKKV_ACCESS_READ_WRITE };
        uint32_t layers[1024];
        struct chunkkv_group group = {
                .layers = layers, .layer_count = shape->layers, .kv_heads = shape->kv_heads, .q_heads = shape->q_heads,
                .head_dim_k = shape->head_dim, .head_dim_v = shape->head_dim, .tokens_per_block = block_rows(shape),
                .num_blocks = shape->rows / block_rows(shape),
        };
        struct chunkkv_plane planes[2];
        int r;

        for (uint32_t i = 0; i < shape->layers; i++)
                layers[i] = i;
        r = chunkkv_region_register(client, &region, 0, &dense->region_id, ret_error);
        if (r)
                return r;
        planes[0] = (struct chunkkv_plane){
                .kind = CHUNKKV_PLANE_K, .dtype = shape->dtype, .layer_count = shape->layers,
                .region_id = dense->region_id, .offset = shape->key, .layer_stride = shape->layer_stride,
                .block_stride = group.tokens_per_block * sizes.key_row, .head_stride = sizes.element * shape->head_dim,
                .token = { .outer = sizes.key_row }, .dim = { .outer = sizes.element },
        };
        planes[1] = planes[0];
        planes[1].kind = CHUNKKV_PLANE_V;
        planes[1].offset = shape->value;
        return chunkkv_cache_register(client, &group, 1, planes, 2, 0, &dense->cache_id, NULL, ret_error);
}

int chunkkv_dense_create(struct chunkkv_client *client, const struct chunkkv_shape *shape,
                         struct chunkkv_dense *ret_dense, struct chunkkv_error *ret_error) {
        struct chunkkv_dense dense = { .shape = *shape };
        uint64_t bytes = 0;
        int r;

        r = shape_check(shape, ret_error);
        if (r == 0)
                r = shape_complete(&dense.shape, &bytes, ret_error);
        if (r == 0)
                r = chunkkv_memory_create("chunkkv-dense", bytes, CHUNKKV_ACCESS_READ_WRITE, &dense.memory, ret_error);
        if (r)
                return r;
        r = dense_register(client, &dense, ret_error);
        if (r) {
                chunkkv_dense_release(client, &dense);
                return r;
        }
        *ret_dense = dense;
        return 0;
}

void *chunkkv_dense_row(const struct chunkkv_dense *dense, enum chunkkv_plane_kind kind, uint32_t layer, uint32_t row) {
        const struct chunkkv_shape *shape = &dense->shape;
        const struct sizes sizes = sizes_of(shape);
        bool query = kind == CHUNKKV_PLANE_NONE;
        uint64_t part = query ? shape->query : kind == CHUNKKV_PLANE_K ? shape->key : shape->value;

        if (kind > CHUNKKV_PLANE_V || layer >= shape->layers || row >= (query ? shape->query_rows : shape->rows))
                return NULL;
        return (uint8_t *)dense->memory.address + layer * shape->layer_stride + part +
               row * (query ? sizes.query_row : sizes.key_row);
}

int chunkkv_dense_compress_by(struct chunkkv_client *client, const struct chunkkv_dense *dense,
                              const struct chunkkv_policy *policy, enum chunkkv_mode mode, uint32_t rows,
                              uint32_t keep_ratio, struct chunkkv_result **ret_result,
                              struct chunkkv_error *ret_error) {
        const struct chunkkv_shape *shape = &dense->shape;
        const uint32_t blocks[] = { 0, shape->rows / block_rows(shape) };
        const struct sizes sizes = sizes_of(shape);
        const struct chunkkv_queries queries = {
                .data = { dense->region_id, shape->query, dense->memory.size - shape->query }, .dtype = shape->dtype,
                .rows = shape->query_rows, .layer_stride = shape->layer_stride,
                .head_stride = sizes.element * shape->head_dim, .row_stride = sizes.query_row,
        };
        const struct chunkkv_group_job group = {
                .physical_len = rows, .table = { .form = CHUNKKV_TABLE_BLOCK_RUNS, .numbers = blocks, .count = 2 },
                .policies = policy, .policy_count = 1, .keep_ratio = keep_ratio,
        };
        const struct chunkkv_job job = {
                .cache_id = dense->cache_id, .mode = mode, .groups = &group, .group_count = 1,
                .queries = shape->query_rows ? &queries : NULL,
        };

        if (rows < 1 || rows > shape->rows)
                return ckv__fault(ret_error, -EINVAL, "rows", "must be 1 to %" PRIu32 ", is %" PRIu32, shape->rows,
                                  rows);
        return chunkkv_compress(client, &job, 0, ret_result, ret_error);
}

int chunkkv_dense_compress(struct chunkkv_client *client, const struct chunkkv_dense *dense, enum chunkkv_mode mode,
                           uint32_t rows, uint32_t keep_ratio, struct chunkkv_result **ret_result,
                           struct chunkkv_error *ret_error) {
        const uint32_t given = dense->shape.query_rows;
        const struct chunkkv_policy policy = { .window = given < 32 ? given : 0 };

        return chunkkv_dense_compress_by(client, dense, &policy, mode, rows, keep_ratio, ret_result, ret_error);
}

void chunkkv_dense_release(struct chunkkv_client *client, struct chunkkv_dense *dense) {
        /* a failure is the end of the session, which unmaps all of it */
        if (client && dense->cache_id)
                (void)chunkkv_cache_unregister(client, dense->cache_id, 0, NULL);
        if (client && dense->region_id)
                (void)chunkkv_region_unregister(client, dense->region_id, 0, NULL);
        chunkkv_memory_release(&dense->memory);
        *dense = (struct chunkkv_dense){ 0 };
}
