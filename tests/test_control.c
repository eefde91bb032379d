/*
 * A request with a control slot: what its slot says at each step, who wins
 * when the client cancels, what a scribbling client gets, hold and Commit.
 */
#include "daemon/control.h"

#include "base/clock.h"
#include "base/crc32c.h"
#include "base/fnv.h"
#include "base/macros.h"
#include "daemon/cache.h"
#include "tests/support_core.h"
#include "tests/support_page.h"

#include <check.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <string.h>

enum { ROWS = 100, LAYERS = 3, TOKENS = 16 };

static struct core core;
static struct core_ask ask;
static struct page page;
static uint8_t *before;
/* 10..49 and 60..64 are kept: batches of ten rows, the last one of five */
static const uint32_t given[] = { 10, 40, 10, 5 };

static void setup(void) {
        core_init(&core, &(struct core_shape){
                                 .groups = 1, .layers = LAYERS, .kv_heads = 2, .q_heads = 2, .dims = 4, .tokens_per_block = TOKENS,
                                 .num_blocks = 8,
                         });
        memcpy(core.daemon.boot_id, "boot id of daemon", 16);
        page = (struct page){ 0 };
        page_attach(&core, &page);
        before = malloc(core.spare_at);
        ck_assert_ptr_nonnull(before);
        memcpy(before, core.memory, core.spare_at);
        core_ask(&core, &ask, ROWS);
        ask.body.mode = CKV_MODE_IN_PLACE;
        ask.words[0].given_runs = given;
        ask.groups[0].given_run_count = CKV_ARRAY_SIZE(given);
        page_submit(&page, &ask);
}

static void teardown(void) {
        free(before);
        core_engine_died = false;
        page_free(&core, &page);
        core_deinit(&core);
}

static const struct ckv_record_status *answered(void) {
        core_finish(&core);
        return &core.answer.record.body.result.status;
}

/* ended() - so, with the slot's word and code, and not a byte of the cache was written */
static void ended(enum ckv_code code, enum ckv_field field, uint32_t phase) {
        const struct ckv_record_status *status = answered();

        ck_assert_msg(status->code == code && status->field == field, "code %u, field %u instead of %u, %u", status->code,
                      status->field, code, field);
        ck_assert_uint_eq(status->cache, CKV_CACHE_CLEAN);
        ck_assert_uint_eq(page_phase(&page), phase);
        ck_assert_uint_eq(page.slots[0].word >> 32, ask.body.control_use);
        ck_assert_mem_eq(core.memory, before, core.spare_at);
        ck_assert_uint_eq(core.session.request_count, 0);
}

static void start(void) {
        struct ckv_record_status status;

        ck_assert_msg(core_start(&core, &ask, &status), "refused: code %u, field %u, detail %u", status.code, status.field, status.detail);
}

static uint64_t table_hash(void) {
        const uint32_t head[] = { 0, ROWS, 1 };

        return ckv_fnv64(ckv_fnv64(CKV_FNV64_INIT, head, sizeof(head)), ask.ids, ask.groups[0].table_count * sizeof(uint32_t));
}

