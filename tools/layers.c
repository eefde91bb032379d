/*
 * From tensors by name to layers.
 *
 * A name pattern holds "{layer}" once, where the number stands.  All that the
 * daemon would refuse with a word about strides is refused here with a word
 * about the file: rank, dtype, heads, sizes that do not agree.
 */
#include "tools/layers.h"

#include "base/macros.h"
#include "clients/c/include/chunkkv.h"
#include "tools/numbers.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define PATTERN_BYTES 256
#define MARK "{layer}"

enum role { ROLE_QUERY, ROLE_KEY, ROLE_VALUE, ROLE_LSE, ROLE_SINK_LOGITS, _ROLE_N };
static const char *const role_words[_ROLE_N] = { "query", "key", "value", "lse", "sink_logits" };

struct pattern {
        char before[PATTERN_BYTES], after[PATTERN_BYTES];
};

static int fail(char *why, const char *format, ...) _printf_(2, 3);
static int fail(char *why, const char *format, ...) {
        va_list args;

        va_start(args, format);
        (void)vsnprintf(why, CKV_SAFETENSORS_WHY, format, args);
        va_end(args);
        return -EINVAL;
}

static int pattern_set(struct pattern patterns[static _ROLE_N], const char *word, const char *text, char *why) {
        const char *mark = strstr(text, MARK);
        size_t role = 0;

        while (role < _ROLE_N && strcmp(role_words[role], word) != 0)
                role++;
        if (role == _ROLE_N)
                return fail(why, "--names: %.64s is none of query, key, value, lse and sink_logits", word);
        if (!mark || strstr(mark + 1, MARK) || strlen(text) >= PATTERN_BYTES)
                return fail(why, "--names: %s=%.64s must hold " MARK " once", word, text);
        (void)snprintf(patterns[role].before, PATTERN_BYTES, "%.*s", (int)(mark - text), text);
        (void)snprintf(patterns[role].after, PATTERN_BYTES, "%s", mark + strlen(MARK));
        return 0;
}

static int patterns_read(const char *names, struct pattern patterns[static _ROLE_N], char *why) {
        _cleanup_free_ char *copy = strdup(names ? names : "");
        char *rest = copy, *piece;
        int r;

        if (!copy)
                return fail(why, "no memory for --names");
        for (size_t role = 0; role < _ROLE_N; role++) {
                (void)snprintf(patterns[role].before, PATTERN_BYTES, "layer");
                (void)snprintf(patterns[role].after, PATTERN_BYTES, ".%s", role_words[role]);
        }
        while (names && rest && (piece = strsep(&rest, ","))) {
                char *text = strchr(piece, '=');

                if (!text)
                        return fail(why, "--names: %.64s has no =", piece);
                *text++ = '\0';
                r = pattern_set(patterns, piece, text, why);
                if (r)
                        return r;
        }
        return 0;
}

/* Is this the name of a layer's tensor? */
static bool pattern_match(const struct pattern *pattern, const char *name, uint32_t *ret_layer) {
        size_t before = strlen(pattern->before), after = strlen(pattern->after), length = strlen(name);
        char number[12], again[12];

        if (length <= before + after || length - before - after >= sizeof(number) ||
            strncmp(name, pattern->before, before) != 0 || strcmp(name + length - after, pattern->after) != 0)
                return false;
        (void)snprintf(number, sizeof(number), "%.*s", (int)(length - before - after), name + before);
        if (!ckv_u32_parse(number, ret_layer))
                return false;
        /* "layer07" would be looked for as "layer7" later */
        (void)snprintf(again, sizeof(again), "%" PRIu32, *ret_layer);
        return strcmp(number, again) == 0;
}

static const struct ckv_tensor *tensor_find(const struct ckv_safetensors *file, const struct pattern *pattern,
                                            uint32_t layer, char *why) {
        char name[2 * PATTERN_BYTES + 12];
        const struct ckv_tensor *tensor;

        (void)snprintf(name, sizeof(name), "%s%" PRIu32 "%s", pattern->before, layer, pattern->after);
        tensor = ckv_safetensors_find(file, name);
        if (!tensor)
                (void)fail(why, "it has no tensor %.160s", name);
        return tensor;
}

