/*
 * FNV-1a, 64 bits: the digest of kept sets and of request bodies.  Not a
 * defence against a chosen collision; where a tenant could gain from one
 * (hash tables) base/hash.h seeds its own function.
 */
#ifndef CKV_BASE_FNV_H
#define CKV_BASE_FNV_H

#include <stddef.h>
#include <stdint.h>

#define CKV_FNV64_INIT UINT64_C(0xcbf29ce484222325)

/* ckv_fnv64() - continue an FNV-1a 64 digest over n bytes; start with CKV_FNV64_INIT */
static inline uint64_t ckv_fnv64(uint64_t digest, const void *bytes, size_t n) {
        const uint8_t *p = bytes;

        for (size_t i = 0; i < n; i++)
                digest = (digest ^ p[i]) * UINT64_C(0x100000001b3);
        return digest;
}

#endif
