/*
 * Listening AF_UNIX sockets with a path: made here, or passed by systemd.
 */
#ifndef CKV_IPC_LISTEN_H
#define CKV_IPC_LISTEN_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>
#include <sys/un.h>

#define CKV_LISTEN_PATH_BYTES sizeof(((struct sockaddr_un *)NULL)->sun_path)    /* final NUL included */

enum ckv_listen_outcome {
        _CKV_LISTEN_E_SUCCESS,
        CKV_LISTEN_E_PATH_TOO_LONG,     /* CKV_LISTEN_PATH_BYTES - 1 characters are the most that a socket's path may have */
        CKV_LISTEN_E_IN_USE,            /* a process listens there */
        CKV_LISTEN_E_NOT_SOCKET,        /* something that is not a socket has this name; it was left alone */
        CKV_LISTEN_E_UNSUITABLE,        /* adopt: not a listening AF_UNIX stream or seqpacket socket with a path */
};

/**
 * ckv_listen_create() - bind a path and listen on it
 * @type: SOCK_STREAM or SOCK_SEQPACKET
 * @mode: permissions of the socket file
 * @ret_fd: close-on-exec, non-blocking, owned by the caller
 * @ret_replaced: true: the path was a socket that nobody listened on, and was removed
 *
 * The caller holds the lock of the directory: between the look at an old socket and its removal nobody else may start
 * to listen there. Nobody can
 * connect before the file has its mode.
 *
 * Return: 0, a CKV_LISTEN_E_* outcome, or -errno.
 */
int ckv_listen_create(const char *path, int type, mode_t mode, int *ret_fd, bool *ret_replaced);

/**
 * ckv_listen_adopt() - look at a socket that was passed to the process, and make it close-on-exec and non-blocking
 * @fd: *NOT* consumed, in any case
 * @ret_type: SOCK_STREAM or SOCK_SEQPACKET
 * @ret_path: what it is bound to, terminated
 *
 * Return: 0, CKV_LISTEN_E_UNSUITABLE, or -errno.
 */
int ckv_listen_adopt(int fd, int *ret_type, char ret_path[static CKV_LISTEN_PATH_BYTES + 1]);

#endif
