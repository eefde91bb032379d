/*
 * The path is made from that of the running program, since tests are started in
 * any directory and with any build.
 */
#include "tests/support_fake.h"

#include <check.h>
#include <string.h>
#include <unistd.h>

const char *support_fake_path(void) {
        static const char name[] = "/fake/libcuda.so.1";
        static char path[4096];
        ssize_t size = readlink("/proc/self/exe", path, sizeof(path) - sizeof(name));
        char *end;

        ck_assert_int_gt(size, 0);
        path[size] = '\0';
        end = strrchr(path, '/');
        ck_assert_ptr_nonnull(end);
        memcpy(end, name, sizeof(name));
        return path;
}
