/*
 * All that comes after the files sees one kind of thing, a safetensors file:
 * .npy files are wrapped as one whose only layer has the number 0.
 */
#include "tools/source.h"

#include "base/macros.h"

#include <errno.h>
#include <stdio.h>

static int npy_open(const struct ckv_settings *settings, bool needs_query, bool needs_value,
                    struct ckv_source *source, char *why) {
        const struct { const char *path, *name, *option; bool needed; } files[] = {
                { settings->key, "layer0.key", "--key", true },
                { settings->query, "layer0.query", "--query", needs_query },
                { settings->value, "layer0.value", "--value", needs_value },
        };
        struct ckv_tensor tensors[CKV_ARRAY_SIZE(files)];
        size_t count = 0;
        int r;

        static_assert(CKV_ARRAY_SIZE(files) == CKV_ARRAY_SIZE(source->npy), "a file for each");
        for (size_t i = 0; i < CKV_ARRAY_SIZE(files); i++) {
                if (!files[i].path && files[i].needed) {
                        (void)snprintf(why, CKV_SAFETENSORS_WHY, "%s must be given with it", files[i].option);
                        return -EINVAL;
                }
                if (!files[i].path)
                        continue;
                source->label = files[i].path;
                r = ckv_npy_open(files[i].path, settings->npy_dtype != 0, files[i].name, &source->npy[count], why);
                if (r)
                        return r;
                tensors[count] = source->npy[count].tensor;
                count++;
        }
        source->label = settings->key;
        r = ckv_safetensors_wrap(tensors, count, &source->file);
        if (r)
                (void)snprintf(why, CKV_SAFETENSORS_WHY, "no memory for its tensors");
        return r;
}

int ckv_source_open(const struct ckv_settings *settings, bool needs_query, bool needs_value,
                    struct ckv_source *ret_source, char ret_why[static CKV_SAFETENSORS_WHY]) {
        *ret_source = (struct ckv_source){ .label = settings->key ? settings->key : settings->path };
        if (settings->key)
                return npy_open(settings, needs_query, needs_value, ret_source, ret_why);
        return ckv_safetensors_open(settings->path, &ret_source->file, ret_why);
}

void ckv_source_close(struct ckv_source *source) {
        source->file = ckv_safetensors_close(source->file);
        for (size_t i = 0; i < CKV_ARRAY_SIZE(source->npy); i++)
                ckv_npy_close(&source->npy[i]);
}
