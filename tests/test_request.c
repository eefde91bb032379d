/*
 * A request from its plan to its answer: what is looked at before the first
 * row moves, how each outcome of a plan is told, and what an answer says about
 * the sets, inline and in a region.
 */
#include "daemon/request.h"

#include "base/fnv.h"
#include "base/macros.h"
#include "tests/support_core.h"

#include <check.h>
#include <fcntl.h>
#include <math.h>
#include <string.h>

enum { ROWS = 100, LAYERS = 3, TOKENS = 16, CHUNK = 10 };

static struct core core;
static struct core_ask ask;
static uint8_t *before;

static void setup(void) {
        core_init(&core, &(struct core_shape){ .groups = 1,
                                               .layers = LAYERS,
                                               .kv_heads = 2,
                                               .q_heads = 2,
                                               .dims = 4,
                                               .tokens_per_block = TOKENS,
                                               .num_blocks = 8 });
        before = malloc(core.spare_at);
        ck_assert_ptr_nonnull(before);
        memcpy(before, core.memory, core.spare_at);
        core_ask(&core, &ask, ROWS);
        ask.body.mode = CKV_MODE_IN_PLACE;
}

static void teardown(void) {
        free(before);
        core_deinit(&core);
}

static void start(void) {
        struct ckv_record_status status;

        ck_assert_msg(core_start(&core, &ask, &status), "refused: code %u, detail %u", status.code, status.detail);
}

/* ended() - with this code, and not a byte of the cache was written */
static void ended(enum ckv_code code, enum ckv_field field, enum ckv_detail detail) {
        const struct ckv_record_status *status = &core.answer.record.body.result.status;

        core_finish(&core);
        ck_assert_msg(status->code == code && status->field == field && status->detail == detail,
                      "code %u, field %u, detail %u instead of %u, %u, %u", status->code, status->field, status->detail,
                      code, field, detail);
        ck_assert_uint_eq(status->cache, CKV_CACHE_CLEAN);
        ck_assert_uint_eq(core.answer.bytes, 0);
        ck_assert_mem_eq(core.memory, before, core.spare_at);
}

START_TEST(too_late_to_commit) {
        start();
        core.request->job->deadline_nsec = 1;
        ended(CKV_CODE_EXPIRED, CKV_F_DEADLINE, CKV_D_DEADLINE_PASSED);
        /* a plan writes nothing, so it may be late */
        ask.body.mode = CKV_MODE_PLAN;
        start();
        core.request->job->deadline_nsec = 1;
        core_finish(&core);
        ck_assert_int_eq(core.answer.record.body.result.status.code, CKV_CODE_OK);
}
END_TEST

START_TEST(cancelled_before_and_after) {
        start();
        ck_assert(ckv_request_cancel(core.request) && ckv_request_cancel(core.request));
        ck_assert(core.request->job->cancel);
        ended(CKV_CODE_CANCELLED, CKV_F_NONE, CKV_D_CANCELLED);
        start();
        ckv_requests_cancel_all(&core.session);
        ended(CKV_CODE_CANCELLED, CKV_F_NONE, CKV_D_CANCELLED);
        /* once it is decided that rows move, they do */
        start();
        ck_assert(core_step(&core));
        ck_assert_int_eq(core.request->phase, CKV_PHASE_COMMITTING);
        ck_assert(!ckv_request_cancel(core.request));
        ckv_requests_cancel_all(&core.session);
        core.request->job->deadline_nsec = 1;
        core_finish(&core);
        ck_assert_int_eq(core.answer.record.body.result.status.code, CKV_CODE_OK);
        ck_assert_int_eq(core.answer.record.body.result.status.cache, CKV_CACHE_COMMITTED);
        ck_assert_mem_ne(core.memory, before, core.spare_at);
}
END_TEST

START_TEST(memory_that_was_punched) {
        long page = sysconf(_SC_PAGESIZE);
        off_t last = (off_t)(core.bytes / (uint64_t)page - 2) * page;

        start();
        ck_assert_int_eq(fallocate(core.regions[0].fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, last, page), 0);
        ended(CKV_CODE_REGION_LOST, CKV_F_NONE, CKV_D_REGION_LOST);
        ask.body.mode = CKV_MODE_PLAN;
        core_refused(&core, &ask, CKV_CODE_REGION_LOST, CKV_F_NONE, CKV_D_REGION_LOST);
}
END_TEST

