/*
 * How much memory the daemon may use, as the system says.
 */
#ifndef CKV_DAEMON_MEMORY_LIMIT_H
#define CKV_DAEMON_MEMORY_LIMIT_H

#include <stdint.h>

enum ckv_memory_source { CKV_MEMORY_RAM, CKV_MEMORY_CGROUP_V2, CKV_MEMORY_CGROUP_V1, CKV_MEMORY_OPTION };

/**
 * ckv_memory_limit() - the smallest of all memory and the limits of the process's cgroup and its ancestors
 * @membership: "/proc/self/cgroup", or a file like it
 * @root:       "/sys/fs/cgroup", or a directory like it
 * @ret_source: where the number comes from
 *
 * What cannot be read does not limit.
 *
 * Return: bytes.
 */
uint64_t ckv_memory_limit(const char *membership, const char *root, enum ckv_memory_source *ret_source);

/* ckv_memory_for_tenants() - what of a limit may be mapped for tenants: all but 1 GiB for the daemon, at least half of it */
uint64_t ckv_memory_for_tenants(uint64_t limit_bytes);

/* ckv_memory_source_to_string() - "RAM", "memory.max", "memory.limit_in_bytes", "--memory-limit" */
const char *ckv_memory_source_to_string(enum ckv_memory_source source);

#endif
