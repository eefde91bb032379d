/*
 * A control page as a client makes it, attached to the core of
 * tests/support_core.h.
 */
#ifndef CKV_TESTS_SUPPORT_PAGE_H
#define CKV_TESTS_SUPPORT_PAGE_H

#include "proto/control.h"
#include "tests/support_core.h"

#include <stdint.h>

enum { PAGE_SLOTS = 2, PAGE_KEPT = 8192 };

struct page {
        struct ckv_control_header *header;      /* mapped: what the client sees */
        struct ckv_control_slot *slots;
        uint8_t *kept;                          /* area of slot 1 */
        uint64_t size;
        int fd;
};

/* page_attach() - a new page, or one that there is, becomes the session's; the core gets an event loop if it has none */
void page_attach(struct core *core, struct page *page);

/* page_detach() - as when the side connection closes; the page stays as it is */
void page_detach(struct core *core);

/* page_free() - detach, and let the client's side go */
void page_free(struct core *core, struct page *page);

/* page_submit() - as the client does before it sends: slot 1, a new use; @ask names them */
void page_submit(struct page *page, struct core_ask *ask);

/* page_phase() - of slot 1 */
uint32_t page_phase(const struct page *page);

#endif
