/*
 * A safetensors file is
 *
 *     u64 n | n bytes of JSON | tensor bytes
 *     { "NAME": { "dtype": "F32", "shape": [..], "data_offsets": [begin, end) }, "__metadata__": {..} }
 *
 * with offsets into the tensor bytes.  The file comes from anywhere, so nothing
 * in it is believed: offsets must lie inside the file, agree with shape and
 * dtype, and together cover the bytes without gap or overlap, as the format
 * demands.  Tensors of a dtype that this table does not know are listed, only
 * their size cannot be checked against their shape.
 *
 * cJSON reads the header; it bounds the depth of nesting itself.
 */
#include "tools/safetensors.h"

#include "base/checked.h"
#include "base/macros.h"
#include "tools/files.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

/* The format's own limit: a larger header is an attack on the reader. */
#define HEADER_MAX_BYTES UINT64_C(100000000)
/* Integers that a double, and so JSON as cJSON reads it, holds exactly. */
#define INTEGER_MAX 9007199254740992.0

struct ckv_safetensors {
        cJSON *header;                  /* owns the names; NULL = tensors from elsewhere */
        const cJSON *metadata;          /* in the header; NULL = none */
        struct ckv_tensor *tensors;     /* [count] by name */
        size_t count;
        const uint8_t *data;            /* [data_size] tensor bytes */
        uint64_t data_size;
        void *mapped;                   /* NULL = the caller's bytes */
        size_t mapped_size;
};

static const struct { const char *name; uint32_t bytes; } dtypes[] = {
        { "BOOL", 1 }, { "U8", 1 }, { "I8", 1 }, { "F8_E4M3", 1 }, { "F8_E5M2", 1 }, { "U16", 2 }, { "I16",
                2 }, { "F16", 2 },
        { "BF16", 2 }, { "U32", 4 }, { "I32", 4 }, { "F32", 4 }, { "U64", 8 }, { "I64", 8 }, { "F64", 8 },
};

static int fail(char *why, int error, const char *format, ...) _printf_(3, 4);
static int fail(char *why, int error, const char *format, ...) {
        va_list args;

        va_start(args, format);
        (void)vsnprintf(why, CKV_SAFETENSORS_WHY, format, args);
        va_end(args);
        return error;
}

uint32_t ckv_dtype_bytes(const char *dtype) {
        for (size_t i = 0; i < CKV_ARRAY_SIZE(dtypes); i++) {
                if (strcmp(dtypes[i].name, dtype) == 0)
                        return dtypes[i].bytes;
        }
        return 0;
}

static bool integer(const cJSON *item, uint64_t *ret_value) {
        if (!cJSON_IsNumber(item) || !(item->valuedouble >= 0 && item->valuedouble <= INTEGER_MAX))
                return false;
        *ret_value = (uint64_t)item->valuedouble;
        return (double)*ret_value == item->valuedouble;
}

static int shape_read(const cJSON *list, struct ckv_tensor *tensor, char *why) {
        const cJSON *item;

        if (!cJSON_IsArray(list))
                return fail(why, -EBADMSG, "tensor %.64s has no shape", tensor->name);
        cJSON_ArrayForEach(item, list) {
                if (tensor->rank == CKV_TENSOR_RANK_MAX)
                        return fail(why, -EBADMSG, "tensor %.64s has more than %d dimensions", tensor->name,
                                    CKV_TENSOR_RANK_MAX);
                if (!integer(item, &tensor->shape[tensor->rank++]))
                        return fail(why, -EBADMSG, "the shape of tensor %.64s holds what is no size", tensor->name);
        }
        return 0;
}

static int offsets_read(const cJSON *list, const struct ckv_safetensors *file, struct ckv_tensor *tensor, char *why) {
        uint64_t begin, end;

        if (!cJSON_IsArray(list) || cJSON_GetArraySize(list) != 2)
                return fail(why, -EBADMSG, "tensor %.64s has no data_offsets [begin, end]", tensor->name);
        if (!integer(cJSON_GetArrayItem(list, 0), &begin) || !integer(cJSON_GetArrayItem(list, 1), &end))
                return fail(why, -EBADMSG, "the data_offsets of tensor %.64s are not two whole numbers from 0 to 2^53",
                            tensor->name);
        if (begin > end)
                return fail(why, -EBADMSG, "the data_offsets of tensor %.64s end at %" PRIu64 ", before they begin at %"
                            PRIu64, tensor->name, end, begin);
        if (end > file->data_size)
                return fail(why, -EBADMSG,
                            "tensor %.64s ends at byte %" PRIu64 " of the data, but the file holds only %" PRIu64
                            ": it is cut short", tensor->name, end, file->data_size);
        tensor->data = file->data + begin;
        tensor->size = end - begin;
        return 0;
}

