/*
 * One sealed memfd holds the layers of a batch:
 *
 *     K of layer 0 | K of layer 1 | ... | V of layer 0 | ... | Q of all layers | their log-sum-exp | sink logits |
 *     scores of group 0 | ...
 *
 * each as in the file, [rows][heads][head size], padded to whole blocks.  Q has
 * one set of strides for all layers, wide enough for the widest.
 *
 * A daemon wants to know where V lies even for a plan that never reads it.
 * Without values every layer gets the same stand-in: head size 1, zeros.  (The
 * other kind of layer without V, LATENT, is not it: that has one head.)
 */
#include "tools/batch.h"

#include "base/macros.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define ALIGN_BYTES 64u

static int fail(struct chunkkv_error *ret_error, int error, const char *detail) {
        *ret_error = (struct chunkkv_error){ .error = error };
        (void)snprintf(ret_error->detail, sizeof(ret_error->detail), "%s", detail);
        return error;
}

static uint64_t dtype_bytes(uint32_t dtype) {
        return dtype == CHUNKKV_DTYPE_F32 ? 4 : 2;
}

static bool same_batch(const struct ckv_layer *a, const struct ckv_layer *b) {
        return a->rows == b->rows && a->query_rows == b->query_rows && a->dtype_q == b->dtype_q && !a->lse == !b->lse &&
               !a->sink_logits == !b->sink_logits;
}

static bool same_group(const struct chunkkv_group *group, const struct ckv_layer *layer) {
        return group->kv_heads == layer->kv_heads && group->q_heads == layer->q_heads &&
               group->head_dim_k == layer->dim_k &&
               group->head_dim_v == CKV_MAX(layer->dim_v, 1u);
}

/* Sorts the layers into groups. Return: 0, or -E2BIG if they have too many shapes. */
static int groups_fill(struct ckv_batch *batch, struct chunkkv_error *ret_error) {
        size_t n = 0;

        for (size_t i = 0; i < batch->count; i++) {
                const struct ckv_layer *layer = batch->layers[i];
                size_t group = 0;

                while (group < batch->group_count && !same_group(&batch->groups[group], layer))
                        group++;
                if (group < batch->group_count)
                        continue;
                if (group == CKV_BATCH_GROUPS_MAX)
                        return fail(ret_error, -E2BIG,
                                    "the layers have more than 16 different shapes: ask for fewer at a time");
                batch->groups[batch->group_count++] = (struct chunkkv_group){
                        .kv_heads = layer->kv_heads, .q_heads = layer->q_heads, .head_dim_k = layer->dim_k,
                        .head_dim_v = CKV_MAX(layer->dim_v,
                                              1u), .tokens_per_block = CKV_BATCH_BLOCK, .num_blocks = batch->blocks,
                };
        }
        for (size_t group = 0; group < batch->group_count; group++) {
                batch->groups[group].layers = batch->numbers + n;
                for (size_t i = 0; i < batch->count; i++) {
                        if (same_group(&batch->groups[group], batch->layers[i]))
                                batch->numbers[n++] = batch->layers[i]->number;
                }
                batch->groups[group].layer_count = (size_t)(batch->numbers + n - batch->groups[group].layers);
        }
        return 0;
}

/* Takes @size bytes off the end of the memory to be. Return: their offset. */
static uint64_t place(uint64_t *end, uint64_t size) {
        uint64_t offset = *end;

        *end = (offset + size + ALIGN_BYTES - 1) / ALIGN_BYTES * ALIGN_BYTES;
        return offset;
}

static struct chunkkv_plane plane(uint32_t kind, uint32_t dtype, uint32_t layer, uint64_t offset, uint64_t heads,
                                  uint64_t dim) {
        uint64_t element = dtype_bytes(dtype), row = heads * dim * element;

        return (struct chunkkv_plane){
                .kind = kind, .dtype = dtype, .layer_first = layer, .layer_count = 1, .offset = offset,
                .block_stride = CKV_BATCH_BLOCK * row, .head_stride = dim * element,
                .token = { .outer = row }, .dim = { .outer = element },
        };
}

