/*
 * The C client when the daemon stands still or dies.  Standing still is
 * SIGSTOP to the core, which is deterministic: the request lies in the core's
 * queue, unread.
 */
#include "base/clock.h"
#include "base/macros.h"
#include "tests/support_client.h"

#include <check.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>

static void core_signal(int number) {
        ck_assert_int_eq(kill(support_daemon.pid, number), 0);
}

/* The core's only child. */
static pid_t gate_pid(void) {
        char path[64];
        int pid = 0;
        FILE *file;

        (void)snprintf(path, sizeof(path), "/proc/%d/task/%d/children", (int)support_daemon.pid,
                       (int)support_daemon.pid);
        file = fopen(path, "r");
        ck_assert_ptr_nonnull(file);
        ck_assert_int_eq(fscanf(file, "%d", &pid), 1);
        (void)fclose(file);
        return pid;
}

/* Sends the core @number after @ms, from another process. */
static pid_t core_signal_later(int number, unsigned ms) {
        pid_t pid = fork();

        ck_assert_int_ge(pid, 0);
        if (pid == 0) {
                const struct timespec span = { .tv_sec = ms / 1000, .tv_nsec = (long)(ms % 1000) * 1000000 };

                (void)nanosleep(&span, NULL);
                (void)kill(support_daemon.pid, number);
                _exit(0);
        }
        return pid;
}

static void core_death(enum chunkkv_mode mode, uint8_t slots, uint32_t cache) {
        struct chunkkv_result *result = NULL;
        struct chunkkv_error error;
        struct chunkkv_pong pong;
        uint64_t request_id, begin = ckv_now_nsec();
        struct model model;

        model_open_with(&model, mode, (struct chunkkv_options){ .control_slots = slots });
        core_signal(SIGSTOP);
        ck_assert_int_eq(chunkkv_compress_submit(model.client, &model.job, 60000, &request_id, &error), 0);
        core_signal(SIGKILL);
        ck_assert_int_eq(chunkkv_compress_wait(model.client, request_id, &result, &error), -EOWNERDEAD);
        ck_assert_ptr_null(result);
        ck_assert_uint_eq(error.cache, cache);
        ck_assert_uint_eq(error.radius, CHUNKKV_RADIUS_DAEMON);
        ck_assert_uint_eq(error.code, CHUNKKV_CODE_OK);
        ck_assert_uint_eq(error.request_id, request_id);
        /* told by the pidfd, not by a timeout */
        ck_assert_uint_lt(ckv_now_nsec() - begin, 5 * CKV_NSEC_PER_SEC);
        ck_assert_int_eq(chunkkv_ping(model.client, 200, &pong, &error), -EOWNERDEAD);
        /* the next one takes its place */
        support_daemon_again();
        ck_assert_int_eq(chunkkv_ping(model.client, 0, &pong, &error), 0);
        ck_assert_int_eq(chunkkv_compress(model.client, &model.job, 0, &result, &error), 0);
        result = chunkkv_result_free(result);
        model_close(&model);
}

START_TEST(core_dies_in_place) {
        core_death(CHUNKKV_MODE_IN_PLACE, CHUNKKV_NO_SLOTS, CHUNKKV_CACHE_TORN);
}
END_TEST

START_TEST(core_dies_in_place_with_a_slot) {
        core_death(CHUNKKV_MODE_IN_PLACE, 0, CHUNKKV_CACHE_CLEAN);
}
END_TEST

START_TEST(core_dies_plan) {
        core_death(CHUNKKV_MODE_PLAN, 0, CHUNKKV_CACHE_CLEAN);
}
END_TEST

START_TEST(silence_leaves_it_pending) {
        struct chunkkv_result *result = NULL;
        struct chunkkv_error error;
        struct chunkkv_pong pong;
        struct model model;

        model_open_with(&model, CHUNKKV_MODE_IN_PLACE, (struct chunkkv_options){ .control_slots = CHUNKKV_NO_SLOTS });
        core_signal(SIGSTOP);
        ck_assert_int_eq(chunkkv_compress(model.client, &model.job, 200, &result, &error), -ETIMEDOUT);
        ck_assert_uint_eq(error.cache, CHUNKKV_CACHE_PENDING);
        core_signal(SIGCONT);
        ck_assert_int_eq(chunkkv_ping(model.client, 0, &pong, &error), 0);
        model_close(&model);
}
END_TEST

