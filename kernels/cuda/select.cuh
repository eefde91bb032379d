/*
 * S7 and S8: one block makes the kept rows of one set, the same as
 * ckv_select() of kernels/select.c makes of the same scores.
 *
 * A radix select over the order-preserving bits of the scores adds up what
 * units cost and finds, in four passes of eight bits, the score at which the
 * walk ends (R22).  Units above it are in; those at it are taken by index as
 * long as the sum of their costs fits (R21): a prefix sum, so nothing depends
 * on which thread comes first.  Costs are integers, so neither do the sums.
 */
#ifndef CKV_KERNELS_CUDA_SELECT_CUH
#define CKV_KERNELS_CUDA_SELECT_CUH

#include "kernels/cuda/units.cuh"

/* What a block has in shared memory. */
struct ckv_board {
        uint32_t bucket[256];
        uint32_t scan[2][CKV_K_SELECT_THREADS];
        uint32_t bad, prefix, left, all_fit, cut, cut_left, cut_end;
};
static_assert(sizeof(struct ckv_board) <= 256 * 4 + CKV_K_SELECT_THREADS * 8 + 64, "as ckv_k_plan_select() says");

/* R21: bits of a binary32 as an unsigned that sorts like the number */
CKV_DEVICE uint32_t order_of(float score) {
        uint32_t bits = bits_of_float(score);

        return bits & 0x80000000U ? ~bits : bits | 0x80000000U;
}

/* sum of @v over the threads before this one; *ret_total over all */
CKV_DEVICE uint32_t sum_before(struct ckv_board *board, uint32_t v, uint32_t *ret_total) {
        uint32_t me = threadIdx.x, from = 0, before;

        board->scan[0][me] = v;
        __syncthreads();
        for (uint32_t by = 1; by < CKV_K_SELECT_THREADS; by *= 2, from ^= 1) {
                uint32_t sum = board->scan[from][me];

                board->scan[from ^ 1][me] = me >= by ? sum + board->scan[from][me - by] : sum;
                __syncthreads();
        }
        before = me > 0 ? board->scan[from][me - 1] : 0;
        *ret_total = board->scan[from][CKV_K_SELECT_THREADS - 1];
        __syncthreads();        /* before the next sum overwrites it */
        return before;
}

/* this thread's share of n things, in their order */
CKV_DEVICE void share_of(uint32_t n, uint32_t *ret_first, uint32_t *ret_end) {
        uint32_t each = (n + CKV_K_SELECT_THREADS - 1) / CKV_K_SELECT_THREADS;
        uint64_t first = (uint64_t)threadIdx.x * each;

        *ret_first = first < n ? (uint32_t)first : n;
        *ret_end = first + each < n ? (uint32_t)first + each : n;
}

CKV_DEVICE uint32_t cost_of(const struct ckv_k_select &p, uint32_t u) {
        return p.sized ? pointer<const uint32_t>(p.size)[u] : 1;
}

/* R23: the first unit with a score, or a row of it with one, that is not finite */
CKV_DEVICE void find_nonfinite(const struct ckv_k_select &p, struct ckv_board *board, const float *scores) {
        for (uint32_t u = threadIdx.x; u < p.units; u += CKV_K_SELECT_THREADS)
                if (scores[u] - scores[u] != 0)
                        atomicMin(&board->bad, u);
        if (p.rows_in)
                for (uint32_t j = threadIdx.x; j < p.rows; j += CKV_K_SELECT_THREADS) {
                        float v = pointer<const float>(p.rows_in)[(uint64_t)blockIdx.x * p.rows + j];
                        uint32_t u = pointer<const uint32_t>(p.unit_of_row)[j];

                        if (u != CKV_NO_ROW && v - v != 0)
                                atomicMin(&board->bad, u);
                }
}

