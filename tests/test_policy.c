/*
 * What a request may ask for: defaults of each profile and selector, ranges at
 * limit - 1, limit and limit + 1, what kvpress and paper keep closed, what does
 * not go together, and what a policy needs from the request it comes in.
 */
#include "kernels/policy.h"

#include <check.h>
#include <math.h>
#include <stdlib.h>

static struct ckv_policy resolved(struct ckv_policy asked) {
        struct ckv_policy policy;
        struct ckv_policy_fault fault;

        ck_assert_msg(ckv_policy_resolve(&asked, &policy, &fault), "refused");
        return policy;
}

/* The fault of a policy that must not resolve; the output must stay untouched. */
static struct ckv_policy_fault refused(struct ckv_policy asked) {
        struct ckv_policy policy = { .chunk = 4711 };
        struct ckv_policy_fault fault = { 0 };

        ck_assert(!ckv_policy_resolve(&asked, &policy, &fault));
        ck_assert_uint_eq(policy.chunk, 4711);
        return fault;
}

static void assert_fault(struct ckv_policy asked, enum ckv_policy_fault_kind kind, enum ckv_policy_field field) {
        struct ckv_policy_fault fault = refused(asked);

        ck_assert_int_eq(fault.kind, kind);
        ck_assert_int_eq(fault.field, field);
}

START_TEST(defaults_default) {
        struct ckv_policy p = resolved((struct ckv_policy){ 0 });

        ck_assert_int_eq(p.scorer, CKV_SCORER_WINDOW);
        ck_assert_int_eq(p.selector, CKV_SELECTOR_CHUNK);
        ck_assert_int_eq(p.pool, CKV_POOL_NONE);
        ck_assert_int_eq(p.norm, CKV_NORM_SUM);
        ck_assert_int_eq(p.heads, CKV_HEADS_SUM);
        ck_assert_int_eq(p.group_heads, CKV_GROUP_SUM);
        ck_assert_int_eq(p.unit_reduce, CKV_UNIT_MEAN);
        ck_assert_int_eq(p.layers, CKV_LAYERS_EACH);
        ck_assert_int_eq(p.fill, CKV_FILL_LEAD);
        ck_assert_int_eq(p.tight, CKV_TIGHT_RAISE);
        ck_assert_uint_eq(p.chunk, 10);
        ck_assert_uint_eq(p.window, 32);
        ck_assert_uint_eq(p.sinks, 4);
        ck_assert_uint_eq(p.recent, 32);
        ck_assert_uint_eq(p.min_tokens, 46);
        ck_assert_uint_eq(p.pool_size, 5);
        ck_assert_uint_eq(p.reuse, 1);
        ck_assert_uint_eq(p.align, 1);
        ck_assert_uint_eq(p.given, CKV_GIVEN_SINKS | CKV_GIVEN_RECENT | CKV_GIVEN_MIN_TOKENS);
}
END_TEST

START_TEST(defaults_follow_what_was_asked) {
        struct ckv_policy p =
                resolved((struct ckv_policy){ .window = 8, .chunk = 20, .sinks = 1, .given = CKV_GIVEN_SINKS });

        ck_assert_uint_eq(p.recent, 8);
        ck_assert_uint_eq(p.min_tokens, 29);
        /* a count of 0 that was given is 0; one that was not given is ignored, whatever it holds */
        p = resolved((struct ckv_policy){ .given = CKV_GIVEN_SINKS | CKV_GIVEN_RECENT | CKV_GIVEN_MIN_TOKENS });
        ck_assert_uint_eq(p.sinks, 0);
        ck_assert_uint_eq(p.recent, 0);
        ck_assert_uint_eq(p.min_tokens, 0);
        p = resolved((struct ckv_policy){ .sinks = 99, .recent = 99, .min_tokens = 99 });
        ck_assert_uint_eq(p.sinks, 4);
        ck_assert_uint_eq(p.recent, 32);
        ck_assert_uint_eq(p.min_tokens, 46);
}
END_TEST

START_TEST(defaults_kvpress) {
        struct ckv_policy p = resolved((struct ckv_policy){ .profile = CKV_PROFILE_KVPRESS });

        ck_assert_uint_eq(p.chunk, 20);
        ck_assert_uint_eq(p.window, 64);
        ck_assert_int_eq(p.pool, CKV_POOL_AVG);
        ck_assert_uint_eq(p.pool_size, 5);
        ck_assert_int_eq(p.norm, CKV_NORM_MEAN);
        ck_assert_int_eq(p.group_heads, CKV_GROUP_MEAN);
        ck_assert_int_eq(p.unit_reduce, CKV_UNIT_MEAN);
        ck_assert_uint_eq(p.sinks + p.recent + p.min_tokens, 0);
}
END_TEST

