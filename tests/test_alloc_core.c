/*
 * The n-th allocation of a request fails, for every n, in every kind of
 * request: the outcome is NO_MEMORY or none was needed, the cache is what the
 * answer says, every charge is given back (core_deinit() looks), and the same
 * request afterwards has the same bits as ever.
 */
#include "base/macros.h"
#include "daemon/cache.h"
#include "kernels/reference.h"
#include "tests/support_alloc.h"
#include "tests/support_core.h"
#include "tests/support_page.h"

#include <check.h>
#include <errno.h>
#include <string.h>

enum { ROWS = 100, LAYERS = 3, TOKENS = 16, MOST = 1000 };
enum end { END, COMMIT_IT, CANCEL_IT, REPAIR_IT };

struct scenario {
        const char *name;
        void (*alter)(void);
        bool page, latent, two_groups;
        enum end end;
        enum ckv_mode mode;
};

static struct core core;
static struct core_ask ask;
static struct page page;
static uint8_t *before, *after, *now;
static const uint32_t given[] = { 10, 40, 10, 5 }, spans[] = { 3, 9 }, lengths[] = { 10, 20, 30, 25, 15 };
static const uint32_t destination[] = { 16, 17, 18, 19, 20, 21, 22 }, position_runs[] = { 0, 50, 10, 50 };

/* ---- what is asked for */

static void given_rows(void) {
        ask.words[0].given_runs = given;
        ask.groups[0].given_run_count = CKV_ARRAY_SIZE(given);
}

static void copy(void) {
        ask.words[0].destination = destination;
        ask.groups[0].destination_form = 1;
        ask.groups[0].destination_count = CKV_ARRAY_SIZE(destination);
}

static void protect(void) {
        ask.words[0].spans = spans;
        ask.groups[0].span_count = 1;
}

static void given_lengths(void) {
        ask.policies[0].selector = CKV_SELECTOR_CHUNK_AT;
        ask.words[0].chunk_lengths = lengths;
        ask.groups[0].chunk_length_count = CKV_ARRAY_SIZE(lengths);
}

static void positions(void) {
        ask.body.logical_len = 110;
        ask.words[0].position_runs = position_runs;
        ask.groups[0].position_run_count = CKV_ARRAY_SIZE(position_runs);
}

static void each_head(void) {
        ask.policies[0].heads = CKV_HEADS_EACH;
}

static void copy_each_head(void) {
        copy();
        each_head();
}

static void in_region(void) {
        ask.body.reply_form = CKV_REPLY_IN_REGION;
        ask.body.reply_to = (struct ckv_record_slice){ .region_id = CORE_WRITABLE, .offset = core.spare_at, .size = 1 << 16 };
}

static void in_slot(void) {
        ask.body.reply_form = CKV_REPLY_IN_SLOT;
}

static void in_rows(void) {
        ask.body.reply_form = CKV_REPLY_ROWS;
}

static void held(void) {
        ask.body.hold = 1;
}

static void streaming(void) {
        ask.policies[0].selector = CKV_SELECTOR_STREAMING;
}

static void tokens(void) {
        ask.policies[0].selector = CKV_SELECTOR_TOKEN;
}

static void two_policies(void) {
        ask.groups[0].policy_count = 2;
        ask.body.policy_count = 2;
        ask.policies[1] = ask.policies[0];
        ask.policies[1].layer_first = 1;
        ask.policies[1].scorer = CKV_SCORER_KNORM;
}

static void raw(void) {
        ask.policies[0].scorer = CKV_SCORER_RAW_QK;
}

static void some_layers(void) {
        ask.policies[0].reuse = 2;
}

static const struct scenario scenarios[] = {
        { "plan", NULL, .mode = CKV_MODE_PLAN },
        { "plan of two groups", NULL, .mode = CKV_MODE_PLAN, .two_groups = true },
        { "plan of a latent cache", raw, .mode = CKV_MODE_PLAN, .latent = true },
        { "plan of tokens", tokens, .mode = CKV_MODE_PLAN },
        { "plan by streaming", streaming, .mode = CKV_MODE_PLAN },
        { "plan with spans", protect, .mode = CKV_MODE_PLAN },
        { "plan with lengths", given_lengths, .mode = CKV_MODE_PLAN },
        { "plan with positions", positions, .mode = CKV_MODE_PLAN },
        { "plan with two policies", two_policies, .mode = CKV_MODE_PLAN },
        { "plan that reuses", some_layers, .mode = CKV_MODE_PLAN },
        { "plan in rows", in_rows, .mode = CKV_MODE_PLAN },
        { "plan into a region", in_region, .mode = CKV_MODE_PLAN },
        { "plan into a slot", in_slot, .mode = CKV_MODE_PLAN, .page = true },
        { "in place", NULL, .mode = CKV_MODE_IN_PLACE },
        { "in place, given", given_rows, .mode = CKV_MODE_IN_PLACE },
        { "in place, each head", each_head, .mode = CKV_MODE_IN_PLACE },
        { "in place, two groups", NULL, .mode = CKV_MODE_IN_PLACE, .two_groups = true },
        { "in place, with a slot", NULL, .mode = CKV_MODE_IN_PLACE, .page = true },
        { "in place, into a slot", in_slot, .mode = CKV_MODE_IN_PLACE, .page = true },
        { "in place, into a region", in_region, .mode = CKV_MODE_IN_PLACE },
        { "hold and commit", held, .mode = CKV_MODE_IN_PLACE, .page = true, .end = COMMIT_IT },
        { "hold and cancel", held, .mode = CKV_MODE_IN_PLACE, .page = true, .end = CANCEL_IT },
        { "repair", NULL, .mode = CKV_MODE_IN_PLACE, .page = true, .end = REPAIR_IT },
        { "copy out", copy, .mode = CKV_MODE_COPY_OUT },
        { "copy out, each head", copy_each_head, .mode = CKV_MODE_COPY_OUT },
};

