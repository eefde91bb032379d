/*
 * Scores of units from one pass over K (scheme B), on tensor cores where no
 * log-sum-exp was given: struct ckv_k_sums of kernels/cuda/params.h says what
 * is kept of the pass.  Blocks, tiles and fragments are those of mma.cuh.
 *
 * Logits of 16 rows go through shared memory, so that a lane has all rows of
 * one query.  It walks them upwards with the sums of three units in registers,
 * the lowest of which is written out when a row is reached that has no part in
 * it: no shuffles, one order of adding up, and stores of whole sectors.  Sums
 * are made tile by tile first, or a long one would lose small terms (R31).
 *
 * The reference is fixed before the pass and may turn out to be far from the
 * logits: then the sum over all rows says so, and ckv_k_lse with looks_far
 * hands it on.  What is no number is found the same way.
 */
#ifndef CKV_KERNELS_CUDA_SUMS_CUH
#define CKV_KERNELS_CUDA_SUMS_CUH

#include "kernels/cuda/mma.cuh"

/* What a row adds to the sums of three units, of which `unit` is the first. It is 0 where there are none. */
struct ckv_sums_row {
        uint32_t unit;
        float part[3];
};

template <int D> struct ckv_sums {
        enum {
                QUERIES = ckv_mma<D>::EIGHTS * 8,       /* of a warp */
                PITCH = QUERIES + 8,                    /* four rows that lanes write at once meet different banks */
        };
        uint16_t k[2][ckv_mma<D>::ROWS * ckv_mma<D>::PITCH];
        float logits[CKV_K_THREADS / 32][16 * PITCH];
        struct ckv_sums_row rows[2][ckv_mma<D>::ROWS];
};

/* A lane's query, and its sums on the way. Lanes without a query see all and write nothing. */
struct ckv_sums_query {
        bool any;
        uint64_t index;                         /* of the query among those of all layers */
        uint32_t low, high;                     /* what it sees */
        float reference, z, z_before;           /* sums over the rows of this tile, and of those before */
        uint32_t unit;                          /* of the first sum */
        float sum[3], before[3];
        float *out;                             /* of that unit */
};

CKV_DEVICE struct ckv_sums_row parts_of(const struct ckv_k_sums &p, uint32_t row) {
        const uint32_t *unit_of_row = pointer<const uint32_t>(p.unit_of_row);
        const bool pooled = row < p.domain;
        const uint32_t half = pooled ? p.half : 0, low = row > half ? row - half : 0;
        const uint32_t high = pooled && p.domain - 1 - row < half ? p.domain - 1 : row + half;
        uint32_t first = CKV_NO_ROW, n0 = 0, n1 = 0, n2 = 0;
        struct ckv_sums_row parts = { 0, { 0, 0, 0 } };
        float norm = 1, share;

        if (row >= p.score.rows)
                return parts;
        if (p.seen) {
                uint32_t seen = pointer<const uint32_t>(p.seen)[row];

                norm = seen > 1 ? 1.0f / (float)seen : 1;       /* a row that nobody sees has weight 0 */
        }
        for (uint32_t j = low; j <= high; j++) {
                uint32_t unit = unit_of_row[j];

                if (unit == CKV_NO_ROW)
                        continue;
                first = first == CKV_NO_ROW ? unit : first;
                n0 += unit == first;
                n1 += unit == first + 1;
                n2 += unit == first + 2;
        }
        share = norm / (float)(2 * half + 1);
        parts.unit = first == CKV_NO_ROW ? 0 : first;
        parts.part[0] = n0 == 2 * half + 1 ? norm : share * (float)n0;
        parts.part[1] = share * (float)n1;
        parts.part[2] = share * (float)n2;
        return parts;
}

/* parts of the rows of tile @t; a thread each */
template <int D>
CKV_DEVICE void set_parts(const struct ckv_k_sums &p, const struct ckv_mma_place &at, uint32_t t, struct ckv_sums<D> *board) {
        if (threadIdx.x < ckv_mma<D>::ROWS)
                board->rows[t % 2][threadIdx.x] = parts_of(p, at.first + t * ckv_mma<D>::ROWS + threadIdx.x);
}

