/*
 * Descriptors that one side connection has offered and no region has taken.
 */
#ifndef CKV_DAEMON_SIDE_OFFER_H
#define CKV_DAEMON_SIDE_OFFER_H

#include "daemon/tenant.h"
#include "proto/side.h"
#include "proto/status.h"

#include <stdbool.h>
#include <stdint.h>

struct ckv_side_offer;

/* The oldest offer is the first. Zeroed = empty. */
struct ckv_side_offers {
        struct ckv_side_offer *first;
};

/**
 * ckv_side_offer_add() - look at an offered descriptor, charge for it, keep it
 * @fd:        consumed, in any case
 * @size:      bytes, as declared
 * @now_nsec:  it waits until CKV_LIMIT_OFFER_SECONDS after this
 * @ret_token: names the offer, written only with OK
 *
 * Return: CKV_CODE_OK, or why not: UNSUPPORTED, INVALID_ARGUMENT (size 0 or unknown kind), HANDLE_INVALID, NOT_SEALED,
 * OUT_OF_RANGE (another size), SPARSE, QUOTA, NO_MEMORY.
 */
enum ckv_code ckv_side_offer_add(struct ckv_side_offers *offers, struct ckv_tenant *tenant, int fd, uint32_t kind, uint64_t size,
                                 uint64_t now_nsec, uint8_t ret_token[static 16]);

/* ckv_side_offer_take() - find an offer by token and take it out; outputs as ckv_side_take(). Return: false if it is not there. */
bool ckv_side_offer_take(struct ckv_side_offers *offers, const uint8_t token[static 16], uint64_t now_nsec, int *ret_fd,
                         uint32_t *ret_kind, uint64_t *ret_size);

/* ckv_side_offer_withdraw() - find an offer by token and close it. Return: false if it is not there. */
bool ckv_side_offer_withdraw(struct ckv_side_offers *offers, const uint8_t token[static 16], uint64_t now_nsec);

/* ckv_side_offers_expire() - close what waited too long. Return: when the next one will have, or 0 if none waits. */
uint64_t ckv_side_offers_expire(struct ckv_side_offers *offers, uint64_t now_nsec);

/* ckv_side_offers_clear() - close everything and give the charges back */
void ckv_side_offers_clear(struct ckv_side_offers *offers);

/* ckv_side_token_equal() - compare two tokens in a time that does not depend on where they differ */
bool ckv_side_token_equal(const uint8_t a[static 16], const uint8_t b[static 16]);

#endif
