/*
 * Rings: places, wrapping, room at limit - 1, limit and limit + 1, lies of
 * either side, seals.  Writer and reader map the same memfd, as gate and core
 * do.
 */
#include "ipc/ring.h"

#include "base/macros.h"

#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>

#define SIZE 4096u

struct pair {
        struct ckv_ring writer, reader;
        int fd;
};

static void pair_init(struct pair *pair) {
        ck_assert_int_eq(ckv_ring_create(SIZE, &pair->fd), 0);
        ck_assert_int_eq(ckv_ring_init(&pair->writer, pair->fd, SIZE, true), 0);
        ck_assert_int_eq(ckv_ring_init(&pair->reader, pair->fd, SIZE, false), 0);
}

static void pair_deinit(struct pair *pair) {
        ckv_ring_deinit(&pair->writer);
        ckv_ring_deinit(&pair->reader);
        pair->fd = ckv_close(pair->fd);
}

/* pass() - one attachment of @bytes from writer to reader, checked; returns its offset */
static uint32_t pass(struct pair *pair, uint32_t bytes, uint8_t value) {
        uint32_t offset = UINT32_MAX;
        const uint8_t *got;
        void *to = ckv_ring_reserve(&pair->writer, bytes, &offset);

        ck_assert_ptr_nonnull(to);
        memset(to, value, bytes);
        got = ckv_ring_read(&pair->reader, offset, bytes);
        ck_assert_ptr_nonnull(got);
        ck_assert_uint_eq(got[0], value);
        ck_assert_uint_eq(got[bytes - 1], value);
        ck_assert_uint_eq(pair->writer.head, pair->reader.head);
        ck_assert(ckv_ring_consumed(&pair->writer, pair->reader.head));
        return offset;
}

START_TEST(create_sealed_and_sized) {
        _cleanup_close_ int fd = -1;
        int seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

        ck_assert_int_eq(ckv_ring_create(SIZE, &fd), 0);
        ck_assert_int_eq(fcntl(fd, F_GET_SEALS), seals);
        ck_assert_int_eq(ftruncate(fd, 0), -1);
        ck_assert_int_eq(errno, EPERM);
}
END_TEST

START_TEST(create_bad_size) {
        int fd = -1;

        ck_assert_int_eq(ckv_ring_create(0, &fd), -EINVAL);
        ck_assert_int_eq(ckv_ring_create(4097, &fd), -EINVAL);
        ck_assert_int_eq(fd, -1);
}
END_TEST

START_TEST(init_other_size_refused) {
        _cleanup_close_ int fd = -1;
        struct ckv_ring ring = { 0 };

        ck_assert_int_eq(ckv_ring_create(SIZE, &fd), 0);
        ck_assert_int_eq(ckv_ring_init(&ring, fd, SIZE * 2, false), -EINVAL);
        ck_assert_int_eq(ckv_ring_init(&ring, fd, SIZE / 2, false), -EINVAL);
        ck_assert_ptr_null(ring.base);
        ckv_ring_deinit(&ring);
}
END_TEST

START_TEST(offsets_are_multiples_of_8) {
        struct pair pair;

        pair_init(&pair);
        ck_assert_uint_eq(pass(&pair, 1, 1), 0);
        ck_assert_uint_eq(pass(&pair, 8, 2), 8);
        ck_assert_uint_eq(pass(&pair, 9, 3), 16);
        ck_assert_uint_eq(pass(&pair, 4, 4), 32);
        pair_deinit(&pair);
}
END_TEST

START_TEST(wraps_to_the_start) {
        struct pair pair;

        pair_init(&pair);
        ck_assert_uint_eq(pass(&pair, 2048, 1), 0);
        ck_assert_uint_eq(pass(&pair, 1024, 2), 2048);
        /* 1024 are left behind: 1024 fit exactly, 1025 would not */
        ck_assert_uint_eq(pass(&pair, 1024, 3), 3072);
        ck_assert_uint_eq(pair.writer.head, SIZE);
        ck_assert_uint_eq(pass(&pair, 2048, 4), 0);
        ck_assert_uint_eq(pass(&pair, 1024, 5), 2048);
        ck_assert_uint_eq(pass(&pair, 1025, 6), 0);
        ck_assert_uint_eq(pair.writer.head, 2 * SIZE + 1032);
        for (uint32_t i = 0; i < 10000; i++)
                (void)pass(&pair, 1 + i * 7919 % (SIZE / 2), (uint8_t)i);
        pair_deinit(&pair);
}
END_TEST

