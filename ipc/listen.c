/*
 * Listening sockets.  A Unix socket's file outlives the process that made it,
 * so a daemon that was killed leaves one behind and the next bind(2) fails.
 * Removing whatever is there would let two daemons steal each other's
 * clients, as some libraries do; so it is removed only if it is a socket and
 * connecting to it says that nobody listens.
 *
 * Nothing is accepted here, and nothing is known of what the socket is for.
 */
#include "ipc/listen.h"

#include "base/error.h"
#include "base/macros.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>

/* a flood of connections waits here while the gate closes them one by one; who comes behind it must find room */
#define BACKLOG 4096

/* somebody_listens() - does a connection to this path get further than the door? */
static bool somebody_listens(const struct sockaddr_un *address, int type) {
        _cleanup_close_ int fd = socket(AF_UNIX, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

        if (fd < 0)
                return true;
        /* anything but a clear no (EAGAIN: its queue is full, EPROTOTYPE: the other type) is a yes */
        return connect(fd, (const struct sockaddr *)address, sizeof(*address)) == 0 ||
               (errno != ECONNREFUSED && errno != ENOENT);
}

/* clear_path() - make the name free if only a dead socket holds it */
static int clear_path(const struct sockaddr_un *address, int type, bool *ret_removed) {
        struct stat st;

        if (lstat(address->sun_path, &st) < 0)
                return errno == ENOENT ? 0 : ckv_error_origin(-errno);
        if (!S_ISSOCK(st.st_mode))
                return CKV_LISTEN_E_NOT_SOCKET;
        if (somebody_listens(address, type))
                return CKV_LISTEN_E_IN_USE;
        if (unlink(address->sun_path) < 0)
                return ckv_error_origin(-errno);
        *ret_removed = true;
        return 0;
}

int ckv_listen_create(const char *path, int type, mode_t mode, int *ret_fd, bool *ret_replaced) {
        struct sockaddr_un address = { .sun_family = AF_UNIX };
        _cleanup_close_ int fd = -1;
        size_t length = strlen(path);
        bool removed = false;
        int r;

        if (length >= sizeof(address.sun_path))
                return CKV_LISTEN_E_PATH_TOO_LONG;
        memcpy(address.sun_path, path, length);

        r = clear_path(&address, type, &removed);
        if (r)
                return r > 0 ? r : ckv_error_trace(r);
        fd = socket(AF_UNIX, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        if (fd < 0)
                return ckv_error_origin(-errno);
        if (bind(fd, (const struct sockaddr *)&address, sizeof(address)) < 0)
                return errno == EADDRINUSE ? (int)CKV_LISTEN_E_IN_USE : ckv_error_origin(-errno);
        /* connecting is refused until listen(2), so the mode of bind(2) does not matter */
        if (chmod(path, mode) < 0 || listen(fd, BACKLOG) < 0) {
                r = -errno;
                (void)unlink(path);
                return ckv_error_origin(r);
        }

        *ret_fd = fd;
        fd = -1; /* consumed by the caller */
        *ret_replaced = removed;
        return 0;
}

/* get_option() - an int option of level SOL_SOCKET */
static int get_option(int fd, int name, int *ret_value) {
        socklen_t n = sizeof(*ret_value);

        return getsockopt(fd, SOL_SOCKET, name, ret_value, &n) < 0 ? -errno : 0;
}

int ckv_listen_adopt(int fd, int *ret_type, char ret_path[static CKV_LISTEN_PATH_BYTES + 1]) {
        int domain, type, accepting, flags, r;
        struct sockaddr_un address = { 0 };
        socklen_t n = sizeof(address);
        size_t length;

        r = get_option(fd, SO_DOMAIN, &domain);
        r = r ? r : get_option(fd, SO_TYPE, &type);
        r = r ? r : get_option(fd, SO_ACCEPTCONN, &accepting);
        if (r)
                return r == -ENOTSOCK ? (int)CKV_LISTEN_E_UNSUITABLE : ckv_error_origin(r);
        if (domain != AF_UNIX || (type != SOCK_STREAM && type != SOCK_SEQPACKET) || !accepting)
                return CKV_LISTEN_E_UNSUITABLE;
        if (getsockname(fd, (struct sockaddr *)&address, &n) < 0)
                return ckv_error_origin(-errno);
        length = n > offsetof(struct sockaddr_un, sun_path) ? n - offsetof(struct sockaddr_un, sun_path) : 0;
        length = CKV_MIN(length, sizeof(address.sun_path));
        /* no name, or one that begins with NUL: abstract, without permissions */
        if (length == 0 || address.sun_path[0] == '\0')
                return CKV_LISTEN_E_UNSUITABLE;

        flags = fcntl(fd, F_GETFL);
        if (flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) < 0 || fcntl(fd, F_SETFD, FD_CLOEXEC) < 0)
                return ckv_error_origin(-errno);

        *ret_type = type;
        memcpy(ret_path, address.sun_path, length);
        ret_path[length] = '\0';
        return 0;
}
