/*
 * What all tenants draw from together, and how much of it one of them may
 * take.  Pure arithmetic: no tenant, no clock, nothing that can fail but by
 * saying no.
 */
#ifndef CKV_DAEMON_SHARE_H
#define CKV_DAEMON_SHARE_H

#include <stdbool.h>
#include <stdint.h>

/* One resource of the daemon. Zeroed: it has no bound of its own, and a tenant's own maximum is all there is. */
struct ckv_share {
        uint64_t total;         /* what there is; 0: no bound */
        uint64_t reserve;       /* the last part of it, <= total, where the dynamic rule decides; before it, who comes first */
        uint64_t used;          /* by all tenants */
        uint32_t holders;       /* tenants that hold some */
};

/**
 * ckv_share_allows() - may a tenant that holds @held have @more?
 *
 * Inside total - reserve it may.  Beyond, the rule of dbus-broker (util/user.c): while
 * (n + 1) * (held + more) - held <= remaining, where n counts the tenants that hold a part, the one that asks included.
 * So each gets between 1/n and 1/n^2 of the reserve, and something is always left for a newcomer.
 *
 * Return: false also where the arithmetic would overflow. Nothing is taken: see ckv_share_take().
 */
bool ckv_share_allows(const struct ckv_share *share, uint64_t held, uint64_t more);

/* ckv_share_most() - how much a tenant that holds @held could hold at most now; UINT64_MAX without a bound */
uint64_t ckv_share_most(const struct ckv_share *share, uint64_t held);

/* ckv_share_take() - a tenant that held @held now holds @more in addition; allowed before */
void ckv_share_take(struct ckv_share *share, uint64_t held, uint64_t more);

/* ckv_share_give() - a tenant that held @held gives @less of it back */
void ckv_share_give(struct ckv_share *share, uint64_t held, uint64_t less);

#endif
