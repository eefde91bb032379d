/*
 * How far a plane reaches and whether its elements are distinct: the checked
 * arithmetic behind RegisterCache.
 */
#ifndef CKV_DAEMON_EXTENT_H
#define CKV_DAEMON_EXTENT_H

#include "kernels/layout.h"

#include <stdbool.h>
#include <stdint.h>

/* One index of an address: 0 .. count-1, stride bytes apart. */
struct ckv_dim {
        uint64_t count, stride;
};

/* ckv_axis_dims() - a two-level axis of @n elements as at most two dims. Return: how many were written. */
uint32_t ckv_axis_dims(const struct ckv_axis *axis, uint32_t n, struct ckv_dim ret_dims[static 2]);

/* ckv_axis_reach() - highest offset that indices 0 .. n-1 of an axis form; n >= 1. Return: false if it passes 2^64. */
bool ckv_axis_reach(const struct ckv_axis *axis, uint32_t n, uint64_t *ret_bytes);

/**
 * ckv_extent() - bytes from the first element to the end of the last
 * @dims: [n]
 * @element: bytes of what lies at each of them
 *
 * Return: false if it passes 2^64.
 */
bool ckv_extent(const struct ckv_dim *dims, uint32_t n, uint64_t element, uint64_t *ret_bytes);

/**
 * ckv_dims_distinct() - is every element at bytes of its own?
 * @dims: [n], reordered by stride
 *
 * Sufficient, and true for every layout whose indices nest: sorted by stride, each stride is at least the extent of
 * what lies inside it.
 */
bool ckv_dims_distinct(struct ckv_dim *dims, uint32_t n, uint64_t element);

#endif
