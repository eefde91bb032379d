/*
 * Which way a layer is scored on the CPU where a window kernel serves
 * (kernels/cpu_window.h):
 *
 *                                                 log-sum-exp given    not given
 *     units by sum or mean, heads and groups by
 *     sum or mean, the window's sum, pool none
 *     or avg, no weight of values, no mute,
 *     nothing that looks at rows, units of 4
 *     rows or more on average                     LSE                  UNITS
 *     anything else                               LSE                  TWICE
 *     raw_qk, more rows than a panel holds; other
 *     scorers; keys that the kernel cannot take   GENERAL              GENERAL
 *
 * UNITS keeps a sum for each query and unit, because what the weights of a query
 * add up to is known when all of K was read; it costs memory, and units of few
 * rows would cost more of it than a second pass costs time.
 */
#ifndef CKV_KERNELS_CPU_SCHEME_H
#define CKV_KERNELS_CPU_SCHEME_H

#include "kernels/cpu_window.h"
#include "kernels/job.h"

enum ckv_cpu_scheme {
        CKV_CPU_GENERAL,                /* the kernels of cpu_kernel.h: two passes, one with a log-sum-exp */
        CKV_CPU_LSE,                    /* scheme A: one pass, weights by row */
        CKV_CPU_UNITS_ONCE,             /* scheme B: one pass, weights by unit and query */
        CKV_CPU_TWICE,                  /* scheme C: one pass for the sums, one for weights by row */
};

/**
 * ckv__cpu_scheme() - the way for one layer
 * @window:     kernel of the path; NULL: none
 * @panel:      query rows that are worked on together, at most
 * @units:      how many there are, where unit scores will do; 0: rows are wanted
 */
enum ckv_cpu_scheme ckv__cpu_scheme(const struct ckv_job *job, const struct ckv_job_group *group, const struct ckv_job_layer *layer,
                                    const struct ckv_cpu_window_kernel *window, uint32_t panel, uint32_t units);

#endif
