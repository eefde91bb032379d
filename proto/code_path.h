/*
 * Code paths of the CPU device as numbers and names (proto/code_path.def).
 */
#ifndef CKV_PROTO_CODE_PATH_H
#define CKV_PROTO_CODE_PATH_H

#include <stdint.h>

/* ckv_code_path_parse() - the number of a name; 0 if it has none */
uint32_t ckv_code_path_parse(const char *name);

/* ckv_code_path_to_string() - "avx512"; "?" for a number without a name */
const char *ckv_code_path_to_string(uint32_t number);

#endif
