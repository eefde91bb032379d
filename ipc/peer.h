/*
 * Who is at the other end of a Unix connection, said by the kernel.
 */
#ifndef CKV_IPC_PEER_H
#define CKV_IPC_PEER_H

#include <sys/types.h>

/* The placeholder keeps 0 for success. */
enum ckv_peer_outcome {
        _CKV_PEER_E_SUCCESS,
        CKV_PEER_E_GONE,        /* the process has ended already, or lives outside our pid namespace */
};

/**
 * ckv_peer_identify() - user, group, process and a pidfd of the process that connected
 * @fd:        connected AF_UNIX socket, *NOT* consumed
 * @ret_pidfd: readable once the process has ended; owned by the caller, close-on-exec
 *
 * Where the kernel lacks SO_PEERPIDFD (before 6.5) the number may have been reused between connect and this call. So
 * nothing secret may be sent before it: a secret that comes back later proves that the peer was alive after it, and
 * that the pidfd is its own (reliability: Identity).
 *
 * Return: 0, CKV_PEER_E_GONE, or -errno.
 */
int ckv_peer_identify(int fd, uid_t *ret_uid, gid_t *ret_gid, pid_t *ret_pid, int *ret_pidfd);

#endif
