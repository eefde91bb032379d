/*
 * chunkkvd and chunkkv-gate as processes: start, refusals to start, socket
 * activation, gates that die, the watchdog, and an end that leaves nothing
 * behind.  What they compute is tested elsewhere.
 */
#include "base/clock.h"
#include "base/macros.h"
#include "ipc/listen.h"
#include "ipc/seqpacket.h"
#include "proto/side.h"
#include "tests/support_daemon.h"

#include <check.h>
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

static struct support_daemon daemon_;
static pid_t gates[SUPPORT_DAEMON_GATES_MAX];

static void setup(void) {
        support_daemon_init(&daemon_);
}

static void teardown(void) {
        support_daemon_deinit(&daemon_);
}

static void spawn_ready(void) {
        support_daemon_spawn(&daemon_, NULL, NULL, 0);
        support_daemon_await(&daemon_, "READY=1");
}

/* refused() - start with these arguments. Return: the exit status; it must not come up. */
static int refused(const char *const args[]) {
        support_daemon_spawn(&daemon_, args, NULL, 0);
        return support_daemon_wait(&daemon_);
}

static const char *in_run(const char *name) {
        static char path[256];

        (void)snprintf(path, sizeof(path), "%s/%s", daemon_.run, name);
        return path;
}

static bool exists(const char *name) {
        struct stat st;

        return lstat(in_run(name), &st) == 0;
}

static bool alive(pid_t pid) {
        return kill(pid, 0) == 0;
}

/* await() - up to @msec for a condition. Return: whether it came true. */
static bool await(unsigned msec, bool (*condition)(pid_t), pid_t argument) {
        uint64_t end = ckv_now_nsec() + msec * CKV_NSEC_PER_MSEC;

        while (!condition(argument)) {
                if (ckv_now_nsec() > end)
                        return false;
                (void)poll(NULL, 0, 5);
        }
        return true;
}

static bool gone(pid_t pid) {
        return !alive(pid);
}

/* another_gate() - is there a gate, and is it not this one? */
static bool another_gate(pid_t pid) {
        return support_daemon_gates(&daemon_, gates) == 1 && gates[0] != pid;
}

/* attach() - a side connection of endpoint main. The core's pidfd goes to @ret_core. */
static int attach(int *ret_core) {
        struct ckv_side record = { .magic = CKV_SIDE_MAGIC, .version = CKV_SIDE_VERSION, .type = CKV_SIDE_ATTACH, .cookie = 5 };
        struct sockaddr_un address = { .sun_family = AF_UNIX };
        int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
        struct pollfd p = { .fd = fd, .events = POLLIN };

        ck_assert_int_ge(fd, 0);
        ck_assert_uint_lt(strlen(in_run("main.fd")), sizeof(address.sun_path));
        strcpy(address.sun_path, in_run("main.fd"));
        ck_assert_int_eq(connect(fd, (const struct sockaddr *)&address, sizeof(address)), 0);
        ck_assert_int_eq(ckv_seqpacket_send(fd, &record, sizeof(record), -1), 0);
        ck_assert_int_eq(poll(&p, 1, 5000), 1);
        ck_assert_int_eq(ckv_seqpacket_recv(fd, &record, sizeof(record), ret_core), 0);
        ck_assert_uint_eq(record.type, CKV_SIDE_ATTACHED);
        ck_assert_uint_eq(record.code, 0);
        ck_assert_int_ge(*ret_core, 0);
        return fd;
}

