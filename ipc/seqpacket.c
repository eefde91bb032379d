/*
 * One message in, one message out, on a SOCK_SEQPACKET socket.
 *
 * The kernel is generous with descriptors: a control buffer for one receives
 * two, because of padding, and a peer may send 253.  So whatever came is
 * counted, and all of it is closed unless it is exactly what the caller
 * expects.  What does not fit the buffer the kernel drops by itself
 * (MSG_CTRUNC), without a leak, and without asking the file system, as close()
 * does.
 *
 * An empty message looks like the end of the connection and is treated so:
 * no record of ours is empty.
 */
#include "ipc/seqpacket.h"

#include "base/error.h"
#include "base/macros.h"

#include <errno.h>
#include <stdbool.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>

union control {
        char bytes[CMSG_SPACE(sizeof(int))];
        struct cmsghdr align;
};

int ckv_seqpacket_send(int fd, const void *message, size_t bytes, int send_fd) {
        union control control = { { 0 } };
        struct iovec iov = { .iov_base = (void *)(uintptr_t)message, .iov_len = bytes };
        struct msghdr header = { .msg_iov = &iov, .msg_iovlen = 1 };
        ssize_t n;

        if (send_fd >= 0) {
                struct cmsghdr *c;

                header.msg_control = control.bytes;
                header.msg_controllen = sizeof(control.bytes);
                c = CMSG_FIRSTHDR(&header);
                c->cmsg_level = SOL_SOCKET;
                c->cmsg_type = SCM_RIGHTS;
                c->cmsg_len = CMSG_LEN(sizeof(int));
                memcpy(CMSG_DATA(c), &send_fd, sizeof(int));
        }

        do
                n = sendmsg(fd, &header, MSG_DONTWAIT | MSG_NOSIGNAL);
        while (n < 0 && errno == EINTR);

        if (n >= 0)
                return 0;
        /* ENOBUFS: the kernel has no memory for it now, which passes as well */
        if (errno == EAGAIN || errno == ENOBUFS)
                return CKV_SEQPACKET_E_AGAIN;
        if (errno == EPIPE || errno == ECONNRESET)
                return CKV_SEQPACKET_E_CLOSED;
        return ckv_error_origin(-errno);
}

/* take_fds() - discard what came, but keep the first. Return: how many came. */
static size_t take_fds(struct msghdr *header, ckv_seqpacket_discard discard, void *userdata, int *ret_first) {
        size_t count = 0;

        for (struct cmsghdr *c = CMSG_FIRSTHDR(header); c; c = CMSG_NXTHDR(header, c)) {
                size_t n;

                if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
                        continue;
                n = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
                for (size_t i = 0; i < n; i++) {
                        int fd;

                        memcpy(&fd, CMSG_DATA(c) + i * sizeof(int), sizeof(int));
                        if (count++ == 0)
                                *ret_first = fd;
                        else
                                discard(userdata, fd);
                }
        }
        return count;
}

/* receive() - @room: have a control buffer, so that descriptors arrive at all */
static int receive(int fd, void *message, size_t bytes, bool room, ckv_seqpacket_discard discard, void *userdata, int *ret_fd) {
        union control control = { { 0 } };
        struct iovec iov = { .iov_base = message, .iov_len = bytes };
        struct msghdr header = { .msg_iov = &iov, .msg_iovlen = 1, .msg_control = room ? control.bytes : NULL,
                                 .msg_controllen = room ? sizeof(control.bytes) : 0 };
        int first = -1;
        size_t count;
        ssize_t n;

        do
                n = recvmsg(fd, &header, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
        while (n < 0 && errno == EINTR);

        if (n < 0) {
                if (errno == EAGAIN)
                        return CKV_SEQPACKET_E_AGAIN;
                if (errno == ECONNRESET)
                        return CKV_SEQPACKET_E_CLOSED;
                return ckv_error_origin(-errno);
        }

        count = take_fds(&header, discard, userdata, &first);
        if (n == 0 && count == 0 && !(header.msg_flags & MSG_CTRUNC))
                return CKV_SEQPACKET_E_CLOSED;
        if ((size_t)n != bytes || (header.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) || count > (ret_fd ? 1u : 0u)) {
                if (first >= 0)
                        discard(userdata, first);
                return CKV_SEQPACKET_E_MALFORMED;
        }

        if (ret_fd)
                *ret_fd = first;
        return 0;
}

static void close_it(void *userdata, int fd) {
        (void)userdata;
        (void)ckv_close(fd);
}

int ckv_seqpacket_recv(int fd, void *message, size_t bytes, int *ret_fd) {
        return receive(fd, message, bytes, true, close_it, NULL, ret_fd);
}

int ckv_seqpacket_recv_discard(int fd, void *message, size_t bytes, ckv_seqpacket_discard discard, void *userdata, int *ret_fd) {
        return receive(fd, message, bytes, ret_fd != NULL, discard, userdata, ret_fd);
}