START_TEST(length_limits) {
        struct pair pair;
        uint32_t offset = 77;

        pair_init(&pair);
        ck_assert_ptr_null(ckv_ring_reserve(&pair.writer, 0, &offset));
        ck_assert_ptr_null(ckv_ring_reserve(&pair.writer, SIZE / 2 + 1, &offset));
        ck_assert_uint_eq(offset, 77);
        ck_assert_ptr_nonnull(ckv_ring_reserve(&pair.writer, SIZE / 2, &offset));
        ck_assert_ptr_null(ckv_ring_read(&pair.reader, 0, 0));
        ck_assert_ptr_null(ckv_ring_read(&pair.reader, 0, SIZE / 2 + 1));
        ck_assert_ptr_nonnull(ckv_ring_read(&pair.reader, 0, SIZE / 2));
        pair_deinit(&pair);
}
END_TEST

START_TEST(full_until_read) {
        struct pair pair;
        uint32_t offset;
        uint64_t head;

        pair_init(&pair);
        ck_assert_ptr_nonnull(ckv_ring_reserve(&pair.writer, 2048, &offset));
        ck_assert_ptr_nonnull(ckv_ring_reserve(&pair.writer, 2040, &offset));
        ck_assert_ptr_nonnull(ckv_ring_reserve(&pair.writer, 8, &offset));
        head = pair.writer.head;
        ck_assert_ptr_null(ckv_ring_reserve(&pair.writer, 1, &offset));
        ck_assert_uint_eq(pair.writer.head, head);

        /* the reader frees 2048: as much fits, and no byte more */
        ck_assert(ckv_ring_consumed(&pair.writer, 2048));
        ck_assert_ptr_nonnull(ckv_ring_reserve(&pair.writer, 2040, &offset));
        ck_assert_uint_eq(offset, 0);
        ck_assert_ptr_null(ckv_ring_reserve(&pair.writer, 9, &offset));
        ck_assert_ptr_nonnull(ckv_ring_reserve(&pair.writer, 8, &offset));
        pair_deinit(&pair);
}
END_TEST

START_TEST(skipped_bytes_count_as_taken) {
        struct pair pair;
        uint32_t offset;

        pair_init(&pair);
        (void)pass(&pair, 2048, 1);
        (void)pass(&pair, 1000, 2);
        /* 1048 to the end are skipped: 1048 + 2048 + 1000 = all of it */
        ck_assert_ptr_nonnull(ckv_ring_reserve(&pair.writer, 2048, &offset));
        ck_assert_uint_eq(offset, 0);
        ck_assert_ptr_null(ckv_ring_reserve(&pair.writer, 1001, &offset));
        ck_assert_ptr_nonnull(ckv_ring_reserve(&pair.writer, 1000, &offset));
        pair_deinit(&pair);
}
END_TEST

START_TEST(consumed_lies) {
        struct pair pair;
        uint32_t offset;

        pair_init(&pair);
        ck_assert(!ckv_ring_consumed(&pair.writer, 1));
        ck_assert_ptr_nonnull(ckv_ring_reserve(&pair.writer, 16, &offset));
        ck_assert(!ckv_ring_consumed(&pair.writer, 17));
        ck_assert(ckv_ring_consumed(&pair.writer, 16));
        ck_assert(ckv_ring_consumed(&pair.writer, 16));
        ck_assert(!ckv_ring_consumed(&pair.writer, 15));
        ck_assert_uint_eq(pair.writer.tail, 16);
        pair_deinit(&pair);
}
END_TEST

START_TEST(read_elsewhere_refused) {
        struct pair pair;
        uint32_t offset;

        pair_init(&pair);
        ck_assert_ptr_nonnull(ckv_ring_reserve(&pair.writer, 64, &offset));
        ck_assert_ptr_null(ckv_ring_read(&pair.reader, 8, 64));
        ck_assert_ptr_null(ckv_ring_read(&pair.reader, SIZE, 64));
        ck_assert_ptr_null(ckv_ring_read(&pair.reader, UINT32_MAX - 7, 64));
        ck_assert_uint_eq(pair.reader.head, 0);
        ck_assert_ptr_nonnull(ckv_ring_read(&pair.reader, 0, 64));
        ck_assert_ptr_null(ckv_ring_read(&pair.reader, 0, 64));
        pair_deinit(&pair);
}
END_TEST

int main(void) {
        Suite *suite = suite_create("ring");
        TCase *tcase = tcase_create("ring");
        SRunner *runner;
        int failed;

        tcase_add_test(tcase, create_sealed_and_sized);
        tcase_add_test(tcase, create_bad_size);
        tcase_add_test(tcase, init_other_size_refused);
        tcase_add_test(tcase, offsets_are_multiples_of_8);
        tcase_add_test(tcase, wraps_to_the_start);
        tcase_add_test(tcase, length_limits);
        tcase_add_test(tcase, full_until_read);
        tcase_add_test(tcase, skipped_bytes_count_as_taken);
        tcase_add_test(tcase, consumed_lies);
        tcase_add_test(tcase, read_elsewhere_refused);
        suite_add_tcase(suite, tcase);
        runner = srunner_create(suite);
        srunner_run_all(runner, CK_NORMAL);
        failed = srunner_ntests_failed(runner);
        srunner_free(runner);
        return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
