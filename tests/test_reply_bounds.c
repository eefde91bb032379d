/*
 * What admission promises about the size of an answer must hold for every
 * answer: with REPLY_IN_REGION the sets are written to memory that ends where
 * the promise ends.  Random requests with scores of the caller's choosing, so
 * that kept rows are as scattered as they can be; the message is measured by
 * the gate's own encoder.
 */
#include "base/macros.h"
#include "daemon/gate/encode.h"
#include "tests/support_core.h"
#include "tests/support_random.h"

#include <check.h>
#include <stdio.h>
#include <string.h>

enum { ROWS = 2600, JOBS = 1500, GUARD = 0xa5 };

static const struct core_shape shape = {
        .groups = 1,
        .layers = 2,
        .kv_heads = 2,
        .q_heads = 2,
        .dims = 1,
        .tokens_per_block = 16,
        .num_blocks = ROWS / 16 + 1,
};

/* Lists that a request points to. */
struct lists {
        uint32_t spans[2 * 400], position_runs[2 * ROWS], chunk_lengths[ROWS], given_runs[2 * ROWS];
};

static uint32_t fill_runs(struct dice *dice, uint32_t *runs, uint32_t kept, uint32_t longest) {
        uint32_t n = 0;

        for (uint32_t left = kept; left > 0; n += 2) {
                runs[n] = n == 0 ? dice_roll(dice, 3) : 1 + dice_roll(dice, longest);
                runs[n + 1] = 1 + dice_roll(dice, CKV_MIN(longest, left));
                left -= runs[n + 1];
        }
        return n;
}

/* Scores by row: every other row, or chunk, or block of rows is good; or anything. @count: lists of them */
static void fill_scores(struct dice *dice, struct core *core, const struct ckv_record_policy *policy, uint32_t rows,
                        uint32_t count) {
        float *scores = (float *)(void *)(core->memory + core->spare_at);
        const uint32_t periods[] = { 1, 2, CKV_MAX(policy->chunk, 1u), 10, 1 + dice_roll(dice, 50) };

        for (uint32_t l = 0; l < count; l++)
                for (uint32_t j = 0, period = periods[dice_roll(dice, CKV_ARRAY_SIZE(periods))]; j < rows; j++)
                        scores[l * rows + j] =
                                (float)((j / period) % 2) + (float)(dice_roll(dice, 1000) + (j % 2) * 1000) * 1e-4f;
}

static void random_policy(struct dice *dice, struct ckv_record_policy *p) {
        static const uint8_t profiles[] = { CKV_PROFILE_DEFAULT,   CKV_PROFILE_DEFAULT, CKV_PROFILE_DEFAULT,
                                            CKV_PROFILE_RETRIEVAL, CKV_PROFILE_KVPRESS, CKV_PROFILE_PAPER };
        static const uint32_t chunks[] = { 1, 2, 7, 10, 16, 64, 300, 1024 }, aligns[] = { 0, 0, 16, 256, 1024 };

        p->profile = profiles[dice_roll(dice, CKV_ARRAY_SIZE(profiles))];
        p->chunk = chunks[dice_roll(dice, CKV_ARRAY_SIZE(chunks))];
        p->window = 1 + dice_roll(dice, 40);
        if (p->profile == CKV_PROFILE_PAPER)
                p->join = (uint8_t)dice_roll(dice, 3);
        if (p->profile == CKV_PROFILE_PAPER || p->profile == CKV_PROFILE_KVPRESS)
                return;
        p->selector = (uint8_t)dice_roll(dice, CKV_SELECTOR_PAGE + 1);
        p->fill = p->selector == CKV_SELECTOR_PAGE ? 0 : (uint8_t)dice_roll(dice, 4);
        p->layers = p->selector == CKV_SELECTOR_PAGE ? CKV_LAYERS_ONE : (uint8_t)(1 + dice_roll(dice, 2));
        p->align = aligns[dice_roll(dice, CKV_ARRAY_SIZE(aligns))];
        p->given = CKV_GIVEN_MIN_TOKENS | (dice_roll(dice, 2) ? CKV_GIVEN_RECENT | CKV_GIVEN_SINKS : 0);
        p->recent = 1 + dice_roll(dice, 60);
        p->sinks = dice_roll(dice, 60);
        if (p->selector == CKV_SELECTOR_CHUNK_EG)
                p->chunk = CKV_MAX(p->chunk, 2u);
        if (p->selector == CKV_SELECTOR_H2O) {
                p->given &= ~(uint32_t)CKV_GIVEN_RECENT;
                p->heavy = 1 + dice_roll(dice, 499999);
                p->recent_part = 1 + dice_roll(dice, 499999);
        }
        if (p->layers == CKV_LAYERS_EACH && dice_roll(dice, 3) == 0)
                p->beta = 1 + dice_roll(dice, 30);
        if (p->layers == CKV_LAYERS_EACH && p->selector != CKV_SELECTOR_STREAMING && dice_roll(dice, 3) == 0) {
                p->heads = CKV_HEADS_EACH;
                p->fill = (uint8_t)dice_roll(dice, 3);
        }
}

