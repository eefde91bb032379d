/*
 * A segment of one KV head with chunks of 16 rows, in which every query sees
 * all rows but the last few.
 *
 * Rows are thrown out of the caches before the clock starts: in a request K is
 * read once, from memory, and a path that computes fast has nothing from it
 * where memory is slow.  Time is that of the thread's CPU, which neighbours
 * disturb least: while another thread has the core, it stands still.
 */
#include "kernels/cpu_trial.h"

#include "base/clock.h"
#include "base/macros.h"
#include "kernels/cpu_kernel.h"
#include "kernels/reference.h"

#include <errno.h>
#include <math.h>
#include <string.h>
#include <time.h>

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#endif

enum { CHUNK = 16 };

#define FACTOR 1.44269504f              /* logits are in units of log 2 */
#define REFERENCE 3.0f                  /* above most logits */
#define WITHIN 1e-4                     /* R31 */

struct ckv_cpu_trial {
        struct ckv_cpu_trial_shape shape;
        struct ckv_plane plane;
        struct ckv_row_table table;
        uint32_t block;                 /* the table's only entry: 0 */
        uint32_t padded, columns;
        size_t key_bytes;
        uint8_t *keys;
        float *queries;                 /* [query_count][dims] */
        float *reference, *inverse;     /* [padded] */
        uint32_t *low, *high;           /* [window] */
        struct ckv_cpu_window_map map;
        uint32_t *first;
        struct ckv_cpu_window_part *parts;
        float *column_sums, *total;     /* [columns][padded], [padded] */
        float *a;                       /* [heads][rows] */
        float *products;                /* [query_count][rows] */
        float *scratch;
};

static void *aligned(size_t bytes) {
        return aligned_alloc(CKV_CPU_ALIGN, (bytes + CKV_CPU_ALIGN) / CKV_CPU_ALIGN * CKV_CPU_ALIGN);
}

struct ckv_cpu_trial *ckv__cpu_trial_free(struct ckv_cpu_trial *trial) {
        if (!trial)
                return NULL;
        free(trial->keys);
        free(trial->queries);
        free(trial->reference);
        free(trial->inverse);
        free(trial->low);
        free(trial->high);
        free(trial->first);
        free(trial->parts);
        free(trial->column_sums);
        free(trial->total);
        free(trial->a);
        free(trial->products);
        free(trial->scratch);
        free(trial);
        return NULL;
}

/* In [-1, 1), a multiple of 1/128: exact in all three types */
static float value_at(uint32_t *state) {
        *state = *state * 1664525U + 1013904223U;
        return (float)(int32_t)(*state >> 24) / 128 - 1;
}

static void store_key(const struct ckv_cpu_trial *trial, size_t i, float v) {
        uint32_t bits;
        uint16_t half;

        memcpy(&bits, &v, sizeof(bits));
        if (trial->shape.keys == CKV_DTYPE_F32) {
                memcpy(trial->keys + i * 4, &bits, 4);
                return;
        }
        half = (uint16_t)(bits >> 16);
        if (trial->shape.keys == CKV_DTYPE_F16)
                half = (uint16_t)((bits >> 16 & 0x8000) | (v == 0 ? 0 : ((bits >> 23 & 0xff) - 112) << 10 | (bits >> 13 & 0x3ff)));
        memcpy(trial->keys + i * 2, &half, 2);
}

static bool allocate(struct ckv_cpu_trial *trial) {
        const struct ckv_cpu_trial_shape *shape = &trial->shape;
        uint32_t heads = shape->query_count / shape->window;

        trial->keys = aligned(trial->key_bytes);
        trial->queries = malloc((size_t)shape->query_count * shape->dims * sizeof(float));
        trial->reference = aligned(trial->padded * sizeof(float));
        trial->inverse = aligned(trial->padded * sizeof(float));
        trial->low = calloc(shape->window, sizeof(uint32_t));
        trial->high = malloc(shape->window * sizeof(uint32_t));
        trial->first = malloc((shape->rows + 1) * sizeof(uint32_t));
        trial->parts = malloc(shape->rows * sizeof(*trial->parts));
        trial->column_sums = aligned((size_t)trial->columns * trial->padded * sizeof(float));
        trial->total = aligned(trial->padded * sizeof(float));
        trial->a = malloc((size_t)heads * shape->rows * sizeof(float));
        trial->products = malloc((size_t)shape->query_count * shape->rows * sizeof(float));
        trial->scratch = aligned(CKV_CPU_SCRATCH_FLOATS * sizeof(float));
        return trial->keys && trial->queries && trial->reference && trial->inverse && trial->low && trial->high && trial->first &&
               trial->parts && trial->column_sums && trial->total && trial->a && trial->products && trial->scratch;
}

