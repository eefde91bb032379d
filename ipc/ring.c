/*
 * One-way rings for attachments.  Writer and reader each keep their own
 * position in private memory; the only thing they share is the bytes.  So a
 * hostile writer can spoil its own attachments and nothing else, and a hostile
 * reader can at most make the writer wait.
 *
 * Both sides compute the place of the next attachment from the same rule
 * (place() below).  The reader therefore does not believe an offset, it
 * checks it.  Attachments start at multiples of 8, so that structs may be
 * written and copied without unaligned access.
 *
 * Nothing here waits or wakes: records on the pair do that.
 */
#include "ipc/ring.h"

#include "base/checked.h"
#include "base/error.h"
#include "base/macros.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#define RING_ALIGN 8

int ckv_ring_create(uint32_t size, int *ret_fd) {
        _cleanup_close_ int fd = -1;
        int r;

        if (size == 0 || size % RING_ALIGN)
                return ckv_error_origin(-EINVAL);

        fd = memfd_create("chunkkv-ring", MFD_CLOEXEC | MFD_ALLOW_SEALING);
        if (fd < 0)
                return ckv_error_origin(-errno);
        /* allocated now: a write to a hole could fail later, with SIGBUS */
        r = posix_fallocate(fd, 0, size);
        if (r != 0)
                return ckv_error_origin(-r);
        if (fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) < 0)
                return ckv_error_origin(-errno);

        *ret_fd = fd;
        fd = -1; /* consumed by the caller */
        return 0;
}

int ckv_ring_init(struct ckv_ring *ring, int fd, uint32_t size, bool writer) {
        struct stat st;
        void *base;

        if (size == 0 || size % RING_ALIGN)
                return ckv_error_origin(-EINVAL);
        if (fstat(fd, &st) < 0)
                return ckv_error_origin(-errno);
        if (st.st_size != (off_t)size)
                return ckv_error_origin(-EINVAL);

        base = mmap(NULL, size, writer ? PROT_READ | PROT_WRITE : PROT_READ, MAP_SHARED, fd, 0);
        if (base == MAP_FAILED)
                return ckv_error_origin(-errno);
        /* tables of tenants have no place in a core dump */
        (void)madvise(base, size, MADV_DONTDUMP);

        *ring = (struct ckv_ring){ .base = base, .size = size };
        return 0;
}

void ckv_ring_deinit(struct ckv_ring *ring) {
        if (ring->base)
                (void)munmap(ring->base, ring->size);
        *ring = (struct ckv_ring){ 0 };
}

/* place() - position at which an attachment of @bytes must start, and the one where the next may */
static uint64_t place(const struct ckv_ring *ring, uint32_t bytes, uint64_t *ret_end) {
        uint64_t start = ring->head, offset = start % ring->size;

        if (!ckv_fits_u64(offset, bytes, ring->size))
                start += ring->size - offset;
        *ret_end = start + ((uint64_t)bytes + RING_ALIGN - 1) / RING_ALIGN * RING_ALIGN;
        return start;
}

void *ckv_ring_reserve(struct ckv_ring *ring, uint32_t bytes, uint32_t *ret_offset) {
        uint64_t start, end;

        if (bytes == 0 || bytes > ring->size / 2)
                return NULL;
        start = place(ring, bytes, &end);
        if (end - ring->tail > ring->size)
                return NULL;

        ring->head = end;
        *ret_offset = (uint32_t)(start % ring->size);
        return ring->base + *ret_offset;
}

bool ckv_ring_consumed(struct ckv_ring *ring, uint64_t position) {
        if (position < ring->tail || position > ring->head)
                return false;
        ring->tail = position;
        return true;
}

const void *ckv_ring_read(struct ckv_ring *ring, uint32_t offset, uint32_t bytes) {
        uint64_t start, end;

        if (bytes == 0 || bytes > ring->size / 2)
                return NULL;
        start = place(ring, bytes, &end);
        if (offset != start % ring->size)
                return NULL;

        ring->head = end;
        return ring->base + offset;
}
