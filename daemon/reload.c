/*
 * Options stand on the command line, and a process cannot change its own: a
 * new one needs a restart, which clients survive.  The memory limit is the
 * exception.  An administrator changes it under a running daemon (systemctl
 * set-property chunkkvd@cpu MemoryMax=64G), and how much the users may register
 * follows from it; a restart for that would cost every engine its registrations.
 *
 * What users draw from together is measured here, each user's own maximum is an
 * option: memory that all of them may register, memory for their tables and
 * stored answers, descriptors for their regions.
 *
 * Nobody tells when the limit changes, so it is read when SIGHUP says so.
 */
#include "daemon/reload.h"

#include "base/log.h"
#include "base/macros.h"
#include "daemon/daemon.h"
#include "daemon/memory_limit.h"

#include <inttypes.h>
#include <sys/resource.h>

/* The part of the memory for tenants that is kept for those who come later. */
enum { RESERVE_PARTS = 8 };

/* Of what the daemon keeps for itself, half is the most that tenants' queues may take. */
#define QUEUED_OF_ALL_MAX (UINT64_C(512) << 20)

/* share_set() - what there is of one resource; what is in use of it stays */
static void share_set(struct ckv_daemon *daemon, enum ckv_slot slot, uint64_t total, uint64_t reserve) {
        daemon->shares[slot].total = total;
        daemon->shares[slot].reserve = reserve;
}

/* files_total() - descriptors for mapped regions: three quarters of what this process may have open */
static uint64_t files_total(void) {
        struct rlimit limit;

        return getrlimit(RLIMIT_NOFILE, &limit) == 0 ? limit.rlim_cur / 4 * 3 : 0;
}

void ckv_reload(struct ckv_daemon *daemon) {
        const struct ckv_options *options = daemon->options;
        uint64_t limit = options->memory_limit, files = files_total(), for_tenants, queued;
        enum ckv_memory_source source = CKV_MEMORY_OPTION;

        if (limit == 0)
                limit = ckv_memory_limit("/proc/self/cgroup", "/sys/fs/cgroup", &source);
        for_tenants = ckv_memory_for_tenants(limit);
        queued = options->queued_bytes_of_all;
        queued = queued ? queued : CKV_MIN((limit - for_tenants) / 2, QUEUED_OF_ALL_MAX);
        daemon->mapped_bytes = options->mapped_bytes ? options->mapped_bytes : for_tenants;
        share_set(daemon, CKV_SLOT_MAPPED_BYTES, for_tenants, for_tenants / RESERVE_PARTS);
        share_set(daemon, CKV_SLOT_QUEUED_BYTES, queued, queued);
        share_set(daemon, CKV_SLOT_FILES, files, files / 2);
        ckv_tenants_set_limits(daemon);
        ckv_log(daemon->mapped_bytes > for_tenants ? CKV_LOG_WARNING : CKV_LOG_INFO, MEMORY_LIMIT,
                "mapped_bytes=%" PRIu64 " limit_bytes=%" PRIu64 " source=%s of_all=%" PRIu64 " queued_of_all=%" PRIu64
                " files_of_all=%" PRIu64,
                daemon->mapped_bytes, limit, ckv_memory_source_to_string(source), for_tenants, queued, files);
}
