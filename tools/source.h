/* Where chunkkvctl gets its tensors from: a safetensors file, or one .npy file for each of a single layer's. */
#ifndef CKV_TOOLS_SOURCE_H
#define CKV_TOOLS_SOURCE_H

#include "tools/npy.h"
#include "tools/safetensors.h"
#include "tools/settings.h"

struct ckv_source {
        struct ckv_safetensors *file;   /* of .npy files: layer0.key, layer0.query, layer0.value */
        struct ckv_npy npy[3];
        const char *label;              /* the file to name in front of what is wrong; borrowed from the settings */
};

/**
 * ckv_source_open() - open what the command line names
 * @needs_query: .npy files: say so if there is none
 * @needs_value: the same
 * @ret_source:  ends with ckv_source_close(), also after a failure; its label is set in any case
 * @ret_why:     on failure one sentence, to follow the label
 *
 * Return: 0 or -errno.
 */
int ckv_source_open(const struct ckv_settings *settings, bool needs_query, bool needs_value,
                    struct ckv_source *ret_source, char ret_why[static CKV_SAFETENSORS_WHY]);

/* ckv_source_close() - close all of it */
void ckv_source_close(struct ckv_source *source);

#endif
