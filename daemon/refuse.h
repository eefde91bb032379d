/*
 * Refusing a request in one expression: fill in the status, return false.
 */
#ifndef CKV_DAEMON_REFUSE_H
#define CKV_DAEMON_REFUSE_H

#include "daemon/tenant.h"
#include "proto/status.h"

#include <stdbool.h>

enum { CKV_RETRY_MS = 10 };     /* suggested wait where something of the tenant's own must end first */

/* ckv_refuse() - see ckv_status_set(). Return: false, always. */
static inline bool ckv_refuse(struct ckv_record_status *status, enum ckv_code code, enum ckv_field field, enum ckv_detail detail,
                              uint64_t arg0, uint64_t arg1, uint64_t arg2) {
        ckv_status_set(status, code, field, detail, arg0, arg1, arg2);
        return false;
}

/* ckv_refuse_at() - the same with the indices of the field's brackets */
static inline bool ckv_refuse_at(struct ckv_record_status *status, enum ckv_code code, enum ckv_field field, uint32_t index0,
                                 uint32_t index1, enum ckv_detail detail, uint64_t arg0, uint64_t arg1, uint64_t arg2) {
        ckv_status_set(status, code, field, detail, arg0, arg1, arg2);
        status->index[0] = (uint16_t)index0;
        status->index[1] = (uint16_t)index1;
        return false;
}

/*
 * ckv_refuse_quota() - QUOTA with the slot, what is used of it, what could be, and what more was asked for; the sentence says
 * whether that is the user's own maximum, what one user alone may have, or its share.  Return: false, always.
 */
static inline bool ckv_refuse_quota(struct ckv_record_status *status, const struct ckv_tenant *tenant, enum ckv_slot slot,
                                    uint64_t more, enum ckv_field field) {
        bool own = more > tenant->limit[slot] || tenant->used[slot] > tenant->limit[slot] - more;
        enum ckv_detail detail = own ? CKV_D_QUOTA : ckv_tenant_alone(tenant, slot) ? CKV_D_QUOTA_ALONE : CKV_D_QUOTA_SHARE;

        ckv_status_set(status, CKV_CODE_QUOTA, field, detail, tenant->used[slot],
                       own ? tenant->limit[slot] : ckv_tenant_most(tenant, slot), more);
        status->slot = slot == CKV_SLOT_FILES ? CKV_SLOT_REGIONS : slot == CKV_SLOT_DEVICE_BYTES ? CKV_SLOT_MAPPED_BYTES : slot;
        status->retry_after_ms = slot == CKV_SLOT_REQUESTS || slot == CKV_SLOT_QUEUED_BYTES ? CKV_RETRY_MS : 0;
        return false;
}

/* ckv_refuse_cancelled() - the client did not want it any more. Return: false. */
static inline bool ckv_refuse_cancelled(struct ckv_record_status *ret_status) {
        return ckv_refuse(ret_status, CKV_CODE_CANCELLED, CKV_F_NONE, CKV_D_CANCELLED, 0, 0, 0);
}

#endif
