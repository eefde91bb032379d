/*
 * Which of several images a GPU gets, and what is said of them.  This program
 * brings images of its own in place of those in libkernels.a, as NVRTC makes
 * them: side by side.
 */
#include "kernels/cuda_image.h"

#include "base/macros.h"

#include <check.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { SM_80, SM_86, SM_90, SM_100, SM_120, PTX_80 };

static const char data[PTX_80 + 1];

const struct ckv__cuda_images ckv__cuda_images = {
        .compiler = "nvrtc 12.8.93", .needed = 12000, .count = 6,
        .image = {
                { 80, 0, &data[SM_80] }, { 86, 0, &data[SM_86] }, { 90, 0, &data[SM_90] }, { 100, 0, &data[SM_100] },
                { 120, 0, &data[SM_120] }, { 80, 1, &data[PTX_80] },
        },
};

/* Machine code of the same major number, the highest minor one that is not above; PTX where there is none. */
START_TEST(each_gpu_gets_its_image) {
        static const struct {
                int major, minor, image;
        } cases[] = {
                { 8, 0, SM_80 }, { 8, 5, SM_80 }, { 8, 6, SM_86 }, { 8, 9, SM_86 }, { 9, 0, SM_90 }, { 10, 0, SM_100 },
                { 10, 3, SM_100 }, { 11, 0, PTX_80 }, { 12, 0, SM_120 }, { 12, 1, SM_120 }, { 13, 0, PTX_80 },
        };
        struct ckv_cuda_fault fault;
        const void *image;

        for (size_t i = 0; i < CKV_ARRAY_SIZE(cases); i++) {
                ck_assert_int_eq(ckv__cuda_image_find(cases[i].major, cases[i].minor, &image, &fault), 0);
                ck_assert_msg(image == &data[cases[i].image], "%d.%d got %d", cases[i].major, cases[i].minor,
                              (int)((const char *)image - data));
        }
}
END_TEST

START_TEST(a_gpu_that_is_too_old) {
        struct ckv_cuda_fault fault;
        const void *image = data;

        ck_assert_int_eq(ckv__cuda_image_find(7, 9, &image, &fault), -EOPNOTSUPP);
        ck_assert_str_eq(fault.text, "the GPU has compute capability 7.9, and the kernels here need 8.0 or newer");
        ck_assert_int_eq(fault.code, 0);
        ck_assert_ptr_eq(image, data);
}
END_TEST

START_TEST(what_people_are_told) {
        static const char list[] = "sm_80 sm_86 sm_90 sm_100 sm_120, PTX compute_80; nvrtc 12.8.93; for drivers of series 525 "
                                   "(CUDA 12.0) or newer";
        char text[CKV_CUDA_IMAGE_TEXT];
        struct ckv_cuda_fault fault;

        ckv_cuda_image_list(text, sizeof(text));
        ck_assert_str_eq(text, list);
        ck_assert_int_eq(ckv__cuda_image_needed(&fault), 12000);
        ckv_cuda_image_met(12080, text, sizeof(text));
        ck_assert_ptr_eq(strstr(text, "the NVIDIA driver is made for CUDA 12.8; images here: "), text);
        ck_assert_str_eq(strstr(text, "sm_80"), list);
        for (size_t size = 1; size < 80; size++) {
                memset(text, 'x', sizeof(text));
                ckv_cuda_image_met(12080, text, size);
                ck_assert_uint_eq(strlen(text), size - 1);
        }
}
END_TEST

int main(void) {
        Suite *suite = suite_create("cuda_image");
        TCase *tcase = tcase_create("all");
        SRunner *runner = srunner_create(suite);
        int failed;

        suite_add_tcase(suite, tcase);
        tcase_add_test(tcase, each_gpu_gets_its_image);
        tcase_add_test(tcase, a_gpu_that_is_too_old);
        tcase_add_test(tcase, what_people_are_told);
        srunner_run_all(runner, CK_ENV);
        failed = srunner_ntests_failed(runner);
        srunner_free(runner);
        return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
