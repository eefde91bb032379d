/*
 * CUDA kernels on the CPU, as the kernels see it.
 *
 * A CUDA thread is a fiber; a scheduler runs the fibers of a block, and block
 * after block, in a chosen order.  There are two kinds of meeting, because the
 * GPU has two: barriers order memory, shuffles exchange registers and nothing
 * else.  ThreadSanitizer is told of barriers alone, so code that leans on a
 * shuffle to order shared memory is reported.
 *
 * It is sequentially consistent, so a missing fence is invisible, and it says
 * nothing about speed, banks or registers.
 */
#ifndef CKV_TESTS_EMU_EMU_H
#define CKV_TESTS_EMU_EMU_H

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

#define __global__
#define __device__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __align__(bytes) alignas(bytes)

namespace emu {

struct Index {
        uint32_t x, y, z;
};

/* What a lane shows to its warp. */
struct Words {
        uint32_t word[8];

        uint32_t operator[](uint32_t i) const {
                return word[i];
        }
};

/* What stands for a register is given by value: ThreadSanitizer then sees no memory, which the scheduler also writes. */
Index thread_index();
const Index &block_index();
const Index &grid_size();
void *shared_memory();
void block_barrier(int line);           /* __syncthreads: meets, orders memory */
void warp_barrier();                    /* __syncwarp: the same for a warp */
uint64_t exchange(uint64_t mine, uint32_t lane);        /* shuffle: what lane @lane gave; orders nothing */

void show(const uint32_t *words, uint32_t count);       /* at most 8 words to the warp; orders nothing */
Words shown(uint32_t lane);             /* of a lane, until seen() */
void seen();

/* A copy that a thread has begun; late ones are made when it waits for them, others at once. */
struct Copy {
        void *to;
        const void *from;
        bool ok;
};
bool remember(const Copy &copy);        /* false: make it now */
bool recall(Copy *ret_copy);            /* one of this thread's; false: there is none */
void unaligned(const void *at);

static inline void copy_now(const Copy &copy) {
        if (copy.ok)
                memcpy(copy.to, copy.from, 16);
        else
                memset(copy.to, 0, 16);
}

static inline void copy_later(void *to, const void *from, bool ok) {
        const Copy copy = { to, from, ok };

        unaligned(to);
        unaligned(from);
        if (!remember(copy))
                copy_now(copy);
}

static inline void copies_wait() {
        Copy copy;

        while (recall(&copy))
                copy_now(copy);
}

/* ldmatrix.x4 (PTX manual): lane l gets elements 2 * (l % 4) and the next of row l / 4 of each tile */
static inline void load_tile(uint32_t ret[4], const void *row) {
        const uint32_t lane = thread_index().x % 32;
        uint32_t words[2];

        unaligned(row);
        memcpy(words, &row, sizeof(row));
        show(words, 2);
        for (uint32_t i = 0; i < 4; i++) {
                const char *at;

                memcpy(&at, shown(i * 8 + lane / 4).word, sizeof(at));
                memcpy(&ret[i], at + lane % 4 * 4, 4);
        }
        seen();
}

template <class T> T shuffle(T value, uint32_t lane) {
        uint64_t bits = 0;

        static_assert(sizeof(value) <= sizeof(bits), "a register or two");
        memcpy(&bits, &value, sizeof(value));
        bits = exchange(bits, lane);
        memcpy(&value, &bits, sizeof(value));
        return value;
}

}

#define threadIdx (emu::thread_index())
#define blockIdx (emu::block_index())
#define gridDim (emu::grid_size())
/* a macro, so that threads of a block that stop at different barriers can be told */
#define __syncthreads() emu::block_barrier(__LINE__)

static inline void __syncwarp() {
        emu::warp_barrier();
}

template <class T> static inline T __shfl_xor_sync(uint32_t, T value, int mask) {
        return emu::shuffle(value, (emu::thread_index().x % 32) ^ (uint32_t)mask);
}

template <class T> static inline T __shfl_sync(uint32_t, T value, uint32_t lane) {
        return emu::shuffle(value, lane);
}

static inline uint32_t atomicAdd(uint32_t *at, uint32_t value) {
        return __atomic_fetch_add(at, value, __ATOMIC_RELAXED);
}

static inline uint32_t atomicMin(uint32_t *at, uint32_t value) {
        uint32_t old = __atomic_load_n(at, __ATOMIC_RELAXED);

        while (value < old && !__atomic_compare_exchange_n(at, &old, value, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
                continue;
        return old;
}

#endif
