/*
 * The window kernels without tiles, each on any machine that can run it: held
 * to sums in binary64 on random shapes, layouts, masks, maps and types, and
 * looked at where numbers end.
 */
#include "base/macros.h"
#include "kernels/cpu_kernel.h"
#include "kernels/reference.h"
#include "tests/support_window.h"

#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static uint32_t list_kernels(const struct ckv_cpu_window_kernel *ret_kernels[3]) {
        uint32_t count = 0;

#if defined(__x86_64__)
        __builtin_cpu_init();
        if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c"))
                ret_kernels[count++] = &ckv__cpu_window_avx2;
        if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
            __builtin_cpu_supports("avx512dq")) {
                ret_kernels[count++] = &ckv__cpu_window_avx512;
                if (__builtin_cpu_supports("avx512bf16"))
                        ret_kernels[count++] = &ckv__cpu_window_avx512bf16;
        }
#endif
        return count;
}

/* A loop test's kernel, or NULL where this machine has fewer */
static const struct ckv_cpu_window_kernel *kernel_at(int i) {
        const struct ckv_cpu_window_kernel *kernels[3];
        uint32_t count = list_kernels(kernels);

        if ((uint32_t)i >= count)
                printf("window kernels: this machine runs %u of 3\n", count);
        return (uint32_t)i < count ? kernels[i] : NULL;
}

/* Of multiples of a quarter below 4 */
static uint16_t f16_bits(float value) {
        float size = fabsf(value);
        int exponent = size == 0 ? 0 : ilogbf(size);
        uint16_t bits;

        if (size == 0)
                return 0;
        bits = (uint16_t)((exponent + 15) << 10 | (int)(ldexpf(size, 10 - exponent) - 1024) | (value < 0) << 15);
        ck_assert(ckv_f16_to_f32(bits) == value);
        return bits;
}

/* The same keys in elements of another type. @ret_plane: its base is owned by the caller */
static void convert(struct window_problem *problem, enum ckv_dtype dtype, struct ckv_plane *ret_plane) {
        uint64_t times = ckv_dtype_bytes(dtype) / 2, bytes;
        struct ckv_plane plane = problem->plane;
        uint32_t most = 0;

        for (uint32_t j = 0; j < problem->segment.first + problem->shape.rows; j++)
                most = CKV_MAX(most, problem->table.entries[problem->table.by_token ? j : j / problem->table.tokens_per_block]);
        most = problem->table.by_token ? most / problem->table.tokens_per_block : most;
        plane.block_stride *= times;
        plane.head_stride *= times;
        plane.token.outer *= times;
        plane.token.inner *= times;
        plane.dim.outer *= times;
        plane.dtype = dtype;
        bytes = plane.block_stride * (most + 1U);
        plane.base = malloc(bytes);
        ck_assert_ptr_nonnull(plane.base);
        memset(plane.base, 0xff, bytes);
        for (uint32_t i = 0; i < problem->shape.rows; i++)
                for (uint32_t x = 0; x < problem->shape.dims; x++) {
                        uint16_t *key = window_key(problem, i, x), bits;
                        uint8_t *to = ckv_plane_row(&plane, &problem->table, problem->segment.first + i, problem->segment.head);
                        float value = ckv_bf16_to_f32(*key);

                        if (dtype == CKV_DTYPE_F16) {
                                value = rintf(value * 4) / 4;
                                memcpy(&bits, (uint8_t *)&value + 2, sizeof(bits));
                                *key = bits;
                                bits = f16_bits(value);
                                memcpy(to + x * 2, &bits, sizeof(bits));
                        } else
                                memcpy(to + x * 4, &value, sizeof(value));
                }
        *ret_plane = plane;
}