START_TEST(defaults_paper) {
        struct ckv_policy p = resolved((struct ckv_policy){ .profile = CKV_PROFILE_PAPER, .window = 8 });

        ck_assert_int_eq(p.scorer, CKV_SCORER_RAW_QK);
        ck_assert_uint_eq(p.chunk, 10);
        ck_assert_int_eq(p.pool, CKV_POOL_NONE);
        ck_assert_int_eq(p.unit_reduce, CKV_UNIT_SUM);
        ck_assert_int_eq(p.join, CKV_JOIN_CUT);
        ck_assert_uint_eq(p.recent, 8);
        ck_assert_uint_eq(p.sinks + p.min_tokens, 0);
}
END_TEST

START_TEST(defaults_retrieval) {
        struct ckv_policy p = resolved((struct ckv_policy){ .profile = CKV_PROFILE_RETRIEVAL });

        ck_assert_uint_eq(p.window, 8);
        ck_assert_uint_eq(p.recent, 8);
        ck_assert_int_eq(p.pool, CKV_POOL_MAX);
        ck_assert_uint_eq(p.pool_size, 13);
        ck_assert_int_eq(p.heads, CKV_HEADS_MAX);
        ck_assert_int_eq(p.group_heads, CKV_GROUP_MAX);
        ck_assert_uint_eq(p.min_tokens, 22);
}
END_TEST

START_TEST(ranges_at_their_limits) {
        struct ckv_policy_fault fault;

        ck_assert_uint_eq(resolved((struct ckv_policy){ .window = 1 }).window, 1);
        ck_assert_uint_eq(resolved((struct ckv_policy){ .window = 256 }).window, 256);
        fault = refused((struct ckv_policy){ .window = 257 });
        ck_assert_int_eq(fault.kind, CKV_FAULT_RANGE);
        ck_assert_int_eq(fault.field, CKV_FIELD_WINDOW);
        ck_assert_uint_eq(fault.value, 257);
        ck_assert_uint_eq(fault.low, 1);
        ck_assert_uint_eq(fault.high, 256);
        ck_assert_uint_eq(resolved((struct ckv_policy){ .chunk = 1024 }).chunk, 1024);
        assert_fault((struct ckv_policy){ .chunk = 1025 }, CKV_FAULT_RANGE, CKV_FIELD_CHUNK);
        ck_assert_uint_eq(resolved((struct ckv_policy){ .align = 1024 }).align, 1024);
        assert_fault((struct ckv_policy){ .align = 1025 }, CKV_FAULT_RANGE, CKV_FIELD_ALIGN);
        ck_assert_uint_eq(resolved((struct ckv_policy){ .sinks = 1024, .given = CKV_GIVEN_SINKS }).sinks, 1024);
        assert_fault((struct ckv_policy){ .sinks = 1025, .given = CKV_GIVEN_SINKS }, CKV_FAULT_RANGE, CKV_FIELD_SINKS);
        ck_assert_uint_eq(resolved((struct ckv_policy){ .recent = UINT32_MAX, .given = CKV_GIVEN_RECENT }).recent,
                          UINT32_MAX);
        ck_assert_uint_eq(resolved((struct ckv_policy){ .pool_size = 31 }).pool_size, 31);
        ck_assert_uint_eq(resolved((struct ckv_policy){ .pool_size = 1 }).pool_size, 1);
        assert_fault((struct ckv_policy){ .pool_size = 30 }, CKV_FAULT_EVEN, CKV_FIELD_POOL_SIZE);
        assert_fault((struct ckv_policy){ .pool_size = 33 }, CKV_FAULT_RANGE, CKV_FIELD_POOL_SIZE);
}
END_TEST

START_TEST(reals_must_be_finite_and_not_negative) {
        ck_assert_double_eq(resolved((struct ckv_policy){ .scale = 0.125, .softcap = 50 }).scale, 0.125);
        assert_fault((struct ckv_policy){ .scale = NAN }, CKV_FAULT_NONFINITE, CKV_FIELD_SCALE);
        assert_fault((struct ckv_policy){ .scale = -1 }, CKV_FAULT_NONFINITE, CKV_FIELD_SCALE);
        assert_fault((struct ckv_policy){ .softcap = INFINITY }, CKV_FAULT_NONFINITE, CKV_FIELD_SOFTCAP);
}
END_TEST

