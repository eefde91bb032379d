/*
 * Compress requests in the core, as a gate that was taken over may send them:
 * bodies, groups, policies and lists with any numbers in them, with and
 * without a control page.  Each is refused with nothing left behind, or runs
 * to its end; tests/support_core.c asserts that charges and uses come back.
 */
#include "tests/fuzz/fuzz.h"

#include "base/macros.h"
#include "tests/support_core.h"
#include "tests/support_page.h"

enum { LIST_WORDS = 512, ROWS_MAX = 128 };

static struct core core;
static struct page page;
static uint8_t *memory;         /* what the cache holds at the start of every input */

static void setup(void) {
        core_init(&core, &(struct core_shape){
                                 .groups = CORE_GROUPS, .layers = 2, .kv_heads = 2, .q_heads = 4, .dims = 4, .tokens_per_block = 4,
                                 .num_blocks = ROWS_MAX / 4,
                         });
        page_attach(&core, &page);
        memory = malloc(core.spare_at);
        fuzz_assert(memory);
        memcpy(memory, core.memory, core.spare_at);
}

/* take_list() - up to LIST_WORDS words that stay small often enough to mean something */
static uint32_t take_list(struct fuzz_input *input, const uint32_t **ret_list, uint32_t words[static LIST_WORDS]) {
        uint32_t count = fuzz_u8(input), any = fuzz_u8(input) % 8;

        for (uint32_t i = 0; i < count; i++)
                words[i] = any == 0 ? fuzz_u32(input) : fuzz_u8(input) % ROWS_MAX;
        *ret_list = words;
        return count;
}

static void take_group(struct fuzz_input *input, struct core_ask *ask, uint32_t index) {
        static uint32_t lists[CORE_GROUPS][6][LIST_WORDS];
        struct ckv_record_group *group = &ask->groups[index];
        struct core_words *words = &ask->words[index];
        struct ckv_record_group honest = *group;
        uint8_t has = fuzz_u8(input);

        fuzz_patch(input, group, sizeof(*group));
        /* the counts are those of the lists: what does not add up is refused by the first check, and fuzz_channel.c's */
        group->table_count = honest.table_count;
        group->destination_count = group->span_count = group->position_run_count = group->chunk_length_count = 0;
        group->given_run_count = group->policy_count = 0;
        if (has & 1)
                group->table_count = take_list(input, &words->table, lists[index][0]);
        if (has & 2)
                group->destination_count = take_list(input, &words->destination, lists[index][1]);
        if (has & 4)
                group->span_count = take_list(input, &words->spans, lists[index][2]) / 2;
        if (has & 8)
                group->position_run_count = take_list(input, &words->position_runs, lists[index][3]);
        if (has & 16)
                group->chunk_length_count = take_list(input, &words->chunk_lengths, lists[index][4]);
        if (has & 32)
                group->given_run_count = take_list(input, &words->given_runs, lists[index][5]);
}

static void take_ask(struct fuzz_input *input, struct core_ask *ask) {
        static uint32_t query_layers[LIST_WORDS];
        uint32_t policies = 0;

        core_ask(&core, ask, 1 + fuzz_u8(input) % ROWS_MAX);
        fuzz_patch(input, &ask->body, sizeof(ask->body));
        ask->body.group_count = 1 + ask->body.group_count % CORE_GROUPS;
        for (uint32_t i = 0; i < ask->body.group_count; i++)
                take_group(input, ask, i);
        for (uint32_t i = 0; i < ask->body.group_count; i++) {
                ask->groups[i].policy_count = CKV_MIN(fuzz_u8(input) % 4u, (uint32_t)CORE_POLICIES - policies);
                for (uint32_t k = 0; k < ask->groups[i].policy_count; k++)
                        fuzz_patch(input, &ask->policies[policies++], sizeof(ask->policies[0]));
        }
        ask->body.policy_count = policies;
        ask->body.query_layer_count = 0;
        if (fuzz_u8(input) % 4 == 0)
                ask->body.query_layer_count = take_list(input, &ask->query_layers, query_layers);
        if (fuzz_u8(input) % 2)
                page_submit(&page, ask);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
        static struct core_ask ask;
        struct fuzz_input input = { data, size };
        struct ckv_record_status status;

        if (!memory)
                setup();
        memcpy(core.memory, memory, core.spare_at);
        take_ask(&input, &ask);
        fuzz_patch(&input, page.slots, PAGE_SLOTS * sizeof(page.slots[0]));
        if (core_start(&core, &ask, &status)) {
                core_finish(&core);
                /* held: nobody will commit */
                if (core.request)
                        fuzz_assert(ckv_request_cancel(core.request));
                core_finish(&core);
        } else
                fuzz_assert(status.code != CKV_CODE_OK && status.cache == CKV_CACHE_CLEAN);
        fuzz_assert(!core.session.requests && core.session.request_count == 0);
        fuzz_assert(core.session.tenant->used[CKV_SLOT_REQUESTS] == 0);
        page.slots[0].word = ckv_control_word((uint32_t)(page.slots[0].word >> 32), CKV_PHASE_DONE);
        return 0;
}