template <int D> CKV_DEVICE struct ckv_sums_query begin_query(const struct ckv_k_sums &p, const struct ckv_mma_place &at) {
        const struct ckv_k_score &score = p.score;
        const uint32_t lane = threadIdx.x % 32, column = at.column + threadIdx.x / 32 * ckv_sums<D>::QUERIES + lane;
        const uint32_t head = at.head + column / at.width, query = column % at.width, group = score.q_heads / score.kv_heads;
        const uint64_t stride = (uint64_t)group * at.width, first = (at.head - blockIdx.y * group) * at.width + column;
        struct ckv_sums_query q = { false, 0, 0, CKV_NO_ROW, 0, 0, 0, 0, { 0, 0, 0 }, { 0, 0, 0 }, nullptr };
        float reference;

        q.unit = pointer<const uint32_t>(p.bounds)[2 * at.segment];
        if (lane >= ckv_sums<D>::QUERIES || column >= at.columns || query >= score.votes)
                return q;
        q.any = true;
        q.index = ((uint64_t)blockIdx.z * score.q_heads + head) * score.votes + query;
        q.low = pointer<const uint32_t>(score.visible)[2 * query];
        q.high = pointer<const uint32_t>(score.visible)[2 * query + 1];
        reference = pointer<const float>(p.reference)[2 * q.index];
        q.reference = reference - reference == 0 ? reference : 0;       /* of no row at all: -infinity */
        q.out = pointer<float>(p.sums) + first +
                (((uint64_t)blockIdx.z * score.kv_heads + blockIdx.y) * p.columns + q.unit + 3 * at.segment) * stride;
        return q;
}

/* the first sum is complete */
CKV_DEVICE void put_sum(struct ckv_sums_query &q, uint64_t stride) {
        if (q.any)
                *q.out = q.before[0] + q.sum[0];
        q.out += stride;
        q.unit++;
        q.sum[0] = q.sum[1];
        q.sum[1] = q.sum[2];
        q.sum[2] = 0;
        q.before[0] = q.before[1];
        q.before[1] = q.before[2];
        q.before[2] = 0;
}

/* 16 rows from @row on. @logits: products of the warp's queries with them; @all: each query sees each of them */
template <int D>
CKV_DEVICE void take_rows(struct ckv_sums_query &q, const float *logits, const struct ckv_sums_row *rows, uint32_t row, bool all,
                          float scale, uint64_t stride) {
        const uint32_t lane = threadIdx.x % 32 < ckv_sums<D>::QUERIES ? threadIdx.x % 32 : 0;

#pragma unroll 4
        for (uint32_t r = 0; r < 16; r++) {
                const struct ckv_sums_row parts = rows[r];
                float e = exp2_fast(fmaf(logits[r * ckv_sums<D>::PITCH + lane], scale, -q.reference));

                if (!all && (row + r < q.low || row + r >= q.high))
                        e = 0;
                while (q.unit < parts.unit)
                        put_sum(q, stride);
                q.z += e;
#pragma unroll
                for (int i = 0; i < 3; i++)
                        q.sum[i] = fmaf(parts.part[i], e, q.sum[i]);
        }
}

/* the sums of a tile join those before */
CKV_DEVICE void end_tile(struct ckv_sums_query &q) {
        q.z_before += q.z;
        q.z = 0;
#pragma unroll
        for (int i = 0; i < 3; i++) {
                q.before[i] += q.sum[i];
                q.sum[i] = 0;
        }
}

/* what all lanes of the warp see */
CKV_DEVICE void common_rows(const struct ckv_sums_query &q, uint32_t *ret_low, uint32_t *ret_high) {
        uint32_t low = q.low, high = q.high;

        for (int x = 16; x > 0; x >>= 1) {
                uint32_t other = __shfl_xor_sync(0xffffffffU, low, x);

                low = other > low ? other : low;
                other = __shfl_xor_sync(0xffffffffU, high, x);
                high = other < high ? other : high;
        }
        *ret_low = low;
        *ret_high = high;
}

