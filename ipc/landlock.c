/*
 * Landlock through raw system calls: Debian 12 has neither wrappers nor, in
 * <linux/landlock.h>, more than the first version of the interface.  A kernel
 * may know more than that or less; each gets as much of the restriction as it
 * knows, by the version that it reports.
 *
 * The rights that a table does not name (devices, FIFOs, symbolic links,
 * renaming into another directory, ioctl on devices) are given up altogether.
 */
#include "ipc/landlock.h"

#include "base/error.h"
#include "base/macros.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/landlock.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>

/* struct landlock_ruleset_attr as of version 6 */
struct ruleset {
        uint64_t files, network, scope;
};

/* What newer headers call LANDLOCK_ACCESS_FS_*, LANDLOCK_ACCESS_NET_*, LANDLOCK_SCOPE_*. */
#define FS_TRUNCATE (UINT64_C(1) << 14)
#define FS_IOCTL_DEV (UINT64_C(1) << 15)
#define NET_ALL UINT64_C(3)
#define SCOPE_ABSTRACT UINT64_C(1)
#define SCOPE_SIGNAL UINT64_C(2)
#define FS_VERSION_1 ((LANDLOCK_ACCESS_FS_MAKE_SYM << 1) - 1)
/* the rights that make sense for what is not a directory; the kernel refuses others there */
#define FS_OF_FILES (LANDLOCK_ACCESS_FS_EXECUTE | LANDLOCK_ACCESS_FS_WRITE_FILE | LANDLOCK_ACCESS_FS_READ_FILE | FS_TRUNCATE | \
                     FS_IOCTL_DEV)

static int ruleset_create(const struct ruleset *ruleset, size_t size, uint32_t flags) {
        return (int)syscall(SYS_landlock_create_ruleset, ruleset, size, flags);
}

/* ruleset_for() - what this version of the interface can restrict. Return: the size that it knows of the struct. */
static size_t ruleset_for(int version, unsigned scope, struct ruleset *ret_ruleset) {
        *ret_ruleset = (struct ruleset){ .files = FS_VERSION_1 };
        if (version >= 2)
                ret_ruleset->files |= LANDLOCK_ACCESS_FS_REFER;
        if (version >= 3)
                ret_ruleset->files |= FS_TRUNCATE;
        if (version >= 5)
                ret_ruleset->files |= FS_IOCTL_DEV;
        if (version >= 4)
                ret_ruleset->network = NET_ALL;
        if (version >= 6)
                ret_ruleset->scope = (scope & CKV_LANDLOCK_SIGNALS ? SCOPE_SIGNAL : 0) |
                                     (scope & CKV_LANDLOCK_ABSTRACT ? SCOPE_ABSTRACT : 0);
        if (version >= 6)
                return sizeof(*ret_ruleset);
        return version >= 4 ? offsetof(struct ruleset, scope) : offsetof(struct ruleset, network);
}

static uint64_t rights_of(unsigned access) {
        uint64_t rights = 0;

        if (access & CKV_LANDLOCK_READ)
                rights |= LANDLOCK_ACCESS_FS_READ_FILE | LANDLOCK_ACCESS_FS_READ_DIR;
        if (access & CKV_LANDLOCK_EXECUTE)
                rights |= LANDLOCK_ACCESS_FS_EXECUTE;
        if (access & CKV_LANDLOCK_WRITE)
                rights |= LANDLOCK_ACCESS_FS_WRITE_FILE | FS_TRUNCATE;
        if (access & CKV_LANDLOCK_DEVICE)
                rights |= LANDLOCK_ACCESS_FS_READ_FILE | LANDLOCK_ACCESS_FS_WRITE_FILE | FS_IOCTL_DEV;
        if (access & CKV_LANDLOCK_SOCKETS)
                rights |= LANDLOCK_ACCESS_FS_MAKE_SOCK | LANDLOCK_ACCESS_FS_REMOVE_FILE;
        return rights;
}

static int path_allow(int ruleset_fd, const struct ckv_landlock_path *path, uint64_t known) {
        struct landlock_path_beneath_attr rule = { 0 };
        _cleanup_close_ int fd = -1;
        struct stat st;

        fd = open(path->path, O_PATH | O_CLOEXEC);
        if (fd < 0)
                /* what is not there, or not to be seen, needs no permission */
                return errno == ENOENT || errno == EACCES ? 0 : ckv_error_origin(-errno);
        if (fstat(fd, &st) < 0)
                return ckv_error_origin(-errno);
        rule.parent_fd = fd;
        rule.allowed_access = rights_of(path->access) & known & (S_ISDIR(st.st_mode) ? ~UINT64_C(0) : FS_OF_FILES);
        if (syscall(SYS_landlock_add_rule, ruleset_fd, LANDLOCK_RULE_PATH_BENEATH, &rule, 0) < 0)
                return ckv_error_origin(-errno);
        return 0;
}

int ckv_landlock_restrict(const struct ckv_landlock_path *paths, size_t count, unsigned scope) {
        _cleanup_close_ int fd = -1;
        struct ruleset ruleset;
        size_t size;
        int version, r;

        version = ruleset_create(NULL, 0, LANDLOCK_CREATE_RULESET_VERSION);
        if (version < 0)
                return errno == ENOSYS || errno == EOPNOTSUPP ? (int)CKV_LANDLOCK_E_ABSENT : ckv_error_origin(-errno);
        size = ruleset_for(version, scope, &ruleset);
        fd = ruleset_create(&ruleset, size, 0);
        if (fd < 0)
                return ckv_error_origin(-errno);
        for (size_t i = 0; i < count; i++) {
                r = path_allow(fd, &paths[i], ruleset.files);
                if (r)
                        return ckv_error_trace(r);
        }
        if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0)
                return ckv_error_origin(-errno);
        return syscall(SYS_landlock_restrict_self, fd, 0) < 0 ? ckv_error_origin(-errno) : 0;
}
