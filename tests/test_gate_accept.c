/*
 * Who may connect to a gate, how many, how fast; and that the core is told of
 * those who may not.  Everything here runs as one user, so lists name it or do
 * not; several users are in tests/python/test_gate_attacks.py.
 */
#include "tests/support_gate.h"

#include "base/macros.h"
#include "daemon/gate/accept.h"

#include <check.h>
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

static struct core core;
static uint64_t last_id;

static void setup(void) {
        last_id = 0;
        core_init(&core);
}

static void teardown(void) {
        core_deinit(&core);
}

/* limits_send() - with this list, and this many connections of one user; returns when they hold */
static void limits_send(const struct ckv_record_access *ranges, uint32_t count, uint32_t per_uid) {
        struct ckv_record limits = { .head = { .type = CKV_RECORD_LIMITS }, .body = { .limits = core.limits } };
        struct ckv_record ping = { .head = { .type = CKV_RECORD_GATE_PING } }, pong;

        limits.body.limits.access_count = count;
        limits.body.limits.connections_per_uid = per_uid;
        ck_assert(core_send(&core, &limits, ranges, count * (uint32_t)sizeof(*ranges)));
        ck_assert(core_send(&core, &ping, NULL, 0));
        core_recv_type(&core, CKV_RECORD_PONG, &pong, NULL);
}

static struct ckv_record_access only(enum ckv_access_kind kind, uint32_t first, uint32_t last) {
        return (struct ckv_record_access){ .kind = kind, .first = first, .last = last };
}

/* raw_connect() - a connection that says nothing; it is held for the two seconds of a handshake */
static int raw_connect(void) {
        struct sockaddr_un address = { .sun_family = AF_UNIX };
        int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

        ck_assert_int_ge(fd, 0);
        (void)snprintf(address.sun_path, sizeof(address.sun_path), "%s", core.path);
        ck_assert_int_eq(connect(fd, (const struct sockaddr *)&address, sizeof(address)), 0);
        return fd;
}

/* is_let_in() - the gate greets whom it lets in, and closes the others */
static bool is_let_in(int fd) {
        struct pollfd p = { .fd = fd, .events = POLLIN };
        char byte;

        ck_assert_int_eq(poll(&p, 1, WAIT_MSEC), 1);
        return recv(fd, &byte, 1, MSG_PEEK) == 1;
}

/* visit() - connect, look, and leave */
static bool visit(void) {
        int fd = raw_connect();
        bool let_in = is_let_in(fd);

        (void)close(fd);
        return let_in;
}

static bool is_heard(void) {
        void *client = client_open(&core, ZMQ_DEALER);
        struct ckv_record record;

        client_send(client, ping(++last_id));
        core_recv_type(&core, CKV_RECORD_PING, &record, NULL);
        (void)zmq_close(client);
        return record.head.request_id == last_id;
}

/* stats_get() - the newest counts */
static struct ckv_record_stats stats_get(void) {
        struct ckv_record_stats stats = { 0 };

        core_ask_stats(&core, &stats);
        return stats;
}

START_TEST(list_without_us) {
        const struct ckv_record_access ranges[] = { only(CKV_ACCESS_UID, geteuid() + 1, UINT32_MAX),
                                                    only(CKV_ACCESS_GID, getegid() + 1, getegid() + 1) };
        struct ckv_record_stats stats;

        limits_send(ranges, CKV_ARRAY_SIZE(ranges), 16);
        for (int i = 0; i < 3; i++)
                ck_assert(!visit());
        stats = stats_get();
        ck_assert_uint_eq(stats.refused[CKV_REFUSED_ACCESS], 3);
        ck_assert_uint_eq(stats.open, 0);
        ck_assert_uint_eq(stats.uid_count, 0);
        /* and nobody was locked out for ever */
        limits_send(NULL, 0, 16);
        ck_assert(is_heard());
}
END_TEST

