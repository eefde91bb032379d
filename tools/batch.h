/*
 * Layers that one request can hold, laid out in shared memory: equally many
 * rows, and queries that one description fits.
 */
#ifndef CKV_TOOLS_BATCH_H
#define CKV_TOOLS_BATCH_H

#include "clients/c/include/chunkkv.h"
#include "tools/layers.h"

#define CKV_BATCH_GROUPS_MAX 16

struct ckv_batch {
        const struct ckv_layer **layers;        /* [count] ascending, borrowed */
        size_t count;
        uint32_t rows;                          /* of every layer */
        uint32_t blocks;                        /* of CKV_BATCH_BLOCK rows that hold them */
        struct chunkkv_group groups[CKV_BATCH_GROUPS_MAX];      /* [group_count] layers of one shape each */
        size_t group_count;
        uint32_t *numbers;                      /* [count] layer numbers, group by group; groups point into it */
        uint32_t *ascending;                    /* [count] layer numbers */
        struct chunkkv_plane *planes;           /* [2 * count] K and V of each layer */
        struct chunkkv_queries queries;         /* data.size 0 = no queries */
        struct chunkkv_slice scores[CKV_BATCH_GROUPS_MAX];      /* [group_count] float32 [layers][rows]; size 0 = none */
        struct chunkkv_memory memory;
};

#define CKV_BATCH_BLOCK 16u                     /* rows of a block, as engines have them */

/* What the daemon is to do with the memory of a batch. */
enum ckv_batch_use {
        CKV_BATCH_READ,                         /* only read it */
        CKV_BATCH_MOVE,                         /* move the kept rows */
        CKV_BATCH_SCORE,                        /* write scores; floats that it does not write stay NaN */
};

/**
 * ckv_batch_build() - take the layers that go with the first one left, lay them out, copy them
 * @layers:     [count] ascending
 * @taken:      [count] layers of earlier batches; those of this one are marked
 * @query_rows: newest rows of queries to send
 * @use:        decides who may write to the memory
 * @ret_batch:  ends with ckv_batch_deinit(), also after a failure
 *
 * Return: 1 if there was a layer left, 0 if not, or -errno with @ret_error filled in.
 */
int ckv_batch_build(const struct ckv_layer *layers, size_t count, bool *taken, uint32_t query_rows,
                    enum ckv_batch_use use, struct ckv_batch *ret_batch, struct chunkkv_error *ret_error);

/* ckv_batch_region_set() - write the number of the region that its memory got into all that refers to it */
void ckv_batch_region_set(struct ckv_batch *batch, uint32_t region_id);

/* ckv_batch_deinit() - free its lists and its memory */
void ckv_batch_deinit(struct ckv_batch *batch);

#endif
