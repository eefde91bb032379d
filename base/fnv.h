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

/**
 * ckv_fnv64_words() - the same over the bytes of little-endian words
 *
 * Bytes that are zero only multiply.  Most words of kept sets are below 256 and those of tables below 65,536, so one or
 * two products of the chain are left of four: kept sets can have millions of words, and the event loop waits for them.
 */
static inline uint64_t ckv_fnv64_words(uint64_t digest, const uint32_t *words, size_t n) {
        const uint64_t prime = UINT64_C(0x100000001b3), prime2 = prime * prime, prime3 = prime2 * prime;

        for (size_t i = 0; i < n; i++) {
                uint32_t word = words[i];

                if (word < 0x100) {
                        digest = (digest ^ word) * (prime3 * prime);
                        continue;
                }
                digest = (digest ^ (word & 0xff)) * prime ^ (word >> 8 & 0xff);
                digest = word < 0x10000 ? digest * prime3 : ((digest * prime ^ (word >> 16 & 0xff)) * prime ^ word >> 24) * prime;
        }
        return digest;
}

#endif
