/*
 * KeptSet.runs and its kin (given_runs, position_runs): kept rows as
 * alternating run lengths dropped, kept, dropped, kept, ..., kept.  Only the
 * first may be 0; the last is a kept run.  An empty list keeps nothing.
 */
#ifndef CKV_PROTO_RUNS_H
#define CKV_PROTO_RUNS_H

#include <stddef.h>
#include <stdint.h>

enum ckv_runs_outcome {
        _CKV_RUNS_E_SUCCESS,
        CKV_RUNS_E_ODD,         /* the last run is a dropped one */
        CKV_RUNS_E_ZERO,        /* a run of length 0 that is not the first */
        CKV_RUNS_E_OVERFLOW,    /* the runs reach past @rows */
};

/**
 * ckv_runs_check() - is this a well-formed list within @rows rows?
 * @ret_kept: sum of the kept runs; may be NULL
 * @ret_end:  sum of all runs; may be NULL
 *
 * Return: 0 or a CKV_RUNS_E_* outcome.
 */
int ckv_runs_check(const uint32_t *runs, size_t count, uint64_t rows, uint64_t *ret_kept, uint64_t *ret_end);

/* ckv_runs_encode_bound() - words that @ranges half-open ranges need */
static inline size_t ckv_runs_encode_bound(size_t ranges) {
        return 2 * ranges;
}

/**
 * ckv_runs_encode() - ascending, disjoint, non-empty ranges (first, count) to run lengths
 * @ranges: [2 * range_count] first, count, first, count, ...; adjacent ranges are merged
 * @ret_runs: room for ckv_runs_encode_bound(range_count) words
 *
 * Return: words written.
 */
size_t ckv_runs_encode(const uint32_t *ranges, size_t range_count, uint32_t *ret_runs);

/* ckv_runs_next() - iterate kept ranges: *at starts at 0 and *row at 0. Return: 1 and the range, or 0 at the end. */
int ckv_runs_next(const uint32_t *runs, size_t count, size_t *at, uint32_t *row, uint32_t *ret_first, uint32_t *ret_count);

#endif
