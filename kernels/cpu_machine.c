/*
 * The machine, asked when a device is opened, and about pages while it works.
 *
 * A CPU quota is read because a container often shows all CPUs of its host and
 * pays for two of them: threads beyond the quota would only take turns being
 * stopped in the middle of an item.  A cgroup above ours may set it too, and it
 * may be of version 1 or 2.  In a container the group that the system names may
 * not be there under that path; at the root of what is mounted is then its own.
 * Whatever cannot be read is taken as "no limit": a wrong number of threads
 * costs time and nothing else.
 *
 * Where a page is, get_mempolicy() says.  move_pages() without a target says it
 * for many pages at once, but moves pages with one, of other processes too, so a
 * filter of system calls had better not let it through; and it has no answer
 * for a page that this process has not touched yet.
 */
#include "kernels/cpu_machine.h"

#include "base/macros.h"

#include <inttypes.h>
#include <limits.h>
#include <linux/mempolicy.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

static void close_stream(FILE **stream) {
        if (*stream)
                (void)fclose(*stream);
}

uint32_t ckv__cpu_set_count(const struct ckv_cpu_set *cpus) {
        uint32_t count = 0;

        for (size_t i = 0; i < CKV_ARRAY_SIZE(cpus->bits); i++)
                count += (uint32_t)__builtin_popcountll(cpus->bits[i]);
        return count;
}

struct ckv_cpu_set ckv__cpu_set_parse(const char *text) {
        struct ckv_cpu_set cpus = { 0 };

        while (*text >= '0' && *text <= '9') {
                char *end;
                unsigned long first = strtoul(text, &end, 10), last = first;

                if (*end == '-')
                        last = strtoul(end + 1, &end, 10);
                for (unsigned long cpu = first; cpu <= CKV_MIN(last, (unsigned long)CKV_CPUS_MOST - 1); cpu++)
                        ckv__cpu_set_add(&cpus, (uint32_t)cpu);
                text = end + (*end == ',');
        }
        return cpus;
}

/* ---- this machine */

static bool this_affinity(struct ckv_cpu_set *ret_cpus) {
        struct ckv_cpu_set cpus = { 0 };

        if (sched_getaffinity(0, sizeof(cpus), (cpu_set_t *)(void *)&cpus) < 0)
                return false;
        *ret_cpus = cpus;
        return true;
}

static bool this_bind(const struct ckv_cpu_set *cpus) {
        return sched_setaffinity(0, sizeof(*cpus), (const cpu_set_t *)(const void *)cpus) == 0;
}

static int this_node_of(const void *address) {
        int node = -1;

        return syscall(SYS_get_mempolicy, &node, NULL, 0UL, address, (unsigned long)(MPOL_F_NODE | MPOL_F_ADDR)) == 0 ? node : -1;
}

const struct ckv_cpu_sight ckv__cpu_this_machine = {
        .nodes_dir = "/sys/devices/system/node", .own_cgroup = "/proc/self/cgroup", .cgroups_dir = "/sys/fs/cgroup",
        .affinity = this_affinity, .bind = this_bind, .cpu = sched_getcpu, .node_of = this_node_of,
};

/* ---- threads */

/* Whole CPUs that so much time in each period pays for, rounded up; UINT32_MAX if there is no limit */
static uint32_t cpus_of(int64_t most, int64_t period) {
        if (most <= 0 || period <= 0)
                return UINT32_MAX;
        return (uint32_t)CKV_MIN((most - 1) / period + 1, (int64_t)UINT32_MAX);
}

/* Reads @count numbers, at most two, off the beginning of a file. Return: false if it has not so many. */
static bool read_numbers(const char *directory, const char *name, int count, int64_t *first, int64_t *second) {
        _cleanup_(close_stream) FILE *file = NULL;
        char path[3 * PATH_MAX];

        (void)snprintf(path, sizeof(path), "%s/%s", directory, name);
        file = fopen(path, "re");
        return file && fscanf(file, count == 1 ? "%" SCNd64 : "%" SCNd64 " %" SCNd64, first, second) == count;
}

