/*
 * Policies of a request: several in one group, those that ask for what the
 * request does not bring, and the floats that may come beside queries.
 */
#include "base/macros.h"
#include "daemon/cache.h"
#include "tests/support_core.h"

#include <check.h>
#include <math.h>
#include <string.h>

enum { ROWS = 100, LAYERS = 4, KV_HEADS = 2, Q_HEADS = 4, QUERY_ROWS = 32 };

static struct core core;
static struct core_ask ask;

/* Two groups: layers 0 to 3 and 4 to 7. */
static void setup(void) {
        core_init(&core, &(struct core_shape){ .groups = 2,
                                               .layers = LAYERS,
                                               .kv_heads = KV_HEADS,
                                               .q_heads = Q_HEADS,
                                               .dims = 4,
                                               .tokens_per_block = 16,
                                               .num_blocks = 16 });
}

static void teardown(void) {
        core_deinit(&core);
}

/* ask_parts() - @count policies for group 0, beginning with these layers, and one for group 1 */
static void ask_parts(uint32_t count, const uint32_t *firsts) {
        core_ask(&core, &ask, ROWS);
        for (uint32_t k = 0; k < count; k++)
                ask.policies[k].layer_first = firsts[k];
        ask.groups[0].policy_count = count;
        ask.body.policy_count = count + 1;
}

#define PARTS(...) \
        do { \
                static const uint32_t firsts_[] = { __VA_ARGS__ }; \
                ask_parts(CKV_ARRAY_SIZE(firsts_), firsts_); \
        } while (0)
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

START_TEST(layers_of_policies) {
        const struct ckv_job_group *groups;
        struct ckv_record_status status;

        REFUSED(INVALID_ARGUMENT, POLICY_LAYER_FIRST, FIRST_POLICY, PARTS(1, 2));
        REFUSED(INVALID_ARGUMENT, POLICY_LAYER_FIRST, ORDER, PARTS(0, 2, 2));
        REFUSED(INVALID_ARGUMENT, POLICY_LAYER_FIRST, ORDER, PARTS(0, 0));
        REFUSED(INVALID_ARGUMENT, POLICY_LAYER_FIRST, NOT_IN_GROUP, PARTS(0, 4));
        ADMITTED(PARTS(0, 1, 2, 3));
        PARTS(0, 3);
        ask.policies[1].selector = CKV_SELECTOR_TOKEN;
        ask.policies[1].given = CKV_GIVEN_SINKS;
        ask.policies[2].chunk = 7; /* of group 1 */
        ck_assert(core_start(&core, &ask, &status));
        groups = core.request->job->groups;
        ck_assert_uint_eq(core.request->job->group_count, 3);
        ck_assert_uint_eq(groups[0].layer_count, 3);
        ck_assert_uint_eq(groups[1].layer_count, 1);
        ck_assert_uint_eq(groups[1].layers[0].number, 3);
        ck_assert_uint_eq(groups[1].layer_index, 3);
        ck_assert_uint_eq(groups[1].policy.selector, CKV_SELECTOR_TOKEN);
        ck_assert_uint_eq(groups[1].policy.layer_first, 3);
        ck_assert_uint_eq(groups[1].number, 0);
        ck_assert_ptr_eq(groups[1].table.entries, groups[0].table.entries);
        ck_assert_ptr_eq(groups[1].selection.policy, &groups[1].policy);
        ck_assert(groups[1].shares_lists && !groups[0].shares_lists && !groups[2].shares_lists);
        ck_assert_uint_eq(groups[2].number, 1);
        ck_assert_uint_eq(groups[2].layer_index, 0);
        ck_assert_uint_eq(groups[2].policy.chunk, 7);
        for (uint32_t part = 0; part < 3; part++)
                ck_assert_uint_eq(ckv_request_group_of(core.request, part), part / 2);
        core_finish(&core);
        ck_assert_int_eq(core.answer.record.body.result.status.code, CKV_CODE_OK);
}
END_TEST

/* group_result() - of the answer */
static struct ckv_record_group_result group_result(uint32_t index) {
        struct ckv_record_group_result result;

        memcpy(&result, core.answer.attachment + index * sizeof(result), sizeof(result));
        return result;
}

