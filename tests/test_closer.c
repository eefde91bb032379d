/*
 * Closing away from the loop.  close() of this program blocks for descriptors
 * that a test names, as that of a hostile FUSE file system would; whoever waits
 * for it in the loop's thread hangs the test.
 */
#include "base/clock.h"
#include "base/macros.h"
#include "daemon/closer.h"
#include "daemon/daemon.h"
#include "ipc/seqpacket.h"

#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/syscall.h>

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static bool blocks[1024];               /* by descriptor, under mutex */

/* Takes the place of the C library's for everything that is linked here. */
int close(int fd) {
        (void)pthread_mutex_lock(&mutex);
        while (fd >= 0 && fd < (int)CKV_ARRAY_SIZE(blocks) && blocks[fd])
                (void)pthread_cond_wait(&changed, &mutex);
        (void)pthread_mutex_unlock(&mutex);
        return (int)syscall(SYS_close, fd);
}

static void set_blocks(int fd, bool value) {
        (void)pthread_mutex_lock(&mutex);
        blocks[fd] = value;
        (void)pthread_cond_broadcast(&changed);
        (void)pthread_mutex_unlock(&mutex);
}

static struct ckv_options options;
static struct ckv_daemon daemon_;
static struct ckv_tenant *tenant;

static void setup(void) {
        ckv_log_open("test", CKV_LOG_ERROR);
        ckv_options_init(&options);
        daemon_ = (struct ckv_daemon){ .options = &options };
        ck_assert_int_ge(sd_event_new(&daemon_.event), 0);
        ck_assert_int_eq(ckv_closer_start(&daemon_), 0);
        ck_assert_int_eq(ckv_tenant_ref(&daemon_, 1, &tenant), 0);
}

static void teardown(void) {
        ckv_tenant_unref(tenant);
        ckv_closer_stop(&daemon_);
        ck_assert_ptr_null(daemon_.closer);
        ck_assert_ptr_null(daemon_.tenants);
        (void)sd_event_unref(daemon_.event);
}

static int any_fd(void) {
        int fd = open("/dev/null", O_RDONLY | O_CLOEXEC);

        ck_assert_int_ge(fd, 0);
        return fd;
}

static bool is_open(int fd) {
        return fcntl(fd, F_GETFD) >= 0;
}

/* turn() - the loop goes round until a slot holds @used, or for a second */
static void turn(enum ckv_slot slot, uint64_t used) {
        uint64_t until = ckv_now_nsec() + CKV_NSEC_PER_SEC;

        while (tenant->used[slot] != used && ckv_now_nsec() < until)
                ck_assert_int_ge(sd_event_run(daemon_.event, 10000), 0);
        ck_assert_uint_eq(tenant->used[slot], used);
}

START_TEST(charge_until_closed) {
        struct ckv_charge charge = { 0 };
        int fd = any_fd();

        set_blocks(fd, true);
        ck_assert_int_eq(ckv_charge_init(&charge, tenant, CKV_SLOT_FDS, 1), 0);
        ckv_closer_close(&daemon_, CKV_CLOSER_UNKNOWN, fd, &charge);
        ck_assert_ptr_null(charge.tenant);
        for (int i = 0; i < 5; i++)
                ck_assert_int_ge(sd_event_run(daemon_.event, 10000), 0);
        ck_assert_uint_eq(tenant->used[CKV_SLOT_FDS], 1);
        ck_assert(is_open(fd));
        set_blocks(fd, false);
        turn(CKV_SLOT_FDS, 0);
        ck_assert(!is_open(fd));
}
END_TEST

/* One that never returns holds up neither memory nor, for a while, its own user; then the user gets nothing more accepted. */
START_TEST(stuck_lane_holds_up_nobody) {
        int stuck = any_fd(), memory = any_fd();

        set_blocks(stuck, true);
        ckv_closer_close_received(tenant, CKV_CLOSER_UNKNOWN, stuck);
        ckv_closer_close_received(tenant, CKV_CLOSER_MEMORY, memory);
        ck_assert_uint_eq(tenant->used[CKV_SLOT_FILES], 1);
        turn(CKV_SLOT_FILES, 0);
        ck_assert(!is_open(memory) && is_open(stuck));
        for (uint64_t i = 1; i < options.fds; i++) {
                ck_assert(!ckv_closer_stuck(tenant));
                ckv_closer_close_received(tenant, CKV_CLOSER_UNKNOWN, any_fd());
        }
        ck_assert(ckv_closer_stuck(tenant));
        /* what is there already is closed, limit or not */
        ckv_closer_close_received(tenant, CKV_CLOSER_UNKNOWN, any_fd());
        ck_assert_uint_eq(tenant->used[CKV_SLOT_FDS], options.fds + 1);
        set_blocks(stuck, false);
        turn(CKV_SLOT_FDS, 0);
        ck_assert(!ckv_closer_stuck(tenant));
        ck_assert_uint_eq(tenant->closing, 0);
}
END_TEST

