/*
 * The small parts of the gate: who sent a message, memory with a bound, peers
 * by number, the attachment that grows.
 */
#include "daemon/gate/address.h"
#include "daemon/gate/budget.h"
#include "daemon/gate/connections.h"
#include "daemon/gate/link.h"

#include "base/macros.h"

#include <check.h>
#include <stdio.h>
#include <string.h>

START_TEST(address_as_libzmq_writes_it) {
        struct ckv_address address;

        ck_assert(ckv_address_parse("localhost:1000:100:4242", &address));
        ck_assert_uint_eq(address.uid, 1000);
        ck_assert_uint_eq(address.gid, 100);
        ck_assert_uint_eq(address.pid, 4242);
        ck_assert(ckv_address_parse("localhost:0:0:0", &address));
        ck_assert(ckv_address_parse("localhost:4294967295:4294967295:4294967295", &address));
        ck_assert_uint_eq(address.pid, UINT32_MAX);
}
END_TEST

START_TEST(address_in_any_other_form) {
        static const char *const bad[] = {
                NULL,
                "",
                "localhost",
                "localhost:",
                "localhost:1:2",
                "localhost:1:2:",
                "localhost:1:2:3:4",
                "localhost:1:2:3 ",
                "localhost: 1:2:3",
                "localhost:+1:2:3",
                "localhost:-1:2:3",
                "localhost:01:2:3",
                "localhost:1:2:00",
                "localhost:4294967296:2:3",
                "localhost:1:2:18446744073709551617",
                "Localhost:1:2:3",
                "127.0.0.1:1:2:3",
                "localhost:1:0x2:3",
                "localhost:a:2:3",
                "localhost:1::3",
                "localhost1:2:3:4",
        };

        for (size_t i = 0; i < CKV_ARRAY_SIZE(bad); i++) {
                struct ckv_address address = { 7, 8, 9 };

                ck_assert_msg(!ckv_address_parse(bad[i], &address), "%s", bad[i]);
                ck_assert_uint_eq(address.uid, 7);
        }
}
END_TEST

START_TEST(budget_of_bytes) {
        struct ckv_budget budget;
        void *first, *second;

        ckv_budget_init(&budget, 100, 10);
        first = budget.allocator.alloc(&budget, 60);
        ck_assert_ptr_nonnull(first);
        ck_assert_ptr_null(budget.allocator.alloc(&budget, 41));
        second = budget.allocator.alloc(&budget, 40);
        ck_assert_ptr_nonnull(second);
        ck_assert_ptr_null(budget.allocator.alloc(&budget, 1));
        budget.allocator.free(&budget, first);
        ck_assert_uint_eq(budget.held, 40);
        first = budget.allocator.alloc(&budget, 60);
        ck_assert_ptr_nonnull(first);
        budget.allocator.free(&budget, first);
        budget.allocator.free(&budget, second);
        budget.allocator.free(&budget, NULL);
        ck_assert_uint_eq(budget.held, 0);
        ck_assert_ptr_null(budget.allocator.alloc(&budget, SIZE_MAX));
}
END_TEST

START_TEST(budget_of_blocks_is_not_given_back) {
        struct ckv_budget budget;

        ckv_budget_init(&budget, 100, 3);
        for (int i = 0; i < 3; i++) {
                void *block = budget.allocator.alloc(&budget, 1);

                ck_assert_ptr_nonnull(block);
                budget.allocator.free(&budget, block);
        }
        ck_assert_ptr_null(budget.allocator.alloc(&budget, 1));
}
END_TEST

static struct ckv_connections connections;
static const struct ckv_address me = { 1, 2, 3 };

/* touch() - peer @i says something */
static struct ckv_connection *touch(uint32_t i, const struct ckv_address *address, uint32_t *ret_gone) {
        uint8_t id[5] = { 0 };

        memcpy(id + 1, &i, sizeof(i));
        return ckv_connections_touch(&connections, id, sizeof(id), address, ret_gone);
}

START_TEST(connections_are_numbered_once) {
        struct ckv_connection *a, *b;
        uint32_t gone = 9;

        memset(&connections, 0, sizeof(connections));
        a = touch(1, &me, &gone);
        ck_assert_uint_eq(gone, 0);
        ck_assert_uint_eq(a->number, 1);
        b = touch(2, &me, &gone);
        ck_assert_uint_eq(b->number, 2);
        ck_assert_ptr_eq(touch(1, &me, &gone), a);
        ck_assert_ptr_eq(ckv_connections_find(&connections, 2), b);
        ck_assert_ptr_null(ckv_connections_find(&connections, 3));
        ck_assert_ptr_null(ckv_connections_find(&connections, 0));
        ckv_connections_forget(b);
        ck_assert_ptr_null(ckv_connections_find(&connections, 2));
        ck_assert_uint_eq(touch(2, &me, &gone)->number, 3);
        ck_assert_uint_eq(gone, 0);
}
END_TEST

