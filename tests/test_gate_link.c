/*
 * Supervision of gates.  The gate is this program itself: started by the link
 * as "chunkkv-gate NAME", it behaves as the name of the endpoint says.
 *
 * Every test ends without a child and with as many descriptors as it began.
 */
#include "daemon/gate_link.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/macros.h"
#include "daemon/daemon.h"
#include "daemon/gate_spawn.h"
#include "ipc/ring.h"
#include "ipc/seqpacket.h"
#include "tests/support_files.h"

#include <check.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/close_range.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>

/* ---- the gate */

/* environment_right() - descriptors 0 to 6 and no other, no blocked signal, little of the core's environment */
static bool environment_right(void) {
        sigset_t blocked;
        DIR *dir = opendir("/proc/self/fd");
        struct dirent *entry;
        int type;
        socklen_t n = sizeof(type);

        if (!dir)
                return false;
        while ((entry = readdir(dir))) {
                int fd = atoi(entry->d_name);

                if (entry->d_name[0] != '.' && fd != dirfd(dir) && fd > CKV_GATE_FD_RING_TO_GATE)
                        return false;
        }
        (void)closedir(dir);
        if (getsockopt(CKV_GATE_FD_LISTEN, SOL_SOCKET, SO_TYPE, &type, &n) < 0 || type != SOCK_STREAM)
                return false;
        if (getsockopt(CKV_GATE_FD_PAIR, SOL_SOCKET, SO_TYPE, &type, &n) < 0 || type != SOCK_SEQPACKET)
                return false;
        return sigprocmask(SIG_BLOCK, NULL, &blocked) == 0 && !sigismember(&blocked, SIGTERM) && !getenv("NOTIFY_SOCKET") &&
               getenv("MALLOC_ARENA_MAX") && getpgrp() == getpid();
}

/* serve() - answer pings; say HELLO with an attachment once; leave with status 7 when told a RESULT */
static int serve(bool talk) {
        struct pollfd p = { .fd = CKV_GATE_FD_PAIR, .events = POLLIN };
        struct ckv_record record, answer = { 0 };
        struct ckv_ring ring;
        uint64_t sequence = 0, expected = 1;

        if (ckv_ring_init(&ring, CKV_GATE_FD_RING_TO_CORE, CKV_RING_BYTES, true))
                return 9;
        for (;;) {
                int r;

                (void)poll(&p, 1, -1);
                r = ckv_seqpacket_recv(CKV_GATE_FD_PAIR, &record, sizeof(record), NULL);
                if (r == CKV_SEQPACKET_E_CLOSED)
                        return 0;
                if (r || record.head.sequence != expected++)
                        return 9;
                if (record.head.type == CKV_RECORD_RESULT)
                        return 7;
                if (record.head.type == CKV_RECORD_LIMITS && (expected != 2 || record.body.limits.rows != CKV_LIMIT_ROWS))
                        return 9;
                if (record.head.type != CKV_RECORD_GATE_PING)
                        continue;
                answer.head = (struct ckv_record_head){ .magic = CKV_RECORD_MAGIC, .version = 1, .type = CKV_RECORD_PONG,
                                                        .sequence = ++sequence };
                (void)ckv_seqpacket_send(CKV_GATE_FD_PAIR, &answer, sizeof(answer), -1);
                if (!talk)
                        continue;
                talk = false;
                answer.head.type = CKV_RECORD_HELLO;
                answer.head.connection = 3;
                answer.head.sequence = ++sequence;
                memcpy(ckv_ring_reserve(&ring, 5, &answer.head.ring_offset), "hello", 5);
                answer.head.ring_bytes = 5;
                (void)ckv_seqpacket_send(CKV_GATE_FD_PAIR, &answer, sizeof(answer), -1);
        }
}

