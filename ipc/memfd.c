/*
 * Checking offered memory.  The order of the questions matters: a descriptor
 * may come from a file system that the tenant itself implements (FUSE), where
 * fstat(2) and fstatfs(2) wait for an answer of the tenant.  F_GET_SEALS asks
 * no file system, and answers only for files of tmpfs and hugetlbfs; so it
 * comes first, and everything after it is safe to ask.
 *
 * A file on a tmpfs mount answers too, but its seals are F_SEAL_SEAL alone
 * and cannot be changed, so it ends as "not sealed".
 *
 * F_SEAL_WRITE is refused even for reading: the engine could not fill the
 * cache any more.  Seals not named here (FUTURE_WRITE, EXEC) are welcome.
 */
#include "ipc/memfd.h"

#include "base/error.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/vfs.h>

#define SEALS_REQUIRED (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)

int ckv_memfd_check(int fd, uint64_t declared_size, struct ckv_memfd_info *ret_info) {
        struct ckv_memfd_info info;
        struct statfs fs;
        struct stat st;
        int seals;

        seals = fcntl(fd, F_GET_SEALS);
        if (seals < 0)
                /* EBADF: O_PATH, which can do nothing; a number that is no descriptor is a bug, but ends here as well */
                return errno == EINVAL || errno == EBADF ? CKV_MEMFD_E_NOT_MEMFD : ckv_error_origin(-errno);
        if (fstat(fd, &st) < 0 || fstatfs(fd, &fs) < 0)
                return ckv_error_origin(-errno);
        if (!S_ISREG(st.st_mode) || (fs.f_type != TMPFS_MAGIC && fs.f_type != HUGETLBFS_MAGIC))
                return CKV_MEMFD_E_NOT_MEMFD;

        info = (struct ckv_memfd_info){
                .size = (uint64_t)st.st_size,
                .allocated = (uint64_t)st.st_blocks * 512,
                .seals = (uint32_t)seals,
                .dev = st.st_dev,
                .ino = st.st_ino,
        };
        *ret_info = info;
        if ((seals & SEALS_REQUIRED) != SEALS_REQUIRED || (seals & F_SEAL_WRITE))
                return CKV_MEMFD_E_NOT_SEALED;
        if (info.size != declared_size)
                return CKV_MEMFD_E_SIZE;
        if (info.allocated < info.size)
                return CKV_MEMFD_E_SPARSE;
        return 0;
}