START_TEST(parts_in_the_answer) {
        const struct ckv_record_result *result = &core.answer.record.body.result;
        const struct ckv_record_policy *policies;
        const struct ckv_record_set *sets;

        PARTS(0, 2);
        ask.policies[0].layers = ask.policies[1].layers = CKV_LAYERS_ONE;
        ask.policies[1].selector = CKV_SELECTOR_TOKEN;
        ask.policies[2].layers = CKV_LAYERS_ONE;
        ck_assert_int_eq(core_run(&core, &ask)->code, CKV_CODE_OK);
        ck_assert_uint_eq(result->u.compressed.group_count, 2);
        ck_assert_uint_eq(result->u.compressed.policy_count, 3);
        ck_assert_uint_eq(group_result(0).policy_count, 2);
        ck_assert_uint_eq(group_result(0).set_count, 2);
        ck_assert_uint_eq(group_result(0).physical_len, ROWS / 2);
        ck_assert_uint_eq(group_result(1).policy_count, 1);
        ck_assert_uint_eq(group_result(1).group, 1);
        policies = (const void *)(core.answer.attachment + 2 * sizeof(struct ckv_record_group_result));
        ck_assert_uint_eq(policies[1].layer_first, 2);
        ck_assert_uint_eq(policies[1].selector, CKV_SELECTOR_TOKEN);
        ck_assert_uint_eq(policies[2].layer_first, 4);
        sets = (const void *)(policies + 3);
        ck_assert_uint_eq(sets[0].layer_first, 0);
        ck_assert_uint_eq(sets[1].layer_first, 2);
        ck_assert_uint_eq(sets[2].layer_first, 4);
        /* parts that keep the same rows share a set */
        PARTS(0, 1, 3);
        for (uint32_t k = 0; k < 4; k++)
                ask.policies[k].selector = CKV_SELECTOR_STREAMING;
        ask.body.has_queries = 0;
        ck_assert_int_eq(core_run(&core, &ask)->code, CKV_CODE_OK);
        ck_assert_uint_eq(group_result(0).set_count, 1);
}
END_TEST

START_TEST(lists_of_parts) {
        static const uint32_t lengths[] = { 50, 50 }, positions[] = { 0, 60, 5, 40 }, given[] = { 0, 20 };
        struct ckv_record_status status;

        PARTS(0, 2);
        ask.policies[1].selector = CKV_SELECTOR_CHUNK_AT;
        ask.words[0].chunk_lengths = lengths;
        ask.words[0].position_runs = positions;
        ask.groups[0].chunk_length_count = 2;
        ask.groups[0].position_run_count = 4;
        ask.body.logical_len = 105;
        ck_assert(core_start(&core, &ask, &status));
        ck_assert_uint_eq(core.request->job->groups[1].selection.chunk_length_count, 2);
        ck_assert_uint_eq(core.request->job->groups[1].selection.positions[60], 65);
        core_finish(&core);
        PARTS(0, 2);
        ask.words[0].given_runs = given;
        ask.groups[0].given_run_count = 2;
        ask.groups[0].keep_ratio = 0;
        ck_assert_int_eq(core_run(&core, &ask)->code, CKV_CODE_OK);
        ck_assert_uint_eq(group_result(0).set_count, 1);
        ck_assert_uint_eq(group_result(0).physical_len, 20);
        /* the second policy protects another number of spans than the first allows */
        PARTS(0, 2);
        ask.policies[1].profile = CKV_PROFILE_PAPER;
        ask.groups[0].protect_prefix = 1;
        core_refused(&core, &ask, CKV_CODE_INVALID_ARGUMENT, CKV_F_GROUP_PROTECT_PREFIX, CKV_D_PROFILE_FIXES);
}
END_TEST

START_TEST(equal_budgets) {
        REFUSED(INVALID_ARGUMENT, GROUP_POLICIES, UNEQUAL_BUDGETS, PARTS(0, 2); ask.policies[1].align = 64);
        REFUSED(INVALID_ARGUMENT, GROUP_POLICIES, UNEQUAL_BUDGETS, PARTS(0, 2); ask.policies[1].given = CKV_GIVEN_MIN_TOKENS;
                ask.policies[1].min_tokens = ROWS + 1);
        ADMITTED(PARTS(0, 2); ask.policies[1].align = 2);
}
END_TEST

