/*
 * Repair: a daemon died in a move, at every step and in the middle of one; its
 * successor finishes it, bit for bit, or refuses and writes nothing.  The slot
 * is spoiled field by field, and by a stranger who knows the checksum.
 */
#include "base/crc32c.h"
#include "base/macros.h"
#include "daemon/answer_sets.h"
#include "kernels/reference.h"
#include "kernels/steps.h"
#include "tests/support_core.h"
#include "tests/support_page.h"

#include <check.h>
#include <string.h>

enum { ROWS = 100, LAYERS = 3, STEPS = 5 };

static struct core core;
static struct core_ask ask, again;
static struct page page;
static uint8_t *before, *after, *torn_memory;
static struct ckv_control_slot torn_slot;
static uint64_t torn_id;
static uint8_t torn_kept[PAGE_KEPT];
static struct ckv_record_group_result result;
static const uint32_t given[] = { 10, 40, 10, 5 };

static uint8_t *copy_of(const void *from, size_t bytes) {
        uint8_t *copy = malloc(bytes);

        ck_assert_ptr_nonnull(copy);
        return memcpy(copy, from, bytes);
}

/* prepare() - a core, its page, and a job in place; @each: other rows for each layer and KV head */
static void prepare(bool each) {
        core_init(&core, &(struct core_shape){
                                 .groups = 1, .layers = LAYERS, .kv_heads = 2, .q_heads = 2, .dims = 4, .tokens_per_block = 16,
                                 .num_blocks = 8,
                         });
        memcpy(core.daemon.boot_id, "first boot of all", 16);
        page = (struct page){ 0 };
        page_attach(&core, &page);
        core_ask(&core, &ask, ROWS);
        ask.body.mode = CKV_MODE_IN_PLACE;
        if (each) {
                ask.policies[0].heads = CKV_HEADS_EACH;
        } else {
                ask.words[0].given_runs = given;
                ask.groups[0].given_run_count = CKV_ARRAY_SIZE(given);
        }
        page_submit(&page, &ask);
        before = copy_of(core.memory, core.spare_at);
}

/* tear() - run the job, and keep what memory and page look like when @done steps are done, and part of the next is */
static void tear(uint32_t done, bool half) {
        struct ckv_record_status status;
        uint8_t *before_step;
        struct ckv_job *job;
        uint32_t steps;

        ck_assert(core_start(&core, &ask, &status));
        ck_assert(core_step(&core));
        job = core.request->job;
        steps = job->steps.count;
        ck_assert_uint_ge(steps, done);
        before_step = copy_of(core.memory, core.spare_at);
        if (done > 0) {
                job->steps.count = done;
                ckv_ref_run_move(job);
                memcpy(before_step, core.memory, core.spare_at);
        }
        if (half && done < steps) {
                /* all of the next step, then some of its rows, and halves of rows, as they were */
                job->steps.first = done;
                job->steps.count = done + 1;
                ckv_ref_run_move(job);
                for (size_t i = 0; i < core.spare_at; i += 2 * sizeof(float))
                        if (rand() % 2)
                                memcpy(core.memory + i, before_step + i, 2 * sizeof(float));
        }
        free(before_step);
        job->steps.first = 0;
        job->steps.count = steps;
        page.slots[0].steps_done = done;
        torn_memory = copy_of(core.memory, core.spare_at);
        torn_slot = page.slots[0];
        torn_id = torn_slot.request_id;
        memcpy(torn_kept, page.kept, PAGE_KEPT);
        /* what it would have come to */
        memcpy(core.memory, before, core.spare_at);
        core_finish(&core);
        ck_assert_int_eq(core.answer.record.body.result.status.code, CKV_CODE_OK);
        memcpy(&result, core.answer.attachment, sizeof(result));
        after = copy_of(core.memory, core.spare_at);
}

/* reborn() - another daemon, the same page and memory as they were left, and a Repair that says the same */
static void reborn(void) {
        page_detach(&core);
        memcpy(core.daemon.boot_id, "second boot of it", 16);
        memcpy(core.memory, torn_memory, core.spare_at);
        page.slots[0] = torn_slot;
        memcpy(page.kept, torn_kept, PAGE_KEPT);
        page_attach(&core, &page);
        again = ask;
        again.words[0].table = again.ids;
        again.repair_target = torn_id;
        again.body.control_use = 0;
        again.body.reply_form = CKV_REPLY_RUNS;
}

