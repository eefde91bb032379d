/*
 * Options stand on the command line, and a process cannot change its own: a
 * new one needs a restart, which clients survive.  The memory limit is the
 * exception.  An administrator changes it under a running daemon (systemctl
 * set-property chunkkvd@cpu MemoryMax=64G), and how much the users may register
 * follows from it; a restart for that would cost every engine its registrations.
 *
 * Nobody tells when the limit changes, so it is read when SIGHUP says so.
 */
#include "daemon/reload.h"

#include "base/log.h"
#include "daemon/daemon.h"
#include "daemon/memory_limit.h"

#include <inttypes.h>

void ckv_reload(struct ckv_daemon *daemon) {
        uint64_t asked = daemon->options->mapped_bytes, limit;
        enum ckv_memory_source source;

        limit = ckv_memory_limit("/proc/self/cgroup", "/sys/fs/cgroup", &source);
        daemon->mapped_bytes = asked ? asked : ckv_memory_for_tenants(limit);
        ckv_tenants_set_limits(daemon);
        ckv_log(daemon->mapped_bytes > limit ? CKV_LOG_WARNING : CKV_LOG_INFO, MEMORY_LIMIT,
                "mapped_bytes=%" PRIu64 " limit_bytes=%" PRIu64 " source=%s", daemon->mapped_bytes, limit,
                ckv_memory_source_to_string(source));
}
