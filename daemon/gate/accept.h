/*
 * Who may connect to the gate, how many, and how fast.  The rules are applied
 * inside accept4(), which libzmq calls; see accept.c.
 *
 * All functions may be called from any thread.
 */
#ifndef CKV_GATE_ACCEPT_H
#define CKV_GATE_ACCEPT_H

#include "daemon/gate/address.h"
#include "proto/records.h"

#include <stdbool.h>
#include <stdint.h>

enum {
        CKV_ACCEPT_FDS = 512,           /* connections have descriptors below this: the process may have no others */
        CKV_ACCEPT_BURST = 20,          /* connections of one user that may come at once */
        CKV_ACCEPT_PER_SECOND = 20,     /* and this many each second after that */
};

/* One connection, for as long as the kernel lives: a descriptor may be another connection's by now, a cookie never is. */
struct ckv_accept_key {
        int fd;
        uint64_t cookie;                /* 0 = no connection */
};

/**
 * ckv_accept_configure() - the rules from now on
 * @ranges:  [count], copied; valid by ckv_access_valid(). No range: everybody
 * @per_uid: connections of one user
 *
 * Before the first call everybody may connect, as often as base/limits.def says. Connections of users who may not any
 * more are shut down.
 */
void ckv_accept_configure(const struct ckv_record_access *ranges, uint32_t count, uint32_t per_uid);

/* ckv_accept_allows() - is this user or group one of those who may connect? */
bool ckv_accept_allows(const struct ckv_address *address);

/**
 * ckv_accept_find() - the connection behind a descriptor that libzmq names
 * @address: of the message that came through it; another process's connection is not found
 *
 * Return: its key; cookie 0 if there is none.
 */
struct ckv_accept_key ckv_accept_find(int fd, const struct ckv_address *address);

/* ckv_accept_drop() - shut this connection down, and no other. Return: false if it is closed already. */
bool ckv_accept_drop(struct ckv_accept_key key);

/* ckv_accept_event_fd() - readable when a user came who was not there before; read by ckv_accept_look(). -1: none. */
int ckv_accept_event_fd(void);

/* ckv_accept_look() - fill in what accept knows of @ret_stats: open, uids, refused; the rest is left alone */
void ckv_accept_look(struct ckv_record_stats *ret_stats);

#endif
