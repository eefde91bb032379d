/*
 * S2 with pool = leak: a score reaches the rows beside it, weaker with each, and
 * weakest across the ends of the caller's chunks.
 *
 *     upwards    A[j] = max(A[j], A[j - 1] * f(j))      f(j) = 0.92, and 0.3 of that where a chunk begins at row j
 *     downwards  A[j] = max(A[j], A[j + 1] * f(j + 1))
 *
 * A block takes one query head.  Each of its threads walks a piece of the rows
 * as if nothing came from outside; what does is at most what the piece before
 * ends with, times the factors of the piece, so one thread can hand it on from
 * piece to piece, and each walks again until what came is no longer felt.
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

/* what comes into each piece from those before it in the direction of the walk; all threads take part */
CKV_DEVICE double hand_on(double end, double fade, bool down, double *ends, double *fades) {
        const uint32_t me = down ? CKV_K_THREADS - 1 - threadIdx.x : threadIdx.x;
        double from = 0;

        ends[me] = end;
        fades[me] = fade;
        __syncthreads();
        if (threadIdx.x == 0) {
#pragma unroll 1
                for (uint32_t t = 0; t < CKV_K_THREADS; t++) {
                        double next = greater_of(ends[t], from * fades[t]);

                        ends[t] = from;
                        from = next;
                }
        }
        __syncthreads();
        from = ends[me];
        __syncthreads();                /* before the other direction writes */
        return from;
}

extern "C" __global__ void __launch_bounds__(CKV_K_THREADS, 4) ckv_k_leak(const struct ckv_k_leak p) {
        CKV_SHARED(double, ends);       /* [threads], and as many factors behind them */
        const struct ckv_k_rows &rows = p.rows;
        float *a = pointer<float>(rows.in) + ((uint64_t)blockIdx.y * rows.heads_in + blockIdx.x) * rows.rows;
        const uint32_t each = (rows.domain + CKV_K_THREADS - 1) / CKV_K_THREADS;
        const uint32_t low = threadIdx.x * each < rows.domain ? threadIdx.x * each : rows.domain;
        const uint32_t high = low + each < rows.domain ? low + each : rows.domain;
        double now = 0, fade = 1, came;

        for (uint32_t j = rows.domain + threadIdx.x; j < rows.rows; j += CKV_K_THREADS)
                a[j] = (float)weight_of(rows, a, j);
        for (uint32_t j = low; j < high; j++) {
                now = greater_of(weight_of(rows, a, j), leaked(p, now, j));
                a[j] = (float)now;
                fade = leaked(p, fade, j);
        }
        came = hand_on(now, fade, false, ends, ends + CKV_K_THREADS);
        for (uint32_t j = low; j < high; j++) {
                came = greater_of((double)a[j], leaked(p, came, j));
                if (came == (double)a[j])
                        break;
                a[j] = (float)came;
        }
        now = 0;
        fade = 1;
        for (uint32_t j = high; j-- > low;) {
                now = greater_of((double)a[j], leaked(p, now, j + 1));
                a[j] = (float)now;
                fade = leaked(p, fade, j + 1);
        }
        came = hand_on(now, fade, true, ends, ends + CKV_K_THREADS);
        for (uint32_t j = high; j-- > low;) {
                came = greater_of((double)a[j], leaked(p, came, j + 1));
                if (came == (double)a[j])
                        break;
                a[j] = (float)came;
        }
}

#endif
