/*
 * Block tables and destinations: what is expanded, what is refused, and that a
 * copy goes where it must and nowhere else.
 */
#include "base/macros.h"
#include "tests/support_core.h"
#include "tests/support_random.h"

#include <check.h>
#include <string.h>

enum { ROWS = 100, TOKENS = 16, BLOCKS = 20, NEEDED = 7, SLOTS = BLOCKS * TOKENS };
enum { BY_BLOCKS = 1, BY_BLOCK_RUNS, BY_TOKENS, BY_TOKEN_RUNS };

static struct core core;
static struct core_ask ask;

static void setup(void) {
        core_init(&core, &(struct core_shape){ .groups = 1,
                                               .layers = 2,
                                               .kv_heads = 2,
                                               .q_heads = 2,
                                               .dims = 4,
                                               .tokens_per_block = TOKENS,
                                               .num_blocks = BLOCKS });
}

static void teardown(void) {
        core_deinit(&core);
}

static void set_table(uint32_t form, const uint32_t *words, uint32_t count) {
        ask.groups[0].table_form = form;
        ask.groups[0].table_count = count;
        ask.words[0].table = words;
}

static void set_destination(uint32_t form, const uint32_t *words, uint32_t count) {
        ask.body.mode = CKV_MODE_COPY_OUT;
        ask.groups[0].destination_form = form;
        ask.groups[0].destination_count = count;
        ask.words[0].destination = words;
}

#define TABLE(form, ...) \
        set_table(form, (const uint32_t[]){ __VA_ARGS__ }, \
                  (uint32_t)CKV_ARRAY_SIZE(((const uint32_t[]){ __VA_ARGS__ })))
#define DESTINATION(form, ...) \
        set_destination(form, (const uint32_t[]){ __VA_ARGS__ }, \
                        (uint32_t)CKV_ARRAY_SIZE(((const uint32_t[]){ __VA_ARGS__ })))