START_TEST(slot_of_a_move) {
        static const uint32_t set[] = { 0, 0, 0, ROWS, 45, 4, 10, 40, 10, 5 };
        const struct ckv_control_slot *slot = &page.slots[0];

        memset(&page.slots[0].request_id, 0xee, sizeof(*slot) - 8);    /* of an earlier use */
        start();
        ck_assert_uint_eq(page_phase(&page), CKV_PHASE_SCORING);
        ck_assert_uint_eq(slot->request_id, core.last_id);
        ck_assert_uint_eq(slot->table_hash, table_hash());
        ck_assert_uint_eq(slot->deadline_ns, core.request->job->deadline_nsec);
        ck_assert_mem_eq(slot->boot_id, core.daemon.boot_id, 16);
        ck_assert_uint_eq(slot->cache_id, core.cache->id);
        ck_assert_uint_eq(slot->mode, CKV_MODE_IN_PLACE);
        ck_assert_uint_eq(slot->code | slot->steps | slot->steps_done | slot->set_count | slot->kept_used | slot->kept_crc, 0);
        for (size_t i = 0; i < CKV_ARRAY_SIZE(slot->zero); i++)
                ck_assert_uint_eq(slot->zero[i], 0);
        ck_assert(core_step(&core));
        ck_assert_uint_eq(page_phase(&page), CKV_PHASE_COMMITTING);
        ck_assert_uint_eq(slot->steps, 5);
        ck_assert_uint_eq(slot->steps_done | slot->batch_rows, 0);
        ck_assert_uint_eq(slot->set_count, 1);
        ck_assert_uint_eq(slot->kept_used, sizeof(set));
        ck_assert_mem_eq(page.kept, set, sizeof(set));
        ck_assert_uint_eq(slot->kept_crc, ckv_crc32c(set, sizeof(set)));
        ck_assert_mem_eq(core.memory, before, core.spare_at);
        ck_assert_int_eq(answered()->code, CKV_CODE_OK);
        ck_assert_int_eq(core.answer.record.body.result.status.cache, CKV_CACHE_COMMITTED);
        ck_assert_uint_eq(page_phase(&page), CKV_PHASE_DONE);
        ck_assert_uint_eq(slot->steps_done, 5);
        ck_assert_uint_eq(slot->code, CKV_CODE_OK);
        /* the next use of the slot, and none in between */
        page_submit(&page, &ask);
        start();
        ck_assert_int_eq(answered()->code, CKV_CODE_OK);
        ck_assert_uint_eq(page.slots[0].word, ckv_control_word(2, CKV_PHASE_DONE));
        ck_assert_uint_eq(page.slots[1].word, 0);
}
END_TEST

/* Steps and sets are there where they can be used. */
START_TEST(slots_without_steps) {
        struct ckv_control_slot *slot = &page.slots[0];

        ask.body.single_pass = 1;
        ck_assert_int_eq(core_run(&core, &ask)->code, CKV_CODE_OK);
        ck_assert_uint_eq(page_phase(&page), CKV_PHASE_DONE);
        ck_assert_uint_eq(slot->steps | slot->set_count | slot->kept_used, 0);
        page_submit(&page, &ask);
        ask.body.reply_form = CKV_REPLY_IN_SLOT;
        ck_assert_int_eq(core_run(&core, &ask)->code, CKV_CODE_OK);
        ck_assert_uint_eq(slot->steps, 0);
        ck_assert_uint_eq(slot->set_count, 1);
        ck_assert_uint_eq(core.answer.record.body.result.u.compressed.set_count, 0);
        ck_assert_uint_eq(((const struct ckv_record_group_result *)(const void *)core.answer.attachment)->set_count, 1);
        page_submit(&page, &ask);
        memcpy(before, core.memory, core.spare_at);
        ask.body.mode = CKV_MODE_PLAN;
        ask.body.single_pass = 0;
        ck_assert_int_eq(core_run(&core, &ask)->code, CKV_CODE_OK);
        ck_assert_uint_eq(slot->steps, 0);
        ck_assert_uint_eq(slot->set_count, 1);
        ck_assert_uint_eq(slot->mode, CKV_MODE_PLAN);
        ck_assert_uint_eq(page_phase(&page), CKV_PHASE_DONE);
        ck_assert_mem_eq(core.memory, before, core.spare_at);
        page_submit(&page, &ask);
        ask.body.reply_form = CKV_REPLY_RUNS;
        ck_assert_int_eq(core_run(&core, &ask)->code, CKV_CODE_OK);
        ck_assert_uint_eq(slot->set_count, 0);
}
END_TEST

