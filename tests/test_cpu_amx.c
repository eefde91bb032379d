/*
 * The AMX kernel, with tile instructions in software on any machine with
 * AVX-512, and the real ones where there are some: both are held to sums in
 * binary64.
 */
#include "base/macros.h"
#include "kernels/cpu_choice.h"
#include "tests/support_amx_software.h"
#include "tests/support_window.h"

#include <check.h>
#include <math.h>
#include <stdlib.h>

/* Kernels that this machine can run; 0 without AVX-512 */
static uint32_t list_kernels(const struct ckv_cpu_window_kernel *ret_kernels[2]) {
        size_t path_count;
        const struct ckv_cpu_path *paths = ckv__cpu_paths(&path_count);
        uint32_t count = 0;

        __builtin_cpu_init();
        if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
            __builtin_cpu_supports("avx512dq"))
                ret_kernels[count++] = &window_amx_software;
        for (size_t i = 0; i < path_count; i++)
                if (paths[i].window == &ckv__cpu_window_amx && paths[i].usable())
                        ret_kernels[count++] = paths[i].window;
        return count;
}

static void check_shape(const struct window_shape *shape, uint64_t seed) {
        const struct ckv_cpu_window_kernel *kernels[2];
        uint32_t count = list_kernels(kernels);
        struct window_problem *problem = window_problem_new(seed, shape);

        for (uint32_t k = 0; k < count; k++)
                window_problem_check(problem, kernels[k]);
        (void)window_problem_free(problem);
}

START_TEST(any_problem) {
        for (uint64_t seed = 0; seed < (CKV_SANITIZED ? 80 : 300); seed++) {
                struct window_shape shape = window_shape_any(seed);

                check_shape(&shape, seed);
        }
}
END_TEST

/* The shapes of the models that these kernels were made for, in long segments: all templates, and rows fetched ahead */
START_TEST(shapes_of_models) {
        for (uint32_t n = 0; n < 12; n++) {
                const struct window_shape shape = {
                        .rows = 256, .dims = (uint32_t[]){ 64, 96, 128, 256 }[n % 4], .heads = 2, .per_group = n % 3 == 0 ? 7 : 4,
                        .window = n % 2 ? 64 : 32, .block = 16, .chunk = n % 3 ? 10 : 20, .layout = n % 3, .map = 1 + n % 2,
                        .masked = n >= 8,
                };

                check_shape(&shape, 1000 + n);
        }
}
END_TEST

/* More than the sums that are kept at a time */
START_TEST(thousands_of_queries) {
        const struct window_shape shape = {
                .rows = 40, .dims = 32, .heads = 1, .per_group = 65, .window = 64, .chunk = 7, .map = MAP_SHARED, .masked = true,
        };

        check_shape(&shape, 3);
}
END_TEST

/* A NaN in a key is one in the total of each query that sees the key, and of no other. */
START_TEST(not_a_number) {
        const struct window_shape shape = {
                .rows = 100, .dims = 64, .heads = 1, .per_group = 2, .window = 32, .chunk = 10, .map = MAP_CHUNKS, .masked = true,
        };
        const struct ckv_cpu_window_kernel *kernels[2];
        uint32_t count = list_kernels(kernels), seen = 0;

        for (uint32_t n = 0; n < 200; n++) {
                struct window_problem *problem = window_problem_new(50 + n / 100, &shape);
                uint32_t row = n % 100, at = problem->segment.first + row;

                *window_key(problem, row, n % 64) = 0x7fc0;
                for (uint32_t k = 0; k < count; k++) {
                        struct window_results results = window_run(problem, kernels[k], false);

                        for (uint32_t q = 0; q < 64; q++) {
                                bool sees = at >= problem->low[q % 32] && at < problem->high[q % 32];

                                seen += sees;
                                ck_assert_msg(!isfinite(results.total[q]) == sees, "row %u, query %u", row, q);
                        }
                        for (uint32_t i = 0; i < 2 * results.stride; i++)
                                ck_assert(!isnan(results.a[i]) || i % results.stride == row);
                        window_results_free(&results);
                }
                (void)window_problem_free(problem);
        }
        ck_assert(count == 0 || (seen > 100 && seen < count * 200 * 64));
}
END_TEST

int main(void) {
        Suite *suite = suite_create("cpu_amx");
        TCase *tcase = tcase_create("all");
        SRunner *runner = srunner_create(suite);
        int failed;

        tcase_set_timeout(tcase, 300);
        tcase_add_test(tcase, any_problem);
        tcase_add_test(tcase, shapes_of_models);
        tcase_add_test(tcase, thousands_of_queries);
        tcase_add_test(tcase, not_a_number);
        suite_add_tcase(suite, tcase);
        srunner_run_all(runner, CK_ENV);
        failed = srunner_ntests_failed(runner);
        srunner_free(runner);
        return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