START_TEST(list_with_our_user_or_group) {
        const struct ckv_record_access user = only(CKV_ACCESS_UID, geteuid(), geteuid());
        const struct ckv_record_access group[] = { only(CKV_ACCESS_UID, geteuid() + 1, geteuid() + 1),
                                                   only(CKV_ACCESS_GID, getegid(), getegid()) };

        limits_send(&user, 1, 16);
        ck_assert(is_heard());
        limits_send(group, 2, 16);
        ck_assert(is_heard());
}
END_TEST

START_TEST(new_list_ends_connections) {
        const struct ckv_record_access others = only(CKV_ACCESS_UID, geteuid() + 1, geteuid() + 1);
        struct pollfd p = { .events = POLLIN };
        char bytes[64];

        p.fd = raw_connect();
        ck_assert(is_let_in(p.fd));
        limits_send(&others, 1, 16);
        do
                ck_assert_int_eq(poll(&p, 1, 1000), 1);
        while (recv(p.fd, bytes, sizeof(bytes), 0) > 0);
        (void)close(p.fd);
}
END_TEST

START_TEST(connections_of_one_user) {
        struct ckv_record_stats stats;
        int fds[2];

        limits_send(NULL, 0, 2);
        for (int i = 0; i < 2; i++) {
                fds[i] = raw_connect();
                ck_assert(is_let_in(fds[i]));
        }
        ck_assert(!visit());
        ck_assert(!visit());
        stats = stats_get();
        ck_assert_uint_eq(stats.refused[CKV_REFUSED_COUNT], 2);
        ck_assert_uint_eq(stats.open, 2);
        ck_assert_uint_eq(stats.uid_count, 1);
        ck_assert_uint_eq(stats.uids[0], geteuid());
        /* a place that is given up can be taken */
        (void)close(fds[0]);
        (void)poll(NULL, 0, 100);
        ck_assert(visit());
        (void)close(fds[1]);
}
END_TEST

START_TEST(connections_a_second) {
        struct ckv_record_stats stats;
        int let_in = 0;

        for (int i = 0; i < 100; i++)
                let_in += visit();
        stats = stats_get();
        /* the burst, and what was refilled meanwhile */
        ck_assert_int_ge(let_in, CKV_ACCEPT_BURST);
        ck_assert_int_lt(let_in, 60);
        ck_assert_uint_eq(stats.refused[CKV_REFUSED_RATE], 100 - (uint64_t)let_in);
        (void)poll(NULL, 0, 2 * 1000 / CKV_ACCEPT_PER_SECOND);
        ck_assert(visit());
}
END_TEST

START_TEST(list_that_no_right_core_sends) {
        static const struct ckv_record_access bad[] = {
                { .kind = 3, .first = 1, .last = 2 }, { .kind = CKV_ACCESS_UID, .first = 2, .last = 1 },
                { .kind = CKV_ACCESS_UID, .zero = 1 },
        };
        struct ckv_record limits = { .head = { .type = CKV_RECORD_LIMITS }, .body = { .limits = core.limits } };

        limits.body.limits.access_count = 1;
        ck_assert(core_send(&core, &limits, &bad[_i % 3], _i < 3 ? sizeof(bad[0]) : 0));
        ck_assert_int_ne(core_await_exit(&core), 0);
}
END_TEST

int main(void) {
        Suite *suite = suite_create("gate_accept");
        TCase *tcase = tcase_create("gate_accept");
        SRunner *runner = srunner_create(suite);
        int failed;

        tcase_add_checked_fixture(tcase, setup, teardown);
        tcase_add_test(tcase, list_without_us);
        tcase_add_test(tcase, list_with_our_user_or_group);
        tcase_add_test(tcase, new_list_ends_connections);
        tcase_add_test(tcase, connections_of_one_user);
        tcase_add_test(tcase, connections_a_second);
        tcase_add_loop_test(tcase, list_that_no_right_core_sends, 0, 4);
        suite_add_tcase(suite, tcase);
        srunner_run_all(runner, CK_NORMAL);
        failed = srunner_ntests_failed(runner);
        srunner_free(runner);
        return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