static int gate_main(const char *mode) {
        static const struct ckv_record garbage;

        /* a test that fails leaves no gate behind */
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (strcmp(mode, "right") == 0)
                return environment_right() ? serve(true) : 9;
        if (strcmp(mode, "quits") == 0)
                return 3;
        if (strcmp(mode, "lies") == 0)
                (void)ckv_seqpacket_send(CKV_GATE_FD_PAIR, &garbage, sizeof(garbage), -1);
        if (strcmp(mode, "stubborn") == 0)
                (void)serve(false);
        /* "silent", "lies", "stubborn": hears nothing any more, not even the end of the pair */
        for (;;)
                (void)pause();
}

/* ---- the core */

static char self[PATH_MAX];
static struct ckv_options options;
static struct ckv_daemon daemon_;
static struct ckv_endpoint endpoint;
static unsigned fds_before, dispatched;
static uint64_t dispatched_incarnation;
static const char *kill_when_dispatched;

void ckv_dispatch_record(struct ckv_endpoint *from, uint64_t incarnation, const struct ckv_record *record, const uint8_t *attachment,
                         uint32_t attachment_bytes) {
        ck_assert_ptr_eq(from, &endpoint);
        ck_assert_uint_eq(record->head.type, CKV_RECORD_HELLO);
        ck_assert_uint_eq(record->head.connection, 3);
        ck_assert_uint_eq(attachment_bytes, 5);
        ck_assert_mem_eq(attachment, "hello", 5);
        ck_assert_uint_eq((uintptr_t)attachment % 8, 0);
        dispatched++;
        dispatched_incarnation = incarnation;
        if (kill_when_dispatched)
                ckv_gate_link_kill(endpoint.link, kill_when_dispatched);
}

static void setup(void) {
        ssize_t n = readlink("/proc/self/exe", self, sizeof(self) - 1);

        ck_assert_int_gt(n, 0);
        ckv_log_open("test_gate_link", CKV_LOG_ERROR);
        /* as the daemon does at start: what a shell or the test library left open is not for gates */
        ck_assert_int_eq(close_range(3, ~0U, CLOSE_RANGE_CLOEXEC), 0);
        ck_assert_int_eq(setenv("NOTIFY_SOCKET", "/nowhere", 1), 0);
        fds_before = support_fds_count();
        ckv_options_init(&options);
        options.gate = self;
        daemon_ = (struct ckv_daemon){ .options = &options };
        ck_assert_int_ge(sd_event_new(&daemon_.event), 0);
        endpoint = (struct ckv_endpoint){ .daemon = &daemon_, .side_fd = -1 };
        endpoint.stream_fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
        ck_assert_int_ge(endpoint.stream_fd, 0);
}

static void teardown(void) {
        endpoint.link = ckv_gate_link_free(endpoint.link);
        (void)close(endpoint.stream_fd);
        daemon_.event = sd_event_unref(daemon_.event);
        ck_assert_uint_eq(support_fds_count(), fds_before);
        ck_assert_int_eq(waitpid(-1, NULL, WNOHANG), -1);
        ck_assert_int_eq(errno, ECHILD);
}

static void start(const char *mode) {
        strcpy(endpoint.name, mode);
        ck_assert_int_eq(ckv_gate_link_new(&daemon_, &endpoint, &endpoint.link), 0);
}

/* turn() - the event loop until @msec are over or *@done (if there is one) is not below @enough */
static void turn(unsigned msec, bool (*done)(void)) {
        uint64_t end = ckv_now_nsec() + msec * CKV_NSEC_PER_MSEC;

        while (ckv_now_nsec() < end && !(done && done()))
                ck_assert_int_ge(sd_event_run(daemon_.event, 10000), 0);
}

static bool ready(void) {
        return ckv_gate_link_ready(endpoint.link);
}

static bool heard(void) {
        return dispatched > 0;
}

static bool heard_again(void) {
        return dispatched > 1;
}

static bool died(void) {
        return ckv_gate_link_deaths(endpoint.link) > 0;
}

static bool died_five_times(void) {
        return ckv_gate_link_deaths(endpoint.link) >= 5;
}

