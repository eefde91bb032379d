/* Writes what a compression left: a safetensors file. */
#ifndef CKV_TOOLS_COMPRESS_H
#define CKV_TOOLS_COMPRESS_H

#include "tools/files.h"
#include "tools/plan.h"
#include "tools/safetensors.h"

/**
 * ckv_compress_check() - are the layers whole, so that row N is position N?
 * @layers:  [count]
 * @ret_why: on failure one sentence, to follow the name of the file
 *
 * Return: 0; -EINVAL for layers that were compressed before.
 */
int ckv_compress_check(const struct ckv_safetensors *file, const struct ckv_layer *layers, size_t count,
                       char ret_why[static CKV_SAFETENSORS_WHY]);

/**
 * ckv_compress_write() - every tensor of @file, those of the plan's layers with their kept rows alone
 * @layers: [plan->layer_count] ascending, as the plan's
 * @plan:   with kept rows of key and value
 *
 * Adds layerN.kept_rows, I64 [n], for each of them, and to the metadata logical_len, profile, and what was asked for:
 * keep_ratio, max_tokens.  Errors of writing stay in @output.
 *
 * Return: 0 or -ENOMEM.
 */
int ckv_compress_write(const struct ckv_safetensors *file, const struct ckv_settings *settings,
                       const struct ckv_layer *layers, const struct ckv_plan *plan, struct ckv_output *output);

#endif
