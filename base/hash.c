/*
 * The hash function behind all tables: SipHash-2-4, as published ("SipHash: a
 * fast short-input PRF", 2012), with a key of 128 random bits for each run of
 * the program.  Keys are 4 to 20 bytes here, so speed is of no concern; what
 * counts is that nobody outside can find two keys that collide.
 *
 * The key is process-wide on purpose: it is drawn once, before the first
 * table exists, and never changes, because a change would lose elements.
 */
#include "base/hash.h"

#include "base/error.h"
#include "base/random.h"

#include <string.h>

static uint64_t seed[2];

int ckv_hash_seed(void) {
        return ckv_error_trace(ckv_random(seed, sizeof(seed)));
}

static uint64_t rotate(uint64_t x, unsigned bits) {
        return x << bits | x >> (64 - bits);
}

static void sip_rounds(uint64_t v[static 4], unsigned rounds) {
        while (rounds--) {
                v[0] += v[1];
                v[1] = rotate(v[1], 13) ^ v[0];
                v[0] = rotate(v[0], 32);
                v[2] += v[3];
                v[3] = rotate(v[3], 16) ^ v[2];
                v[0] += v[3];
                v[3] = rotate(v[3], 21) ^ v[0];
                v[2] += v[1];
                v[1] = rotate(v[1], 17) ^ v[2];
                v[2] = rotate(v[2], 32);
        }
}

uint64_t ckv_siphash24(const uint64_t key[static 2], const void *bytes, size_t n) {
        /* "somepseudorandomlygeneratedbytes", the constants of the paper */
        uint64_t v[4] = { key[0] ^ UINT64_C(0x736f6d6570736575), key[1] ^ UINT64_C(0x646f72616e646f6d),
                          key[0] ^ UINT64_C(0x6c7967656e657261), key[1] ^ UINT64_C(0x7465646279746573) };
        const uint8_t *p = bytes;
        uint64_t word, last = (uint64_t)n << 56;
        size_t left;

        for (left = n; left >= 8; left -= 8, p += 8) {
                memcpy(&word, p, 8);
                v[3] ^= word;
                sip_rounds(v, 2);
                v[0] ^= word;
        }
        for (size_t i = 0; i < left; i++)
                last |= (uint64_t)p[i] << (8 * i);
        v[3] ^= last;
        sip_rounds(v, 2);
        v[0] ^= last;

        v[2] ^= 0xff;
        sip_rounds(v, 4);
        return v[0] ^ v[1] ^ v[2] ^ v[3];
}

uint32_t ckv_hash(const void *bytes, size_t n) {
        uint64_t digest = ckv_siphash24(seed, bytes, n);

        return (uint32_t)(digest ^ digest >> 32);
}