static void clean_up(void) {
        page_free(&core, &page);
        core_deinit(&core);
        free(before);
        free(after);
        free(torn_memory);
        before = after = torn_memory = NULL;
}

/* repaired() - the cache is as it would have been, slot and answer say so */
static void repaired(void) {
        const struct ckv_record_result *told = &core.answer.record.body.result;
        struct ckv_record_group_result group;

        ck_assert_mem_eq(core.memory, after, core.spare_at);
        ck_assert_uint_eq(page_phase(&page), CKV_PHASE_DONE);
        ck_assert_uint_eq(page.slots[0].word >> 32, torn_slot.word >> 32);
        ck_assert_uint_eq(page.slots[0].code, CKV_CODE_OK);
        ck_assert_uint_eq(told->status.code, CKV_CODE_OK);
        ck_assert_uint_eq(told->status.cache, CKV_CACHE_COMMITTED);
        ck_assert_uint_eq(told->u.compressed.phase, CKV_PHASE_DONE);
        memcpy(&group, core.answer.attachment, sizeof(group));
        ck_assert_uint_eq(group.kept_digest, result.kept_digest);
        ck_assert_uint_eq(group.set_count, result.set_count);
        ck_assert_uint_eq(group.physical_len, result.physical_len);
        ck_assert_uint_eq(group.table_used, result.table_used);
        ck_assert_uint_eq(group.budget, result.budget);
        ck_assert_uint_eq(group.kept_all, result.kept_all);
        ck_assert_uint_eq(told->u.compressed.set_count, result.set_count);
}

/* refused() - so; and neither cache nor slot was touched */
static void refused(enum ckv_code code, enum ckv_detail detail) {
        struct ckv_control_slot slot = page.slots[0];
        uint8_t *kept = copy_of(page.kept, PAGE_KEPT);
        struct ckv_record_status status;

        ck_assert_msg(!core_start(&core, &again, &status), "admitted");
        ck_assert_msg(status.code == code && status.detail == detail, "code %u, detail %u instead of %u, %u", status.code, status.detail,
                      code, detail);
        ck_assert(status.field == CKV_F_REPAIR_CONTROL_SLOT || status.field == CKV_F_REPAIR_TARGET || status.field == CKV_F_REPAIR_JOB);
        ck_assert_mem_eq(core.memory, torn_memory, core.spare_at);
        ck_assert_mem_eq(&page.slots[0], &slot, sizeof(slot));
        ck_assert_mem_eq(page.kept, kept, PAGE_KEPT);
        free(kept);
}

/* After each step, and in the middle of each. */
START_TEST(finished_from_every_step) {
        prepare(false);
        tear((uint32_t)_i % (STEPS + 1), _i > STEPS);
        reborn();
        ck_assert_int_eq(core_run(&core, &again)->code, CKV_CODE_OK);
        repaired();
        ck_assert_uint_eq(page.slots[0].steps_done, STEPS);
        /* whose answer got lost asks once more */
        memcpy(torn_memory, core.memory, core.spare_at);
        ck_assert_int_eq(core_run(&core, &again)->code, CKV_CODE_OK);
        repaired();
        clean_up();
}
END_TEST

START_TEST(sets_of_each_head) {
        prepare(true);
        tear((uint32_t)_i / 2, _i % 2);
        ck_assert_uint_gt(torn_slot.set_count, LAYERS);
        reborn();
        ck_assert_int_eq(core_run(&core, &again)->code, CKV_CODE_OK);
        repaired();
        clean_up();
}
END_TEST

START_TEST(torn_and_done_slots) {
        prepare(false);
        tear(2, false);
        /* torn, as a daemon that could not go on says: gone on with */
        torn_slot.word = ckv_control_word((uint32_t)(torn_slot.word >> 32), CKV_PHASE_TORN);
        torn_slot.code = CKV_CODE_DEVICE_HUNG;
        reborn();
        ck_assert_int_eq(core_run(&core, &again)->code, CKV_CODE_OK);
        repaired();
        /* torn because the memory is gone: nothing to go on with */
        torn_slot.code = CKV_CODE_REGION_LOST;
        reborn();
        refused(CKV_CODE_REGION_LOST, CKV_D_SLOT_PHASE);
        /* the deadline of the Repair */
        torn_slot.code = CKV_CODE_DEVICE_HUNG;
        reborn();
        core_engine_died = true;
        ck_assert_int_eq(core_run(&core, &again)->code, CKV_CODE_CANCELLED);
        core_engine_died = false;
        ck_assert_int_eq(core.answer.record.body.result.status.cache, CKV_CACHE_TORN_REPAIRABLE);
        ck_assert_mem_eq(core.memory, torn_memory, core.spare_at);
        ck_assert_mem_eq(&page.slots[0], &torn_slot, sizeof(torn_slot));
        /* nothing was spoiled by that */
        ck_assert_int_eq(core_run(&core, &again)->code, CKV_CODE_OK);
        repaired();
        clean_up();
}
END_TEST