START_TEST(scores_of_parts) {
        enum { ALL = LAYERS * ROWS * sizeof(float) };
        struct ckv_record_slice scores = { .region_id = CORE_WRITABLE, .offset = core.spare_at, .size = ALL };
        struct ckv_record_status status;

        REFUSED(INVALID_ARGUMENT, GROUP_SCORE_KIND, SCORES_OF_PARTS, PARTS(0, 3); ask.groups[0].scores_out = scores);
        REFUSED(INVALID_ARGUMENT, GROUP_SCORE_KIND, SCORES_OF_PARTS, PARTS(0, 3); ask.groups[0].scores_out = scores;
                ask.groups[0].score_kind = 1; ask.policies[1].layers = CKV_LAYERS_ONE);
        REFUSED(INVALID_ARGUMENT, GROUP_SCORES_IN, SCORES_SIZE, PARTS(0, 3); ask.groups[0].scores_in = scores;
                ask.groups[0].score_kind = 1; ask.groups[0].scores_in.size -= 4);
        PARTS(0, 3);
        ask.groups[0].scores_out = ask.groups[0].scores_in = scores;
        ask.groups[0].scores_out.offset += ALL;
        ask.groups[0].score_kind = 1;
        for (uint32_t j = 0; j < LAYERS * ROWS; j++)
                ((float *)(void *)(core.memory + core.spare_at))[j] = (float)j;
        ck_assert(core_start(&core, &ask, &status));
        ck_assert_float_eq(core.request->job->groups[1].scores.in[0], 3 * ROWS);
        ck_assert_ptr_eq(core.request->job->groups[1].scores.out, core.memory + core.spare_at + ALL + 3 * ROWS * sizeof(float));
        core_finish(&core);
        ck_assert_mem_eq(core.memory + core.spare_at, core.memory + core.spare_at + ALL, ALL);
}
END_TEST

static struct ckv_record_slice floats(uint64_t count) {
        return (struct ckv_record_slice){ .region_id = CORE_READ_ONLY, .offset = core.spare_at, .size = count * sizeof(float) };
}

START_TEST(floats_beside_queries) {
        static const uint32_t listed[] = { 0, 1, 2, 3, 4, 5, 6, 7, 9 };
        enum { HEADS = 2 * LAYERS * Q_HEADS };
        struct ckv_record_status status;
        const struct ckv_job_layer *layer;

        for (uint32_t i = 0; i < HEADS * QUERY_ROWS; i++)
                ((float *)(void *)(core.memory + core.spare_at))[i] = 1;
        core_ask(&core, &ask, ROWS);
        ask.body.lse = floats(HEADS * QUERY_ROWS);
        ask.body.sink_logits = floats(HEADS);
        ck_assert(core_start(&core, &ask, &status));
        layer = &core.request->job->groups[1].layers[1];
        ck_assert_ptr_eq(layer->lse, core.memory + core.spare_at + 5 * Q_HEADS * QUERY_ROWS * sizeof(float));
        ck_assert_ptr_eq(layer->sink_logits, core.memory + core.spare_at + 5 * Q_HEADS * sizeof(float));
        ck_assert_uint_ge(core.regions[CORE_READ_ONLY - 1].request_uses, 1);
        core_finish(&core);
        /* such a log-sum-exp fits nothing */
        ck_assert_int_eq(core.answer.record.body.result.status.code, CKV_CODE_BAD_LSE);
        ck_assert_int_eq(core.answer.record.body.result.status.field, CKV_F_QUERIES_LSE);
        REFUSED(INVALID_ARGUMENT, QUERIES_LSE, FLOATS_SIZE, ask.body.lse = floats(HEADS * QUERY_ROWS - 1));
        REFUSED(INVALID_ARGUMENT, QUERIES_LSE, FLOATS_SIZE, ask.body.lse = floats(HEADS * QUERY_ROWS + 1));
        REFUSED(INVALID_ARGUMENT, QUERIES_SINK_LOGITS, FLOATS_SIZE, ask.body.sink_logits = floats(HEADS + 1));
        REFUSED(NOT_FOUND, QUERIES_LSE, UNKNOWN_ID, ask.body.lse = floats(HEADS * QUERY_ROWS); ask.body.lse.region_id = 7);
        REFUSED(OUT_OF_RANGE, QUERIES_LSE, OUTSIDE_REGION, ask.body.lse = floats(HEADS * QUERY_ROWS);
                ask.body.lse.offset = core.bytes - 8);
        REFUSED(INVALID_ARGUMENT, QUERIES_SINK_LOGITS, NOT_USED, ask.body.sink_logits = floats(HEADS); ask.body.has_queries = 0;
                for (uint32_t i = 0; i < 2; i++) ask.policies[i].scorer = CKV_SCORER_KNORM);
        /* an answer must not lie on them */
        REFUSED(INVALID_ARGUMENT, GROUP_SCORES_OUT, OUTPUT_OVERLAPS, ask.body.sink_logits = floats(HEADS);
                ask.groups[1].scores_out = floats(HEADS); ask.groups[1].scores_out.region_id = CORE_WRITABLE;
                ask.groups[1].scores_out.offset += 4 * (HEADS - 1));
        /* listed layers that are not in the request count as well; unknown ones have no size */
        core_ask(&core, &ask, ROWS);
        ask.body.group_count = ask.body.policy_count = 1;
        ask.groups[0].group = 1;
        ask.query_layers = listed;
        ask.body.query_layer_count = 8;
        ask.body.sink_logits = floats(HEADS);
        ck_assert(core_start(&core, &ask, &status));
        ck_assert_ptr_eq(core.request->job->groups[0].layers[0].sink_logits,
                         core.memory + core.spare_at + 4 * Q_HEADS * sizeof(float));
        core_finish(&core);
        ask.body.query_layer_count = 9;
        core_refused(&core, &ask, CKV_CODE_INVALID_ARGUMENT, CKV_F_QUERIES_LAYERS, CKV_D_LAYER_UNKNOWN);
}
END_TEST

