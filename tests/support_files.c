/*
 * Directories and descriptors for tests.  Everything fails the test at once
 * when it does not work, so callers need no checks.
 */
#include "tests/support_files.h"

#include <check.h>
#include <dirent.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

void support_dir_make(char ret_path[static SUPPORT_PATH_BYTES]) {
        const char *base = getenv("TMPDIR");

        ck_assert_int_lt(snprintf(ret_path, SUPPORT_PATH_BYTES, "%s/chunkkv-test-XXXXXX", base && *base ? base : "/tmp"),
                         SUPPORT_PATH_BYTES);
        ck_assert_ptr_nonnull(mkdtemp(ret_path));
}

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *where) {
        (void)st;
        (void)type;
        (void)where;
        return remove(path);
}

void support_dir_remove(const char *path) {
        ck_assert_int_eq(nftw(path, remove_one, 8, FTW_DEPTH | FTW_PHYS), 0);
}

unsigned support_fds_count(void) {
        DIR *dir = opendir("/proc/self/fd");
        unsigned n = 0;

        ck_assert_ptr_nonnull(dir);
        while (readdir(dir))
                n++;
        (void)closedir(dir);
        return n - 2; /* . and .. */
}

int support_memfd(uint64_t size, uint64_t filled, int seals) {
        int fd = memfd_create("chunkkv-test", MFD_CLOEXEC | MFD_ALLOW_SEALING);

        ck_assert_int_ge(fd, 0);
        ck_assert_int_eq(ftruncate(fd, (off_t)size), 0);
        if (filled)
                ck_assert_int_eq(posix_fallocate(fd, 0, (off_t)filled), 0);
        if (seals)
                ck_assert_int_eq(fcntl(fd, F_ADD_SEALS, seals), 0);
        return fd;
}