START_TEST(starts_and_ends_clean) {
        static const char *const sockets[] = { "main.zmq", "main.fd" };
        struct stat st;

        spawn_ready();
        ck_assert_int_eq(stat(daemon_.run, &st), 0);
        ck_assert_uint_eq(st.st_mode & 07777, 0750);
        for (size_t i = 0; i < CKV_ARRAY_SIZE(sockets); i++) {
                ck_assert_int_eq(stat(in_run(sockets[i]), &st), 0);
                ck_assert(S_ISSOCK(st.st_mode));
                ck_assert_uint_eq(st.st_mode & 07777, 0660);
        }
        ck_assert_int_eq(support_daemon_gates(&daemon_, gates), 1);

        ck_assert_int_eq(kill(daemon_.pid, SIGTERM), 0);
        support_daemon_await(&daemon_, "STOPPING=1");
        ck_assert_int_eq(support_daemon_wait(&daemon_), 0);
        ck_assert(gone(gates[0]));
        ck_assert(!exists("main.zmq"));
        ck_assert(!exists("main.fd"));
        ck_assert(support_daemon_logged(&daemon_, "STOPPED"));
        ck_assert(!support_daemon_logged(&daemon_, "error:"));
}
END_TEST

START_TEST(interrupt_is_an_orderly_end_too) {
        spawn_ready();
        ck_assert_int_eq(kill(daemon_.pid, SIGINT), 0);
        ck_assert_int_eq(support_daemon_wait(&daemon_), 0);
}
END_TEST

START_TEST(reload_is_announced_and_ended) {
        spawn_ready();
        for (int i = 0; i < 3; i++) {
                ck_assert_int_eq(kill(daemon_.pid, SIGHUP), 0);
                support_daemon_await(&daemon_, "RELOADING=1\nMONOTONIC_USEC=");
                support_daemon_await(&daemon_, "READY=1");
        }
        ck_assert(support_daemon_logged(&daemon_, "RELOADED"));
        ck_assert(!support_daemon_logged(&daemon_, "SIGNAL_IGNORED"));
        ck_assert_int_eq(kill(daemon_.pid, SIGTERM), 0);
        ck_assert_int_eq(support_daemon_wait(&daemon_), 0);
}
END_TEST

START_TEST(reload_before_ready_announces_nothing) {
        /* a gate that never answers keeps the daemon starting */
        static const char *const args[] = { "--gate", "/bin/cat", NULL };

        support_daemon_spawn(&daemon_, args, NULL, 0);
        for (int i = 0; i < 500 && !support_daemon_logged(&daemon_, "SIGNAL_IGNORED"); i++) {
                /* until its handler is there, SIGHUP would end it; it is blocked first of all, long before the first line */
                if (support_daemon_logged(&daemon_, "STARTING"))
                        ck_assert_int_eq(kill(daemon_.pid, SIGHUP), 0);
                (void)poll(NULL, 0, 5);
        }
        ck_assert(support_daemon_logged(&daemon_, "SIGNAL_IGNORED"));
        ck_assert(!support_daemon_logged(&daemon_, "RELOADED"));
}
END_TEST

START_TEST(second_daemon_is_refused) {
        struct support_daemon second;
        int core = -1, side;

        spawn_ready();
        support_daemon_init(&second);
        strcpy(second.run, daemon_.run);
        support_daemon_spawn(&second, NULL, NULL, 0);
        ck_assert_int_eq(support_daemon_wait(&second), 1);
        ck_assert(support_daemon_logged(&second, "RUNTIME_DIR_BUSY"));
        support_daemon_deinit(&second);
        /* the first one did not notice */
        side = attach(&core);
        (void)close(side);
        (void)close(core);
}
END_TEST

START_TEST(killed_daemon_leaves_what_the_next_one_replaces) {
        int core = -1, side;

        spawn_ready();
        ck_assert_int_eq(support_daemon_gates(&daemon_, gates), 1);
        ck_assert_int_eq(kill(daemon_.pid, SIGKILL), 0);
        ck_assert_int_eq(support_daemon_wait(&daemon_), 128 + SIGKILL);
        ck_assert(exists("main.fd"));
        ck_assert_msg(await(5000, gone, gates[0]), "the gate outlives its core");
        spawn_ready();
        ck_assert(support_daemon_logged(&daemon_, "SOCKET_STALE"));
        side = attach(&core);
        (void)close(side);
        (void)close(core);
        ck_assert_int_eq(kill(daemon_.pid, SIGTERM), 0);
        ck_assert_int_eq(support_daemon_wait(&daemon_), 0);
}
END_TEST

