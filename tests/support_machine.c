/*
 * A machine that is not there.  What a thread is held to is a variable of the
 * thread, and the CPU that it is on is the first of those.
 */
#include "tests/support_machine.h"

#include "tests/support_files.h"

#include <check.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/stat.h>

static char dir[SUPPORT_PATH_BYTES], nodes_dir[2 * SUPPORT_PATH_BYTES], own_cgroup[2 * SUPPORT_PATH_BYTES],
        cgroups_dir[2 * SUPPORT_PATH_BYTES];
static struct ckv_cpu_set ours;
static const int *pages;
static uint32_t page_count;
static bool refused;
static _Atomic uint32_t asked;
static _Thread_local struct ckv_cpu_set held;
static _Thread_local int on = -1;

static void write_text(const char *path, const char *text) {
        FILE *file = fopen(path, "w");

        ck_assert_ptr_nonnull(file);
        ck_assert_int_ge(fputs(text, file), 0);
        ck_assert_int_eq(fclose(file), 0);
}

static bool fake_affinity(struct ckv_cpu_set *ret_cpus) {
        *ret_cpus = ours;
        return true;
}

static int first_of(const struct ckv_cpu_set *cpus) {
        for (uint32_t cpu = 0; cpu < CKV_CPUS_MOST; cpu++)
                if (ckv__cpu_set_has(cpus, cpu))
                        return (int)cpu;
        return -1;
}

static bool fake_bind(const struct ckv_cpu_set *cpus) {
        if (refused)
                return false;
        held = *cpus;
        on = first_of(cpus);
        return true;
}

static int fake_cpu(void) {
        return on;
}

static int fake_node_of(const void *address) {
        atomic_fetch_add(&asked, 1);
        return pages[((uintptr_t)address >> MACHINE_STRETCH_LOG2) % page_count];
}

struct ckv_cpu_sight machine = {
        .nodes_dir = nodes_dir, .own_cgroup = own_cgroup, .cgroups_dir = cgroups_dir,
        .affinity = fake_affinity, .bind = fake_bind, .cpu = fake_cpu, .node_of = fake_node_of,
};

void machine_make(const char *online, const struct machine_node *nodes, uint32_t count, const char *affinity) {
        static const int none[] = { -1 };
        char path[4 * SUPPORT_PATH_BYTES];

        support_dir_make(dir);
        (void)snprintf(nodes_dir, sizeof(nodes_dir), "%s/node", dir);
        (void)snprintf(own_cgroup, sizeof(own_cgroup), "%s/cgroup", dir);
        (void)snprintf(cgroups_dir, sizeof(cgroups_dir), "%s/cgroups", dir);
        ck_assert_int_eq(mkdir(nodes_dir, 0700), 0);
        ck_assert_int_eq(mkdir(cgroups_dir, 0700), 0);
        (void)snprintf(path, sizeof(path), "%s/online", nodes_dir);
        write_text(path, online);
        for (uint32_t i = 0; i < count; i++) {
                (void)snprintf(path, sizeof(path), "%s/node%u", nodes_dir, nodes[i].number);
                ck_assert_int_eq(mkdir(path, 0700), 0);
                (void)snprintf(path, sizeof(path), "%s/node%u/cpulist", nodes_dir, nodes[i].number);
                write_text(path, nodes[i].cpus);
        }
        ours = ckv__cpu_set_parse(affinity);
        machine_pages(none, 1);
        refused = false;
        held = (struct ckv_cpu_set){ 0 };
        on = -1;
}

void machine_remove(void) {
        support_dir_remove(dir);
}

/* Makes the directories of @path below that of cgroups, and a file in the last one */
static void write_limit(const char *path, const char *name, const char *limit) {
        char text[8 * SUPPORT_PATH_BYTES];
        size_t root = (size_t)snprintf(text, sizeof(text), "%s", cgroups_dir);

        (void)snprintf(text + root, sizeof(text) - root, "%s/%s", path, name);
        for (char *slash = strchr(text + root + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
                *slash = 0;
                (void)mkdir(text, 0700);
                *slash = '/';
        }
        write_text(text, limit);
}

void machine_cgroup(const char *own, const char *path, const char *limit) {
        write_text(own_cgroup, own);
        write_limit(path, "cpu.max", limit);
}

void machine_cgroup_v1(const char *own, const char *path, const char *quota, const char *period) {
        write_text(own_cgroup, own);
        write_limit(path, "cpu.cfs_quota_us", quota);
        write_limit(path, "cpu.cfs_period_us", period);
}

void machine_pages(const int *numbers, uint32_t count) {
        pages = numbers;
        page_count = count;
        atomic_store(&asked, 0);
}

void machine_refuse_binds(void) {
        refused = true;
}

void machine_be_on(uint32_t cpu) {
        on = (int)cpu;
}

struct ckv_cpu_set machine_held(void) {
        return held;
}

uint32_t machine_asked(void) {
        return atomic_load(&asked);
}