static uint32_t quota_of_v2(const char *directory) {
        int64_t most, period;

        return read_numbers(directory, "cpu.max", 2, &most, &period) ? cpus_of(most, period) : UINT32_MAX;
}

static uint32_t quota_of_v1(const char *directory) {
        int64_t most, period;

        if (!read_numbers(directory, "cpu.cfs_quota_us", 1, &most, &most) ||
            !read_numbers(directory, "cpu.cfs_period_us", 1, &period, &period))
                return UINT32_MAX;
        return cpus_of(most, period);
}

/* The least of the group and those above it, to the root of what is mounted at @below in the directory of all */
static uint32_t walk(const struct ckv_cpu_sight *sight, const char *below, const char *group, uint32_t (*quota_of)(const char *)) {
        uint32_t least = UINT32_MAX, one;
        char path[2 * PATH_MAX];
        int root = snprintf(path, sizeof(path), "%s%s", sight->cgroups_dir, below);

        if (root < 0 || snprintf(path + root, sizeof(path) - (size_t)root, "%s", group) >= (int)sizeof(path) - root)
                return UINT32_MAX;
        for (char *end = path + strlen(path); end; end = strrchr(path + root, '/')) {
                *end = 0;
                one = quota_of(path);
                least = CKV_MIN(least, one);
        }
        return least;
}

/* Is "cpu" one of "cpu,cpuacct"? */
static bool has_cpu(const char *controllers) {
        for (const char *at = controllers; *at; at += strcspn(at, ",") + (at[strcspn(at, ",")] == ',')) {
                size_t length = strcspn(at, ",");

                if (length == strlen("cpu") && memcmp(at, "cpu", length) == 0)
                        return true;
        }
        return false;
}

/*
 * Of a line "0::/group", version 2, or "4:cpu,cpuacct:/group", version 1.  Each
 * hierarchy of version 1 is mounted under the names of its controllers, mostly
 * with a link for each; beside them version 2 lies in "unified".
 */
static uint32_t quota_by(const struct ckv_cpu_sight *sight, char *line) {
        char *controllers = strchr(line, ':'), *group = controllers ? strchr(controllers + 1, ':') : NULL;
        uint32_t usual, other;
        char below[PATH_MAX];

        if (!group)
                return UINT32_MAX;
        *group++ = 0;
        group[strcspn(group, "\n")] = 0;
        if (*++controllers == 0) {
                usual = walk(sight, "", group, quota_of_v2);
                other = walk(sight, "/unified", group, quota_of_v2);
        } else if (has_cpu(controllers)) {
                (void)snprintf(below, sizeof(below), "/%s", controllers);
                usual = walk(sight, "/cpu", group, quota_of_v1);
                other = walk(sight, below, group, quota_of_v1);
        } else {
                return UINT32_MAX;
        }
        return CKV_MIN(usual, other);
}

static uint32_t quota(const struct ckv_cpu_sight *sight) {
        _cleanup_(close_stream) FILE *own = fopen(sight->own_cgroup, "re");
        uint32_t least = UINT32_MAX, one;
        char line[PATH_MAX];

        while (own && fgets(line, sizeof(line), own)) {
                one = quota_by(sight, line);
                least = CKV_MIN(least, one);
        }
        return least;
}

uint32_t ckv__cpu_threads(const struct ckv_cpu_sight *sight) {
        uint32_t count = 1, most = quota(sight);
        struct ckv_cpu_set cpus;

        if (sight->affinity(&cpus))
                count = CKV_MAX(ckv__cpu_set_count(&cpus), 1);
        return CKV_MIN(count, most);
}

void ckv__cpu_model(char *ret_name, size_t size) {
        _cleanup_(close_stream) FILE *info = fopen("/proc/cpuinfo", "re");
        char line[256];

        (void)snprintf(ret_name, size, "CPU");
        while (info && fgets(line, sizeof(line), info)) {
                const char *colon = strchr(line, ':');

                if (strncmp(line, "model name", strlen("model name")) != 0 || !colon)
                        continue;
                line[strcspn(line, "\n")] = 0;
                (void)snprintf(ret_name, size, "%s", colon + 1 + strspn(colon + 1, " "));
                break;
        }
}
