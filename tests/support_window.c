/*
 * Problems are small and odd: one of them has every layout, map and mask in some
 * combination that no list would have.  The answers are sums of exp2() in
 * binary64, formed row by row from the definition in kernels/cpu_window.h.
 */
#include "tests/support_window.h"

#include "base/macros.h"
#include "kernels/cpu_kernel.h"
#include "kernels/reference.h"

#include <check.h>
#include <math.h>
#include <string.h>

#define CANARY 12345.5f

static uint64_t next_random(uint64_t *state) {
        *state = *state * 6364136223846793005U + 1442695040888963407U;
        return *state >> 33;
}

static uint32_t below(uint64_t *state, uint32_t end) {
        return (uint32_t)(next_random(state) % end);
}

static float uniform(uint64_t *state) {
        return (float)next_random(state) * 0x1p-30f - 1;
}

static uint16_t to_bf16(float v) {
        uint32_t bits;

        memcpy(&bits, &v, sizeof(bits));
        return (uint16_t)(bits >> 16);
}

static void *must(void *p) {
        ck_assert_ptr_nonnull(p);
        return p;
}

static void *aligned(size_t bytes) {
        return must(aligned_alloc(CKV_CPU_ALIGN, (bytes + CKV_CPU_ALIGN - 1) / CKV_CPU_ALIGN * CKV_CPU_ALIGN));
}

struct window_shape window_shape_any(uint64_t seed) {
        static const uint32_t dims[] = { 32, 64, 96, 128, 128, 160, 256, 320 }, blocks[] = { 8, 16, 24, 32, 128 };
        static const uint32_t windows[] = { 1, 3, 8, 16, 24, 32, 32, 64, 64, 70, 128 };
        uint64_t state = seed * 77 + 5;
        struct window_shape shape = {
                .rows = 1 + below(&state, 200), .heads = 1 + below(&state, 3), .chunk = 1 + below(&state, 24),
                .dims = dims[below(&state, CKV_ARRAY_SIZE(dims))], .block = blocks[below(&state, CKV_ARRAY_SIZE(blocks))],
                .window = windows[below(&state, CKV_ARRAY_SIZE(windows))], .layout = below(&state, _LAYOUT_COUNT),
                .map = below(&state, _MAP_COUNT), .masked = below(&state, 3) > 0,
        };

        shape.per_group = 1 + below(&state, shape.window > 32 ? 4 : 8);
        shape.most = below(&state, 3) == 0;
        shape.cap = below(&state, 3) == 0 ? 3 + uniform(&state) * 2 : below(&state, 6) == 0 ? 300 : 0;
        return shape;
}

static void lay_out(struct window_problem *p, uint64_t *state) {
        const struct window_shape *shape = &p->shape;
        uint32_t first = 16 * below(state, 3) + (shape->layout == LAYOUT_PAGED ? 0 : below(state, 2) * 5), count;
        uint32_t total = first + shape->rows, block = shape->layout >= LAYOUT_PAGED ? shape->block : total + 3;
        uint64_t row_bytes = shape->dims * 2U, token = row_bytes * shape->heads, head = row_bytes;

        count = total / block + 2;
        if (shape->layout == LAYOUT_HEADS_OUTSIDE) {
                token = row_bytes;
                head = row_bytes * block;
        }
        p->plane = (struct ckv_plane){
                .block_stride = token * block + 64, .head_stride = head, .token = { .tile = 1, .outer = token },
                .dim = { .tile = 1, .outer = 2 }, .dtype = CKV_DTYPE_BF16, .dims = shape->dims, .scale = 1,
        };
        if (shape->layout == LAYOUT_HEADS_OUTSIDE)
                p->plane.block_stride = head * shape->heads + 64;
        if (shape->layout == LAYOUT_TILED) {
                p->plane.token = (struct ckv_axis){ .tile = 8, .outer = 9 * token, .inner = token };
                p->plane.block_stride = 2 * token * block;
        }
        p->segment = (struct ckv_cpu_window_segment){
                .k = &p->plane, .table = &p->table, .head = below(state, shape->heads), .first = first, .rows = shape->rows,
                .dims = shape->dims, .window = shape->window, .query_count = shape->window * shape->per_group,
                .factor = shape->cap > 0 ? 0.09f / shape->cap : 0.09f, .cap = shape->cap, .most = shape->most,
        };
        p->keys = must(malloc(count * p->plane.block_stride));
        for (size_t i = 0; i < count * p->plane.block_stride / 2; i++)
                p->keys[i] = 0x7fc0;
        p->plane.base = (uint8_t *)p->keys;
        p->table = (struct ckv_row_table){
                .by_token = shape->layout == LAYOUT_SLOTS || shape->layout == LAYOUT_SLOTS_ASCENDING, .tokens_per_block = block,
        };
        if (p->table.by_token)
                count = total;
        p->entries = must(malloc(count * sizeof(*p->entries)));
        for (uint32_t i = 0; i < count; i++)
                p->entries[i] = i + (shape->layout == LAYOUT_SLOTS_ASCENDING ? 2 : 0);
        for (uint32_t i = count; i-- > 1 && (shape->layout == LAYOUT_PAGED || shape->layout == LAYOUT_SLOTS);) {
                uint32_t n = below(state, i + 1), swap = p->entries[i];

                p->entries[i] = p->entries[n];
                p->entries[n] = swap;
        }
        p->table.entries = p->entries;
}