static uint32_t dtype_of(const struct ckv_tensor *tensor) {
        if (strcmp(tensor->dtype, "F32") == 0)
                return CHUNKKV_DTYPE_F32;
        if (strcmp(tensor->dtype, "F16") == 0)
                return CHUNKKV_DTYPE_F16;
        if (strcmp(tensor->dtype, "BF16") == 0)
                return CHUNKKV_DTYPE_BF16;
        return CHUNKKV_DTYPE_NONE;
}

/* What holds for every tensor by itself. */
static int tensor_check(const struct ckv_tensor *tensor, char *why) {
        if (tensor->rank != 3)
                return fail(why, "tensor %.64s has %" PRIu32 " dimensions, not 3 (rows, heads, head size)",
                            tensor->name, tensor->rank);
        if (dtype_of(tensor) == CHUNKKV_DTYPE_NONE)
                return fail(why, "tensor %.64s is %s, not F32, F16 or BF16", tensor->name, tensor->dtype);
        if (tensor->shape[0] > UINT32_MAX)
                return fail(why, "tensor %.64s has %" PRIu64 " rows", tensor->name, tensor->shape[0]);
        for (uint32_t i = 1; i < 3; i++) {
                if (tensor->shape[i] < 1 || tensor->shape[i] > 1024)
                        return fail(why, "tensor %.64s has %" PRIu64 " %s, not 1 to 1024", tensor->name,
                                    tensor->shape[i], i == 1 ? "heads" : "elements in a head");
        }
        return 0;
}

static int value_load(struct ckv_layer *layer, char *why) {
        const struct ckv_tensor *value = layer->value;
        int r = tensor_check(value, why);

        if (r)
                return r;
        if (value->shape[0] != layer->rows || value->shape[1] != layer->kv_heads)
                return fail(why,
                            "tensor %.64s has %" PRIu64 " rows of %" PRIu64 " heads, but %.64s has %" PRIu32 " of %"
                            PRIu32, value->name, value->shape[0], value->shape[1], layer->key->name, layer->rows,
                            layer->kv_heads);
        layer->dtype_v = dtype_of(value);
        layer->dim_v = (uint32_t)value->shape[2];
        return 0;
}

static int query_load(const struct ckv_layers_wanted *wanted, struct ckv_layer *layer, char *why) {
        const struct ckv_tensor *query = layer->query;
        int r = tensor_check(query, why);

        if (r)
                return r;
        if (query->shape[2] != layer->dim_k)
                return fail(why, "heads of %.64s have %" PRIu64 " elements, those of %.64s have %" PRIu32, query->name,
                            query->shape[2], layer->key->name, layer->dim_k);
        if (query->shape[1] % layer->kv_heads != 0)
                return fail(why,
                            "tensor %.64s has %" PRIu64 " heads, which is no multiple of the %" PRIu32 " of %.64s",
                            query->name, query->shape[1], layer->kv_heads, layer->key->name);
        if (query->shape[0] > layer->rows)
                return fail(why, "tensor %.64s has %" PRIu64 " rows, %.64s only %" PRIu32, query->name, query->shape[0],
                            layer->key->name, layer->rows);
        if (query->shape[0] < CKV_MAX(wanted->window, wanted->query_rows))
                return fail(why, "tensor %.64s has %" PRIu64 " rows, but %s asks for %" PRIu32, query->name,
                            query->shape[0], wanted->window > wanted->query_rows ? "--window" : "--query-rows",
                            CKV_MAX(wanted->window, wanted->query_rows));
        layer->dtype_q = dtype_of(query);
        layer->q_heads = (uint32_t)query->shape[1];
        layer->query_rows = (uint32_t)query->shape[0];
        return 0;
}