/* Where all rows stay, nothing moves: SELECTED, then DONE. */
START_TEST(nothing_moves) {
        static const uint32_t first[] = { 0, 50 };

        ask.words[0].given_runs = first;
        ask.groups[0].given_run_count = 2;
        start();
        ck_assert(core_step(&core));
        ck_assert(!core_step(&core));
        ck_assert_int_eq(answered()->code, CKV_CODE_OK);
        ck_assert_int_eq(core.answer.record.body.result.status.cache, CKV_CACHE_COMMITTED);
        ck_assert_uint_eq(page_phase(&page), CKV_PHASE_DONE);
        ck_assert_mem_eq(core.memory, before, core.spare_at);
        ck_assert_uint_eq(page.slots[0].steps, 0);
        ck_assert_uint_eq(page.slots[0].set_count, 1);
}
END_TEST

START_TEST(words_that_are_not_expected) {
        static const uint32_t phases[] = { CKV_PHASE_NONE, CKV_PHASE_SCORING, CKV_PHASE_DONE, CKV_PHASE_FAILED };
        uint32_t use = ask.body.control_use;

        for (size_t i = 0; i < CKV_ARRAY_SIZE(phases); i++) {
                page.slots[0].word = ckv_control_word(use, phases[i]);
                core_refused(&core, &ask, CKV_CODE_CONFLICT, CKV_F_COMPRESS_CONTROL_USE, CKV_D_CONTROL_WORD);
                ck_assert_uint_eq(page.slots[0].word, ckv_control_word(use, phases[i]));
        }
        page.slots[0].word = ckv_control_word(use + 1, CKV_PHASE_SUBMITTED);
        core_refused(&core, &ask, CKV_CODE_CONFLICT, CKV_F_COMPRESS_CONTROL_USE, CKV_D_CONTROL_WORD);
        page.slots[0].word = ckv_control_word(use, CKV_PHASE_CANCELLED);
        core_refused(&core, &ask, CKV_CODE_CANCELLED, CKV_F_NONE, CKV_D_CANCELLED);
        ask.body.control_slot = PAGE_SLOTS + 1;
        core_refused(&core, &ask, CKV_CODE_OUT_OF_RANGE, CKV_F_COMPRESS_CONTROL_SLOT, CKV_D_UNKNOWN_ID);
        /* a refusal ends the word of that use, and of that use alone */
        page_submit(&page, &ask);
        ckv_slot_refuse(&core.session, &ask.body, CKV_CODE_EXPIRED);
        ck_assert_uint_eq(page.slots[0].word, ckv_control_word(use + 1, CKV_PHASE_FAILED));
        ck_assert_uint_eq(page.slots[0].code, CKV_CODE_EXPIRED);
        page.slots[0].word = ckv_control_word(use + 2, CKV_PHASE_SUBMITTED);
        ckv_slot_refuse(&core.session, &ask.body, CKV_CODE_EXPIRED);
        ck_assert_uint_eq(page.slots[0].word, ckv_control_word(use + 2, CKV_PHASE_SUBMITTED));
}
END_TEST

START_TEST(slot_in_use) {
        struct ckv_record_status status;

        start();
        ck_assert(!ckv_request_start(&core.session, &(struct ckv_route){ 0 },
                                     &(struct ckv_record){ .body.compress = ask.body }, NULL, 0,
                                     &(struct ckv_window_entry){ .id = 9 }, &status));
        ck_assert_int_eq(status.code, CKV_CODE_CONFLICT);
        ck_assert_int_eq(status.detail, CKV_D_SLOT_BUSY);
        ckv_slot_refuse(&core.session, &ask.body, status.code);
        ck_assert_uint_eq(page_phase(&page), CKV_PHASE_SCORING);
        ck_assert_int_eq(answered()->code, CKV_CODE_OK);
}
END_TEST

