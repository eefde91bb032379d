/* The ROUTER socket: the only file that calls libzmq. */
#ifndef CKV_GATE_ROUTER_H
#define CKV_GATE_ROUTER_H

#include "daemon/gate/address.h"
#include "daemon/gate/connections.h"
#include "daemon/gate/zap.h"
#include "proto/records.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/un.h>
#include <zmq.h>

struct ckv_router {
        void *context, *socket;
        int fd;                         /* edge-triggered: readable means "look at ckv_router_ready()" */
        struct ckv_zap zap;
        char address[sizeof("ipc://") + sizeof(((struct sockaddr_un *)NULL)->sun_path)];
};

/* One message as it came. */
struct ckv_incoming {
        uint8_t id[CKV_ROUTING_ID_MAX_BYTES];   /* [id_bytes] routing id of the sender */
        size_t id_bytes;
        struct ckv_address address;
        bool delimiter;                         /* an empty frame came first */
        int fd;                                 /* it came through this one, which may be another's by now */
        bool one_frame;                         /* else body is not the whole message */
        zmq_msg_t body;                         /* ckv_incoming_deinit() */
};

enum ckv_router_outcome {
        _CKV_ROUTER_E_SUCCESS,
        CKV_ROUTER_E_EMPTY,             /* nothing to receive now */
        CKV_ROUTER_E_DROPPED,           /* a message from nobody we could answer: dropped whole */
        CKV_ROUTER_E_GONE,              /* no such peer any more */
        CKV_ROUTER_E_SLOW,              /* the peer does not read: the reply was dropped */
};

/*
 * Three steps, because a sandbox closes between them: ckv_router_init() still reads files, ckv_router_open() makes
 * threads, and after ckv_router_bind() peers are heard.  ckv_router_close() is fine after each, whatever it returned.
 */

/* ckv_router_init() - load the socket library. Return: 0 or -errno. */
int ckv_router_init(struct ckv_router *router);

/**
 * ckv_router_open() - a socket with its options, and the threads behind it
 * @listen_fd: listening AF_UNIX SOCK_STREAM socket; owned by libzmq once ckv_router_bind() succeeded
 * @limits:    request_bytes bounds what libzmq takes in
 *
 * Return: 0 or -errno.
 */
int ckv_router_open(struct ckv_router *router, int listen_fd, const struct ckv_record_limits *limits);

/* ckv_router_bind() - serve. The path stays when the gate ends, so that another gate can serve it. Return: 0 or -errno. */
int ckv_router_bind(struct ckv_router *router);
void ckv_router_close(struct ckv_router *router);

/* ckv_router_ready() - is there a message? Must be asked again after every send and receive, before sleeping on fd. */
bool ckv_router_ready(struct ckv_router *router);

/**
 * ckv_router_recv() - one message, never blocks
 * @incoming: filled in here; ckv_incoming_deinit() afterwards, whatever the outcome
 *
 * Return: 0, CKV_ROUTER_E_EMPTY, CKV_ROUTER_E_DROPPED, or -errno.
 */
int ckv_router_recv(struct ckv_router *router, struct ckv_incoming *incoming);
void ckv_incoming_deinit(struct ckv_incoming *incoming);

/**
 * ckv_router_send() - one reply, never blocks
 * @reply: [bytes], copied: so that nothing of ours is freed by libzmq's thread
 *
 * Return: 0, CKV_ROUTER_E_GONE, CKV_ROUTER_E_SLOW, or -errno.
 */
int ckv_router_send(struct ckv_router *router, const struct ckv_connection *connection, const void *reply,
                    size_t bytes);

#endif