START_TEST(outcomes_of_a_plan) {
        static const uint32_t span[2] = { 0, 60 };
        float *scores = (float *)(void *)(core.memory + core.spare_at);

        ask.policies[0].tight = CKV_TIGHT_REFUSE;
        ask.words[0].spans = span;
        ask.groups[0].span_count = 1;
        start();
        ended(CKV_CODE_BUDGET_BELOW_PROTECTED, CKV_F_GROUP_KEEP_RATIO, CKV_D_BUDGET_UNDER_PROTECTED);
        core_ask(&core, &ask, 60);
        ask.policies[0].profile = CKV_PROFILE_KVPRESS;
        ask.policies[0].window = 32;
        ask.policies[0].chunk = 64;
        start();
        ended(CKV_CODE_UNSUPPORTED, CKV_F_GROUP_PHYSICAL_LEN, CKV_D_TOO_SHORT);
        core_ask(&core, &ask, ROWS);
        ask.policies[0].profile = CKV_PROFILE_PAPER;
        ask.groups[0].keep_ratio = 310000;
        start();
        ended(CKV_CODE_INVALID_ARGUMENT, CKV_F_GROUP_KEEP_RATIO, CKV_D_BUDGET_UNDER_WINDOW);
        ask.groups[0].keep_ratio = 0;
        ask.groups[0].max_tokens = 31;
        start();
        ended(CKV_CODE_INVALID_ARGUMENT, CKV_F_GROUP_MAX_TOKENS, CKV_D_BUDGET_UNDER_WINDOW);
        core_ask(&core, &ask, ROWS);
        memset(scores, 0, LAYERS * ROWS * sizeof(float));
        scores[2 * ROWS + 35] = NAN;
        ask.groups[0].score_kind = 1;
        ask.groups[0].scores_in = (struct ckv_record_slice){ .region_id = CORE_WRITABLE,
                                                             .offset = core.spare_at,
                                                             .size = LAYERS * ROWS * sizeof(float) };
        start();
        ended(CKV_CODE_NONFINITE_SCORE, CKV_F_GROUP_SCORES_IN, CKV_D_NONFINITE);
        ck_assert_uint_eq(core.answer.record.body.result.status.arg[0], 2);
        ck_assert_uint_eq(core.answer.record.body.result.status.arg[1], 3);
}
END_TEST

/* ask_for_sets() - layers 0 and 1 keep other chunks than layer 2: 50 rows, of them 4 sinks and 32 of the window */
static void ask_for_sets(void) {
        float *scores = (float *)(void *)(core.memory + core.spare_at);

        for (uint32_t i = 0; i < LAYERS * ROWS; i++)
                scores[i] = i / ROWS < 2 ? (float)(i % ROWS) : -(float)(i % ROWS);
        ask.groups[0].score_kind = 1;
        ask.groups[0].scores_in = (struct ckv_record_slice){ .region_id = CORE_WRITABLE,
                                                             .offset = core.spare_at,
                                                             .size = LAYERS * ROWS * sizeof(float) };
}

START_TEST(sets_of_an_answer) {
        /* best first: chunk 6 has rows 60..67 outside the window, chunk 5 leads with 6; and chunk 0 has 4..9, chunk 1
         * leads with 8 */
        static const uint32_t late[] = { 0, 4, 46, 6, 4, 40 }, early[] = { 0, 18, 50, 32 };
        const struct ckv_record_result *result = &core.answer.record.body.result;
        const struct ckv_record_group_result *group;
        const struct ckv_record_set *sets;
        const uint32_t *words;

        ask_for_sets();
        ck_assert_int_eq(core_run(&core, &ask)->code, CKV_CODE_OK);
        group = (const void *)core.answer.attachment;
        sets = (const void *)(core.answer.attachment + sizeof(*group) + sizeof(struct ckv_record_policy));
        words = (const void *)(sets + 2);
        ck_assert_uint_eq(result->u.compressed.set_count, 2);
        ck_assert_uint_eq(result->u.compressed.phase, CKV_PHASE_DONE);
        ck_assert_uint_eq(group->physical_before, ROWS);
        ck_assert_uint_eq(group->physical_len, 50);
        ck_assert_uint_eq(group->table_used, 4);
        ck_assert_uint_eq(group->budget, 50);
        ck_assert_uint_eq(group->set_count, 2);
        ck_assert_uint_gt(group->bytes_moved, 0);
        ck_assert(sets[0].layer_first == 0 && sets[1].layer_first == 2);
        ck_assert_uint_eq(sets[0].run_count, CKV_ARRAY_SIZE(late));
        ck_assert_uint_eq(sets[1].run_count, CKV_ARRAY_SIZE(early));
        ck_assert_uint_eq(result->u.compressed.word_count, CKV_ARRAY_SIZE(late) + CKV_ARRAY_SIZE(early));
        ck_assert_mem_eq(words, late, sizeof(late));
        ck_assert_mem_eq(words + CKV_ARRAY_SIZE(late), early, sizeof(early));
        ck_assert_uint_eq(core.answer.bytes,
                          (size_t)((const uint8_t *)words - core.answer.attachment) + sizeof(late) + sizeof(early));
}
END_TEST