/* one digit of the score at which the walk ends; board->left is what remains for it and below */
CKV_DEVICE void narrow(const struct ckv_k_select &p, struct ckv_board *board, const float *scores, uint32_t shift) {
        for (uint32_t b = threadIdx.x; b < 256; b += CKV_K_SELECT_THREADS)
                board->bucket[b] = 0;
        __syncthreads();
        for (uint32_t u = threadIdx.x; u < p.ranked; u += CKV_K_SELECT_THREADS) {
                uint32_t order = order_of(scores[u]);

                if (((uint64_t)order >> (shift + 8)) == board->prefix)
                        atomicAdd(&board->bucket[order >> shift & 255], cost_of(p, u));
        }
        __syncthreads();
        if (threadIdx.x == 0) {
                uint32_t b = 256;

                while (b > 0 && board->bucket[b - 1] <= board->left)
                        board->left -= board->bucket[--b];
                board->all_fit = b == 0;
                board->prefix = board->prefix << 8 | (b - 1);
        }
        __syncthreads();
}

/* 1 for the rows of a unit; those of others that lie between stay as they are */
CKV_DEVICE void keep_unit(const struct ckv_k_select &p, uint8_t *flags, uint32_t u, uint32_t most) {
        uint32_t size = pointer<const uint32_t>(p.size)[u], left = most < size ? most : size;

        for (uint32_t j = pointer<const uint32_t>(p.first_row)[u]; left > 0; j++)
                if (pointer<const uint32_t>(p.unit_of_row)[j] == u) {
                        flags[j] = 1;
                        left--;
                }
}

/* units above the end of the walk, and those at it as far as they fit; board->cut is the one that did not */
CKV_DEVICE void take_units(const struct ckv_k_select &p, struct ckv_board *board, const float *scores, uint8_t *flags) {
        const uint32_t threshold = board->prefix, left = board->left, all = board->all_fit;
        uint32_t first, end, sum = 0, total;

        share_of(p.ranked, &first, &end);
        for (uint32_t u = first; u < end; u++)
                sum += !all && order_of(scores[u]) == threshold ? cost_of(p, u) : 0;
        sum = sum_before(board, sum, &total);
        for (uint32_t u = first; u < end; u++) {
                uint32_t order = order_of(scores[u]), before = sum;

                if (!all && order == threshold)
                        sum += cost_of(p, u);
                if (all || order > threshold || (order == threshold && sum <= left))
                        keep_unit(p, flags, u, CKV_NO_ROW);
                else if (order == threshold && before <= left) {
                        board->cut = u;         /* one thread alone comes here: sums ascend */
                        board->cut_left = left - before;
                }
        }
        for (uint32_t u = p.forced_begin + threadIdx.x; u < p.forced_end; u += CKV_K_SELECT_THREADS)
                keep_unit(p, flags, u, CKV_NO_ROW);
        __syncthreads();
}

/* fill = best: a row of the cut unit is kept if fewer than cut_left rows of it come before it (score, then lower index) */
CKV_DEVICE void take_best(const struct ckv_k_select &p, struct ckv_board *board, uint8_t *flags) {
        const float *rows = pointer<const float>(p.rows_in) + (uint64_t)blockIdx.x * p.rows;
        const uint32_t *unit_of_row = pointer<const uint32_t>(p.unit_of_row), cut = board->cut;
        const uint32_t first = pointer<const uint32_t>(p.first_row)[cut];

        if (threadIdx.x == 0) {
                uint32_t j = first;

                for (uint32_t n = pointer<const uint32_t>(p.size)[cut]; n > 0; j++)
                        n -= unit_of_row[j] == cut;
                board->cut_end = j;
        }
        __syncthreads();
        for (uint32_t j = first + threadIdx.x; j < board->cut_end; j += CKV_K_SELECT_THREADS) {
                uint32_t rank = 0, order = order_of(rows[j]);

                if (unit_of_row[j] != cut)
                        continue;
                for (uint32_t i = first; i < board->cut_end; i++) {
                        uint32_t other = order_of(rows[i]);

                        rank += unit_of_row[i] == cut && (other > order || (other == order && i < j));
                }
                if (rank < board->cut_left)
                        flags[j] = 1;
        }
}

