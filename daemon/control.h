/*
 * The control page of a side connection (proto/control.h): memory of the
 * client that the core maps, to say there how far each request has come.
 *
 * The page is output only.  Numbers that matter are kept here; of what a slot
 * holds the core reads its word, and whoever repairs reads all of it once,
 * into memory of its own (daemon/repair_slot.h).  A client that scribbles on
 * its page harms itself.
 *
 * A page lives as long as its connection and the requests that use its slots.
 */
#ifndef CKV_DAEMON_CONTROL_H
#define CKV_DAEMON_CONTROL_H

#include "daemon/tenant.h"
#include "proto/control.h"
#include "proto/status.h"

#include <stdbool.h>
#include <stdint.h>

struct ckv_control;
struct ckv_request;

/**
 * ckv_control_open() - take over a page that came with ATTACH: judge it, charge for it (MAPPED_BYTES), map it, write boot id
 * and heartbeat, and go on beating
 * @fd:         *NOT* consumed, and not needed afterwards
 * @slots:      as ATTACH says, like @kept_bytes
 * @ret_control: one reference; written only with OK
 *
 * Return: CKV_CODE_OK, or why not: INVALID_ARGUMENT (slots, kept_bytes or the header), OUT_OF_RANGE (its size),
 * HANDLE_INVALID, NOT_SEALED, SPARSE, PERMISSION (it cannot be written to), QUOTA, NO_MEMORY.
 */
enum ckv_code ckv_control_open(struct ckv_daemon *daemon, struct ckv_tenant *tenant, int fd, uint32_t slots, uint32_t kept_bytes,
                               struct ckv_control **ret_control);

/* ckv_control_ref() - one more reference. Return: @control. */
struct ckv_control *ckv_control_ref(struct ckv_control *control);

/* ckv_control_unref() - the last one unmaps and gives the charge back; NULL is fine. Return: NULL. */
struct ckv_control *ckv_control_unref(struct ckv_control *control);

/* ckv_control_owned() - does the page say that it is this daemon's? Another one that it was attached to later says its own. */
bool ckv_control_owned(const struct ckv_control *control);

/* What a request holds of a page: one slot. Zeroed: nothing. */
struct ckv_claim {
        struct ckv_control *control;    /* one reference */
        uint32_t index;                 /* number on the wire - 1 */
        uint32_t use;                   /* upper half of its word */
        struct ckv_control_slot *page;  /* the slot itself, shared with the client */
        uint8_t *kept;                  /* its kept area, shared too */
        uint32_t kept_bytes;            /* of the area */
        uint32_t phase;                 /* that the word has, as far as the core changed it */
};

enum { _CKV_CONTROL_E_SUCCESS, CKV_CONTROL_E_NO_SLOT, CKV_CONTROL_E_BUSY };

/**
 * ckv_claim_take() - hold a slot; nothing on the page changes
 * @number: 1 ..
 * @owner:  cancelled when the client swaps the word to CANCELLED
 *
 * Return: 0, CKV_CONTROL_E_NO_SLOT (the page has no such slot), CKV_CONTROL_E_BUSY (another request holds it).
 */
int ckv_claim_take(struct ckv_claim *claim, struct ckv_control *control, uint32_t number, struct ckv_request *owner);

/* ckv_claim_release() - let it go; fine on a zeroed one */
void ckv_claim_release(struct ckv_claim *claim);

/* ckv_claim_word() - the word as it is now */
uint64_t ckv_claim_word(const struct ckv_claim *claim);

/**
 * ckv_claim_swap() - from claim->phase to @phase, if the word is still what the core thinks
 *
 * All that was written to the slot before is seen by whoever sees the new word. Return: false: the client changed the word,
 * which is how it cancels; nothing was changed.
 */
bool ckv_claim_swap(struct ckv_claim *claim, uint32_t phase);

/* ckv_control_refuse() - a request was refused before it held its slot: SUBMITTED of that use becomes FAILED, with the code */
void ckv_control_refuse(struct ckv_control *control, uint32_t number, uint32_t use, uint32_t code);

#endif
