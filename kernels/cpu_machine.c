/*
 * The machine, asked when a device is opened, and about pages while it works.
 *
 * A CPU quota is read because a container often shows all CPUs of its host and
 * pays for two of them: threads beyond the quota would only take turns being
 * stopped in the middle of an item.  A cgroup above ours may set it too.
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

/* Whole CPUs that a cpu.max pays for, rounded up; UINT32_MAX if it sets no limit */
static uint32_t quota_of(const char *path) {
        _cleanup_(close_stream) FILE *limit = fopen(path, "re");
        uint64_t most, period;

        if (!limit || fscanf(limit, "%" SCNu64 " %" SCNu64, &most, &period) != 2 || most == 0 || period == 0)
                return UINT32_MAX;
        return (uint32_t)CKV_MIN((most - 1) / period + 1, UINT32_MAX);
}

/* The least of our cgroup (version 2) and those above it */
static uint32_t quota(const struct ckv_cpu_sight *sight) {
        _cleanup_(close_stream) FILE *own = fopen(sight->own_cgroup, "re");
        char line[PATH_MAX], path[2 * PATH_MAX];
        uint32_t least = UINT32_MAX;

        while (own && fgets(line, sizeof(line), own)) {
                if (strncmp(line, "0::/", 4) != 0)
                        continue;
                line[strcspn(line, "\n")] = 0;
                for (char *end = line + strlen(line); end; end = strrchr(line + 3, '/')) {
                        *end = 0;
                        (void)snprintf(path, sizeof(path), "%s%s/cpu.max", sight->cgroups_dir, line + 3);
                        least = CKV_MIN(least, quota_of(path));
                }
        }
        return least;
}

uint32_t ckv__cpu_threads(const struct ckv_cpu_sight *sight) {
        struct ckv_cpu_set cpus;
        uint32_t count = 1;

        if (sight->affinity(&cpus))
                count = CKV_MAX(ckv__cpu_set_count(&cpus), 1);
        return CKV_MIN(count, quota(sight));
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