START_TEST(foreign_file_is_left_alone) {
        FILE *file;

        ck_assert_int_eq(mkdir(daemon_.run, 0700), 0);
        file = fopen(in_run("main.fd"), "w");
        ck_assert_ptr_nonnull(file);
        (void)fclose(file);
        ck_assert_int_eq(refused(NULL), 1);
        ck_assert(support_daemon_logged(&daemon_, "SOCKET_FAILED"));
        ck_assert(exists("main.fd"));
        ck_assert(!exists("main.zmq"));
}
END_TEST

START_TEST(missing_gate_is_named) {
        static const char *const args[] = { "--gate", "/nonexistent/gate-program", NULL };

        ck_assert_int_eq(refused(args), 1);
        ck_assert(support_daemon_logged(&daemon_, "/nonexistent/gate-program"));
        ck_assert(support_daemon_logged(&daemon_, "No such file or directory"));
        ck_assert(!exists("main.zmq"));
}
END_TEST

START_TEST(gate_that_ends_at_once_is_named) {
        static const char *const args[] = { "--gate", "/bin/false", NULL };

        ck_assert_int_eq(refused(args), 1);
        ck_assert(support_daemon_logged(&daemon_, "gate=\"/bin/false\" why=\"the gate ended before it was ready\""));
        ck_assert(!exists("main.zmq"));
}
END_TEST

START_TEST(wrong_option_is_named) {
        static const char *const args[] = { "--rows", "0", NULL };

        ck_assert_int_eq(refused(args), 2);
        ck_assert(support_daemon_logged(&daemon_, "--rows: must be 1 to 1048576 rows, is \"0\""));
}
END_TEST

START_TEST(killed_gate_is_replaced_and_the_side_connection_stays) {
        struct pollfd p = { .events = POLLIN };
        int core = -1, side;
        pid_t first;

        spawn_ready();
        side = attach(&core);
        ck_assert_int_eq(support_daemon_gates(&daemon_, gates), 1);
        first = gates[0];
        ck_assert_int_eq(kill(first, SIGKILL), 0);
        ck_assert(await(5000, another_gate, first));
        /* neither the connection nor the core ended */
        p.fd = side;
        ck_assert_int_eq(poll(&p, 1, 100), 0);
        p.fd = core;
        ck_assert_int_eq(poll(&p, 1, 0), 0);
        ck_assert(support_daemon_logged(&daemon_, "GATE_DIED endpoint=main"));

        ck_assert_int_eq(kill(daemon_.pid, SIGTERM), 0);
        ck_assert_int_eq(support_daemon_wait(&daemon_), 0);
        ck_assert_int_eq(poll(&p, 1, 0), 1);
        (void)close(side);
        (void)close(core);
}
END_TEST

START_TEST(many_gates_killed_in_a_row) {
        uint64_t begin = ckv_now_nsec();

        spawn_ready();
        for (int i = 0; i < 7; i++) {
                pid_t before;

                ck_assert_int_eq(support_daemon_gates(&daemon_, gates), 1);
                before = gates[0];
                ck_assert_int_eq(kill(before, SIGKILL), 0);
                ck_assert(await(5000, another_gate, before));
        }
        /* the fifth and later ones wait a second */
        ck_assert_uint_ge(ckv_now_nsec() - begin, 3 * CKV_NSEC_PER_SEC - 200 * CKV_NSEC_PER_MSEC);
        ck_assert_int_eq(kill(daemon_.pid, SIGTERM), 0);
        ck_assert_int_eq(support_daemon_wait(&daemon_), 0);
}
END_TEST

START_TEST(stopped_gate_is_killed) {
        spawn_ready();
        ck_assert_int_eq(support_daemon_gates(&daemon_, gates), 1);
        ck_assert_int_eq(kill(gates[0], SIGSTOP), 0);
        ck_assert(await(8000, another_gate, gates[0]));
        ck_assert(support_daemon_logged(&daemon_, "GATE_KILLED"));
}
END_TEST

