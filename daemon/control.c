/*
 * Control pages: mapping one, holding its slots, swapping its words.
 *
 * The page came from a stranger, so its header is judged from a copy that is
 * read once, and only after the seals said that the file can neither shrink
 * nor grow: from then on no access to the mapping can fall off its end.  The
 * slots are small and the kept areas are bounded by 16 MiB, which is charged
 * like any other memory of the tenant that the core maps.
 *
 * The word is swapped with sequential consistency: what the core wrote before
 * must be there for whoever sees the new phase, and the client's CANCELLED
 * must win or lose against COMMITTING, never both.
 *
 * The timer that beats also looks whether a client cancelled by its word, so
 * that a long job ends early.  It decides nothing: the swap before the first
 * row moves does.
 */
#include "daemon/control.h"

#include "base/clock.h"
#include "base/guard.h"
#include "base/limits.h"
#include "base/macros.h"
#include "daemon/daemon.h"
#include "daemon/memfd_code.h"
#include "daemon/request.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>

#define BEAT_USEC UINT64_C(500000)      /* half of what is promised */

enum { SLOTS_MAX = 8 };                 /* CKV_LIMIT_CONTROL_SLOTS, which is no constant expression */

struct ckv_control {
        struct ckv_daemon *daemon;
        uint32_t refs;
        uint32_t slots, kept_bytes, kept_offset;        /* as the header said when it was judged */
        uint64_t size;
        uint8_t *base;
        struct ckv_guard *guard;                        /* pages punched out become zeros, and harm nobody but the client */
        sd_event_source *timer;
        struct ckv_charge charge;                       /* MAPPED_BYTES */
        struct ckv_request *owners[SLOTS_MAX];
};

static struct ckv_control_header *header_of(const struct ckv_control *control) {
        return (void *)control->base;
}

static struct ckv_control_slot *slot_at(const struct ckv_control *control, uint32_t index) {
        return (struct ckv_control_slot *)(void *)(control->base + sizeof(struct ckv_control_header)) + index;
}

static void beat(struct ckv_control *control) {
        __atomic_store_n(&header_of(control)->heartbeat_ns, ckv_now_nsec(), __ATOMIC_RELAXED);
}

static int on_beat(sd_event_source *source, uint64_t usec, void *userdata) {
        struct ckv_control *control = userdata;
        int r;

        (void)usec;
        beat(control);
        for (uint32_t i = 0; i < control->slots; i++)
                if (control->owners[i] &&
                    (uint32_t)__atomic_load_n(&slot_at(control, i)->word, __ATOMIC_RELAXED) == CKV_PHASE_CANCELLED)
                        (void)ckv_request_cancel(control->owners[i]);
        r = sd_event_source_set_time_relative(source, BEAT_USEC);
        return r < 0 ? r : sd_event_source_set_enabled(source, SD_EVENT_ONESHOT);
}

/* judge() - the file, then a copy of its header. Return: OK with @ret_header, or why not. */
static enum ckv_code judge(int fd, uint32_t slots, uint32_t kept_bytes, struct ckv_control_header *ret_header) {
        struct ckv_control_header header;
        struct ckv_memfd_info info;
        int r;

        if (slots < 1 || slots > CKV_MIN(CKV_LIMIT_CONTROL_SLOTS, SLOTS_MAX) || kept_bytes < CKV_CONTROL_KEPT_UNIT ||
            kept_bytes % CKV_CONTROL_KEPT_UNIT)
                return CKV_CODE_INVALID_ARGUMENT;
        /* no record says how long the file is, so it is asked first; only a sealed file can be trusted to stay so */
        r = ckv_memfd_check(fd, 0, &info);
        if (r != CKV_MEMFD_E_SIZE)
                return r == 0 ? CKV_CODE_OUT_OF_RANGE : ckv_memfd_code(r);
        if (info.size < sizeof(header) || info.size > CKV_CONTROL_BYTES_MAX)
                return CKV_CODE_OUT_OF_RANGE;
        r = ckv_memfd_check(fd, info.size, &info);
        if (r)
                return ckv_memfd_code(r);
        if (pread(fd, &header, sizeof(header), 0) != (ssize_t)sizeof(header))
                return CKV_CODE_HANDLE_INVALID;
        if (header.magic != CKV_CONTROL_MAGIC || header.version != CKV_CONTROL_VERSION ||
            header.slot_bytes != sizeof(struct ckv_control_slot) || header.slots != slots || header.kept_bytes != kept_bytes ||
            header.kept_offset % CKV_CONTROL_KEPT_UNIT || header.zero || header.zero2)
                return CKV_CODE_INVALID_ARGUMENT;
        if (header.kept_offset < sizeof(header) + (uint64_t)slots * sizeof(struct ckv_control_slot) ||
            header.kept_offset + (uint64_t)slots * kept_bytes != header.size || header.size != info.size)
                return CKV_CODE_OUT_OF_RANGE;
        *ret_header = header;
        return CKV_CODE_OK;
}

