/*
 * SO_PEERCRED and a pidfd.  The credentials are those of the moment of
 * connect(2) and cannot be forged without the privilege to be someone else
 * anyway.  SO_PEERPIDFD pins the very process that connected; it is tried at
 * run time, because the headers of the build machine say nothing about the
 * kernel below.
 *
 * No look into /proc: a hardened unit may hide it.
 */
#include "ipc/peer.h"

#include "base/error.h"
#include "base/macros.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/pidfd.h>
#include <sys/socket.h>

#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77 /* include/uapi/asm-generic/socket.h, Linux 6.5 */
#endif

/* open_pidfd() - the exact way where the kernel has it, by number elsewhere */
static int open_pidfd(int fd, pid_t pid, int *ret_pidfd) {
        socklen_t n = sizeof(int);
        int pidfd;

        if (getsockopt(fd, SOL_SOCKET, SO_PEERPIDFD, &pidfd, &n) == 0) {
                *ret_pidfd = pidfd;
                return 0;
        }
        /* the process was reaped: ESRCH, in some versions EINVAL */
        if (errno == ESRCH || errno == EINVAL)
                return CKV_PEER_E_GONE;
        if (errno != ENOPROTOOPT)
                return ckv_error_origin(-errno);

        pidfd = pidfd_open(pid, 0);
        if (pidfd < 0)
                return errno == ESRCH ? (int)CKV_PEER_E_GONE : ckv_error_origin(-errno);
        *ret_pidfd = pidfd;
        return 0;
}

int ckv_peer_identify(int fd, uid_t *ret_uid, gid_t *ret_gid, pid_t *ret_pid, int *ret_pidfd) {
        _cleanup_close_ int pidfd = -1;
        socklen_t n = sizeof(struct ucred);
        struct ucred cred;
        int r;

        if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &cred, &n) < 0)
                return ckv_error_origin(-errno);
        /* 0: of another pid namespace, could never be watched */
        if (cred.pid <= 0)
                return CKV_PEER_E_GONE;
        r = open_pidfd(fd, cred.pid, &pidfd);
        if (r)
                return r > 0 ? r : ckv_error_trace(r);
        if (fcntl(pidfd, F_SETFD, FD_CLOEXEC) < 0)
                return ckv_error_origin(-errno);

        *ret_uid = cred.uid;
        *ret_gid = cred.gid;
        *ret_pid = cred.pid;
        *ret_pidfd = pidfd;
        pidfd = -1; /* consumed by the caller */
        return 0;
}
