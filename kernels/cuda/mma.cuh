/*
 * S1 of scorer window on tensor cores (mma.m16n8k16, bf16 or f16): what
 * kernels/cuda/score.cuh computes, for layouts that ckv_k_mma_takes() names.
 *
 * A block takes one segment of one KV head.  The queries of its query heads,
 * padded to eights, are the columns of the products: each warp has a fourth of
 * them in registers, as fragments of the right matrix, for the whole segment.
 * Tiles of K pass through two buffers in shared memory, copied in the background
 * one ahead, and are the left matrix: rows of C are rows of the sequence, so a
 * weight is a sum over registers and four lanes.  Rows of a tile lie 16 bytes
 * more than their length apart, so that ldmatrix meets different banks.
 *
 *     lse_part  m and z of each query, as ckv_k_lse_part
 *     weights   A[h][j]; with given = 1 by the caller's LSE, and m and z for its check beside them
 *
 * A head that is spread over warps is put together in shared memory, in the
 * order of its columns, one tile later: a barrier a tile is all there is.
 */
#ifndef CKV_KERNELS_CUDA_MMA_CUH
#define CKV_KERNELS_CUDA_MMA_CUH

#include "kernels/cuda/score.cuh"

template <int D> struct ckv_mma {
        enum {
                STEPS = D / 16, COLUMNS = CKV_K_MMA_COLUMNS(D), ROWS = CKV_K_MMA_ROWS(D), PITCH = D + 8,
                EIGHTS = COLUMNS / 8 / 4,               /* of columns that a warp has */
                PIECES = D / 8,                         /* copies of a row */
                MINE = ROWS / 4,                        /* rows of a tile that a warp copies */
        };
        uint16_t k[2][ROWS * PITCH];
        float sums[2][COLUMNS / 8][ROWS];               /* of eights of columns; only the last one of a head in a warp counts */
        float lse[COLUMNS];
        uint32_t low[COLUMNS], high[COLUMNS];           /* what a query sees; nothing: a column is none */
};

/* Where a block works. Columns of a head are `width`; the block has those of `heads` heads from `head` on. */
struct ckv_mma_place {
        uint32_t head, columns, width, column, segment, first, end;
};

CKV_DEVICE uint64_t slot_of(const struct ckv_k_score &p, uint32_t query) {
        return ((uint64_t)p.ring_start + p.query_first + query) % p.query_rows;
}

/* begins to copy tile @t; all lanes of each warp. @board: with k as struct ckv_mma has it */
template <int D, class Board>
CKV_DEVICE void copy_tile(const struct ckv_k_score &p, const struct ckv_k_layer &layer, const struct ckv_mma_place &at, uint32_t t,
                          Board *board) {
        using S = ckv_mma<D>;
        const uint32_t lane = threadIdx.x % 32, r0 = threadIdx.x / 32 * S::MINE, row0 = at.first + t * S::ROWS + r0;
        const uint32_t mine = row0 + lane % S::MINE;
        const uint64_t base = reinterpret_cast<uintptr_t>(row_at(layer.k, p.table, mine < p.rows ? mine : p.rows - 1, blockIdx.y));

#pragma unroll 4
        for (uint32_t i = lane; i < S::MINE * S::PIECES; i += 32) {
                uint32_t r = i / S::PIECES, x = i % S::PIECES;
                uint64_t from = __shfl_sync(0xffffffffU, base, r) + x * 16;

                copy_later(&board->k[t % 2][(r0 + r) * S::PITCH + x * 8], pointer<const void>(from), row0 + r < p.rows);
        }
}

/* what is known of each column */
template <int D, bool PART>
CKV_DEVICE void set_columns(const struct ckv_k_score &p, const struct ckv_k_layer &layer, const struct ckv_mma_place &at,
                            struct ckv_mma<D> *board) {
        for (uint32_t i = threadIdx.x; i < ckv_mma<D>::COLUMNS; i += CKV_K_THREADS) {
                uint32_t head = at.head + (at.column + i) / at.width, query = (at.column + i) % at.width;
                bool ok = at.column + i < at.columns && query < p.votes;
                float lse = 0;

                if (ok && !PART)
                        lse = p.given ? float_at(layer.lse, (uint64_t)head * p.query_rows + slot_of(p, query)) * CKV_LOG2E :
                                        pointer<const float>(p.lse)[((uint64_t)blockIdx.z * p.q_heads + head) * p.votes + query];
                board->lse[i] = lse;
                board->low[i] = ok ? pointer<const uint32_t>(p.visible)[2 * query] : 0;
                board->high[i] = ok ? pointer<const uint32_t>(p.visible)[2 * query + 1] : 0;
        }
}

