/*
 * ZeroMQ peers by number.  The core never sees a routing id, which a client
 * may choose; it sees numbers that are never used twice in the life of a gate.
 */
#ifndef CKV_GATE_CONNECTIONS_H
#define CKV_GATE_CONNECTIONS_H

#include "daemon/gate/accept.h"
#include "daemon/gate/address.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
        CKV_ROUTING_ID_MAX_BYTES = 64,          /* longer ones libzmq allows, we do not */
        CKV_CONNECTIONS_MAX = 1024,             /* remembered peers; above the descriptors a gate may have */
};

struct ckv_connection {
        uint32_t number;                        /* 0 = free */
        bool delimiter;                         /* its last message had an empty frame in front, as REQ sends it */
        uint8_t id_bytes;
        uint8_t id[CKV_ROUTING_ID_MAX_BYTES];   /* [id_bytes] routing id */
        struct ckv_address address;
        struct ckv_accept_key key;              /* what its last message came through */
        uint64_t slow_since_nsec;               /* no reply had room since then; 0 = the last one had */
        uint64_t used;                          /* when last: count of messages */
};

struct ckv_connections {
        struct ckv_connection entries[CKV_CONNECTIONS_MAX];
        uint32_t last_number;
        uint64_t clock;
};

/**
 * ckv_connections_touch() - the connection a message came from, entered anew if need be
 * @ret_gone: number of the connection that had to make room, or whose routing id has another owner now; 0 = none
 *
 * Return: the connection, valid until the next call; NULL when all numbers are used up.
 */
struct ckv_connection *ckv_connections_touch(struct ckv_connections *connections, const uint8_t *id, size_t id_bytes,
                                             const struct ckv_address *address, uint32_t *ret_gone);

/* ckv_connections_find() - by number. Return: NULL if it is forgotten. */
struct ckv_connection *ckv_connections_find(struct ckv_connections *connections, uint32_t number);

/* ckv_connections_forget() - its number is not used again */
void ckv_connections_forget(struct ckv_connection *connection);

#endif
