/*
 * Do two pieces of shared memory have bytes in common?  Compared by file and
 * place in the file, not by address: one memfd can be mapped twice.
 */
#ifndef CKV_DAEMON_OVERLAP_H
#define CKV_DAEMON_OVERLAP_H

#include "daemon/extent.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

/* A stretch of a file; no bytes: nowhere. */
struct ckv_place {
        dev_t dev;
        ino_t ino;
        uint64_t start, bytes;
};

/* Elements at start + sum of index * stride inside a place. */
struct ckv_footprint {
        struct ckv_place place;         /* from the first byte to the last */
        struct ckv_dim dims[7];         /* [dim_count] count >= 2, sorted by stride, largest first, nested (ckv_dims_distinct) */
        uint32_t dim_count;
        uint64_t element;               /* bytes */
};

/* ckv_places_overlap() - is any byte in both? */
bool ckv_places_overlap(const struct ckv_place *a, const struct ckv_place *b);

/* ckv_footprint_init() - from dims in any order, which must be distinct */
void ckv_footprint_init(struct ckv_footprint *footprint, const struct ckv_place *place, const struct ckv_dim *dims, uint32_t n,
                        uint64_t element);

/**
 * ckv_footprints_overlap() - may the two have an element byte in common?
 *
 * Never false if they have; true without need only where strides differ in ways that no engine's layout does.
 * Interleaved planes (K and V in turn, layer by layer in one block) are told apart.
 */
bool ckv_footprints_overlap(const struct ckv_footprint *a, const struct ckv_footprint *b);

#endif