/* One span in the middle of every other chunk leaves parts of chunks on both its sides. */
static void add_spans(struct dice *dice, struct ckv_record_group *g, const struct ckv_record_policy *policy,
                      struct lists *lists) {
        uint32_t step = 2 * CKV_MAX(policy->chunk, 2u), at = step / 4;

        for (g->span_count = 0; g->span_count < 400 && at < ROWS;
             g->span_count++, at += dice_roll(dice, 20) ? step : 1 + dice_roll(dice, step)) {
                lists->spans[2 * g->span_count] = at;
                lists->spans[2 * g->span_count + 1] = 1 + dice_roll(dice, 3);
        }
}

/* A second policy for the upper layer, of rows instead of chunks or the other way round. */
static void add_part(struct dice *dice, struct core_ask *ask) {
        const struct ckv_record_policy *first = &ask->policies[0];
        struct ckv_record_policy *second = &ask->policies[1];

        if (first->layers != CKV_LAYERS_EACH || first->selector == CKV_SELECTOR_H2O ||
            first->selector == CKV_SELECTOR_CHUNK_AT || dice_roll(dice, 3))
                return;
        *second = *first;
        second->layer_first = 1;
        second->selector = first->selector == CKV_SELECTOR_TOKEN ? CKV_SELECTOR_CHUNK : CKV_SELECTOR_TOKEN;
        ask->groups[0].policy_count = ask->body.policy_count = 2;
}

static void random_ask(struct dice *dice, struct core *core, struct core_ask *ask, struct lists *lists) {
        uint32_t rows = 1 + dice_roll(dice, ROWS), left = rows;
        struct ckv_record_group *g = &ask->groups[0];
        struct ckv_record_policy *policy = &ask->policies[0];
        bool ours;

        core_ask(core, ask, rows);
        random_policy(dice, policy);
        ours = policy->profile != CKV_PROFILE_PAPER && policy->profile != CKV_PROFILE_KVPRESS;
        g->keep_ratio = 1 + dice_roll(dice, dice_roll(dice, 2) ? 999999 : 400000);
        if (policy->selector == CKV_SELECTOR_H2O)
                g->keep_ratio = 0;
        else if (ours && dice_roll(dice, 4) == 0)
                g->max_tokens = 1 + dice_roll(dice, rows);
        if (ours && dice_roll(dice, 2))
                add_spans(dice, g, policy, lists);
        ask->words[0] =
                (struct core_words){ ask->ids,         NULL, lists->spans, lists->position_runs, lists->chunk_lengths,
                                     lists->given_runs };
        ask->body.want_kept_mass = dice_roll(dice, 2) ? 1 : 0;
        if (policy->heads == CKV_HEADS_EACH)
                ask->body.mode = CKV_MODE_IN_PLACE;
        else if (dice_roll(dice, 3) == 0) {
                g->position_run_count = fill_runs(dice, lists->position_runs, rows, dice_roll(dice, 2) ? 1 : 300);
                ask->body.logical_len = dice_roll(dice, 2) ? 600 * ROWS : UINT32_MAX;
        }
        if (policy->selector == CKV_SELECTOR_CHUNK_AT)
                for (; left > 0; g->chunk_length_count++) {
                        uint32_t longest = dice_roll(dice, 9) ? 3 : 500,
                                 length = 1 + dice_roll(dice, CKV_MIN(longest, left));

                        lists->chunk_lengths[g->chunk_length_count] = length;
                        left -= length;
                }
        if (dice_roll(dice, 6) == 0) {
                g->given_run_count =
                        fill_runs(dice, lists->given_runs, 1 + dice_roll(dice, 1 + rows / 3), 1 + dice_roll(dice, 4));
                while (g->given_run_count > 0) {
                        uint64_t end = 0;

                        for (uint32_t i = 0; i < g->given_run_count; i++)
                                end += lists->given_runs[i];
                        if (end <= rows)
                                break;
                        g->given_run_count -= 2;
                }
        }
        add_part(dice, ask);
        if (g->given_run_count == 0) {
                uint32_t lists_of_scores = (policy->layers == CKV_LAYERS_ONE ? 1 : shape.layers) *
                                           (policy->heads == CKV_HEADS_EACH ? shape.kv_heads : 1);

                fill_scores(dice, core, policy, rows, lists_of_scores);
                g->score_kind = 1;
                g->scores_in = (struct ckv_record_slice){
                        .region_id = CORE_WRITABLE,
                        .offset = core->spare_at,
                        .size = lists_of_scores * (uint64_t)rows * sizeof(float),
                };
        }
}

