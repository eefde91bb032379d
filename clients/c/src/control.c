/*
 * The control page (proto/control.h): made here, sent with ATTACH, kept for
 * the life of the client, through any number of daemons.
 *
 * A slot belongs to one job at a time.  Of its word this side swaps an ended
 * phase to {use + 1, SUBMITTED}, and SUBMITTED, SCORING or SELECTED to
 * CANCELLED: whoever wins that swap against the daemon's to COMMITTING decides
 * whether anything is written.  Once the daemon is dead the word is ours alone.
 */
#include "clients/c/src/control.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

static uint32_t phase_of(uint64_t word) {
        return (uint32_t)word;
}

static bool has_ended(uint64_t word) {
        uint32_t phase = phase_of(word);

        return phase == CHUNKKV_PHASE_NONE || (phase >= CHUNKKV_PHASE_DONE && phase <= CHUNKKV_PHASE_FAILED);
}

int ckv__page_create(const struct chunkkv_options *options, struct ckv__page *ret_page, struct chunkkv_error *ret_error) {
        uint32_t pages = options->kept_pages ? options->kept_pages : CKV__KEPT_PAGES_DEFAULT;
        struct ckv__page page = {
                .slots = options->control_slots ? options->control_slots : CKV__SLOTS_MAX,
                .kept_bytes = pages * CKV_CONTROL_KEPT_UNIT,
        };
        struct ckv_control_header *header;
        uint64_t size;
        int r;

        *ret_page = (struct ckv__page){ 0 };
        if (options->control_slots == CHUNKKV_NO_SLOTS)
                return 0;
        if (page.slots > CKV__SLOTS_MAX)
                return ckv__fault(ret_error, -EINVAL, "control_slots", "must be at most %u, is %" PRIu32, CKV__SLOTS_MAX,
                                  page.slots);
        page.kept_offset = CKV_CONTROL_KEPT_UNIT;       /* a header and all slots that there may be fit before it */
        size = page.kept_offset + (uint64_t)page.slots * page.kept_bytes;
        if (size > CKV_CONTROL_BYTES_MAX)
                return ckv__fault(ret_error, -EINVAL, "kept_pages", "must be at most %" PRIu64 " with %" PRIu32
                                  " slots, is %" PRIu32, (CKV_CONTROL_BYTES_MAX / CKV_CONTROL_KEPT_UNIT - 1) / page.slots,
                                  page.slots, pages);
        r = chunkkv_memory_create("chunkkv-control", size, CHUNKKV_ACCESS_READ_WRITE, &page.memory, ret_error);
        if (r)
                return r;
        header = page.memory.address;
        *header = (struct ckv_control_header){
                .magic = CKV_CONTROL_MAGIC, .version = CKV_CONTROL_VERSION, .slot_bytes = sizeof(struct ckv_control_slot),
                .slots = page.slots, .kept_offset = page.kept_offset, .kept_bytes = page.kept_bytes, .size = size,
        };
        *ret_page = page;
        return 0;
}

void ckv__page_release(struct ckv__page *page) {
        if (page->memory.size)
                chunkkv_memory_release(&page->memory);
        *page = (struct ckv__page){ 0 };
}

struct ckv_control_slot *ckv__page_slot(const struct ckv__page *page, uint32_t number) {
        uint8_t *bytes = page->memory.address;

        return (struct ckv_control_slot *)(void *)(bytes + sizeof(struct ckv_control_header)) + (number - 1);
}

const uint8_t *ckv__page_kept(const struct ckv__page *page, uint32_t number) {
        const uint8_t *bytes = page->memory.address;

        return bytes + page->kept_offset + (uint64_t)(number - 1) * page->kept_bytes;
}

static uint64_t *word_of(const struct ckv__page *page, uint32_t number) {
        return &ckv__page_slot(page, number)->word;
}

static uint64_t load(const struct ckv__page *page, uint32_t number) {
        return __atomic_load_n(word_of(page, number), __ATOMIC_ACQUIRE);
}

static bool swap(const struct ckv__page *page, uint32_t number, uint64_t from, uint64_t to) {
        return __atomic_compare_exchange_n(word_of(page, number), &from, to, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
}

struct ckv__ticket ckv__ticket_take(struct ckv__page *page) {
        for (uint32_t n = 1; page->attached && n <= page->slots; n++) {
                uint64_t word = load(page, n);
                uint32_t use = (uint32_t)(word >> 32) + 1;

                if (page->taken[n - 1] || !has_ended(word) ||
                    !swap(page, n, word, ckv_control_word(use, CHUNKKV_PHASE_SUBMITTED)))
                        continue;
                page->taken[n - 1] = true;
                return (struct ckv__ticket){ .number = n, .use = use };
        }
        return (struct ckv__ticket){ 0 };
}

void ckv__ticket_renew(const struct ckv__page *page, struct ckv__ticket *ticket) {
        uint64_t word;

        if (ticket->number == 0)
                return;
        (void)ckv__ticket_cancel(page, ticket);
        word = load(page, ticket->number);
        ticket->use++;
        (void)swap(page, ticket->number, word, ckv_control_word(ticket->use, CHUNKKV_PHASE_SUBMITTED));
}

bool ckv__ticket_cancel(const struct ckv__page *page, const struct ckv__ticket *ticket) {
        uint64_t cancelled = ckv_control_word(ticket->use, CHUNKKV_PHASE_CANCELLED);

        /* the daemon goes forward only, so each phase needs one try */
        for (uint32_t phase = CHUNKKV_PHASE_SUBMITTED; ticket->number && phase <= CHUNKKV_PHASE_SELECTED; phase++) {
                if (swap(page, ticket->number, ckv_control_word(ticket->use, phase), cancelled))
                        return true;
        }
        return false;
}

uint32_t ckv__ticket_phase(const struct ckv__page *page, const struct ckv__ticket *ticket) {
        uint64_t word = load(page, ticket->number);

        return word >> 32 == ticket->use ? phase_of(word) : CHUNKKV_PHASE_NONE;
}

void ckv__ticket_end(const struct ckv__page *page, const struct ckv__ticket *ticket, uint32_t phase) {
        __atomic_store_n(word_of(page, ticket->number), ckv_control_word(ticket->use, phase), __ATOMIC_RELEASE);
}

void ckv__ticket_release(struct ckv__page *page, struct ckv__ticket *ticket) {
        if (ticket->number)
                page->taken[ticket->number - 1] = false;
        *ticket = (struct ckv__ticket){ 0 };
}