/* What may lie beside the queries: [q_heads] or [q_heads][query_rows] of float32. */
static int floats_load(const struct ckv_safetensors *file, const struct pattern *pattern, const struct ckv_layer *layer,
                       uint32_t rank, const struct ckv_tensor **ret_tensor, char *why) {
        char unused[CKV_SAFETENSORS_WHY];
        const struct ckv_tensor *tensor = tensor_find(file, pattern, layer->number, unused);

        if (tensor && strcmp(tensor->dtype, "F32") != 0)
                return fail(why, "tensor %.64s is %s, not F32", tensor->name, tensor->dtype);
        if (tensor && (tensor->rank != rank || tensor->shape[0] != layer->q_heads ||
                       (rank > 1 && tensor->shape[1] != layer->query_rows)))
                return fail(why, rank > 1 ? "tensor %.64s is not [%" PRIu32 " heads, %" PRIu32 " rows] as %.64s"
                                          : "tensor %.64s is not [%" PRIu32 " heads]", tensor->name, layer->q_heads,
                            layer->query_rows, layer->query->name);
        *ret_tensor = tensor;
        return 0;
}

static int layer_load(const struct ckv_safetensors *file, const struct pattern patterns[static _ROLE_N],
                      const struct ckv_layers_wanted *wanted, struct ckv_layer *layer, char *why) {
        int r;

        layer->key = tensor_find(file, &patterns[ROLE_KEY], layer->number, why);
        if (!layer->key)
                return -EINVAL;
        r = tensor_check(layer->key, why);
        if (r)
                return r;
        layer->dtype_k = dtype_of(layer->key);
        layer->rows = (uint32_t)layer->key->shape[0];
        layer->kv_heads = layer->q_heads = (uint32_t)layer->key->shape[1];
        layer->dim_k = (uint32_t)layer->key->shape[2];
        if (wanted->value) {
                layer->value = tensor_find(file, &patterns[ROLE_VALUE], layer->number, why);
                r = layer->value ? value_load(layer, why) : -EINVAL;
                if (r)
                        return r;
        }
        if (wanted->query) {
                layer->query = tensor_find(file, &patterns[ROLE_QUERY], layer->number, why);
                r = layer->query ? query_load(wanted, layer, why) : -EINVAL;
                if (r)
                        return r;
                r = floats_load(file, &patterns[ROLE_LSE], layer, 2, &layer->lse, why);
                return r ? r : floats_load(file, &patterns[ROLE_SINK_LOGITS], layer, 1, &layer->sink_logits, why);
        }
        return 0;
}

static int by_number(const void *a, const void *b) {
        const struct ckv_layer *x = a, *y = b;

        return (x->number > y->number) - (x->number < y->number);
}

/* Numbers of the layers: those wanted, or all that have a key. */
static int numbers_fill(const struct ckv_safetensors *file, const struct pattern *key,
                        const struct ckv_layers_wanted *wanted, struct ckv_layer *layers, size_t *ret_count,
                        char *why) {
        size_t count = 0;

        for (size_t i = 0; i < wanted->count; i++)
                layers[count++].number = wanted->numbers[i];
        for (size_t i = 0; wanted->count == 0 && i < ckv_safetensors_count(file); i++) {
                if (pattern_match(key, ckv_safetensors_at(file, i)->name, &layers[count].number))
                        count++;
        }
        if (count == 0)
                return fail(why, "it has no tensor named %.64s0%.64s, or of another layer; --names says other names",
                            key->before, key->after);
        qsort(layers, count, sizeof(*layers), by_number);
        *ret_count = count;
        return 0;
}

int ckv_layers_load(const struct ckv_safetensors *file, const struct ckv_layers_wanted *wanted,
                    struct ckv_layer **ret_layers, size_t *ret_count, char ret_why[static CKV_SAFETENSORS_WHY]) {
        _cleanup_free_ struct ckv_layer *layers = NULL;
        struct pattern patterns[_ROLE_N];
        size_t count = 0;
        int r;

        r = patterns_read(wanted->names, patterns, ret_why);
        if (r)
                return r;
        layers = calloc(CKV_MAX(wanted->count, ckv_safetensors_count(file)) + 1, sizeof(*layers));
        if (!layers) {
                (void)fail(ret_why, "no memory for its layers");
                return -ENOMEM;
        }
        r = numbers_fill(file, &patterns[ROLE_KEY], wanted, layers, &count, ret_why);
        for (size_t i = 0; r == 0 && i < count; i++)
                r = layer_load(file, patterns, wanted, &layers[i], ret_why);
        if (r)
                return r;
        *ret_layers = ckv_steal(&layers);
        *ret_count = count;
        return 0;
}