static void prepare(const struct scenario *scenario) {
        srand(7);
        core_init(&core, &(struct core_shape){
                                 .groups = scenario->two_groups ? 2 : 1, .layers = LAYERS, .kv_heads = scenario->latent ? 1 : 2, .q_heads = 2,
                                 .dims = 4, .tokens_per_block = TOKENS, .num_blocks = 24, .latent = scenario->latent,
                         });
        memcpy(core.daemon.boot_id, "boot id of daemon", 16);
        page = (struct page){ 0 };
        if (scenario->page)
                page_attach(&core, &page);
        core_ask(&core, &ask, ROWS);
        ask.body.mode = scenario->mode;
        if (scenario->alter)
                scenario->alter();
}

static void forget(void) {
        if (page.header)
                page_free(&core, &page);
        core_deinit(&core);
}

/* finish() - the stages of a request, and Commit or Cancel where it waits for one. Return: the last status. */
static struct ckv_record_status finish(enum end end) {
        const struct ckv_route route = { .endpoint = &core.endpoint };
        struct ckv_record_status status;
        struct ckv_window_entry *entry;
        uint64_t target = core.last_id;
        bool committed;

        core_finish(&core);
        if (core.session.requests && end == COMMIT_IT) {
                ck_assert_int_eq(ckv_window_enter(&core.session.window, ++core.last_id, 0, &entry), 0);
                core_inside = true;
                committed = ckv_hold_commit(&core.session, &route, target, entry, &status);
                core_inside = false;
                ck_assert(committed);
                core_finish(&core);
        } else if (core.session.requests && end == CANCEL_IT) {
                core_inside = true;
                (void)ckv_request_cancel(core.session.requests);
                core_inside = false;
                core_finish(&core);
        }
        ck_assert_ptr_null(core.session.requests);
        return core.answer.record.body.result.status;
}

/* run() - Return: how it ended */
static struct ckv_record_status run(const struct scenario *scenario) {
        struct ckv_record_status status;

        if (scenario->page)
                page_submit(&page, &ask);
        return core_start(&core, &ask, &status) ? finish(scenario->end) : status;
}

/* tear() - a slot as a daemon leaves it that dies after two steps, and a Repair of it */
static void tear(void) {
        struct ckv_record_status status;
        struct ckv_control_slot slot;
        uint8_t kept[PAGE_KEPT];
        uint64_t id;
        uint32_t steps;

        given_rows();
        page_submit(&page, &ask);
        ck_assert(core_start(&core, &ask, &status) && core_step(&core));
        steps = core.request->job->steps.count;
        core.request->job->steps.count = 2;
        ckv_ref_run_move(core.request->job);
        core.request->job->steps.count = steps;
        page.slots[0].steps_done = 2;
        slot = page.slots[0];
        id = slot.request_id;
        memcpy(kept, page.kept, PAGE_KEPT);
        memcpy(now, core.memory, core.spare_at);
        core.request->job->steps.first = 2;
        core_finish(&core);
        memcpy(core.memory, now, core.spare_at);
        page_detach(&core);
        page.slots[0] = slot;
        memcpy(page.kept, kept, PAGE_KEPT);
        memcpy(core.daemon.boot_id, "boot id of the next", 16);
        page_attach(&core, &page);
        ask.repair_target = id;
        ask.body.control_use = 0;
        ask.body.reply_form = CKV_REPLY_RUNS;
}

