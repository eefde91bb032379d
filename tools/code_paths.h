/* Which code of a daemon scores which shapes, as part of what `chunkkvctl status` prints. */
#ifndef CKV_TOOLS_CODE_PATHS_H
#define CKV_TOOLS_CODE_PATHS_H

#include "clients/c/include/chunkkv.h"

#include <cjson/cJSON.h>

/* ckv_code_paths_print() - a table to stdout: types and head dimensions down, queries across; nothing if @count is 0 */
void ckv_code_paths_print(const struct chunkkv_code_path *paths, size_t count);

/* ckv_code_paths_add() - "code_paths": a list of [count] objects; null stands for "all others" and "no end" */
void ckv_code_paths_add(cJSON *to, const struct chunkkv_code_path *paths, size_t count);

#endif
