/*
 * Memory that is mapped, once for each user that registers it, however often
 * that is.
 */
#ifndef CKV_DAEMON_MAPPED_H
#define CKV_DAEMON_MAPPED_H

#include "base/hash.h"
#include "daemon/tenant.h"
#include "ipc/memfd.h"
#include "kernels/backend.h"
#include "kernels/mirror.h"
#include "proto/records.h"

#include <stdbool.h>
#include <stdint.h>

struct ckv_imported;
struct ckv_session;

/* One file, for as long as something of it is mapped: whose it is. */
struct ckv_file {
        struct { uint64_t dev, ino; } key;
        struct ckv_tenant *tenant;      /* borrowed: each mapping's charges hold it */
        uint32_t uses;                  /* mappings of it */
        UT_hash_handle hh;              /* daemon->files, by key */
};

/* What makes two registrations the same memory. */
struct ckv_mapped_key {
        uint64_t dev, ino, offset, size, writable, copied;
};

struct ckv_mapped {
        struct ckv_mapped_key key;
        struct ckv_daemon *daemon;
        struct ckv_file *file;
        int fd;                         /* the memfd, kept to look at its allocated blocks before each commit */
        uint32_t uses;                  /* regions */
        struct ckv_mirror mirror;       /* key.copied: the mapping is private memory, and this says what it is a copy of */
        struct ckv_imported *imported;  /* device memory: no file, in no table, never lost; else NULL */
        bool lost;                      /* pages are gone, and it is in no table any more */
        struct ckv_mapping mapping;
        struct ckv_charge bytes_charge, file_charge;    /* MAPPED_BYTES and FILES, once */
        UT_hash_handle hh;              /* daemon->mapped, by key */
};

/**
 * ckv_mapped_get() - map a stretch of a file for a user, or find that it is; or make memory to copy it to (POSIX shm names)
 * @session: its user pays, once for each mapping; another user's memory is refused
 * @fd:      consumed, in any case
 * @info:    of ckv_memfd_check()
 * @body:    offset and size inside the file
 * @ret_shared: true if it was mapped already
 *
 * Return: true; or false with @ret_status PERMISSION, QUOTA or NO_MEMORY, and nothing changed.
 */
bool ckv_mapped_get(struct ckv_session *session, int fd, const struct ckv_memfd_info *info, const struct ckv_record_region *body,
                    bool writable, struct ckv_record_status *ret_status, struct ckv_mapped **ret_mapped, bool *ret_shared);

/* ckv_mapped_new_imported() - for one region of device memory, opened later; whoever puts it closes that. Return: NULL: no memory. */
struct ckv_mapped *ckv_mapped_new_imported(struct ckv_daemon *daemon, struct ckv_imported *imported);

/* ckv_mapped_lost() - were pages lost, while they were used (base/guard.h) or by now? Once lost, lost for good. */
bool ckv_mapped_lost(struct ckv_mapped *mapped);

/* ckv_mapped_put() - one region less; the last one unmaps and gives the charges back. NULL is fine. Return: NULL. */
struct ckv_mapped *ckv_mapped_put(struct ckv_mapped *mapped);

#endif