START_TEST(right_gate_is_heard) {
        start("right");
        ck_assert(!ready());
        turn(5000, heard);
        ck_assert(ready());
        ck_assert_uint_eq(dispatched, 1);
        ck_assert_uint_eq(dispatched_incarnation, 1);
        ck_assert_uint_eq(ckv_gate_link_deaths(endpoint.link), 0);
}
END_TEST

START_TEST(right_gate_lives_on) {
        start("right");
        turn(5500, NULL); /* longer than a gate may be silent */
        ck_assert_uint_eq(ckv_gate_link_deaths(endpoint.link), 0);
        ck_assert_uint_eq(dispatched, 1);
}
END_TEST

START_TEST(dead_gate_is_replaced) {
        struct ckv_record result = { .head.type = CKV_RECORD_RESULT };

        start("right");
        turn(5000, heard);
        ck_assert_int_eq(ckv_gate_link_send(endpoint.link, 1, &result, "x", 1), 0);
        turn(5000, heard_again);
        ck_assert_uint_eq(dispatched, 2);
        ck_assert_uint_eq(dispatched_incarnation, 2);
        ck_assert_uint_eq(ckv_gate_link_deaths(endpoint.link), 1);
        /* meant for the first gate: would end the second */
        ck_assert_int_eq(ckv_gate_link_send(endpoint.link, 1, &result, NULL, 0), 0);
        turn(300, NULL);
        ck_assert_uint_eq(ckv_gate_link_deaths(endpoint.link), 1);
}
END_TEST

START_TEST(killed_while_its_record_is_handled) {
        kill_when_dispatched = "test";
        start("right");
        turn(5000, died);
        kill_when_dispatched = NULL;
        turn(5000, heard_again);
        ck_assert_uint_eq(dispatched_incarnation, 2);
}
END_TEST

START_TEST(breach_ends_the_gate) {
        start("lies");
        turn(5000, died);
        ck_assert_uint_ge(ckv_gate_link_deaths(endpoint.link), 1);
        ck_assert_uint_eq(dispatched, 0);
        ck_assert(!ready());
}
END_TEST

START_TEST(silent_gate_is_killed_after_three_seconds) {
        uint64_t begin = ckv_now_nsec(), msec;

        start("silent");
        turn(10000, died);
        msec = (ckv_now_nsec() - begin) / CKV_NSEC_PER_MSEC;
        ck_assert_uint_ge(msec, 2900);
        ck_assert_uint_le(msec, 5000);
        ck_assert_uint_eq(ckv_gate_link_deaths(endpoint.link), 1);
}
END_TEST

START_TEST(gate_that_takes_no_answers_is_killed) {
        struct ckv_record result = { .head.type = CKV_RECORD_RESULT };
        void *bytes = calloc(1, CKV_ATTACHMENT_MAX_BYTES);
        unsigned sent = 0;

        start("silent");
        while (!died() && sent < 100) {
                ck_assert_int_eq(ckv_gate_link_send(endpoint.link, 1, &result, bytes, CKV_ATTACHMENT_MAX_BYTES), 0);
                sent++;
                turn(1, NULL);
        }
        /* two fill the ring, 32 more are 64 MiB */
        ck_assert_uint_ge(sent, 33);
        ck_assert_uint_le(sent, 40);
        free(bytes);
}
END_TEST

START_TEST(deaths_slow_restarts_down_but_never_end_them) {
        uint64_t deaths;

        start("quits");
        turn(5000, died_five_times);
        ck_assert_uint_eq(ckv_gate_link_deaths(endpoint.link), 5);
        deaths = ckv_gate_link_deaths(endpoint.link);
        turn(700, NULL);
        ck_assert_uint_eq(ckv_gate_link_deaths(endpoint.link), deaths);
        turn(2000, NULL);
        ck_assert_uint_ge(ckv_gate_link_deaths(endpoint.link), deaths + 1);
        ck_assert_uint_le(ckv_gate_link_deaths(endpoint.link), deaths + 3);
}
END_TEST

START_TEST(program_that_is_missing) {
        options.gate = "/nonexistent/chunkkv-gate";
        ck_assert_int_eq(ckv_gate_link_new(&daemon_, &endpoint, &endpoint.link), -ENOENT);
        ck_assert_ptr_null(endpoint.link);
}
END_TEST

