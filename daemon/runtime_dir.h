/*
 * The directory of the sockets, and the lock that says whose it is.
 */
#ifndef CKV_DAEMON_RUNTIME_DIR_H
#define CKV_DAEMON_RUNTIME_DIR_H

enum {
        _CKV_RUNTIME_DIR_E_SUCCESS,
        CKV_RUNTIME_DIR_E_BUSY,         /* another process holds the lock */
};

/**
 * ckv_runtime_dir_lock() - make the directory if need be, and lock it for this process
 * @path: parents are made too, all with mode 0750 as far as the umask lets it; existing ones are left as they are
 * @ret_lock_fd: closing it, or the end of the process however it comes, gives the lock back; the file stays
 *
 * Return: 0, CKV_RUNTIME_DIR_E_BUSY, or -errno.
 */
int ckv_runtime_dir_lock(const char *path, int *ret_lock_fd);

#endif