START_TEST(enums_without_such_a_value) {
        struct ckv_policy p = { 0 };

        p.profile = (enum ckv_profile)5;
        assert_fault(p, CKV_FAULT_ENUM, CKV_FIELD_PROFILE);
        p = (struct ckv_policy){ .scorer = (enum ckv_scorer)9 };
        assert_fault(p, CKV_FAULT_ENUM, CKV_FIELD_SCORER);
        p = (struct ckv_policy){ .selector = (enum ckv_selector)8 };
        assert_fault(p, CKV_FAULT_ENUM, CKV_FIELD_SELECTOR);
        p = (struct ckv_policy){ .pool = (enum ckv_pool)5 };
        assert_fault(p, CKV_FAULT_ENUM, CKV_FIELD_POOL);
        p = (struct ckv_policy){ .value_weight = (enum ckv_value_weight)3 };
        assert_fault(p, CKV_FAULT_ENUM, CKV_FIELD_VALUE_WEIGHT);
        p = (struct ckv_policy){ .join = (enum ckv_join)UINT32_MAX };
        assert_fault(p, CKV_FAULT_ENUM, CKV_FIELD_JOIN);
        /* caller-given units differ in length: no sum over them */
        p = (struct ckv_policy){ .selector = CKV_SELECTOR_CHUNK_AT, .unit_reduce = CKV_UNIT_SUM };
        assert_fault(p, CKV_FAULT_TOGETHER, CKV_FIELD_UNIT_REDUCE);
}
END_TEST

START_TEST(closed_profiles) {
        const enum ckv_profile closed[] = { CKV_PROFILE_KVPRESS, CKV_PROFILE_PAPER };

        for (int i = 0; i < 2; i++) {
                struct ckv_policy p = { .profile = closed[i] };

                p.chunk = 16;
                p.window = 16;
                p.pool = CKV_POOL_MAX;
                p.pool_size = 7;
                p.scorer = CKV_SCORER_WINDOW;
                p.selector = CKV_SELECTOR_CHUNK;
                ck_assert_uint_eq(resolved(p).chunk, 16);
                ck_assert_uint_eq(resolved(p).pool_size, 7);
                assert_fault((struct ckv_policy){ .profile = closed[i], .fill = CKV_FILL_BEST }, CKV_FAULT_PROFILE,
                             CKV_FIELD_FILL);
                assert_fault((struct ckv_policy){ .profile = closed[i], .given = CKV_GIVEN_SINKS }, CKV_FAULT_PROFILE,
                             CKV_FIELD_SINKS);
                assert_fault((struct ckv_policy){ .profile = closed[i], .scale = 1 }, CKV_FAULT_PROFILE,
                             CKV_FIELD_SCALE);
                assert_fault((struct ckv_policy){ .profile = closed[i], .align = 16 }, CKV_FAULT_PROFILE,
                             CKV_FIELD_ALIGN);
                assert_fault((struct ckv_policy){ .profile = closed[i], .reuse = 2 }, CKV_FAULT_PROFILE,
                             CKV_FIELD_REUSE);
                assert_fault((struct ckv_policy){ .profile = closed[i], .selector = CKV_SELECTOR_PAGE },
                             CKV_FAULT_UNSUPPORTED, CKV_FIELD_SELECTOR);
                assert_fault((struct ckv_policy){ .profile = closed[i], .pool = CKV_POOL_LEAK }, CKV_FAULT_PROFILE, CKV_FIELD_POOL);
        }
        ck_assert_int_eq(resolved((struct ckv_policy){ .profile = CKV_PROFILE_PAPER, .join = CKV_JOIN_UNION }).join,
                         CKV_JOIN_UNION);
        assert_fault((struct ckv_policy){ .profile = CKV_PROFILE_KVPRESS, .join = CKV_JOIN_CUT }, CKV_FAULT_PROFILE,
                     CKV_FIELD_JOIN);
        assert_fault((struct ckv_policy){ .profile = CKV_PROFILE_KVPRESS, .scorer = CKV_SCORER_RAW_QK },
                     CKV_FAULT_UNSUPPORTED, CKV_FIELD_SCORER);
        assert_fault((struct ckv_policy){ .profile = CKV_PROFILE_PAPER, .selector = CKV_SELECTOR_TOKEN }, CKV_FAULT_UNSUPPORTED,
                     CKV_FIELD_SELECTOR);
        assert_fault((struct ckv_policy){ .profile = CKV_PROFILE_KVPRESS, .beta = 20 }, CKV_FAULT_PROFILE, CKV_FIELD_BETA);
}
END_TEST

