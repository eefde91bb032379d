/*
 * Admission of everything but tables and queries: numbers at their limits,
 * lists of positions, spans and runs, scores; and that each request pays for
 * what it holds and gives it back.
 */
#include "base/macros.h"
#include "daemon/cache.h"
#include "tests/support_core.h"

#include <check.h>
#include <string.h>

enum { ROWS = 100, TOKENS = 16, LAYERS = 3, SPANS = 1024 };

static struct core core;
static struct core_ask ask;

static void setup(void) {
        core_init(&core, &(struct core_shape){ .groups = 1,
                                               .layers = LAYERS,
                                               .kv_heads = 2,
                                               .q_heads = 4,
                                               .dims = 4,
                                               .tokens_per_block = TOKENS,
                                               .num_blocks = 16 });
}

static void teardown(void) {
        core_deinit(&core);
}

#define WORDS(list, counter, ...) \
        do { \
                static const uint32_t words_[] = { __VA_ARGS__ }; \
                ask.words[0].list = words_; \
                ask.groups[0].counter = CKV_ARRAY_SIZE(words_); \
        } while (0)
#define POSITIONS(...) WORDS(position_runs, position_run_count, __VA_ARGS__)
#define CHUNKS(...) \
        do { \
                WORDS(chunk_lengths, chunk_length_count, __VA_ARGS__); \
                ask.policies[0].selector = CKV_SELECTOR_CHUNK_AT; \
        } while (0)
