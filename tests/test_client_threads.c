/*
 * One connection used by several threads at once.  In the tsan build this is
 * where the sanitizer looks at the client; in every build it shows that each
 * gets its own answer, and that one who waits holds up nobody.
 */
#include "base/clock.h"
#include "base/macros.h"
#include "tests/support_client.h"

#include <check.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>

enum { ROUNDS = 40 };

/* A thread of a test, with a job of its own. */
struct worker {
        pthread_t thread;
        struct model *model;
        uint32_t keep_ratio;
        int failures;
};

static void *ask_often(void *argument) {
        struct worker *worker = argument;
        struct chunkkv_group_job group = worker->model->group;
        struct chunkkv_job job = worker->model->job;
        uint32_t budget;

        group.keep_ratio = worker->keep_ratio;
        job.groups = &group;
        budget = (uint32_t)(MODEL_ROWS * (uint64_t)group.keep_ratio / 1000000);
        for (int i = 0; i < ROUNDS; i++) {
                struct chunkkv_result *result = NULL;
                struct chunkkv_error error;
                int r = chunkkv_compress(worker->model->client, &job, 60000, &result, &error);

                worker->failures += r != 0 || result->groups[0].budget != budget;
                result = chunkkv_result_free(result);
        }
        return NULL;
}

static void *ping_often(void *argument) {
        struct worker *worker = argument;
        struct chunkkv_budget budgets[CHUNKKV_BUDGETS_MAX];
        struct chunkkv_error error;
        struct chunkkv_pong pong;
        size_t count;

        for (int i = 0; i < ROUNDS; i++) {
                worker->failures += chunkkv_ping(worker->model->client, 60000, &pong, &error) != 0;
                worker->failures += chunkkv_budgets(worker->model->client, 60000, budgets, &count, &error) != 0;
        }
        return NULL;
}

static void *register_often(void *argument) {
        struct worker *worker = argument;
        const struct chunkkv_region region = { .fd = worker->model->memory.fd, .access = CHUNKKV_ACCESS_READ };
        struct chunkkv_error error;
        uint32_t id;

        for (int i = 0; i < ROUNDS; i++) {
                worker->failures += chunkkv_region_register(worker->model->client, &region, 60000, &id, &error) != 0;
                worker->failures += chunkkv_region_unregister(worker->model->client, id, 60000, &error) != 0;
        }
        return NULL;
}

START_TEST(each_gets_its_own_answer) {
        void *(*const work[])(void *) = { ask_often, ask_often, ask_often, ping_often, register_often };
        struct worker workers[CKV_ARRAY_SIZE(work)];
        struct model model;

        model_open(&model, CHUNKKV_MODE_PLAN);
        for (uint32_t i = 0; i < CKV_ARRAY_SIZE(work); i++) {
                workers[i] = (struct worker){ .model = &model, .keep_ratio = 250000 * (i + 1) % 1000000 };
                ck_assert_int_eq(pthread_create(&workers[i].thread, NULL, work[i], &workers[i]), 0);
        }
        for (size_t i = 0; i < CKV_ARRAY_SIZE(work); i++) {
                ck_assert_int_eq(pthread_join(workers[i].thread, NULL), 0);
                ck_assert_msg(workers[i].failures == 0, "thread %zu: %d", i, workers[i].failures);
        }
        model_close(&model);
}
END_TEST

static void *wait_long(void *argument) {
        struct worker *worker = argument;
        struct chunkkv_result *result = NULL;
        struct chunkkv_error error;

        worker->failures = chunkkv_compress(worker->model->client, &worker->model->job, 20000, &result, &error);
        result = chunkkv_result_free(result);
        return NULL;
}