template <int D, bool BF16>
CKV_DEVICE void sums_pass(const struct ckv_k_sums &p, const struct ckv_k_layer &layer, const struct ckv_mma_place &at,
                          struct ckv_sums<D> *board) {
        using S = ckv_mma<D>;
        const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, tiles = (at.end - at.first + S::ROWS - 1) / S::ROWS;
        const uint32_t last = pointer<const uint32_t>(p.bounds)[2 * at.segment + 1];
        const uint64_t stride = (uint64_t)(p.score.q_heads / p.score.kv_heads) * at.width;
        const float scale = p.score.scale * (layer.k.scale != 0 ? layer.k.scale : 1) * CKV_LOG2E;
        const bool works = at.column + warp * ckv_sums<D>::QUERIES < at.columns;
        struct ckv_sums_query mine = begin_query<D>(p, at);
        float *logits = board->logits[warp];
        uint32_t q[S::EIGHTS][S::STEPS][2], all_low, all_high;

        copy_tile<D>(p.score, layer, at, 0, board);
        set_parts<D>(p, at, 0, board);
        load_queries<D>(p.score, layer, at, q);
        common_rows(mine, &all_low, &all_high);
        for (uint32_t t = 0; t < tiles; t++) {
                copies_wait();
                __syncthreads();        /* tile t and its parts are there, t - 1 is done with */
                if (t + 1 < tiles) {
                        copy_tile<D>(p.score, layer, at, t + 1, board);
                        set_parts<D>(p, at, t + 1, board);
                }
#pragma unroll 1
                for (uint32_t r0 = 0; works && r0 < S::ROWS; r0 += 16) {
                        const uint32_t row0 = at.first + t * S::ROWS + r0;
                        float *to = logits + lane / 4 * ckv_sums<D>::PITCH + lane % 4 * 2, c[S::EIGHTS][4];

                        multiply_rows<D, BF16>(&board->k[t % 2][r0 * S::PITCH], q, c);
#pragma unroll
                        for (int n = 0; n < S::EIGHTS; n++)
#pragma unroll
                                for (int i = 0; i < 4; i++)
                                        to[i / 2 * 8 * ckv_sums<D>::PITCH + n * 8 + i % 2] = c[n][i];
                        __syncwarp();   /* a lane's logits come from all lanes */
                        take_rows<D>(mine, logits, &board->rows[t % 2][r0], row0, row0 >= all_low && row0 + 16 <= all_high, scale,
                                     stride);
                        __syncwarp();   /* they are read before the next ones are written */
                }
                end_tile(mine);
        }
        while (works && mine.unit <= last)
                put_sum(mine, stride);
        if (mine.any) {
                float *part = pointer<float>(p.score.part) + 2 * (mine.index * p.score.segments + at.segment);

                part[0] = mine.reference;
                part[1] = mine.z_before;
        }
        __syncthreads();                /* before the next pass copies over the tiles */
}

template <int D, bool BF16> CKV_DEVICE void sums_block(const struct ckv_k_sums &p, void *shared) {
        const struct ckv_k_layer &layer = pointer<const struct ckv_k_layer>(p.score.layers)[blockIdx.z];
        struct ckv_mma_place at = mma_place<D>(p.score);

        for (at.column = 0; at.column < at.columns; at.column += ckv_mma<D>::COLUMNS)
                sums_pass<D, BF16>(p, layer, at, static_cast<struct ckv_sums<D> *>(shared));
}

template <bool BF16> CKV_DEVICE void sums_dims(const struct ckv_k_sums &p, void *shared) {
        if (p.score.head_dim == 64)
                sums_block<64, BF16>(p, shared);
        else if (p.score.head_dim == 96)
                sums_block<96, BF16>(p, shared);
        else if (p.score.head_dim == 128)
                sums_block<128, BF16>(p, shared);
        else
                sums_block<256, BF16>(p, shared);
}

extern "C" __global__ void __launch_bounds__(CKV_K_THREADS, 3) ckv_k_mma_sums(const struct ckv_k_sums p) {
        CKV_SHARED(uint8_t, shared);

        if (p.score.query_dtype == 3)
                sums_dims<true>(p, shared);
        else
                sums_dims<false>(p, shared);
}