START_TEST(defaults_vote) {
        struct ckv_policy p = resolved((struct ckv_policy){ .profile = CKV_PROFILE_VOTE });

        ck_assert_int_eq(p.selector, CKV_SELECTOR_TOKEN);
        ck_assert_int_eq(p.layers, CKV_LAYERS_ONE);
        ck_assert_int_eq(p.layer_reduce, CKV_LAYER_TOP4);
        ck_assert_int_eq(p.window_reduce, CKV_ROWS_MAX);
        ck_assert_int_eq(p.pool, CKV_POOL_MAX);
        ck_assert_uint_eq(p.pool_size, 21);
        ck_assert_int_eq(p.group_heads, CKV_GROUP_MAX);
        ck_assert_int_eq(p.heads, CKV_HEADS_MAX);
        ck_assert_uint_eq(p.sinks, 1);
        ck_assert_uint_eq(p.recent, 4);
        ck_assert_uint_eq(p.min_tokens, 22);
        ck_assert_uint_eq(p.window, 8);
        ck_assert_uint_eq(p.vote_rows, 8);
        ck_assert_uint_eq(p.contrast_first, 32);
        ck_assert_uint_eq(p.contrast_end, 64);
        ck_assert_uint_eq(p.mute, 4);
        /* each layer its own set: then there is nothing to put together */
        p = resolved((struct ckv_policy){ .profile = CKV_PROFILE_VOTE, .layers = CKV_LAYERS_EACH, .window = 4 });
        ck_assert_int_eq(p.layer_reduce, CKV_LAYER_SUM);
        ck_assert_uint_eq(p.vote_rows, 4);
        /* and its options by themselves */
        p = resolved((struct ckv_policy){ .window_reduce = CKV_ROWS_MAX, .layers = CKV_LAYERS_ONE, .layer_reduce = CKV_LAYER_TOP4,
                                          .contrast_first = 32, .contrast_end = 64, .mute = 4,
                                          .given = CKV_GIVEN_CONTRAST_FIRST | CKV_GIVEN_CONTRAST_END | CKV_GIVEN_MUTE });
        ck_assert_uint_eq(p.vote_rows, 32);
        ck_assert_uint_eq(p.contrast_end, 64);
        ck_assert_uint_eq(p.mute, 4);
        p = resolved((struct ckv_policy){ 0 });
        ck_assert_uint_eq(p.vote_rows + p.contrast_first + p.contrast_end + p.mute, 0);
}
END_TEST

START_TEST(defaults_of_scorers_without_queries) {
        const enum ckv_scorer scorers[] = { CKV_SCORER_KNORM, CKV_SCORER_KEYDIFF, CKV_SCORER_LAGKV, CKV_SCORER_VK_RATIO,
                                            CKV_SCORER_GIVEN };

        for (size_t i = 0; i < sizeof(scorers) / sizeof(scorers[0]); i++) {
                struct ckv_policy p = resolved((struct ckv_policy){ .scorer = scorers[i], .window = 7 });

                ck_assert(!ckv_policy_reads_queries(&p));
                ck_assert_uint_eq(p.recent, 32);
                ck_assert_uint_eq(p.min_tokens, 46);
        }
        ck_assert(ckv_policy_reads_queries(&(struct ckv_policy){ .scorer = CKV_SCORER_DROP }));
        ck_assert_uint_eq(resolved((struct ckv_policy){ .scorer = CKV_SCORER_DROP, .window = 7 }).recent, 7);
}
END_TEST