START_TEST(silence_is_clean_where_the_swap_is_won) {
        _cleanup_free_ void *before = NULL;
        struct chunkkv_result *result = NULL;
        struct chunkkv_error error;
        struct model model;

        model_open(&model, CHUNKKV_MODE_IN_PLACE);
        before = malloc(model.memory.size);
        ck_assert_ptr_nonnull(before);
        memcpy(before, model.memory.address, model.memory.size);
        core_signal(SIGSTOP);
        ck_assert_int_eq(chunkkv_compress(model.client, &model.job, 200, &result, &error), -ETIMEDOUT);
        ck_assert_uint_eq(error.cache, CHUNKKV_CACHE_CLEAN);
        core_signal(SIGCONT);
        /* and the slot serves the next job */
        ck_assert_int_eq(chunkkv_compress(model.client, &model.job, 0, &result, &error), 0);
        ck_assert_int_ne(memcmp(before, model.memory.address, model.memory.size), 0);
        result = chunkkv_result_free(result);
        model_close(&model);
}
END_TEST

START_TEST(silence_of_a_plan_is_clean) {
        uint64_t begin;
        struct chunkkv_result *result = NULL;
        struct chunkkv_error error;
        struct model model;

        model_open(&model, CHUNKKV_MODE_PLAN);
        core_signal(SIGSTOP);
        begin = ckv_now_nsec();
        ck_assert_int_eq(chunkkv_compress(model.client, &model.job, 200, &result, &error), -ETIMEDOUT);
        ck_assert_uint_eq(error.cache, CHUNKKV_CACHE_CLEAN);
        ck_assert_uint_lt(ckv_now_nsec() - begin, CKV_NSEC_PER_SEC);
        core_signal(SIGCONT);
        model_close(&model);
}
END_TEST

START_TEST(late_answer_settles_it) {
        _cleanup_free_ void *before = NULL;
        struct chunkkv_result *result = NULL;
        struct chunkkv_error error;
        struct model model;
        pid_t helper;
        int r;

        model_open(&model, CHUNKKV_MODE_IN_PLACE);
        before = malloc(model.memory.size);
        ck_assert_ptr_nonnull(before);
        memcpy(before, model.memory.address, model.memory.size);
        core_signal(SIGSTOP);
        helper = core_signal_later(SIGCONT, 700);
        r = chunkkv_compress(model.client, &model.job, 200, &result, &error);
        /* the daemon found it too late, or cancelled: either way it says that nothing was written */
        ck_assert_msg(r == -ETIMEDOUT || (r == -EREMOTEIO && error.code == CHUNKKV_CODE_EXPIRED), "%d %s", r,
                      error.detail);
        ck_assert_uint_eq(error.cache, CHUNKKV_CACHE_CLEAN);
        ck_assert_mem_eq(before, model.memory.address, model.memory.size);
        ck_assert_int_eq(waitpid(helper, NULL, 0), helper);
        model_close(&model);
}
END_TEST

START_TEST(gate_dies_nobody_notices) {
        struct chunkkv_result *result;
        struct chunkkv_error error;
        struct model model;
        int r;

        model_open(&model, CHUNKKV_MODE_PLAN);
        ck_assert_int_eq(kill(gate_pid(), SIGKILL), 0);
        r = chunkkv_compress(model.client, &model.job, 30000, &result, &error);
        ck_assert_msg(r == 0, "%s", error.detail);
        result = chunkkv_result_free(result);
        model_close(&model);
}
END_TEST

START_TEST(lost_request_is_repeated) {
        struct chunkkv_result *result;
        struct chunkkv_error error;
        uint64_t request_id;
        struct model model;
        pid_t gate = gate_pid();
        int r;

        model_open(&model, CHUNKKV_MODE_IN_PLACE);
        /* the first copy reaches a gate that will never read it */
        ck_assert_int_eq(kill(gate, SIGSTOP), 0);
        ck_assert_int_eq(chunkkv_compress_submit(model.client, &model.job, 20000, &request_id, &error), 0);
        ck_assert_int_eq(kill(gate, SIGKILL), 0);
        r = chunkkv_compress_wait(model.client, request_id, &result, &error);
        ck_assert_msg(r == 0, "%s", error.detail);
        ck_assert_uint_eq(result->cache, CHUNKKV_CACHE_COMMITTED);
        result = chunkkv_result_free(result);
        model_close(&model);
}
END_TEST

int main(void) {
        const TTest *const tests[] = {
                core_dies_in_place, core_dies_in_place_with_a_slot, core_dies_plan,
                silence_is_clean_where_the_swap_is_won, silence_leaves_it_pending, silence_of_a_plan_is_clean,
                late_answer_settles_it, gate_dies_nobody_notices, lost_request_is_repeated,
        };

        return support_client_run("client_faults", tests, CKV_ARRAY_SIZE(tests));
}
