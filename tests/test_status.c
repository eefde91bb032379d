/*
 * The tables of outcomes, fields and sentences: they fit their limits, agree
 * with each other, and are spelled out with the right numbers.
 */
#include "proto/status.h"

#include "base/macros.h"

#include <check.h>
#include <string.h>

static char text[CKV_STATUS_DETAIL_MAX + 1];

START_TEST(codes_names_and_radii) {
        ck_assert_str_eq(ckv_code_to_string(0), "OK");
        ck_assert_str_eq(ckv_code_to_string(CKV_CODE_INVALID_ARGUMENT), "INVALID_ARGUMENT");
        ck_assert_str_eq(ckv_code_to_string(51), "INTERNAL");
        ck_assert_str_eq(ckv_code_to_string(29), "?");
        ck_assert_str_eq(ckv_code_to_string(UINT32_MAX), "?");
        ck_assert_int_eq(ckv_code_radius(CKV_CODE_OK), CKV_RADIUS_NONE);
        ck_assert_int_eq(ckv_code_radius(CKV_CODE_BAD_MESSAGE), CKV_RADIUS_REQUEST);
        ck_assert_int_eq(ckv_code_radius(CKV_CODE_STALE_BOOT), CKV_RADIUS_SESSION);
        ck_assert_int_eq(ckv_code_radius(CKV_CODE_DEVICE_HUNG), CKV_RADIUS_DEVICE);
        ck_assert_int_eq(ckv_code_radius(29), CKV_RADIUS_REQUEST);
}
END_TEST

START_TEST(set_overwrites_all) {
        struct ckv_record_status status;

        memset(&status, 0xff, sizeof(status));
        ckv_status_set(&status, CKV_CODE_QUOTA, CKV_F_REGION_SIZE, CKV_D_QUOTA, 7, 8, 9);
        ck_assert_uint_eq(status.code, CKV_CODE_QUOTA);
        ck_assert_uint_eq(status.radius, CKV_RADIUS_REQUEST);
        ck_assert_uint_eq(status.cache, CKV_CACHE_CLEAN);
        ck_assert_uint_eq(status.index[0], 0);
        ck_assert_uint_eq(status.retry_after_ms, 0);
        ck_assert_int_eq(status.driver_code, 0);
        ckv_status_detail_format(&status, text);
        ck_assert_str_eq(text, "7 of 8 are in use, 9 more were asked for");
        ckv_status_field_format(&status, text);
        ck_assert_str_eq(text, "register_region.size");
}
END_TEST

START_TEST(field_indices_in_order) {
        struct ckv_record_status status;

        ckv_status_set(&status, CKV_CODE_OUT_OF_RANGE, CKV_F_GROUP_TABLE_NUMBERS, CKV_D_NONE, 0, 0, 0);
        status.index[0] = 3;
        status.index[1] = 65535;
        ckv_status_field_format(&status, text);
        ck_assert_str_eq(text, "compress.groups[3].table.numbers[65535]");
        ckv_status_detail_format(&status, text);
        ck_assert_str_eq(text, "");
}
END_TEST

START_TEST(detail_with_half_of_a_uuid) {
        struct ckv_record_status status;

        ckv_status_set(&status, CKV_CODE_DEVICE_MISMATCH, CKV_F_REGION_DEVICE_UUID, CKV_D_OTHER_DEVICE,
                       UINT64_C(0x6a1b2c3d4e5f6071), 1, 0);
        ckv_status_detail_format(&status, text);
        ck_assert_ptr_nonnull(strstr(text, "UUID 6a1b2c3d-4e5f-6071-..."));
        ck_assert_ptr_nonnull(strstr(text, "serves 00000000-0000-0001-..."));
}
END_TEST

START_TEST(detail_arguments_by_number) {
        struct ckv_record_status status;

        ckv_status_set(&status, CKV_CODE_BAD_MESSAGE, CKV_F_NONE, CKV_D_TOO_LONG, 262144, UINT64_MAX, 0);
        ckv_status_detail_format(&status, text);
        ck_assert_str_eq(text, "the message has 18446744073709551615 bytes, the limit is 262144");
        ckv_status_field_format(&status, text);
        ck_assert_str_eq(text, "");
}
END_TEST

START_TEST(numbers_outside_the_tables) {
        struct ckv_record_status status = { .field = _CKV_F_N, .detail = _CKV_D_N };

        memset(text, 'x', sizeof(text) - 1);
        ckv_status_field_format(&status, text);
        ck_assert_str_eq(text, "");
        memset(text, 'x', sizeof(text) - 1);
        ckv_status_detail_format(&status, text);
        ck_assert_str_eq(text, "");
        status.field = status.detail = UINT16_MAX;
        ckv_status_field_format(&status, text);
        ck_assert_str_eq(text, "");
        ckv_status_detail_format(&status, text);
        ck_assert_str_eq(text, "");
}
END_TEST

/* with the largest indices no path is cut, and with the largest arguments no sentence is */
START_TEST(all_texts_fit) {
        struct ckv_record_status status;

        for (unsigned field = 0; field < _CKV_F_N; field++) {
                ckv_status_set(&status, CKV_CODE_OUT_OF_RANGE, (enum ckv_field)field, CKV_D_NONE, 0, 0, 0);
                status.index[0] = status.index[1] = UINT16_MAX;
                ckv_status_field_format(&status, text);
                ck_assert_uint_lt(strlen(text), CKV_STATUS_FIELD_MAX);
                ck_assert_ptr_null(strchr(text, '%'));
        }
        for (unsigned detail = 0; detail < _CKV_D_N; detail++) {
                ckv_status_set(&status, CKV_CODE_OUT_OF_RANGE, CKV_F_NONE, (enum ckv_detail)detail, UINT64_MAX,
                               UINT64_MAX, UINT64_MAX);
                ckv_status_detail_format(&status, text);
                ck_assert_uint_lt(strlen(text), CKV_STATUS_DETAIL_MAX);
                ck_assert_ptr_null(strchr(text, '{'));
        }
}
END_TEST

START_TEST(no_path_twice) {
        static char paths[_CKV_F_N][CKV_STATUS_FIELD_MAX + 1];

        for (unsigned field = 0; field < _CKV_F_N; field++) {
                struct ckv_record_status status = { .field = (uint16_t)field };

                ckv_status_field_format(&status, paths[field]);
                for (unsigned earlier = 0; earlier < field; earlier++)
                        ck_assert_str_ne(paths[earlier], paths[field]);
        }
}
END_TEST

int main(void) {
        Suite *suite = suite_create("status");
        TCase *tcase = tcase_create("status");
        SRunner *runner;
        int failed;

        tcase_add_test(tcase, codes_names_and_radii);
        tcase_add_test(tcase, set_overwrites_all);
        tcase_add_test(tcase, field_indices_in_order);
        tcase_add_test(tcase, detail_arguments_by_number);
        tcase_add_test(tcase, detail_with_half_of_a_uuid);
        tcase_add_test(tcase, numbers_outside_the_tables);
        tcase_add_test(tcase, all_texts_fit);
        tcase_add_test(tcase, no_path_twice);
        suite_add_tcase(suite, tcase);
        runner = srunner_create(suite);
        srunner_run_all(runner, CK_NORMAL);
        failed = srunner_ntests_failed(runner);
        srunner_free(runner);
        return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