START_TEST(defaults_of_selectors) {
        struct ckv_policy p = resolved((struct ckv_policy){ .selector = CKV_SELECTOR_STREAMING });

        ck_assert_uint_eq(p.sinks, 4);
        ck_assert_uint_eq(p.recent, 1);
        ck_assert(!ckv_policy_reads_queries(&p));
        p = resolved((struct ckv_policy){ .selector = CKV_SELECTOR_H2O });
        ck_assert_uint_eq(p.sinks + p.recent, 0);
        ck_assert_uint_eq(p.heavy, 100000);
        ck_assert_uint_eq(p.recent_part, 100000);
        ck_assert_uint_eq(p.min_tokens, 42);
        ck_assert_uint_eq(ckv_policy_window(&p, 777), 777);
        p = resolved((struct ckv_policy){ .selector = CKV_SELECTOR_H2O, .heavy = 1000000 });
        ck_assert_uint_eq(p.recent_part, 0);
        p = resolved((struct ckv_policy){ .selector = CKV_SELECTOR_PAGE, .page = 16 });
        ck_assert_int_eq(p.layers, CKV_LAYERS_ONE);
        ck_assert_int_eq(p.fill, CKV_FILL_NONE);
        /* R54: what kvpress' presses keep for each KV head, and what for all */
        p = resolved((struct ckv_policy){ .profile = CKV_PROFILE_KVPRESS, .selector = CKV_SELECTOR_TOKEN });
        ck_assert_int_eq(p.heads, CKV_HEADS_EACH);
        ck_assert_int_eq(p.pool, CKV_POOL_AVG);
        p = resolved((struct ckv_policy){ .profile = CKV_PROFILE_KVPRESS, .selector = CKV_SELECTOR_TOKEN, .window = 1 });
        ck_assert_int_eq(p.heads, CKV_HEADS_SUM);
        ck_assert_int_eq(p.pool, CKV_POOL_NONE);
        p = resolved((struct ckv_policy){ .profile = CKV_PROFILE_KVPRESS, .selector = CKV_SELECTOR_CHUNK_EG });
        ck_assert_int_eq(p.heads, CKV_HEADS_SUM);
        ck_assert_int_eq(p.pool, CKV_POOL_AVG);
        ck_assert_uint_eq(p.spike_keep, 4);
        ck_assert_uint_eq(p.chunk, 10);
        p = resolved((struct ckv_policy){ .profile = CKV_PROFILE_KVPRESS, .selector = CKV_SELECTOR_CHUNK_EG, .window = 1,
                                          .chunk = 12 });
        ck_assert_int_eq(p.pool, CKV_POOL_NONE);
        ck_assert_uint_eq(p.chunk, 12);
}
END_TEST

/* other is what TOGETHER and MISSING name beside the field. */
static void assert_collides(struct ckv_policy asked, enum ckv_policy_fault_kind kind, enum ckv_policy_field field,
                            enum ckv_policy_field other) {
        struct ckv_policy_fault fault = refused(asked);

        ck_assert_int_eq(fault.kind, kind);
        ck_assert_int_eq(fault.field, field);
        ck_assert_int_eq(fault.other, other);
}

