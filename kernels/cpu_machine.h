/*
 * What this process finds when it looks at the machine: how many CPUs it may
 * use and what they are called, and where memory is.
 */
#ifndef CKV_KERNELS_CPU_MACHINE_H
#define CKV_KERNELS_CPU_MACHINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { CKV_CPUS_MOST = 8192 };          /* what Linux can be built for */

struct ckv_cpu_set {
        uint64_t bits[CKV_CPUS_MOST / 64];
};

static inline bool ckv__cpu_set_has(const struct ckv_cpu_set *cpus, uint32_t cpu) {
        return cpu < CKV_CPUS_MOST && cpus->bits[cpu / 64] >> cpu % 64 & 1;
}

static inline void ckv__cpu_set_add(struct ckv_cpu_set *cpus, uint32_t cpu) {
        if (cpu < CKV_CPUS_MOST)
                cpus->bits[cpu / 64] |= UINT64_C(1) << cpu % 64;
}

/* ckv__cpu_set_count() - how many CPUs are in it */
uint32_t ckv__cpu_set_count(const struct ckv_cpu_set *cpus);

/* ckv__cpu_set_parse() - numbers as the system writes them, "0-3,8,10-11"; what is no number or too high is left out */
struct ckv_cpu_set ckv__cpu_set_parse(const char *text);

/* How the machine is looked at. Tests put another machine in its place. */
struct ckv_cpu_sight {
        const char *nodes_dir;          /* "/sys/devices/system/node" */
        const char *own_cgroup;         /* "/proc/self/cgroup" */
        const char *cgroups_dir;        /* "/sys/fs/cgroup" */
        /* affinity() - the CPUs that the calling thread may run on. Return: false if that is not known. */
        bool (*affinity)(struct ckv_cpu_set *ret_cpus);
        /* bind() - the calling thread runs on these CPUs from now on. Return: does it? */
        bool (*bind)(const struct ckv_cpu_set *cpus);
        /* cpu() - the CPU that the calling thread is on; or a negative number */
        int (*cpu)(void);
        /* node_of() - number of the node with the page of @address, which is fetched if it is not there; or a negative number */
        int (*node_of)(const void *address);
};

extern const struct ckv_cpu_sight ckv__cpu_this_machine;

/* ckv__cpu_threads() - CPUs in the affinity mask, or fewer if a quota (cpu.max, cpu.cfs_quota_us) of a cgroup that we are in pays for
 * fewer; at least 1 */
uint32_t ckv__cpu_threads(const struct ckv_cpu_sight *sight);

/* ckv__cpu_model() - the CPU's name for people, cut to @size bytes with the closing 0; "CPU" if the system does not say */
void ckv__cpu_model(char *ret_name, size_t size);

#endif