static void fill(struct ckv_cpu_trial *trial) {
        const struct ckv_cpu_trial_shape *shape = &trial->shape;
        uint32_t state = shape->dims * 31 + shape->query_count;

        for (size_t i = 0; i < (size_t)shape->rows * shape->dims; i++)
                store_key(trial, i, value_at(&state));
        for (size_t i = 0; i < (size_t)shape->query_count * shape->dims; i++)
                trial->queries[i] = value_at(&state) * 4;
        for (uint32_t n = 0; n < trial->padded; n++) {
                trial->reference[n] = n < shape->query_count ? REFERENCE : 0;
                trial->inverse[n] = n < shape->query_count ? 0.5f : 0;
        }
        for (uint32_t t = 0; t < shape->window; t++)
                trial->high[t] = shape->rows - CKV_MIN(shape->rows, shape->window) + t + 1;
        for (uint32_t i = 0; i <= shape->rows; i++)
                trial->first[i] = i;
        for (uint32_t i = 0; i < shape->rows; i++)
                trial->parts[i] = (struct ckv_cpu_window_part){ .column = i / CHUNK, .part = 1 };
}

struct ckv_cpu_trial *ckv__cpu_trial_new(const struct ckv_cpu_trial_shape *shape) {
        struct ckv_cpu_trial *trial = calloc(1, sizeof(*trial));
        uint32_t bytes = ckv_dtype_bytes(shape->keys);

        if (!trial)
                return NULL;
        trial->shape = *shape;
        trial->padded = (shape->query_count + CKV_CPU_WINDOW_LANES - 1) / CKV_CPU_WINDOW_LANES * CKV_CPU_WINDOW_LANES;
        trial->columns = (shape->rows + CHUNK - 1) / CHUNK;
        trial->key_bytes = (size_t)shape->rows * shape->dims * bytes;
        if (!allocate(trial))
                return ckv__cpu_trial_free(trial);
        trial->map = (struct ckv_cpu_window_map){ .first = trial->first, .parts = trial->parts, .columns = trial->columns };
        trial->plane = (struct ckv_plane){
                .base = trial->keys, .block_stride = trial->key_bytes, .head_stride = (uint64_t)shape->dims * bytes,
                .token = { .tile = 1, .outer = (uint64_t)shape->dims * bytes }, .dim = { .tile = 1, .outer = bytes },
                .dtype = shape->keys, .dims = shape->dims, .scale = 1,
        };
        trial->table = (struct ckv_row_table){ .entries = &trial->block, .tokens_per_block = shape->rows };
        fill(trial);
        return trial;
}

bool ckv__cpu_trial_takes(const struct ckv_cpu_trial *trial, const struct ckv_cpu_window_kernel *kernel) {
        enum ckv_dtype queries = trial->shape.exact_queries ? trial->shape.keys : CKV_DTYPE_F32;

        return kernel && kernel->takes(trial->shape.keys, queries, trial->shape.dims);
}

static struct ckv_cpu_window_segment segment_of(const struct ckv_cpu_trial *trial, const void *pack) {
        return (struct ckv_cpu_window_segment){
                .k = &trial->plane, .table = &trial->table, .rows = trial->shape.rows, .dims = trial->shape.dims, .queries = pack,
                .query_count = trial->shape.query_count, .window = trial->shape.window, .low = trial->low, .high = trial->high,
                .factor = FACTOR / sqrtf((float)trial->shape.dims), .reference = trial->reference, .scratch = trial->scratch,
        };
}

static void *pack_new(const struct ckv_cpu_trial *trial, const struct ckv_cpu_window_kernel *kernel) {
        const struct ckv_cpu_trial_shape *shape = &trial->shape;
        void *pack = aligned(kernel->pack_bytes(shape->query_count, shape->dims));

        if (pack)
                kernel->pack(trial->queries, shape->query_count, shape->dims, pack);
        return pack;
}

/* Products of all queries with all rows, by the scalar kernel. Return: false if out of memory. */
static bool multiply(struct ckv_cpu_trial *trial) {
        const struct ckv_cpu_trial_shape *shape = &trial->shape;
        uint32_t blocks = (shape->query_count + CKV_CPU_BLOCK - 1) / CKV_CPU_BLOCK;
        _cleanup_free_ float *queries = aligned((size_t)blocks * shape->dims * CKV_CPU_BLOCK * sizeof(float));
        struct ckv_cpu_segment segment = {
                .k = &trial->plane, .table = &trial->table, .rows = shape->rows, .dims = shape->dims, .queries = queries,
                .query_count = shape->query_count, .window = 1, .scratch = trial->scratch,
        };

        if (!queries)
                return false;
        memset(queries, 0, (size_t)blocks * shape->dims * CKV_CPU_BLOCK * sizeof(float));
        for (uint32_t n = 0; n < shape->query_count; n++)
                for (uint32_t x = 0; x < shape->dims; x++)
                        queries[((size_t)(n / CKV_CPU_BLOCK) * shape->dims + x) * CKV_CPU_BLOCK + n % CKV_CPU_BLOCK] =
                                trial->queries[(size_t)n * shape->dims + x];
        ckv__cpu_kernel_scalar.products(&segment, trial->products, shape->rows);
        return true;
}

