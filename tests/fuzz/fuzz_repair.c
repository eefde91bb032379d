/*
 * A control slot as a stranger may have left it: Repair of a torn move whose
 * slot and kept area hold anything.  Whatever is there, the repair ends, as
 * done or refused; where it is refused no byte of the cache has changed, and
 * where nothing was changed it is done and right.
 */
#include "tests/fuzz/fuzz.h"

#include "base/crc32c.h"
#include "base/macros.h"
#include "kernels/reference.h"
#include "tests/support_core.h"
#include "tests/support_page.h"

enum { ROWS = 100 };

static struct core core;
static struct page page;
static struct core_ask ask;
static uint8_t *torn, *repaired, *slot_bytes;
static uint64_t page_bytes, target;

static uint8_t *copy_of(const void *from, size_t bytes) {
        uint8_t *copy = malloc(bytes);

        fuzz_assert(copy);
        return memcpy(copy, from, bytes);
}

/* tear() - a move in place of which one step is done, as memory and page look like then; and how it would have ended */
static void tear(void) {
        struct ckv_record_status status;
        struct ckv_job *job;
        uint32_t steps;

        fuzz_assert(core_start(&core, &ask, &status) && core_step(&core));
        job = core.request->job;
        steps = job->steps.count;
        fuzz_assert(steps > 1);
        job->steps.count = 1;
        ckv_ref_run_move(job);
        torn = copy_of(core.memory, core.spare_at);
        slot_bytes = copy_of(page.slots, page_bytes);
        target = page.slots[0].request_id;
        job->steps.first = 1;
        job->steps.count = steps;
        core_finish(&core);
        repaired = copy_of(core.memory, core.spare_at);
}

static void setup(void) {
        static const uint32_t given[] = { 10, 40, 10, 5 };

        core_init(&core, &(struct core_shape){
                                 .groups = 1, .layers = 3, .kv_heads = 2, .q_heads = 2, .dims = 4, .tokens_per_block = 16, .num_blocks = 8,
                         });
        memcpy(core.daemon.boot_id, "first boot of all", sizeof(core.daemon.boot_id));
        page_attach(&core, &page);
        page_bytes = page.size - sizeof(struct ckv_control_header);
        core_ask(&core, &ask, ROWS);
        ask.body.mode = CKV_MODE_IN_PLACE;
        ask.words[0].given_runs = given;
        ask.groups[0].given_run_count = CKV_ARRAY_SIZE(given);
        page_submit(&page, &ask);
        tear();
        page_detach(&core);
        memcpy(core.daemon.boot_id, "second boot of it", sizeof(core.daemon.boot_id));
        page_attach(&core, &page);
        ask.repair_target = target;
        ask.body.control_use = 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
        struct fuzz_input input = { data, size };
        struct ckv_record_status status;
        uint32_t used;
        bool done = false;

        if (!torn)
                setup();
        memcpy(core.memory, torn, core.spare_at);
        memcpy(page.slots, slot_bytes, page_bytes);
        used = page.slots[0].kept_used;
        fuzz_patch(&input, &page.slots[0], sizeof(page.slots[0]));
        fuzz_patch(&input, page.kept, used);
        /* a stranger knows the checksum */
        if (fuzz_u8(&input) % 4)
                page.slots[0].kept_crc = ckv_crc32c(page.kept, CKV_MIN(page.slots[0].kept_used, (uint32_t)PAGE_KEPT));
        if (core_start(&core, &ask, &status)) {
                core_finish(&core);
                done = core.answer.record.body.result.status.code == CKV_CODE_OK;
        }
        fuzz_assert(!core.session.requests);
        if (!done)
                fuzz_assert(memcmp(core.memory, torn, core.spare_at) == 0);
        if (size == 0)
                fuzz_assert(done && memcmp(core.memory, repaired, core.spare_at) == 0);
        return 0;
}