/* promise() - what admission says that the answer may take. Return: false if it refuses for another reason. */
static bool promise(struct core *core, const struct core_ask *ask, uint64_t *ret_bytes) {
        struct ckv_record_status status;

        ck_assert(!core_start(core, ask, &status));
        *ret_bytes = status.arg[0];
        return status.code == CKV_CODE_REPLY_TOO_LARGE;
}

/* The bytes of the sets at @at, by their own counts */
static uint64_t written(const uint8_t *at, uint32_t set_count) {
        uint64_t bytes = 0;

        for (uint32_t i = 0; i < set_count; i++) {
                uint32_t head[6];

                memcpy(head, at + bytes, sizeof(head));
                bytes += sizeof(head) + head[5] * sizeof(uint32_t);
        }
        return bytes;
}

static void first_group(const struct core *core, struct ckv_record_group_result *ret_result) {
        memcpy(ret_result, core->answer.attachment, sizeof(*ret_result));
}

/* answer_in_region() - the promise exactly, and nothing behind it is touched. Return: part of the promise used, or -1.
 */
static double answer_in_region(struct core *core, struct core_ask *ask, uint32_t number) {
        struct ckv_record_group_result result;
        uint64_t at = core->spare_at + (1 << 20), bound, bytes;

        ask->body.reply_form = CKV_REPLY_IN_REGION;
        ask->body.reply_to = (struct ckv_record_slice){ .region_id = CORE_WRITABLE, .offset = at };
        if (!promise(core, ask, &bound))
                return -1;
        ask->body.reply_to.size = bound - 1;
        core_refused(core, ask, CKV_CODE_REPLY_TOO_LARGE, CKV_F_COMPRESS_REPLY_TO, CKV_D_REPLY_TOO_LARGE);
        ask->body.reply_to.size = bound;
        memset(core->memory + at, GUARD, CORE_SPARE_BYTES - (1 << 20));
        if (core_run(core, ask)->code != CKV_CODE_OK)
                return -1; /* too short for its profile, and the like */
        first_group(core, &result);
        ck_assert_uint_eq(result.sets_sent, 0);
        bytes = written(core->memory + at, result.set_count);
        ck_assert_msg(bytes <= bound, "job %u: %lu bytes written, %lu promised", number, (unsigned long)bytes,
                      (unsigned long)bound);
        for (uint64_t k = bytes; k < bytes + 4096; k++)
                ck_assert_uint_eq(core->memory[at + k], GUARD);
        return (double)bytes / (double)bound;
}

START_TEST(sets_in_a_region) {
        static struct core core;
        static struct core_ask ask;
        static struct lists lists;
        struct dice dice = { .state = 5 };
        uint32_t ran = 0;
        double fullest = 0;

        core_init(&core, &shape);
        for (uint32_t i = 0; i < JOBS; i++) {
                double used;

                random_ask(&dice, &core, &ask, &lists);
                used = answer_in_region(&core, &ask, i);
                fullest = CKV_MAX(fullest, used);
                ran += used >= 0;
        }
        printf("%u of %u requests answered in a region, at most %.0f %% of the promise used\n", ran, JOBS,
               100 * fullest);
        ck_assert_uint_gt(ran, JOBS / 2);
        core_deinit(&core);
}
END_TEST

/* A protected row in the middle of every other chunk, and just so much budget that the chunks between are kept: each
 * row and each chunk is a kept run, because what is left of the chunks around the rows is dropped on both sides. */
START_TEST(stretches_have_two_sides) {
        enum { CHUNK = 8, PAIRS = 160, LONG = 2 * CHUNK * PAIRS };
        static struct core core;
        static struct core_ask ask;
        static uint32_t spans[2 * PAIRS];
        float *scores;

        core_init(&core, &shape);
        core_ask(&core, &ask, LONG);
        scores = (float *)(void *)(core.memory + core.spare_at);
        for (uint32_t l = 0; l < shape.layers; l++)
                for (uint32_t j = 0; j < LONG; j++)
                        scores[l * LONG + j] = (float)(j / CHUNK % 2);
        for (uint32_t i = 0; i < PAIRS; i++) {
                spans[2 * i] = 2 * CHUNK * i + CHUNK / 2;
                spans[2 * i + 1] = 1;
        }
        ask.words[0].spans = spans;
        ask.policies[0] =
                (struct ckv_record_policy){ .given = CKV_GIVEN_SINKS | CKV_GIVEN_RECENT, .chunk = CHUNK, .window = 1 };
        ask.groups[0].span_count = PAIRS;
        ask.groups[0].max_tokens = PAIRS + CHUNK * PAIRS;
        ask.groups[0].keep_ratio = 0;
        ask.groups[0].score_kind = 1;
        ask.groups[0].scores_in = (struct ckv_record_slice){ .region_id = CORE_WRITABLE,
                                                             .offset = core.spare_at,
                                                             .size = shape.layers * LONG * sizeof(float) };
        ck_assert_double_gt(answer_in_region(&core, &ask, 0), 0.4); /* two layers of one set share it */
        core_deinit(&core);
}
END_TEST