START_TEST(several_endpoints) {
        static const char *const args[] = { "--endpoint", "a", "--endpoint", "b", "--socket-mode", "600", NULL };
        struct stat st;

        support_daemon_spawn(&daemon_, args, NULL, 0);
        support_daemon_await(&daemon_, "READY=1");
        ck_assert_int_eq(support_daemon_gates(&daemon_, gates), 2);
        ck_assert(exists("a.zmq") && exists("a.fd") && exists("b.zmq") && exists("b.fd") && !exists("main.zmq"));
        ck_assert_int_eq(stat(in_run("b.fd"), &st), 0);
        ck_assert_uint_eq(st.st_mode & 07777, 0600);
        ck_assert_int_eq(kill(daemon_.pid, SIGTERM), 0);
        ck_assert_int_eq(support_daemon_wait(&daemon_), 0);
        ck_assert(gone(gates[0]) && gone(gates[1]));
}
END_TEST

/* listen_as() - a socket as systemd would make it */
static int listen_as(const char *name, int type) {
        bool replaced;
        int fd;

        ck_assert_int_eq(ckv_listen_create(in_run(name), type, 0600, &fd, &replaced), 0);
        return fd;
}

START_TEST(socket_in_use_is_waited_for_but_not_taken) {
        int fd;

        ck_assert_int_eq(mkdir(daemon_.run, 0700), 0);
        fd = listen_as("main.zmq", SOCK_STREAM);
        ck_assert_int_eq(refused(NULL), 1);
        ck_assert(support_daemon_logged(&daemon_, "main.zmq\" why=\"a process listens on it already\""));
        ck_assert(exists("main.zmq"));

        /* as a gate does that was orphaned a moment ago */
        support_daemon_spawn(&daemon_, NULL, NULL, 0);
        (void)poll(NULL, 0, 200);
        (void)close(fd);
        support_daemon_await(&daemon_, "READY=1");
        ck_assert_int_eq(kill(daemon_.pid, SIGTERM), 0);
        ck_assert_int_eq(support_daemon_wait(&daemon_), 0);
}
END_TEST

START_TEST(passed_sockets_are_used_and_stay) {
        int fds[4], core = -1, side;

        ck_assert_int_eq(mkdir(daemon_.run, 0700), 0);
        /* in an order that says nothing */
        fds[0] = listen_as("other.fd", SOCK_SEQPACKET);
        fds[1] = listen_as("main.zmq", SOCK_STREAM);
        fds[2] = listen_as("main.fd", SOCK_SEQPACKET);
        fds[3] = listen_as("other.zmq", SOCK_STREAM);
        support_daemon_spawn(&daemon_, NULL, fds, 4);
        support_daemon_await(&daemon_, "READY=1");
        ck_assert_int_eq(support_daemon_gates(&daemon_, gates), 2);
        side = attach(&core);
        (void)close(side);
        (void)close(core);
        ck_assert_int_eq(kill(daemon_.pid, SIGTERM), 0);
        ck_assert_int_eq(support_daemon_wait(&daemon_), 0);
        ck_assert(exists("main.zmq") && exists("main.fd") && exists("other.zmq") && exists("other.fd"));
        for (int i = 0; i < 4; i++)
                (void)close(fds[i]);
}
END_TEST

START_TEST(passed_sockets_that_do_not_fit) {
        int fds[2];

        ck_assert_int_eq(mkdir(daemon_.run, 0700), 0);
        fds[0] = listen_as("main.zmq", SOCK_STREAM);
        support_daemon_spawn(&daemon_, NULL, fds, 1);
        ck_assert_int_eq(support_daemon_wait(&daemon_), 1);
        ck_assert(support_daemon_logged(&daemon_, "NAME.fd of this name was not passed"));
        ck_assert(exists("main.zmq"));
        fds[1] = listen_as("main.fd", SOCK_STREAM);
        support_daemon_spawn(&daemon_, NULL, fds, 2);
        ck_assert_int_eq(support_daemon_wait(&daemon_), 1);
        ck_assert(support_daemon_logged(&daemon_, "a stream socket must be NAME.zmq"));
        (void)close(fds[0]);
        (void)close(fds[1]);
}
END_TEST

