/*
 * POSIX shared memory by name, where the operator allows it (--posix-shm).
 */
#ifndef CKV_DAEMON_SHM_NAME_H
#define CKV_DAEMON_SHM_NAME_H

#include "ipc/memfd.h"
#include "proto/records.h"

#include <stdbool.h>

struct ckv_session;

/**
 * ckv_shm_name_open() - open /dev/shm/chunkkv-UID-HEX for a session
 * @body:     REGISTER_REGION with CKV_SOURCE_POSIX_SHM
 * @ret_fd:   owned by the caller
 * @ret_info: as of ckv_memfd_check()
 *
 * The name must carry the uid that the kernel says the client has, and be that of a regular file on tmpfs that belongs to
 * it, with one link, fully allocated, and without any right for others.
 *
 * Return: true; or false with @ret_status UNSUPPORTED (not allowed here), NOT_FOUND, PERMISSION, HANDLE_INVALID or SPARSE.
 */
bool ckv_shm_name_open(const struct ckv_session *session, const struct ckv_record_region *body, int *ret_fd,
                       struct ckv_memfd_info *ret_info, struct ckv_record_status *ret_status);

#endif
