/*
 * Attachments of records: one ring of CKV_RING_BYTES in a sealed memfd for
 * each direction, one writer, one reader, no shared counters.  The writer
 * places an attachment contiguously (if it does not fit before the end it
 * starts again at offset 0) and names offset and length in its record.  The
 * reader copies it out, only then looks at it, and reports in its own next
 * record how far it has read, as a position that only grows; the writer never
 * overwrites what was not reported.
 *
 * A position is the total number of bytes written since the start, skipped
 * bytes included; offset = position % size.  Attachments start at multiples
 * of 8, and the size of a ring is one.
 */
#ifndef CKV_IPC_RING_H
#define CKV_IPC_RING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ckv_ring {
        uint8_t *base;          /* mapping of the memfd; writable at the writer, read-only at the reader */
        uint32_t size;          /* bytes */
        uint64_t head;          /* writer: position after the last attachment; reader: after the last one read */
        uint64_t tail;          /* writer: position up to which the reader has read */
};

/* ckv_ring_create() - a new memfd of @size bytes, sealed SHRINK, GROW, SEAL. Return: 0 or -errno. */
int ckv_ring_create(uint32_t size, int *ret_fd);

/* ckv_ring_init() - map a ring; @fd is *NOT* consumed and not needed afterwards. Return: 0 or -errno. */
int ckv_ring_init(struct ckv_ring *ring, int fd, uint32_t size, bool writer);
void ckv_ring_deinit(struct ckv_ring *ring);

/**
 * ckv_ring_reserve() - writer: room for one attachment
 * @bytes:      at least 1, at most size / 2
 * @ret_offset: where to write it, and what to name in the record
 *
 * Return: the address to write to, or NULL while the reader has not read enough.
 */
void *ckv_ring_reserve(struct ckv_ring *ring, uint32_t bytes, uint32_t *ret_offset);

/* ckv_ring_consumed() - writer: the other side reports a position. Return: false if it cannot be true (a lie). */
bool ckv_ring_consumed(struct ckv_ring *ring, uint64_t position);

/**
 * ckv_ring_read() - reader: address of an attachment that a record names, and advance head past it
 *
 * The bytes may change under the reader if the writer is hostile: copy first, then check.
 *
 * Return: NULL if offset or length lie outside the ring or are not where the next attachment must be.
 */
const void *ckv_ring_read(struct ckv_ring *ring, uint32_t offset, uint32_t bytes);

#endif
