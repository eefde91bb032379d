/*
 * The scoring kernel for whatever the compiler targets by default: vectors of
 * four floats, which every 64-bit machine has in some form.
 *
 * The maximum is written out with masks, because C has no operator for it that
 * is defined for NaN the way the kernel needs it.
 */
#include "kernels/cpu_kernel.h"

#define NAME(x) x##_scalar
#define KERNEL "scalar"
#define LANES 4
#define VECTORS 2

typedef float floats __attribute__((vector_size(16), may_alias));
typedef int32_t ints __attribute__((vector_size(16), may_alias));

static inline floats greater(floats a, floats b) {
        ints mask = (ints)(a > b);

        return (floats)(((ints)a & mask) | ((ints)b & ~mask));
}

#define GREATER(a, b) greater((a), (b))

#include "kernels/cpu_score_isa.inc"
