/*
 * ROUTER over a listening socket that somebody else made (ZMQ_USE_FD).  libzmq
 * 4.3.4 still wants an address to bind to, takes it as a name only, and in that
 * case does not unlink the path, neither before nor after: the next gate serves
 * the same one.
 *
 * Options that keep one peer from hurting others: HWMs (a slow reader loses its
 * own replies, which the core has stored), MAXMSGSIZE, a time for the handshake,
 * heartbeats (answered by libzmq itself, so a busy client stays connected), no
 * handover of routing ids, MANDATORY (a reply to nobody is an error, not a loss).
 *
 * MAXMSGSIZE is twice the longest request: libzmq cuts the connection of a
 * longer message without a word, and a client that is a little over the limit
 * deserves a sentence.
 *
 * Who may connect is settled in accept4() (daemon/gate/accept.h), asked once
 * more by libzmq (daemon/gate/zap.h), and never taken from what a client says
 * of itself.
 *
 * A message of many frames is here only when all of it is in memory.  Nothing
 * in libzmq bounds that; the limit on the gate's memory does.
 */
#include "daemon/gate/router.h"

#include "base/error.h"
#include "base/macros.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>

enum {
        ZAP_ENFORCE_DOMAIN = 93,        /* zmq.h hides the name behind its draft API, the library knows the option */
        RCVHWM = 8,                     /* messages waiting for the gate, of one peer */
        SNDHWM = 16,                    /* replies waiting for one peer */
        HANDSHAKE_MSEC = 2000,
        HEARTBEAT_MSEC = 2000,
        HEARTBEAT_TIMEOUT_MSEC = 6000,
};

static int set_int(void *socket, int option, int value) {
        return zmq_setsockopt(socket, option, &value, sizeof(value)) < 0 ? ckv_error_origin(-errno) : 0;
}

static int set_options(void *socket, int listen_fd, const struct ckv_record_limits *limits) {
        const int64_t max_bytes = 2 * (int64_t)limits->request_bytes;
        const struct {
                int option, value;
        } options[] = {
                { ZMQ_RCVHWM, RCVHWM },
                { ZMQ_SNDHWM, SNDHWM },
                { ZMQ_LINGER, 0 },
                { ZMQ_ROUTER_MANDATORY, 1 },
                { ZMQ_ROUTER_HANDOVER, 0 },
                { ZMQ_HANDSHAKE_IVL, HANDSHAKE_MSEC },
                { ZMQ_HEARTBEAT_IVL, HEARTBEAT_MSEC },
                { ZMQ_HEARTBEAT_TIMEOUT, HEARTBEAT_TIMEOUT_MSEC },
                { ZAP_ENFORCE_DOMAIN, 1 },
                { ZMQ_USE_FD, listen_fd },
        };
        int r;

        for (size_t i = 0; i < CKV_ARRAY_SIZE(options); i++) {
                r = set_int(socket, options[i].option, options[i].value);
                if (r)
                        return ckv_error_trace(r);
        }
        if (zmq_setsockopt(socket, ZMQ_MAXMSGSIZE, &max_bytes, sizeof(max_bytes)) < 0 ||
            zmq_setsockopt(socket, ZMQ_ZAP_DOMAIN, CKV_ZAP_DOMAIN, sizeof(CKV_ZAP_DOMAIN) - 1) < 0)
                return ckv_error_origin(-errno);
        return 0;
}

/* bind_address() - "ipc://" and the path that the listening socket has */
static int bind_address(int listen_fd, char *ret_text, size_t size) {
        struct sockaddr_un address = { 0 };
        socklen_t bytes = sizeof(address);
        int n;

        if (getsockname(listen_fd, (struct sockaddr *)&address, &bytes) < 0)
                return ckv_error_origin(-errno);
        if (address.sun_family != AF_UNIX || bytes <= offsetof(struct sockaddr_un, sun_path) + 1 ||
            address.sun_path[0] == '\0')
                return ckv_error_origin(-EINVAL);
        n = snprintf(ret_text, size, "ipc://%.*s", (int)sizeof(address.sun_path), address.sun_path);
        return n < 0 || (size_t)n >= size ? ckv_error_origin(-ENAMETOOLONG) : 0;
}

int ckv_router_init(struct ckv_router *router) {
        *router = (struct ckv_router){ .fd = -1, .zap.fd = -1 };
        router->context = zmq_ctx_new();
        if (!router->context || zmq_ctx_set(router->context, ZMQ_IO_THREADS, 1) < 0)
                return ckv_error_origin(-errno);
        return 0;
}