/* the warp's columns as fragments of the right matrix */
template <int D>
CKV_DEVICE void load_queries(const struct ckv_k_score &p, const struct ckv_k_layer &layer, const struct ckv_mma_place &at,
                             uint32_t q[ckv_mma<D>::EIGHTS][ckv_mma<D>::STEPS][2]) {
        using S = ckv_mma<D>;
        const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;

#pragma unroll
        for (int n = 0; n < S::EIGHTS; n++) {
                uint32_t c = at.column + (warp * S::EIGHTS + n) * 8 + lane / 4, query = c % at.width;
                bool ok = c < at.columns && query < p.votes;
                uint64_t row = layer.query + (at.head + c / at.width) * p.query_head_stride +
                               slot_of(p, query) * p.query_row_stride + lane % 4 * 4;

#pragma unroll
                for (int s = 0; s < S::STEPS; s++) {
                        q[n][s][0] = ok ? *pointer<const uint32_t>(row + s * 32) : 0;
                        q[n][s][1] = ok ? *pointer<const uint32_t>(row + s * 32 + 16) : 0;
                }
        }
}

/* products of 16 rows that lie in shared memory from @k on with the warp's columns, as fragments of c */
template <int D, bool BF16>
CKV_DEVICE void multiply_rows(const uint16_t *k, const uint32_t q[ckv_mma<D>::EIGHTS][ckv_mma<D>::STEPS][2],
                              float ret_c[ckv_mma<D>::EIGHTS][4]) {
        using S = ckv_mma<D>;
        const uint32_t lane = threadIdx.x % 32;

#pragma unroll
        for (int n = 0; n < S::EIGHTS; n++)
                ret_c[n][0] = ret_c[n][1] = ret_c[n][2] = ret_c[n][3] = 0;
#pragma unroll
        for (int s = 0; s < S::STEPS; s++) {
                uint32_t a[4];

                load_tile(a, &k[lane % 16 * S::PITCH + s * 16 + lane / 16 * 8]);
#pragma unroll
                for (int n = 0; n < S::EIGHTS; n++)
                        multiply<BF16>(ret_c[n], a, q[n][s]);
        }
}

/* sums of the heads of this pass over tile @t, and what earlier passes found */
template <int D>
CKV_DEVICE void put_weights(const struct ckv_k_score &p, const struct ckv_mma_place &at, uint32_t t,
                            const struct ckv_mma<D> *board) {
        using S = ckv_mma<D>;
        const uint32_t last = at.columns - at.column < S::COLUMNS ? at.columns : at.column + S::COLUMNS;
        const uint32_t h0 = at.column / at.width, heads = (last - 1) / at.width - h0 + 1;

        for (uint32_t i = threadIdx.x; i < heads * S::ROWS; i += CKV_K_THREADS) {
                uint32_t h = h0 + i / S::ROWS, r = i % S::ROWS, row = at.first + t * S::ROWS + r;
                uint32_t from = h * at.width < at.column ? at.column : h * at.width;
                uint32_t to = (h + 1) * at.width < last ? (h + 1) * at.width : last;
                float *out = pointer<float>(p.weights) + ((uint64_t)blockIdx.z * p.q_heads + at.head + h) * p.rows + row;
                float a = 0;

                for (uint32_t n = (from - at.column) / 8; n < (to - at.column) / 8; n++)
                        if (n % S::EIGHTS == S::EIGHTS - 1 || n + 1 == (to - at.column) / 8)
                                a += board->sums[t % 2][n][r];
                if (row < at.end)
                        *out = h * at.width < at.column ? *out + a : a;
        }
}

/* a pair of rows of one column, in log2 units, taken in by m and z; *ret_e: their weights. With PART, m begins at -CKV_MOST: from
 * there the weights of logits of -infinity are 0. */
template <bool PART>
CKV_DEVICE void take_pair(float t0, float t1, bool sees0, bool sees1, float lse, float *m, float *z, float ret_e[2]) {
        float most = fmaxf(sees0 ? t0 : CKV_MINUS_INF, sees1 ? t1 : CKV_MINUS_INF);

        if (PART) {
                if (most > *m) {
                        *z *= exp2_fast(*m - most);
                        *m = most;
                }
                lse = *m;
        } else
                *m = fmaxf(*m, most);
        ret_e[0] = sees0 ? exp2_fast(t0 - lse) : 0;
        ret_e[1] = sees1 ? exp2_fast(t1 - lse) : 0;
        *z += ret_e[0] + ret_e[1];
}

