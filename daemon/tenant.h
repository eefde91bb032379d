/*
 * Tenants and what they may hold.  A tenant is a user id; everything that a
 * tenant can make grow is paid for by a charge embedded in the thing itself,
 * so that a release cannot be forgotten.  When the last thing of a tenant goes
 * the tenant goes, and all its slots must be back at zero.
 */
#ifndef CKV_DAEMON_TENANT_H
#define CKV_DAEMON_TENANT_H

#include "base/hash.h"

#include <stdint.h>

struct ckv_daemon;

/* Numbers of enum Slot in chunkkv.proto. */
enum ckv_slot {
        CKV_SLOT_NONE, CKV_SLOT_CONNECTIONS, CKV_SLOT_SESSIONS, CKV_SLOT_REGIONS, CKV_SLOT_MAPPED_BYTES, CKV_SLOT_REQUESTS,
        CKV_SLOT_QUEUED_BYTES, CKV_SLOT_FDS, CKV_SLOT_DEVICE_TIME, _CKV_SLOT_N,
};

struct ckv_tenant {
        struct ckv_daemon *daemon;
        uint32_t uid;
        uint32_t refs;
        uint64_t used[_CKV_SLOT_N];
        uint64_t limit[_CKV_SLOT_N];
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

/**
 * ckv_charge_init() - take @amount of @slot from a tenant
 * @charge: zeroed or deinitialised before
 *
 * Return: 0, or CKV_TENANT_E_QUOTA with nothing taken.
 */
int ckv_charge_init(struct ckv_charge *charge, struct ckv_tenant *tenant, enum ckv_slot slot, uint64_t amount);

/* ckv_charge_deinit() - give back what was taken; fine on a zeroed or deinitialised charge */
void ckv_charge_deinit(struct ckv_charge *charge);

#endif
