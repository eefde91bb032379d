/*
 * What the daemon finds and makes around itself: the memory limit of cgroups
 * of both versions, and the locked runtime directory.
 */
#include "daemon/memory_limit.h"
#include "daemon/runtime_dir.h"

#include "base/macros.h"
#include "tests/support_files.h"

#include <check.h>
#include <errno.h>
#include <stdio.h>
#include <sys/stat.h>

static char dir[SUPPORT_PATH_BYTES];

static void setup(void) {
        support_dir_make(dir);
}

static void teardown(void) {
        support_dir_remove(dir);
}

/* put() - a file below the directory with a line of text; parents one level deep at a time are made by make_dir() */
static void put(const char *name, const char *text) {
        char path[256];
        FILE *file;

        (void)snprintf(path, sizeof(path), "%s/%s", dir, name);
        file = fopen(path, "w");
        ck_assert_ptr_nonnull(file);
        ck_assert_int_ge(fputs(text, file), 0);
        ck_assert_int_eq(fclose(file), 0);
}

static void make_dir(const char *name) {
        char path[256];

        (void)snprintf(path, sizeof(path), "%s/%s", dir, name);
        ck_assert_int_eq(mkdir(path, 0700), 0);
}

static uint64_t limit(enum ckv_memory_source *ret_source) {
        char membership[256];

        (void)snprintf(membership, sizeof(membership), "%s/membership", dir);
        return ckv_memory_limit(membership, dir, ret_source);
}

static uint64_t ram(void) {
        return (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
}

START_TEST(memory_without_cgroup_is_ram) {
        enum ckv_memory_source source;

        ck_assert_uint_eq(limit(&source), ram());
        ck_assert_int_eq(source, CKV_MEMORY_RAM);
}
END_TEST

START_TEST(memory_v2_takes_the_smallest_ancestor) {
        enum ckv_memory_source source;

        make_dir("a");
        make_dir("a/b");
        make_dir("a/b/c");
        put("membership", "0::/a/b/c\n");
        put("a/b/c/memory.max", "max\n");
        put("a/b/memory.max", "104857600\n");
        put("a/memory.max", "209715200\n");
        ck_assert_uint_eq(limit(&source), 104857600);
        ck_assert_int_eq(source, CKV_MEMORY_CGROUP_V2);
        put("a/memory.max", "52428800\n");
        ck_assert_uint_eq(limit(&source), 52428800);
        put("a/memory.max", "max\n");
        put("a/b/memory.max", "max\n");
        ck_assert_uint_eq(limit(&source), ram());
        ck_assert_int_eq(source, CKV_MEMORY_RAM);
        /* the root of a container's own namespace */
        put("membership", "0::/\n");
        put("memory.max", "1048576\n");
        ck_assert_uint_eq(limit(&source), 1048576);
}
END_TEST

START_TEST(memory_v1_finds_its_controller) {
        enum ckv_memory_source source;

        make_dir("memory");
        make_dir("memory/x");
        put("membership", "12:cpuset:/y\n7:cpu,memory:/x\n1:name=systemd:/z\n");
        put("memory/memory.limit_in_bytes", "9223372036854771712\n");
        ck_assert_uint_eq(limit(&source), ram());
        ck_assert_int_eq(source, CKV_MEMORY_RAM);
        put("memory/x/memory.limit_in_bytes", "33554432\n");
        ck_assert_uint_eq(limit(&source), 33554432);
        ck_assert_int_eq(source, CKV_MEMORY_CGROUP_V1);
        put("membership", "7:cpu,memoryfoo:/x\n");
        ck_assert_uint_eq(limit(&source), ram());
}
END_TEST

START_TEST(memory_for_tenants) {
        const uint64_t gib = UINT64_C(1) << 30;

        ck_assert_uint_eq(ckv_memory_for_tenants(16 * gib), 15 * gib);
        ck_assert_uint_eq(ckv_memory_for_tenants(2 * gib + 2), gib + 2);
        ck_assert_uint_eq(ckv_memory_for_tenants(2 * gib), gib);
        ck_assert_uint_eq(ckv_memory_for_tenants(gib), gib / 2);
        ck_assert_uint_eq(ckv_memory_for_tenants(0), 0);
}
END_TEST

START_TEST(directory_is_made_with_parents) {
        char path[256], parent[256];
        struct stat st;
        int lock;

        (void)snprintf(parent, sizeof(parent), "%s/p", dir);
        (void)snprintf(path, sizeof(path), "%s/p//q/", dir);
        (void)umask(0077);
        ck_assert_int_eq(ckv_runtime_dir_lock(path, &lock), 0);
        ck_assert_int_eq(stat(path, &st), 0);
        ck_assert_uint_eq(st.st_mode & 07777, 0750);
        ck_assert_int_eq(stat(parent, &st), 0);
        ck_assert_uint_eq(st.st_mode & 07777, 0750);
        (void)close(lock);
        /* an existing one keeps its mode */
        ck_assert_int_eq(chmod(path, 0711), 0);
        ck_assert_int_eq(ckv_runtime_dir_lock(path, &lock), 0);
        ck_assert_int_eq(stat(path, &st), 0);
        ck_assert_uint_eq(st.st_mode & 07777, 0711);
        (void)close(lock);
}
END_TEST

START_TEST(directory_has_one_daemon) {
        unsigned before = support_fds_count();
        int first, second = -1;

        ck_assert_int_eq(ckv_runtime_dir_lock(dir, &first), 0);
        ck_assert_int_eq(ckv_runtime_dir_lock(dir, &second), CKV_RUNTIME_DIR_E_BUSY);
        ck_assert_int_eq(second, -1);
        (void)close(first);
        ck_assert_int_eq(ckv_runtime_dir_lock(dir, &second), 0);
        (void)close(second);
        ck_assert_uint_eq(support_fds_count(), before);
}
END_TEST

START_TEST(directory_that_is_none) {
        char path[256];
        int lock;

        put("file", "");
        (void)snprintf(path, sizeof(path), "%s/file", dir);
        ck_assert_int_eq(ckv_runtime_dir_lock(path, &lock), -ENOTDIR);
        (void)snprintf(path, sizeof(path), "%s/file/below", dir);
        ck_assert_int_eq(ckv_runtime_dir_lock(path, &lock), -ENOTDIR);
        /* a lock that is a link could make us lock, or create, something else */
        (void)snprintf(path, sizeof(path), "%s/lock", dir);
        ck_assert_int_eq(symlink("/tmp/elsewhere", path), 0);
        ck_assert_int_eq(ckv_runtime_dir_lock(dir, &lock), -ELOOP);
}
END_TEST

int main(void) {
        Suite *suite = suite_create("runtime");
        TCase *tcase = tcase_create("runtime");
        SRunner *runner = srunner_create(suite);
        int failed;

        tcase_add_checked_fixture(tcase, setup, teardown);
        tcase_add_test(tcase, memory_without_cgroup_is_ram);
        tcase_add_test(tcase, memory_v2_takes_the_smallest_ancestor);
        tcase_add_test(tcase, memory_v1_finds_its_controller);
        tcase_add_test(tcase, memory_for_tenants);
        tcase_add_test(tcase, directory_is_made_with_parents);
        tcase_add_test(tcase, directory_has_one_daemon);
        tcase_add_test(tcase, directory_that_is_none);
        suite_add_tcase(suite, tcase);
        srunner_run_all(runner, CK_NORMAL);
        failed = srunner_ntests_failed(runner);
        srunner_free(runner);
        return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