START_TEST(what_does_not_go_together) {
        const struct {
                struct ckv_policy asked;
                enum ckv_policy_field field, other;
        } cases[] = {
                { { .selector = CKV_SELECTOR_H2O, .scorer = CKV_SCORER_KNORM }, CKV_FIELD_SCORER, CKV_FIELD_SELECTOR },
                { { .selector = CKV_SELECTOR_H2O, .given = CKV_GIVEN_RECENT }, CKV_FIELD_RECENT, CKV_FIELD_SELECTOR },
                { { .heavy = 1 }, CKV_FIELD_HEAVY, CKV_FIELD_SELECTOR },
                { { .recent_part = 1 }, CKV_FIELD_RECENT_PART, CKV_FIELD_SELECTOR },
                { { .page = 16 }, CKV_FIELD_PAGE, CKV_FIELD_SELECTOR },
                { { .selector = CKV_SELECTOR_PAGE, .page = 16, .layers = CKV_LAYERS_EACH }, CKV_FIELD_LAYERS, CKV_FIELD_SELECTOR },
                { { .selector = CKV_SELECTOR_PAGE, .page = 16, .fill = CKV_FILL_LEAD }, CKV_FIELD_FILL, CKV_FIELD_SELECTOR },
                { { .selector = CKV_SELECTOR_PAGE, .page = 16, .heads = CKV_HEADS_EACH }, CKV_FIELD_HEADS, CKV_FIELD_LAYERS },
                { { .selector = CKV_SELECTOR_STREAMING, .heads = CKV_HEADS_EACH }, CKV_FIELD_HEADS, CKV_FIELD_SELECTOR },
                { { .heads = CKV_HEADS_EACH, .layers = CKV_LAYERS_ONE }, CKV_FIELD_HEADS, CKV_FIELD_LAYERS },
                { { .heads = CKV_HEADS_EACH, .fill = CKV_FILL_NONE }, CKV_FIELD_FILL, CKV_FIELD_HEADS },
                { { .beta = 20, .layers = CKV_LAYERS_ONE }, CKV_FIELD_BETA, CKV_FIELD_LAYERS },
                { { .layer_reduce = CKV_LAYER_TOP4 }, CKV_FIELD_LAYER_REDUCE, CKV_FIELD_LAYERS },
                { { .window_reduce = CKV_ROWS_MAX, .norm = CKV_NORM_MEAN }, CKV_FIELD_NORM, CKV_FIELD_WINDOW_REDUCE },
                { { .window_reduce = CKV_ROWS_MAX, .scorer = CKV_SCORER_RAW_QK }, CKV_FIELD_SCORER, CKV_FIELD_WINDOW_REDUCE },
                { { .window_reduce = CKV_ROWS_MAX, .selector = CKV_SELECTOR_H2O }, CKV_FIELD_WINDOW_REDUCE, CKV_FIELD_SELECTOR },
                { { .mute = 4, .given = CKV_GIVEN_MUTE, .scorer = CKV_SCORER_KNORM }, CKV_FIELD_SCORER, CKV_FIELD_MUTE },
                { { .pool = CKV_POOL_LEAK, .scorer = CKV_SCORER_KEYDIFF }, CKV_FIELD_SCORER, CKV_FIELD_POOL },
                { { .vote_rows = 8 }, CKV_FIELD_VOTE_ROWS, CKV_FIELD_WINDOW_REDUCE },
                { { .scorer = CKV_SCORER_KEYDIFF, .contrast_end = 64, .given = CKV_GIVEN_CONTRAST_FIRST | CKV_GIVEN_CONTRAST_END },
                  CKV_FIELD_SCORER, CKV_FIELD_CONTRAST_END },
        };

        for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
                assert_collides(cases[i].asked, CKV_FAULT_TOGETHER, cases[i].field, cases[i].other);
        assert_collides((struct ckv_policy){ .selector = CKV_SELECTOR_PAGE }, CKV_FAULT_MISSING, CKV_FIELD_PAGE,
                        CKV_FIELD_SELECTOR);
        assert_collides((struct ckv_policy){ .contrast_first = 32, .given = CKV_GIVEN_CONTRAST_FIRST }, CKV_FAULT_MISSING,
                        CKV_FIELD_CONTRAST_END, CKV_FIELD_CONTRAST_FIRST);
        assert_fault((struct ckv_policy){ .contrast_first = 33, .contrast_end = 32,
                                          .given = CKV_GIVEN_CONTRAST_FIRST | CKV_GIVEN_CONTRAST_END }, CKV_FAULT_RANGE,
                     CKV_FIELD_CONTRAST_END);
        assert_fault((struct ckv_policy){ .window = 8, .window_reduce = CKV_ROWS_MAX, .vote_rows = 9 }, CKV_FAULT_RANGE,
                     CKV_FIELD_VOTE_ROWS);
        assert_fault((struct ckv_policy){ .selector = CKV_SELECTOR_H2O, .heavy = 600000, .recent_part = 400001 }, CKV_FAULT_RANGE,
                     CKV_FIELD_RECENT_PART);
        assert_fault((struct ckv_policy){ .selector = CKV_SELECTOR_STREAMING, .given = CKV_GIVEN_RECENT }, CKV_FAULT_RANGE,
                     CKV_FIELD_RECENT);
        assert_fault((struct ckv_policy){ .spike_keep = 1024 }, CKV_FAULT_RANGE, CKV_FIELD_SPIKE_KEEP);
        assert_fault((struct ckv_policy){ .selector = CKV_SELECTOR_CHUNK_EG, .spike_keep = 10 }, CKV_FAULT_RANGE,
                     CKV_FIELD_SPIKE_KEEP);
        assert_fault((struct ckv_policy){ .selector = CKV_SELECTOR_CHUNK_EG, .chunk = 1 }, CKV_FAULT_RANGE, CKV_FIELD_CHUNK);
}
END_TEST

static void assert_use(struct ckv_policy asked, struct ckv_policy_use use, enum ckv_policy_fault_kind kind,
                       enum ckv_policy_field field) {
        struct ckv_policy policy = resolved(asked);
        struct ckv_policy_fault fault = { 0 };

        ck_assert_int_eq(ckv_policy_check_use(&policy, &use, &fault), kind == CKV_FAULT_NONE);
        ck_assert_int_eq(fault.kind, kind);
        ck_assert_int_eq(fault.field, field);
}

