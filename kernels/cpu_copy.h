/*
 * Bytes from one place of a tensor to another, at the speed of memory.
 */
#ifndef CKV_KERNELS_CPU_COPY_H
#define CKV_KERNELS_CPU_COPY_H

#include <stdint.h>

enum {
        CKV_COPY_STREAM = 2048,         /* bytes from which on a piece goes past the caches */
        CKV_COPY_AHEAD = 2048,          /* bytes that are asked of memory ahead of the copy, in this piece and the next */
};

/* Pieces of one thread, one after the other. The last one given is still to be copied: {0} when there is none. */
struct ckv_copy {
        uint8_t *to;
        const uint8_t *from;
        uint64_t bytes;
};

/**
 * ckv__copy_put() - copy the piece that was given before, and remember this one
 * @to, @from: any alignment; they may overlap, with the same result as memmove()
 * @bytes:     0 gives nothing
 *
 * Pieces are written in the order in which they are given; nothing of a piece is read before the one before is written,
 * but for its first bytes, which are asked of memory meanwhile.
 */
void ckv__copy_put(struct ckv_copy *copy, uint8_t *to, const uint8_t *from, uint64_t bytes);

/* ckv__copy_end() - copy what was given last. All writes of this thread are now in order before those that follow. */
void ckv__copy_end(struct ckv_copy *copy);

/* ckv__copy_stream_avx() - @bytes > 0 ascending, for @to below @from or apart from it; the order of the writes is open until
 * an sfence. @next, @next_bytes: where the next piece will be read, to be asked of memory. */
void ckv__copy_stream_avx(uint8_t *to, const uint8_t *from, uint64_t bytes, const uint8_t *next, uint64_t next_bytes);

#endif
