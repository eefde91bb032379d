/*
 * The client's side of a control page: a sealed memfd with a header, slots and
 * kept areas.  The session gets a side connection that is never looked into.
 */
#include "tests/support_page.h"

#include "base/macros.h"

#include <check.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>

static void make(struct page *page) {
        page->size = 4096 + PAGE_SLOTS * PAGE_KEPT;
        page->fd = memfd_create("page", MFD_CLOEXEC | MFD_ALLOW_SEALING);
        ck_assert_int_ge(page->fd, 0);
        ck_assert_int_eq(posix_fallocate(page->fd, 0, (off_t)page->size), 0);
        ck_assert_int_eq(fcntl(page->fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL), 0);
        page->header = mmap(NULL, page->size, PROT_READ | PROT_WRITE, MAP_SHARED, page->fd, 0);
        ck_assert_ptr_ne(page->header, MAP_FAILED);
        *page->header = (struct ckv_control_header){
                .magic = CKV_CONTROL_MAGIC, .version = CKV_CONTROL_VERSION, .slot_bytes = sizeof(struct ckv_control_slot),
                .slots = PAGE_SLOTS, .kept_offset = 4096, .kept_bytes = PAGE_KEPT, .size = page->size,
        };
        page->slots = (void *)(page->header + 1);
        page->kept = (uint8_t *)page->header + 4096;
}

void page_attach(struct core *core, struct page *page) {
        if (!page->header)
                make(page);
        if (!core->daemon.event)
                ck_assert_int_ge(sd_event_new(&core->daemon.event), 0);
        core->session.tenant->limit[CKV_SLOT_MAPPED_BYTES] = 1 << 20;
        core->session.side = (struct ckv_side_conn *)&core->session; /* never looked into */
        ck_assert_int_eq(ckv_control_open(&core->daemon, core->session.tenant, page->fd, PAGE_SLOTS, PAGE_KEPT, &core_control),
                         CKV_CODE_OK);
}

void page_detach(struct core *core) {
        core->session.side = NULL;
        core_control = ckv_control_unref(core_control);
}

void page_free(struct core *core, struct page *page) {
        page_detach(core);
        core->daemon.event = sd_event_unref(core->daemon.event);
        (void)munmap(page->header, page->size);
        (void)close(page->fd);
        *page = (struct page){ 0 };
}

void page_submit(struct page *page, struct core_ask *ask) {
        uint32_t use = (uint32_t)(page->slots[0].word >> 32) + 1;

        page->slots[0].word = ckv_control_word(use, CKV_PHASE_SUBMITTED);
        ask->body.control_slot = 1;
        ask->body.control_use = use;
}

uint32_t page_phase(const struct page *page) {
        return (uint32_t)page->slots[0].word;
}
