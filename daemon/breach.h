/*
 * Lines of the log that tenants and strangers provoke: each thing once, the
 * rest counted.
 */
#ifndef CKV_DAEMON_BREACH_H
#define CKV_DAEMON_BREACH_H

#include "daemon/tenant.h"

struct ckv_endpoint;

/* User ids that were heard of before; the oldest is forgotten when there are more. Zeroed = none. */
struct ckv_seen {
        uint32_t uids[16];
        uint32_t count, next;
};

/* ckv_seen_add() - Return: true if @uid was not there */
bool ckv_seen_add(struct ckv_seen *seen, uint32_t uid);

/* ckv_breach_note() - a charge of @slot was refused: a line, or one more that is suppressed */
void ckv_breach_note(struct ckv_tenant *tenant, enum ckv_slot slot, uint64_t more);

/* ckv_breach_settle() - something of @slot was given back: below half the next refusal is news again */
void ckv_breach_settle(struct ckv_tenant *tenant, enum ckv_slot slot);

/* ckv_breach_stranger() - a process that the endpoint does not list was turned away */
void ckv_breach_stranger(struct ckv_endpoint *endpoint, uint32_t uid, uint32_t gid, uint32_t pid);

/**
 * ckv_breach_foreign() - a session token came from where it does not belong
 * @seen:  of the session
 * @owner: user id of the session
 * @endpoint, @uid, @pid: where it came from
 */
void ckv_breach_foreign(struct ckv_seen *seen, uint32_t owner, const struct ckv_endpoint *endpoint, uint32_t uid, uint32_t pid);

/* ckv_slot_to_string() - "MAPPED_BYTES" */
const char *ckv_slot_to_string(enum ckv_slot slot);

#endif
