/*
 * Random moves: jobs of one or more groups with kept rows and planes in every
 * layout (each nesting of block, head, token and dimension, tiled axes, gaps,
 * scrambled tables, all element sizes), and what their bytes must be, made
 * element by element by code that shares nothing with the code under test.
 * Whole allocations are compared, so a stray write shows.
 *
 * Chance is rand(): srand() repeats a case.
 */
#ifndef CKV_TESTS_SUPPORT_MOVES_H
#define CKV_TESTS_SUPPORT_MOVES_H

#include "kernels/job.h"

#include <stdbool.h>
#include <stdint.h>

struct move_shape {
        uint32_t groups, layers;        /* 0: one group, two layers */
        uint32_t blocks, tokens, dims;  /* most of each; 0: 6, 9, 12 */
        bool large;                     /* as many as that, and rows in all of them */
        bool copy;                      /* to a destination; else in place */
        bool shared;                    /* what moves is seen by children too */
};

/* One kept set, written out: row i of the result is row k[i]. */
struct move_set {
        uint32_t *k;
        uint32_t count;
};

struct move_plane {
        const struct ckv_job_group *group;
        uint32_t group_index, layer;
        const struct ckv_plane *plane;
        uint8_t *now;                   /* what the plane's base points to */
        uint8_t *before, *expected;
        uint64_t bytes;
};

struct move_case {
        struct ckv_job *job;
        struct move_set **sets;         /* [group][set], as job->groups[].kept */
        struct move_plane *planes;
        uint32_t plane_count;
        uint64_t bytes_moved;           /* of all groups, all steps */
        bool shared;
};

/* move_dice() - 0 .. n-1 */
uint32_t move_dice(uint32_t n);

/* move_case_new() - aborts the test when out of memory */
struct move_case *move_case_new(const struct move_shape *shape);
struct move_case *move_case_free(struct move_case *moves);

/* move_case_set() - the kept rows that one plane's head follows */
const struct move_set *move_case_set(const struct move_case *moves, const struct move_plane *plane, uint32_t head);

/* move_batch() - rows [begin, end) of batch @step of a set, counted out row by row; none: begin = end */
void move_batch(const struct move_set *set, uint32_t batch_rows, uint32_t step, uint32_t *ret_begin, uint32_t *ret_end);

/* move_case_steps() - the most batches that any set of a group that is to move has */
uint32_t move_case_steps(const struct move_case *moves, uint32_t batch_rows);

/* move_element() - result row @row gets dimension @x of its source, in one plane of one head: from before to @bytes */
void move_element(const struct move_case *moves, const struct move_plane *plane, uint8_t *bytes, uint32_t row, uint32_t head,
                  uint32_t x);

/* move_image() - the bytes of one plane when steps 0 .. @steps - 1 are done */
void move_image(const struct move_case *moves, const struct move_plane *plane, uint32_t batch_rows, uint32_t steps,
                uint8_t *ret_bytes);

/* move_case_reset() - all planes hold such an image */
void move_case_reset(struct move_case *moves, uint32_t batch_rows, uint32_t steps);

/* move_case_equals() - is every byte of all planes as expected after the whole move? */
bool move_case_equals(const struct move_case *moves);

/* move_case_bytes() - sum of bytes_moved over the groups of the job */
uint64_t move_case_bytes(const struct move_case *moves);

#endif