/* The words in a region are those that the digest is over, whatever the form of the answer. */
START_TEST(digest_of_the_words) {
        static const uint32_t want[] = {
                0, 0, 0, ROWS, 50, 6, 0, 4, 46, 6, 4, 40, 0, 2, 0, ROWS, 50, 4, 0, 18, 50, 32
        };
        struct ckv_record_group_result group;
        uint64_t at = core.spare_at + 8192, digest;

        ask_for_sets();
        ask.body.mode = CKV_MODE_PLAN;
        ask.body.reply_form = CKV_REPLY_IN_REGION;
        ask.body.reply_to = (struct ckv_record_slice){ .region_id = CORE_WRITABLE, .offset = at, .size = 4096 };
        ck_assert_int_eq(core_run(&core, &ask)->code, CKV_CODE_OK);
        memcpy(&group, core.answer.attachment, sizeof(group));
        ck_assert_mem_eq(core.memory + at, want, sizeof(want));
        ck_assert(group.sets_sent == 0 && group.set_count == 2);
        digest = group.kept_digest;
        ck_assert_uint_eq(digest, ckv_fnv64(CKV_FNV64_INIT, want, sizeof(want)));
        for (uint8_t form = CKV_REPLY_RUNS; form <= CKV_REPLY_NO_SETS; form++) {
                if (form == CKV_REPLY_IN_REGION || form == CKV_REPLY_IN_SLOT)
                        continue;
                ask.body.reply_form = form;
                ask.body.reply_to = (struct ckv_record_slice){ 0 };
                ck_assert_int_eq(core_run(&core, &ask)->code, CKV_CODE_OK);
                memcpy(&group, core.answer.attachment, sizeof(group));
                ck_assert_uint_eq(group.kept_digest, digest);
                ck_assert_uint_eq(group.sets_sent, form == CKV_REPLY_NO_SETS ? 0 : 2);
        }
}
END_TEST

/* A run of rows whose positions have a gap is two runs of positions. */
START_TEST(positions_of_an_answer) {
        static const uint32_t positions[] = { 3, 40, 2, 20, 1, 40 }, given[] = { 10, 40, 10, 5 };
        /* rows 10..39 sit at 13..42, 40..49 at 45..54, 60..64 at 66..70 */
        static const uint32_t rows_want[] = { 10, 40, 10, 5 }, positions_want[] = { 13, 30, 2, 10, 11, 5 };
        const struct ckv_record_set *set;
        const uint32_t *words;

        ask.words[0].position_runs = positions;
        ask.groups[0].position_run_count = CKV_ARRAY_SIZE(positions);
        ask.words[0].given_runs = given;
        ask.groups[0].given_run_count = CKV_ARRAY_SIZE(given);
        ask.body.logical_len = 200;
        ck_assert_int_eq(core_run(&core, &ask)->code, CKV_CODE_OK);
        set = (const void *)(core.answer.attachment + sizeof(struct ckv_record_group_result) +
                             sizeof(struct ckv_record_policy));
        words = (const void *)(set + 1);
        ck_assert_uint_eq(set->run_count, CKV_ARRAY_SIZE(rows_want));
        ck_assert_uint_eq(set->position_run_count, CKV_ARRAY_SIZE(positions_want));
        ck_assert_mem_eq(words, rows_want, sizeof(rows_want));
        ck_assert_mem_eq(words + set->run_count, positions_want, sizeof(positions_want));
}
END_TEST

int main(void) {
        Suite *suite = suite_create("request");
        TCase *tcase = tcase_create("requests");
        SRunner *runner = srunner_create(suite);
        int failed;

        suite_add_tcase(suite, tcase);
        tcase_set_timeout(tcase, 60);
        tcase_add_checked_fixture(tcase, setup, teardown);
        tcase_add_test(tcase, too_late_to_commit);
        tcase_add_test(tcase, cancelled_before_and_after);
        tcase_add_test(tcase, memory_that_was_punched);
        tcase_add_test(tcase, outcomes_of_a_plan);
        tcase_add_test(tcase, sets_of_an_answer);
        tcase_add_test(tcase, digest_of_the_words);
        tcase_add_test(tcase, positions_of_an_answer);
        srunner_run_all(runner, CK_NORMAL);
        failed = srunner_ntests_failed(runner);
        srunner_free(runner);
        return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
