/*
 * The side socket: records of 96 bytes and descriptors, spoken with the core
 * itself (proto/side.h).  Calls are strictly one after the other, told apart
 * by a cookie all the same, because an answer may come after its caller gave
 * up.  The connection stays open as long as the session: its closing ends it.
 */
#include "clients/c/src/control.h"
#include "proto/status.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>

union descriptor_control {
        struct cmsghdr header;
        char bytes[CMSG_SPACE(sizeof(int))];
};

static int record_send(int side_fd, const struct ckv_side *record, int fd) {
        union descriptor_control control = { .bytes = { 0 } };
        struct ckv_side copy = *record;
        struct iovec part = { .iov_base = &copy, .iov_len = sizeof(copy) };
        struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1 };
        ssize_t n;

        if (fd >= 0) {
                message.msg_control = control.bytes;
                message.msg_controllen = sizeof(control.bytes);
                control.header.cmsg_level = SOL_SOCKET;
                control.header.cmsg_type = SCM_RIGHTS;
                control.header.cmsg_len = CMSG_LEN(sizeof(fd));
                memcpy(CMSG_DATA(&control.header), &fd, sizeof(fd));
        }
        do
                n = sendmsg(side_fd, &message, MSG_NOSIGNAL);
        while (n < 0 && errno == EINTR);
        return n < 0 ? -errno : 0;
}