START_TEST(kept_area_too_small) {
        page_free(&core, &page);
        core_deinit(&core);
        core_init(&core, &(struct core_shape){ .groups = 1, .layers = 1, .kv_heads = 1, .q_heads = 1, .dims = 2,
                                               .tokens_per_block = 16, .num_blocks = 256 });
        page_attach(&core, &page);
        core_ask(&core, &ask, 3000);
        ask.words[0].given_runs = NULL;
        ask.body.mode = CKV_MODE_IN_PLACE;
        ask.policies[0] = (struct ckv_record_policy){ .selector = CKV_SELECTOR_TOKEN };
        page_submit(&page, &ask);
        core_refused(&core, &ask, CKV_CODE_REPLY_TOO_LARGE, CKV_F_COMPRESS_CONTROL_SLOT, CKV_D_KEPT_AREA);
        ask.body.reply_form = CKV_REPLY_IN_SLOT;
        ask.body.mode = CKV_MODE_PLAN;
        core_refused(&core, &ask, CKV_CODE_REPLY_TOO_LARGE, CKV_F_COMPRESS_CONTROL_SLOT, CKV_D_KEPT_AREA);
        /* in one pass the sets need not be there */
        ask.body.reply_form = CKV_REPLY_RUNS;
        ask.body.mode = CKV_MODE_IN_PLACE;
        ask.body.single_pass = 1;
        ck_assert_int_eq(core_run(&core, &ask)->code, CKV_CODE_OK);
        /* one row dropped in front: a step for each row behind it */
        free(before);
        before = malloc(core.spare_at);
        memcpy(before, core.memory, core.spare_at);
        ask.body.single_pass = 0;
        ask.words[0].given_runs = (const uint32_t[]){ 1, 1000 };
        ask.groups[0].given_run_count = 2;
        page_submit(&page, &ask);
        start();
        ended(CKV_CODE_TOO_MANY_STEPS, CKV_F_COMPRESS_SINGLE_PASS, CKV_PHASE_FAILED);
        ck_assert_uint_eq(page.slots[0].code, CKV_CODE_TOO_MANY_STEPS);
        page_submit(&page, &ask);
        ask.words[0].given_runs = (const uint32_t[]){ 1, 512 };
        ck_assert_int_eq(core_run(&core, &ask)->code, CKV_CODE_OK);
        ck_assert_uint_eq(page.slots[0].steps_done, 512);
}
END_TEST

/* ---- cancelling by the word */

START_TEST(cancelled_by_the_word) {
        struct ckv_record_status status;

        /* while it is scored */
        start();
        page.slots[0].word = ckv_control_word(ask.body.control_use, CKV_PHASE_CANCELLED);
        ended(CKV_CODE_CANCELLED, CKV_F_NONE, CKV_PHASE_CANCELLED);
        /* the heartbeat sees it */
        page_submit(&page, &ask);
        start();
        page.slots[0].word = ckv_control_word(ask.body.control_use, CKV_PHASE_CANCELLED);
        for (int i = 0; i < 20 && !core.request->job->cancel; i++)
                ck_assert_int_ge(sd_event_run(core.daemon.event, 100000), 0);
        ck_assert(core.request->job->cancel);
        ended(CKV_CODE_CANCELLED, CKV_F_NONE, CKV_PHASE_CANCELLED);
        /* a failure and a cancel at once: the client has cancelled */
        page_submit(&page, &ask);
        start();
        core.request->job->deadline_nsec = 1;
        page.slots[0].word = ckv_control_word(ask.body.control_use, CKV_PHASE_CANCELLED);
        ended(CKV_CODE_CANCELLED, CKV_F_NONE, CKV_PHASE_CANCELLED);
        /* by message, and by the end of the session */
        page_submit(&page, &ask);
        start();
        ck_assert(ckv_request_cancel(core.request));
        ended(CKV_CODE_CANCELLED, CKV_F_NONE, CKV_PHASE_CANCELLED);
        ck_assert_uint_eq(page.slots[0].code, CKV_CODE_CANCELLED);
        /* once the rows move, no word stops them */
        page_submit(&page, &ask);
        start();
        ck_assert(core_step(&core));
        page.slots[0].word = ckv_control_word(ask.body.control_use, CKV_PHASE_CANCELLED);
        ck_assert_int_eq(answered()->code, CKV_CODE_OK);
        ck_assert_uint_eq(page_phase(&page), CKV_PHASE_CANCELLED);
        (void)status;
}
END_TEST

