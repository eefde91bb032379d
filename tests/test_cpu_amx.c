/*
 * The AMX kernel, with tile instructions in software on any machine with
 * AVX-512, and the real ones where there are some: both are held to sums in
 * binary64.
 */
#include "base/macros.h"
#include "tests/support_amx_software.h"
#include "tests/support_window.h"

#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* Kernels that this machine can run; 0 without AVX-512 */
static uint32_t list_kernels(const struct ckv_cpu_window_kernel *ret_kernels[2]) {
        uint32_t count = 0;

        __builtin_cpu_init();
        if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
            __builtin_cpu_supports("avx512dq"))
                ret_kernels[count++] = &window_amx_software;
        return count;
}

START_TEST(any_problem) {
        const struct ckv_cpu_window_kernel *kernels[2];
        uint32_t count = list_kernels(kernels);

        for (uint64_t seed = 0; seed < 300; seed++) {
                struct window_shape shape = window_shape_any(seed);
                struct window_problem *problem = window_problem_new(seed, &shape);

                for (uint32_t k = 0; k < count; k++)
                        window_problem_check(problem, kernels[k]);
                (void)window_problem_free(problem);
        }
}
END_TEST

int main(void) {
        Suite *suite = suite_create("cpu_amx");
        TCase *tcase = tcase_create("all");
        SRunner *runner = srunner_create(suite);
        int failed;

        tcase_set_timeout(tcase, 300);
        tcase_add_test(tcase, any_problem);
        suite_add_tcase(suite, tcase);
        srunner_run_all(runner, CK_ENV);
        failed = srunner_ntests_failed(runner);
        srunner_free(runner);
        return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