/* Return: 0; -EAGAIN: nothing there; -ECONNRESET at the end; -EPROTO; -errno.  No descriptor: *ret_fd is -1. */
static int record_receive(int side_fd, struct ckv_side *ret_record, int *ret_fd) {
        union descriptor_control control = { .bytes = { 0 } };
        struct iovec part = { .iov_base = ret_record, .iov_len = sizeof(*ret_record) };
        struct msghdr message = {
                .msg_iov = &part, .msg_iovlen = 1, .msg_control = control.bytes,
                .msg_controllen = sizeof(control.bytes),
        };
        struct cmsghdr *header;
        ssize_t n;

        *ret_fd = -1;
        do
                n = recvmsg(side_fd, &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
        while (n < 0 && errno == EINTR);
        if (n < 0)
                return -errno;
        header = CMSG_FIRSTHDR(&message);
        if (header && header->cmsg_level == SOL_SOCKET && header->cmsg_type == SCM_RIGHTS &&
            header->cmsg_len == CMSG_LEN(sizeof(*ret_fd)))
                memcpy(ret_fd, CMSG_DATA(header), sizeof(*ret_fd));
        if (n == 0)
                return -ECONNRESET;
        if (n != sizeof(*ret_record) || (message.msg_flags & MSG_TRUNC) || ret_record->magic != CKV_SIDE_MAGIC ||
            ret_record->version != CKV_SIDE_VERSION) {
                *ret_fd = ckv_close(*ret_fd);
                return -EPROTO;
        }
        return 0;
}

static int poll_until(int fd, uint64_t deadline_nsec) {
        uint64_t now = ckv_now_nsec();
        struct pollfd poller = { .fd = fd, .events = POLLIN };
        int r;

        if (now >= deadline_nsec)
                return -ETIMEDOUT;
        r = poll(&poller, 1, (int)((deadline_nsec - now) / CKV_NSEC_PER_MSEC) + 1);
        return r < 0 && errno != EINTR ? -errno : 0;
}

/* Is this why the daemon closes: the user has too many connections? */
static bool is_quota_notice(const struct ckv_side *record) {
        return record->type == CKV_SIDE_NOTICE && record->code == CKV_CODE_QUOTA;
}

/* A notice that still lies in a socket which the daemon closed: the error comes once, and before it. */
static bool farewell_read(int side_fd, struct ckv_side *ret_record) {
        struct ckv_side record;
        int fd, r = record_receive(side_fd, &record, &fd);

        fd = ckv_close(fd);
        if (r || !is_quota_notice(&record))
                return false;
        *ret_record = record;
        return true;
}

/* Sends @record, waits for the answer of @type with the same cookie. Return: 0; -EDQUOT with the notice; -errno. */
static int record_call(struct chunkkv_client *client, struct ckv_side *record, int fd, uint16_t type,
                       uint64_t deadline_nsec, struct ckv_side *ret_record, int *ret_fd) {
        struct ckv_side answer = { 0 };
        int answer_fd = -1, r;

        record->magic = CKV_SIDE_MAGIC;
        record->version = CKV_SIDE_VERSION;
        record->cookie = ++client->last_cookie;
        r = record_send(client->side_fd, record, fd);
        while (r == 0) {
                r = record_receive(client->side_fd, &answer, &answer_fd);
                if (r == -EAGAIN) {
                        r = poll_until(client->side_fd, deadline_nsec);
                        continue;
                }
                if (r == 0 && answer.type == type && answer.cookie == record->cookie) {
                        *ret_record = answer;
                        *ret_fd = answer_fd;
                        return 0;
                }
                /* a notice, or an answer nobody waits for any more */
                answer_fd = ckv_close(answer_fd);
                if (r == 0 && is_quota_notice(&answer)) {
                        *ret_record = answer;
                        return -EDQUOT;
                }
        }
        return (r == -ECONNRESET || r == -EPIPE) && farewell_read(client->side_fd, ret_record) ? -EDQUOT : r;
}

static int record_fault(struct chunkkv_error *ret_error, int error, const char *what) {
        if (error == -ETIMEDOUT)
                return ckv__fault(ret_error, error, "", "%s: no answer on the side socket in time", what);
        if (error == -EPIPE || error == -ECONNRESET || error == -EBADF) {
                (void)ckv__fault(ret_error, -ECONNRESET, "",
                                 "%s: the daemon closed the side socket, which ends the session", what);
                if (ret_error)
                        ret_error->radius = CHUNKKV_RADIUS_SESSION;
                return -ECONNRESET;
        }
        if (error == -EPROTO)
                return ckv__fault(ret_error, error, "", "%s: the answer is no side record of version %d", what,
                                  CKV_SIDE_VERSION);
        return ckv__fault(ret_error, error, "", "%s: %s", what, strerror(-error));
}

/* A refusal on the side socket is a code alone; of an offer UNSUPPORTED means what a daemon on the CPU says of a handle. */
static void refusal_text(uint32_t code, const char *what, char ret_text[static CKV_STATUS_DETAIL_MAX + 1]) {
        const struct ckv_record_status status = { .detail = CKV_D_NO_DEVICE_MEMORY };

        if (code == CKV_CODE_UNSUPPORTED && strcmp(what, "offer") == 0)
                ckv_status_detail_format(&status, ret_text);
        else
                (void)snprintf(ret_text, CKV_STATUS_DETAIL_MAX + 1, "refused with %s", ckv_code_to_string(code));
}

static int record_refusal(struct chunkkv_error *ret_error, uint32_t code, const char *what) {
        char text[CKV_STATUS_DETAIL_MAX + 1];

        refusal_text(code, what, text);
        (void)ckv__fault(ret_error, -EREMOTEIO, "", "%s: %s", what, text);
        if (ret_error) {
                ret_error->code = code;
                ret_error->radius = (uint32_t)ckv_code_radius(code);
        }
        return -EREMOTEIO;
}

/* One user's side connections are all in use: the daemon said so, and closed. */
static int quota_refusal(struct chunkkv_error *ret_error, const struct ckv_side *notice) {
        (void)ckv__fault(ret_error, -EREMOTEIO, "attach",
                         "%" PRIu32 " of %" PRIu64 " side connections of this user are open", notice->slots,
                         notice->size);
        if (ret_error) {
                ret_error->code = notice->code;
                ret_error->radius = CHUNKKV_RADIUS_SESSION;
                ret_error->slot = CHUNKKV_SLOT_CONNECTIONS;
        }
        return -EREMOTEIO;
}

static int socket_connect(const char *prefix, uint64_t deadline_nsec, int *ret_fd, struct chunkkv_error *ret_error) {
        struct sockaddr_un address = { .sun_family = AF_UNIX };
        uint64_t now = ckv_now_nsec(), left = deadline_nsec > now ? deadline_nsec - now : 0;
        /* a time of zero would mean for ever */
        struct timeval patience = {
                .tv_sec = (time_t)(left / CKV_NSEC_PER_SEC),
                .tv_usec = (suseconds_t)CKV_MAX(left % CKV_NSEC_PER_SEC / CKV_NSEC_PER_USEC, UINT64_C(1)),
        };
        _cleanup_close_ int fd = -1;
        int n, r;

        n = snprintf(address.sun_path, sizeof(address.sun_path), "%s.fd", prefix);
        if (n < 0 || (size_t)n >= sizeof(address.sun_path))
                return ckv__fault(ret_error, -ENAMETOOLONG, "endpoint", "%s.fd is too long for the name of a socket",
                                  prefix);
        fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
        /* a daemon whose queue of connections is full must not hold us for ever */
        if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof(patience)) < 0)
                return ckv__fault(ret_error, -errno, "", "socket: %s", strerror(errno));
        do
                r = connect(fd, (struct sockaddr *)&address, sizeof(address));
        while (r < 0 && errno == EINTR);
        if (r < 0)
                return ckv__fault(ret_error, errno == EAGAIN ? -ETIMEDOUT : -errno, "endpoint", "%s: %s",
                                  address.sun_path, strerror(errno));
        *ret_fd = fd;
        fd = -1; /* the caller's */
        return 0;
}

