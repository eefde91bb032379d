/*
 * Request ids: new, repeated, conflicting, too old; what is stored, and for
 * how long answers keep their sets.
 */
#include "base/limits.h"
#include "daemon/daemon.h"
#include "daemon/window.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>

static struct ckv_window window;

static void setup(void) {
        memset(&window, 0, sizeof(window));
}

static void teardown(void) {
        ckv_window_deinit(&window);
}

/* compressed() - an answer with one group, one policy and one set of two words */
static struct ckv_answer compressed(void) {
        struct ckv_answer answer = { .bytes = sizeof(struct ckv_record_group_result) + sizeof(struct ckv_record_policy) +
                                              sizeof(struct ckv_record_set) + 8 };
        struct ckv_record_group_result group = { .sets_sent = 1, .set_count = 1, .kept_digest = 42 };

        answer.record.body.result.answer = CKV_ANSWER_COMPRESSED;
        answer.record.body.result.u.compressed.group_count = 1;
        answer.record.body.result.u.compressed.policy_count = 1;
        answer.record.body.result.u.compressed.set_count = 1;
        answer.record.body.result.u.compressed.word_count = 2;
        answer.attachment = calloc(1, answer.bytes);
        ck_assert_ptr_nonnull(answer.attachment);
        memcpy(answer.attachment, &group, sizeof(group));
        return answer;
}

static uint64_t compressed_bytes(void) {
        struct ckv_answer answer = compressed();
        uint64_t bytes = answer.bytes;

        ckv_answer_deinit(&answer);
        return bytes;
}

static void run(uint64_t id, uint64_t digest) {
        struct ckv_window_entry *entry;
        struct ckv_answer answer = compressed();

        ck_assert_int_eq(ckv_window_enter(&window, id, digest, &entry), 0);
        ckv_window_store(&window, entry, &answer);
        ck_assert_ptr_null(answer.attachment);
}

START_TEST(test_repeat_and_conflict) {
        struct ckv_window_entry *entry;

        run(5, 100);
        ck_assert_int_eq(ckv_window_enter(&window, 5, 100, &entry), CKV_WINDOW_E_REPEAT);
        ck_assert_ptr_nonnull(entry->answer);
        ck_assert_int_eq(ckv_window_enter(&window, 5, 101, &entry), CKV_WINDOW_E_CONFLICT);
        ck_assert_ptr_null(ckv_window_find(&window, 6));
        ck_assert_ptr_null(ckv_window_find(&window, 0));
}
END_TEST

START_TEST(test_window_edges) {
        struct ckv_window_entry *entry;
        uint64_t top = 5000;

        run(top, 1);
        ck_assert_uint_eq(ckv_window_lowest(&window), top - CKV_LIMIT_STORED_OUTCOMES + 1);
        ck_assert_int_eq(ckv_window_enter(&window, top - CKV_LIMIT_STORED_OUTCOMES, 1, &entry), CKV_WINDOW_E_OLD);
        ck_assert_int_eq(ckv_window_enter(&window, top - CKV_LIMIT_STORED_OUTCOMES + 1, 1, &entry), 0);
        ckv_window_forget(entry);
        ck_assert_int_eq(ckv_window_enter(&window, UINT64_MAX / 2, 1, &entry), 0);
        ck_assert_int_eq(ckv_window_enter(&window, top, 1, &entry), CKV_WINDOW_E_OLD);
}
END_TEST

START_TEST(test_running_slot_is_not_taken) {
        struct ckv_window_entry *first, *second;

        ck_assert_int_eq(ckv_window_enter(&window, 3, 1, &first), 0);
        first->running = (struct ckv_request *)&window; /* any address: never looked at */
        ck_assert_int_eq(ckv_window_enter(&window, 3 + CKV_LIMIT_STORED_OUTCOMES, 1, &second), CKV_WINDOW_E_BUSY);
        first->running = NULL;
        ck_assert_int_eq(ckv_window_enter(&window, 3 + CKV_LIMIT_STORED_OUTCOMES, 1, &second), 0);
}
END_TEST

/* Cancelled before it came: whatever comes of this id is a repeat. Only of ids that can still be on their way. */
START_TEST(test_barred_ids) {
        struct ckv_window_entry *entry, *again;
        struct ckv_answer answer = { 0 };

        ck_assert_int_eq(ckv_window_bar(&window, 65, &entry), CKV_WINDOW_E_OLD);
        ck_assert_int_eq(ckv_window_bar(&window, 0, &entry), CKV_WINDOW_E_OLD);
        run(5000, 1);
        ck_assert_int_eq(ckv_window_bar(&window, 5000 + 65, &entry), CKV_WINDOW_E_OLD);
        ck_assert_int_eq(ckv_window_bar(&window, UINT64_MAX, &entry), CKV_WINDOW_E_OLD);
        ck_assert_int_eq(ckv_window_bar(&window, 5000 - CKV_LIMIT_STORED_OUTCOMES, &entry), CKV_WINDOW_E_OLD);
        ck_assert_int_eq(ckv_window_bar(&window, 5000 + 64, &entry), 0);
        /* the id that shared its place is out of the window, not new again */
        ck_assert_uint_eq(ckv_window_lowest(&window), 5000 + 64 - CKV_LIMIT_STORED_OUTCOMES + 1);
        ckv_window_store(&window, entry, &answer);
        ck_assert_int_eq(ckv_window_enter(&window, 5064, 77, &again), CKV_WINDOW_E_REPEAT);
        ck_assert_ptr_eq(again, entry);
        ck_assert(again->answered);
        /* others are as ever, and its place is free for the next */
        ck_assert_int_eq(ckv_window_enter(&window, 5001, 1, &again), 0);
        ck_assert_int_eq(ckv_window_enter(&window, 5001, 2, &again), CKV_WINDOW_E_CONFLICT);
        ck_assert_int_eq(ckv_window_enter(&window, 5064 + CKV_LIMIT_STORED_OUTCOMES, 1, &again), 0);
        ck_assert(!again->barred);
}
END_TEST

