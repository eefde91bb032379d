/*
 * Finishing a move in place that was begun by somebody else: the batch rule,
 * and moving rows by the description of a cache.  Nothing in here knows a
 * client, a page or a message of ZeroMQ's.
 *
 * The rule (kernels/steps.h and reliability.md 8.3 say why; tests hold this to
 * the daemon's).  Row i of the result is row k[i], k ascending, k[i] >= i.
 * Leading rows with k[i] = i stay.  The rest is cut in ascending order into
 * batches [begin, end), each as long as it may be: end <= k[begin],
 * end - begin <= batch_rows unless that is 0, end <= the number of kept rows.
 * Step p of a job is batch p of every kept set that has one; p + 1 steps are
 * done when all rows of step p are written, and only then does step p + 1 begin.
 */
#ifndef CKV_CLIENTS_FORWARD_H
#define CKV_CLIENTS_FORWARD_H

#include "clients/c/include/chunkkv.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Adjacent kept rows: destination rows [dst, dst + len) are rows [src, src + len). */
struct ckv__run {
        uint32_t src, len, dst;
};

/* ckv__runs_split() - runs of the wire, checked, with their destinations. Return: how many; @ret_runs has room for count / 2. */
size_t ckv__runs_split(const uint32_t *runs, size_t count, struct ckv__run *ret_runs);

/* The batches of one kept set, one after the other. */
struct ckv__cut {
        const struct ckv__run *runs;    /* [count] */
        size_t count, run;              /* run: the one that holds row begin */
        uint32_t begin, end;            /* the batch of now; begin = end: there are no more */
};

/* ckv__cut_first() - batch 0 */
struct ckv__cut ckv__cut_first(const struct ckv__run *runs, size_t count, uint32_t batch_rows);
/* ckv__cut_next() - the batch behind it */
void ckv__cut_next(struct ckv__cut *cut, uint32_t batch_rows);

/* One plane as it is mapped here. */
struct ckv__plane {
        struct chunkkv_plane plane;
        uint8_t *memory;                /* of its region */
        uint32_t dims, element_bytes;
};

/* One kept set, and all that it moves. */
struct ckv__mover {
        struct ckv__cut cut;
        const struct ckv__plane *planes;        /* [plane_count] of the whole cache */
        size_t plane_count;
        uint32_t layer_first, layer_end;        /* numbers of layers [first, end) */
        const uint32_t *layers;                 /* [layer_count] of the group */
        size_t layer_count;
        uint32_t head_first, head_end;
        const uint64_t *slots;                  /* [rows] block * tokens_per_block + token of each row */
        uint32_t tokens_per_block;
};

/* ckv__mover_move() - rows of the batch of now; it reads none that it writes */
void ckv__mover_move(const struct ckv__mover *mover);

#endif
