/*
 * The reader of safetensors files and of token lists: any bytes are a file
 * whose tensors lie inside it, or a refusal with a sentence.
 */
#include "tests/fuzz/fuzz.h"

#include "tools/safetensors.h"
#include "tools/tokens.h"

#include <errno.h>

static volatile uint8_t sink;

static void read_tensors(const uint8_t *data, size_t size) {
        char why[CKV_SAFETENSORS_WHY] = "";
        struct ckv_safetensors *file = NULL;
        const char *key, *value;
        int r = ckv_safetensors_parse(data, size, &file, why);

        if (r) {
                fuzz_assert(r == -EBADMSG && why[0] && !file);
                return;
        }
        for (size_t i = 0; i < ckv_safetensors_count(file); i++) {
                const struct ckv_tensor *tensor = ckv_safetensors_at(file, i);

                fuzz_assert(tensor->rank <= CKV_TENSOR_RANK_MAX);
                fuzz_assert(tensor->data >= data && tensor->size <= (size_t)(data + size - tensor->data));
                for (uint64_t k = 0; k < tensor->size; k++)
                        sink = tensor->data[k];
                fuzz_assert(ckv_safetensors_find(file, tensor->name));
        }
        for (size_t i = 0; ckv_safetensors_metadata(file, i, &key, &value); i++)
                sink = (uint8_t)(strlen(key) + strlen(value));
        ckv_safetensors_close(file);
}

static void read_tokens(const char *text, size_t size) {
        char why[CKV_FILES_WHY] = "";
        struct ckv_tokens tokens;
        int r = ckv_tokens_parse(text, size, &tokens, why);

        if (r) {
                fuzz_assert(r == -EBADMSG && why[0]);
                return;
        }
        for (size_t i = 0; i < tokens.count; i++)
                sink = (uint8_t)strlen(tokens.pieces[i]);
        ckv_tokens_deinit(&tokens);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
        read_tensors(data, size);
        read_tokens((const char *)data, size);
        return 0;
}
