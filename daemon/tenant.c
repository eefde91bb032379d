/*
 * Tenants and charges.  The unit of accounting is the user id that the kernel
 * reports, never the connection: a process can open as many connections as it
 * likes without getting more.  A charge is a struct embedded in the thing it
 * pays for and holds a reference to the tenant, so a tenant lives exactly as
 * long as something of it does.
 *
 * Limits here are maxima for each slot, the same for every tenant.  One that
 * falls below what a tenant holds takes nothing away, it only gives no more.
 * Where tenants draw from one thing that can run out, daemon/share.c has a say
 * as well.  What is not done here: time on the device (daemon/engine.c).
 *
 * A charge that fails may first let go of what the same tenant only keeps for
 * convenience; another tenant's conveniences are never touched.
 */
#include "daemon/tenant.h"

#include "base/macros.h"
#include "daemon/breach.h"
#include "daemon/daemon.h"

#include <assert.h>
#include <errno.h>
#include <utlist.h>

static void set_limits(struct ckv_tenant *tenant) {
        const struct ckv_options *options = tenant->daemon->options;

        tenant->limit[CKV_SLOT_CONNECTIONS] = options->connections;
        tenant->limit[CKV_SLOT_SESSIONS] = options->sessions;
        tenant->limit[CKV_SLOT_REGIONS] = options->regions;
        tenant->limit[CKV_SLOT_MAPPED_BYTES] = tenant->daemon->mapped_bytes;
        tenant->limit[CKV_SLOT_REQUESTS] = options->in_flight;
        tenant->limit[CKV_SLOT_QUEUED_BYTES] = options->queued_bytes;
        tenant->limit[CKV_SLOT_FDS] = options->fds;
        tenant->limit[CKV_SLOT_FILES] = options->regions;
        tenant->limit[CKV_SLOT_DEVICE_BYTES] = options->mapped_bytes ? options->mapped_bytes : UINT64_MAX;
}

void ckv_tenants_set_limits(struct ckv_daemon *daemon) {
        ckv_assert_loop_thread();
        for (struct ckv_tenant *tenant = daemon->tenants; tenant; tenant = tenant->hh.next)
                set_limits(tenant);
}

int ckv_tenant_ref(struct ckv_daemon *daemon, uint32_t uid, struct ckv_tenant **ret_tenant) {
        struct ckv_tenant *tenant;

        ckv_assert_loop_thread();
        HASH_FIND(hh, daemon->tenants, &uid, sizeof(uid), tenant);
        if (!tenant) {
                tenant = calloc(1, sizeof(*tenant));
                if (!tenant)
                        return -ENOMEM;
                tenant->daemon = daemon;
                tenant->uid = uid;
                set_limits(tenant);
                HASH_ADD(hh, daemon->tenants, uid, sizeof(uid), tenant);
                if (!CKV_HASH_ADDED(tenant)) {
                        free(tenant);
                        return -ENOMEM;
                }
        }
        tenant->refs++;
        *ret_tenant = tenant;
        return 0;
}

struct ckv_tenant *ckv_tenant_unref(struct ckv_tenant *tenant) {
        if (!tenant)
                return NULL;
        ckv_assert_loop_thread();
        assert(tenant->refs > 0);
        if (--tenant->refs > 0)
                return NULL;
        for (int slot = 0; slot < _CKV_SLOT_N; slot++)
                assert(tenant->used[slot] == 0);
        HASH_DELETE(hh, tenant->daemon->tenants, tenant);
        free(tenant);
        return NULL;
}

uint64_t ckv_tenant_most(const struct ckv_tenant *tenant, enum ckv_slot slot) {
        uint64_t share = ckv_share_most(&tenant->daemon->shares[slot], tenant->used[slot]);

        return CKV_MAX(CKV_MIN(tenant->limit[slot], share), tenant->used[slot]);
}

bool ckv_tenant_alone(const struct ckv_tenant *tenant, enum ckv_slot slot) {
        return tenant->daemon->shares[slot].used <= tenant->used[slot];
}

/* within_limit() - would @more fit the user's own maximum, if @less were given back first? */
static bool within_limit(const struct ckv_tenant *tenant, enum ckv_slot slot, uint64_t more, uint64_t less) {
        return more <= tenant->limit[slot] && tenant->used[slot] - less <= tenant->limit[slot] - more;
}