START_TEST(watchdog_is_fed) {
        ck_assert_int_eq(setenv("WATCHDOG_USEC", "300000", 1), 0);
        spawn_ready();
        for (int i = 0; i < 3; i++)
                support_daemon_await(&daemon_, "WATCHDOG=1");
        ck_assert_int_eq(kill(daemon_.pid, SIGTERM), 0);
        ck_assert_int_eq(support_daemon_wait(&daemon_), 0);
        ck_assert(!support_daemon_logged(&daemon_, "WATCHDOG_HELD"));
}
END_TEST

START_TEST(attached_clients_are_told_of_the_end) {
        struct pollfd p = { .events = POLLIN };
        struct ckv_side record;
        int core = -1;

        spawn_ready();
        p.fd = attach(&core);
        ck_assert_int_eq(kill(daemon_.pid, SIGTERM), 0);
        ck_assert_int_eq(poll(&p, 1, 5000), 1);
        ck_assert_int_eq(ckv_seqpacket_recv(p.fd, &record, sizeof(record), NULL), 0);
        ck_assert_uint_eq(record.type, CKV_SIDE_NOTICE);
        ck_assert_uint_eq(record.kind, CKV_SIDE_NOTICE_DRAINING);
        ck_assert_int_eq(support_daemon_wait(&daemon_), 0);
        ck_assert_int_eq(ckv_seqpacket_recv(p.fd, &record, sizeof(record), NULL), CKV_SEQPACKET_E_CLOSED);
        (void)close(p.fd);
        p.fd = core;
        ck_assert_int_eq(poll(&p, 1, 0), 1);
        (void)close(core);
}
END_TEST

int main(void) {
        Suite *suite = suite_create("daemon_process");
        TCase *tcase = tcase_create("daemon_process");
        SRunner *runner = srunner_create(suite);
        int failed;

        tcase_add_checked_fixture(tcase, setup, teardown);
        tcase_set_timeout(tcase, 60);
        tcase_add_test(tcase, starts_and_ends_clean);
        tcase_add_test(tcase, interrupt_is_an_orderly_end_too);
        tcase_add_test(tcase, reload_is_announced_and_ended);
        tcase_add_test(tcase, reload_before_ready_announces_nothing);
        tcase_add_test(tcase, second_daemon_is_refused);
        tcase_add_test(tcase, killed_daemon_leaves_what_the_next_one_replaces);
        tcase_add_test(tcase, socket_in_use_is_waited_for_but_not_taken);
        tcase_add_test(tcase, foreign_file_is_left_alone);
        tcase_add_test(tcase, missing_gate_is_named);
        tcase_add_test(tcase, gate_that_ends_at_once_is_named);
        tcase_add_test(tcase, wrong_option_is_named);
        tcase_add_test(tcase, killed_gate_is_replaced_and_the_side_connection_stays);
        tcase_add_test(tcase, many_gates_killed_in_a_row);
        tcase_add_test(tcase, stopped_gate_is_killed);
        tcase_add_test(tcase, several_endpoints);
        tcase_add_test(tcase, passed_sockets_are_used_and_stay);
        tcase_add_test(tcase, passed_sockets_that_do_not_fit);
        tcase_add_test(tcase, watchdog_is_fed);
        tcase_add_test(tcase, attached_clients_are_told_of_the_end);
        suite_add_tcase(suite, tcase);
        srunner_run_all(runner, CK_NORMAL);
        failed = srunner_ntests_failed(runner);
        srunner_free(runner);
        return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