#define P ask.policies[0]

START_TEST(policies_against_the_request) {
        REFUSED(INVALID_ARGUMENT, QUERIES, NEEDS_QUERIES, ask.body.has_queries = 0; P.scorer = CKV_SCORER_DROP);
        REFUSED(INVALID_ARGUMENT, QUERIES_ROWS, ALL_ROWS, P.selector = CKV_SELECTOR_H2O; ask.groups[0].keep_ratio = 0);
        REFUSED(INVALID_ARGUMENT, GROUP_KEEP_RATIO, H2O_BUDGET, P.selector = CKV_SELECTOR_H2O);
        REFUSED(INVALID_ARGUMENT, GROUP_SCORES_IN, NEEDS_SCORES, P.scorer = CKV_SCORER_GIVEN);
        REFUSED(INVALID_ARGUMENT, POLICY_HEADS, EACH_PLAN, P.heads = CKV_HEADS_EACH);
        REFUSED(INVALID_ARGUMENT, POLICY_HEADS, EACH_SLOTS, P.heads = CKV_HEADS_EACH; ask.body.mode = CKV_MODE_IN_PLACE;
                ask.groups[0].table_form = 3; ask.groups[0].table_count = ROWS);
        REFUSED(INVALID_ARGUMENT, POLICY_HEADS, EACH_SLIDING, P.heads = CKV_HEADS_EACH; ask.body.mode = CKV_MODE_IN_PLACE;
                P.sliding = 50);
        REFUSED(INVALID_ARGUMENT, POLICY_HEADS, EACH_LAYERS, P.heads = CKV_HEADS_EACH; P.layers = CKV_LAYERS_ONE);
        REFUSED(INVALID_ARGUMENT, POLICY_SELECTOR, PAGE_MODE, P.selector = CKV_SELECTOR_PAGE; ask.body.mode = CKV_MODE_IN_PLACE);
        REFUSED(INVALID_ARGUMENT, POLICY_PAGE, PAGE_BLOCKS, P.selector = CKV_SELECTOR_PAGE; P.page = 24);
        REFUSED(INVALID_ARGUMENT, POLICY_PAGE, PAGE_ONLY, P.page = 16);
        REFUSED(INVALID_ARGUMENT, POLICY_LAYERS, PAGE_LAYERS, P.selector = CKV_SELECTOR_PAGE; P.layers = CKV_LAYERS_EACH);
        REFUSED(INVALID_ARGUMENT, POLICY_BETA, BETA_LAYERS, P.beta = 20; P.layers = CKV_LAYERS_ONE);
        REFUSED(INVALID_ARGUMENT, POLICY_LAYER_REDUCE, TOP4_LAYERS, P.layer_reduce = CKV_LAYER_TOP4);
        REFUSED(INVALID_ARGUMENT, POLICY_CONTRAST_END, CONTRAST_BOTH, P.given = CKV_GIVEN_CONTRAST_FIRST; P.contrast_first = 5);
        REFUSED(UNSUPPORTED, POLICY_SCORER, NO_PRESS, P.profile = CKV_PROFILE_KVPRESS; P.scorer = CKV_SCORER_DROP);
        /* the second policy of a group is named by its place */
        core_ask(&core, &ask, ROWS);
        PARTS(0, 2);
        ask.policies[1].heavy = 5;
        {
                struct ckv_record_status status;

                ck_assert(!core_start(&core, &ask, &status));
                ck_assert_uint_eq(status.field, CKV_F_POLICY_HEAVY);
                ck_assert_uint_eq(status.detail, CKV_D_H2O_ONLY);
                ck_assert_uint_eq(status.index[0], 0);
                ck_assert_uint_eq(status.index[1], 1);
        }
        /* the block is the page */
        core_ask(&core, &ask, ROWS);
        P.selector = CKV_SELECTOR_PAGE;
        {
                struct ckv_record_status status;

                ck_assert(core_start(&core, &ask, &status));
                ck_assert_uint_eq(core.request->job->groups[0].policy.page, 16);
                core_finish(&core);
        }
        ADMITTED(ask.body.has_queries = 0; for (uint32_t i = 0; i < 2; i++) ask.policies[i].scorer = CKV_SCORER_LAGKV);
}
END_TEST