START_TEST(what_a_policy_needs_of_a_request) {
        const struct ckv_policy_use bare = { .rows = 100, .plan = true };
        const struct ckv_policy_use with = { .rows = 100, .plan = true, .query_rows = 32, .values = true };
        struct ckv_policy_use use = with;

        assert_use((struct ckv_policy){ 0 }, with, CKV_FAULT_NONE, CKV_FIELD_NONE);
        assert_use((struct ckv_policy){ 0 }, bare, CKV_FAULT_NO_QUERIES, CKV_FIELD_SCORER);
        assert_use((struct ckv_policy){ .scorer = CKV_SCORER_KNORM }, bare, CKV_FAULT_NONE, CKV_FIELD_NONE);
        assert_use((struct ckv_policy){ .selector = CKV_SELECTOR_STREAMING }, bare, CKV_FAULT_NONE, CKV_FIELD_NONE);
        assert_use((struct ckv_policy){ .window = 33 }, with, CKV_FAULT_FEW_QUERIES, CKV_FIELD_WINDOW);
        assert_use((struct ckv_policy){ .profile = CKV_PROFILE_VOTE }, with, CKV_FAULT_NONE, CKV_FIELD_NONE);
        assert_use((struct ckv_policy){ .selector = CKV_SELECTOR_H2O }, with, CKV_FAULT_FEW_QUERIES, CKV_FIELD_SELECTOR);
        assert_use((struct ckv_policy){ .scorer = CKV_SCORER_LAGKV }, bare, CKV_FAULT_NO_VALUES, CKV_FIELD_SCORER);
        assert_use((struct ckv_policy){ .value_weight = CKV_WEIGHT_L1 }, bare, CKV_FAULT_NO_VALUES, CKV_FIELD_VALUE_WEIGHT);
        assert_use((struct ckv_policy){ .scorer = CKV_SCORER_GIVEN }, with, CKV_FAULT_NO_SCORES, CKV_FIELD_SCORER);
        assert_use((struct ckv_policy){ .heads = CKV_HEADS_EACH }, with, CKV_FAULT_NO_PLAN, CKV_FIELD_HEADS);
        /* too short to be scored: nothing is needed */
        use = bare;
        use.rows = 45;
        assert_use((struct ckv_policy){ 0 }, use, CKV_FAULT_NONE, CKV_FIELD_NONE);
        use.rows = 46;
        assert_use((struct ckv_policy){ 0 }, use, CKV_FAULT_NO_QUERIES, CKV_FIELD_SCORER);
        use.scores = true;
        assert_use((struct ckv_policy){ .scorer = CKV_SCORER_GIVEN }, use, CKV_FAULT_NONE, CKV_FIELD_NONE);
        use = (struct ckv_policy_use){ .rows = CKV_H2O_ROWS_MAX, .query_rows = CKV_H2O_ROWS_MAX + 1, .plan = true, .values = true };
        assert_use((struct ckv_policy){ .selector = CKV_SELECTOR_H2O }, use, CKV_FAULT_NONE, CKV_FIELD_NONE);
        use.rows++;
        assert_use((struct ckv_policy){ .selector = CKV_SELECTOR_H2O }, use, CKV_FAULT_TOO_LONG, CKV_FIELD_SELECTOR);
        use = with;
        use.plan = false;
        use.in_place = true;
        assert_use((struct ckv_policy){ .selector = CKV_SELECTOR_PAGE, .page = 16 }, with, CKV_FAULT_NONE, CKV_FIELD_NONE);
        assert_use((struct ckv_policy){ .selector = CKV_SELECTOR_PAGE, .page = 16 }, use, CKV_FAULT_PLAN_ONLY, CKV_FIELD_SELECTOR);
        assert_use((struct ckv_policy){ .heads = CKV_HEADS_EACH }, use, CKV_FAULT_NONE, CKV_FIELD_NONE);
        use.slots = true;
        assert_use((struct ckv_policy){ .heads = CKV_HEADS_EACH }, use, CKV_FAULT_NO_SLOTS, CKV_FIELD_HEADS);
        use.in_place = false;
        assert_use((struct ckv_policy){ .heads = CKV_HEADS_EACH }, use, CKV_FAULT_NONE, CKV_FIELD_NONE);
}
END_TEST