START_TEST(who_waits_holds_up_nobody) {
        struct chunkkv_error error;
        struct chunkkv_pong pong;
        struct worker worker;
        struct model model;
        uint64_t begin;

        model_open(&model, CHUNKKV_MODE_PLAN);
        worker = (struct worker){ .model = &model };
        ck_assert_int_eq(kill(support_daemon.pid, SIGSTOP), 0);
        ck_assert_int_eq(pthread_create(&worker.thread, NULL, wait_long, &worker), 0);
        /* whoever of the two leads: both come to their end in time */
        for (int i = 0; i < 3; i++) {
                begin = ckv_now_nsec();
                ck_assert_int_eq(chunkkv_ping(model.client, 150, &pong, &error), -ETIMEDOUT);
                ck_assert_uint_lt(ckv_now_nsec() - begin, 10 * CKV_NSEC_PER_SEC);
        }
        ck_assert_int_eq(kill(support_daemon.pid, SIGCONT), 0);
        ck_assert_int_eq(chunkkv_ping(model.client, 60000, &pong, &error), 0);
        ck_assert_int_eq(pthread_join(worker.thread, NULL), 0);
        ck_assert_int_eq(worker.failures, 0);
        model_close(&model);
}
END_TEST

START_TEST(death_wakes_all) {
        struct worker workers[3];
        struct model model;

        model_open(&model, CHUNKKV_MODE_PLAN);
        ck_assert_int_eq(kill(support_daemon.pid, SIGSTOP), 0);
        for (size_t i = 0; i < CKV_ARRAY_SIZE(workers); i++) {
                workers[i] = (struct worker){ .model = &model };
                ck_assert_int_eq(pthread_create(&workers[i].thread, NULL, wait_long, &workers[i]), 0);
        }
        ck_assert_int_eq(kill(support_daemon.pid, SIGKILL), 0);
        for (size_t i = 0; i < CKV_ARRAY_SIZE(workers); i++) {
                ck_assert_int_eq(pthread_join(workers[i].thread, NULL), 0);
                ck_assert_int_eq(workers[i].failures, -EOWNERDEAD);
        }
        model_close(&model);
}
END_TEST

static void *ask_the_dead(void *argument) {
        struct worker *worker = argument;
        struct chunkkv_error error;
        struct chunkkv_pong pong;

        worker->failures = chunkkv_ping(worker->model->client, 3000, &pong, &error);
        return NULL;
}

START_TEST(who_comes_after_a_death_waits_as_long_as_it_said) {
        struct worker workers[4];
        struct model model;
        uint64_t begin;

        model_open(&model, CHUNKKV_MODE_PLAN);
        ck_assert_int_eq(kill(support_daemon.pid, SIGKILL), 0);
        begin = ckv_now_nsec();
        for (size_t i = 0; i < CKV_ARRAY_SIZE(workers); i++) {
                workers[i] = (struct worker){ .model = &model };
                ck_assert_int_eq(pthread_create(&workers[i].thread, NULL, ask_the_dead, &workers[i]), 0);
        }
        for (size_t i = 0; i < CKV_ARRAY_SIZE(workers); i++) {
                ck_assert_int_eq(pthread_join(workers[i].thread, NULL), 0);
                ck_assert_int_eq(workers[i].failures, -EOWNERDEAD);
        }
        /* all of them at the same time, not one after the other */
        ck_assert_uint_lt(ckv_now_nsec() - begin, 7 * CKV_NSEC_PER_SEC);
        model_close(&model);
}
END_TEST

START_TEST(a_job_is_waited_for_once) {
        struct chunkkv_result *result = NULL;
        struct chunkkv_error error;
        struct chunkkv_outcome outcome;
        uint64_t request_id;
        struct model model;
        int r;

        model_open(&model, CHUNKKV_MODE_PLAN);
        ck_assert_int_eq(chunkkv_compress_submit(model.client, &model.job, 60000, &request_id, &error), 0);
        r = chunkkv_cancel(model.client, request_id, 0, &outcome, &error);
        ck_assert_msg(r == 0 || r == -EREMOTEIO, "%s", error.detail);
        r = chunkkv_compress_wait(model.client, request_id, &result, &error);
        ck_assert_msg(r == 0 || (r == -EREMOTEIO && error.code == CHUNKKV_CODE_CANCELLED), "%s", error.detail);
        result = chunkkv_result_free(result);
        ck_assert_int_eq(chunkkv_compress_wait(model.client, request_id, &result, &error), -EINVAL);
        model_close(&model);
}
END_TEST

int main(void) {
        const TTest *const tests[] = {
                each_gets_its_own_answer, who_waits_holds_up_nobody, death_wakes_all,
                who_comes_after_a_death_waits_as_long_as_it_said, a_job_is_waited_for_once,
        };

        return support_client_run("client_threads", tests, CKV_ARRAY_SIZE(tests));
}
