/*
 * What the daemon does for its service manager, without a process and without
 * a manager: when the watchdog is fed, and what a reload changes.  The device
 * here says whatever the test wants; a real one cannot be stuck at will.
 */
#include "base/clock.h"
#include "base/macros.h"
#include "daemon/daemon.h"
#include "daemon/reload.h"
#include "daemon/watchdog.h"
#include "tests/support_files.h"

#include <check.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define PERIOD_USEC UINT64_C(90000)

static struct ckv_options options;
static struct ckv_daemon daemon_;
static struct ckv_backend_health health;
static uint64_t progress_age_nsec;
static char dir[SUPPORT_PATH_BYTES];
static int notify_fd;

static void health_as_told(const struct ckv_backend *backend, struct ckv_backend_health *ret_health) {
        (void)backend;
        *ret_health = health;
        ret_health->last_progress_nsec = ckv_now_nsec() - progress_age_nsec;
}

static const struct ckv_backend_ops device = { .version = CKV_BACKEND_VERSION, .name = "told", .health = health_as_told };

static void setup(void) {
        struct sockaddr_un address = { .sun_family = AF_UNIX };
        char number[32];

        options = (struct ckv_options){ .mapped_bytes = 1000, .sessions = 4 };
        daemon_ = (struct ckv_daemon){ .options = &options, .ops = &device };
        health = (struct ckv_backend_health){ 0 };
        progress_age_nsec = 0;
        ckv_assert_loop_thread();
        ck_assert_int_ge(sd_event_new(&daemon_.event), 0);

        support_dir_make(dir);
        (void)snprintf(address.sun_path, sizeof(address.sun_path), "%s/notify", dir);
        notify_fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        ck_assert_int_ge(notify_fd, 0);
        ck_assert_int_eq(bind(notify_fd, (const struct sockaddr *)&address, sizeof(address)), 0);
        ck_assert_int_eq(setenv("NOTIFY_SOCKET", address.sun_path, 1), 0);
        (void)snprintf(number, sizeof(number), "%" PRIu64, PERIOD_USEC);
        ck_assert_int_eq(setenv("WATCHDOG_USEC", number, 1), 0);
        (void)snprintf(number, sizeof(number), "%d", (int)getpid());
        ck_assert_int_eq(setenv("WATCHDOG_PID", number, 1), 0);
}

static void teardown(void) {
        (void)sd_event_unref(daemon_.event);
        (void)close(notify_fd);
        support_dir_remove(dir);
}

/* received() - what lies in the notify socket: nothing but WATCHDOG=1. Return: how many. */
static unsigned received(void) {
        unsigned n = 0;
        char got[64];
        ssize_t length;

        while ((length = recv(notify_fd, got, sizeof(got), 0)) >= 0) {
                ck_assert_int_eq(length, strlen("WATCHDOG=1"));
                ck_assert_mem_eq(got, "WATCHDOG=1", strlen("WATCHDOG=1"));
                n++;
        }
        return n;
}

/* fed() - let the loop turn for @periods. Return: how often WATCHDOG=1 was sent. */
static unsigned fed(unsigned periods) {
        uint64_t end = ckv_now_nsec() + periods * PERIOD_USEC * CKV_NSEC_PER_USEC;
        sd_event_source *source = NULL;
        unsigned n = 0;

        ck_assert_int_eq(ckv_watchdog_start(&daemon_, &source), 0);
        ck_assert_ptr_nonnull(source);
        while (ckv_now_nsec() < end) {
                ck_assert_int_ge(sd_event_run(daemon_.event, 5000), 0);
                n += received();
        }
        sd_event_source_disable_unref(source);
        return n;
}

START_TEST(idle_device_is_healthy_however_long) {
        progress_age_nsec = 1000 * CKV_NSEC_PER_SEC;
        ck_assert_uint_ge(fed(4), 2);
}
END_TEST

START_TEST(working_device_is_healthy) {
        health.running = 1;
        progress_age_nsec = PERIOD_USEC * CKV_NSEC_PER_USEC / 2;
        ck_assert_uint_ge(fed(4), 2);
}
END_TEST