/* map() - Return: OK, or why not */
static enum ckv_code map(struct ckv_control *control, int fd) {
        void *base = mmap(NULL, control->size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

        if (base == MAP_FAILED)
                return errno == EACCES || errno == EPERM ? CKV_CODE_PERMISSION : CKV_CODE_NO_MEMORY;
        control->base = base;
        control->guard = ckv_guard_add(base, control->size, true);
        if (!control->guard)
                return CKV_CODE_NO_MEMORY;
        (void)madvise(base, control->size, MADV_DONTFORK);
        (void)madvise(base, control->size, MADV_DONTDUMP);
        return CKV_CODE_OK;
}

enum ckv_code ckv_control_open(struct ckv_daemon *daemon, struct ckv_tenant *tenant, int fd, uint32_t slots, uint32_t kept_bytes,
                               struct ckv_control **ret_control) {
        struct ckv_control_header header = { 0 };
        struct ckv_control *control;
        enum ckv_code code;

        ckv_assert_loop_thread();
        code = judge(fd, slots, kept_bytes, &header);
        if (code != CKV_CODE_OK)
                return code;
        control = calloc(1, sizeof(*control));
        if (!control)
                return CKV_CODE_NO_MEMORY;
        *control = (struct ckv_control){
                .daemon = daemon, .refs = 1, .slots = slots, .kept_bytes = kept_bytes, .kept_offset = header.kept_offset,
                .size = header.size,
        };
        if (ckv_charge_init(&control->charge, tenant, CKV_SLOT_MAPPED_BYTES, control->size))
                code = CKV_CODE_QUOTA;
        else
                code = map(control, fd);
        if (code == CKV_CODE_OK &&
            sd_event_add_time_relative(daemon->event, &control->timer, CLOCK_MONOTONIC, BEAT_USEC, 0, on_beat, control) < 0)
                code = CKV_CODE_NO_MEMORY;
        if (code != CKV_CODE_OK) {
                (void)ckv_control_unref(control);
                return code;
        }
        memcpy(header_of(control)->boot_id, daemon->boot_id, sizeof(daemon->boot_id));
        beat(control);
        *ret_control = control;
        return CKV_CODE_OK;
}

struct ckv_control *ckv_control_ref(struct ckv_control *control) {
        control->refs++;
        return control;
}

struct ckv_control *ckv_control_unref(struct ckv_control *control) {
        if (!control)
                return NULL;
        ckv_assert_loop_thread();
        if (--control->refs > 0)
                return NULL;
        sd_event_source_disable_unref(control->timer);
        control->guard = ckv_guard_remove(control->guard);
        if (control->base)
                (void)munmap(control->base, control->size);
        ckv_charge_deinit(&control->charge);
        free(control);
        return NULL;
}

bool ckv_control_owned(const struct ckv_control *control) {
        return memcmp(header_of(control)->boot_id, control->daemon->boot_id, sizeof(control->daemon->boot_id)) == 0;
}

int ckv_claim_take(struct ckv_claim *claim, struct ckv_control *control, uint32_t number, struct ckv_request *owner) {
        uint32_t index = number - 1;

        ckv_assert_loop_thread();
        assert(!claim->control);
        if (index >= control->slots)
                return CKV_CONTROL_E_NO_SLOT;
        if (control->owners[index])
                return CKV_CONTROL_E_BUSY;
        control->owners[index] = owner;
        *claim = (struct ckv_claim){
                .control = ckv_control_ref(control), .index = index, .page = slot_at(control, index),
                .kept = control->base + control->kept_offset + (uint64_t)index * control->kept_bytes,
                .kept_bytes = control->kept_bytes,
        };
        return 0;
}

void ckv_claim_release(struct ckv_claim *claim) {
        if (!claim->control)
                return;
        claim->control->owners[claim->index] = NULL;
        (void)ckv_control_unref(claim->control);
        *claim = (struct ckv_claim){ 0 };
}

uint64_t ckv_claim_word(const struct ckv_claim *claim) {
        return __atomic_load_n(&claim->page->word, __ATOMIC_SEQ_CST);
}

/* swap_word() - one compare-and-swap of the whole word */
static bool swap_word(struct ckv_control_slot *page, uint64_t from, uint64_t to) {
        return __atomic_compare_exchange_n(&page->word, &from, to, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
}

bool ckv_claim_swap(struct ckv_claim *claim, uint32_t phase) {
        if (!swap_word(claim->page, ckv_control_word(claim->use, claim->phase), ckv_control_word(claim->use, phase)))
                return false;
        claim->phase = phase;
        return true;
}

void ckv_control_refuse(struct ckv_control *control, uint32_t number, uint32_t use, uint32_t code) {
        struct ckv_control_slot *page;
        uint64_t submitted = ckv_control_word(use, CKV_PHASE_SUBMITTED);

        ckv_assert_loop_thread();
        if (number < 1 || number > control->slots || control->owners[number - 1])
                return;
        page = slot_at(control, number - 1);
        if (__atomic_load_n(&page->word, __ATOMIC_SEQ_CST) != submitted)
                return;
        page->code = code;
        (void)swap_word(page, submitted, ckv_control_word(use, CKV_PHASE_FAILED));
}
