/*
 * Reading the memory limit.  Pages of a tenant's memfd that a tenant punched
 * out and the daemon reads again are charged to the daemon, and a process over
 * its limit is killed; so what may be mapped is bounded by the limit.
 *
 * A limit of an ancestor binds as well, so the walk goes from the process's
 * own cgroup to the root.  Under cgroup v1 "no limit" is a huge number, which
 * loses against the size of the RAM by itself; under v2 it is the word "max".
 * In a container the path of the membership file may not exist below the
 * root that is visible; the walk then finds what there is at shorter paths.
 */
#include "daemon/memory_limit.h"

#include "base/macros.h"

#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

#define BASE_BYTES (UINT64_C(1) << 30)

/* read_number() - the decimal number a file begins with. Return: false if there is no such file or number. */
static bool read_number(const char *path, uint64_t *ret_number) {
        FILE *file = fopen(path, "re");
        bool ok;

        if (!file)
                return false;
        ok = fscanf(file, "%" SCNu64, ret_number) == 1;
        (void)fclose(file);
        return ok;
}

/* walk() - lower *@limit to the smallest number in @file from @group up to the root. Return: true if it was lowered. */
static bool walk(const char *root, const char *group, const char *file, uint64_t *limit) {
        char path[PATH_MAX], where[PATH_MAX];
        bool lowered = false;
        uint64_t number;
        char *slash;

        if ((size_t)snprintf(where, sizeof(where), "%s", group) >= sizeof(where))
                return false;
        for (;;) {
                if ((size_t)snprintf(path, sizeof(path), "%s%s/%s", root, strcmp(where, "/") == 0 ? "" : where, file) < sizeof(path) &&
                    read_number(path, &number) && number < *limit) {
                        *limit = number;
                        lowered = true;
                }
                slash = strrchr(where, '/');
                if (!slash)
                        return lowered;
                *slash = '\0';
        }
}

/* v1_memory() - is "memory" among the controllers of a line "4:cpu,memory:/path"? */
static bool v1_memory(char *controllers) {
        char *save = NULL;

        for (char *name = strtok_r(controllers, ",", &save); name; name = strtok_r(NULL, ",", &save))
                if (strcmp(name, "memory") == 0)
                        return true;
        return false;
}

uint64_t ckv_memory_limit(const char *membership, const char *root, enum ckv_memory_source *ret_source) {
        uint64_t limit = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
        char line[PATH_MAX + 64], v1_root[PATH_MAX];
        FILE *file = fopen(membership, "re");

        *ret_source = CKV_MEMORY_RAM;
        while (file && fgets(line, sizeof(line), file)) {
                char *controllers = strchr(line, ':'), *group = controllers ? strchr(controllers + 1, ':') : NULL;

                if (!group)
                        continue;
                *controllers++ = '\0';
                *group++ = '\0';
                group[strcspn(group, "\n")] = '\0';
                if (*controllers == '\0') {
                        if (walk(root, group, "memory.max", &limit))
                                *ret_source = CKV_MEMORY_CGROUP_V2;
                } else if (v1_memory(controllers)) {
                        (void)snprintf(v1_root, sizeof(v1_root), "%s/memory", root);
                        if (walk(v1_root, group, "memory.limit_in_bytes", &limit))
                                *ret_source = CKV_MEMORY_CGROUP_V1;
                }
        }
        if (file)
                (void)fclose(file);
        return limit;
}

uint64_t ckv_memory_for_tenants(uint64_t limit_bytes) {
        return limit_bytes > 2 * BASE_BYTES ? limit_bytes - BASE_BYTES : limit_bytes / 2;
}

const char *ckv_memory_source_to_string(enum ckv_memory_source source) {
        switch (source) {
        case CKV_MEMORY_CGROUP_V2:
                return "memory.max";
        case CKV_MEMORY_CGROUP_V1:
                return "memory.limit_in_bytes";
        case CKV_MEMORY_OPTION:
                return "--memory-limit";
        case CKV_MEMORY_RAM:
        default:
                return "RAM";
        }
}