static bool near(double got, double want) {
        /* false for a NaN, too */
        return fabs(got - want) <= WITHIN * want;
}

/* Weights of one query row of each head: their sums over chunks and over all rows; @ret_sums[rows] takes them in */
static bool query_right(const struct ckv_cpu_trial *trial, uint32_t n, double *sums) {
        const struct ckv_cpu_trial_shape *shape = &trial->shape;
        double factor = (double)(FACTOR / sqrtf((float)shape->dims)), total = 0;

        for (uint32_t c = 0; c < trial->columns; c++) {
                double sum = 0;

                for (uint32_t i = c * CHUNK; i < CKV_MIN((c + 1) * CHUNK, shape->rows); i++) {
                        double logit = (double)trial->products[(size_t)n * shape->rows + i] * factor - (double)REFERENCE;
                        double weight = i < trial->high[n % shape->window] ? ckv_ref_exp(logit * 0.69314718055994531) : 0;

                        sum += weight;
                        sums[i] += weight * 0.5;
                }
                if (!near((double)trial->column_sums[(size_t)c * trial->padded + n], sum))
                        return false;
                total += sum;
        }
        return near((double)trial->total[n], total);
}

static bool results_right(const struct ckv_cpu_trial *trial, double *sums) {
        const struct ckv_cpu_trial_shape *shape = &trial->shape;

        for (uint32_t n = 0; n < shape->query_count; n++) {
                uint32_t head = n / shape->window;

                if (n % shape->window == 0)
                        memset(sums, 0, shape->rows * sizeof(*sums));
                if (!query_right(trial, n, sums))
                        return false;
                for (uint32_t i = 0; (n + 1) % shape->window == 0 && i < shape->rows; i++)
                        if (!near((double)trial->a[(size_t)head * shape->rows + i], sums[i]))
                                return false;
        }
        return true;
}

int ckv__cpu_trial_right(struct ckv_cpu_trial *trial, const struct ckv_cpu_window_kernel *kernel, bool *ret_right) {
        _cleanup_free_ void *pack = pack_new(trial, kernel);
        _cleanup_free_ double *sums = malloc(trial->shape.rows * sizeof(*sums));
        struct ckv_cpu_window_segment segment = segment_of(trial, pack);

        if (!pack || !sums || !multiply(trial))
                return -ENOMEM;
        kernel->units(&segment, &trial->map, trial->column_sums, trial->total);
        kernel->rows(&segment, trial->inverse, trial->a, trial->shape.rows, NULL, NULL);
        *ret_right = results_right(trial, sums);
        return 0;
}

#if defined(__x86_64__)

/* CLFLUSHOPT does not wait for the line before; CPUs without AVX-512 may lack it. */
static bool has_clflushopt(void) {
        uint32_t a, b, c, d;

        return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (b & bit_CLFLUSHOPT);
}

static void forget(const uint8_t *from, size_t bytes) {
        bool opt = has_clflushopt();

        for (size_t i = 0; i < bytes; i += CKV_CPU_ALIGN) {
                if (opt)
                        __asm__ volatile("clflushopt %0" : : "m"(from[i]) : "memory");
                else
                        _mm_clflush(from + i);
        }
        _mm_mfence();
}

#else

static void forget(const uint8_t *from, size_t bytes) {
        (void)from;
        (void)bytes;
}

#endif

uint64_t ckv__cpu_trial_clock(void) {
        struct timespec ts;

        (void)clock_gettime(CLOCK_THREAD_CPUTIME_ID, &ts);
        return (uint64_t)ts.tv_sec * CKV_NSEC_PER_SEC + (uint64_t)ts.tv_nsec;
}

int ckv__cpu_trial_nsec(struct ckv_cpu_trial *trial, const struct ckv_cpu_window_kernel *kernel, uint64_t *ret_nsec,
                        double *ret_total) {
        _cleanup_free_ void *pack = pack_new(trial, kernel);
        struct ckv_cpu_window_segment segment = segment_of(trial, pack);
        uint64_t start, start_wall, nsec;
        double total = 0;

        if (!pack)
                return -ENOMEM;
        forget(trial->keys, trial->key_bytes);
        start_wall = ckv_now_nsec();
        start = ckv__cpu_trial_clock();
        kernel->units(&segment, &trial->map, trial->column_sums, trial->total);
        nsec = ckv__cpu_trial_clock() - start;
        /* some systems count a thread's CPU time in ticks of milliseconds */
        *ret_nsec = nsec > 0 ? nsec : ckv_now_nsec() - start_wall;
        for (uint32_t n = 0; n < trial->shape.query_count; n++)
                total += (double)trial->total[n];
        *ret_total = total;
        return 0;
}