START_TEST(slice_that_ends_meanwhile_is_progress) {
        health.running = 1;
        progress_age_nsec = -(CKV_NSEC_PER_SEC);
        ck_assert_uint_ge(fed(2), 1);
}
END_TEST

START_TEST(stuck_device_is_not_fed) {
        health.running = 1;
        progress_age_nsec = 2 * PERIOD_USEC * CKV_NSEC_PER_USEC;
        ck_assert_uint_eq(fed(4), 0);
        /* nor when it takes up nothing */
        health = (struct ckv_backend_health){ .queued = 1 };
        ck_assert_uint_eq(fed(4), 0);
        /* it goes on: so does the feeding */
        progress_age_nsec = 0;
        ck_assert_uint_ge(fed(2), 1);
}
END_TEST

START_TEST(nobody_asked_for_a_watchdog) {
        sd_event_source *source = NULL;

        ck_assert_int_eq(unsetenv("WATCHDOG_USEC"), 0);
        ck_assert_int_eq(ckv_watchdog_start(&daemon_, &source), 0);
        ck_assert_ptr_null(source);
}
END_TEST

START_TEST(reload_reaches_tenants_that_are_there) {
        struct ckv_charge first = { 0 }, second = { 0 };
        struct ckv_tenant *tenant;

        ckv_reload(&daemon_);
        ck_assert_uint_eq(daemon_.mapped_bytes, 1000);
        ck_assert_int_eq(ckv_tenant_ref(&daemon_, 7, &tenant), 0);
        ck_assert_int_eq(ckv_charge_init(&first, tenant, CKV_SLOT_MAPPED_BYTES, 800), 0);

        /* more room */
        ck_assert_int_eq(ckv_charge_init(&second, tenant, CKV_SLOT_MAPPED_BYTES, 300), CKV_TENANT_E_QUOTA);
        options.mapped_bytes = 1100;
        ckv_reload(&daemon_);
        ck_assert_int_eq(ckv_charge_init(&second, tenant, CKV_SLOT_MAPPED_BYTES, 300), 0);
        ckv_charge_deinit(&second);

        /* less than is held: what is held stays */
        options.mapped_bytes = 500;
        ckv_reload(&daemon_);
        ck_assert_uint_eq(tenant->used[CKV_SLOT_MAPPED_BYTES], 800);
        ck_assert_int_eq(ckv_charge_init(&second, tenant, CKV_SLOT_MAPPED_BYTES, 1), CKV_TENANT_E_QUOTA);
        ckv_charge_deinit(&first);
        ck_assert_int_eq(ckv_charge_init(&second, tenant, CKV_SLOT_MAPPED_BYTES, 500), 0);
        ckv_charge_deinit(&second);
        ck_assert_uint_eq(tenant->limit[CKV_SLOT_SESSIONS], 4);
        ckv_tenant_unref(tenant);
        ck_assert_ptr_null(daemon_.tenants);
}
END_TEST

START_TEST(reload_derives_what_nobody_asked_for) {
        options.mapped_bytes = 0;
        ckv_reload(&daemon_);
        ck_assert_uint_gt(daemon_.mapped_bytes, UINT64_C(1) << 20);
        ck_assert_uint_eq(options.mapped_bytes, 0);
}
END_TEST

int main(void) {
        Suite *suite = suite_create("service");
        TCase *tcase = tcase_create("service");
        SRunner *runner = srunner_create(suite);
        int failed;

        tcase_add_checked_fixture(tcase, setup, teardown);
        tcase_add_test(tcase, idle_device_is_healthy_however_long);
        tcase_add_test(tcase, working_device_is_healthy);
        tcase_add_test(tcase, slice_that_ends_meanwhile_is_progress);
        tcase_add_test(tcase, stuck_device_is_not_fed);
        tcase_add_test(tcase, nobody_asked_for_a_watchdog);
        tcase_add_test(tcase, reload_reaches_tenants_that_are_there);
        tcase_add_test(tcase, reload_derives_what_nobody_asked_for);
        suite_add_tcase(suite, tcase);
        srunner_run_all(runner, CK_NORMAL);
        failed = srunner_ntests_failed(runner);
        srunner_free(runner);
        return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
