/*
 * What this process finds when it looks at the machine: how many CPUs it may
 * use, what the CPU is called.
 */
#ifndef CKV_KERNELS_CPU_MACHINE_H
#define CKV_KERNELS_CPU_MACHINE_H

#include <stddef.h>
#include <stdint.h>

/* ckv__cpu_threads() - CPUs in the affinity mask, or fewer if the cgroup's cpu.max pays for fewer; at least 1 */
uint32_t ckv__cpu_threads(void);

/* ckv__cpu_model() - the CPU's name for people, cut to @size bytes with the closing 0; "CPU" if the system does not say */
void ckv__cpu_model(char *ret_name, size_t size);

#endif
