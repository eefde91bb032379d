/*
 * Scoring takes megabytes for milliseconds, and memory that is fresh from the
 * system costs a page fault for each 4 KiB, which is more than what is then
 * written there.  So what is given back is kept, up to as much as one job may
 * have, and the next job takes the smallest piece that will do.  Small pieces
 * are no matter, the C library keeps those itself.
 *
 * A device that is idle shall be small: what nobody takes for five seconds is
 * freed and goes back to the system.  And a job shall not pay for another: what
 * is kept and will not do for it is dropped before both together are more than
 * one job may have.  The C library would hold on to large pieces that lie below
 * something else, so those are mapped.
 *
 * Builds with a sanitizer keep nothing, so that a use after the end shows.
 */
#include "kernels/cpu_scratch.h"

#include "base/clock.h"
#include "base/macros.h"
#include "kernels/cpu_kernel.h"

#include <assert.h>
#include <malloc.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum {
        KEPT_MOST = 32,                 /* pieces */
        KEPT_LEAST_BYTES = 64 << 10,    /* of a piece that is worth it */
};

/* with a sanitizer the C library gives them all, so that they are watched */
#define MAPPED_LEAST_BYTES (CKV_SANITIZED ? SIZE_MAX : (size_t)1 << 20)


#define KEPT_NSEC (5 * CKV_NSEC_PER_SEC)

/* In front of each piece */
struct piece {
        uint64_t bytes;                 /* behind it */
        uint64_t given_nsec;
};

_Static_assert(sizeof(struct piece) <= CKV_CPU_ALIGN, "what lies behind is aligned");

struct ckv_cpu_scratch {
        uint64_t limit, taken, most, kept;      /* bytes */
        uint32_t count;
        struct piece *pieces[KEPT_MOST];        /* [count] the one given back last is last */
};

/* Large ones are the system's, so that those that are dropped go back at once */
static struct piece *piece_new(size_t bytes) {
        size_t all = bytes + CKV_CPU_ALIGN;
        struct piece *piece;

        if (all < MAPPED_LEAST_BYTES)
                piece = aligned_alloc(CKV_CPU_ALIGN, all);
        else {
                piece = mmap(NULL, all, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
                piece = piece == MAP_FAILED ? NULL : piece;
        }
        if (piece)
                piece->bytes = bytes;
        return piece;
}

static void piece_free(struct piece *piece) {
        size_t all = piece->bytes + CKV_CPU_ALIGN;

        if (all < MAPPED_LEAST_BYTES)
                free(piece);
        else
                (void)munmap(piece, all);
}

static struct piece *piece_of(void *memory) {
        return (struct piece *)(void *)((uint8_t *)memory - CKV_CPU_ALIGN);
}

struct ckv_cpu_scratch *ckv__cpu_scratch_new(uint64_t bytes) {
        struct ckv_cpu_scratch *scratch = calloc(1, sizeof(*scratch));

        if (scratch)
                scratch->limit = bytes ? bytes : CKV_CPU_SCRATCH_BYTES;
        return scratch;
}

static void drop(struct ckv_cpu_scratch *scratch, uint32_t index) {
        scratch->kept -= scratch->pieces[index]->bytes;
        piece_free(scratch->pieces[index]);
        scratch->count--;
        memmove(scratch->pieces + index, scratch->pieces + index + 1, (scratch->count - index) * sizeof(scratch->pieces[0]));
}

struct ckv_cpu_scratch *ckv__cpu_scratch_free(struct ckv_cpu_scratch *scratch) {
        if (!scratch)
                return NULL;
        assert(scratch->taken == 0);
        while (scratch->count > 0)
                drop(scratch, 0);
        free(scratch);
        return NULL;
}

uint64_t ckv__cpu_scratch_limit(const struct ckv_cpu_scratch *scratch) {
        return scratch ? scratch->limit : CKV_CPU_SCRATCH_BYTES;
}

/* The smallest that will do, and not one that a larger need will miss; NULL: none */
static struct piece *take_kept(struct ckv_cpu_scratch *scratch, uint64_t bytes) {
        struct piece *piece = NULL;
        uint32_t best = 0;

        for (uint32_t i = 0; i < scratch->count; i++) {
                struct piece *other = scratch->pieces[i];

                if (other->bytes >= bytes && other->bytes / 2 <= bytes && (!piece || other->bytes < piece->bytes)) {
                        piece = other;
                        best = i;
                }
        }
        if (!piece)
                return NULL;
        scratch->kept -= piece->bytes;
        scratch->count--;
        memmove(scratch->pieces + best, scratch->pieces + best + 1, (scratch->count - best) * sizeof(scratch->pieces[0]));
        return piece;
}

void *ckv__cpu_scratch_take(struct ckv_cpu_scratch *scratch, size_t bytes) {
        size_t rounded = (bytes + CKV_CPU_ALIGN - 1) / CKV_CPU_ALIGN * CKV_CPU_ALIGN;
        struct piece *piece = NULL;

        if (rounded < bytes || rounded > SIZE_MAX - CKV_CPU_ALIGN)
                return NULL;
        if (scratch && rounded >= KEPT_LEAST_BYTES)
                piece = take_kept(scratch, rounded);
        if (!piece) {
                /* what is kept and will not do makes room: both together may be more than a job shall do with */
                while (scratch && scratch->count > 0 && scratch->taken + scratch->kept + rounded > scratch->limit)
                        drop(scratch, 0);
                piece = piece_new(rounded);
                if (!piece)
                        return NULL;
        }
        if (scratch) {
                scratch->taken += piece->bytes;
                scratch->most = CKV_MAX(scratch->most, scratch->taken);
        }
        return (uint8_t *)piece + CKV_CPU_ALIGN;
}

void ckv__cpu_scratch_give(struct ckv_cpu_scratch *scratch, void *memory) {
        struct piece *piece;

        if (!memory)
                return;
        piece = piece_of(memory);
        if (scratch)
                scratch->taken -= piece->bytes;
        if (!scratch || CKV_SANITIZED || piece->bytes < KEPT_LEAST_BYTES || piece->bytes > scratch->limit) {
                piece_free(piece);
                return;
        }
        while (scratch->count == KEPT_MOST || scratch->kept + piece->bytes > scratch->limit)
                drop(scratch, 0);
        piece->given_nsec = ckv_now_nsec();
        scratch->pieces[scratch->count++] = piece;
        scratch->kept += piece->bytes;
}

void ckv__cpu_scratch_age(struct ckv_cpu_scratch *scratch, uint64_t now_nsec) {
        bool dropped = false;

        for (; scratch->count > 0 && scratch->pieces[0]->given_nsec + KEPT_NSEC <= now_nsec; dropped = true)
                drop(scratch, 0);
        /* freed pieces may lie below others, where the C library would hold on to them */
        if (dropped)
                (void)malloc_trim(0);
}

uint64_t ckv__cpu_scratch_kept(const struct ckv_cpu_scratch *scratch) {
        return scratch->kept;
}

uint64_t ckv__cpu_scratch_most(const struct ckv_cpu_scratch *scratch) {
        return scratch->most;
}