/* ---- a slot in each phase */

START_TEST(every_phase) {
        for (uint32_t phase = CKV_PHASE_NONE; phase <= CKV_PHASE_FAILED + 1; phase++) {
                prepare(false);
                tear(3, false);
                if (phase == CKV_PHASE_DONE)
                        memcpy(torn_memory, after, core.spare_at);
                torn_slot.word = ckv_control_word(7, phase);
                reborn();
                if (phase == CKV_PHASE_COMMITTING || phase == CKV_PHASE_TORN || phase == CKV_PHASE_DONE) {
                        ck_assert_int_eq(core_run(&core, &again)->code, CKV_CODE_OK);
                        repaired();
                } else {
                        refused(CKV_CODE_CONFLICT, CKV_D_SLOT_PHASE);
                }
                clean_up();
        }
}
END_TEST

/* ---- spoiled slots; those of a stranger have the right checksum */

static uint32_t *words(void) {
        return (uint32_t *)(void *)torn_kept;
}

static void boot_of_this_daemon(void) { memcpy(torn_slot.boot_id, "second boot of it", 16); }
static void another_request(void) { torn_slot.request_id++; }
static void another_table(void) { torn_slot.table_hash ^= 1; }
static void mode_copy_out(void) { torn_slot.mode = CKV_MODE_COPY_OUT; }
static void mode_none(void) { torn_slot.mode = 0; }
static void no_steps(void) { torn_slot.steps = 0; }
static void one_step_less(void) { torn_slot.steps--; }
static void one_step_more(void) { torn_slot.steps++; }
static void all_the_steps(void) { torn_slot.steps = UINT32_MAX; }
static void too_many_done(void) { torn_slot.steps_done = STEPS + 1; }
static void done_without_end(void) { torn_slot.steps_done = UINT32_MAX; }
static void smaller_batches(void) { torn_slot.batch_rows = 3; }
static void crc_wrong(void) { torn_slot.kept_crc ^= 0x80000000; }
static void crc_of_other_sets(void) { words()[6]--; }
static void no_sets(void) { torn_slot.set_count = 0; }
static void sets_without_end(void) { torn_slot.set_count = UINT32_MAX; }
static void one_set_more(void) { torn_slot.set_count++; }
static void area_odd(void) { torn_slot.kept_used--; }
static void area_too_large(void) { torn_slot.kept_used = PAGE_KEPT + 4; }
static void area_without_end(void) { torn_slot.kept_used = UINT32_MAX - 3; }
static void area_nothing(void) { torn_slot.kept_used = 0; }
static void area_one_word_more(void) { torn_slot.kept_used += 4; }
static void area_one_word_less(void) { torn_slot.kept_used -= 4; }
static void head_group(void) { words()[0] = 1; }
static void head_layer(void) { words()[1] = 1; }
static void head_layer_unknown(void) { words()[1] = LAYERS; }
static void head_kv_head(void) { words()[2] = 1; }
static void head_before(void) { words()[3]--; }
static void head_len(void) { words()[4]++; }
static void head_run_words(void) { words()[5] = 2; }
static void head_run_words_odd(void) { words()[5] = 3; }
static void head_run_words_without_end(void) { words()[5] = UINT32_MAX - 1; }
static void run_zero(void) { words()[8] = 0; }
static void run_too_long(void) { words()[9] = 41; words()[4] = 81; }
static void run_wraps(void) { words()[6] = UINT32_MAX; }

