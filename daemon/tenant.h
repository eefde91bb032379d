/*
 * Tenants and what they may hold.  A tenant is a user id; everything that a
 * tenant can make grow is paid for by a charge embedded in the thing itself,
 * so that a release cannot be forgotten.  When the last thing of a tenant goes
 * the tenant goes, and all its slots must be back at zero.
 */
#ifndef CKV_DAEMON_TENANT_H
#define CKV_DAEMON_TENANT_H

#include "base/hash.h"
#include "daemon/device_time.h"

#include <stdbool.h>
#include <stdint.h>

struct ckv_daemon;

/* Numbers of enum Slot in chunkkv.proto, and behind them what is counted but has no name there. */
enum ckv_slot {
        CKV_SLOT_NONE, CKV_SLOT_CONNECTIONS, CKV_SLOT_SESSIONS, CKV_SLOT_REGIONS, CKV_SLOT_MAPPED_BYTES, CKV_SLOT_REQUESTS,
        CKV_SLOT_QUEUED_BYTES, CKV_SLOT_FDS, CKV_SLOT_DEVICE_TIME,
        CKV_SLOT_FILES,                 /* descriptors behind mapped regions; told to clients as REGIONS */
        CKV_SLOT_DEVICE_BYTES,          /* memory of the device that is open; told to clients with MAPPED_BYTES */
        _CKV_SLOT_N,
};

/* A slot that is used up: one line in the log, and then a count. */
struct ckv_breach {
        bool logged;                    /* until the slot falls below half of @used */
        uint64_t used;                  /* when it was refused first */
        uint64_t last_nsec;             /* when the last line was written; 0: never */
        uint64_t suppressed;            /* refusals without a line since then */
};

struct ckv_evictable;

struct ckv_tenant {
        struct ckv_daemon *daemon;
        uint32_t uid;
        uint32_t refs;
        uint64_t used[_CKV_SLOT_N];     /* DEVICE_TIME: always 0, see device_time */
        uint64_t limit[_CKV_SLOT_N];    /* this user's own maxima */
        struct ckv_breach breaches[_CKV_SLOT_N];
        struct ckv_evictable *evictables;       /* list, oldest first */
        uint64_t evictable_bytes;               /* all of them */
        struct ckv_device_time device_time;     /* slot DEVICE_TIME; of daemon/engine.c, as are has_account and account_next */
        uint32_t closing;               /* descriptors of unknown kind that daemon/closer.c has */
        bool has_account;
        struct ckv_tenant *account_next;
        UT_hash_handle hh;              /* daemon->tenants, by uid */
};

/* What a thing has taken of one slot; zeroed = nothing. Not movable in memory only in the sense of copying: one owner. */
struct ckv_charge {
        struct ckv_tenant *tenant;      /* referenced while the charge is open */
        enum ckv_slot slot;
        uint64_t amount;
};

enum { _CKV_TENANT_E_SUCCESS, CKV_TENANT_E_QUOTA };

/* ckv_tenant_ref() - the tenant of @uid, made on first use; one reference for the caller. Return: 0 or -ENOMEM. */
int ckv_tenant_ref(struct ckv_daemon *daemon, uint32_t uid, struct ckv_tenant **ret_tenant);

/* ckv_tenant_unref() - give a reference back; the last one frees, and asserts that all slots are empty. Return: NULL. */
struct ckv_tenant *ckv_tenant_unref(struct ckv_tenant *tenant);

/* ckv_tenants_set_limits() - the limits in force, which have changed, to all tenants there are */
void ckv_tenants_set_limits(struct ckv_daemon *daemon);

/*
 * Something that a tenant holds only because there is room: it is charged to QUEUED_BYTES and makes way, oldest first, when
 * a charge of that slot would fail for the user's own maximum.  Embedded in what it pays for.
 */
struct ckv_evictable {
        struct ckv_evictable *prev, *next;      /* tenant->evictables */
        struct ckv_charge charge;
        void (*evict)(struct ckv_evictable *evictable);
};

/**
 * ckv_tenant_most() - how much of a slot a tenant could hold at most now
 *
 * The smaller of its own maximum and its share of what all tenants draw from, and at least what it holds. Not for
 * DEVICE_TIME.
 */
uint64_t ckv_tenant_most(const struct ckv_tenant *tenant, enum ckv_slot slot);

/* ckv_tenant_alone() - does nobody else hold anything of a slot that all tenants draw from? */
bool ckv_tenant_alone(const struct ckv_tenant *tenant, enum ckv_slot slot);

/**
 * ckv_charge_init() - take @amount of @slot from a tenant
 * @charge: zeroed or deinitialised before
 *
 * A refusal is logged once for each tenant and slot, until the slot falls below half.  QUEUED_BYTES: what is evictable of
 * this tenant goes first.
 *
 * Return: 0, or CKV_TENANT_E_QUOTA with nothing taken.
 */
int ckv_charge_init(struct ckv_charge *charge, struct ckv_tenant *tenant, enum ckv_slot slot, uint64_t amount);

/* ckv_charge_force() - the same for what is there already and cannot be refused: limits are passed if need be */
void ckv_charge_force(struct ckv_charge *charge, struct ckv_tenant *tenant, enum ckv_slot slot, uint64_t amount);

/* ckv_charge_resize() - an open charge to another amount, more or less. Return: as ckv_charge_init(), the old amount stays. */
int ckv_charge_resize(struct ckv_charge *charge, uint64_t amount);

/* ckv_charge_deinit() - give back what was taken; fine on a zeroed or deinitialised charge */
void ckv_charge_deinit(struct ckv_charge *charge);

/* ckv_charge_move() - the charge @from is now that of @to, which was zeroed or deinitialised before */
void ckv_charge_move(struct ckv_charge *from, struct ckv_charge *to);

/**
 * ckv_evictable_init() - charge QUEUED_BYTES for something that may go at any time
 * @evictable: zeroed or deinitialised before; the newest from now on
 * @evict:     called to free what is paid for; must end in ckv_evictable_deinit(), and charge nothing
 *
 * Older ones of the tenant make way. A refusal is not logged: it is no fault of the tenant.
 *
 * Return: 0, or CKV_TENANT_E_QUOTA: it cannot be held even alone.
 */
int ckv_evictable_init(struct ckv_evictable *evictable, struct ckv_tenant *tenant, uint64_t bytes,
                       void (*evict)(struct ckv_evictable *evictable));

/* ckv_evictable_deinit() - out of the list, the charge back; fine on a zeroed or deinitialised one */
void ckv_evictable_deinit(struct ckv_evictable *evictable);

#endif
