/*
 * Sessions: one engine process and what it has registered.  A session begins
 * with Hello and ends with EndSession, the closing of its side connection, or
 * the death of its process, whichever is first; the death of a gate does not
 * end it.
 *
 * Ending takes two steps.  ckv_session_end() makes the session unknown to
 * every later request and cancels its jobs; when the last job has been reaped,
 * memory is unmapped, charges go back and the struct is freed.
 */
#ifndef CKV_DAEMON_SESSION_H
#define CKV_DAEMON_SESSION_H

#include "base/hash.h"
#include "daemon/breach.h"
#include "daemon/side.h"
#include "daemon/tenant.h"
#include "daemon/window.h"
#include "proto/records.h"

#include <stdbool.h>
#include <stdint.h>
#include <systemd/sd-event.h>

struct ckv_options;
struct ckv_cache;
struct ckv_endpoint;
struct ckv_region;
struct ckv_request;

/* Where an answer goes: one connection of one gate. */
struct ckv_route {
        struct ckv_endpoint *endpoint;
        uint64_t incarnation;           /* of the gate; an answer for a dead gate is dropped, and stays stored */
        uint32_t connection;
        uint64_t request_id, generation;
};

struct ckv_session {
        struct ckv_daemon *daemon;
        struct ckv_endpoint *endpoint;
        uint8_t token[16];
        struct ckv_peer peer;
        struct ckv_tenant *tenant;      /* one reference */
        struct ckv_charge charge;       /* SESSIONS */
        struct ckv_side_conn *side;     /* or NULL: then pid_source watches the process */
        sd_event_source *pid_source;
        struct ckv_region *regions;     /* hash by id */
        struct ckv_cache *caches;       /* hash by id */
        uint32_t last_region_id, last_cache_id, cache_count;
        struct ckv_window window;       /* request ids and stored answers */
        struct ckv_request *requests;   /* list of those in flight */
        uint32_t request_count;
        uint32_t import_count;          /* device memory that is being opened or closed for it */
        struct ckv_seen foreign;        /* users that used the token from elsewhere, and were logged */
        bool ending;
        bool answer_end;                /* EndSession asked: answer end_route when all is unmapped */
        struct ckv_route end_route;
        UT_hash_handle hh;              /* daemon->sessions, by token */
};

/**
 * ckv_session_hello() - Hello: a new session, or the one that is bound to the attach token already
 * @record: HELLO of this endpoint's gate
 * @ret_status: overwritten; code OK on success
 * @ret_session: borrowed, written only on success
 *
 * Return: true on success.
 */
bool ckv_session_hello(struct ckv_endpoint *endpoint, const struct ckv_record *record, struct ckv_record_status *ret_status,
                       struct ckv_session **ret_session);

/**
 * ckv_session_find() - the session that a record's token names, if it may be used from there
 *
 * Return: NULL with @ret_status SESSION_UNKNOWN or PERMISSION.
 */
struct ckv_session *ckv_session_find(struct ckv_endpoint *endpoint, const struct ckv_record *record,
                                     struct ckv_record_status *ret_status);

/* ckv_session_end() - the bound connection closed, its process died, or EndSession; may free the session */
void ckv_session_end(struct ckv_session *session);

/*
 * ckv_session_settle() - free an ending session if nothing of it is in flight any more
 *
 * When its last request is through its memory is given back; when the device has let go of that, the session goes.
 */
void ckv_session_settle(struct ckv_session *session);

/* ckv_capabilities() - bit n = Capability n of chunkkv.proto */
uint64_t ckv_capabilities(const struct ckv_options *options);

#endif