START_TEST(nothing_is_written_too_late) {
        start();
        core.request->job->deadline_nsec = 1;
        ended(CKV_CODE_EXPIRED, CKV_F_DEADLINE, CKV_PHASE_FAILED);
        ck_assert_uint_eq(page.slots[0].code, CKV_CODE_EXPIRED);
        /* another daemon has the page now */
        page_submit(&page, &ask);
        start();
        page.header->boot_id[3] ^= 1;
        ended(CKV_CODE_CONFLICT, CKV_F_COMPRESS_CONTROL_SLOT, CKV_PHASE_FAILED);
        page.header->boot_id[3] ^= 1;
        /* the engine is dead and the loop has not heard of it */
        page_submit(&page, &ask);
        start();
        core_engine_died = true;
        ended(CKV_CODE_CANCELLED, CKV_F_NONE, CKV_PHASE_CANCELLED);
}
END_TEST

/* A client that writes over its page: nothing but the word is read back. */
START_TEST(scribbling_client) {
        uint8_t *expected = malloc(core.spare_at);

        ck_assert_ptr_nonnull(expected);
        ck_assert_int_eq(core_run(&core, &ask)->code, CKV_CODE_OK);
        memcpy(expected, core.memory, core.spare_at);
        memcpy(core.memory, before, core.spare_at);
        page_submit(&page, &ask);
        start();
        memset(&page.slots[0].request_id, 0x55, sizeof(page.slots[0]) - 8);
        memset(page.kept, 0x55, PAGE_KEPT);
        ck_assert(core_step(&core));
        memset(&page.slots[0].request_id, 0xff, sizeof(page.slots[0]) - 8);
        memset(page.kept, 0xff, PAGE_KEPT);
        page.header->slots = page.header->kept_offset = page.header->kept_bytes = UINT32_MAX;
        ck_assert_int_eq(answered()->code, CKV_CODE_OK);
        ck_assert_mem_eq(core.memory, expected, core.spare_at);
        free(expected);
}
END_TEST

/* A page that is closed while a request uses it stays until the request ends. */
START_TEST(connection_closes_in_a_move) {
        start();
        ck_assert(core_step(&core));
        page_detach(&core);
        ckv_requests_cancel_all(&core.session);
        ck_assert_int_eq(answered()->code, CKV_CODE_OK);
        ck_assert_uint_eq(page_phase(&page), CKV_PHASE_DONE);
}
END_TEST

START_TEST(memory_lost_in_a_move) {
        long size = sysconf(_SC_PAGESIZE);

        start();
        ck_assert(core_step(&core));
        ck_assert_int_eq(fallocate(core.regions[0].fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                                   (off_t)(core.bytes / (uint64_t)size - 2) * size, size), 0);
        ck_assert_int_eq(answered()->code, CKV_CODE_REGION_LOST);
        ck_assert_int_eq(core.answer.record.body.result.status.cache, CKV_CACHE_TORN);
        ck_assert_uint_eq(page_phase(&page), CKV_PHASE_TORN);
        ck_assert_uint_eq(page.slots[0].code, CKV_CODE_REGION_LOST);
        ck_assert_uint_eq(ckv_window_find(&core.session.window, core.last_id)->phase, CKV_PHASE_TORN);
}
END_TEST

/* ---- cancel against commit: a million races, one winner each */

enum { RACES = 1000000 };
static struct ckv_control_slot raced;
static _Atomic uint32_t round_number, client_won;

/* the other one may have no processor just now */
static void spin(uint32_t *spins) {
        if (++*spins % 4096 == 0)
                (void)sched_yield();
}

