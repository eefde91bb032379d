/*
 * The file that `compress` writes: the one that was read, with other bytes for
 * the keys and values that got shorter, and one more tensor for each layer.
 *
 * Tensors lie in the order of the size of their elements, largest first, then
 * of their names: with a header padded to 8 bytes each is aligned for its type,
 * which readers that map the file expect.
 *
 * A file of kept rows is not taken again.  Its rows are positions with gaps,
 * and what the daemon would have to be told of them (position_runs) must be
 * equal for all layers of a group, which kept sets of layers are not.
 */
#include "tools/compress.h"

#include "base/macros.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define NAME_BYTES 32

/* A tensor to be written; its rows are the file's or those that are left. */
struct part {
        struct ckv_tensor tensor;
        char own_name[NAME_BYTES];              /* layerN.kept_rows */
        const struct ckv_plan_layer *kept_rows; /* of this layer; NULL = the tensor has bytes */
};

static void kept_rows_name(uint32_t layer, char ret_name[static NAME_BYTES]) {
        (void)snprintf(ret_name, NAME_BYTES, "layer%" PRIu32 ".kept_rows", layer);
}

int ckv_compress_check(const struct ckv_safetensors *file, const struct ckv_layer *layers, size_t count,
                       char ret_why[static CKV_SAFETENSORS_WHY]) {
        char name[NAME_BYTES];

        for (size_t i = 0; i < count; i++) {
                kept_rows_name(layers[i].number, name);
                if (!ckv_safetensors_find(file, name))
                        continue;
                (void)snprintf(ret_why, CKV_SAFETENSORS_WHY, "it was compressed before: it has a tensor %s", name);
                return -EINVAL;
        }
        return 0;
}

static int by_size_and_name(const void *a, const void *b) {
        const struct part *x = a, *y = b;
        uint32_t x_bytes = ckv_dtype_bytes(x->tensor.dtype), y_bytes = ckv_dtype_bytes(y->tensor.dtype);

        if (x_bytes != y_bytes)
                return x_bytes > y_bytes ? -1 : 1;
        return strcmp(x->own_name[0] ? x->own_name : x->tensor.name, y->own_name[0] ? y->own_name : y->tensor.name);
}

static struct part kept_rows_part(const struct ckv_plan_layer *layer) {
        uint64_t heads = layer->more_count + 1;
        struct part part = {
                .tensor = { .dtype = "I64", .rank = 1, .shape = { layer->kept_count },
                            .size = heads * layer->kept_count * sizeof(int64_t) },
                .kept_rows = layer,
        };

        if (heads > 1) {        /* [KV heads][rows] */
                part.tensor.rank = 2;
                part.tensor.shape[0] = heads;
                part.tensor.shape[1] = layer->kept_count;
        }

        kept_rows_name(layer->number, part.own_name);
        return part;
}

/* Room for the file's tensors and one more for each layer of the plan. Return: how many there are. */
static size_t parts_fill(const struct ckv_safetensors *file, const struct ckv_layer *layers,
                         const struct ckv_plan *plan, struct part *parts) {
        size_t count = 0;

        for (size_t i = 0; i < ckv_safetensors_count(file); i++) {
                const struct ckv_tensor *tensor = ckv_safetensors_at(file, i);
                struct part *part = &parts[count++];

                part->tensor = *tensor;
                for (size_t k = 0; k < plan->layer_count; k++) {
                        const struct ckv_plan_layer *layer = &plan->layers[k];

                        if (tensor != layers[k].key && tensor != layers[k].value)
                                continue;
                        part->tensor.shape[0] = layer->kept_count;
                        part->tensor.data = tensor == layers[k].key ? layer->key : layer->value;
                        part->tensor.size = tensor == layers[k].key ? layer->key_bytes : layer->value_bytes;
                }
        }
        for (size_t k = 0; k < plan->layer_count; k++)
                parts[count++] = kept_rows_part(&plan->layers[k]);
        qsort(parts, count, sizeof(*parts), by_size_and_name);
        return count;
}

static void text_set(cJSON *to, const char *key, const char *value) {
        cJSON_DeleteItemFromObjectCaseSensitive(to, key);
        (void)cJSON_AddStringToObject(to, key, value);
}

