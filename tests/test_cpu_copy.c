/*
 * Copies past the caches (kernels/cpu_copy.h): every length and alignment
 * about the limits, sources and targets that overlap, chains of pieces as a
 * move makes them, and memory that goes away in the middle.  memmove() is the
 * specification, and whole arenas are compared, so that a byte too many shows.
 */
#include "base/guard.h"
#include "base/macros.h"
#include "kernels/cpu_copy.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { ARENA = 64 << 10, LONG = CKV_COPY_STREAM };

static uint8_t *arena, *expected;

static void setup(void) {
        arena = aligned_alloc(64, ARENA);
        expected = malloc(ARENA);
        ck_assert(arena && expected);
        srand(1);
        for (uint32_t i = 0; i < ARENA; i++)
                arena[i] = (uint8_t)rand();
        memcpy(expected, arena, ARENA);
}

static void teardown(void) {
        free(arena);
        free(expected);
}

static void copy_and_compare(uint64_t to, uint64_t from, uint64_t bytes) {
        struct ckv_copy copy = { 0 };

        memmove(expected + to, expected + from, bytes);
        ckv__copy_put(&copy, arena + to, arena + from, bytes);
        ckv__copy_end(&copy);
        ck_assert_uint_eq(copy.bytes, 0);
        ck_assert_msg(memcmp(arena, expected, ARENA) == 0, "%lu bytes from %lu to %lu", (unsigned long)bytes, (unsigned long)from,
                      (unsigned long)to);
}

START_TEST(every_length_about_the_limits) {
        static const uint64_t about[] = { 0, 64, 256, LONG, LONG + 64, LONG + 256, 2 * LONG, 20480, 20480 + 256 };

        for (size_t i = 0; i < CKV_ARRAY_SIZE(about); i++)
                for (uint64_t more = 0; more < 66; more++) {
                        uint64_t bytes = about[i] + more, to = (uint64_t)rand() % 200, from = 32768 + (uint64_t)rand() % 200;

                        copy_and_compare(to, from, bytes);
                        copy_and_compare(from + 1, to, bytes);
                }
}
END_TEST

START_TEST(every_alignment) {
        for (uint64_t to = 0; to < 66; to++)
                for (uint64_t from = 0; from < 66; from++)
                        copy_and_compare(to, 16384 + from, LONG + to * 3 + from);
}
END_TEST

/* A run that moves by less than its own length, as in a move in one pass; and upwards, which no move does */
START_TEST(source_and_target_overlap) {
        for (uint64_t by = 0; by < 3 * LONG; by += by < 600 ? 1 : 37) {
                uint64_t at = (uint64_t)rand() % 64;

                copy_and_compare(at, at + by, 3 * LONG + 5);
                copy_and_compare(at + by, at, 3 * LONG + 5);
        }
}
END_TEST

/* Kept runs in place, one after the other: a piece is copied when the next is given, and must not be late for it. */
START_TEST(pieces_keep_their_order) {
        for (uint32_t round = 0; round < 300; round++) {
                uint64_t to = (uint64_t)rand() % 100, from = to + (uint64_t)rand() % 3000, bytes;
                struct ckv_copy copy = { 0 };

                for (; from < ARENA; from += bytes + (uint64_t)rand() % 2 * (uint64_t)rand() % 2000, to += bytes) {
                        bytes = rand() % 3 == 0 ? (uint64_t)rand() % 300 : (uint64_t)rand() % 6000;
                        bytes = CKV_MIN(bytes, ARENA - from);
                        memmove(expected + to, expected + from, bytes);
                        ckv__copy_put(&copy, arena + to, arena + from, bytes);
                        if (bytes == ARENA - from)
                                break;
                }
                ckv__copy_end(&copy);
                ck_assert_msg(memcmp(arena, expected, ARENA) == 0, "round %u", round);
        }
}
END_TEST

/* What is asked of memory ahead may lie behind the last page: that is no access. */
START_TEST(the_end_of_memory_is_not_passed) {
        uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
        uint8_t *pages = mmap(NULL, 5 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        struct ckv_copy copy = { 0 };

        ck_assert_ptr_ne(pages, MAP_FAILED);
        ck_assert_int_eq(mprotect(pages + 4 * page, page, PROT_NONE), 0);
        memset(pages + 2 * page, 7, 2 * page);
        ckv__copy_put(&copy, pages, pages + 2 * page, 2 * page - 100);
        ckv__copy_put(&copy, pages + 2 * page - 100, pages + 4 * page - 100, 100);
        ckv__copy_end(&copy);
        for (uint64_t i = 0; i < 2 * page; i++)
                ck_assert_uint_eq(pages[i], 7);
        (void)munmap(pages, 5 * page);
}
END_TEST

/* A file that its owner makes shorter while its rows move, be it where they are read or where they are written */
START_TEST(memory_that_goes_away_ends_nothing) {
        uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE), bytes = 16 * page;
        uint64_t to = _i == 0 ? 0 : 12 * page, from = _i == 0 ? 12 * page : 0;
        int fd = memfd_create("copied", MFD_CLOEXEC);
        struct ckv_copy copy = { 0 };
        struct ckv_guard *guard;
        uint8_t *shared;

        ck_assert_int_eq(ckv_guard_install(), 0);
        ck_assert_int_ge(fd, 0);
        ck_assert_int_eq(ftruncate(fd, (off_t)bytes), 0);
        shared = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        ck_assert_ptr_ne(shared, MAP_FAILED);
        memset(shared, 5, bytes);
        guard = ckv_guard_add(shared, bytes, true);
        ck_assert_int_eq(ftruncate(fd, (off_t)(14 * page)), 0);
        ckv__copy_put(&copy, shared + to, shared + from, 4 * page);
        ckv__copy_end(&copy);
        ck_assert(ckv_guard_bad(guard));
        (void)ckv_guard_remove(guard);
        (void)munmap(shared, bytes);
        (void)close(fd);
}
END_TEST

int main(void) {
        Suite *suite = suite_create("cpu_copy");
        TCase *tcase = tcase_create("cpu_copy");
        SRunner *runner = srunner_create(suite);
        int failed;

        suite_add_tcase(suite, tcase);
        tcase_add_checked_fixture(tcase, setup, teardown);
        tcase_set_timeout(tcase, 60);
        tcase_add_test(tcase, every_length_about_the_limits);
        tcase_add_test(tcase, every_alignment);
        tcase_add_test(tcase, source_and_target_overlap);
        tcase_add_test(tcase, pieces_keep_their_order);
        tcase_add_test(tcase, the_end_of_memory_is_not_passed);
        tcase_add_loop_test(tcase, memory_that_goes_away_ends_nothing, 0, 2);
        srunner_run_all(runner, CK_NORMAL);
        failed = srunner_ntests_failed(runner);
        srunner_free(runner);
        return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
