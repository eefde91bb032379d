/*
 * S9: rows to their places, 16 bytes at a time where layout and alignment allow.
 *
 * In a step no row is read that is written (kernels/steps.h), so ckv_k_move is a
 * flat copy in any order; it also serves COPY_OUT, whose rows lie elsewhere.
 * ckv_k_move_pass knows no steps: a block walks a column upwards in waves, all
 * loads, a barrier, all stores.  A store of row i of the result reaches no
 * source of a later row (dst <= src, runs ascending), so the loads of the next
 * wave need not wait for it, and the barrier of each wave stands between its
 * stores and every load that they could overtake.
 */
#ifndef CKV_KERNELS_CUDA_MOVE_CUH
#define CKV_KERNELS_CUDA_MOVE_CUH

#include "kernels/cuda/values.cuh"

enum { CKV_VECTORS = 4 };       /* that a thread has under way */

struct __align__(16) ckv_vector {
        uint32_t word[4];
};

CKV_DEVICE struct ckv_vector load_vector(uint64_t at, uint32_t width) {
        struct ckv_vector v = { { 0, 0, 0, 0 } };

        if (width == 16)
                v = *pointer<const struct ckv_vector>(at);
        else if (width == 8) {
                v.word[0] = pointer<const uint32_t>(at)[0];
                v.word[1] = pointer<const uint32_t>(at)[1];
        } else if (width == 4)
                v.word[0] = *pointer<const uint32_t>(at);
        else if (width == 2)
                v.word[0] = *pointer<const uint16_t>(at);
        else
                v.word[0] = *pointer<const uint8_t>(at);
        return v;
}

CKV_DEVICE void store_vector(uint64_t at, uint32_t width, struct ckv_vector v) {
        if (width == 16)
                *pointer<struct ckv_vector>(at) = v;
        else if (width == 8) {
                pointer<uint32_t>(at)[0] = v.word[0];
                pointer<uint32_t>(at)[1] = v.word[1];
        } else if (width == 4)
                *pointer<uint32_t>(at) = v.word[0];
        else if (width == 2)
                *pointer<uint16_t>(at) = (uint16_t)v.word[0];
        else
                *pointer<uint8_t>(at) = (uint8_t)v.word[0];
}

/* address of vector v of row j */
CKV_DEVICE uint64_t vector_at(const struct ckv_k_column &column, const struct ckv_k_table &table, uint32_t j, uint32_t v) {
        uint32_t block, token;

        place_of(table, j, &block, &token);
        return column.base + block * column.block_stride +
               axis_at(column.token_tile, column.token_outer, column.token_inner, token) +
               axis_at(column.tile, column.outer, column.inner, v);
}

/* the row that goes to row @row of the result; run @low is not behind the one that holds it */
CKV_DEVICE uint32_t source_of(const uint32_t *runs, uint32_t low, uint32_t count, uint32_t row) {
        uint32_t high = count;

        while (high - low > 1) {
                uint32_t middle = low + (high - low) / 2;

                if (runs[3 * middle + 2] <= row)
                        low = middle;
                else
                        high = middle;
        }
        return runs[3 * low] + (row - runs[3 * low + 2]);
}

/* What a block copies: the rows of one batch in one column. */
struct ckv_part {
        const struct ckv_k_column &column;
        const struct ckv_k_batch &batch;
        const uint32_t *runs;
        uint32_t run_count;
        uint64_t vectors;
};

CKV_DEVICE struct ckv_part part_of(const struct ckv_k_move &p, uint32_t index) {
        const struct ckv_k_column &column = pointer<const struct ckv_k_column>(p.columns)[index];
        const struct ckv_k_batch &batch = pointer<const struct ckv_k_batch>(p.batches)[column.set];

        return { column, batch, pointer<const uint32_t>(p.runs) + 3 * pointer<const uint64_t>(p.runs_at)[column.set],
                 pointer<const uint32_t>(p.run_counts)[column.set], (uint64_t)(batch.end - batch.begin) * column.vectors };
}

CKV_DEVICE struct ckv_vector load_of(const struct ckv_k_move &p, const struct ckv_part &part, uint64_t i) {
        uint32_t row = part.batch.begin + (uint32_t)(i / part.column.vectors), v = (uint32_t)(i % part.column.vectors);

        row = source_of(part.runs, part.batch.run, part.run_count, row);
        return load_vector(vector_at(part.column, p.from, row, v), part.column.width);
}

CKV_DEVICE void store_of(const struct ckv_k_move &p, const struct ckv_part &part, uint64_t i, struct ckv_vector v) {
        uint32_t row = part.batch.begin + (uint32_t)(i / part.column.vectors);

        store_vector(vector_at(part.column, p.to, row, (uint32_t)(i % part.column.vectors)), part.column.width, v);
}

extern "C" __global__ void __launch_bounds__(CKV_K_THREADS) ckv_k_move(const struct ckv_k_move p) {
        const struct ckv_part part = part_of(p, blockIdx.y);

        for (uint64_t i0 = (uint64_t)blockIdx.x * CKV_VECTORS * CKV_K_THREADS; i0 < part.vectors;
             i0 += (uint64_t)gridDim.x * CKV_VECTORS * CKV_K_THREADS) {
                struct ckv_vector v[CKV_VECTORS];

#pragma unroll
                for (uint32_t n = 0; n < CKV_VECTORS; n++)
                        if (i0 + n * CKV_K_THREADS + threadIdx.x < part.vectors)
                                v[n] = load_of(p, part, i0 + n * CKV_K_THREADS + threadIdx.x);
#pragma unroll
                for (uint32_t n = 0; n < CKV_VECTORS; n++)
                        if (i0 + n * CKV_K_THREADS + threadIdx.x < part.vectors)
                                store_of(p, part, i0 + n * CKV_K_THREADS + threadIdx.x, v[n]);
        }
}

extern "C" __global__ void __launch_bounds__(CKV_K_THREADS) ckv_k_move_pass(const struct ckv_k_move p) {
        const struct ckv_part part = part_of(p, blockIdx.x);

        for (uint64_t i0 = 0; i0 < part.vectors; i0 += CKV_VECTORS * CKV_K_THREADS) {
                struct ckv_vector v[CKV_VECTORS];

#pragma unroll
                for (uint32_t n = 0; n < CKV_VECTORS; n++)
                        if (i0 + n * CKV_K_THREADS + threadIdx.x < part.vectors)
                                v[n] = load_of(p, part, i0 + n * CKV_K_THREADS + threadIdx.x);
                __syncthreads();
#pragma unroll
                for (uint32_t n = 0; n < CKV_VECTORS; n++)
                        if (i0 + n * CKV_K_THREADS + threadIdx.x < part.vectors)
                                store_of(p, part, i0 + n * CKV_K_THREADS + threadIdx.x, v[n]);
        }
}

#endif