START_TEST(any_problem) {
        const struct ckv_cpu_window_kernel *kernel = kernel_at(_i);

        for (uint64_t seed = 0; kernel && seed < (CKV_SANITIZED ? 40 : 120); seed++) {
                struct window_shape shape = window_shape_any(seed + 1000);
                struct window_problem *problem = window_problem_new(seed, &shape);

                window_problem_check(problem, kernel);
                (void)window_problem_free(problem);
        }
}
END_TEST

/* Keys in float16 and float32, queries that no bfloat16 holds */
START_TEST(other_types) {
        const struct ckv_cpu_window_kernel *kernel = kernel_at(_i);

        for (uint64_t seed = 0; kernel && seed < (CKV_SANITIZED ? 20 : 60); seed++) {
                enum ckv_dtype dtype = seed % 2 ? CKV_DTYPE_F32 : CKV_DTYPE_F16;
                struct window_shape shape = window_shape_any(seed + 5000);
                struct window_problem *problem;
                struct ckv_plane plane;

                if (!kernel->takes(dtype, CKV_DTYPE_F32, 128))
                        continue;
                shape.rows = CKV_MIN(shape.rows, 90);
                shape.dims -= (uint32_t)(seed % 3 * 3);            /* numbers that fill no vector */
                problem = window_problem_new(seed, &shape);
                for (size_t i = 0; i < (size_t)problem->segment.query_count * shape.dims; i++)
                        problem->queries[i] *= 0.2502441f;
                convert(problem, dtype, &plane);
                problem->segment.k = &plane;
                window_problem_check(problem, kernel);
                free(plane.base);
                (void)window_problem_free(problem);
        }
}
END_TEST

/* R31: bfloat16 products are exact only where both sides are bfloat16. */
START_TEST(what_they_take) {
        const struct ckv_cpu_window_kernel *kernel = kernel_at(_i);
        bool bf16;

        if (!kernel)
                return;
        bf16 = strcmp(kernel->name, "avx512bf16") == 0;
        ck_assert(kernel->takes(CKV_DTYPE_BF16, CKV_DTYPE_BF16, 128));
        ck_assert(kernel->takes(CKV_DTYPE_BF16, CKV_DTYPE_BF16, CKV_CPU_DIMS_MAX));
        ck_assert(!kernel->takes(CKV_DTYPE_BF16, CKV_DTYPE_BF16, CKV_CPU_DIMS_MAX + 2));
        ck_assert(kernel->takes(CKV_DTYPE_BF16, CKV_DTYPE_BF16, 7) == !bf16);
        ck_assert(kernel->takes(CKV_DTYPE_BF16, CKV_DTYPE_F32, 128) == !bf16);
        ck_assert(kernel->takes(CKV_DTYPE_F16, CKV_DTYPE_BF16, 128) == !bf16);
        ck_assert(!kernel->takes(CKV_DTYPE_F8_E4M3, CKV_DTYPE_BF16, 128));
        ck_assert(!kernel->takes(CKV_DTYPE_I8, CKV_DTYPE_BF16, 128));
}
END_TEST

/* One head, every query sees all rows, every row in one column */
static struct window_problem *plain(uint64_t seed) {
        struct window_shape shape = { .rows = 130, .dims = 64, .heads = 1, .per_group = 2, .window = 24, .chunk = 130,
                                      .layout = LAYOUT_TOKENS_OUTSIDE, .map = MAP_CHUNKS };

        return window_problem_new(seed, &shape);
}

/* NaN and infinity in a visible key show in every total; what nobody sees does not. */
START_TEST(numbers_that_are_none) {
        static const uint16_t bad[] = { 0x7fc0, 0x7f80, 0x7f81, 0xffff };
        const struct ckv_cpu_window_kernel *kernel = kernel_at(_i);

        for (uint32_t i = 0; kernel && i < CKV_ARRAY_SIZE(bad) * 2; i++) {
                struct window_problem *problem = plain(i);
                struct window_results results;
                bool seen = i % 2;

                *window_key(problem, seen ? 60 : 129, 5) = bad[i / 2];
                for (uint32_t t = 0; t < 24 && !seen; t++)
                        problem->high[t] = problem->segment.first + 129;
                results = window_run(problem, kernel, false);
                for (uint32_t n = 0; n < 48; n++) {
                        /* an infinity is a legal weight of 0 for those who turn their back to it */
                        bool infinite = bad[i / 2] == 0x7f80 && problem->queries[(size_t)n * 64 + 5] < 0;

                        ck_assert(isfinite(results.total[n]) == (!seen || infinite));
                        ck_assert(isfinite(results.columns[n]) == (!seen || infinite));
                }
                window_results_free(&results);
                (void)window_problem_free(problem);
        }
}
END_TEST