static int size_check(const struct ckv_tensor *tensor, char *why) {
        uint64_t bytes = ckv_dtype_bytes(tensor->dtype);
        bool fits = true;

        if (bytes == 0)
                return 0;
        for (uint32_t i = 0; i < tensor->rank && fits; i++)
                fits = ckv_mul_u64(bytes, tensor->shape[i], &bytes);
        if (!fits || bytes != tensor->size)
                return fail(why, -EBADMSG,
                            "tensor %.64s has %" PRIu64 " bytes, which is not what its shape and %s need", tensor->name,
                            tensor->size, tensor->dtype);
        return 0;
}

static int tensor_read(const cJSON *item, const struct ckv_safetensors *file, struct ckv_tensor *tensor, char *why) {
        const char *dtype;
        int r;

        tensor->name = item->string;
        if (!cJSON_IsObject(item))
                return fail(why, -EBADMSG, "tensor %.64s is not described by an object", tensor->name);
        dtype = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(item, "dtype"));
        if (!dtype)
                return fail(why, -EBADMSG, "tensor %.64s has no dtype", tensor->name);
        if (strlen(dtype) >= sizeof(tensor->dtype))
                return fail(why, -EBADMSG, "the dtype of tensor %.64s has more than %zu characters", tensor->name,
                            sizeof(tensor->dtype) - 1);
        memcpy(tensor->dtype, dtype, strlen(dtype) + 1);
        r = shape_read(cJSON_GetObjectItemCaseSensitive(item, "shape"), tensor, why);
        if (r == 0)
                r = offsets_read(cJSON_GetObjectItemCaseSensitive(item, "data_offsets"), file, tensor, why);
        return r ? r : size_check(tensor, why);
}

static int by_offset(const void *a, const void *b) {
        const struct ckv_tensor *x = a, *y = b;

        if (x->data != y->data)
                return x->data < y->data ? -1 : 1;
        return (x->size > y->size) - (x->size < y->size);
}

static int by_name(const void *a, const void *b) {
        const struct ckv_tensor *x = a, *y = b;

        return strcmp(x->name, y->name);
}

/* Leaves the tensors sorted by name. */
static int cover_check(struct ckv_safetensors *file, char *why) {
        const uint8_t *end = file->data;

        qsort(file->tensors, file->count, sizeof(*file->tensors), by_offset);
        for (size_t i = 0; i < file->count; i++) {
                const struct ckv_tensor *tensor = &file->tensors[i];

                if (tensor->data != end)
                        return fail(why, -EBADMSG, "tensor %.64s begins at byte %" PRIu64 " of the data, %s",
                                    tensor->name, (uint64_t)(tensor->data - file->data),
                                    tensor->data < end ? "inside another one" : "behind a gap");
                end = tensor->data + tensor->size;
        }
        if (end != file->data + file->data_size)
                return fail(why, -EBADMSG, "%" PRIu64 " bytes at the end belong to no tensor",
                            file->data_size - (uint64_t)(end - file->data));
        qsort(file->tensors, file->count, sizeof(*file->tensors), by_name);
        for (size_t i = 1; i < file->count; i++) {
                if (strcmp(file->tensors[i - 1].name, file->tensors[i].name) == 0)
                        return fail(why, -EBADMSG, "tensor %.64s comes twice", file->tensors[i].name);
        }
        return 0;
}

static int metadata_check(const cJSON *metadata, char *why) {
        const cJSON *item;

        if (!cJSON_IsObject(metadata))
                return fail(why, -EBADMSG, "__metadata__ is not an object");
        cJSON_ArrayForEach(item, metadata) {
                if (!cJSON_IsString(item))
                        return fail(why, -EBADMSG, "%.64s in __metadata__ is not a string", item->string);
        }
        return 0;
}