/* told_truly() - the cache is what the status says, and what it says is no surprise */
static void told_truly(const struct scenario *scenario, const struct ckv_record_status *status, uint64_t n) {
        bool repair = scenario->end == REPAIR_IT;

        ck_assert_msg(status->code == CKV_CODE_OK || status->code == CKV_CODE_NO_MEMORY ||
                              (status->code == CKV_CODE_CANCELLED && scenario->end == CANCEL_IT),
                      "%s, allocation %lu: code %u, field %u, detail %u", scenario->name, (unsigned long)n, status->code, status->field,
                      status->detail);
        if (status->cache == CKV_CACHE_COMMITTED)
                ck_assert_msg(memcmp(core.memory, after, core.spare_at) == 0, "%s, allocation %lu", scenario->name, (unsigned long)n);
        else if (!repair)
                ck_assert_msg(memcmp(core.memory, before, core.spare_at) == 0, "%s, allocation %lu", scenario->name, (unsigned long)n);
}

/* Memory before and after a run without faults */
static void learn(const struct scenario *scenario) {
        struct ckv_record_status status;

        prepare(scenario);
        before = malloc(core.spare_at);
        after = malloc(core.spare_at);
        now = malloc(core.spare_at);
        ck_assert(before && after && now);
        if (scenario->end == REPAIR_IT) {
                tear();
                status = core_start(&core, &ask, &status) ? finish(END) : status;
        } else {
                memcpy(before, core.memory, core.spare_at);
                status = run(scenario);
        }
        ck_assert_msg(status.code == CKV_CODE_OK || status.code == CKV_CODE_CANCELLED, "%s: code %u, field %u, detail %u", scenario->name,
                      status.code, status.field, status.detail);
        memcpy(after, core.memory, core.spare_at);
        forget();
}

START_TEST(every_allocation) {
        const struct scenario *scenario = &scenarios[_i];
        struct ckv_record_status status;
        bool met = true;
        uint64_t n;

        learn(scenario);
        alloc_counts = &core_inside;
        for (n = 1; met && n < MOST; n++) {
                prepare(scenario);
                if (scenario->end == REPAIR_IT)
                        tear();
                alloc_fail(n);
                if (scenario->end == REPAIR_IT)
                        status = core_start(&core, &ask, &status) ? finish(END) : status;
                else
                        status = run(scenario);
                met = alloc_failed();
                told_truly(scenario, &status, n);
                /* and once more, without */
                if (scenario->end != REPAIR_IT) {
                        memcpy(core.memory, before, core.spare_at);
                        status = run(scenario);
                        ck_assert_int_ne(status.code, CKV_CODE_NO_MEMORY);
                } else if (status.code != CKV_CODE_OK) {
                        status = core_start(&core, &ask, &status) ? finish(END) : status;
                        ck_assert_int_eq(status.code, CKV_CODE_OK);
                }
                ck_assert_mem_eq(core.memory, after, core.spare_at);
                forget();
        }
        ck_assert_msg(n > 3 && n < MOST, "%s: %lu allocations", scenario->name, (unsigned long)n);
        free(before);
        free(after);
        free(now);
}
END_TEST

START_TEST(registration_of_a_cache) {
        struct ckv_record_status status;
        struct ckv_cache *cache;
        bool met = true;
        uint64_t n;

        prepare(&scenarios[1]);
        alloc_counts = &core_inside;
        for (n = 1; met && n < MOST; n++) {
                alloc_fail(n);
                if (core_register(&core, &status, &cache))
                        ck_assert(ckv_cache_unregister(&core.session, cache->id, &status));
                else
                        ck_assert_int_eq(status.code, CKV_CODE_NO_MEMORY);
                met = alloc_failed();
        }
        ck_assert(n > 3 && n < MOST);
        forget();
}
END_TEST

START_TEST(tenants) {
        struct ckv_tenant *tenant;
        bool met = true;
        uint64_t n;

        prepare(&scenarios[0]);
        alloc_counts = NULL;
        for (n = 1; met && n < MOST; n++) {
                int r;

                alloc_fail(n);
                r = ckv_tenant_ref(&core.daemon, 4711, &tenant);
                met = alloc_failed();
                ck_assert(r == 0 || (met && r == -ENOMEM));
                if (r == 0)
                        (void)ckv_tenant_unref(tenant);
        }
        ck_assert(n > 2);
        forget();
}
END_TEST

int main(void) {
        Suite *suite = suite_create("alloc_core");
        TCase *tcase = tcase_create("alloc_core");
        SRunner *runner = srunner_create(suite);
        int failed;

        tcase_set_timeout(tcase, 120);
        tcase_add_loop_test(tcase, every_allocation, 0, (int)CKV_ARRAY_SIZE(scenarios));
        tcase_add_test(tcase, registration_of_a_cache);
        tcase_add_test(tcase, tenants);
        suite_add_tcase(suite, tcase);
        srunner_run_all(runner, CK_NORMAL);
        failed = srunner_ntests_failed(runner);
        srunner_free(runner);
        return failed != 0;
}