uint16_t *window_key(const struct window_problem *p, uint32_t row, uint32_t x) {
        return (uint16_t *)(void *)ckv_plane_row(&p->plane, &p->table, p->segment.first + row, p->segment.head) + x;
}

static void fill_values(struct window_problem *p, uint64_t *state) {
        uint32_t count = p->segment.query_count, dims = p->shape.dims;

        for (uint32_t i = 0; i < p->shape.rows; i++)
                for (uint32_t x = 0; x < dims; x++)
                        *window_key(p, i, x) = to_bf16(uniform(state) * 4);
        p->padded = (count + CKV_CPU_WINDOW_LANES - 1) / CKV_CPU_WINDOW_LANES * CKV_CPU_WINDOW_LANES;
        p->queries = must(malloc((size_t)count * dims * sizeof(float)));
        for (size_t i = 0; i < (size_t)count * dims; i++)
                p->queries[i] = ckv_bf16_to_f32(to_bf16(uniform(state) * 8));
        p->reference = aligned(p->padded * sizeof(float));
        p->inverse = aligned(p->padded * sizeof(float));
        for (uint32_t n = 0; n < p->padded; n++) {
                p->reference[n] = n < count ? 4 + uniform(state) * 6 : 0;
                p->inverse[n] = n < count ? 1 + uniform(state) * 0.5f : 0;
        }
}

/* Both ends move with the query row, as positions do. */
static void fill_masks(struct window_problem *p, uint64_t *state) {
        uint32_t window = p->shape.window, first = p->segment.first, rows = p->shape.rows;
        uint32_t low = first + below(state, rows), span = below(state, 40), high = first + below(state, rows + 1);
        bool slides = below(state, 2) == 0;

        p->low = must(malloc(window * sizeof(*p->low)));
        p->high = must(malloc(window * sizeof(*p->high)));
        for (uint32_t t = 0; t < window; t++) {
                uint32_t move = span * t / window;

                p->low[t] = p->shape.masked && slides ? low + move - CKV_MIN(low + move, 60) : 0;
                p->high[t] = p->shape.masked ? high + move : first + rows + 40;
        }
}

static void add_part(struct ckv_cpu_window_part *parts, uint32_t *count, uint32_t column, uint32_t columns, float part) {
        if (column < columns && part != 0)
                parts[(*count)++] = (struct ckv_cpu_window_part){ .column = column, .part = part };
}

static void fill_map(struct window_problem *p, uint64_t *state) {
        const struct window_shape *shape = &p->shape;
        uint32_t columns = (shape->rows + shape->chunk - 1) / shape->chunk, count = 0, skipped = 0;
        struct ckv_cpu_window_part *parts = must(malloc(4 * (size_t)shape->rows * sizeof(*parts)));
        uint32_t *first = must(malloc((shape->rows + 1) * sizeof(*first)));

        for (uint32_t i = 0; i < shape->rows; i++) {
                uint32_t c = i / shape->chunk, at = i % shape->chunk;
                float before = c > 0 && at < 2 ? (float)(2 - at) / 5 : 0;
                float after = c + 1 < columns && shape->chunk - at <= 2 ? (float)(at + 3 - shape->chunk) / 5 : 0;

                first[i] = count;
                skipped = skipped > 0 ? skipped - 1 : below(state, 25) == 0 ? below(state, 2 * shape->chunk) : 0;
                if (shape->map == MAP_SHARED && skipped == 0) {
                        add_part(parts, &count, c - 1, columns, before);
                        add_part(parts, &count, c, columns, 1 - before - after);
                        add_part(parts, &count, c + 1, columns, after);
                } else if (shape->map == MAP_WILD) {
                        uint32_t from = c - CKV_MIN(c, below(state, 3));

                        for (uint32_t n = below(state, 5); n > 0; n--)
                                add_part(parts, &count, from++, columns, 0.5f + uniform(state) * 0.4f);
                } else if (shape->map == MAP_CHUNKS)
                        add_part(parts, &count, c, columns, 1);
        }
        first[shape->rows] = count;
        p->map = (struct ckv_cpu_window_map){ .first = first, .parts = parts, .columns = columns };
}

struct window_problem *window_problem_new(uint64_t seed, const struct window_shape *shape) {
        struct window_problem *p = must(calloc(1, sizeof(*p)));
        uint64_t state = seed * 2654435761U + 99;

        p->shape = *shape;
        lay_out(p, &state);
        fill_values(p, &state);
        fill_masks(p, &state);
        if (shape->map != MAP_NONE)
                fill_map(p, &state);
        p->segment.low = p->low;
        p->segment.high = p->high;
        p->segment.reference = p->reference;
        return p;
}