static const struct spoiled {
        const char *name;
        void (*spoil)(void);
        bool right_crc;         /* the stranger knows how to sum up */
        enum ckv_code code;
        enum ckv_detail detail;
} spoiled[] = {
        { "boot id of this daemon", boot_of_this_daemon, true, CKV_CODE_CONFLICT, CKV_D_SLOT_BOOT },
        { "another request", another_request, true, CKV_CODE_CONFLICT, CKV_D_SLOT_REQUEST },
        { "another table", another_table, true, CKV_CODE_CONFLICT, CKV_D_SLOT_TABLE },
        { "mode copy out", mode_copy_out, true, CKV_CODE_CONFLICT, CKV_D_SLOT_MODE },
        { "no mode", mode_none, true, CKV_CODE_CONFLICT, CKV_D_SLOT_MODE },
        { "no steps", no_steps, true, CKV_CODE_CONFLICT, CKV_D_SLOT_MODE },
        { "one step less", one_step_less, true, CKV_CODE_INVALID_ARGUMENT, CKV_D_SLOT_STEPS },
        { "one step more", one_step_more, true, CKV_CODE_INVALID_ARGUMENT, CKV_D_SLOT_STEPS },
        { "2^32-1 steps", all_the_steps, true, CKV_CODE_INVALID_ARGUMENT, CKV_D_SLOT_STEPS },
        { "more done than there are", too_many_done, true, CKV_CODE_INVALID_ARGUMENT, CKV_D_SLOT_STEPS },
        { "2^32-1 done", done_without_end, true, CKV_CODE_INVALID_ARGUMENT, CKV_D_SLOT_STEPS },
        { "batches of three rows", smaller_batches, true, CKV_CODE_INVALID_ARGUMENT, CKV_D_SLOT_STEPS },
        { "checksum", crc_wrong, false, CKV_CODE_INVALID_ARGUMENT, CKV_D_SLOT_CRC },
        { "sets changed", crc_of_other_sets, false, CKV_CODE_INVALID_ARGUMENT, CKV_D_SLOT_CRC },
        { "no sets", no_sets, true, CKV_CODE_INVALID_ARGUMENT, CKV_D_SLOT_AREA },
        { "2^32-1 sets", sets_without_end, true, CKV_CODE_INVALID_ARGUMENT, CKV_D_SLOT_AREA },
        { "a set more", one_set_more, true, CKV_CODE_INVALID_ARGUMENT, CKV_D_SLOT_AREA },
        { "area not in words", area_odd, true, CKV_CODE_INVALID_ARGUMENT, CKV_D_SLOT_AREA },
        { "area beyond its end", area_too_large, false, CKV_CODE_INVALID_ARGUMENT, CKV_D_SLOT_AREA },
        { "area without end", area_without_end, false, CKV_CODE_INVALID_ARGUMENT, CKV_D_SLOT_AREA },
        { "area empty", area_nothing, true, CKV_CODE_INVALID_ARGUMENT, CKV_D_SLOT_AREA },
        { "a word behind the sets", area_one_word_more, true, CKV_CODE_INVALID_ARGUMENT, CKV_D_SLOT_SET },
        { "a word missing", area_one_word_less, true, CKV_CODE_INVALID_ARGUMENT, CKV_D_SLOT_SET },
        { "group", head_group, true, CKV_CODE_INVALID_ARGUMENT, CKV_D_SLOT_SET },
        { "not from the first layer on", head_layer, true, CKV_CODE_INVALID_ARGUMENT, CKV_D_SLOT_SET },
        { "unknown layer", head_layer_unknown, true, CKV_CODE_INVALID_ARGUMENT, CKV_D_SLOT_SET },
        { "KV head", head_kv_head, true, CKV_CODE_INVALID_ARGUMENT, CKV_D_SLOT_SET },
        { "rows before", head_before, true, CKV_CODE_INVALID_ARGUMENT, CKV_D_SLOT_SET },
        { "rows after", head_len, true, CKV_CODE_INVALID_ARGUMENT, CKV_D_SLOT_SET },
        { "fewer run words", head_run_words, true, CKV_CODE_INVALID_ARGUMENT, CKV_D_SLOT_SET },
        { "odd run words", head_run_words_odd, true, CKV_CODE_INVALID_ARGUMENT, CKV_D_SLOT_SET },
        { "run words without end", head_run_words_without_end, true, CKV_CODE_INVALID_ARGUMENT, CKV_D_SLOT_SET },
        { "a run of 0", run_zero, true, CKV_CODE_INVALID_ARGUMENT, CKV_D_SLOT_SET },
        { "a run past the rows", run_too_long, true, CKV_CODE_INVALID_ARGUMENT, CKV_D_SLOT_SET },
        { "a run that wraps", run_wraps, true, CKV_CODE_INVALID_ARGUMENT, CKV_D_SLOT_SET },
};