static void *race_client(void *unused) {
        uint32_t spins = 0;

        (void)unused;
        for (uint32_t use = 1; use <= RACES; use++) {
                uint64_t word = ckv_control_word(use, CKV_PHASE_SELECTED);

                while (round_number < use)
                        spin(&spins);
                client_won += __atomic_compare_exchange_n(&raced.word, &word, ckv_control_word(use, CKV_PHASE_CANCELLED), false,
                                                          __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
                round_number = UINT32_MAX / 2 + use;
                while (round_number > UINT32_MAX / 2)
                        spin(&spins);
        }
        return NULL;
}

START_TEST(cancel_against_commit) {
        struct ckv_claim claim = { .page = &raced };
        uint32_t core_won = 0, cancelled = 0, spins = 0;
        pthread_t thread;

        round_number = client_won = 0;
        ck_assert_int_eq(pthread_create(&thread, NULL, race_client, NULL), 0);
        for (uint32_t use = 1; use <= RACES; use++) {
                raced.word = ckv_control_word(use, CKV_PHASE_SELECTED);
                claim.use = use;
                claim.phase = CKV_PHASE_SELECTED;
                round_number = use;
                core_won += ckv_claim_swap(&claim, CKV_PHASE_COMMITTING);
                while (round_number == use)
                        spin(&spins);
                ck_assert_uint_eq(core_won + client_won, use);
                cancelled += (uint32_t)raced.word == CKV_PHASE_CANCELLED;
                ck_assert_uint_eq(cancelled, client_won);
                ck_assert_uint_eq(raced.word >> 32, use);
                round_number = use;
        }
        ck_assert_int_eq(pthread_join(thread, NULL), 0);
        /* neither side may have won by being always first, or nothing was raced */
        ck_assert_uint_gt(core_won, 0);
        ck_assert_uint_gt(cancelled, 0);
}
END_TEST

/* ---- hold */

static struct ckv_window_entry *entry_of(uint64_t id) {
        return ckv_window_find(&core.session.window, id);
}

/* commit() - Return: false with @status */
static bool commit(uint64_t target, struct ckv_record_status *status) {
        const struct ckv_route route = { .endpoint = &core.endpoint, .request_id = ++core.last_id };
        struct ckv_window_entry *entry;

        ck_assert_int_eq(ckv_window_enter(&core.session.window, core.last_id, 1, &entry), 0);
        if (ckv_hold_commit(&core.session, &route, target, entry, status))
                return true;
        ckv_window_forget(entry);
        return false;
}

static void not_committed(uint64_t target, enum ckv_code code, enum ckv_detail detail, enum ckv_cache_state cache) {
        struct ckv_record_status status;

        ck_assert(!commit(target, &status));
        ck_assert_int_eq(status.cache, cache);
        ck_assert_msg(status.code == code && status.field == CKV_F_COMMIT_TARGET && status.detail == detail, "code %u, field %u, detail %u",
                      status.code, status.field, status.detail);
}

/* held() - a request that waits for Commit. Return: its id. */
static uint64_t held(bool with_slot) {
        const struct ckv_record_result *result = &core.answer.record.body.result;

        ask.body.hold = 1;
        if (!with_slot)
                ask.body.control_slot = ask.body.control_use = 0;
        ck_assert_int_eq(core_run(&core, &ask)->code, CKV_CODE_OK);
        ck_assert_uint_eq(result->u.compressed.phase, CKV_PHASE_SELECTED);
        ck_assert_uint_eq(result->u.compressed.set_count, 1);
        ck_assert_uint_eq(result->status.cache, CKV_CACHE_CLEAN);
        ck_assert_mem_eq(core.memory, before, core.spare_at);
        ck_assert_uint_eq(core.session.request_count, 1);
        ck_assert_ptr_eq(entry_of(core.last_id)->running, core.request);
        ck_assert(entry_of(core.last_id)->answered);
        if (with_slot)
                ck_assert_uint_eq(page_phase(&page), CKV_PHASE_SELECTED);
        return core.last_id;
}

/* gone() - a held request that ended so, with nothing written and all given back */
static void gone(uint64_t id, enum ckv_code code) {
        ck_assert_uint_eq(core.session.request_count, 0);
        ck_assert_uint_eq(core.session.tenant->used[CKV_SLOT_REQUESTS], 0);
        ck_assert_ptr_null(entry_of(id)->running);
        ck_assert_uint_eq(entry_of(id)->phase, CKV_PHASE_CANCELLED);
        ck_assert_int_eq(entry_of(id)->answer->record.body.result.status.code, code);
        ck_assert_int_eq(entry_of(id)->answer->record.body.result.status.cache, CKV_CACHE_CLEAN);
        ck_assert_mem_eq(core.memory, before, core.spare_at);
        core.request = NULL;
}

START_TEST(hold_and_commit) {
        bool with_slot = _i;
        const struct ckv_record_result *result = &core.answer.record.body.result, *told;
        uint64_t id = held(with_slot);
        struct ckv_record_status status;
        struct ckv_record_group_result group;
        struct ckv_window_entry *first;

        ck_assert(commit(id, &status));
        if (with_slot)
                ck_assert_uint_eq(page_phase(&page), CKV_PHASE_COMMITTING);
        /* a repeat of the Compress while rows move is not told that nothing was written */
        told = &entry_of(id)->answer->record.body.result;
        ck_assert_uint_eq(told->status.cache, CKV_CACHE_PENDING);
        ck_assert_uint_eq(told->u.compressed.phase, CKV_PHASE_COMMITTING);
        not_committed(id, CKV_CODE_CONFLICT, CKV_D_NOT_HELD, CKV_CACHE_PENDING);
        core.last_id--;
        ck_assert_int_eq(answered()->code, CKV_CODE_OK);
        ck_assert_uint_eq(result->u.compressed.phase, CKV_PHASE_DONE);
        ck_assert_uint_eq(result->status.cache, CKV_CACHE_COMMITTED);
        ck_assert_uint_eq(result->u.compressed.set_count, 0);
        memcpy(&group, core.answer.attachment, sizeof(group));
        ck_assert_uint_eq(group.set_count, 1);
        ck_assert_uint_eq(group.physical_len, 45);
        ck_assert_uint_gt(group.bytes_moved, 0);
        ck_assert_mem_ne(core.memory, before, core.spare_at);
        if (with_slot)
                ck_assert_uint_eq(page_phase(&page), CKV_PHASE_DONE);
        /* a repeat of either id: what became of it; the Compress still with its sets */
        first = entry_of(id);
        told = &first->answer->record.body.result;
        ck_assert_uint_eq(told->u.compressed.phase, CKV_PHASE_DONE);
        ck_assert_uint_eq(told->status.cache, CKV_CACHE_COMMITTED);
        ck_assert_uint_eq(told->u.compressed.set_count, 1);
        memcpy(&group, first->answer->attachment, sizeof(group));
        ck_assert_uint_eq(group.sets_sent, 1);
        ck_assert_uint_gt(group.bytes_moved, 0);
        ck_assert_uint_eq(first->phase, CKV_PHASE_DONE);
        ck_assert(entry_of(core.last_id)->answered && !entry_of(core.last_id)->running);
        ck_assert_uint_eq(core.session.tenant->used[CKV_SLOT_REQUESTS], 0);
        not_committed(id, CKV_CODE_CONFLICT, CKV_D_NOT_HELD, CKV_CACHE_COMMITTED);
        not_committed(12345, CKV_CODE_NOT_FOUND, CKV_D_UNKNOWN_REQUEST, CKV_CACHE_CLEAN);
}
END_TEST

START_TEST(hold_ends_by_itself) {
        uint64_t id, since;

        core.options.hold_ms = 50;
        id = held(_i);
        since = ckv_now_nsec();
        while (core.session.request_count > 0)
                ck_assert_int_ge(sd_event_run(core.daemon.event, 100000), 0);
        ck_assert_uint_ge(ckv_now_nsec() - since, 45 * CKV_NSEC_PER_MSEC);
        gone(id, CKV_CODE_EXPIRED);
        if (_i) {
                ck_assert_uint_eq(page_phase(&page), CKV_PHASE_CANCELLED);
                ck_assert_uint_eq(page.slots[0].code, CKV_CODE_EXPIRED);
        }
        not_committed(id, CKV_CODE_EXPIRED, CKV_D_HOLD_OVER, CKV_CACHE_CLEAN);
}
END_TEST

START_TEST(hold_is_cancelled) {
        uint64_t id = held(true);

        ck_assert(ckv_request_cancel(core.request));
        gone(id, CKV_CODE_CANCELLED);
        ck_assert_uint_eq(page_phase(&page), CKV_PHASE_CANCELLED);
        not_committed(id, CKV_CODE_CANCELLED, CKV_D_CANCELLED, CKV_CACHE_CLEAN);
        /* the session ends: at once */
        page_submit(&page, &ask);
        id = held(true);
        ckv_requests_cancel_all(&core.session);
        gone(id, CKV_CODE_CANCELLED);
        /* by the word, seen by the heartbeat */
        page_submit(&page, &ask);
        id = held(true);
        page.slots[0].word = ckv_control_word(ask.body.control_use, CKV_PHASE_CANCELLED);
        for (int i = 0; i < 20 && core.session.request_count > 0; i++)
                ck_assert_int_ge(sd_event_run(core.daemon.event, 100000), 0);
        gone(id, CKV_CODE_CANCELLED);
}
END_TEST

START_TEST(commit_that_comes_too_late) {
        struct ckv_record_status status;
        uint64_t id = held(true);

        page.slots[0].word = ckv_control_word(ask.body.control_use, CKV_PHASE_CANCELLED);
        ck_assert(commit(id, &status));
        ended(CKV_CODE_CANCELLED, CKV_F_NONE, CKV_PHASE_CANCELLED);
        gone(id, CKV_CODE_CANCELLED);
        /* the deadline of the Compress still holds */
        page_submit(&page, &ask);
        id = held(true);
        core.request->job->deadline_nsec = 1;
        ck_assert(commit(id, &status));
        ended(CKV_CODE_EXPIRED, CKV_F_DEADLINE, CKV_PHASE_FAILED);
        ck_assert_int_eq(entry_of(id)->answer->record.body.result.status.code, CKV_CODE_EXPIRED);
        ck_assert_uint_eq(entry_of(id)->phase, CKV_PHASE_FAILED);
        /* so does the memory */
        page_submit(&page, &ask);
        id = held(true);
        core_engine_died = true;
        ck_assert(commit(id, &status));
        ended(CKV_CODE_CANCELLED, CKV_F_NONE, CKV_PHASE_CANCELLED);
}
END_TEST

int main(void) {
        Suite *suite = suite_create("control");
        TCase *tcase = tcase_create("slots"), *race = tcase_create("race");
        SRunner *runner = srunner_create(suite);
        int failed;

        suite_add_tcase(suite, tcase);
        suite_add_tcase(suite, race);
        tcase_set_timeout(tcase, 60);
        tcase_set_timeout(race, 300);
        tcase_add_checked_fixture(tcase, setup, teardown);
        tcase_add_test(tcase, slot_of_a_move);
        tcase_add_test(tcase, slots_without_steps);
        tcase_add_test(tcase, nothing_moves);
        tcase_add_test(tcase, words_that_are_not_expected);
        tcase_add_test(tcase, slot_in_use);
        tcase_add_test(tcase, kept_area_too_small);
        tcase_add_test(tcase, cancelled_by_the_word);
        tcase_add_test(tcase, nothing_is_written_too_late);
        tcase_add_test(tcase, scribbling_client);
        tcase_add_test(tcase, connection_closes_in_a_move);
        tcase_add_test(tcase, memory_lost_in_a_move);
        tcase_add_test(race, cancel_against_commit);
        tcase_add_loop_test(tcase, hold_and_commit, 0, 2);
        tcase_add_loop_test(tcase, hold_ends_by_itself, 0, 2);
        tcase_add_test(tcase, hold_is_cancelled);
        tcase_add_test(tcase, commit_that_comes_too_late);
        srunner_run_all(runner, CK_NORMAL);
        failed = srunner_ntests_failed(runner);
        srunner_free(runner);
        return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