static void planes_place(struct ckv_batch *batch, uint64_t *end) {
        uint64_t padded = (uint64_t)batch->blocks * CKV_BATCH_BLOCK, none = 0;

        for (size_t i = 0; i < batch->count; i++) {
                const struct ckv_layer *layer = batch->layers[i];
                uint64_t size = padded * layer->kv_heads * layer->dim_k * dtype_bytes(layer->dtype_k);

                batch->planes[2 * i] = plane(CHUNKKV_PLANE_K, layer->dtype_k, layer->number, place(end, size),
                                             layer->kv_heads, layer->dim_k);
                if (!layer->value)
                        none = CKV_MAX(none, padded * layer->kv_heads * dtype_bytes(CHUNKKV_DTYPE_F32));
        }
        none = place(end, none);
        for (size_t i = 0; i < batch->count; i++) {
                const struct ckv_layer *layer = batch->layers[i];
                uint64_t size = padded * layer->kv_heads * layer->dim_v * dtype_bytes(layer->dtype_v);

                batch->planes[2 * i + 1] =
                        layer->value ? plane(CHUNKKV_PLANE_V, layer->dtype_v, layer->number, place(end, size),
                                             layer->kv_heads, layer->dim_v)
                                     : plane(CHUNKKV_PLANE_V, CHUNKKV_DTYPE_F32, layer->number, none, layer->kv_heads,
                                             1);
        }
}

static void queries_place(struct ckv_batch *batch, uint32_t query_rows, uint64_t *end) {
        uint64_t element = dtype_bytes(batch->layers[0]->dtype_q), heads = 0, dim = 0;
        struct chunkkv_queries *queries = &batch->queries;

        for (size_t i = 0; i < batch->count; i++) {
                heads = CKV_MAX(heads, batch->layers[i]->q_heads);
                dim = CKV_MAX(dim, batch->layers[i]->dim_k);
        }
        queries->dtype = batch->layers[0]->dtype_q;
        queries->rows = CKV_MIN(query_rows, batch->layers[0]->query_rows);
        queries->head_stride = dim * element;
        queries->row_stride = heads * queries->head_stride;
        queries->layer_stride = queries->rows * queries->row_stride;
        queries->last_row = batch->rows > 0 ? batch->rows - 1 : 0;
        queries->layers = batch->ascending;
        queries->layer_count = batch->count;
        queries->data.size = queries->layer_stride * batch->count;
        queries->data.offset = place(end, queries->data.size);
}

/* Room for what the file has beside the queries: for each layer's heads, in the order of the layers. */
static void floats_place(struct ckv_batch *batch, uint64_t *end) {
        struct chunkkv_queries *queries = &batch->queries;
        uint64_t heads = 0;

        for (size_t i = 0; i < batch->count; i++)
                heads += batch->layers[i]->q_heads;
        if (batch->layers[0]->lse) {
                queries->lse.size = heads * queries->rows * sizeof(float);
                queries->lse.offset = place(end, queries->lse.size);
        }
        if (batch->layers[0]->sink_logits) {
                queries->sink_logits.size = heads * sizeof(float);
                queries->sink_logits.offset = place(end, queries->sink_logits.size);
        }
}

/* A group has at most as many scores as rows, for each of its layers. */
static void scores_place(struct ckv_batch *batch, uint64_t *end) {
        for (size_t i = 0; i < batch->group_count; i++) {
                batch->scores[i].size = batch->groups[i].layer_count * CKV_MAX(batch->rows, 1u) * sizeof(float);
                batch->scores[i].offset = place(end, batch->scores[i].size);
        }
}

static void queries_copy(const struct ckv_batch *batch, uint8_t *base) {
        const struct chunkkv_queries *queries = &batch->queries;

        for (size_t i = 0; i < batch->count; i++) {
                const struct ckv_layer *layer = batch->layers[i];
                uint64_t head_bytes = layer->dim_k * dtype_bytes(layer->dtype_q),
                row_bytes = layer->q_heads * head_bytes;
                const uint8_t *from = layer->query->data + (layer->query_rows - queries->rows) * row_bytes;

                for (uint32_t row = 0; row < queries->rows; row++) {
                        uint64_t offset = queries->data.offset + i * queries->layer_stride + row * queries->row_stride;
                        uint8_t *to = base + offset;

                        for (uint32_t head = 0; head < layer->q_heads; head++)
                                memcpy(to + head * queries->head_stride, from + row * row_bytes + head * head_bytes,
                                       head_bytes);
                }
        }
}

static void floats_copy(const struct ckv_batch *batch, uint8_t *base) {
        const struct chunkkv_queries *queries = &batch->queries;
        uint8_t *lse = base + queries->lse.offset, *sink_logits = base + queries->sink_logits.offset;
        uint64_t row_bytes = queries->rows * sizeof(float);

        for (size_t i = 0; i < batch->count; i++) {
                const struct ckv_layer *layer = batch->layers[i];

                for (uint32_t head = 0; layer->lse && head < layer->q_heads; head++, lse += row_bytes)
                        memcpy(lse, layer->lse->data + ((head + 1) * (uint64_t)layer->query_rows - queries->rows) *
                               sizeof(float), row_bytes);
                if (layer->sink_logits)
                        sink_logits = mempcpy(sink_logits, layer->sink_logits->data, layer->q_heads * sizeof(float));
        }
}