static int header_parse(const uint8_t *bytes, uint64_t size, uint64_t header_size, struct ckv_safetensors *file,
                        char *why) {
        const char *text = (const char *)bytes + 8, *end = NULL;
        const cJSON *item;
        int r, entries;

        file->header = cJSON_ParseWithLengthOpts(text, header_size, &end, 0);
        if (!file->header || !cJSON_IsObject(file->header))
                return fail(why, -EBADMSG, "the header is not a JSON object");
        for (; end < text + header_size; end++) {
                if (!strchr(" \t\r\n", *end) || !*end)
                        return fail(why, -EBADMSG, "the header goes on after its JSON object");
        }
        entries = cJSON_GetArraySize(file->header);
        file->tensors = calloc((size_t)entries + 1, sizeof(*file->tensors));
        if (!file->tensors)
                return fail(why, -ENOMEM, "no memory for %d tensors", entries);
        file->data = bytes + 8 + header_size;
        file->data_size = size - 8 - header_size;
        cJSON_ArrayForEach(item, file->header) {
                if (strcmp(item->string, "__metadata__") == 0) {
                        r = metadata_check(item, why);
                        if (r)
                                return r;
                        file->metadata = item;
                        continue;
                }
                r = tensor_read(item, file, &file->tensors[file->count++], why);
                if (r)
                        return r;
        }
        return cover_check(file, why);
}

int ckv_safetensors_parse(const uint8_t *bytes, uint64_t size, struct ckv_safetensors **ret_file,
                          char ret_why[static CKV_SAFETENSORS_WHY]) {
        _cleanup_(ckv_safetensors_closep) struct ckv_safetensors *file = NULL;
        uint64_t header_size;
        int r;

        if (size < sizeof(header_size))
                return fail(ret_why, -EBADMSG, "it has %" PRIu64 " bytes, too few for a safetensors file", size);
        memcpy(&header_size, bytes, sizeof(header_size));
        if (header_size > size - sizeof(header_size))
                return fail(ret_why, -EBADMSG,
                            "its header would have %" PRIu64 " bytes, but the file has only %" PRIu64, header_size,
                            size);
        if (header_size > HEADER_MAX_BYTES)
                return fail(ret_why, -EBADMSG, "its header has %" PRIu64 " bytes, the limit is %" PRIu64, header_size,
                            HEADER_MAX_BYTES);
        file = calloc(1, sizeof(*file));
        if (!file)
                return fail(ret_why, -ENOMEM, "no memory for a file object");
        r = header_parse(bytes, size, header_size, file, ret_why);
        if (r)
                return r;
        *ret_file = ckv_steal(&file);
        return 0;
}

int ckv_safetensors_open(const char *path, struct ckv_safetensors **ret_file,
                         char ret_why[static CKV_SAFETENSORS_WHY]) {
        size_t size;
        void *mapped;
        int r;

        r = ckv_file_map(path, &mapped, &size, ret_why);
        if (r)
                return r;
        r = ckv_safetensors_parse(mapped, size, ret_file, ret_why);
        if (r) {
                (void)munmap(mapped, size);
                return r;
        }
        (*ret_file)->mapped = mapped;
        (*ret_file)->mapped_size = size;
        return 0;
}

int ckv_safetensors_wrap(const struct ckv_tensor *tensors, size_t count, struct ckv_safetensors **ret_file) {
        _cleanup_(ckv_safetensors_closep) struct ckv_safetensors *file = calloc(1, sizeof(*file));

        if (!file)
                return -ENOMEM;
        file->tensors = calloc(count + 1, sizeof(*tensors));
        if (!file->tensors)
                return -ENOMEM;
        memcpy(file->tensors, tensors, count * sizeof(*tensors));
        file->count = count;
        qsort(file->tensors, count, sizeof(*tensors), by_name);
        *ret_file = ckv_steal(&file);
        return 0;
}

struct ckv_safetensors *ckv_safetensors_close(struct ckv_safetensors *file) {
        if (!file)
                return NULL;
        cJSON_Delete(file->header);
        if (file->mapped)
                (void)munmap(file->mapped, file->mapped_size);
        free(file->tensors);
        free(file);
        return NULL;
}

void ckv_safetensors_closep(struct ckv_safetensors **file) {
        *file = ckv_safetensors_close(*file);
}

const struct ckv_tensor *ckv_safetensors_find(const struct ckv_safetensors *file, const char *name) {
        struct ckv_tensor wanted = { .name = name };

        return bsearch(&wanted, file->tensors, file->count, sizeof(*file->tensors), by_name);
}

size_t ckv_safetensors_count(const struct ckv_safetensors *file) {
        return file->count;
}

const struct ckv_tensor *ckv_safetensors_at(const struct ckv_safetensors *file, size_t index) {
        return &file->tensors[index];
}

bool ckv_safetensors_metadata(const struct ckv_safetensors *file, size_t index, const char **ret_key,
                              const char **ret_value) {
        const cJSON *item = file->metadata ? file->metadata->child : NULL;

        while (item && index-- > 0)
                item = item->next;
        if (!item)
                return false;
        *ret_key = item->string;
        *ret_value = item->valuestring;
        return true;
}