/* What segment @s has of units u0 .. end - 1 of KV head @g, each query's by 1 / Z, joins @total; the lanes share the queries. */
CKV_DEVICE void add_columns(const struct ckv_k_sums &p, uint32_t g, uint32_t s, uint32_t u0, uint32_t end,
                            double total[CKV_K_UNITS_EACH]) {
        const struct ckv_k_score &score = p.score;
        const uint32_t group = score.q_heads / score.kv_heads, width = CKV_K_MMA_WIDTH(score.votes), stride = group * width;
        const uint32_t *bounds = pointer<const uint32_t>(p.bounds) + 2 * s;
        const float *sums = pointer<const float>(p.sums) +
                            (((uint64_t)blockIdx.z * score.kv_heads + g) * p.columns + u0 + 3 * s) * stride;
        const uint32_t from = bounds[0] > u0 ? bounds[0] - u0 : 0, to = (bounds[1] < end ? bounds[1] + 1 : end) - u0;
        float sum[CKV_K_UNITS_EACH];

#pragma unroll
        for (uint32_t i = 0; i < CKV_K_UNITS_EACH; i++)
                sum[i] = 0;
#pragma unroll 1
        for (uint32_t column = threadIdx.x % 32; column < stride; column += 32) {
                uint64_t index = ((uint64_t)blockIdx.z * score.q_heads + g * group + column / width) * score.votes + column % width;
                float inverse;

                if (column % width >= score.votes)
                        continue;
                inverse = exp2_fast(pointer<const float>(score.part)[2 * index * score.segments] -
                                    pointer<const float>(score.lse)[index]);
#pragma unroll
                for (uint32_t i = 0; i < CKV_K_UNITS_EACH; i++)
                        if (i >= from && i < to)
                                sum[i] = fmaf(sums[(uint64_t)i * stride + column], inverse, sum[i]);
        }
#pragma unroll
        for (uint32_t i = 0; i < CKV_K_UNITS_EACH; i++)
                total[i] += (double)sum[i];
}

extern "C" __global__ void __launch_bounds__(CKV_K_THREADS, 4) ckv_k_sum_units(const struct ckv_k_sums p) {
        const uint32_t u0 = (blockIdx.x * (CKV_K_THREADS / 32) + threadIdx.x / 32) * CKV_K_UNITS_EACH;
        const uint32_t end = p.units - u0 < CKV_K_UNITS_EACH ? p.units : u0 + CKV_K_UNITS_EACH;
        const uint32_t *bounds = pointer<const uint32_t>(p.bounds);
        const bool each = p.score_heads > 1;
        double total[CKV_K_UNITS_EACH];
        uint32_t first, s;

        if (u0 >= p.units)              /* there is no barrier below, and the warp leaves as one */
                return;
        first = pointer<const uint32_t>(p.first_row)[u0];
        first = (first > p.half ? first - p.half : 0) / CKV_K_SEGMENT;
#pragma unroll
        for (uint32_t i = 0; i < CKV_K_UNITS_EACH; i++)
                total[i] = 0;
        for (uint32_t g = each ? blockIdx.y : 0; g < (each ? blockIdx.y + 1 : p.score.kv_heads); g++)
                for (s = first; s < p.score.segments && bounds[2 * s] < end; s++)
                        if (bounds[2 * s + 1] >= u0)
                                add_columns(p, g, s, u0, end, total);
#pragma unroll
        for (uint32_t i = 0; i < CKV_K_UNITS_EACH; i++) {
                double sum = warp_sum(total[i]);

                if (threadIdx.x % 32 == 0 && u0 + i < end) {
                        double size = p.mean ? (double)pointer<const uint32_t>(p.size)[u0 + i] : 1;

                        pointer<float>(p.out)[((uint64_t)blockIdx.z * p.score_heads + blockIdx.y) * p.units + u0 + i] =
                                (float)(sum / ((double)p.divisor * size));
                }
        }
}

#endif
