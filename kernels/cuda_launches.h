/*
 * A group that is being scored, for the two files that do it: cuda_score.c has
 * its memory and its batches, cuda_launches.c its kernels.
 */
#ifndef CKV_KERNELS_CUDA_LAUNCHES_H
#define CKV_KERNELS_CUDA_LAUNCHES_H

#include "kernels/cuda_layers.h"
#include "kernels/cuda_score.h"

/* Tables of the group in the scratch. */
enum ckv__cuda_score_table {
        TABLE_ENTRIES, TABLE_VISIBLE, TABLE_SEEN, TABLE_UNIT_OF_ROW, TABLE_FIRST_ROW, TABLE_SIZE, TABLE_PROTECT, TABLE_BOUNDS,
        TABLE_BEGINS, _TABLES,
};

/* What a batch has in the scratch; the first ones are of kernels/cuda_layers.h. */
enum ckv__cuda_score_room {
        ROOM_PART = _CKV__CUDA_LAYER_ROOMS, ROOM_LSE, ROOM_INPUT, ROOM_WRONG, ROOM_KEY_PART, ROOM_NORMS, ROOM_ROWS, ROOM_UNITS,
        ROOM_FLAGS, ROOM_RUNS, ROOM_COUNTS, ROOM_OLDER, ROOM_REFERENCE, ROOM_SUMS, _ROOMS,
};

struct ckv_cuda_score {
        const struct ckv_job *job;
        const struct ckv_job_group *group;
        const struct ckv_units *units;
        const uint8_t *protected_rows;
        bool selects;                   /* kept sets are made on the GPU */
        bool units_down, rows_down;     /* scores that the host wants whoever selects */
        uint32_t runs_most;
        bool keys;                      /* the scorer gives S[g][j] and reads no queries */
        bool mean;                      /* norm means something */
        uint32_t votes, vote_first;
        uint32_t older, older_first;    /* query rows whose mean is subtracted (contrast); 0: none are */
        uint8_t *begins;                /* [L + 1] pool = leak: does a chunk of the caller's begin here? NULL: there are none */
        uint32_t *visible, *seen;       /* [votes + older][2], [L + 1]; NULL where they mean nothing */

        struct {
                const void *from;
                uint64_t bytes;
                CUdeviceptr at;
        } tables[_TABLES];
        uint64_t owner, tables_end;     /* of the scratch, once the tables are there */

        uint32_t *bounds;               /* ckv__cuda_sums_bounds(); NULL where sums by unit are not made */
        enum ckv_cuda_scheme scheme;    /* of the batch at hand */
        uint32_t far;                   /* index of the leader that goes by rows, as its references were far off; UINT32_MAX: none */

        uint64_t rooms[2][_ROOMS];      /* bytes of one layer, with weights by row and with sums by unit */
        const uint64_t *each;           /* those of the batch at hand */
        CUdeviceptr at[_ROOMS];
        struct ckv__cuda_layers layers;

        uint32_t room_layers;           /* that all below have room for */
        uint32_t *wrong, *counts;
        float *unit_scores, *row_scores;
        struct ckv_run *runs;
};

/* ckv__cuda_launch_scores() - queue S1 to S4, and S7 and S8 where the GPU selects, for the layers of a batch. Return: false: an
 * error. */
bool ckv__cuda_launch_scores(struct ckv_cuda_score *score, struct ckv_cuda_device *device);

#endif
