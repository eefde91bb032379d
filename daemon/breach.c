/*
 * Saying once what happens a thousand times.
 *
 * A tenant at its limit is refused as often as it asks, and a client that
 * retries asks a hundred times a second.  The first refusal is news.  The next
 * one is again when the slot has fallen below half of what was in use then,
 * but a user that goes up and down on purpose gets a line a minute at most,
 * and all users together CKV_LOG_BURST in ten seconds.
 *
 * REQUESTS is how an engine learns to wait, and no fault at all: its lines are
 * for debugging.
 */
#include "daemon/breach.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/macros.h"
#include "daemon/daemon.h"

#include <inttypes.h>

#define AGAIN_NSEC (60 * CKV_NSEC_PER_SEC)

/* All tenants together, and all strangers. */
static struct ckv_log_rate rate, stranger_rate;

bool ckv_seen_add(struct ckv_seen *seen, uint32_t uid) {
        for (uint32_t i = 0; i < seen->count; i++)
                if (seen->uids[i] == uid)
                        return false;
        seen->uids[seen->next] = uid;
        seen->next = (seen->next + 1) % CKV_ARRAY_SIZE(seen->uids);
        seen->count = CKV_MIN(seen->count + 1, (uint32_t)CKV_ARRAY_SIZE(seen->uids));
        return true;
}

const char *ckv_slot_to_string(enum ckv_slot slot) {
        static const char *const names[] = {
                [CKV_SLOT_NONE] = "NONE", [CKV_SLOT_CONNECTIONS] = "CONNECTIONS", [CKV_SLOT_SESSIONS] = "SESSIONS",
                [CKV_SLOT_REGIONS] = "REGIONS", [CKV_SLOT_MAPPED_BYTES] = "MAPPED_BYTES", [CKV_SLOT_REQUESTS] = "REQUESTS",
                [CKV_SLOT_QUEUED_BYTES] = "QUEUED_BYTES", [CKV_SLOT_FDS] = "FDS", [CKV_SLOT_DEVICE_TIME] = "DEVICE_TIME",
                [CKV_SLOT_FILES] = "FILES", [CKV_SLOT_DEVICE_BYTES] = "DEVICE_BYTES",
        };

        return slot < _CKV_SLOT_N ? names[slot] : "?";
}

void ckv_breach_note(struct ckv_tenant *tenant, enum ckv_slot slot, uint64_t more) {
        struct ckv_breach *breach = &tenant->breaches[slot];
        uint64_t now = ckv_now_nsec(), withheld;

        if (breach->logged || (breach->last_nsec && now - breach->last_nsec < AGAIN_NSEC) || !ckv_log_allowed(&rate, now, &withheld)) {
                breach->suppressed++;
                return;
        }
        ckv_log(slot == CKV_SLOT_REQUESTS ? CKV_LOG_DEBUG : CKV_LOG_NOTICE, QUOTA_REACHED,
                "uid=%" PRIu32 " slot=%s used=%" PRIu64 " limit=%" PRIu64 " most_now=%" PRIu64 " asked=%" PRIu64
                " suppressed=%" PRIu64 " suppressed_of_all=%" PRIu64,
                tenant->uid, ckv_slot_to_string(slot), tenant->used[slot], tenant->limit[slot], ckv_tenant_most(tenant, slot), more,
                breach->suppressed, withheld);
        *breach = (struct ckv_breach){ .logged = true, .used = tenant->used[slot], .last_nsec = now };
}

void ckv_breach_settle(struct ckv_tenant *tenant, enum ckv_slot slot) {
        struct ckv_breach *breach = &tenant->breaches[slot];

        if (breach->logged && (tenant->used[slot] == 0 || tenant->used[slot] < breach->used - breach->used / 2))
                breach->logged = false;
}

void ckv_breach_stranger(struct ckv_endpoint *endpoint, uint32_t uid, uint32_t gid, uint32_t pid) {
        uint64_t suppressed;

        if (ckv_seen_add(&endpoint->strangers, uid) && ckv_log_allowed(&stranger_rate, ckv_now_nsec(), &suppressed))
                ckv_log(CKV_LOG_WARNING, STRANGER, "endpoint=%s uid=%" PRIu32 " gid=%" PRIu32 " pid=%" PRIu32 " suppressed=%" PRIu64,
                        endpoint->name, uid, gid, pid, suppressed);
}

void ckv_breach_foreign(struct ckv_seen *seen, uint32_t owner, const struct ckv_endpoint *endpoint, uint32_t uid, uint32_t pid) {
        uint64_t suppressed;

        if (ckv_seen_add(seen, uid) && ckv_log_allowed(&stranger_rate, ckv_now_nsec(), &suppressed))
                ckv_log(CKV_LOG_WARNING, FOREIGN_TOKEN,
                        "owner=%" PRIu32 " endpoint=%s uid=%" PRIu32 " pid=%" PRIu32 " suppressed=%" PRIu64, owner, endpoint->name, uid,
                        pid, suppressed);
}