/* m and z of each query over the segment; @found: [columns][8 lanes that had rows of it][2] */
template <int D, bool PART>
CKV_DEVICE void put_parts(const struct ckv_k_score &p, const struct ckv_mma_place &at, const struct ckv_mma<D> *board,
                          const float *found) {
        for (uint32_t i = threadIdx.x; i < ckv_mma<D>::COLUMNS && at.column + i < at.columns; i += CKV_K_THREADS) {
                uint32_t query = (at.column + i) % at.width, head = at.head + (at.column + i) / at.width;
                float m = CKV_MINUS_INF, z = 0;

                for (uint32_t r = 0; r < 8; r++) {
                        const float most = found[(i * 8 + r) * 2], sum = found[(i * 8 + r) * 2 + 1];

                        if (PART)
                                join(most > -CKV_MOST ? most : CKV_MINUS_INF, sum, &m, &z);
                        else {
                                m = fmaxf(m, most);
                                z += sum;
                        }
                }
                if (!PART && z > 0)             /* the sum of 2^(t - lse) becomes that of 2^(t - m) */
                        z *= exp2_fast(board->lse[i] - m);
                if (query < p.votes) {
                        float *out = pointer<float>(p.part) +
                                     2 * ((((uint64_t)blockIdx.z * p.q_heads + head) * p.votes + query) * p.segments + at.segment);

                        out[0] = m;
                        out[1] = z;
                }
        }
}

template <int D, bool BF16, bool PART>
CKV_DEVICE void mma_pass(const struct ckv_k_score &p, const struct ckv_k_layer &layer, const struct ckv_mma_place &at,
                         struct ckv_mma<D> *board) {
        using S = ckv_mma<D>;
        const uint32_t lane = threadIdx.x % 32, c0 = threadIdx.x / 32 * S::EIGHTS * 8;
        const uint32_t tiles = (at.end - at.first + S::ROWS - 1) / S::ROWS;
        const float scale = p.scale * (layer.k.scale != 0 ? layer.k.scale : 1) * CKV_LOG2E;
        const bool works = at.column + c0 < at.columns;
        uint32_t q[S::EIGHTS][S::STEPS][2], all_low = 0, all_high = CKV_NO_ROW, ends = 0;
        float m[S::EIGHTS][2], z[S::EIGHTS][2];

        set_columns<D, PART>(p, layer, at, board);
        copy_tile<D>(p, layer, at, 0, board);
        load_queries<D>(p, layer, at, q);
        __syncthreads();
#pragma unroll
        for (int n = 0; n < S::EIGHTS; n++) {
                m[n][0] = m[n][1] = PART ? -CKV_MOST : CKV_MINUS_INF;
                z[n][0] = z[n][1] = 0;
                if (n == S::EIGHTS - 1 || (at.column + c0 + (n + 1) * 8) % at.width == 0)
                        ends |= 1U << n;
        }
        for (uint32_t i = c0; i < c0 + S::EIGHTS * 8; i++) {
                all_low = board->low[i] > all_low ? board->low[i] : all_low;
                all_high = board->high[i] < all_high ? board->high[i] : all_high;
        }
        for (uint32_t t = 0; t < tiles; t++) {
                copies_wait();
                __syncthreads();        /* tile t is there, t - 1 is done with, and its sums are there */
                if (t + 1 < tiles)
                        copy_tile<D>(p, layer, at, t + 1, board);
                if (!PART && t > 0)
                        put_weights<D>(p, at, t - 1, board);
#pragma unroll 1
                for (uint32_t r0 = 0; works && r0 < S::ROWS; r0 += 16) {
                        const uint32_t row0 = at.first + t * S::ROWS + r0, row = row0 + lane / 4;
                        const bool all = row0 >= all_low && row0 + 16 <= all_high;
                        float c[S::EIGHTS][4], sum[2] = { 0, 0 };

                        multiply_rows<D, BF16>(&board->k[t % 2][r0 * S::PITCH], q, c);
#pragma unroll
                        for (int n = 0; n < S::EIGHTS; n++) {
#pragma unroll
                                for (int j = 0; j < 2; j++) {
                                        const uint32_t i = c0 + n * 8 + lane % 4 * 2 + j;
                                        float e[2];

                                        take_pair<PART>(c[n][j] * scale, c[n][2 + j] * scale,
                                                        all || (row >= board->low[i] && row < board->high[i]),
                                                        all || (row + 8 >= board->low[i] && row + 8 < board->high[i]),
                                                        board->lse[i], &m[n][j], &z[n][j], e);
                                        sum[0] += e[0] > 1 ? 1 : e[0];
                                        sum[1] += e[1] > 1 ? 1 : e[1];
                                }
                                if (!PART && (ends >> n & 1)) {
#pragma unroll
                                        for (int j = 0; j < 2; j++) {
                                                sum[j] += __shfl_xor_sync(0xffffffffU, sum[j], 1);
                                                sum[j] += __shfl_xor_sync(0xffffffffU, sum[j], 2);
                                                if (lane % 4 == 0)
                                                        board->sums[t % 2][c0 / 8 + n][r0 + lane / 4 + j * 8] = sum[j];
                                                sum[j] = 0;
                                        }
                                }
                        }
                }
        }
        __syncthreads();
        if (!PART)
                put_weights<D>(p, at, tiles - 1, board);
        if (PART || p.given) {
                float *found = reinterpret_cast<float *>(board->k);     /* no tile is read any more */

#pragma unroll
                for (int n = 0; n < S::EIGHTS; n++)
#pragma unroll
                        for (int j = 0; j < 2; j++) {
                                uint32_t i = c0 + n * 8 + lane % 4 * 2 + j;

                                found[(i * 8 + lane / 4) * 2] = m[n][j];
                                found[(i * 8 + lane / 4) * 2 + 1] = z[n][j];
                        }
                __syncthreads();
                put_parts<D, PART>(p, at, board, found);
        }
        __syncthreads();                /* before the next pass changes the columns */
}