START_TEST(program_that_goes_missing_is_tried_again) {
        start("quits");
        options.gate = "/nonexistent/chunkkv-gate";
        turn(3000, died_five_times);
        ck_assert_uint_ge(ckv_gate_link_deaths(endpoint.link), 5);
        options.gate = self;
        strcpy(endpoint.name, "right");
        turn(5000, heard);
        ck_assert_uint_eq(dispatched, 1);
}
END_TEST

START_TEST(stubborn_gate_is_killed_at_the_end) {
        uint64_t begin;

        start("stubborn");
        turn(5000, ready);
        begin = ckv_now_nsec();
        endpoint.link = ckv_gate_link_free(endpoint.link);
        ck_assert_uint_ge(ckv_now_nsec() - begin, 900 * CKV_NSEC_PER_MSEC);
        ck_assert_uint_le(ckv_now_nsec() - begin, 3000 * CKV_NSEC_PER_MSEC);
}
END_TEST

START_TEST(descriptors_that_overlap_their_targets) {
        /* the listening socket lies where the pair must go, and so on */
        int low = fcntl(endpoint.stream_fd, F_DUPFD_CLOEXEC, CKV_GATE_FD_LISTEN);

        while (low <= CKV_GATE_FD_RING_TO_GATE + 1) {
                int next = fcntl(low, F_DUPFD_CLOEXEC, low + 1);

                (void)close(endpoint.stream_fd);
                endpoint.stream_fd = low;
                start("right");
                turn(5000, heard);
                ck_assert_uint_eq(dispatched, 1);
                ck_assert_uint_eq(ckv_gate_link_deaths(endpoint.link), 0);
                endpoint.link = ckv_gate_link_free(endpoint.link);
                dispatched = 0;
                low = next;
        }
        (void)close(low);
}
END_TEST

START_TEST(gate_path_rules) {
        char *path;

        ck_assert_int_eq(ckv_gate_path_find("/x/y", &path), 0);
        ck_assert_str_eq(path, "/x/y");
        free(path);
        ck_assert_int_eq(ckv_gate_path_find("", &path), 0);
        ck_assert_ptr_nonnull(strstr(path, "/chunkkv-gate"));
        ck_assert_int_eq(strncmp(path, self, (size_t)(strrchr(self, '/') - self)), 0);
        free(path);
}
END_TEST

int main(int argc, char *argv[]) {
        Suite *suite;
        TCase *tcase;
        SRunner *runner;
        int failed;

        if (argc == 2 && strcmp(argv[0], "chunkkv-gate") == 0)
                return gate_main(argv[1]);
        suite = suite_create("gate_link");
        tcase = tcase_create("gate_link");
        runner = srunner_create(suite);
        tcase_add_checked_fixture(tcase, setup, teardown);
        tcase_set_timeout(tcase, 60);
        tcase_add_test(tcase, right_gate_is_heard);
        tcase_add_test(tcase, right_gate_lives_on);
        tcase_add_test(tcase, dead_gate_is_replaced);
        tcase_add_test(tcase, killed_while_its_record_is_handled);
        tcase_add_test(tcase, breach_ends_the_gate);
        tcase_add_test(tcase, silent_gate_is_killed_after_three_seconds);
        tcase_add_test(tcase, gate_that_takes_no_answers_is_killed);
        tcase_add_test(tcase, deaths_slow_restarts_down_but_never_end_them);
        tcase_add_test(tcase, program_that_is_missing);
        tcase_add_test(tcase, program_that_goes_missing_is_tried_again);
        tcase_add_test(tcase, stubborn_gate_is_killed_at_the_end);
        tcase_add_test(tcase, descriptors_that_overlap_their_targets);
        tcase_add_test(tcase, gate_path_rules);
        suite_add_tcase(suite, tcase);
        srunner_run_all(runner, CK_NORMAL);
        failed = srunner_ntests_failed(runner);
        srunner_free(runner);
        return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
