/*
 * What daemon/side_accept.c makes and daemon/side.c serves; nobody else looks inside.
 */
#ifndef CKV_DAEMON_SIDE_CONN_H
#define CKV_DAEMON_SIDE_CONN_H

#include "daemon/side.h"
#include "daemon/side_offer.h"
#include "daemon/tenant.h"

#include <stdbool.h>
#include <stdint.h>

struct ckv_control;

struct ckv_side_conn {
        struct ckv_side_conn *prev, *next;      /* endpoint->side_conns */
        struct ckv_endpoint *endpoint;
        int fd, pidfd;
        struct ckv_peer peer;
        struct ckv_charge charge;               /* CONNECTIONS; holds the tenant */
        sd_event_source *socket_source, *process_source, *expiry_source;
        bool attached;
        uint8_t token[16];                      /* of attach; random only once attached */
        struct ckv_side_offers offers;
        struct ckv_control *control;            /* page that came with ATTACH, one reference; or NULL */
        struct ckv_session *session;
};

/* ckv_side_conn_watch() - hear its records, and of its process's end. Return: 0 or -errno, and the caller frees it. */
int ckv_side_conn_watch(struct ckv_side_conn *conn);

/* ckv_side_conn_free() - everything that it holds, its session with it; in no list any more, or not yet. Return: NULL. */
struct ckv_side_conn *ckv_side_conn_free(struct ckv_side_conn *conn);

#endif
