/*
 * Numbers of the reference: check values of R14, exact widening (R4), the one
 * rounding to binary32 (R13).
 */
#include "kernels/reference.h"

#include "base/macros.h"

#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static uint64_t bits64(double v) {
        uint64_t bits;

        memcpy(&bits, &v, sizeof(bits));
        return bits;
}

static uint32_t bits32(float v) {
        uint32_t bits;

        memcpy(&bits, &v, sizeof(bits));
        return bits;
}

START_TEST(r14_check_values) {
        ck_assert_uint_eq(bits64(ckv_ref_exp(-0.1)), UINT64_C(0x3fecf46d99d52b3a));
        ck_assert_uint_eq(bits64(ckv_ref_exp(-10.25)), UINT64_C(0x3f02899a7a835446));
        ck_assert_uint_eq(bits64(ckv_ref_exp(-87)), UINT64_C(0x381666d0dad2961d));
        ck_assert_uint_eq(bits64(ckv_ref_log(10)), UINT64_C(0x40026bb1bbb55516));
        ck_assert_uint_eq(bits64(ckv_ref_log(0.1)), UINT64_C(0xc0026bb1bbb55515));
        ck_assert_uint_eq(bits64(ckv_ref_tanh(-3)), UINT64_C(0xbfefd77d111a0b01));
        ck_assert_double_eq(ckv_ref_exp(0), 1);
        ck_assert_uint_eq(bits64(ckv_ref_exp(-700.5)), 0);
        ck_assert_uint_eq(bits64(ckv_ref_exp(-INFINITY)), 0);
        ck_assert(isinf(ckv_ref_exp(700.5)) && isnan(ckv_ref_exp(NAN)));
        ck_assert(ckv_ref_exp(-700) > 0);
        for (double v = -690; v < 690; v += 0.7301) {
                ck_assert_double_le(fabs(ckv_ref_exp(v) / exp(v) - 1), 1e-13);
                ck_assert_double_le(fabs(ckv_ref_tanh(v / 100) - tanh(v / 100)), 1e-15);
        }
        for (double v = 1e-300; v < 1e300; v *= 31.7)
                ck_assert_double_le(fabs(ckv_ref_log(v) - log(v)), 1e-15 * fabs(log(v)));
}
END_TEST

START_TEST(r4_widening) {
        static const struct {
                uint16_t bits;
                float value;
        } half[] = {
                { 0x0000, 0 },
                { 0x3c00, 1 },
                { 0xc000, -2 },
                { 0x0001, 0x1p-24f },
                { 0x83ff, -0x1.ff8p-15f },
                { 0x0400, 0x1p-14f },
                { 0x7bff, 65504 },
                { 0x7c00, INFINITY },
                { 0xfc00, -INFINITY },
                { 0x3555, 0x1.554p-2f },
        };

        for (size_t i = 0; i < CKV_ARRAY_SIZE(half); i++)
                ck_assert_uint_eq(bits32(ckv_f16_to_f32(half[i].bits)), bits32(half[i].value));
        ck_assert_uint_eq(bits32(ckv_f16_to_f32(0x8000)), 0x80000000U);
        ck_assert(isnan(ckv_f16_to_f32(0x7e00)) && isnan(ckv_f16_to_f32(0xfc01)));
        ck_assert_float_eq(ckv_bf16_to_f32(0x3f80), 1);
        ck_assert_float_eq(ckv_bf16_to_f32(0xc049), -3.140625f);
        ck_assert(isnan(ckv_bf16_to_f32(0x7fc0)));
        ck_assert_uint_eq(bits32(ckv_bf16_to_f32(0x0001)), 0x00010000U);
}
END_TEST

START_TEST(r4_small_types_are_scaled) {
        static const struct {
                enum ckv_dtype dtype;
                uint8_t code;
                float value;
        } table[] = {
                { CKV_DTYPE_F8_E4M3, 0x38, 1 },
                { CKV_DTYPE_F8_E4M3, 0xfe, -448 },
                { CKV_DTYPE_F8_E4M3, 0x01, 0x1p-9f },
                { CKV_DTYPE_F8_E4M3, 0x78, 256 },
                { CKV_DTYPE_F8_E5M2, 0x3c, 1 },
                { CKV_DTYPE_F8_E5M2, 0x7b, 57344 },
                { CKV_DTYPE_F8_E5M2, 0x01, 0x1p-16f },
                { CKV_DTYPE_I8, 0x80, -128 },
                { CKV_DTYPE_I8, 0x05, 5 },
        };
        const uint32_t entry = 0;
        const struct ckv_row_table rows = { .entries = &entry, .tokens_per_block = 1 };
        float value;

        for (size_t i = 0; i < CKV_ARRAY_SIZE(table); i++) {
                uint8_t code = table[i].code;
                struct ckv_plane plane = {
                        .base = &code, .token.tile = 1, .dim.tile = 1, .dtype = table[i].dtype, .dims = 1, .scale = 0.3f
                };

                ckv_ref_load(&plane, &rows, 0, 0, &value);
                ck_assert_msg(value == table[i].value * 0.3f, "case %zu: %g", i, (double)value);
        }
        for (unsigned code = 0x7f; code <= 0xff; code += 0x80) {
                uint8_t nan = (uint8_t)code;
                struct ckv_plane plane = {
                        .base = &nan, .token.tile = 1, .dim.tile = 1, .dtype = CKV_DTYPE_F8_E4M3, .dims = 1, .scale = 1
                };

                ckv_ref_load(&plane, &rows, 0, 0, &value);
                ck_assert(isnan(value));
        }
}
END_TEST

START_TEST(r13_rounding) {
        ck_assert_uint_eq(bits32(ckv_fl32(-0.0)), 0);
        ck_assert_uint_eq(bits32(ckv_fl32(-1e-60)), 0);
        ck_assert_uint_eq(bits32(ckv_fl32(1 + 0x1p-24)), bits32(1));
        ck_assert_uint_eq(bits32(ckv_fl32(1 + 0x1.8p-23)), bits32(1 + 0x1p-22f));
        ck_assert(isinf(ckv_fl32(1e39)) && isnan(ckv_fl32(NAN)));
}
END_TEST

int main(void) {
        Suite *suite = suite_create("reference_math");
        TCase *tcase = tcase_create("numbers");
        SRunner *runner = srunner_create(suite);
        int failed;

        suite_add_tcase(suite, tcase);
        tcase_add_test(tcase, r14_check_values);
        tcase_add_test(tcase, r4_widening);
        tcase_add_test(tcase, r4_small_types_are_scaled);
        tcase_add_test(tcase, r13_rounding);
        srunner_run_all(runner, CK_NORMAL);
        failed = srunner_ntests_failed(runner);
        srunner_free(runner);
        return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