START_TEST(test_old_answers_lose_their_sets_and_nothing_else) {
        struct ckv_record_group_result group;
        struct ckv_window_entry *entry;

        for (uint64_t id = 1; id <= CKV_LIMIT_STORED_SETS + 1; id++)
                run(id, id);
        entry = ckv_window_find(&window, 1);
        ck_assert_uint_eq(entry->answer->record.body.result.u.compressed.set_count, 0);
        ck_assert_uint_eq(entry->answer->record.body.result.u.compressed.word_count, 0);
        ck_assert_uint_eq(entry->answer->bytes, sizeof(struct ckv_record_group_result) + sizeof(struct ckv_record_policy));
        memcpy(&group, entry->answer->attachment, sizeof(group));
        ck_assert_uint_eq(group.sets_sent, 0);
        ck_assert_uint_eq(group.set_count, 1);
        ck_assert_uint_eq(group.kept_digest, 42);
        entry = ckv_window_find(&window, 2);
        ck_assert_uint_eq(entry->answer->record.body.result.u.compressed.set_count, 1);
}
END_TEST

static uint32_t sets_of(uint64_t id) {
        return ckv_window_find(&window, id)->answer->record.body.result.u.compressed.set_count;
}

/* Stored sets are charged, and make way for whatever else the tenant needs, oldest first. */
START_TEST(test_stored_sets_are_a_cache) {
        struct ckv_options options = { 0 };
        struct ckv_daemon daemon = { .options = &options };
        struct ckv_charge charge = { 0 };
        uint64_t each = compressed_bytes();

        ck_assert_int_eq(ckv_tenant_ref(&daemon, 1000, &window.tenant), 0);
        window.tenant->limit[CKV_SLOT_QUEUED_BYTES] = 3 * each;
        for (uint64_t id = 1; id <= 4; id++)
                run(id, id);
        ck_assert_uint_eq(window.tenant->used[CKV_SLOT_QUEUED_BYTES], 3 * each);
        ck_assert(sets_of(1) == 0 && sets_of(2) == 1 && sets_of(4) == 1);
        /* something that counts needs the room of two */
        ck_assert_int_eq(ckv_charge_init(&charge, window.tenant, CKV_SLOT_QUEUED_BYTES, each + 1), 0);
        ck_assert(sets_of(2) == 0 && sets_of(3) == 0 && sets_of(4) == 1);
        ck_assert_uint_eq(window.tenant->used[CKV_SLOT_QUEUED_BYTES], 2 * each + 1);
        /* and all of it: then a new answer is stored without its sets */
        ckv_charge_deinit(&charge);
        ck_assert_int_eq(ckv_charge_init(&charge, window.tenant, CKV_SLOT_QUEUED_BYTES, 3 * each), 0);
        run(5, 5);
        ck_assert(sets_of(4) == 0 && sets_of(5) == 0);
        ck_assert(ckv_window_find(&window, 5)->answered);
        ckv_charge_deinit(&charge);
        run(6, 6);
        ck_assert_uint_eq(sets_of(6), 1);
        ckv_window_forget(ckv_window_find(&window, 6));
        ck_assert_uint_eq(window.tenant->used[CKV_SLOT_QUEUED_BYTES], 0);
        run(7, 7);
        ckv_window_deinit(&window);
        window.tenant = daemon.tenants;
        ck_assert_uint_eq(window.tenant->used[CKV_SLOT_QUEUED_BYTES], 0);
        (void)ckv_tenant_unref(window.tenant);
        window.tenant = NULL;
        ck_assert_ptr_null(daemon.tenants);
}
END_TEST

int main(void) {
        Suite *suite = suite_create("window");
        TCase *tcase = tcase_create("window");
        SRunner *runner = srunner_create(suite);
        int failed;

        tcase_add_checked_fixture(tcase, setup, teardown);
        tcase_add_test(tcase, test_repeat_and_conflict);
        tcase_add_test(tcase, test_window_edges);
        tcase_add_test(tcase, test_running_slot_is_not_taken);
        tcase_add_test(tcase, test_barred_ids);
        tcase_add_test(tcase, test_old_answers_lose_their_sets_and_nothing_else);
        tcase_add_test(tcase, test_stored_sets_are_a_cache);
        suite_add_tcase(suite, tcase);
        srunner_run_all(runner, CK_NORMAL);
        failed = srunner_ntests_failed(runner);
        srunner_free(runner);
        return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