#define GIVEN(...) WORDS(given_runs, given_run_count, __VA_ARGS__)
#define REFUSED(code, field, detail, ...) \
        do { \
                core_ask(&core, &ask, ROWS); \
                __VA_ARGS__; \
                core_refused(&core, &ask, CKV_CODE_##code, CKV_F_##field, CKV_D_##detail); \
        } while (0)
#define ADMITTED(...) \
        do { \
                core_ask(&core, &ask, ROWS); \
                __VA_ARGS__; \
                ck_assert_int_eq(core_run(&core, &ask)->code, CKV_CODE_OK); \
        } while (0)

static struct ckv_record_slice spare(uint64_t size) {
        return (struct ckv_record_slice){ .region_id = CORE_WRITABLE, .offset = core.spare_at, .size = size };
}

START_TEST(request_at_its_limits) {
        core.options.rows = ROWS;
        ADMITTED();
        core.options.rows = ROWS - 1;
        REFUSED(OUT_OF_RANGE, GROUP_PHYSICAL_LEN, ROWS_OVER_LIMIT, ask.body.logical_len = UINT32_MAX);
        core.options.rows = ROWS;
        ADMITTED(ask.body.logical_len = UINT32_MAX);
        REFUSED(INVALID_ARGUMENT, COMPRESS_LOGICAL_LEN, LOGICAL_LEN, ask.body.logical_len = ROWS - 1);
        REFUSED(OUT_OF_RANGE, GROUP_GROUP, AT_MOST, ask.groups[0].group = 1);
        REFUSED(OUT_OF_RANGE, COMPRESS_GROUPS, COUNT, ask.body.group_count = 0);
        REFUSED(INVALID_ARGUMENT, COMPRESS_MODE, ENUM, ask.body.mode = CKV_MODE_NONE);
        REFUSED(INVALID_ARGUMENT, COMPRESS_MODE, ENUM, ask.body.mode = CKV_MODE_COPY_OUT + 1);
        REFUSED(INVALID_ARGUMENT, COMPRESS_REPLY_FORM, ENUM, ask.body.reply_form = CKV_REPLY_NO_SETS + 1);
        REFUSED(INVALID_ARGUMENT, COMPRESS_CONTROL_SLOT, MISSING, ask.body.reply_form = CKV_REPLY_IN_SLOT);
        REFUSED(NOT_FOUND, COMPRESS_CONTROL_SLOT, NO_CONTROL_PAGE, ask.body.control_slot = 1);
        REFUSED(NOT_FOUND, COMPRESS_CACHE_ID, UNKNOWN_ID, ask.body.cache_id++);
        REFUSED(INVALID_ARGUMENT, COMPRESS_REPLY_TO, NOT_USED, ask.body.reply_to = spare(4096));
        REFUSED(PERMISSION, COMPRESS_REPLY_TO, READ_ONLY, ask.body.reply_form = CKV_REPLY_IN_REGION;
                ask.body.reply_to = spare(4096); ask.body.reply_to.region_id = CORE_READ_ONLY);
        REFUSED(NOT_FOUND, COMPRESS_REPLY_TO, UNKNOWN_ID, ask.body.reply_form = CKV_REPLY_IN_REGION);
        core.regions[CORE_WRITABLE - 1].writable = false;
        REFUSED(PERMISSION, COMPRESS_MODE, READ_ONLY, ask.body.mode = CKV_MODE_IN_PLACE);
        ADMITTED();
}
END_TEST

START_TEST(policy_against_the_group) {
        ADMITTED(ask.policies[0].reuse = LAYERS);
        REFUSED(OUT_OF_RANGE, POLICY_REUSE, RANGE, ask.policies[0].reuse = LAYERS + 1);
        REFUSED(INVALID_ARGUMENT, POLICY_LAYER_FIRST, FIRST_POLICY, ask.policies[0].layer_first = 1);
        core.cache->groups[0].layers[0].number = 1;   /* as if the group began there */
        ADMITTED(ask.policies[0].layer_first = 1);
        REFUSED(INVALID_ARGUMENT, POLICY_LAYER_FIRST, FIRST_POLICY, ask.policies[0].layer_first = 2);
        core.cache->groups[0].layers[0].number = 0;
        REFUSED(OUT_OF_RANGE, POLICY_WINDOW, RANGE, ask.policies[0].window = 257);
        REFUSED(INVALID_ARGUMENT, POLICY_POOL_SIZE, ODD, ask.policies[0].pool_size = 4);
        REFUSED(INVALID_ARGUMENT, POLICY_PROFILE, ENUM, ask.policies[0].profile = CKV_PROFILE_VOTE + 1);
        REFUSED(INVALID_ARGUMENT, POLICY_SCORER, ENUM, ask.policies[0].scorer = CKV_SCORER_GIVEN + 1);
        ADMITTED(ask.policies[0].scorer = CKV_SCORER_KNORM; ask.body.has_queries = 0);
        REFUSED(INVALID_ARGUMENT, POLICY_FILL, PROFILE_FIXES, ask.policies[0].profile = CKV_PROFILE_PAPER;
                ask.policies[0].fill = CKV_FILL_LEAD);
        REFUSED(INVALID_ARGUMENT, GROUP_MAX_TOKENS, PROFILE_FIXES, ask.policies[0].profile = CKV_PROFILE_KVPRESS;
                ask.groups[0].max_tokens = 5);
        REFUSED(OUT_OF_RANGE, GROUP_KEEP_RATIO, RANGE, ask.groups[0].keep_ratio = 0);
        REFUSED(OUT_OF_RANGE, GROUP_KEEP_RATIO, RANGE, ask.groups[0].keep_ratio = 1000001);
        ADMITTED(ask.groups[0].keep_ratio = 1000000);
        ADMITTED(ask.groups[0].keep_ratio = 0; ask.groups[0].max_tokens = 1);
        ADMITTED(ask.body.policy_count = ask.groups[0].policy_count = 0);
}
END_TEST

/* expect_positions() - start, look, finish */
static void expect_positions(const uint32_t *want) {
        struct ckv_record_status status;

        ck_assert(core_start(&core, &ask, &status));
        ck_assert_mem_eq(core.request->job->groups[0].selection.positions, want, ROWS * sizeof(*want));
        core_finish(&core);
}

START_TEST(positions) {
        uint32_t want[ROWS];

        core_ask(&core, &ask, ROWS);
        POSITIONS(2, 3, 5, 97);
        ask.body.logical_len = 107;
        for (uint32_t j = 0; j < ROWS; j++)
                want[j] = j < 3 ? 2 + j : 7 + j;
        expect_positions(want);
        REFUSED(OUT_OF_RANGE, GROUP_POSITION_RUNS, AT_MOST, POSITIONS(2, 3, 5, 97); ask.body.logical_len = 106);
        REFUSED(OUT_OF_RANGE, GROUP_POSITION_RUNS, AT_LEAST, POSITIONS(0, ROWS - 1));
        REFUSED(OUT_OF_RANGE, GROUP_POSITION_RUNS, AT_MOST, POSITIONS(0, ROWS + 1); ask.body.logical_len = 1000);
        REFUSED(OUT_OF_RANGE, GROUP_POSITION_RUNS, AT_LEAST, POSITIONS(0, 40, 0, 60));
        REFUSED(OUT_OF_RANGE, GROUP_POSITION_RUNS, AT_LEAST, POSITIONS(0, 40, 1, 60, 3, 0);
                ask.body.logical_len = 1000);
        REFUSED(INVALID_ARGUMENT, GROUP_POSITION_RUNS, EVEN_COUNT, POSITIONS(0, ROWS, 1); ask.body.logical_len = 1000);
        core_ask(&core, &ask, ROWS);
        POSITIONS(UINT32_MAX - ROWS, ROWS);
        ask.body.logical_len = UINT32_MAX;
        for (uint32_t j = 0; j < ROWS; j++)
                want[j] = UINT32_MAX - ROWS + j;
        expect_positions(want);
}
END_TEST

/* expect_prefix() - the span that protect_prefix becomes */
static void expect_prefix(uint32_t prefix, uint32_t first, uint32_t count) {
        const struct ckv_selection *selection;
        struct ckv_record_status status;

        ask.groups[0].protect_prefix = prefix;
        ck_assert(core_start(&core, &ask, &status));
        selection = &core.request->job->groups[0].selection;
        ck_assert_uint_eq(selection->span_count, 1);
        ck_assert_uint_eq(selection->spans[0].first, first);
        ck_assert_uint_eq(selection->spans[0].count, count);
        core_finish(&core);
}

START_TEST(prefix_in_whole_blocks) {
        core_ask(&core, &ask, ROWS);
        expect_prefix(1, 0, TOKENS);
        expect_prefix(TOKENS, 0, TOKENS);
        expect_prefix(TOKENS + 1, 0, 2 * TOKENS);
        expect_prefix(6 * TOKENS + 1, 0, ROWS);
        expect_prefix(ROWS, 0, ROWS);
        POSITIONS(2, 3, 5, 97);
        ask.body.logical_len = 107;
        expect_prefix(1, 2, TOKENS + 5);
        REFUSED(OUT_OF_RANGE, GROUP_PROTECT_PREFIX, AT_MOST, ask.groups[0].protect_prefix = ROWS + 1);
        /* kvpress and paper protect nothing, so they would write into the prefix */
        for (uint8_t profile = CKV_PROFILE_PAPER; profile <= CKV_PROFILE_KVPRESS; profile++) {
                REFUSED(INVALID_ARGUMENT, GROUP_PROTECT_PREFIX, PROFILE_FIXES, ask.groups[0].protect_prefix = 1;
                        ask.policies[0].profile = profile; ask.policies[0].window = 8);
                REFUSED(INVALID_ARGUMENT, GROUP_PROTECT, PROFILE_FIXES, WORDS(spans, span_count, 5, 1);
                        ask.groups[0].span_count = 1; ask.policies[0].profile = profile; ask.policies[0].window = 8);
        }
        /* and a kept set that drops a row of it would too */
        REFUSED(INVALID_ARGUMENT, GROUP_GIVEN_RUNS, PREFIX_DROPPED, GIVEN(0, TOKENS - 1, 1, 50);
                ask.groups[0].protect_prefix = 1);
        REFUSED(INVALID_ARGUMENT, GROUP_GIVEN_RUNS, PREFIX_DROPPED, GIVEN(1, 90); ask.groups[0].protect_prefix = 1);
        ADMITTED(GIVEN(0, TOKENS, 1, 50); ask.groups[0].protect_prefix = TOKENS);
        ADMITTED(GIVEN(0, 5); ask.policies[0].profile = CKV_PROFILE_PAPER);
}
END_TEST

START_TEST(spans_and_chunks) {
        static uint32_t spans[2 * (SPANS + 1)];

        ck_assert_uint_eq(SPANS, CKV_LIMIT_SPANS);
        for (uint32_t i = 0; i < CKV_ARRAY_SIZE(spans); i++)
                spans[i] = 1;
        ADMITTED(ask.words[0].spans = spans; ask.groups[0].span_count = SPANS; ask.groups[0].protect_prefix = 1);
        REFUSED(OUT_OF_RANGE, GROUP_PROTECT, COUNT, ask.words[0].spans = spans; ask.groups[0].span_count = SPANS + 1);
        REFUSED(OUT_OF_RANGE, GROUP_PROTECT, AT_LEAST, WORDS(spans, span_count, 5, 0); ask.groups[0].span_count = 1);
        ADMITTED(WORDS(spans, span_count, UINT32_MAX, UINT32_MAX); ask.groups[0].span_count = 1);
        ADMITTED(CHUNKS(1, 98, 1));
        REFUSED(OUT_OF_RANGE, GROUP_CHUNK_LENGTHS, RANGE, CHUNKS(1, 97, 1));
        REFUSED(OUT_OF_RANGE, GROUP_CHUNK_LENGTHS, RANGE, CHUNKS(1, 99, 1));
        REFUSED(OUT_OF_RANGE, GROUP_CHUNK_LENGTHS, RANGE, CHUNKS(UINT32_MAX, ROWS + 1));
        REFUSED(OUT_OF_RANGE, GROUP_CHUNK_LENGTHS, AT_LEAST, CHUNKS(50, 0, 50));
        REFUSED(OUT_OF_RANGE, GROUP_CHUNK_LENGTHS, RANGE, ask.policies[0].selector = CKV_SELECTOR_CHUNK_AT);
        REFUSED(INVALID_ARGUMENT, GROUP_CHUNK_LENGTHS, CHUNKS_UNUSED, CHUNKS(1, 98, 1);
                ask.policies[0].selector = CKV_SELECTOR_CHUNK);
}
END_TEST

START_TEST(given_sets) {
        struct ckv_record_status status;
        const struct ckv_job_group *group;

        core_ask(&core, &ask, ROWS);
        GIVEN(3, 7, 10, 80);
        ask.groups[0].keep_ratio = 0;
        ask.body.has_queries = 0;
        ck_assert(core_start(&core, &ask, &status));
        group = &core.request->job->groups[0];
        ck_assert(group->given && group->kept_count == 1 && group->kept[0].run_count == 2 &&
                  group->kept[0].count == 87);
        ck_assert_mem_eq(group->kept[0].runs, ((struct ckv_run[]){ { 3, 7, 0 }, { 20, 80, 7 } }),
                         2 * sizeof(struct ckv_run));
        core_finish(&core);
        REFUSED(OUT_OF_RANGE, GROUP_GIVEN_RUNS, RUNS_PAST_END, GIVEN(3, 7, 10, 81));
        REFUSED(OUT_OF_RANGE, GROUP_GIVEN_RUNS, AT_LEAST, GIVEN(3, 7, 0, 5));
        REFUSED(INVALID_ARGUMENT, GROUP_GIVEN_RUNS, EVEN_COUNT, GIVEN(3, 7, 10));
        REFUSED(INVALID_ARGUMENT, GROUP_SCORES_IN, NOT_USED, GIVEN(0, 5); ask.groups[0].scores_in = spare(400));
        REFUSED(INVALID_ARGUMENT, GROUP_SCORES_OUT, NOT_USED, GIVEN(0, 5); ask.groups[0].scores_out = spare(400));
}
END_TEST

#define SCORES_IN(kind, bytes) \
        do { \
                ask.groups[0].score_kind = (kind); \
                ask.groups[0].scores_in = spare(bytes); \
                ask.body.has_queries = 0; \
        } while (0)

START_TEST(scores_in_and_out) {
        enum { ALL = LAYERS * ROWS * sizeof(float) };
        struct ckv_record_status status;

        memset(core.memory + core.spare_at, 0, ALL + 8);
        ADMITTED(SCORES_IN(1, ALL));
        REFUSED(INVALID_ARGUMENT, GROUP_SCORES_IN, SCORES_SIZE, SCORES_IN(1, ALL + 4));
        REFUSED(INVALID_ARGUMENT, GROUP_SCORES_IN, SCORES_SIZE, SCORES_IN(1, ALL - 1));
        REFUSED(INVALID_ARGUMENT, GROUP_SCORE_KIND, ENUM, SCORES_IN(2, ALL));
        REFUSED(INVALID_ARGUMENT, GROUP_SCORE_KIND, ROWS_NEEDED, SCORES_IN(0, 4); ask.policies[0].fill = CKV_FILL_BEST);
        REFUSED(NOT_FOUND, GROUP_SCORES_IN, UNKNOWN_ID, SCORES_IN(1, ALL); ask.groups[0].scores_in.region_id = 3);
        REFUSED(NOT_FOUND, GROUP_SCORES_OUT, UNKNOWN_ID, ask.groups[0].scores_out = spare(ALL);
                ask.groups[0].scores_out.region_id = 3);
        REFUSED(PERMISSION, GROUP_SCORES_OUT, READ_ONLY, ask.groups[0].scores_out = spare(ALL);
                ask.groups[0].scores_out.region_id = CORE_READ_ONLY);
        ADMITTED(SCORES_IN(1, ALL); ask.groups[0].scores_in.region_id = CORE_READ_ONLY);
        /* a size that only the plan can judge is an outcome, with what it should have been */
        core_ask(&core, &ask, ROWS);
        SCORES_IN(1, ALL - 4);
        ck_assert_int_eq(core_run(&core, &ask)->code, CKV_CODE_INVALID_ARGUMENT);
        ck_assert_uint_eq(core.answer.record.body.result.status.field, CKV_F_GROUP_SCORES_IN);
        ck_assert_uint_eq(core.answer.record.body.result.status.arg[0], ALL);
        ck_assert_uint_eq(core.answer.record.body.result.status.arg[1], ALL - 4);
        /* what comes in is the request's own from the start */
        core_ask(&core, &ask, ROWS);
        SCORES_IN(1, ALL);
        ck_assert(core_start(&core, &ask, &status));
        memset(core.memory + core.spare_at, 0xff, ALL);
        core_finish(&core);
        ck_assert_int_eq(core.answer.record.body.result.status.code, CKV_CODE_OK);
        /* and is paid for: what could never be is not even copied */
        core.session.tenant->limit[CKV_SLOT_QUEUED_BYTES] = ALL - 1;
        core_ask(&core, &ask, ROWS);
        SCORES_IN(1, ALL);
        core_refused(&core, &ask, CKV_CODE_QUOTA, CKV_F_GROUP_SCORES_IN, CKV_D_QUOTA);
}
END_TEST

/* queued() - QUEUED_BYTES that are held for good; stored sets make way for them */
static uint64_t queued(void) {
        return core.session.tenant->used[CKV_SLOT_QUEUED_BYTES] - core.session.tenant->evictable_bytes;
}

/* charged() - what a request holds of QUEUED_BYTES while it runs; one byte less must be refused */
static uint64_t charged(void) {
        struct ckv_tenant *tenant = core.session.tenant;
        struct ckv_record_status status;
        uint64_t before = queued(), bytes, limit = tenant->limit[CKV_SLOT_QUEUED_BYTES];

        ck_assert(core_start(&core, &ask, &status));
        bytes = queued() - before;
        ck_assert_uint_eq(tenant->used[CKV_SLOT_REQUESTS], 1);
        core_finish(&core);
        ck_assert_uint_eq(queued(), before);
        tenant->limit[CKV_SLOT_QUEUED_BYTES] = before + bytes - 1;
        core_refused(&core, &ask, CKV_CODE_QUOTA, CKV_F_NONE, CKV_D_QUOTA);
        ck_assert_uint_eq(queued(), before);
        tenant->limit[CKV_SLOT_QUEUED_BYTES] = before + bytes;
        ck_assert_int_eq(core_run(&core, &ask)->code, CKV_CODE_OK);
        tenant->limit[CKV_SLOT_QUEUED_BYTES] = limit;
        return bytes;
}

START_TEST(requests_pay) {
        uint64_t plain, scores, copy;

        core_ask(&core, &ask, ROWS);
        plain = charged();
        ck_assert_uint_ge(plain, ROWS * sizeof(uint32_t));
        memset(core.memory + core.spare_at, 0, LAYERS * ROWS * sizeof(float));
        SCORES_IN(1, LAYERS * ROWS * sizeof(float));
        scores = charged();
        ck_assert_uint_eq(scores, plain + LAYERS * ROWS * sizeof(float));
        core_ask(&core, &ask, ROWS);
        ask.body.mode = CKV_MODE_COPY_OUT;
        WORDS(destination, destination_count, 8, 9, 10, 11);
        ask.groups[0].destination_form = 1;
        copy = charged();
        ck_assert_uint_ge(copy, plain + ROWS * sizeof(uint32_t));
}
END_TEST

/* held() - what a request holds of QUEUED_BYTES while it runs */
static uint64_t held(void) {
        uint64_t before = queued(), bytes;
        struct ckv_record_status status;

        ck_assert(core_start(&core, &ask, &status));
        bytes = queued() - before;
        core_finish(&core);
        return bytes;
}

/* Single rows make more runs than chunks do, and every KV head that has a set of its own makes as many again. */
START_TEST(kept_sets_are_paid_for) {
        enum { MORE = LAYERS * (ROWS / 4) * sizeof(struct ckv_run) };
        uint64_t chunks, rows;

        core_ask(&core, &ask, ROWS);
        chunks = held();
        ask.policies[0].selector = CKV_SELECTOR_TOKEN;
        rows = held();
        ck_assert_uint_ge(rows, chunks + MORE);
        ask.body.mode = CKV_MODE_IN_PLACE;
        ask.policies[0].heads = CKV_HEADS_EACH;
        ck_assert_uint_ge(held(), rows + MORE);
        core.session.tenant->limit[CKV_SLOT_QUEUED_BYTES] = queued() + rows;
        core_refused(&core, &ask, CKV_CODE_QUOTA, CKV_F_NONE, CKV_D_QUOTA);
}
END_TEST

START_TEST(requests_in_flight) {
        struct ckv_record_status status;
        struct ckv_request *first;

        core_ask(&core, &ask, ROWS);
        core.session.tenant->limit[CKV_SLOT_REQUESTS] = 1;
        ck_assert(core_start(&core, &ask, &status));
        first = core.request;
        ck_assert_uint_eq(first->region_count, 1);
        ck_assert_uint_ge(core.regions[0].request_uses, 1);
        ck_assert_uint_eq(core.cache->request_uses, 1);
        ck_assert(!ckv_cache_unregister(&core.session, core.cache->id, &status));
        ck_assert_int_eq(status.code, CKV_CODE_BUSY);
        /* a cache of several planes is one, and so is a request */
        ck_assert(!ckv_region_unregister(&core.session, CORE_WRITABLE, &status));
        ck_assert_int_eq(status.code, CKV_CODE_BUSY);
        ck_assert_uint_eq(status.arg[0], 2);
        core_finish(&core);
        ck_assert(!ckv_region_unregister(&core.session, CORE_WRITABLE, &status));
        ck_assert_int_eq(status.code, CKV_CODE_INVALID_ARGUMENT); /* the cache still lies in it */
        ck_assert_uint_eq(status.arg[0], 1);
        core.session.tenant->limit[CKV_SLOT_REQUESTS] = 0;
        core_refused(&core, &ask, CKV_CODE_QUOTA, CKV_F_NONE, CKV_D_QUOTA);
        core.session.tenant->limit[CKV_SLOT_REQUESTS] = 1;
        ck_assert_int_eq(core_run(&core, &ask)->code, CKV_CODE_OK);
}
END_TEST

int main(void) {
        Suite *suite = suite_create("admit");
        TCase *tcase = tcase_create("requests");
        SRunner *runner = srunner_create(suite);
        int failed;

        suite_add_tcase(suite, tcase);
        tcase_set_timeout(tcase, 60);
        tcase_add_checked_fixture(tcase, setup, teardown);
        tcase_add_test(tcase, request_at_its_limits);
        tcase_add_test(tcase, policy_against_the_group);
        tcase_add_test(tcase, positions);
        tcase_add_test(tcase, prefix_in_whole_blocks);
        tcase_add_test(tcase, spans_and_chunks);
        tcase_add_test(tcase, given_sets);
        tcase_add_test(tcase, scores_in_and_out);
        tcase_add_test(tcase, requests_pay);
        tcase_add_test(tcase, kept_sets_are_paid_for);
        tcase_add_test(tcase, requests_in_flight);
        srunner_run_all(runner, CK_NORMAL);
        failed = srunner_ntests_failed(runner);
        srunner_free(runner);
        return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