int ckv_router_open(struct ckv_router *router, int listen_fd, const struct ckv_record_limits *limits) {
        size_t size = sizeof(router->fd);
        int r, flags;

        r = bind_address(listen_fd, router->address, sizeof(router->address));
        if (r)
                return ckv_error_trace(r);
        /* a peer that leaves between poll and accept must not stop the I/O thread */
        flags = fcntl(listen_fd, F_GETFL);
        if (flags < 0 || fcntl(listen_fd, F_SETFL, flags | O_NONBLOCK) < 0)
                return ckv_error_origin(-errno);

        r = ckv_zap_open(&router->zap, router->context);
        if (r)
                return ckv_error_trace(r);
        router->socket = zmq_socket(router->context, ZMQ_ROUTER);
        if (!router->socket)
                return ckv_error_origin(-errno);
        r = set_options(router->socket, listen_fd, limits);
        if (r)
                return ckv_error_trace(r);
        return zmq_getsockopt(router->socket, ZMQ_FD, &router->fd, &size) < 0 ? ckv_error_origin(-errno) : 0;
}

int ckv_router_bind(struct ckv_router *router) {
        return zmq_bind(router->socket, router->address) < 0 ? ckv_error_origin(-errno) : 0;
}

void ckv_router_close(struct ckv_router *router) {
        ckv_zap_close(&router->zap);
        if (router->socket)
                (void)zmq_close(router->socket);
        if (router->context)
                (void)zmq_ctx_term(router->context);
        *router = (struct ckv_router){ .fd = -1, .zap.fd = -1 };
}

bool ckv_router_ready(struct ckv_router *router) {
        int events = 0;
        size_t size = sizeof(events);

        return zmq_getsockopt(router->socket, ZMQ_EVENTS, &events, &size) == 0 && (events & ZMQ_POLLIN);
}

/* recv_frame() - the next frame into an initialised message. Return: 0, CKV_ROUTER_E_EMPTY or -errno. */
static int recv_frame(void *socket, zmq_msg_t *frame) {
        int n;

        do
                n = zmq_msg_recv(frame, socket, ZMQ_DONTWAIT);
        while (n < 0 && errno == EINTR);
        if (n >= 0)
                return 0;
        return errno == EAGAIN ? CKV_ROUTER_E_EMPTY : ckv_error_origin(-errno);
}

int ckv_router_recv(struct ckv_router *router, struct ckv_incoming *incoming) {
        size_t frames = 0;
        bool usable;
        int r;

        *incoming = (struct ckv_incoming){ 0 };
        (void)zmq_msg_init(&incoming->body);
        r = recv_frame(router->socket, &incoming->body);
        if (r)
                return r;
        incoming->id_bytes = zmq_msg_size(&incoming->body);
        usable = incoming->id_bytes <= sizeof(incoming->id);
        if (usable)
                memcpy(incoming->id, zmq_msg_data(&incoming->body), incoming->id_bytes);

        /* each frame replaces the one before, the last is the body; ROUTER gives whole messages: none is awaited */
        while (zmq_msg_more(&incoming->body)) {
                bool empty_before = frames == 1 && zmq_msg_size(&incoming->body) == 0;

                r = recv_frame(router->socket, &incoming->body);
                if (r)
                        return r > 0 ? ckv_error_fold(r) : r;
                if (++frames == 2)
                        incoming->delimiter = empty_before;
        }
        incoming->fd = zmq_msg_get(&incoming->body, ZMQ_SRCFD);
        incoming->one_frame = frames == (incoming->delimiter ? 2 : 1);
        if (!usable || frames == 0 ||
            !ckv_address_parse(zmq_msg_gets(&incoming->body, "Peer-Address"), &incoming->address))
                return CKV_ROUTER_E_DROPPED;
        return 0;
}

void ckv_incoming_deinit(struct ckv_incoming *incoming) {
        (void)zmq_msg_close(&incoming->body);
}

/* send_frame() - Return: 0 or -errno */
static int send_frame(void *socket, const void *data, size_t bytes, int flags) {
        int n;

        do
                n = zmq_send(socket, data, bytes, ZMQ_DONTWAIT | flags);
        while (n < 0 && errno == EINTR);
        return n < 0 ? -errno : 0;
}

int ckv_router_send(struct ckv_router *router, const struct ckv_connection *connection, const void *reply,
                    size_t bytes) {
        int r;

        /* with MANDATORY the first frame alone decides whether there is a peer and room for it */
        r = send_frame(router->socket, connection->id, connection->id_bytes, ZMQ_SNDMORE);
        if (r == -EHOSTUNREACH)
                return CKV_ROUTER_E_GONE;
        if (r == -EAGAIN)
                return CKV_ROUTER_E_SLOW;
        if (r == 0 && connection->delimiter)
                r = send_frame(router->socket, "", 0, ZMQ_SNDMORE);
        if (r == 0)
                r = send_frame(router->socket, reply, bytes, 0);
        return ckv_error_origin(r);
}