static int attach(struct chunkkv_client *client, const char *prefix, bool with_page, uint64_t deadline_nsec,
                  uint8_t ret_token[static 16], struct chunkkv_error *ret_error) {
        struct ckv_side record = { .type = CKV_SIDE_ATTACH }, answer;
        const struct ckv__page *page = with_page ? client->page : NULL;
        _cleanup_close_ int pidfd = -1;
        int r;

        r = socket_connect(prefix, deadline_nsec, &client->side_fd, ret_error);
        if (r)
                return r;
        if (page) {
                record.slots = page->slots;
                record.kept_bytes = page->kept_bytes;
        }
        r = record_call(client, &record, page ? page->memory.fd : -1, CKV_SIDE_ATTACHED, deadline_nsec, &answer, &pidfd);
        if (r == -EDQUOT)
                return quota_refusal(ret_error, &answer);
        if (r)
                return record_fault(ret_error, r, "attach");
        if (answer.code != CKV_CODE_OK)
                return record_refusal(ret_error, answer.code, "attach");
        if (pidfd < 0)
                return ckv__fault(ret_error, -EPROTO, "", "attach: the daemon sent no pidfd");
        memcpy(client->boot_id, answer.boot_id, sizeof(client->boot_id));
        memcpy(ret_token, answer.token, sizeof(answer.token));
        client->core_pidfd = pidfd;
        pidfd = -1; /* the client's */
        return 0;
}

int ckv__side_connect(struct chunkkv_client *client, const char *prefix, uint64_t deadline_nsec,
                      uint8_t ret_token[static 16], struct chunkkv_error *ret_error) {
        struct chunkkv_error error;
        int r;

        client->page->attached = false;
        if (client->page->memory.size) {
                r = attach(client, prefix, true, deadline_nsec, ret_token, &error);
                client->page->attached = r == 0;
                if (r == -EREMOTEIO && error.code == CHUNKKV_CODE_UNSUPPORTED) {
                        /* a daemon that takes no control pages: moves cannot be repaired then */
                        client->side_fd = ckv_close(client->side_fd);
                } else {
                        if (r && ret_error)
                                *ret_error = error;
                        return r;
                }
        }
        return attach(client, prefix, false, deadline_nsec, ret_token, ret_error);
}

int ckv__side_offer(struct chunkkv_client *client, enum ckv_side_kind kind, int fd, uint64_t size, uint64_t deadline_nsec,
                    uint8_t ret_token[static 16], struct chunkkv_error *ret_error) {
        struct ckv_side record = { .type = CKV_SIDE_OFFER, .kind = (uint32_t)kind, .size = size }, answer;
        _cleanup_close_ int unexpected = -1;
        int r;

        r = record_call(client, &record, fd, CKV_SIDE_OFFERED, deadline_nsec, &answer, &unexpected);
        if (r)
                return record_fault(ret_error, r, "offer");
        if (answer.code != CKV_CODE_OK)
                return record_refusal(ret_error, answer.code, "offer");
        memcpy(ret_token, answer.token, sizeof(answer.token));
        return 0;
}

void ckv__side_drain(struct chunkkv_client *client) {
        struct ckv_side notice;
        int fd, r;

        do {
                r = record_receive(client->side_fd, &notice, &fd);
                fd = ckv_close(fd);
        } while (r == 0);
        if (r != -EAGAIN)
                client->side_fd = ckv_close(client->side_fd);
}
