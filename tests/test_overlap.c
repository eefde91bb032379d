/*
 * Planes that share bytes, and planes that only lie among one another.  The
 * oracle marks every byte.
 */
#include "base/macros.h"
#include "daemon/overlap.h"

#include <check.h>
#include <string.h>

static uint32_t seed = 11;

static uint32_t draw(uint32_t below) {
        seed = seed * 1103515245u + 12345u;
        return (seed >> 16) % below;
}

static struct ckv_footprint footprint_at(uint64_t start, const struct ckv_dim dims[static 3], uint64_t element) {
        struct ckv_place place = { 1, 1, start, 0 };
        struct ckv_footprint footprint;

        ck_assert(ckv_extent(dims, 3, element, &place.bytes));
        ckv_footprint_init(&footprint, &place, dims, 3, element);
        return footprint;
}

static void mark(uint8_t *bytes, uint8_t bit, uint64_t start, const struct ckv_dim dims[static 3], uint64_t element) {
        for (uint64_t a = 0; a < dims[0].count; a++)
                for (uint64_t b = 0; b < dims[1].count; b++)
                        for (uint64_t c = 0; c < dims[2].count; c++)
                                for (uint64_t x = 0; x < element; x++)
                                        bytes[start + a * dims[0].stride + b * dims[1].stride + c * dims[2].stride + x] |= bit;
}

static bool share(const uint8_t *bytes, size_t n) {
        for (size_t i = 0; i < n; i++)
                if (bytes[i] == 3)
                        return true;
        return false;
}

/* nested() - three distinct dims in a random order, inner ones with random gaps */
static void nested(struct ckv_dim dims[static 3], uint64_t element) {
        uint64_t stride = element * (1 + draw(3));

        for (int k = 0; k < 3; k++) {
                dims[k] = (struct ckv_dim){ 1 + draw(4), stride };
                stride = stride * dims[k].count + element * draw(4);
        }
        for (int k = 0; k < 3; k++) {
                uint32_t with = draw(3);
                struct ckv_dim swap = dims[k];

                dims[k] = dims[with];
                dims[with] = swap;
        }
}

START_TEST(test_what_shares_a_byte_is_never_missed) {
        static uint8_t bytes[8192];
        uint32_t shared = 0, cleared = 0;

        for (int round = 0; round < 20000; round++) {
                struct ckv_dim a[3], b[3];
                uint64_t start_a = 2 * draw(300), start_b = 2 * draw(300);
                struct ckv_footprint first, second;

                nested(a, 2);
                if (draw(3))
                        memcpy(b, a, sizeof(a));        /* as K and V of a layer: the same strides */
                else
                        nested(b, 2);
                memset(bytes, 0, sizeof(bytes));
                mark(bytes, 1, start_a, a, 2);
                mark(bytes, 2, start_b, b, 2);
                first = footprint_at(start_a, a, 2);
                second = footprint_at(start_b, b, 2);
                if (share(bytes, sizeof(bytes))) {
                        shared++;
                        ck_assert(ckv_footprints_overlap(&first, &second));
                        ck_assert(ckv_footprints_overlap(&second, &first));
                } else if (!ckv_footprints_overlap(&first, &second)) {
                        cleared += ckv_places_overlap(&first.place, &second.place);
                }
        }
        ck_assert_uint_gt(shared, 500);
        ck_assert_uint_gt(cleared, 100);        /* interleaved, and told apart */
}
END_TEST

START_TEST(test_interleaved_planes_are_apart) {
        /* one buffer, block by block: [block][layer][K or V][head 8][token 16][dim 128] of 2 bytes */
        const uint64_t half = 8 * 16 * 256, layer = 2 * half, block = 4 * layer;
        struct ckv_dim dims[3] = { { 100, block }, { 8, 16 * 256 }, { 16 * 128, 2 } };
        struct ckv_footprint planes[8];

        for (uint32_t i = 0; i < CKV_ARRAY_SIZE(planes); i++) {
                planes[i] = footprint_at(i * half, dims, 2);
                for (uint32_t k = 0; k < i; k++)
                        ck_assert(!ckv_footprints_overlap(&planes[i], &planes[k]));
                ck_assert(ckv_footprints_overlap(&planes[i], &planes[i]));
        }
        planes[1] = footprint_at(half - 2, dims, 2);
        ck_assert(ckv_footprints_overlap(&planes[0], &planes[1]));
}
END_TEST

START_TEST(test_other_files_never_overlap) {
        struct ckv_place a = { 1, 1, 0, 100 }, b = { 1, 2, 0, 100 }, c = { 1, 1, 100, 1 }, nowhere = { 1, 1, 50, 0 };

        ck_assert(!ckv_places_overlap(&a, &b));
        ck_assert(!ckv_places_overlap(&a, &c));
        ck_assert(!ckv_places_overlap(&a, &nowhere));
        c.start = 99;
        ck_assert(ckv_places_overlap(&a, &c));
}
END_TEST

int main(void) {
        Suite *suite = suite_create("overlap");
        TCase *tcase = tcase_create("overlap");
        SRunner *runner = srunner_create(suite);
        int failed;

        tcase_add_test(tcase, test_what_shares_a_byte_is_never_missed);
        tcase_add_test(tcase, test_interleaved_planes_are_apart);
        tcase_add_test(tcase, test_other_files_never_overlap);
        suite_add_tcase(suite, tcase);
        srunner_run_all(runner, CK_NORMAL);
        failed = srunner_ntests_failed(runner);
        srunner_free(runner);
        return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
