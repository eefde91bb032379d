/*
 * Which files a process can still open by path: Landlock, from a table.
 */
#ifndef CKV_IPC_LANDLOCK_H
#define CKV_IPC_LANDLOCK_H

#include <stddef.h>

/* What may be done with a file, or with all below a directory. */
enum ckv_landlock_access {
        CKV_LANDLOCK_READ = 1 << 0,             /* read files, list directories */
        CKV_LANDLOCK_EXECUTE = 1 << 1,
        CKV_LANDLOCK_WRITE = 1 << 2,            /* write files that are there */
        CKV_LANDLOCK_SOCKETS = 1 << 3,          /* make and remove sockets */
        CKV_LANDLOCK_DEVICE = 1 << 4,           /* read and write device files, and ask them what they can do: ioctl(2) */
};

/* What of the kernel's other scopes is given up. */
enum ckv_landlock_scope {
        CKV_LANDLOCK_SIGNALS = 1 << 0,          /* signals reach only this process and its children */
        CKV_LANDLOCK_ABSTRACT = 1 << 1,         /* no connection to a Unix socket without a path */
};

struct ckv_landlock_path {
        const char *path;
        unsigned access;                        /* enum ckv_landlock_access */
};

enum ckv_landlock_outcome {
        _CKV_LANDLOCK_E_SUCCESS,
        CKV_LANDLOCK_E_ABSENT,          /* this kernel has no Landlock, or it is switched off: nothing was restricted */
};

/**
 * ckv_landlock_restrict() - give up all files but those of a table, and TCP
 * @paths: [count]; a path that does not exist is left out
 * @scope: of enum ckv_landlock_scope, where the kernel knows it (since 6.12)
 *
 * For the calling thread, the threads it makes later, and its children, whatever they execute; so it is to be called
 * before there are threads. Descriptors that are open, and those that are received, stay as they are. Unix sockets can
 * still be connected to by path.
 *
 * Return: 0, CKV_LANDLOCK_E_ABSENT, or -errno.
 */
int ckv_landlock_restrict(const struct ckv_landlock_path *paths, size_t count, unsigned scope);

#endif