/* take() - count @more of a slot, if both the tenant's maximum and its share allow it */
static bool take(struct ckv_tenant *tenant, enum ckv_slot slot, uint64_t more) {
        struct ckv_share *share = &tenant->daemon->shares[slot];

        if (!within_limit(tenant, slot, more, 0) || !ckv_share_allows(share, tenant->used[slot], more))
                return false;
        ckv_share_take(share, tenant->used[slot], more);
        tenant->used[slot] += more;
        return true;
}

/* take_evicting() - the same; what the tenant holds only because there was room goes, oldest first, where that can help */
static bool take_evicting(struct ckv_tenant *tenant, enum ckv_slot slot, uint64_t more) {
        if (take(tenant, slot, more))
                return true;
        if (slot != CKV_SLOT_QUEUED_BYTES || !within_limit(tenant, slot, more, tenant->evictable_bytes))
                return false;
        while (tenant->evictables) {
                tenant->evictables->evict(tenant->evictables);
                if (take(tenant, slot, more))
                        return true;
        }
        return false;
}

static void give(struct ckv_tenant *tenant, enum ckv_slot slot, uint64_t less) {
        assert(tenant->used[slot] >= less);
        ckv_share_give(&tenant->daemon->shares[slot], tenant->used[slot], less);
        tenant->used[slot] -= less;
        ckv_breach_settle(tenant, slot);
}

/* open_charge() - the amount is taken; the charge holds the tenant from now on */
static void open_charge(struct ckv_charge *charge, struct ckv_tenant *tenant, enum ckv_slot slot, uint64_t amount) {
        tenant->refs++;
        *charge = (struct ckv_charge){ .tenant = tenant, .slot = slot, .amount = amount };
}

int ckv_charge_init(struct ckv_charge *charge, struct ckv_tenant *tenant, enum ckv_slot slot, uint64_t amount) {
        ckv_assert_loop_thread();
        assert(!charge->tenant);
        if (!take_evicting(tenant, slot, amount)) {
                ckv_breach_note(tenant, slot, amount);
                return CKV_TENANT_E_QUOTA;
        }
        open_charge(charge, tenant, slot, amount);
        return 0;
}

void ckv_charge_force(struct ckv_charge *charge, struct ckv_tenant *tenant, enum ckv_slot slot, uint64_t amount) {
        ckv_assert_loop_thread();
        assert(!charge->tenant);
        ckv_share_take(&tenant->daemon->shares[slot], tenant->used[slot], amount);
        tenant->used[slot] += amount;
        open_charge(charge, tenant, slot, amount);
}

int ckv_charge_resize(struct ckv_charge *charge, uint64_t amount) {
        ckv_assert_loop_thread();
        assert(charge->tenant);
        if (amount <= charge->amount) {
                give(charge->tenant, charge->slot, charge->amount - amount);
        } else if (!take_evicting(charge->tenant, charge->slot, amount - charge->amount)) {
                ckv_breach_note(charge->tenant, charge->slot, amount - charge->amount);
                return CKV_TENANT_E_QUOTA;
        }
        charge->amount = amount;
        return 0;
}

void ckv_charge_deinit(struct ckv_charge *charge) {
        struct ckv_tenant *tenant = charge->tenant;

        if (!tenant)
                return;
        ckv_assert_loop_thread();
        give(tenant, charge->slot, charge->amount);
        *charge = (struct ckv_charge){ 0 };
        ckv_tenant_unref(tenant);
}

void ckv_charge_move(struct ckv_charge *from, struct ckv_charge *to) {
        assert(!to->tenant);
        *to = *from;
        *from = (struct ckv_charge){ 0 };
}

int ckv_evictable_init(struct ckv_evictable *evictable, struct ckv_tenant *tenant, uint64_t bytes,
                       void (*evict)(struct ckv_evictable *evictable)) {
        ckv_assert_loop_thread();
        assert(!evictable->charge.tenant);
        if (!take_evicting(tenant, CKV_SLOT_QUEUED_BYTES, bytes))
                return CKV_TENANT_E_QUOTA;
        open_charge(&evictable->charge, tenant, CKV_SLOT_QUEUED_BYTES, bytes);
        evictable->evict = evict;
        DL_APPEND(tenant->evictables, evictable);
        tenant->evictable_bytes += bytes;
        return 0;
}

void ckv_evictable_deinit(struct ckv_evictable *evictable) {
        struct ckv_tenant *tenant = evictable->charge.tenant;

        if (!tenant)
                return;
        ckv_assert_loop_thread();
        DL_DELETE(tenant->evictables, evictable);
        tenant->evictable_bytes -= evictable->charge.amount;
        ckv_charge_deinit(&evictable->charge);
        *evictable = (struct ckv_evictable){ 0 };
}