START_TEST(spoiled_slots) {
        const struct spoiled *s = &spoiled[_i];

        prepare(false);
        tear(2, false);
        s->spoil();
        if (s->right_crc)
                torn_slot.kept_crc = ckv_crc32c(torn_kept, torn_slot.kept_used);
        reborn();
        refused(s->code, s->detail);
        clean_up();
}
END_TEST

START_TEST(jobs_that_are_not_the_same) {
        prepare(false);
        tear(2, false);
        reborn();
        again.repair_target++;
        refused(CKV_CODE_CONFLICT, CKV_D_SLOT_REQUEST);
        again.repair_target--;
        again.ids[1] = 7;
        refused(CKV_CODE_CONFLICT, CKV_D_SLOT_TABLE);
        again.ids[1] = 1;
        again.groups[0].physical_len--;
        refused(CKV_CODE_CONFLICT, CKV_D_SLOT_TABLE);
        again.groups[0].physical_len++;
        again.groups[0].protect_prefix = 1;
        again.groups[0].given_run_count = 0;
        refused(CKV_CODE_INVALID_ARGUMENT, CKV_D_SLOT_SET);
        again.groups[0].protect_prefix = 0;
        again.body.mode = CKV_MODE_PLAN;
        refused(CKV_CODE_INVALID_ARGUMENT, CKV_D_SLOT_MODE);
        again.body.mode = CKV_MODE_IN_PLACE;
        again.body.control_slot = 2;
        refused(CKV_CODE_CONFLICT, CKV_D_SLOT_PHASE);
        again.body.control_slot = PAGE_SLOTS + 1;
        refused(CKV_CODE_OUT_OF_RANGE, CKV_D_UNKNOWN_ID);
        again.body.control_slot = 1;
        /* what the client says of how to choose does not matter: the rows were chosen */
        again.groups[0].given_run_count = 0;
        ck_assert_int_eq(core_run(&core, &again)->code, CKV_CODE_OK);
        ck_assert_mem_eq(core.memory, after, core.spare_at);
        clean_up();
}
END_TEST

/* While it is repaired the slot belongs to this daemon, and to one request. */
START_TEST(one_repair_at_a_time) {
        struct ckv_record_status status;

        prepare(false);
        tear(1, false);
        reborn();
        ck_assert(core_start(&core, &again, &status));
        ck_assert_mem_eq(page.slots[0].boot_id, core.daemon.boot_id, 16);
        ck_assert_uint_eq(page_phase(&page), CKV_PHASE_COMMITTING);
        ck_assert(!ckv_request_cancel(core.request));
        ck_assert(!ckv_repair_start(&core.session, &(struct ckv_route){ 0 },
                                    &(struct ckv_record){ .body.compress = again.body }, (const uint8_t *)&(struct ckv_record_repair){ 1, 0 },
                                    sizeof(struct ckv_record_repair), &(struct ckv_window_entry){ .id = 99 }, &status));
        ck_assert_int_eq(status.detail, CKV_D_SLOT_BUSY);
        core_finish(&core);
        repaired();
        clean_up();
}
END_TEST

int main(void) {
        Suite *suite = suite_create("repair");
        TCase *tcase = tcase_create("repair");
        SRunner *runner = srunner_create(suite);
        int failed;

        suite_add_tcase(suite, tcase);
        tcase_set_timeout(tcase, 60);
        tcase_add_loop_test(tcase, finished_from_every_step, 0, 2 * (STEPS + 1));
        tcase_add_loop_test(tcase, sets_of_each_head, 0, 6);
        tcase_add_test(tcase, torn_and_done_slots);
        tcase_add_test(tcase, every_phase);
        tcase_add_loop_test(tcase, spoiled_slots, 0, CKV_ARRAY_SIZE(spoiled));
        tcase_add_test(tcase, jobs_that_are_not_the_same);
        tcase_add_test(tcase, one_repair_at_a_time);
        srunner_run_all(runner, CK_NORMAL);
        failed = srunner_ntests_failed(runner);
        srunner_free(runner);
        return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
