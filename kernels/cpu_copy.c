/*
 * Copies of runs of rows.  A run of a chunk is 2 to 20 KB: too short for
 * memmove() to use stores that go past the caches, which it keeps for
 * megabytes, and for the hardware to see where the next one will be read.  Both
 * are known here.  A store past the caches spares the read of the line that is
 * overwritten, a third of the traffic.
 *
 * So a piece is copied when the next one is known, whose first bytes are asked
 * of memory on the way.  Reading ahead of the writes like this is always safe;
 * the writes keep their order (kernels.md 6).
 *
 * Writes past the caches are not in order with others.  ckv__copy_end() makes
 * them so, on the thread that made them; a count of steps that another thread
 * stores after it was joined is then behind them all.
 */
#include "kernels/cpu_copy.h"

#include "base/macros.h"

#include <stdbool.h>
#include <string.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

/* copy_one() - and ask for the start of @next meanwhile */
static void copy_one(const struct ckv_copy *copy, const uint8_t *next, uint64_t next_bytes) {
#if defined(__x86_64__)
        /* in one go upwards is right but for a source that begins below; rows never move so */
        bool ascends = (uintptr_t)copy->to - (uintptr_t)copy->from >= copy->bytes;

        if (copy->bytes >= CKV_COPY_STREAM && ascends && __builtin_cpu_supports("avx")) {
                ckv__copy_stream_avx(copy->to, copy->from, copy->bytes, next, next_bytes);
                return;
        }
#endif
        for (uint64_t b = 0; b < CKV_MIN(next_bytes, CKV_COPY_AHEAD); b += 64)
                __builtin_prefetch(next + b);
        memmove(copy->to, copy->from, copy->bytes);
}

void ckv__copy_put(struct ckv_copy *copy, uint8_t *to, const uint8_t *from, uint64_t bytes) {
        if (copy->bytes > 0)
                copy_one(copy, from, bytes);
        *copy = (struct ckv_copy){ .to = to, .from = from, .bytes = bytes };
}

void ckv__copy_end(struct ckv_copy *copy) {
        ckv__copy_put(copy, NULL, NULL, 0);
#if defined(__x86_64__)
        _mm_sfence();
#endif
}
