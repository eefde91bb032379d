/* Numbers as people type them: strict, so that a typing error is never a value. */
#ifndef CKV_TOOLS_NUMBERS_H
#define CKV_TOOLS_NUMBERS_H

#include <stdbool.h>
#include <stdint.h>

/* ckv_u32_parse() - decimal digits alone, nothing before or behind. Return: true if it fits 32 bits. */
bool ckv_u32_parse(const char *text, uint32_t *ret_value);

/* ckv_real_parse() - a finite decimal number, at least 0. Return: true if it is one. */
bool ckv_real_parse(const char *text, double *ret_value);

/**
 * ckv_millionths_parse() - a part of a whole, "0.2", as millionths of it, 200000
 *
 * Read from the digits, never through a double: 0.1 is 100000 exactly.
 *
 * Return: NULL and 1 to 1000000 in *ret_value; or what is wrong, as constant text that completes "must ...".
 */
const char *ckv_millionths_parse(const char *text, uint32_t *ret_value);

/* ckv_span_parse() - "100:140", half-open. Return: NULL and first < end; or what is wrong, completing "must ...". */
const char *ckv_span_parse(const char *text, uint32_t *ret_first, uint32_t *ret_end);

#endif
