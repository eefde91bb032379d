/*
 * Another machine for the CPU device (kernels/cpu_machine.h): nodes in files of
 * a private directory, CPUs that threads are held to in name only, and pages
 * whose node follows from their address.
 */
#ifndef CKV_TESTS_SUPPORT_MACHINE_H
#define CKV_TESTS_SUPPORT_MACHINE_H

#include "kernels/cpu_machine.h"

#include <stdbool.h>
#include <stdint.h>

enum { MACHINE_STRETCH_LOG2 = 21 };

struct machine_node {
        uint32_t number;
        const char *cpus;               /* "0-3"; "": memory only */
};

/* machine_make() - @online as in the system's file of that name; @affinity: CPUs of this process. Fails the test otherwise. */
void machine_make(const char *online, const struct machine_node *nodes, uint32_t count, const char *affinity);
void machine_remove(void);

/* machine_cgroup() - /proc/self/cgroup has the line @own; cpu.max of the group @path ("" is the root) is @limit */
void machine_cgroup(const char *own, const char *path, const char *limit);

/* machine_cgroup_v1() - the same for version 1: cpu.cfs_quota_us and cpu.cfs_period_us of @path, which begins with the mount,
 * "/cpu,cpuacct/a" */
void machine_cgroup_v1(const char *own, const char *path, const char *quota, const char *period);

/* machine_pages() - stretch i of 2 MiB is on node numbers[i % count]; a negative number: nobody knows */
void machine_pages(const int *numbers, uint32_t count);

/* machine_refuse_binds() - no thread is held to anything from now on */
void machine_refuse_binds(void);

/* machine_be_on() - the calling thread is on this CPU, until it is held to others */
void machine_be_on(uint32_t cpu);

/* machine_held() - the CPUs that the calling thread is held to; empty if to none */
struct ckv_cpu_set machine_held(void);

/* machine_asked() - how often the node of a page was asked for */
uint32_t machine_asked(void);

/* What the machine shows; valid between machine_make() and machine_remove(). */
extern struct ckv_cpu_sight machine;

#endif
