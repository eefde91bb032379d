/*
 * A long copy with stores past the caches, 32 bytes each.
 *
 * 256 bytes are loaded before they are stored, so a target below its source may
 * overlap it.  Each pass asks for what is read 2 KiB later; the first 2 KiB of a
 * run were asked for while the one before was copied.  Measured on a Zen 5: as
 * fast as 64-byte stores, 1.2 times as fast as 16-byte ones, and 1.1 times as
 * fast as without asking within the run.
 */
#include "kernels/cpu_copy.h"

#include "base/macros.h"

#include <immintrin.h>
#include <string.h>

enum { LINE = 64, PASS = 256 };

static inline void stream_pass(uint8_t *to, const uint8_t *from) {
        __m256i x0 = _mm256_loadu_si256((const __m256i *)(const void *)from);
        __m256i x1 = _mm256_loadu_si256((const __m256i *)(const void *)(from + 32));
        __m256i x2 = _mm256_loadu_si256((const __m256i *)(const void *)(from + 64));
        __m256i x3 = _mm256_loadu_si256((const __m256i *)(const void *)(from + 96));
        __m256i x4 = _mm256_loadu_si256((const __m256i *)(const void *)(from + 128));
        __m256i x5 = _mm256_loadu_si256((const __m256i *)(const void *)(from + 160));
        __m256i x6 = _mm256_loadu_si256((const __m256i *)(const void *)(from + 192));
        __m256i x7 = _mm256_loadu_si256((const __m256i *)(const void *)(from + 224));

        _mm256_stream_si256((__m256i *)(void *)to, x0);
        _mm256_stream_si256((__m256i *)(void *)(to + 32), x1);
        _mm256_stream_si256((__m256i *)(void *)(to + 64), x2);
        _mm256_stream_si256((__m256i *)(void *)(to + 96), x3);
        _mm256_stream_si256((__m256i *)(void *)(to + 128), x4);
        _mm256_stream_si256((__m256i *)(void *)(to + 160), x5);
        _mm256_stream_si256((__m256i *)(void *)(to + 192), x6);
        _mm256_stream_si256((__m256i *)(void *)(to + 224), x7);
}

void ckv__copy_stream_avx(uint8_t *to, const uint8_t *from, uint64_t bytes, const uint8_t *next, uint64_t next_bytes) {
        uint64_t head = CKV_MIN(-(uintptr_t)to % LINE, bytes);

        for (uint64_t b = 0; b < CKV_MIN(next_bytes, CKV_COPY_AHEAD); b += LINE)
                __builtin_prefetch(next + b);
        if (head > 0)
                memmove(to, from, head);
        to += head;
        from += head;
        for (bytes -= head; bytes >= PASS; bytes -= PASS, to += PASS, from += PASS) {
                if (bytes > CKV_COPY_AHEAD)
                        for (uint64_t b = 0; b < PASS; b += LINE)
                                __builtin_prefetch(from + CKV_COPY_AHEAD + b);
                stream_pass(to, from);
        }
        if (bytes > 0)
                memmove(to, from, bytes);
}