/* profile paper: no more than `room` rows, lowest first, and the window behind them (R50) */
CKV_DEVICE void cut_rows(const struct ckv_k_select &p, struct ckv_board *board, uint8_t *flags) {
        uint32_t first, end, n = 0, total;

        share_of(p.rows, &first, &end);
        for (uint32_t j = first; j < end; j++)
                n += flags[j];
        n = sum_before(board, n, &total);
        for (uint32_t j = first; j < end; j++) {
                uint8_t kept = flags[j] && n < p.room;

                n += kept;
                flags[j] = kept || j >= p.rows - p.tail;
        }
        __syncthreads();
}

/* S8: runs of rows whose flag is 1 */
CKV_DEVICE void write_runs(const struct ckv_k_select &p, struct ckv_board *board, const uint8_t *flags, uint32_t *counts) {
        uint32_t *runs = pointer<uint32_t>(p.runs) + (uint64_t)blockIdx.x * p.runs_most * 3;
        uint32_t first, end, rows = 0, starts = 0, all_rows, all_runs;

        share_of(p.rows, &first, &end);
        for (uint32_t j = first; j < end; j++) {
                rows += flags[j];
                starts += flags[j] && (j == 0 || !flags[j - 1]);
        }
        rows = sum_before(board, rows, &all_rows);
        starts = sum_before(board, starts, &all_runs);
        for (uint32_t j = first; j < end; j++) {
                if (!flags[j])
                        continue;
                if (j == 0 || !flags[j - 1]) {
                        if (starts < p.runs_most) {
                                runs[3 * starts] = j;
                                runs[3 * starts + 2] = rows;
                        }
                        starts++;
                }
                rows++;
                if ((j + 1 == p.rows || !flags[j + 1]) && starts - 1 < p.runs_most)
                        runs[3 * (starts - 1) + 1] = j + 1;     /* its end; its length once its start is known */
        }
        __syncthreads();
        for (uint32_t i = threadIdx.x; i < all_runs && i < p.runs_most; i += CKV_K_SELECT_THREADS)
                runs[3 * i + 1] -= runs[3 * i];
        if (threadIdx.x == 0) {
                counts[0] = all_runs;
                counts[1] = all_rows;
                counts[2] = CKV_NO_ROW;
        }
}

extern "C" __global__ void __launch_bounds__(CKV_K_SELECT_THREADS, 2) ckv_k_select(const struct ckv_k_select p) {
        CKV_SHARED(struct ckv_board, board);
        const float *scores = pointer<const float>(p.scores) + (uint64_t)blockIdx.x * p.units;
        uint8_t *flags = pointer<uint8_t>(p.flags) + (uint64_t)blockIdx.x * p.rows;
        uint32_t *counts = pointer<uint32_t>(p.counts) + 3 * blockIdx.x;

        if (threadIdx.x == 0) {
                board->bad = board->cut = CKV_NO_ROW;
                board->prefix = board->all_fit = board->cut_left = 0;
                board->left = p.budgets ? pointer<const uint32_t>(p.budgets)[blockIdx.x] : p.budget;
        }
        for (uint32_t j = threadIdx.x; j < p.rows; j += CKV_K_SELECT_THREADS)
                flags[j] = p.protect && pointer<const uint8_t>(p.protect)[j];
        __syncthreads();
        find_nonfinite(p, board, scores);
        __syncthreads();
        if (board->bad != CKV_NO_ROW) {         /* the whole block leaves: no barrier is behind */
                if (threadIdx.x == 0) {
                        counts[0] = counts[1] = 0;
                        counts[2] = board->bad;
                }
                return;
        }
        for (int shift = 24; shift >= 0 && !board->all_fit; shift -= 8)
                narrow(p, board, scores, (uint32_t)shift);
        take_units(p, board, scores, flags);
        if (board->cut != CKV_NO_ROW && board->cut_left > 0) {
                if (p.fill == CKV_K_FILL_BEST)
                        take_best(p, board, flags);
                else if (p.fill == CKV_K_FILL_LEAD && threadIdx.x == 0)
                        keep_unit(p, flags, board->cut, board->cut_left);
        }
        __syncthreads();
        if (p.room != CKV_NO_ROW || p.tail > 0)
                cut_rows(p, board, flags);
        write_runs(p, board, flags, counts);
}

#endif