START_TEST(routing_id_in_other_hands) {
        const struct ckv_address other = { 1, 2, 4 };
        uint32_t gone;

        memset(&connections, 0, sizeof(connections));
        ck_assert_uint_eq(touch(1, &me, &gone)->number, 1);
        ck_assert_uint_eq(touch(1, &other, &gone)->number, 2);
        ck_assert_uint_eq(gone, 1);
        ck_assert_ptr_null(ckv_connections_find(&connections, 1));
}
END_TEST

START_TEST(ids_of_different_length) {
        uint32_t gone;

        memset(&connections, 0, sizeof(connections));
        ck_assert_uint_eq(ckv_connections_touch(&connections, (const uint8_t *)"aa", 2, &me, &gone)->number, 1);
        ck_assert_uint_eq(ckv_connections_touch(&connections, (const uint8_t *)"aaa", 3, &me, &gone)->number, 2);
        ck_assert_uint_eq(ckv_connections_touch(&connections, (const uint8_t *)"aa", 2, &me, &gone)->number, 1);
}
END_TEST

START_TEST(full_table_forgets_the_least_recent) {
        uint32_t gone;

        memset(&connections, 0, sizeof(connections));
        for (uint32_t i = 1; i <= CKV_CONNECTIONS_MAX; i++) {
                ck_assert_uint_eq(touch(i, &me, &gone)->number, i);
                ck_assert_uint_eq(gone, 0);
        }
        (void)touch(1, &me, &gone);
        ck_assert_uint_eq(touch(5000, &me, &gone)->number, CKV_CONNECTIONS_MAX + 1);
        ck_assert_uint_eq(gone, 2);
        ck_assert_ptr_nonnull(ckv_connections_find(&connections, 1));
        ck_assert_uint_eq(touch(2, &me, &gone)->number, CKV_CONNECTIONS_MAX + 2);
        ck_assert_uint_eq(gone, 3);
}
END_TEST

START_TEST(numbers_run_out) {
        uint32_t gone;

        memset(&connections, 0, sizeof(connections));
        connections.last_number = UINT32_MAX - 1;
        ck_assert_uint_eq(touch(1, &me, &gone)->number, UINT32_MAX);
        ck_assert_ptr_null(touch(2, &me, &gone));
        ck_assert_uint_eq(touch(1, &me, &gone)->number, UINT32_MAX);
}
END_TEST

START_TEST(attachment_grows_to_its_limit) {
        static uint8_t room[CKV_ATTACHMENT_MAX_BYTES];
        struct ckv_outgoing outgoing = { .attachment = room };

        ckv_outgoing_reset(&outgoing);
        ck_assert_ptr_eq(ckv_outgoing_append(&outgoing, 8), room);
        ck_assert_ptr_null(ckv_outgoing_append(&outgoing, CKV_ATTACHMENT_MAX_BYTES - 7));
        ck_assert_ptr_null(ckv_outgoing_append(&outgoing, SIZE_MAX));
        ck_assert_ptr_eq(ckv_outgoing_append(&outgoing, CKV_ATTACHMENT_MAX_BYTES - 8), room + 8);
        ck_assert_ptr_null(ckv_outgoing_append(&outgoing, 1));
        ckv_outgoing_reset(&outgoing);
        ck_assert_ptr_eq(ckv_outgoing_append(&outgoing, 1), room);
}
END_TEST

int main(void) {
        Suite *suite = suite_create("gate_parts");
        TCase *tcase = tcase_create("parts");
        SRunner *runner;
        int failed;

        tcase_add_test(tcase, address_as_libzmq_writes_it);
        tcase_add_test(tcase, address_in_any_other_form);
        tcase_add_test(tcase, budget_of_bytes);
        tcase_add_test(tcase, budget_of_blocks_is_not_given_back);
        tcase_add_test(tcase, connections_are_numbered_once);
        tcase_add_test(tcase, routing_id_in_other_hands);
        tcase_add_test(tcase, ids_of_different_length);
        tcase_add_test(tcase, full_table_forgets_the_least_recent);
        tcase_add_test(tcase, numbers_run_out);
        tcase_add_test(tcase, attachment_grows_to_its_limit);
        suite_add_tcase(suite, tcase);
        runner = srunner_create(suite);
        srunner_run_all(runner, CK_NORMAL);
        failed = srunner_ntests_failed(runner);
        srunner_free(runner);
        return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
