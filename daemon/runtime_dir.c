/*
 * One daemon for one directory.  The lock is an flock(2) on a file in it: the
 * kernel gives it back when the process dies, in whatever way, so there is no
 * stale lock.  The lock file is never removed: a daemon that locks a file
 * that another one is about to remove would believe to be alone.
 *
 * The group bits of 0750 let an administrator admit engines by group; the
 * sockets inside have permissions of their own.
 */
#include "daemon/runtime_dir.h"

#include "base/error.h"
#include "base/macros.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>

#define DIRECTORY_MODE 0750

/* make_directory() - one level; what exists already is fine, whatever it is: using it will tell */
static int make_directory(const char *path) {
        if (mkdir(path, DIRECTORY_MODE) == 0)
                /* mkdir(2) obeys the umask, which is strict for the sake of files */
                return chmod(path, DIRECTORY_MODE) < 0 ? ckv_error_origin(-errno) : 0;
        return errno == EEXIST ? 0 : ckv_error_origin(-errno);
}

static int make_path(const char *path) {
        _cleanup_free_ char *copy = strdup(path);
        int r;

        if (!copy)
                return ckv_error_origin(-ENOMEM);
        for (char *p = copy + 1; copy[0] && *p; p++) {
                if (*p != '/')
                        continue;
                *p = '\0';
                r = make_directory(copy);
                if (r)
                        return ckv_error_trace(r);
                *p = '/';
        }
        return ckv_error_trace(make_directory(copy));
}

int ckv_runtime_dir_lock(const char *path, int *ret_lock_fd) {
        _cleanup_close_ int directory = -1, lock = -1;
        int r;

        r = make_path(path);
        if (r)
                return ckv_error_trace(r);
        directory = open(path, O_DIRECTORY | O_RDONLY | O_CLOEXEC);
        if (directory < 0)
                return ckv_error_origin(-errno);
        lock = openat(directory, "lock", O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
        if (lock < 0)
                return ckv_error_origin(-errno);
        if (flock(lock, LOCK_EX | LOCK_NB) < 0)
                return errno == EWOULDBLOCK ? (int)CKV_RUNTIME_DIR_E_BUSY : ckv_error_origin(-errno);

        *ret_lock_fd = lock;
        lock = -1; /* consumed by the caller */
        return 0;
}