static void batch_copy(struct ckv_batch *batch) {
        uint8_t *base = batch->memory.address;

        for (size_t i = 0; i < batch->count; i++) {
                const struct ckv_layer *layer = batch->layers[i];

                memcpy(base + batch->planes[2 * i].offset, layer->key->data, layer->key->size);
                if (layer->value)
                        memcpy(base + batch->planes[2 * i + 1].offset, layer->value->data, layer->value->size);
        }
        if (batch->queries.data.size > 0) {
                queries_copy(batch, base);
                floats_copy(batch, base);
        }
        /* all bits set is a NaN, and no score is one */
        for (size_t i = 0; i < batch->group_count; i++)
                memset(base + batch->scores[i].offset, 0xff, batch->scores[i].size);
}

static int batch_fill(struct ckv_batch *batch, uint32_t query_rows, enum ckv_batch_use use,
                      struct chunkkv_error *ret_error) {
        enum chunkkv_access access = use == CKV_BATCH_READ ? CHUNKKV_ACCESS_READ : CHUNKKV_ACCESS_READ_WRITE;
        uint64_t end = 0;
        int r;

        r = groups_fill(batch, ret_error);
        if (r)
                return r;
        for (size_t i = 0; i < batch->count; i++)
                batch->ascending[i] = batch->layers[i]->number;
        planes_place(batch, &end);
        if (batch->layers[0]->query) {
                queries_place(batch, query_rows, &end);
                floats_place(batch, &end);
        }
        if (use == CKV_BATCH_SCORE)
                scores_place(batch, &end);
        r = chunkkv_memory_create("chunkkvctl", CKV_MAX(end, (uint64_t)ALIGN_BYTES), access, &batch->memory, ret_error);
        if (r)
                return r;
        batch_copy(batch);
        return 0;
}

int ckv_batch_build(const struct ckv_layer *layers, size_t count, bool *taken, uint32_t query_rows,
                    enum ckv_batch_use use, struct ckv_batch *ret_batch, struct chunkkv_error *ret_error) {
        size_t first = 0;
        int r;

        *ret_batch = (struct ckv_batch){ .memory = { .fd = -1 } };
        while (first < count && taken[first])
                first++;
        if (first == count)
                return 0;
        ret_batch->rows = layers[first].rows;
        ret_batch->blocks = CKV_MAX(1u,
                                    (uint32_t)(((uint64_t)layers[first].rows + CKV_BATCH_BLOCK - 1) / CKV_BATCH_BLOCK));
        ret_batch->layers = calloc(count, sizeof(struct ckv_layer *));
        ret_batch->numbers = calloc(count, sizeof(uint32_t));
        ret_batch->ascending = calloc(count, sizeof(uint32_t));
        ret_batch->planes = calloc(2 * count, sizeof(struct chunkkv_plane));
        if (!ret_batch->layers || !ret_batch->numbers || !ret_batch->ascending || !ret_batch->planes)
                return fail(ret_error, -ENOMEM, "no memory for a batch of layers");
        for (size_t i = first; i < count; i++) {
                if (taken[i] || !same_batch(&layers[first], &layers[i]))
                        continue;
                taken[i] = true;
                ret_batch->layers[ret_batch->count++] = &layers[i];
        }
        r = batch_fill(ret_batch, query_rows, use, ret_error);
        return r ? r : 1;
}

void ckv_batch_region_set(struct ckv_batch *batch, uint32_t region_id) {
        for (size_t i = 0; i < 2 * batch->count; i++)
                batch->planes[i].region_id = region_id;
        if (batch->queries.data.size > 0)
                batch->queries.data.region_id = region_id;
        batch->queries.lse.region_id = batch->queries.lse.size > 0 ? region_id : 0;
        batch->queries.sink_logits.region_id = batch->queries.sink_logits.size > 0 ? region_id : 0;
        for (size_t i = 0; i < batch->group_count; i++)
                batch->scores[i].region_id = batch->scores[i].size > 0 ? region_id : 0;
}

void ckv_batch_deinit(struct ckv_batch *batch) {
        chunkkv_memory_release(&batch->memory);
        free(batch->layers);
        free(batch->numbers);
        free(batch->ascending);
        free(batch->planes);
        *batch = (struct ckv_batch){ .memory = { .fd = -1 } };
}
