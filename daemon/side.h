/*
 * Side connections: the SOCK_SEQPACKET socket <endpoint>.fd that the core
 * accepts itself, so that credentials and descriptors are first-hand.  One
 * connection is one engine process; its closing or the process's death (pidfd)
 * ends the session.
 */
#ifndef CKV_DAEMON_SIDE_H
#define CKV_DAEMON_SIDE_H

#include "daemon/tenant.h"
#include "proto/side.h"

#include <stdbool.h>
#include <stdint.h>

struct ckv_control;
struct ckv_endpoint;
struct ckv_session;
struct ckv_side_conn;

/* ckv_side_listen() - accept on endpoint->side_fd in the daemon's event loop. Return: 0 or -errno. */
int ckv_side_listen(struct ckv_endpoint *endpoint);
/* ckv_side_shutdown() - stop accepting and close all side connections of the endpoint */
void ckv_side_shutdown(struct ckv_endpoint *endpoint);

/* ckv_side_find() - the connection of this endpoint with this attach token, or NULL; borrowed */
struct ckv_side_conn *ckv_side_find(struct ckv_endpoint *endpoint, const uint8_t token[static 16]);

/* What the kernel said about the peer of a connection. */
struct ckv_peer {
        uint32_t uid, gid, pid;
};
const struct ckv_peer *ckv_side_peer(const struct ckv_side_conn *conn);

/* ckv_side_bind() - tie a session to a connection (NULL unties): from now on closing it ends the session */
void ckv_side_bind(struct ckv_side_conn *conn, struct ckv_session *session);
/* ckv_side_session() - the session bound to a connection, or NULL */
struct ckv_session *ckv_side_session(const struct ckv_side_conn *conn);

/* ckv_side_control() - the control page that came with ATTACH, borrowed; or NULL */
struct ckv_control *ckv_side_control(const struct ckv_side_conn *conn);

/* ckv_side_alive() - does the process live? The kernel is asked, not the loop, which may have yet to hear of its death. */
bool ckv_side_alive(const struct ckv_side_conn *conn);

/**
 * ckv_side_take() - take an offered descriptor by its token
 * @ret_fd:   owned by the caller; the offer and its FDS charge are gone
 * @ret_kind: enum ckv_side_kind
 *
 * Return: true, or false if the token is unknown, used, or older than 60 s.
 */
bool ckv_side_take(struct ckv_side_conn *conn, const uint8_t token[static 16], int *ret_fd, uint32_t *ret_kind, uint64_t *ret_size);

/* ckv_side_notice() - best effort: a notice that does not fit into the socket is lost */
void ckv_side_notice(struct ckv_side_conn *conn, enum ckv_side_notice notice, uint32_t region_id);
/* ckv_side_notice_all() - the same to every attached connection of an endpoint */
void ckv_side_notice_all(struct ckv_endpoint *endpoint, enum ckv_side_notice notice);

#endif
