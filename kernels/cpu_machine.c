/*
 * The machine, asked once when a device is opened.
 *
 * A CPU quota is read because a container often shows all CPUs of its host and
 * pays for two of them: threads beyond the quota would only take turns being
 * stopped in the middle of an item.  Whatever cannot be read is taken as "no
 * limit": a wrong number of threads costs time and nothing else.
 */
#include "kernels/cpu_machine.h"

#include "base/macros.h"

#include <inttypes.h>
#include <limits.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>

static void close_stream(FILE **stream) {
        if (*stream)
                (void)fclose(*stream);
}

/* Whole CPUs that cpu.max of our cgroup (version 2) pays for, rounded up; UINT32_MAX if it sets no limit */
static uint32_t quota(void) {
        _cleanup_(close_stream) FILE *own = fopen("/proc/self/cgroup", "re"), *limit = NULL;
        char line[PATH_MAX], path[2 * PATH_MAX] = "";
        uint64_t most, period;

        while (own && fgets(line, sizeof(line), own))
                if (strncmp(line, "0::", 3) == 0) {
                        line[strcspn(line, "\n")] = 0;
                        (void)snprintf(path, sizeof(path), "/sys/fs/cgroup%s/cpu.max", line + 3);
                }
        limit = path[0] ? fopen(path, "re") : NULL;
        if (!limit || fscanf(limit, "%" SCNu64 " %" SCNu64, &most, &period) != 2 || most == 0 || period == 0)
                return UINT32_MAX;
        return (uint32_t)CKV_MIN((most - 1) / period + 1, UINT32_MAX);
}

uint32_t ckv__cpu_threads(void) {
        cpu_set_t cpus;
        int count = 1;

        CPU_ZERO(&cpus);
        if (sched_getaffinity(0, sizeof(cpus), &cpus) == 0)
                count = CPU_COUNT(&cpus);
        return CKV_MIN((uint32_t)CKV_MAX(count, 1), quota());
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
