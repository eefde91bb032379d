/*
 * CRC-32C (Castagnoli): guards the kept sets of a control slot.
 */
#ifndef CKV_BASE_CRC32C_H
#define CKV_BASE_CRC32C_H

#include <stddef.h>
#include <stdint.h>

/* ckv_crc32c() - of @n bytes; "123456789" gives 0xe3069283 */
uint32_t ckv_crc32c(const void *bytes, size_t n);

/* ckv_crc32c_portable() - the same without the instruction of SSE 4.2: what ckv_crc32c() is held to */
uint32_t ckv_crc32c_portable(const void *bytes, size_t n);

#endif
