/*
 * From names to pairs of listening sockets.
 *
 * Passed sockets are told apart by what they are, not by their order or by
 * FileDescriptorName: path and type say everything, and a unit file that mixes
 * them up is refused with a sentence instead of being guessed at.  They stay
 * with systemd: not removed at the end, so that clients of a daemon that
 * restarts queue instead of failing.
 *
 * A socket made here may still be listened on by a gate whose core was killed:
 * it sees that by itself, but a little later than the lock of the directory is
 * free.  Such a gate is waited for; whoever listens for longer is somebody else.
 */
#include "daemon/endpoints.h"

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "base/macros.h"
#include "daemon/daemon.h"
#include "ipc/listen.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <systemd/sd-daemon.h>

enum { LOOK_AT_SOCKETS = 64 };  /* more passed sockets than this are refused */
enum { LOOK_AGAIN_MSEC = 5 };
#define ORPHAN_WAIT_NSEC (2 * CKV_NSEC_PER_SEC)
#define PATH_BYTES 256          /* above what any socket path may have, so that too long ones are reported, not cut */

static void path_format(const struct ckv_endpoint *endpoint, const char *suffix, char ret_path[static PATH_BYTES]) {
        (void)snprintf(ret_path, PATH_BYTES, "%s/%s%s", endpoint->daemon->options->runtime_dir, endpoint->name, suffix);
}

/* listen_create() - as ckv_listen_create(), with patience for the gate of a core that is gone */
static int listen_create(const char *path, int type, mode_t mode, int *ret_fd, bool *ret_replaced) {
        uint64_t end = ckv_now_nsec() + ORPHAN_WAIT_NSEC;
        int r;

        for (;;) {
                r = ckv_listen_create(path, type, mode, ret_fd, ret_replaced);
                if (r != CKV_LISTEN_E_IN_USE || ckv_now_nsec() > end)
                        return r;
                (void)poll(NULL, 0, LOOK_AGAIN_MSEC);
        }
}

/* make_socket() - one of the two sockets of an endpoint; complains itself */
static int make_socket(const struct ckv_endpoint *endpoint, const char *suffix, int type, int *ret_fd) {
        char path[PATH_BYTES];
        const char *why;
        bool replaced;
        int r;

        path_format(endpoint, suffix, path);
        r = listen_create(path, type, (mode_t)endpoint->daemon->options->socket_mode, ret_fd, &replaced);
        if (r == 0) {
                if (replaced)
                        ckv_log(CKV_LOG_NOTICE, SOCKET_STALE, "path=\"%s\"", path);
                return 0;
        }
        switch (r) {
        case CKV_LISTEN_E_PATH_TOO_LONG:
                why = "the path is longer than the 107 characters that a socket may have";
                break;
        case CKV_LISTEN_E_IN_USE:
                why = "a process listens on it already";
                break;
        case CKV_LISTEN_E_NOT_SOCKET:
                why = "something that is not a socket is in the way";
                break;
        default:
                why = strerror(-r);
                break;
        }
        ckv_log(CKV_LOG_ERROR, SOCKET_FAILED, "path=\"%s\" why=\"%s\"", path, why);
        return CKV_ENDPOINTS_E_FAILED;
}

/* endpoint_init() - an endpoint without sockets, as the next one of the array */
static struct ckv_endpoint *endpoint_init(struct ckv_daemon *daemon, const char *name, size_t length, bool passed) {
        struct ckv_endpoint *endpoint = &daemon->endpoints[daemon->endpoint_count++];

        *endpoint = (struct ckv_endpoint){ .daemon = daemon, .stream_fd = -1, .side_fd = -1, .passed = passed };
        (void)snprintf(endpoint->name, sizeof(endpoint->name), "%.*s", (int)length, name);
        return endpoint;
}

static int open_own(struct ckv_daemon *daemon) {
        const struct ckv_option_names *names = &daemon->options->endpoint;
        int r;

        daemon->endpoints = calloc(names->count, sizeof(*daemon->endpoints));
        if (!daemon->endpoints)
                return ckv_error_origin(-ENOMEM);
        for (uint32_t i = 0; i < names->count; i++) {
                struct ckv_endpoint *endpoint = endpoint_init(daemon, names->items[i], strcspn(names->items[i], ":"), false);

                r = make_socket(endpoint, ".zmq", SOCK_STREAM, &endpoint->stream_fd);
                r = r ? r : make_socket(endpoint, ".fd", SOCK_SEQPACKET, &endpoint->side_fd);
                if (r)
                        return r;
        }
        return 0;
}

/* passed_failed() - the sentence for a passed socket that does not fit */
static int passed_failed(int fd, const char *path, const char *why) {
        ckv_log(CKV_LOG_ERROR, SOCKET_FAILED, "passed_fd=%d path=\"%s\" why=\"%s\"", fd, path, why);
        return CKV_ENDPOINTS_E_FAILED;
}

