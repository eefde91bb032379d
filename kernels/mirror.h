/*
 * Memory that is not mapped but copied: a file whose owner can truncate it at
 * any time is read and written with pread(2) and pwrite(2) only.  A mirror is
 * private memory as long as the stretch of the file that it stands for; a
 * job computes on it like on a mapping.  What the job reads is pulled before its
 * first slice, what it moved is pushed after its last.
 */
#ifndef CKV_KERNELS_MIRROR_H
#define CKV_KERNELS_MIRROR_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct ckv_job;

struct ckv_mirror {
        int fd;                         /* borrowed */
        uint64_t offset;                /* in the file, of base */
        uint8_t *base;
        uint64_t size;                  /* bytes */
        atomic_bool lost;               /* a byte could not be read or written: the file is shorter than it was */
};

/* Bytes of a mirror. */
struct ckv_mirror_span {
        struct ckv_mirror *mirror;
        uint8_t *address;
        uint64_t bytes;
};

/* How far the bytes of a job have been copied; zeroed: nothing yet. */
struct ckv_mirror_walk {
        uint32_t span, group, layer, plane, head, row, dim;
        bool begun;                     /* row is one of this head's rows */
        struct ckv_mirror_span now;     /* what is being copied */
};

/* ckv_mirror_pull() - copy a few bytes out of the file, at once. Return: false if they are not there; the mirror is lost then. */
bool ckv_mirror_pull(struct ckv_mirror *mirror, uint8_t *address, uint64_t bytes);

/**
 * ckv_mirrors_step() - copy what job->stage needs until a point in time
 *
 * CKV_STAGE_PLAN: job->spans and all rows of all tables are pulled. CKV_STAGE_MOVE: the rows that have moved are pushed,
 * and no byte beside them. Planes that lie in no mirror of the job are left alone. What cannot be copied marks its mirror
 * lost, and the rest goes on.
 *
 * Return: true when there is nothing left.
 */
bool ckv_mirrors_step(struct ckv_job *job, uint64_t until_nsec);

#endif