START_TEST(heads_with_sets_of_their_own) {
        const struct ckv_record_result *result = &core.answer.record.body.result;
        const struct ckv_record_set *sets;

        core_ask(&core, &ask, ROWS);
        ask.body.mode = CKV_MODE_IN_PLACE;
        P.heads = CKV_HEADS_EACH;
        P.selector = CKV_SELECTOR_TOKEN;
        P.reuse = LAYERS;
        ck_assert_int_eq(core_run(&core, &ask)->code, CKV_CODE_OK);
        ck_assert_uint_eq(group_result(0).set_count, KV_HEADS);
        ck_assert_uint_ge(result->u.compressed.set_count, KV_HEADS + 1);
        sets = (const void *)(core.answer.attachment + 2 * sizeof(struct ckv_record_group_result) +
                              2 * sizeof(struct ckv_record_policy));
        for (uint32_t head = 0; head < KV_HEADS; head++) {
                ck_assert_uint_eq(sets[head].layer_first, 0);
                ck_assert_uint_eq(sets[head].kv_head, head);
        }
        ck_assert_uint_eq(sets[KV_HEADS].layer_first, LAYERS);
        ck_assert_uint_eq(sets[KV_HEADS].kv_head, 0);
}
END_TEST

START_TEST(mass_of_layers) {
        const struct ckv_record_result *result = &core.answer.record.body.result;
        const float *mass;

        PARTS(0, 3);
        ask.body.want_kept_mass = 1;
        ask.policies[1].selector = CKV_SELECTOR_STREAMING; /* scores nothing */
        ask.groups[1].keep_ratio = 1000000; /* keeps all */
        ck_assert_int_eq(core_run(&core, &ask)->code, CKV_CODE_OK);
        ck_assert_uint_eq(group_result(0).mass_count, LAYERS);
        mass = (const void *)(core.answer.attachment + 2 * sizeof(struct ckv_record_group_result) +
                              3 * sizeof(struct ckv_record_policy));
        for (uint32_t i = 0; i < 3; i++)
                ck_assert(mass[i] > 0 && mass[i] < 1);
        ck_assert(isnan(mass[3]));
        ck_assert_uint_eq(result->u.compressed.mass_count, group_result(0).mass_count + group_result(1).mass_count);
        ask.body.want_kept_mass = 0;
        ck_assert_int_eq(core_run(&core, &ask)->code, CKV_CODE_OK);
        ck_assert_uint_eq(result->u.compressed.mass_count, 0);
}
END_TEST

int main(void) {
        Suite *suite = suite_create("admit_policies");
        TCase *tcase = tcase_create("policies");
        SRunner *runner = srunner_create(suite);
        int failed;

        suite_add_tcase(suite, tcase);
        tcase_set_timeout(tcase, 60);
        tcase_add_checked_fixture(tcase, setup, teardown);
        tcase_add_test(tcase, layers_of_policies);
        tcase_add_test(tcase, parts_in_the_answer);
        tcase_add_test(tcase, lists_of_parts);
        tcase_add_test(tcase, equal_budgets);
        tcase_add_test(tcase, scores_of_parts);
        tcase_add_test(tcase, floats_beside_queries);
        tcase_add_test(tcase, policies_against_the_request);
        tcase_add_test(tcase, heads_with_sets_of_their_own);
        tcase_add_test(tcase, mass_of_layers);
        srunner_run_all(runner, CK_NORMAL);
        failed = srunner_ntests_failed(runner);
        srunner_free(runner);
        return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