struct window_problem *window_problem_free(struct window_problem *p) {
        free((void *)(uintptr_t)p->map.first);
        free((void *)(uintptr_t)p->map.parts);
        free(p->queries);
        free(p->inverse);
        free(p->reference);
        free(p->low);
        free(p->high);
        free(p->keys);
        free(p->entries);
        free(p);
        return NULL;
}

struct window_results window_run(const struct window_problem *p, const struct ckv_cpu_window_kernel *kernel, bool checked) {
        struct ckv_cpu_window_segment segment = p->segment;
        uint32_t heads = p->shape.per_group, columns = p->map.parts ? p->map.columns : 0;
        struct window_results results = { .stride = p->shape.rows + 7 };
        void *pack = aligned(kernel->pack_bytes(segment.query_count, segment.dims));

        ck_assert(kernel->takes(CKV_DTYPE_BF16, CKV_DTYPE_BF16, segment.dims));
        kernel->pack(p->queries, segment.query_count, segment.dims, pack);
        segment.queries = pack;
        segment.scratch = aligned(CKV_CPU_SCRATCH_FLOATS * sizeof(float));
        memset(segment.scratch, 0xff, CKV_CPU_SCRATCH_FLOATS * sizeof(float));
        results.columns = columns ? aligned((size_t)columns * p->padded * sizeof(float)) : NULL;
        results.total = aligned(p->padded * sizeof(float));
        results.a = must(malloc(heads * results.stride * sizeof(float)));
        for (size_t i = 0; i < heads * results.stride; i++)
                results.a[i] = CANARY;
        results.above = checked ? aligned(p->padded * sizeof(float)) : NULL;
        results.row_total = checked ? aligned(p->padded * sizeof(float)) : NULL;
        kernel->units(&segment, columns ? &p->map : NULL, results.columns, results.total);
        kernel->rows(&segment, p->inverse, results.a, results.stride, results.above, results.row_total);
        free(segment.scratch);
        free(pack);
        return results;
}

void window_results_free(struct window_results *results) {
        free(results->columns);
        free(results->total);
        free(results->a);
        free(results->above);
        free(results->row_total);
}

static void near(const char *what, uint32_t i, uint32_t n, double got, double want) {
        ck_assert_msg(fabs(got - want) <= 2e-5 * fabs(want) + 1e-37, "%s %u, query or head %u: %g instead of %g", what, i, n, got, want);
}

/* What one query makes of the segment; joins what the others of its head make */
static void check_query(const struct window_problem *p, const struct window_results *r, uint32_t n, bool checked, double *sum_a) {
        uint32_t columns = p->map.parts ? p->map.columns : 0, dims = p->shape.dims, t = n % p->shape.window;
        double total = 0, row_total = 0, above = -INFINITY, *of_columns = must(calloc(columns + 1, sizeof(double)));

        for (uint32_t i = 0; i < p->shape.rows; i++) {
                uint32_t row = p->segment.first + i;
                double product = 0, logit, w;

                if (row < p->low[t] || row >= p->high[t])
                        continue;
                for (uint32_t x = 0; x < dims; x++)
                        product += (double)ckv_bf16_to_f32(*window_key(p, i, x)) * (double)p->queries[(size_t)n * dims + x];
                logit = product * (double)p->segment.factor;
                if (p->shape.cap > 0)
                        logit = (double)p->shape.cap * tanh(logit);
                logit -= (double)p->reference[n];
                w = exp2(logit);
                total += w;
                for (uint32_t e = columns ? p->map.first[i] : 0; columns && e < p->map.first[i + 1]; e++)
                        of_columns[p->map.parts[e].column] += w * (double)p->map.parts[e].part;
                above = fmax(above, logit);
                w = exp2(checked ? fmin(logit, 0) : logit) * (double)p->inverse[n];
                row_total += w;
                sum_a[i] = p->shape.most ? fmax(sum_a[i], w) : sum_a[i] + w;
        }
        near("total", 0, n, (double)r->total[n], total);
        for (uint32_t c = 0; c < columns; c++)
                near("column", c, n, (double)r->columns[(size_t)c * p->padded + n], of_columns[c]);
        if (checked) {
                near("total of rows", 0, n, (double)r->row_total[n], row_total);
                ck_assert(above == (double)r->above[n] || fabs(above - (double)r->above[n]) < 1e-4);
        }
        free(of_columns);
}

void window_problem_check(const struct window_problem *p, const struct ckv_cpu_window_kernel *kernel) {
        for (int checked = 0; checked < 2; checked++) {
                struct window_results r = window_run(p, kernel, checked);

                for (uint32_t h = 0; h < p->shape.per_group; h++) {
                        double *sum_a = must(calloc(p->shape.rows, sizeof(*sum_a)));

                        for (uint32_t t = 0; t < p->shape.window; t++)
                                check_query(p, &r, h * p->shape.window + t, checked, sum_a);
                        for (uint32_t i = 0; i < p->shape.rows; i++)
                                near("row", i, h, (double)r.a[h * r.stride + i], sum_a[i]);
                        for (size_t i = p->shape.rows; i < r.stride; i++)
                                ck_assert_float_eq(r.a[h * r.stride + i], CANARY);
                        free(sum_a);
                }
                window_results_free(&r);
        }
}