/* name_cut() - "main" of "/run/x/main.zmq". Return: its length, 0 if the file is not NAME@suffix with a proper name. */
static size_t name_cut(const char *path, const char *suffix, const char **ret_name) {
        const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
        size_t length = strlen(name), tail = strlen(suffix);

        if (length <= tail || strcmp(name + length - tail, suffix) != 0)
                return 0;
        length -= tail;
        if (length > 24 || strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789-") != length)
                return 0;
        *ret_name = name;
        return length;
}

static struct ckv_endpoint *find_endpoint(struct ckv_daemon *daemon, const char *name, size_t length) {
        for (uint32_t i = 0; i < daemon->endpoint_count; i++)
                if (strlen(daemon->endpoints[i].name) == length && memcmp(daemon->endpoints[i].name, name, length) == 0)
                        return &daemon->endpoints[i];
        return NULL;
}

/* adopt() - give a passed socket its place; @fd is consumed when that succeeds */
static int adopt(struct ckv_daemon *daemon, int fd) {
        char path[CKV_LISTEN_PATH_BYTES + 1];
        struct ckv_endpoint *endpoint;
        const char *name;
        size_t length;
        int type, *place, r;

        r = ckv_listen_adopt(fd, &type, path);
        if (r < 0)
                return ckv_error_trace(r);
        if (r)
                return passed_failed(fd, "", "not a listening Unix stream or seqpacket socket with a path");
        length = name_cut(path, type == SOCK_STREAM ? ".zmq" : ".fd", &name);
        if (length == 0)
                return passed_failed(fd, path, "a stream socket must be NAME.zmq, a seqpacket socket NAME.fd, NAME of a-z, 0-9 and -");
        endpoint = find_endpoint(daemon, name, length);
        if (!endpoint)
                endpoint = endpoint_init(daemon, name, length, true);
        place = type == SOCK_STREAM ? &endpoint->stream_fd : &endpoint->side_fd;
        if (*place >= 0)
                return passed_failed(fd, path, "a second socket of this name");
        *place = fd;
        return 0;
}

static int open_passed(struct ckv_daemon *daemon, int count) {
        int r;

        if (count > LOOK_AT_SOCKETS)
                return passed_failed(SD_LISTEN_FDS_START, "", "more than 64 sockets were passed");
        daemon->endpoints = calloc((size_t)count, sizeof(*daemon->endpoints));
        if (!daemon->endpoints)
                return ckv_error_origin(-ENOMEM);
        for (int i = 0; i < count; i++) {
                r = adopt(daemon, SD_LISTEN_FDS_START + i);
                if (r)
                        return r;
        }
        for (uint32_t i = 0; i < daemon->endpoint_count; i++) {
                const struct ckv_endpoint *endpoint = &daemon->endpoints[i];

                if (endpoint->stream_fd < 0)
                        return passed_failed(endpoint->side_fd, endpoint->name, "the stream socket NAME.zmq of this name was not passed");
                if (endpoint->side_fd < 0)
                        return passed_failed(endpoint->stream_fd, endpoint->name, "the seqpacket socket NAME.fd of this name was not passed");
        }
        return 0;
}

/* access_set() - who may use which endpoint. A list for an endpoint that is not there would keep nobody out: refused. */
static int access_set(struct ckv_daemon *daemon) {
        const struct ckv_option_names *names = &daemon->options->endpoint;
        char why[CKV_ACCESS_WHY_BYTES];

        for (uint32_t i = 0; i < names->count; i++) {
                size_t length = strcspn(names->items[i], ":");
                struct ckv_endpoint *endpoint = find_endpoint(daemon, names->items[i], length);

                if (names->items[i][length] == '\0')
                        continue;
                if (!endpoint) {
                        ckv_log(CKV_LOG_ERROR, SOCKET_FAILED, "endpoint=\"%s\" why=\"no sockets of this name were passed\"",
                                names->items[i]);
                        return CKV_ENDPOINTS_E_FAILED;
                }
                if (ckv_access_parse(names->items[i] + length, &endpoint->access, why)) {
                        ckv_log(CKV_LOG_ERROR, SOCKET_FAILED, "endpoint=\"%s\" why=\"%s\"", names->items[i], why);
                        return CKV_ENDPOINTS_E_FAILED;
                }
        }
        return 0;
}

int ckv_endpoints_open(struct ckv_daemon *daemon) {
        int count = sd_listen_fds(1), r;

        if (count < 0)
                return ckv_error_origin(count);
        r = count > 0 ? open_passed(daemon, count) : open_own(daemon);
        r = r ? r : access_set(daemon);
        if (r)
                ckv_endpoints_close(daemon);
        return r;
}

/* remove_socket() - close it, and unlink it if it is ours */
static void remove_socket(const struct ckv_endpoint *endpoint, const char *suffix, int fd) {
        char path[PATH_BYTES];

        if (fd < 0)
                return;
        if (!endpoint->passed) {
                path_format(endpoint, suffix, path);
                (void)unlink(path);
        }
        (void)ckv_close(fd);
}

void ckv_endpoints_close(struct ckv_daemon *daemon) {
        for (uint32_t i = 0; i < daemon->endpoint_count; i++) {
                remove_socket(&daemon->endpoints[i], ".zmq", daemon->endpoints[i].stream_fd);
                remove_socket(&daemon->endpoints[i], ".fd", daemon->endpoints[i].side_fd);
        }
        free(daemon->endpoints);
        daemon->endpoints = NULL;
        daemon->endpoint_count = 0;
}
