/* The layers of a file of tensors: which tensor is whose key, value and query, and whether they fit together. */
#ifndef CKV_TOOLS_LAYERS_H
#define CKV_TOOLS_LAYERS_H

#include "tools/safetensors.h"

#include <stdbool.h>

struct ckv_layer {
        uint32_t number;
        uint32_t dtype_k, dtype_v, dtype_q;     /* chunkkv_dtype */
        uint32_t rows;                          /* of key and value */
        uint32_t query_rows;
        uint32_t kv_heads, q_heads, dim_k, dim_v;
        const struct ckv_tensor *key;           /* [rows][kv_heads][dim_k] */
        const struct ckv_tensor *value;         /* [rows][kv_heads][dim_v], NULL = not wanted */
        const struct ckv_tensor *query;         /* [query_rows][q_heads][dim_k], newest last, NULL = not wanted */
        const struct ckv_tensor *lse;           /* F32 [q_heads][query_rows], NULL = the file has none */
        const struct ckv_tensor *sink_logits;   /* F32 [q_heads], NULL = the file has none */
};

/* What ckv_layers_load() is to look for. */
struct ckv_layers_wanted {
        const char *names;                      /* "key=...{layer}...,..."; those missing: layer{layer}.key and so on */
        const uint32_t *numbers;                /* [count] ascending; none = every layer that has a key */
        size_t count;
        bool value, query;
        uint32_t window;                        /* least rows of a query; 0 = any */
        uint32_t query_rows;                    /* only so many of the newest; 0 = all */
};

/**
 * ckv_layers_load() - find the tensors of the layers wanted and check them
 * @ret_layers: [*ret_count] ascending, borrowing the tensors of @file; the caller frees it
 * @ret_why:    on failure one sentence
 *
 * Return: 0, -EINVAL or -ENOMEM.
 */
int ckv_layers_load(const struct ckv_safetensors *file, const struct ckv_layers_wanted *wanted,
                    struct ckv_layer **ret_layers, size_t *ret_count, char ret_why[static CKV_SAFETENSORS_WHY]);

#endif