/* The process can end, and the accounts are right, whatever hangs. */
START_TEST(stop_leaves_the_stuck_behind) {
        uint64_t start = ckv_now_nsec();
        int stuck = any_fd();

        set_blocks(stuck, true);
        ckv_closer_close_received(tenant, CKV_CLOSER_UNKNOWN, stuck);
        ckv_closer_close_received(tenant, CKV_CLOSER_UNKNOWN, any_fd());
        ckv_closer_stop(&daemon_);
        ck_assert_uint_lt(ckv_now_nsec() - start, 10 * CKV_NSEC_PER_SEC);
        ck_assert_uint_eq(tenant->used[CKV_SLOT_FDS], 0);
}
END_TEST

START_TEST(without_a_closer_at_once) {
        struct ckv_charge charge = { 0 };
        int fd = any_fd();

        ckv_closer_stop(&daemon_);
        ck_assert_int_eq(ckv_charge_init(&charge, tenant, CKV_SLOT_FDS, 1), 0);
        ckv_closer_close(&daemon_, CKV_CLOSER_MEMORY, fd, &charge);
        ck_assert(!is_open(fd) && tenant->used[CKV_SLOT_FDS] == 0);
        ckv_closer_close(&daemon_, CKV_CLOSER_MEMORY, -1, NULL);
}
END_TEST

static void count_fd(void *userdata, int fd) {
        ++*(int *)userdata;
        (void)close(fd);
}

/* What ipc/seqpacket.h does for it: hands over what is not wanted, or has the kernel drop all. */
START_TEST(unwanted_descriptors) {
        char message[8] = "1234567";
        int pair[2], fd = any_fd(), received = -1, discarded = 0;

        ck_assert_int_eq(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
        ck_assert_int_eq(ckv_seqpacket_send(pair[0], message, sizeof(message), fd), 0);
        ck_assert_int_eq(ckv_seqpacket_recv_discard(pair[1], message, sizeof(message), count_fd, &discarded, &received), 0);
        ck_assert(received >= 0 && discarded == 0);
        ck_assert_int_eq(ckv_seqpacket_send(pair[0], message, 4, fd), 0);
        ck_assert_int_eq(ckv_seqpacket_recv_discard(pair[1], message, sizeof(message), count_fd, &discarded, &received),
                         CKV_SEQPACKET_E_MALFORMED);
        ck_assert_int_eq(discarded, 1);
        ck_assert_int_eq(ckv_seqpacket_send(pair[0], message, sizeof(message), fd), 0);
        ck_assert_int_eq(ckv_seqpacket_recv_discard(pair[1], message, sizeof(message), count_fd, &discarded, NULL),
                         CKV_SEQPACKET_E_MALFORMED);
        ck_assert_int_eq(discarded, 1);
        ck_assert_int_eq(ckv_seqpacket_send(pair[0], message, sizeof(message), -1), 0);
        ck_assert_int_eq(ckv_seqpacket_recv_discard(pair[1], message, sizeof(message), count_fd, &discarded, NULL), 0);
        (void)close(received);
        (void)close(fd);
        (void)close(pair[0]);
        (void)close(pair[1]);
}
END_TEST

int main(void) {
        Suite *suite = suite_create("closer");
        TCase *tcase = tcase_create("closer");
        SRunner *runner = srunner_create(suite);
        int failed;

        suite_add_tcase(suite, tcase);
        tcase_add_checked_fixture(tcase, setup, teardown);
        tcase_set_timeout(tcase, 30);
        tcase_add_test(tcase, charge_until_closed);
        tcase_add_test(tcase, stuck_lane_holds_up_nobody);
        tcase_add_test(tcase, stop_leaves_the_stuck_behind);
        tcase_add_test(tcase, without_a_closer_at_once);
        tcase_add_test(tcase, unwanted_descriptors);
        srunner_run_all(runner, CK_ENV);
        failed = srunner_ntests_failed(runner);
        srunner_free(runner);
        return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
