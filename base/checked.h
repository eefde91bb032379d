/*
 * Overflow-checked arithmetic for sizes and strides that came from outside.
 * Each function returns true when the exact result fits and was stored.
 */
#ifndef CKV_BASE_CHECKED_H
#define CKV_BASE_CHECKED_H

#include <stdbool.h>
#include <stdint.h>

/* ckv_add_u64() - a + b */
static inline bool ckv_add_u64(uint64_t a, uint64_t b, uint64_t *ret_sum) {
        return !__builtin_add_overflow(a, b, ret_sum);
}

/* ckv_mul_u64() - a * b */
static inline bool ckv_mul_u64(uint64_t a, uint64_t b, uint64_t *ret_product) {
        return !__builtin_mul_overflow(a, b, ret_product);
}

/* ckv_madd_u64() - *sum += a * b, all of it checked; *sum is untouched on failure */
static inline bool ckv_madd_u64(uint64_t a, uint64_t b, uint64_t *sum) {
        uint64_t product, total;

        if (!ckv_mul_u64(a, b, &product) || !ckv_add_u64(*sum, product, &total))
                return false;
        *sum = total;
        return true;
}

/* ckv_fits_u64() - does [offset, offset + size) lie inside [0, total)? */
static inline bool ckv_fits_u64(uint64_t offset, uint64_t size, uint64_t total) {
        return offset <= total && size <= total - offset;
}

#endif
