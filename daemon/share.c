/*
 * The rule by which users share one resource.
 *
 * A fixed maximum for each user either wastes what nobody else wants or lets a
 * few users at their maximum leave nothing.  dbus-broker's rule does neither,
 * but it stops a lone user at half of the whole, which an engine that registers
 * all the memory there is cannot live with.  So the rule here governs the last
 * part only, the reserve.  Whoever holds more than the reserve has gets nothing
 * of it: the rule counts all that a tenant holds.
 *
 * Why something is always left (n >= 1, more >= 1, held >= 0): what is granted
 * before the reserve leaves the reserve; what is granted by the rule leaves
 * remaining - more >= n * (held + more) > 0.
 */
#include "daemon/share.h"

#include "base/macros.h"

#include <assert.h>

/* holders_with() - n of the rule: tenants that hold a part, the one that asks among them */
static uint64_t holders_with(const struct ckv_share *share, uint64_t held) {
        return (uint64_t)share->holders + (held == 0);
}

bool ckv_share_allows(const struct ckv_share *share, uint64_t held, uint64_t more) {
        uint64_t remaining, wanted, product;

        if (share->total == 0 || more == 0)
                return true;
        /* a total that was lowered may lie below what is in use */
        remaining = share->total - CKV_MIN(share->used, share->total);
        if (more > remaining)
                return false;
        if (remaining - more >= share->reserve)
                return true;
        if (__builtin_add_overflow(held, more, &wanted) || __builtin_mul_overflow(holders_with(share, held) + 1, wanted, &product))
                return false;
        return product - held <= remaining;
}

uint64_t ckv_share_most(const struct ckv_share *share, uint64_t held) {
        uint64_t remaining, first, ruled;

        if (share->total == 0)
                return UINT64_MAX;
        remaining = share->total - CKV_MIN(share->used, share->total);
        first = held + remaining - CKV_MIN(share->reserve, remaining);
        ruled = (remaining + held) / (holders_with(share, held) + 1);
        return CKV_MAX(first, ruled);
}

void ckv_share_take(struct ckv_share *share, uint64_t held, uint64_t more) {
        share->used += more;
        share->holders += held == 0 && more > 0;
}

void ckv_share_give(struct ckv_share *share, uint64_t held, uint64_t less) {
        assert(share->used >= less && held >= less);
        share->used -= less;
        share->holders -= held == less && less > 0;
}
