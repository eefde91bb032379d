/*
 * Offers: a descriptor waits between OFFER on the side socket and
 * RegisterRegion on the request socket.  While it waits it is charged to its
 * user (slot FDS), because descriptors are what this process can run out of;
 * after 60 s it is closed.  Offers come in order of time, so the first one is
 * always the next to expire.
 *
 * What is wrong with the memory is said at once, here; the region checks
 * again, since pages can be punched out in between.  What a descriptor of CUDA
 * is only the driver can tell, so it is taken as it is.  A region of device
 * memory may have thousands of them: they are charged like those behind regions
 * (slot FILES), whose limit allows that.
 */
#include "daemon/side_offer.h"

#include "base/clock.h"
#include "base/limits.h"
#include "base/macros.h"
#include "base/random.h"
#include "daemon/closer.h"
#include "daemon/daemon.h"
#include "daemon/memfd_code.h"

#include <string.h>
#include <utlist.h>

struct ckv_side_offer {
        struct ckv_side_offer *prev, *next;
        uint8_t token[16];
        int fd;
        uint32_t kind;
        uint64_t size, expires_nsec;
        struct ckv_charge charge;
};

bool ckv_side_token_equal(const uint8_t a[static 16], const uint8_t b[static 16]) {
        volatile uint8_t different = 0;

        for (int i = 0; i < 16; i++)
                different = (uint8_t)(different | (a[i] ^ b[i]));
        return different == 0;
}

/* offer_remove() - out of the list, charge back; its descriptor is the caller's now */
static int offer_remove(struct ckv_side_offers *offers, struct ckv_side_offer *offer) {
        int fd = offer->fd;

        DL_DELETE(offers->first, offer);
        ckv_charge_deinit(&offer->charge);
        free(offer);
        return fd;
}

/* offer_new() - what can be said against an offer, and a charged one if nothing can. Return: NULL with @ret_code. */
static struct ckv_side_offer *offer_new(struct ckv_tenant *tenant, int fd, uint32_t kind, uint64_t size, enum ckv_code *ret_code) {
        bool vmm = kind == CKV_SIDE_KIND_CUDA_VMM;
        struct ckv_memfd_info info;
        struct ckv_side_offer *offer = NULL;

        if (vmm && !ckv_options_cuda(tenant->daemon->options))
                *ret_code = CKV_CODE_UNSUPPORTED;
        else if ((kind != CKV_SIDE_KIND_MEMFD && !vmm) || size == 0)
                *ret_code = CKV_CODE_INVALID_ARGUMENT;
        else
                *ret_code = vmm ? CKV_CODE_OK : ckv_memfd_code(ckv_memfd_check(fd, size, &info));
        if (*ret_code != CKV_CODE_OK)
                return NULL;
        offer = calloc(1, sizeof(*offer));
        if (!offer || ckv_random(offer->token, sizeof(offer->token)))
                *ret_code = CKV_CODE_NO_MEMORY;
        else if (ckv_charge_init(&offer->charge, tenant, vmm ? CKV_SLOT_FILES : CKV_SLOT_FDS, 1))
                *ret_code = CKV_CODE_QUOTA;
        else
                return offer;
        free(offer);
        return NULL;
}

enum ckv_code ckv_side_offer_add(struct ckv_side_offers *offers, struct ckv_tenant *tenant, int fd, uint32_t kind, uint64_t size,
                                 uint64_t now_nsec, uint8_t ret_token[static 16]) {
        struct ckv_side_offer *offer;
        enum ckv_code code;

        offer = offer_new(tenant, fd, kind, size, &code);
        if (!offer) {
                /* whatever it is: only what was found in order is known to be memory */
                ckv_closer_close_received(tenant, CKV_CLOSER_UNKNOWN, fd);
                return code;
        }
        offer->fd = fd;
        offer->kind = kind;
        offer->size = size;
        offer->expires_nsec = now_nsec + CKV_LIMIT_OFFER_SECONDS * CKV_NSEC_PER_SEC;
        DL_APPEND(offers->first, offer);
        memcpy(ret_token, offer->token, sizeof(offer->token));
        return CKV_CODE_OK;
}

/* offer_close() - out of the list; its descriptor is closed, and the charge goes back after that */
static void offer_close(struct ckv_side_offers *offers, struct ckv_side_offer *offer) {
        DL_DELETE(offers->first, offer);
        ckv_closer_close(offer->charge.tenant->daemon,
                         offer->kind == CKV_SIDE_KIND_CUDA_VMM ? CKV_CLOSER_UNKNOWN : CKV_CLOSER_MEMORY, offer->fd, &offer->charge);
        free(offer);
}

/* find() - the offer of a token, or NULL; what is too old is gone before */
static struct ckv_side_offer *find(struct ckv_side_offers *offers, const uint8_t token[static 16], uint64_t now_nsec) {
        struct ckv_side_offer *offer;

        (void)ckv_side_offers_expire(offers, now_nsec);
        DL_FOREACH(offers->first, offer)
                if (ckv_side_token_equal(offer->token, token))
                        return offer;
        return NULL;
}

bool ckv_side_offer_take(struct ckv_side_offers *offers, const uint8_t token[static 16], uint64_t now_nsec, int *ret_fd,
                         uint32_t *ret_kind, uint64_t *ret_size) {
        struct ckv_side_offer *offer = find(offers, token, now_nsec);

        if (!offer)
                return false;
        *ret_kind = offer->kind;
        *ret_size = offer->size;
        *ret_fd = offer_remove(offers, offer);
        return true;
}

bool ckv_side_offer_withdraw(struct ckv_side_offers *offers, const uint8_t token[static 16], uint64_t now_nsec) {
        struct ckv_side_offer *offer = find(offers, token, now_nsec);

        if (offer)
                offer_close(offers, offer);
        return offer != NULL;
}

uint64_t ckv_side_offers_expire(struct ckv_side_offers *offers, uint64_t now_nsec) {
        while (offers->first && offers->first->expires_nsec <= now_nsec)
                offer_close(offers, offers->first);
        return offers->first ? offers->first->expires_nsec : 0;
}

void ckv_side_offers_clear(struct ckv_side_offers *offers) {
        while (offers->first)
                offer_close(offers, offers->first);
}
