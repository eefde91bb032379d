/*
 * What is accepted as offered memory, and what each refusal says.
 */
#include "ipc/memfd.h"

#include "base/macros.h"
#include "tests/support_files.h"

#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>

enum { SIZE = 3 * 4096 };
#define ALL_SEALS (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)

START_TEST(full_and_sealed_is_accepted) {
        int fd = support_memfd(SIZE, SIZE, ALL_SEALS);
        struct ckv_memfd_info info;
        struct stat st;

        ck_assert_int_eq(ckv_memfd_check(fd, SIZE, &info), 0);
        ck_assert_int_eq(fstat(fd, &st), 0);
        ck_assert_uint_eq(info.size, SIZE);
        ck_assert_uint_eq(info.allocated, SIZE);
        ck_assert_uint_eq(info.seals & ALL_SEALS, ALL_SEALS);
        ck_assert_uint_eq(info.dev, st.st_dev);
        ck_assert_uint_eq(info.ino, st.st_ino);
        (void)close(fd);
}
END_TEST

START_TEST(future_write_seal_is_welcome) {
        int fd = support_memfd(SIZE, SIZE, ALL_SEALS | F_SEAL_FUTURE_WRITE);
        struct ckv_memfd_info info;

        ck_assert_int_eq(ckv_memfd_check(fd, SIZE, &info), 0);
        (void)close(fd);
}
END_TEST

START_TEST(each_missing_seal_is_refused) {
        static const int seals[] = { 0, F_SEAL_SHRINK | F_SEAL_GROW, F_SEAL_SHRINK | F_SEAL_SEAL, F_SEAL_GROW | F_SEAL_SEAL,
                                     ALL_SEALS | F_SEAL_WRITE };

        for (size_t i = 0; i < CKV_ARRAY_SIZE(seals); i++) {
                int fd = support_memfd(SIZE, SIZE, seals[i]);
                struct ckv_memfd_info info = { 0 };

                ck_assert_int_eq(ckv_memfd_check(fd, SIZE, &info), CKV_MEMFD_E_NOT_SEALED);
                ck_assert_uint_eq(info.seals & (ALL_SEALS | F_SEAL_WRITE), (unsigned)seals[i]);
                (void)close(fd);
        }
}
END_TEST

START_TEST(another_size_is_refused) {
        int fd = support_memfd(SIZE, SIZE, ALL_SEALS);
        struct ckv_memfd_info info = { 0 };

        ck_assert_int_eq(ckv_memfd_check(fd, SIZE - 1, &info), CKV_MEMFD_E_SIZE);
        ck_assert_uint_eq(info.size, SIZE);
        ck_assert_int_eq(ckv_memfd_check(fd, SIZE + 1, &info), CKV_MEMFD_E_SIZE);
        ck_assert_int_eq(ckv_memfd_check(fd, UINT64_MAX, &info), CKV_MEMFD_E_SIZE);
        (void)close(fd);
}
END_TEST

START_TEST(one_hole_is_sparse) {
        int fd = support_memfd(SIZE, SIZE - 4096, ALL_SEALS);
        struct ckv_memfd_info info = { 0 };

        ck_assert_int_eq(ckv_memfd_check(fd, SIZE, &info), CKV_MEMFD_E_SPARSE);
        ck_assert_uint_eq(info.allocated, SIZE - 4096);
        /* filled later: fine; punched again: noticed */
        ck_assert_int_eq(posix_fallocate(fd, 0, SIZE), 0);
        ck_assert_int_eq(ckv_memfd_check(fd, SIZE, &info), 0);
        ck_assert_int_eq(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 4096, 4096), 0);
        ck_assert_int_eq(ckv_memfd_check(fd, SIZE, &info), CKV_MEMFD_E_SPARSE);
        (void)close(fd);
}
END_TEST

START_TEST(size_within_a_page) {
        int fd = support_memfd(5000, 5000, ALL_SEALS);
        struct ckv_memfd_info info = { 0 };

        ck_assert_int_eq(ckv_memfd_check(fd, 5000, &info), 0);
        ck_assert_uint_eq(info.allocated, 8192);
        (void)close(fd);
}
END_TEST

START_TEST(what_is_no_memfd_is_refused) {
        char dir[SUPPORT_PATH_BYTES], path[SUPPORT_PATH_BYTES + 8];
        struct ckv_memfd_info info;
        int pipes[2], ends[2], fds[7];

        support_dir_make(dir);
        (void)snprintf(path, sizeof(path), "%s/file", dir);
        fds[0] = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
        ck_assert_int_eq(ftruncate(fds[0], SIZE), 0);
        fds[1] = open("/dev/zero", O_RDWR | O_CLOEXEC);
        fds[2] = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        fds[3] = open(path, O_PATH | O_CLOEXEC);
        ck_assert_int_eq(pipe2(pipes, O_CLOEXEC), 0);
        fds[4] = pipes[0];
        ck_assert_int_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
        fds[5] = ends[0];
        fds[6] = 12345;
        for (size_t i = 0; i < CKV_ARRAY_SIZE(fds); i++) {
                int r = ckv_memfd_check(fds[i], SIZE, &info);

                /* a file of a tmpfs answers, with F_SEAL_SEAL alone */
                ck_assert(r == CKV_MEMFD_E_NOT_MEMFD || (i == 0 && r == CKV_MEMFD_E_NOT_SEALED));
                (void)close(fds[i]);
        }
        (void)close(pipes[1]);
        (void)close(ends[1]);
        support_dir_remove(dir);
}
END_TEST

START_TEST(posix_shm_is_not_sealed) {
        int fd = shm_open("/chunkkv-test-memfd", O_RDWR | O_CREAT | O_EXCL, 0600);
        struct ckv_memfd_info info = { 0 };

        if (fd < 0)
                return; /* no /dev/shm here */
        (void)shm_unlink("/chunkkv-test-memfd");
        ck_assert_int_eq(posix_fallocate(fd, 0, SIZE), 0);
        ck_assert_int_eq(ckv_memfd_check(fd, SIZE, &info), CKV_MEMFD_E_NOT_SEALED);
        ck_assert_uint_eq(info.seals, F_SEAL_SEAL);
        (void)close(fd);
}
END_TEST

int main(void) {
        Suite *suite = suite_create("memfd");
        TCase *tcase = tcase_create("memfd");
        SRunner *runner = srunner_create(suite);
        int failed;

        tcase_add_test(tcase, full_and_sealed_is_accepted);
        tcase_add_test(tcase, future_write_seal_is_welcome);
        tcase_add_test(tcase, each_missing_seal_is_refused);
        tcase_add_test(tcase, another_size_is_refused);
        tcase_add_test(tcase, one_hole_is_sparse);
        tcase_add_test(tcase, size_within_a_page);
        tcase_add_test(tcase, what_is_no_memfd_is_refused);
        tcase_add_test(tcase, posix_shm_is_not_sealed);
        suite_add_tcase(suite, tcase);
        srunner_run_all(runner, CK_NORMAL);
        failed = srunner_ntests_failed(runner);
        srunner_free(runner);
        return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