/* answer_in_message() - as the gate encodes it. Return: part of the promise used, or -1. */
static double answer_in_message(struct core *core, struct core_ask *ask, uint32_t number) {
        struct ckv_record record;
        uint64_t bound;
        size_t bytes;
        void *reply;

        core->options.reply_bytes = 1;
        if (!promise(core, ask, &bound))
                return -1;
        core->options.reply_bytes = bound - 1;
        core_refused(core, ask, CKV_CODE_REPLY_TOO_LARGE, CKV_F_COMPRESS_REPLY_FORM, CKV_D_REPLY_TOO_LARGE);
        core->options.reply_bytes = bound;
        if (core_run(core, ask)->code != CKV_CODE_OK)
                return -1;
        record = core->answer.record;
        record.head.ring_bytes = core->answer.bytes;
        record.head.request_id = UINT64_MAX;
        record.head.generation = UINT64_MAX;
        ck_assert_int_eq(ckv_encode_answer(&record, core->answer.attachment, UINT32_MAX, &reply, &bytes), 0);
        free(reply);
        ck_assert_msg(bytes <= bound, "job %u: %lu bytes sent, %lu promised", number, (unsigned long)bytes,
                      (unsigned long)bound);
        return (double)bytes / (double)bound;
}

START_TEST(sets_in_the_message) {
        static struct core core;
        static struct core_ask ask;
        static struct lists lists;
        struct dice dice = { .state = 6 };
        uint32_t ran = 0;
        double fullest = 0;

        core_init(&core, &shape);
        for (uint32_t i = 0; i < JOBS; i++) {
                static const uint8_t forms[] = { CKV_REPLY_RUNS, CKV_REPLY_RUNS, CKV_REPLY_ROWS, CKV_REPLY_NO_SETS };
                double used;

                random_ask(&dice, &core, &ask, &lists);
                ask.body.reply_form = forms[dice_roll(&dice, CKV_ARRAY_SIZE(forms))];
                used = answer_in_message(&core, &ask, i);
                fullest = CKV_MAX(fullest, used);
                ran += used >= 0;
        }
        printf("%u of %u requests answered in the message, at most %.0f %% of the promise used\n", ran, JOBS,
               100 * fullest);
        ck_assert_uint_gt(ran, JOBS / 2);
        core_deinit(&core);
}
END_TEST

/* All rows are kept and each has a gap of 200 positions before it: half of the numbers take two bytes. */
START_TEST(numbers_of_two_bytes) {
        enum { LONG = 2000 };
        static struct core core;
        static struct core_ask ask;
        static uint32_t positions[2 * LONG];
        static const uint32_t all[2] = { 0, LONG };

        core_init(&core, &shape);
        core_ask(&core, &ask, LONG);
        for (uint32_t j = 0; j < LONG; j++) {
                positions[2 * j] = 200;
                positions[2 * j + 1] = 1;
        }
        ask.words[0] = (struct core_words){ .table = ask.ids, .position_runs = positions, .given_runs = all };
        ask.groups[0].position_run_count = 2 * LONG;
        ask.groups[0].given_run_count = 2;
        ask.body.logical_len = 201 * LONG;
        ck_assert_double_gt(answer_in_message(&core, &ask, 0), 0.6);
        core_deinit(&core);
}
END_TEST

int main(void) {
        Suite *suite = suite_create("reply_bounds");
        TCase *tcase = tcase_create("bounds");
        SRunner *runner = srunner_create(suite);
        int failed;

        suite_add_tcase(suite, tcase);
        tcase_set_timeout(tcase, 240);
        tcase_add_test(tcase, sets_in_a_region);
        tcase_add_test(tcase, stretches_have_two_sides);
        tcase_add_test(tcase, sets_in_the_message);
        tcase_add_test(tcase, numbers_of_two_bytes);
        srunner_run_all(runner, CK_NORMAL);
        failed = srunner_ntests_failed(runner);
        srunner_free(runner);
        return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