/* where this block works; its first column is for each pass to say */
template <int D> CKV_DEVICE struct ckv_mma_place mma_place(const struct ckv_k_score &p) {
        const uint32_t group = p.q_heads / p.kv_heads, each = CKV_K_MMA_HEADS(p.votes, D), parts = (group + each - 1) / each;
        const uint32_t skip = blockIdx.x % parts * each, heads = group - skip < each ? group - skip : each;
        struct ckv_mma_place at;

        at.head = blockIdx.y * group + skip;
        at.width = CKV_K_MMA_WIDTH(p.votes);
        at.columns = heads * at.width;
        at.column = 0;
        at.segment = blockIdx.x / parts;
        at.first = p.first + at.segment * CKV_K_SEGMENT;
        at.end = p.rows - at.first < CKV_K_SEGMENT ? p.rows : at.first + CKV_K_SEGMENT;
        return at;
}

template <int D, bool BF16, bool PART> CKV_DEVICE void mma_block(const struct ckv_k_score &p, void *shared) {
        const struct ckv_k_layer &layer = pointer<const struct ckv_k_layer>(p.layers)[blockIdx.z];
        struct ckv_mma_place at = mma_place<D>(p);

        for (at.column = 0; at.column < at.columns; at.column += ckv_mma<D>::COLUMNS)
                mma_pass<D, BF16, PART>(p, layer, at, static_cast<struct ckv_mma<D> *>(shared));
}

template <bool BF16, bool PART> CKV_DEVICE void mma_dims(const struct ckv_k_score &p, void *shared) {
        if (p.head_dim == 64)
                mma_block<64, BF16, PART>(p, shared);
        else if (p.head_dim == 96)
                mma_block<96, BF16, PART>(p, shared);
        else if (p.head_dim == 128)
                mma_block<128, BF16, PART>(p, shared);
        else
                mma_block<256, BF16, PART>(p, shared);
}

extern "C" __global__ void __launch_bounds__(CKV_K_THREADS, 3) ckv_k_mma_lse_part(const struct ckv_k_score p) {
        CKV_SHARED(uint8_t, shared);

        if (p.query_dtype == 3)
                mma_dims<true, true>(p, shared);
        else
                mma_dims<false, true>(p, shared);
}

extern "C" __global__ void __launch_bounds__(CKV_K_THREADS, 3) ckv_k_mma_weights(const struct ckv_k_score p) {
        CKV_SHARED(uint8_t, shared);

        if (p.query_dtype == 3)
                mma_dims<true, false>(p, shared);
        else
                mma_dims<false, false>(p, shared);
}

#endif