START_TEST(budget_fields) {
        struct ckv_policy ours = resolved((struct ckv_policy){ 0 });
        struct ckv_policy kvpress = resolved((struct ckv_policy){ .profile = CKV_PROFILE_KVPRESS });
        struct ckv_policy paper = resolved((struct ckv_policy){ .profile = CKV_PROFILE_PAPER });
        struct ckv_policy h2o = resolved((struct ckv_policy){ .selector = CKV_SELECTOR_H2O });
        struct ckv_policy_fault fault;

        ck_assert(ckv_policy_check_budget(&ours, 1, 0, &fault));
        ck_assert(ckv_policy_check_budget(&ours, 1000000, 0, &fault));
        ck_assert(ckv_policy_check_budget(&ours, 0, 1, &fault));
        ck_assert(ckv_policy_check_budget(&paper, 100000, 64, &fault));
        ck_assert(ckv_policy_check_budget(&kvpress, 100000, 0, &fault));
        ck_assert(!ckv_policy_check_budget(&ours, 1000001, 0, &fault));
        ck_assert_int_eq(fault.kind, CKV_FAULT_RANGE);
        ck_assert_int_eq(fault.field, CKV_FIELD_KEEP_RATIO);
        ck_assert(!ckv_policy_check_budget(&ours, 0, 0, &fault));
        ck_assert_int_eq(fault.field, CKV_FIELD_KEEP_RATIO);
        ck_assert(!ckv_policy_check_budget(&kvpress, 100000, 64, &fault));
        ck_assert_int_eq(fault.kind, CKV_FAULT_PROFILE);
        ck_assert_int_eq(fault.field, CKV_FIELD_MAX_TOKENS);
        ck_assert(!ckv_policy_check_budget(&kvpress, 0, 0, &fault));
        ck_assert_int_eq(fault.field, CKV_FIELD_KEEP_RATIO);
        ck_assert(ckv_policy_check_budget(&h2o, 0, 0, &fault));
        ck_assert(!ckv_policy_check_budget(&h2o, 100000, 0, &fault));
        ck_assert_int_eq(fault.kind, CKV_FAULT_TOGETHER);
        ck_assert_int_eq(fault.field, CKV_FIELD_KEEP_RATIO);
        ck_assert(!ckv_policy_check_budget(&h2o, 0, 64, &fault));
        ck_assert_int_eq(fault.field, CKV_FIELD_MAX_TOKENS);
        ck_assert(ckv_policy_check_spans(&ours, 1024, &fault));
        ck_assert(!ckv_policy_check_spans(&ours, 1025, &fault));
        ck_assert_int_eq(fault.kind, CKV_FAULT_RANGE);
        ck_assert(ckv_policy_check_spans(&paper, 0, &fault));
        ck_assert(!ckv_policy_check_spans(&paper, 1, &fault));
        ck_assert_int_eq(fault.kind, CKV_FAULT_PROFILE);
        ck_assert_int_eq(fault.field, CKV_FIELD_PROTECT);
}
END_TEST

START_TEST(names) {
        ck_assert_str_eq(ckv_policy_field_name(CKV_FIELD_NONE), "");
        ck_assert_str_eq(ckv_policy_field_name(CKV_FIELD_POOL_SIZE), "pool_size");
        ck_assert_str_eq(ckv_policy_field_name(CKV_FIELD_RECENT_PART), "recent_part");
        ck_assert_str_eq(ckv_policy_field_name(CKV_FIELD_PROTECT), "protect");
        for (enum ckv_policy_field f = CKV_FIELD_PROFILE; f < _CKV_FIELD_N; f++)
                ck_assert_msg(ckv_policy_field_name(f)[0] != '\0', "field %d has no name", (int)f);
        ck_assert_str_eq(ckv_policy_field_name(_CKV_FIELD_N), "");
}
END_TEST

int main(void) {
        Suite *suite = suite_create("policy");
        TCase *tcase = tcase_create("resolve");
        SRunner *runner = srunner_create(suite);
        int failed;

        suite_add_tcase(suite, tcase);
        tcase_add_test(tcase, defaults_default);
        tcase_add_test(tcase, defaults_follow_what_was_asked);
        tcase_add_test(tcase, defaults_kvpress);
        tcase_add_test(tcase, defaults_paper);
        tcase_add_test(tcase, defaults_retrieval);
        tcase_add_test(tcase, ranges_at_their_limits);
        tcase_add_test(tcase, reals_must_be_finite_and_not_negative);
        tcase_add_test(tcase, enums_without_such_a_value);
        tcase_add_test(tcase, closed_profiles);
        tcase_add_test(tcase, defaults_vote);
        tcase_add_test(tcase, defaults_of_scorers_without_queries);
        tcase_add_test(tcase, defaults_of_selectors);
        tcase_add_test(tcase, what_does_not_go_together);
        tcase_add_test(tcase, what_a_policy_needs_of_a_request);
        tcase_add_test(tcase, budget_fields);
        tcase_add_test(tcase, names);
        srunner_run_all(runner, CK_NORMAL);
        failed = srunner_ntests_failed(runner);
        srunner_free(runner);
        return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
