/*
 * Tenants and charges.  The unit of accounting is the user id that the kernel
 * reports, never the connection: a process can open as many connections as it
 * likes without getting more.  A charge is a struct embedded in the thing it
 * pays for and holds a reference to the tenant, so a tenant lives exactly as
 * long as something of it does.
 *
 * Limits here are maxima for each slot, the same for every tenant.  One that
 * falls below what a tenant holds takes nothing away, it only gives no more.
 * What is not done here: dynamic shares between tenants, and time on the device.
 */
#include "daemon/tenant.h"

#include "base/macros.h"
#include "daemon/daemon.h"

#include <assert.h>
#include <errno.h>

static void set_limits(struct ckv_tenant *tenant) {
        const struct ckv_options *options = tenant->daemon->options;

        tenant->limit[CKV_SLOT_CONNECTIONS] = options->connections;
        tenant->limit[CKV_SLOT_SESSIONS] = options->sessions;
        tenant->limit[CKV_SLOT_REGIONS] = options->regions;
        tenant->limit[CKV_SLOT_MAPPED_BYTES] = tenant->daemon->mapped_bytes;
        tenant->limit[CKV_SLOT_REQUESTS] = options->in_flight;
        tenant->limit[CKV_SLOT_QUEUED_BYTES] = options->queued_bytes;
        tenant->limit[CKV_SLOT_FDS] = options->fds;
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

int ckv_charge_init(struct ckv_charge *charge, struct ckv_tenant *tenant, enum ckv_slot slot, uint64_t amount) {
        ckv_assert_loop_thread();
        assert(!charge->tenant);
        if (amount > tenant->limit[slot] || tenant->used[slot] > tenant->limit[slot] - amount)
                return CKV_TENANT_E_QUOTA;
        tenant->used[slot] += amount;
        tenant->refs++;
        *charge = (struct ckv_charge){ .tenant = tenant, .slot = slot, .amount = amount };
        return 0;
}

void ckv_charge_deinit(struct ckv_charge *charge) {
        struct ckv_tenant *tenant = charge->tenant;

        if (!tenant)
                return;
        ckv_assert_loop_thread();
        assert(tenant->used[charge->slot] >= charge->amount);
        tenant->used[charge->slot] -= charge->amount;
        *charge = (struct ckv_charge){ 0 };
        ckv_tenant_unref(tenant);
}
