/*
 * S2 with pool = leak: a score reaches the rows beside it, weaker with each, and
 * weakest across the ends of the caller's chunks.
 *
 *     upwards    A[j] = max(A[j], A[j - 1] * f(j))      f(j) = 0.92, and 0.3 of that where a chunk begins at row j
 *     downwards  A[j] = max(A[j], A[j + 1] * f(j + 1))
 *
 * A block takes one query head.  Each of its threads has a piece of the rows,
 * and finds what it ends with by what came into it; ends go on to the next piece
 * until none becomes greater.  Only then are rows written.  A factor less than 1
 * keeps the order of what it is applied to, so that a row has the bits it would
 * have if one thread had walked all rows, in both directions: two rows as far
 * from a score are equal, and the lower one is kept.
 *
 * Norm, contrast and mute come before, so they are done here, not by
 * ckv_k_rows.  Scores are not negative; a NaN passes on to all rows (R23).
 */
#ifndef CKV_KERNELS_CUDA_LEAK_CUH
#define CKV_KERNELS_CUDA_LEAK_CUH

#include "kernels/cuda/units.cuh"

/* what is left of @from on its way into row @j from row j - 1, or out of it */
CKV_DEVICE double leaked(const struct ckv_k_leak &p, double from, uint32_t j) {
        double reaches = from * 0.92;

        return p.begins && pointer<const uint8_t>(p.begins)[j] ? reaches * 0.3 : reaches;
}

/* a walk over rows [low, high), towards lower ones if @down */
struct ckv_leak_piece {
        uint32_t low, high;
        bool down;
};

/* what @from becomes on its way from outside past row number @i of the piece */
CKV_DEVICE double passes(const struct ckv_k_leak &p, const struct ckv_leak_piece &piece, double from, uint32_t i) {
        return leaked(p, from, piece.down ? piece.high - i : piece.low + i);
}

CKV_DEVICE uint32_t row_of(const struct ckv_leak_piece &piece, uint32_t i) {
        return piece.down ? piece.high - 1 - i : piece.low + i;
}

/* what comes into each piece from those before it; all threads take part. @ends: [threads], and a word behind them */
CKV_DEVICE double what_comes(const struct ckv_k_leak &p, const struct ckv_leak_piece &piece, const float *a, double *ends) {
        const uint32_t me = piece.down ? CKV_K_THREADS - 1 - threadIdx.x : threadIdx.x, rows = piece.high - piece.low;
        uint32_t *risen = reinterpret_cast<uint32_t *>(ends + CKV_K_THREADS), seen = 0;
        double end = 0, from = 0;

        if (threadIdx.x == 0)
                *risen = 0;
        for (uint32_t i = 0; i < rows; i++)
                end = greater_of((double)a[row_of(piece, i)], passes(p, piece, end, i));
#pragma unroll 1
        for (uint32_t round = 0; round < CKV_K_THREADS; round++) {
                double before = from, way;

                ends[me] = end;
                __syncthreads();
                from = me > 0 ? ends[me - 1] : 0;
                way = from == before ? 0 : from;
                for (uint32_t i = 0; i < rows && way != 0; i++)
                        way = passes(p, piece, way, i);
                if (rows > 0 && (way > end || (way != way && end == end))) {
                        end = way;
                        atomicAdd(risen, 1);
                }
                __syncthreads();        /* all have read, and counted */
                if (*risen == seen)
                        break;
                seen = *risen;
        }
        __syncthreads();                /* before the other direction writes */
        return from;
}

CKV_DEVICE void walk(const struct ckv_k_leak &p, const struct ckv_leak_piece &piece, float *a, double *ends) {
        double now = what_comes(p, piece, a, ends);

        for (uint32_t i = 0; i < piece.high - piece.low; i++) {
                uint32_t j = row_of(piece, i);

                now = greater_of((double)a[j], passes(p, piece, now, i));
                a[j] = (float)now;
        }
}

extern "C" __global__ void __launch_bounds__(CKV_K_THREADS, 4) ckv_k_leak(const struct ckv_k_leak p) {
        CKV_SHARED(double, ends);
        const struct ckv_k_rows &rows = p.rows;
        float *a = pointer<float>(rows.in) + ((uint64_t)blockIdx.y * rows.heads_in + blockIdx.x) * rows.rows;
        uint32_t each = (rows.domain + CKV_K_THREADS - 1) / CKV_K_THREADS;
        struct ckv_leak_piece piece = { 0, 0, false };

        each = each < CKV_K_LEAK_ROWS ? (uint32_t)CKV_K_LEAK_ROWS : each;
        piece.low = threadIdx.x * each < rows.domain ? threadIdx.x * each : rows.domain;
        piece.high = rows.domain - piece.low < each ? rows.domain : piece.low + each;
        for (uint32_t j = rows.domain + threadIdx.x; j < rows.rows; j += CKV_K_THREADS)
                a[j] = (float)weight_of(rows, a, j);
        for (uint32_t j = piece.low; j < piece.high; j++)
                a[j] = (float)weight_of(rows, a, j);
        walk(p, piece, a, ends);
        /* what leaked upwards is rounded now; on its way back it meets something greater at once */
        piece.down = true;
        walk(p, piece, a, ends);
}

#endif
