/*
 * The arithmetic behind RegisterCache: reach of two-level axes, extent of
 * strided indices, and whether elements share bytes.  The oracle is the plain
 * enumeration of all addresses.
 */
#include "daemon/extent.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>

static uint32_t seed = 7;

static uint32_t draw(uint32_t below) {
        seed = seed * 1103515245u + 12345u;
        return (seed >> 16) % below;
}

START_TEST(test_reach_equals_enumeration) {
        for (int round = 0; round < 5000; round++) {
                struct ckv_axis axis = { 1 + draw(9), draw(50), draw(50) };
                uint32_t n = 1 + draw(40);
                uint64_t highest = 0, reach;

                for (uint32_t i = 0; i < n; i++)
                        if (ckv_axis_at(&axis, i) > highest)
                                highest = ckv_axis_at(&axis, i);
                ck_assert(ckv_axis_reach(&axis, n, &reach));
                ck_assert_uint_eq(reach, highest);
        }
}
END_TEST

START_TEST(test_reach_and_extent_overflow) {
        struct ckv_axis axis = { 1, UINT64_MAX / 2, 0 };
        struct ckv_dim fits[] = { { 2, UINT64_MAX - 4 } }, passes[] = { { 2, UINT64_MAX - 3 } };
        uint64_t bytes = 17;

        ck_assert(ckv_axis_reach(&axis, 3, &bytes));
        ck_assert_uint_eq(bytes, UINT64_MAX - 1);
        ck_assert(!ckv_axis_reach(&axis, 4, &bytes));
        ck_assert(ckv_extent(fits, 1, 4, &bytes));
        ck_assert_uint_eq(bytes, UINT64_MAX);
        ck_assert(!ckv_extent(passes, 1, 4, &bytes));
        ck_assert_uint_eq(bytes, UINT64_MAX);
}
END_TEST

/* distinct_by_enumeration() - mark every byte; false when one is marked twice */
static bool distinct_by_enumeration(const struct ckv_dim *dims, uint64_t element) {
        static uint8_t marked[1 << 16];

        memset(marked, 0, sizeof(marked));
        for (uint64_t a = 0; a < dims[0].count; a++)
                for (uint64_t b = 0; b < dims[1].count; b++)
                        for (uint64_t c = 0; c < dims[2].count; c++)
                                for (uint64_t x = 0; x < element; x++) {
                                        uint64_t at = a * dims[0].stride + b * dims[1].stride + c * dims[2].stride + x;

                                        if (marked[at]++)
                                                return false;
                                }
        return true;
}

/* What is called distinct is distinct; and a nested layout in any order of its indices is called so. */
START_TEST(test_distinct_is_sound) {
        uint32_t called = 0;

        for (int round = 0; round < 20000; round++) {
                struct ckv_dim dims[3], sorted[3];

                for (int k = 0; k < 3; k++)
                        dims[k] = (struct ckv_dim){ 1 + draw(5), 2 * draw(40) };
                memcpy(sorted, dims, sizeof(dims));
                if (ckv_dims_distinct(sorted, 3, 2)) {
                        called++;
                        ck_assert(distinct_by_enumeration(dims, 2));
                }
        }
        ck_assert_uint_gt(called, 1000);
}
END_TEST

START_TEST(test_distinct_accepts_nested_layouts) {
        struct ckv_dim hnd[] = { { 8, 4096 }, { 16, 256 }, { 128, 2 } };        /* head, token, dimension */
        struct ckv_dim nhd[] = { { 8, 256 }, { 16, 2048 }, { 128, 2 } };
        struct ckv_dim one_short[] = { { 8, 4096 }, { 17, 256 }, { 128, 2 } };
        struct ckv_dim still[] = { { 2, 0 }, { 1, 0 }, { 4, 2 } };

        ck_assert(ckv_dims_distinct(hnd, 3, 2));
        ck_assert(ckv_dims_distinct(nhd, 3, 2));
        ck_assert(!ckv_dims_distinct(one_short, 3, 2));
        ck_assert(!ckv_dims_distinct(still, 3, 2));
}
END_TEST

int main(void) {
        Suite *suite = suite_create("extent");
        TCase *tcase = tcase_create("extent");
        SRunner *runner = srunner_create(suite);
        int failed;

        tcase_add_test(tcase, test_reach_equals_enumeration);
        tcase_add_test(tcase, test_reach_and_extent_overflow);
        tcase_add_test(tcase, test_distinct_is_sound);
        tcase_add_test(tcase, test_distinct_accepts_nested_layouts);
        suite_add_tcase(suite, tcase);
        srunner_run_all(runner, CK_NORMAL);
        failed = srunner_ntests_failed(runner);
        srunner_free(runner);
        return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