/* The largest weight of a head is no place to hide a NaN in: rows where a query sees one are NaN, and no others. */
START_TEST(most_of_no_number) {
        const struct ckv_cpu_window_kernel *kernel = kernel_at(_i);
        struct window_shape shape = { .rows = 70, .dims = 64, .heads = 1, .per_group = 3, .layout = LAYOUT_TOKENS_OUTSIDE,
                                      .map = MAP_NONE, .most = true };

        for (uint32_t i = 0; kernel && i < 12; i++) {
                static const uint32_t windows[] = { 1, 5, 24, 100 };
                static const uint16_t bad[] = { 0x7fc0, 0xffc1, 0x7f80 };
                struct window_problem *problem;
                struct window_results results;

                shape.window = windows[i % 4];
                problem = window_problem_new(i, &shape);
                *window_key(problem, 33, 7) = bad[i / 4];
                /* times an infinity: a NaN, and the sign of a NaN counts for nothing */
                for (uint32_t t = 0; t < shape.window && i >= 8; t++)
                        problem->queries[(size_t)(shape.window + t) * 64 + 7] = 0;
                results = window_run(problem, kernel, i % 2);
                for (uint32_t h = 0; h < 3; h++)
                        for (uint32_t r = 0; r < 70; r++)
                                if (r != 33)
                                        ck_assert(isfinite(results.a[h * results.stride + r]));
                                else if (i < 8 || h == 1)
                                        ck_assert_msg(isnan(results.a[h * results.stride + r]), "%u, head %u", i, h);
                window_results_free(&results);
                (void)window_problem_free(problem);
        }
}
END_TEST

/* Weights beyond binary32 show as infinity, those below it are 0. */
START_TEST(references_far_off) {
        const struct ckv_cpu_window_kernel *kernel = kernel_at(_i);

        for (uint32_t i = 0; kernel && i < 2; i++) {
                struct window_problem *problem = plain(i);
                struct window_results results;

                for (uint32_t n = 0; n < 48; n++)
                        problem->reference[n] = i ? -1e4f : 1e30f;
                results = window_run(problem, kernel, true);
                for (uint32_t n = 0; n < 48; n++) {
                        ck_assert(i ? !isfinite(results.total[n]) : results.total[n] == 0);
                        ck_assert(i ? results.above[n] > 9e3f : results.above[n] < -9e29f);
                }
                window_results_free(&results);
                (void)window_problem_free(problem);
        }
}
END_TEST

int main(void) {
        Suite *suite = suite_create("cpu_window");
        TCase *tcase = tcase_create("kernels");
        SRunner *runner = srunner_create(suite);
        int failed;

        tcase_set_timeout(tcase, 300);
        tcase_add_loop_test(tcase, any_problem, 0, 3);
        tcase_add_loop_test(tcase, other_types, 0, 3);
        tcase_add_loop_test(tcase, what_they_take, 0, 3);
        tcase_add_loop_test(tcase, numbers_that_are_none, 0, 3);
        tcase_add_loop_test(tcase, most_of_no_number, 0, 3);
        tcase_add_loop_test(tcase, references_far_off, 0, 3);
        suite_add_tcase(suite, tcase);
        srunner_run_all(runner, CK_ENV);
        failed = srunner_ntests_failed(runner);
        srunner_free(runner);
        return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
