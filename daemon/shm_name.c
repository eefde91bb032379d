/*
 * Names can be guessed, squatted and pointed elsewhere, so everything that is
 * asked about one is asked about the descriptor: opened without following a
 * link and without making it, then looked at.  The digits of the name should be
 * random; whoever guesses them still finds a file of another user.
 *
 * What such a file holds is only ever copied (kernels/mirror.h): its owner can
 * truncate it at any time, and no seal forbids that.
 *
 * A daemon without rights over other users' files can open only names of its own
 * user: no mode that would let it in is accepted.
 */
#include "daemon/shm_name.h"

#include "base/macros.h"
#include "daemon/daemon.h"
#include "daemon/refuse.h"
#include "daemon/session.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/magic.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/vfs.h>

enum { ACCESS_READ = 1 };       /* Access of chunkkv.proto */

static void path_of(const struct ckv_record_region *body, char ret_path[static 64]) {
        int length = snprintf(ret_path, 64, "/dev/shm/chunkkv-%" PRIu32 "-", body->handle.posix_shm.uid);

        for (size_t i = 0; i < sizeof(body->handle.posix_shm.hex); i++)
                length += snprintf(ret_path + length, 64 - (size_t)length, "%02x", body->handle.posix_shm.hex[i]);
}

static bool refuse_open(struct ckv_record_status *status, int error) {
        enum ckv_code code = CKV_CODE_HANDLE_INVALID;

        if (error == ENOENT)
                code = CKV_CODE_NOT_FOUND;
        else if (error == EACCES || error == EPERM || error == ELOOP)
                code = CKV_CODE_PERMISSION;
        else if (error == EMFILE || error == ENFILE || error == ENOMEM)
                code = CKV_CODE_NO_MEMORY;
        return ckv_refuse(status, code, CKV_F_REGION_POSIX_SHM, CKV_D_SHM_OPEN, (uint64_t)error, 0, 0);
}

bool ckv_shm_name_open(const struct ckv_session *session, const struct ckv_record_region *body, int *ret_fd,
                       struct ckv_memfd_info *ret_info, struct ckv_record_status *ret_status) {
        int flags = (body->access == ACCESS_READ ? O_RDONLY : O_RDWR) | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC;
        _cleanup_close_ int fd = -1;
        struct statfs fs;
        struct stat st;
        char path[64];

        if (!session->daemon->options->posix_shm)
                return ckv_refuse(ret_status, CKV_CODE_UNSUPPORTED, CKV_F_REGION_POSIX_SHM, CKV_D_SHM_OFF, 0, 0, 0);
        if (body->handle.posix_shm.uid != session->peer.uid)
                return ckv_refuse(ret_status, CKV_CODE_PERMISSION, CKV_F_REGION_POSIX_SHM, CKV_D_SHM_USER, session->peer.uid,
                                  body->handle.posix_shm.uid, 0);
        path_of(body, path);
        fd = open(path, flags);
        if (fd < 0)
                return refuse_open(ret_status, errno);
        if (fstat(fd, &st) < 0 || fstatfs(fd, &fs) < 0)
                return refuse_open(ret_status, errno);
        if (!S_ISREG(st.st_mode) || fs.f_type != TMPFS_MAGIC)
                return ckv_refuse(ret_status, CKV_CODE_HANDLE_INVALID, CKV_F_REGION_POSIX_SHM, CKV_D_SHM_KIND, 0, 0, 0);
        if (st.st_uid != session->peer.uid || st.st_mode & 077 || st.st_nlink != 1)
                return ckv_refuse(ret_status, CKV_CODE_PERMISSION, CKV_F_REGION_POSIX_SHM, CKV_D_SHM_UNSAFE, st.st_uid, st.st_mode & 077,
                                  st.st_nlink);
        *ret_info = (struct ckv_memfd_info){
                .size = (uint64_t)st.st_size, .allocated = (uint64_t)st.st_blocks * 512, .dev = st.st_dev, .ino = st.st_ino,
        };
        if (ret_info->allocated < ret_info->size)
                return ckv_refuse(ret_status, CKV_CODE_SPARSE, CKV_F_REGION_POSIX_SHM, CKV_D_SHM_SPARSE, ret_info->allocated,
                                  ret_info->size, 0);
        *ret_fd = fd;
        fd = -1;
        return true;
}
