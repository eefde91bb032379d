/*
 * Is what will be timed right?
 */
#ifndef CKV_BENCH_CHECK_H
#define CKV_BENCH_CHECK_H

#include "bench/device.h"
#include "bench/problem.h"

/**
 * bench_check() - a short sequence of the case, on the device and by the scalar reference
 * @path: for the message
 * @pool: filled for the type of the case
 *
 * Return: false, and a line on standard error, if scores differ by more than R31 allows.
 */
bool bench_check(const struct bench_device *device, const char *path, const struct bench_case *c, const struct bench_pool *pool);

#endif