#define REFUSED(code, field, detail, ...) \
        do { \
                core_ask(&core, &ask, ROWS); \
                __VA_ARGS__; \
                core_refused(&core, &ask, CKV_CODE_##code, CKV_F_##field, CKV_D_##detail); \
        } while (0)

/* admitted() - the entries that a table became, of which there must be @count */
static void admitted(const uint32_t *entries, uint32_t count, bool by_token) {
        const struct ckv_row_table *table;
        struct ckv_record_status status;

        ck_assert_msg(core_start(&core, &ask, &status), "refused: code %u, detail %u", status.code, status.detail);
        table = &core.request->job->groups[0].table;
        ck_assert_uint_eq(table->by_token, by_token);
        ck_assert_uint_eq(table->tokens_per_block, TOKENS);
        ck_assert_mem_eq(table->entries, entries, count * sizeof(*entries));
        core_finish(&core);
}

START_TEST(runs_become_entries) {
        const uint32_t blocks[NEEDED] = { 17, 18, 19, 0, 1, 2, 5 };
        uint32_t slots[ROWS];

        core_ask(&core, &ask, ROWS);
        TABLE(BY_BLOCKS, 17, 18, 19, 0, 1, 2, 5);
        admitted(blocks, NEEDED, false);
        TABLE(BY_BLOCK_RUNS, 17, 3, 0, 3, 5, 1);
        admitted(blocks, NEEDED, false);
        /* what lies beyond the rows is not looked at, be it in a run or behind all runs */
        TABLE(BY_BLOCK_RUNS, 17, 3, 0, 3, 5, 4, 17, 1, 0, 0);
        admitted(blocks, NEEDED, false);
        TABLE(BY_BLOCKS, 17, 18, 19, 0, 1, 2, 5, 17, 4000000000);
        admitted(blocks, NEEDED, false);
        for (uint32_t j = 0; j < ROWS; j++)
                slots[j] = j < 60 ? SLOTS - 60 + j : j - 60;
        TABLE(BY_TOKEN_RUNS, SLOTS - 60, 60, 0, 41);
        admitted(slots, ROWS, true);
        set_table(BY_TOKENS, slots, ROWS);
        admitted(slots, ROWS, true);
}
END_TEST

START_TEST(tables_at_their_limits) {
        REFUSED(INVALID_ARGUMENT, GROUP_TABLE_FORM, ENUM, ask.groups[0].table_form = 0);
        REFUSED(INVALID_ARGUMENT, GROUP_TABLE_FORM, ENUM, ask.groups[0].table_form = 5);
        REFUSED(INVALID_ARGUMENT, GROUP_TABLE, TABLE_SHORT, ask.groups[0].table_count = NEEDED - 1);
        REFUSED(INVALID_ARGUMENT, GROUP_TABLE, TABLE_SHORT, TABLE(BY_BLOCK_RUNS, 3, NEEDED - 1));
        REFUSED(INVALID_ARGUMENT, GROUP_TABLE, TABLE_SHORT, TABLE(BY_TOKEN_RUNS, 3, ROWS - 1));
        REFUSED(INVALID_ARGUMENT, GROUP_TABLE, TABLE_SHORT, ask.groups[0].table_form = BY_TOKENS);
        REFUSED(INVALID_ARGUMENT, GROUP_TABLE, EVEN_COUNT, TABLE(BY_BLOCK_RUNS, 0, NEEDED, 1));
        REFUSED(OUT_OF_RANGE, GROUP_TABLE, AT_LEAST, TABLE(BY_BLOCK_RUNS, 0, 3, 5, 0, 6, 9));
        REFUSED(OUT_OF_RANGE, GROUP_TABLE, BLOCK_RANGE, TABLE(BY_BLOCKS, 0, 1, 2, 3, 4, 5, BLOCKS));
        REFUSED(OUT_OF_RANGE, GROUP_TABLE, BLOCK_RANGE, TABLE(BY_BLOCK_RUNS, BLOCKS - NEEDED, NEEDED + 1));
        REFUSED(OUT_OF_RANGE, GROUP_TABLE, BLOCK_RANGE, TABLE(BY_BLOCK_RUNS, UINT32_MAX, UINT32_MAX));
        REFUSED(OUT_OF_RANGE, GROUP_TABLE, BLOCK_RANGE, TABLE(BY_BLOCK_RUNS, 1, UINT32_MAX));
        REFUSED(OUT_OF_RANGE, GROUP_TABLE, BLOCK_RANGE, TABLE(BY_TOKEN_RUNS, SLOTS - ROWS + 1, ROWS));
        REFUSED(INVALID_ARGUMENT, GROUP_TABLE, DUPLICATE, TABLE(BY_BLOCKS, 0, 1, 2, 3, 4, 5, 0));
        REFUSED(INVALID_ARGUMENT, GROUP_TABLE, DUPLICATE, TABLE(BY_BLOCK_RUNS, 0, 4, 3, 3));
        REFUSED(INVALID_ARGUMENT, GROUP_TABLE, DUPLICATE, TABLE(BY_TOKEN_RUNS, 0, 64, 63, 36));
        core_ask(&core, &ask, ROWS);
        TABLE(BY_BLOCK_RUNS, BLOCKS - NEEDED, NEEDED);
        ck_assert_int_eq(core_run(&core, &ask)->code, CKV_CODE_OK);
        TABLE(BY_TOKEN_RUNS, SLOTS - ROWS, ROWS);
        ck_assert_int_eq(core_run(&core, &ask)->code, CKV_CODE_OK);
        core_ask(&core, &ask, 0);
        ck_assert_int_eq(core_run(&core, &ask)->code, CKV_CODE_OK);
        /* a full last block needs no other, one row more does */
        core_ask(&core, &ask, 6 * TOKENS);
        TABLE(BY_BLOCK_RUNS, 2, 6);
        ck_assert_int_eq(core_run(&core, &ask)->code, CKV_CODE_OK);
        core_ask(&core, &ask, 6 * TOKENS + 1);
        TABLE(BY_BLOCK_RUNS, 2, 6);
        core_refused(&core, &ask, CKV_CODE_INVALID_ARGUMENT, CKV_F_GROUP_TABLE, CKV_D_TABLE_SHORT);
}
END_TEST

static void in_region(uint32_t region, uint64_t size) {
        set_table(BY_BLOCKS, NULL, 0);
        ask.groups[0].table_from =
                (struct ckv_record_slice){ .region_id = region, .offset = core.spare_at + 4, .size = size };
}

START_TEST(table_in_a_region) {
        const uint32_t blocks[NEEDED] = { 9, 8, 7, 6, 5, 4, 3 };
        struct ckv_record_status status;

        memcpy(core.memory + core.spare_at + 4, blocks, sizeof(blocks));
        core_ask(&core, &ask, ROWS);
        in_region(CORE_READ_ONLY, sizeof(blocks));
        ck_assert(core_start(&core, &ask, &status));
        /* the client may go on writing there */
        memset(core.memory + core.spare_at, 0xff, 64);
        ck_assert_mem_eq(core.request->job->groups[0].table.entries, blocks, sizeof(blocks));
        core_finish(&core);
        memcpy(core.memory + core.spare_at + 4, blocks, sizeof(blocks));
        REFUSED(INVALID_ARGUMENT, GROUP_TABLE, TABLE_SHORT, in_region(CORE_WRITABLE, sizeof(blocks) - 4));
        REFUSED(INVALID_ARGUMENT, GROUP_TABLE_FROM, MULTIPLE, in_region(CORE_WRITABLE, sizeof(blocks) - 1));
        REFUSED(NOT_FOUND, GROUP_TABLE_FROM, UNKNOWN_ID, in_region(3, sizeof(blocks)));
        REFUSED(OUT_OF_RANGE, GROUP_TABLE_FROM, OUTSIDE_REGION,
                in_region(CORE_WRITABLE, core.bytes - core.spare_at - 3));
        REFUSED(OUT_OF_RANGE, GROUP_TABLE_FROM, OVERFLOW, in_region(CORE_WRITABLE, UINT64_MAX));
        REFUSED(INVALID_ARGUMENT, GROUP_TABLE_FROM, NOT_USED, in_region(CORE_WRITABLE, 28);
                set_table(BY_BLOCKS, ask.ids, NEEDED));
        core_ask(&core, &ask, ROWS);
        in_region(CORE_WRITABLE, (core.bytes - core.spare_at - 4) & ~UINT64_C(3));
        ck_assert_int_eq(core_run(&core, &ask)->code, CKV_CODE_OK);
}
END_TEST

START_TEST(destinations_at_their_limits) {
        REFUSED(INVALID_ARGUMENT, GROUP_DESTINATION, ENUM, ask.body.mode = CKV_MODE_COPY_OUT);
        REFUSED(INVALID_ARGUMENT, GROUP_DESTINATION, NOT_USED, DESTINATION(BY_BLOCKS, 10);
                ask.body.mode = CKV_MODE_IN_PLACE);
        REFUSED(INVALID_ARGUMENT, GROUP_DESTINATION, NOT_USED, DESTINATION(BY_BLOCKS, 10);
                ask.body.mode = CKV_MODE_PLAN);
        REFUSED(INVALID_ARGUMENT, GROUP_DESTINATION, SOURCE_BLOCK, DESTINATION(BY_BLOCKS, 7, 8, 9, 6));
        REFUSED(INVALID_ARGUMENT, GROUP_DESTINATION, SOURCE_BLOCK, DESTINATION(BY_BLOCK_RUNS, NEEDED - 1, 4));
        /* the last block of the source is partly used, and all of it is the source's */
        REFUSED(INVALID_ARGUMENT, GROUP_DESTINATION, SOURCE_BLOCK,
                DESTINATION(BY_TOKENS, SLOTS - 1, NEEDED * TOKENS - 1));
        REFUSED(INVALID_ARGUMENT, GROUP_DESTINATION, DUPLICATE, DESTINATION(BY_BLOCKS, 9, 10, 9));
        REFUSED(INVALID_ARGUMENT, GROUP_DESTINATION, DUPLICATE, DESTINATION(BY_TOKEN_RUNS, 200, 10, 209, 1));
        REFUSED(OUT_OF_RANGE, GROUP_DESTINATION, BLOCK_RANGE, DESTINATION(BY_BLOCK_RUNS, BLOCKS - 3, 4));
        core_ask(&core, &ask, ROWS);
        DESTINATION(BY_TOKEN_RUNS, NEEDED * TOKENS, ROWS);
        ck_assert_int_eq(core_run(&core, &ask)->code, CKV_CODE_OK);
        /* slots of a source block that the source does not use as slots are still of its block */
        core_ask(&core, &ask, ROWS);
        TABLE(BY_TOKEN_RUNS, 0, ROWS);
        DESTINATION(BY_TOKEN_RUNS, ROWS, 60);
        core_refused(&core, &ask, CKV_CODE_INVALID_ARGUMENT, CKV_F_GROUP_DESTINATION, CKV_D_SOURCE_BLOCK);
}
END_TEST

/* Room is counted in rows; too little of it is an outcome of the request, and nothing has been written. */
START_TEST(destination_short) {
        uint32_t *before = malloc(core.spare_at);

        ck_assert_ptr_nonnull(before);
        memcpy(before, core.memory, core.spare_at);
        core_ask(&core, &ask, ROWS);
        DESTINATION(BY_TOKEN_RUNS, 160, 49);
        ck_assert_int_eq(core_run(&core, &ask)->code, CKV_CODE_OUT_OF_RANGE);
        ck_assert_uint_eq(core.answer.record.body.result.status.detail, CKV_D_DESTINATION_SHORT);
        ck_assert_uint_eq(core.answer.record.body.result.status.arg[0], 49);
        ck_assert_uint_eq(core.answer.record.body.result.status.arg[1], 50);
        ck_assert_uint_eq(core.answer.record.body.result.status.cache, CKV_CACHE_CLEAN);
        ck_assert_mem_eq(before, core.memory, core.spare_at);
        DESTINATION(BY_TOKEN_RUNS, 160, 50);
        ck_assert_int_eq(core_run(&core, &ask)->code, CKV_CODE_OK);
        ck_assert_mem_ne(before, core.memory, core.spare_at);
        ask.groups[0].keep_ratio = 480000;
        DESTINATION(BY_BLOCKS, 10, 11);
        ck_assert_int_eq(core_run(&core, &ask)->code, CKV_CODE_OUT_OF_RANGE);
        DESTINATION(BY_BLOCKS, 10, 11, 19);
        ck_assert_int_eq(core_run(&core, &ask)->code, CKV_CODE_OK);
        free(before);
}
END_TEST

/* random_list() - @n different ids below @ids; with a small chance one of them twice. Return: are they different? */
static bool random_list(struct dice *dice, uint32_t *list, uint32_t n, uint32_t ids) {
        uint32_t all[SLOTS];
        bool twice = n > 1 && dice_roll(dice, 8) == 0;

        for (uint32_t i = 0; i < ids; i++)
                all[i] = i;
        for (uint32_t i = 0; i < n; i++) {
                uint32_t at = i + dice_roll(dice, ids - i), swap = all[at];

                all[at] = all[i];
                all[i] = swap;
                list[i] = swap;
        }
        if (twice)
                list[dice_roll(dice, n - 1)] = list[n - 1];
        return !twice;
}

/* Small tables of all forms, judged by looking at every pair. */
START_TEST(random_destinations) {
        struct dice dice = { .state = 3 };
        uint32_t good = 0, shared_count = 0;

        for (uint32_t i = 0; i < 3000; i++) {
                uint32_t rows = 1 + dice_roll(&dice, 40), source[64], destination[64], per[2], n[2];
                bool by_token[2] = { dice_roll(&dice, 2), dice_roll(&dice, 2) }, distinct[2], shared = false;
                struct ckv_record_status status;

                core_ask(&core, &ask, rows);
                for (uint32_t k = 0; k < 2; k++) {
                        per[k] = by_token[k] ? TOKENS : 1;
                        n[k] = by_token[k] ? rows : (rows + TOKENS - 1) / TOKENS;
                        distinct[k] = random_list(&dice, k ? destination : source, n[k],
                                                  by_token[k] ? (k ? SLOTS : 40) : BLOCKS);
                }
                for (uint32_t a = 0; a < n[0]; a++)
                        for (uint32_t b = 0; b < n[1]; b++)
                                shared = shared || source[a] / per[0] == destination[b] / per[1];
                set_table(by_token[0] ? BY_TOKENS : BY_BLOCKS, source, n[0]);
                set_destination(by_token[1] ? BY_TOKENS : BY_BLOCKS, destination, n[1]);
                if (core_start(&core, &ask, &status)) {
                        ck_assert(distinct[0] && distinct[1] && !shared);
                        ck_assert_uint_eq(core.request->job->groups[0].destination_rows,
                                          CKV_MIN(n[1] * (by_token[1] ? 1 : TOKENS), rows));
                        ck_assert_mem_eq(core.request->job->groups[0].destination.entries, destination,
                                         n[1] * sizeof(uint32_t));
                        core_finish(&core);
                        good++;
                        continue;
                }
                ck_assert(!distinct[0] || !distinct[1] || shared);
                shared_count += status.detail == CKV_D_SOURCE_BLOCK;
        }
        ck_assert_uint_gt(good, 300);
        ck_assert_uint_gt(shared_count, 300);
}
END_TEST

int main(void) {
        Suite *suite = suite_create("admit_tables");
        TCase *tcase = tcase_create("tables");
        SRunner *runner = srunner_create(suite);
        int failed;

        suite_add_tcase(suite, tcase);
        tcase_set_timeout(tcase, 60);
        tcase_add_checked_fixture(tcase, setup, teardown);
        tcase_add_test(tcase, runs_become_entries);
        tcase_add_test(tcase, tables_at_their_limits);
        tcase_add_test(tcase, table_in_a_region);
        tcase_add_test(tcase, destinations_at_their_limits);
        tcase_add_test(tcase, destination_short);
        tcase_add_test(tcase, random_destinations);
        srunner_run_all(runner, CK_NORMAL);
        failed = srunner_ntests_failed(runner);
        srunner_free(runner);
        return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
