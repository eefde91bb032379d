/*
 * Loops in plain C, for the scalar path and for machines without any other.
 */
#include "bench/loops.h"

#include "kernels/cpu_kernel.h"

#define NAME(x) x##_bench
#define KERNEL "bench"
#define LANES 4
#define VECTORS 2

typedef float floats __attribute__((vector_size(16), may_alias));
typedef int32_t ints __attribute__((vector_size(16), may_alias));

static inline floats greater(floats a, floats b) {
        ints mask = (ints)(a > b);

        return (floats)(((ints)a & mask) | ((ints)b & ~mask));
}

#define GREATER(a, b) greater((a), (b))

/* the whole kernel once more, for its exponential */
#include "kernels/cpu_score_isa.inc"

#define BEFORE_POWERS
#define ADD_POWER(s, t) ((s) + NAME(exp2)(t))
#define FMA_PRODUCTS 1
#if defined(__x86_64__)
#define TOUCH(v) __asm__ volatile("" : "+x"(v))
#else
#define TOUCH(v) __asm__ volatile("" : "+w"(v))
#endif
#include "bench/loops_isa.inc"

const struct bench_loops bench_loops_scalar = {
        .path = "scalar",
        .flops_of_round = 2.0 * LANES * CHAINS,
        .products = add_products,
        .exponentials_of_round = POWERS,
        .exponentials = add_powers,
};