/* 200000 millionths are "0.2". */
static void ratio_format(uint32_t millionths, char ret_text[static 16]) {
        size_t n = (size_t)snprintf(ret_text, 16, "%u.%06u", millionths / 1000000, millionths % 1000000);

        while (ret_text[n - 1] == '0')
                ret_text[--n] = '\0';
        if (ret_text[n - 1] == '.')
                ret_text[--n] = '\0';
}

static void metadata_fill(const struct ckv_safetensors *file, const struct ckv_settings *settings,
                          const struct ckv_plan *plan, cJSON *metadata) {
        const char *key, *value;
        uint32_t logical_len = 0;
        char text[16];

        for (size_t i = 0; ckv_safetensors_metadata(file, i, &key, &value); i++)
                text_set(metadata, key, value);
        /* one model has seen one number of tokens: layers that hold fewer rows held fewer before */
        for (size_t i = 0; i < plan->layer_count; i++)
                logical_len = CKV_MAX(logical_len, plan->layers[i].logical_len);
        (void)snprintf(text, sizeof(text), "%" PRIu32, logical_len);
        text_set(metadata, "logical_len", text);
        text_set(metadata, "profile", ckv_settings_profile(&plan->policy));
        if (settings->keep_ratio) {
                ratio_format(settings->keep_ratio, text);
                text_set(metadata, "keep_ratio", text);
        }
        if (settings->max_tokens) {
                (void)snprintf(text, sizeof(text), "%" PRIu32, settings->max_tokens);
                text_set(metadata, "max_tokens", text);
        }
}

static void part_describe(const struct part *part, uint64_t offset, cJSON *header) {
        cJSON *entry = cJSON_AddObjectToObject(header, part->own_name[0] ? part->own_name : part->tensor.name), *list;

        (void)cJSON_AddStringToObject(entry, "dtype", part->tensor.dtype);
        list = cJSON_AddArrayToObject(entry, "shape");
        for (uint32_t i = 0; i < part->tensor.rank; i++)
                (void)cJSON_AddItemToArray(list, cJSON_CreateNumber((double)part->tensor.shape[i]));
        list = cJSON_AddArrayToObject(entry, "data_offsets");
        (void)cJSON_AddItemToArray(list, cJSON_CreateNumber((double)offset));
        (void)cJSON_AddItemToArray(list, cJSON_CreateNumber((double)(offset + part->tensor.size)));
}

static void ranges_write(const uint32_t *ranges, size_t count, FILE *stream) {
        for (size_t i = 0; i < count; i++) {
                for (uint32_t row = ranges[2 * i]; row < ranges[2 * i + 1]; row++) {
                        const int64_t number = row;

                        (void)fwrite(&number, sizeof(number), 1, stream);
                }
        }
}

static void part_write(const struct part *part, FILE *stream) {
        const struct ckv_plan_layer *layer = part->kept_rows;

        if (!layer) {
                (void)fwrite(part->tensor.data, 1, part->tensor.size, stream);
                return;
        }
        ranges_write(layer->ranges, layer->range_count, stream);
        for (size_t k = 0; k < layer->more_count; k++)
                ranges_write(layer->more[k].ranges, layer->more[k].range_count, stream);
}

static void file_write(const char *header, const struct part *parts, size_t count, FILE *stream) {
        uint64_t length = strlen(header), padded = (length + 7) / 8 * 8;

        (void)fwrite(&padded, sizeof(padded), 1, stream);
        (void)fprintf(stream, "%-*s", (int)padded, header);
        for (size_t i = 0; i < count; i++)
                part_write(&parts[i], stream);
}

int ckv_compress_write(const struct ckv_safetensors *file, const struct ckv_settings *settings,
                       const struct ckv_layer *layers, const struct ckv_plan *plan, struct ckv_output *output) {
        _cleanup_free_ struct part *parts =
                calloc(ckv_safetensors_count(file) + plan->layer_count, sizeof(*parts));
        cJSON *header = cJSON_CreateObject();
        char *text = NULL;
        uint64_t offset = 0;
        size_t count;

        if (parts && header) {
                metadata_fill(file, settings, plan, cJSON_AddObjectToObject(header, "__metadata__"));
                count = parts_fill(file, layers, plan, parts);
                for (size_t i = 0; i < count; i++) {
                        part_describe(&parts[i], offset, header);
                        offset += parts[i].tensor.size;
                }
                text = cJSON_PrintUnformatted(header);
                if (text)
                        file_write(text, parts, count, output->stream);
        }
        cJSON_Delete(header);
        if (!text)
                return -ENOMEM;
        cJSON_free(text);
        return 0;
}
