/*
 * The C client against a real daemon: the main job from memfd to kept rows,
 * checked bit for bit, and what the library says about wrong input.
 */
#include "base/macros.h"
#include "tests/support_client.h"

#include <check.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

/* algorithm.md 6.4, "default": 0-4 10-14 20-29 44-47 */
static const uint32_t kept[][2] = { { 0, 5 }, { 10, 15 }, { 20, 30 }, { 44, 48 } };
enum { KEPT_ROWS = 24, CONNECTIONS = 16 };

static void ranges_assert(const uint32_t *runs, size_t count) {
        struct chunkkv_cursor cursor = { 0 };
        uint32_t first, end;
        size_t n = 0;

        while (chunkkv_runs_next(runs, count, &cursor, &first, &end)) {
                ck_assert_uint_lt(n, CKV_ARRAY_SIZE(kept));
                ck_assert_uint_eq(first, kept[n][0]);
                ck_assert_uint_eq(end, kept[n][1]);
                n++;
        }
        ck_assert_uint_eq(n, CKV_ARRAY_SIZE(kept));
        ck_assert_uint_eq(chunkkv_runs_kept(runs, count), KEPT_ROWS);
}

/* What the memory must hold after the move: kept rows first, all else untouched. */
static void memory_expect(void *base, size_t size, const void *before) {
        _cleanup_free_ void *copy = malloc(size);
        uint32_t to = 0;

        ck_assert_ptr_nonnull(copy);
        memcpy(copy, before, size);
        memcpy(base, before, size);
        for (size_t i = 0; i < CKV_ARRAY_SIZE(kept); i++)
                for (uint32_t row = kept[i][0]; row < kept[i][1]; row++, to++)
                        for (uint32_t plane = 0; plane < 2; plane++)
                                memcpy(model_row(base, plane, to), model_row(copy, plane, row),
                                       MODEL_ROW_FLOATS * sizeof(float));
}

START_TEST(connect_ping_budgets) {
        const struct chunkkv_options options = { .endpoint = support_daemon.endpoint };
        struct chunkkv_code_path paths[CHUNKKV_CODE_PATHS_MAX];
        struct chunkkv_budget budgets[CHUNKKV_BUDGETS_MAX];
        struct chunkkv_client *client;
        struct chunkkv_error error;
        struct chunkkv_pong pong;
        bool sessions = false;
        size_t count;

        ck_assert_int_eq(chunkkv_connect(&options, &client, &error), 0);
        ck_assert_uint_eq(chunkkv_info(client)->backend, CHUNKKV_BACKEND_CPU);
        ck_assert_str_ne(chunkkv_info(client)->daemon, "");
        ck_assert_uint_eq(chunkkv_info(client)->request_bytes, 262144);
        ck_assert_int_eq(chunkkv_ping(client, 0, &pong, &error), 0);
        ck_assert(!pong.draining);
        ck_assert_uint_gt(pong.now_ns, 0);
        ck_assert_int_eq(chunkkv_budgets(client, 0, budgets, &count, &error), 0);
        for (size_t i = 0; i < count; i++)
                sessions = sessions || (budgets[i].slot == CHUNKKV_SLOT_SESSIONS && budgets[i].used == 1 &&
                                        budgets[i].limit >= 1);
        ck_assert(sessions);
        ck_assert_int_eq(chunkkv_code_paths(client, 0, paths, &count, &error), 0);
        ck_assert_uint_gt(count, 0);
        for (size_t i = 0; i < count; i++) {
                ck_assert_ptr_nonnull(strstr(chunkkv_info(client)->device, paths[i].path));
                ck_assert_uint_ne(paths[i].key_dtype, CHUNKKV_DTYPE_NONE);
                ck_assert(paths[i].head_dim_first <= paths[i].head_dim_last && paths[i].queries_first <= paths[i].queries_last);
        }
        client = chunkkv_close(client);
}
END_TEST

START_TEST(plan_writes_nothing) {
        _cleanup_free_ void *before = NULL;
        const struct chunkkv_group_result *group;
        struct chunkkv_result *result;
        struct chunkkv_error error;
        struct model model;
        int r;

        model_open(&model, CHUNKKV_MODE_PLAN);
        before = malloc(model.memory.size);
        ck_assert_ptr_nonnull(before);
        memcpy(before, model.memory.address, model.memory.size);
        r = chunkkv_compress(model.client, &model.job, 0, &result, &error);
        ck_assert_msg(r == 0, "%s: %s", error.field, error.detail);
        ck_assert_uint_eq(result->phase, CHUNKKV_PHASE_DONE);
        ck_assert_uint_eq(result->cache, CHUNKKV_CACHE_CLEAN);
        ck_assert_uint_eq(result->logical_len, 1000);
        ck_assert_uint_eq(result->generation, 4711);
        ck_assert_uint_eq(result->group_count, 1);
        group = &result->groups[0];
        ck_assert_uint_eq(group->physical_before, MODEL_ROWS);
        ck_assert_uint_eq(group->budget, KEPT_ROWS);
        ck_assert_uint_eq(group->kept_all, CHUNKKV_KEPT_NOT_ALL);
        ck_assert_uint_eq(group->set_count, 1);
        ck_assert_ptr_eq(chunkkv_set_find(group, 7, 0), &group->sets[0]);
        ck_assert_ptr_null(chunkkv_set_find(group, 6, 0));
        ranges_assert(group->sets[0].runs, group->sets[0].run_count);
        ck_assert_uint_eq(group->policies[0].chunk, 5);
        ck_assert_uint_eq(group->policies[0].selector, CHUNKKV_SELECTOR_CHUNK);
        ck_assert(group->policies[0].sinks.given && group->policies[0].sinks.value == 2);
        result = chunkkv_result_free(result);
        ck_assert_mem_eq(before, model.memory.address, model.memory.size);
        model_close(&model);
}
END_TEST

START_TEST(in_place_moves_bit_for_bit) {
        _cleanup_free_ void *before = NULL, *expected = NULL;
        struct chunkkv_result *result;
        struct chunkkv_error error;
        struct model model;
        int r;

        model_open(&model, CHUNKKV_MODE_IN_PLACE);
        before = malloc(model.memory.size);
        expected = malloc(model.memory.size);
        ck_assert(before && expected);
        memcpy(before, model.memory.address, model.memory.size);
        memory_expect(expected, model.memory.size, before);
        r = chunkkv_compress(model.client, &model.job, 0, &result, &error);
        ck_assert_msg(r == 0, "%s: %s", error.field, error.detail);
        ck_assert_uint_eq(result->cache, CHUNKKV_CACHE_COMMITTED);
        ck_assert_uint_eq(result->groups[0].physical_len, KEPT_ROWS);
        ck_assert_uint_eq(result->groups[0].table_used, 2);
        ranges_assert(result->groups[0].sets[0].runs, result->groups[0].sets[0].run_count);
        result = chunkkv_result_free(result);
        ck_assert_mem_eq(expected, model.memory.address, model.memory.size);
        model_close(&model);
}
END_TEST

START_TEST(rows_form_lists_the_same) {
        struct chunkkv_result *result;
        struct chunkkv_error error;
        struct model model;
        size_t n = 0;

        model_open(&model, CHUNKKV_MODE_PLAN);
        model.job.reply_form = CHUNKKV_REPLY_ROWS;
        ck_assert_int_eq(chunkkv_compress(model.client, &model.job, 0, &result, &error), 0);
        ck_assert_uint_eq(result->groups[0].sets[0].row_count, KEPT_ROWS);
        for (size_t i = 0; i < CKV_ARRAY_SIZE(kept); i++)
                for (uint32_t row = kept[i][0]; row < kept[i][1]; row++)
                        ck_assert_uint_eq(result->groups[0].sets[0].rows[n++], row);
        result = chunkkv_result_free(result);
        model_close(&model);
}
END_TEST

START_TEST(runs_there_and_back) {
        const uint32_t ranges[] = { 0, 4, 10, 5, 15, 1, 40, 2 };
        struct chunkkv_cursor cursor = { 0 };
        uint32_t runs[8], first, end;
        size_t count = chunkkv_runs_encode(ranges, 4, runs);

        /* the second and the third range touch: one run */
        ck_assert_uint_eq(count, 6);
        ck_assert_uint_eq(chunkkv_runs_kept(runs, count), 12);
        ck_assert(chunkkv_runs_next(runs, count, &cursor, &first, &end) && first == 0 && end == 4);
        ck_assert(chunkkv_runs_next(runs, count, &cursor, &first, &end) && first == 10 && end == 16);
        ck_assert(chunkkv_runs_next(runs, count, &cursor, &first, &end) && first == 40 && end == 42);
        ck_assert(!chunkkv_runs_next(runs, count, &cursor, &first, &end));
}
END_TEST

START_TEST(answers_find_their_request) {
        struct chunkkv_result *first, *second;
        struct chunkkv_error error;
        uint64_t first_id, second_id;
        struct model model;

        model_open(&model, CHUNKKV_MODE_PLAN);
        ck_assert_int_eq(chunkkv_compress_submit(model.client, &model.job, 60000, &first_id, &error), 0);
        model.group.keep_ratio = 250000;
        ck_assert_int_eq(chunkkv_compress_submit(model.client, &model.job, 60000, &second_id, &error), 0);
        ck_assert_int_eq(chunkkv_compress_wait(model.client, second_id, &second, &error), 0);
        ck_assert_int_eq(chunkkv_compress_wait(model.client, first_id, &first, &error), 0);
        /* and neither was lost and asked for again */
        ck_assert(!first->repeated_answer && !second->repeated_answer);
        ck_assert_uint_eq(first->groups[0].budget, KEPT_ROWS);
        ck_assert_uint_eq(second->groups[0].budget, KEPT_ROWS / 2);
        ck_assert_int_eq(chunkkv_compress_wait(model.client, first_id, &first, &error), -EINVAL);
        ck_assert_str_eq(error.field, "request_id");
        first = chunkkv_result_free(first);
        second = chunkkv_result_free(second);
        model_close(&model);
}
END_TEST

START_TEST(refusal_names_the_field) {
        struct chunkkv_result *result = NULL;
        struct chunkkv_error error;
        struct model model;

        model_open(&model, CHUNKKV_MODE_IN_PLACE);
        model.policy.chunk = 1025;
        ck_assert_int_eq(chunkkv_compress(model.client, &model.job, 0, &result, &error), -EREMOTEIO);
        ck_assert_ptr_null(result);
        ck_assert_int_eq(error.error, -EREMOTEIO);
        ck_assert_uint_eq(error.code, CHUNKKV_CODE_OUT_OF_RANGE);
        ck_assert_uint_eq(error.radius, CHUNKKV_RADIUS_REQUEST);
        ck_assert_uint_eq(error.cache, CHUNKKV_CACHE_CLEAN);
        ck_assert_str_eq(error.field, "compress.groups[0].policies[0].chunk");
        ck_assert_str_eq(chunkkv_code_to_string(error.code), "OUT_OF_RANGE");
        model.policy.chunk = 1024;
        ck_assert_int_eq(chunkkv_compress(model.client, &model.job, 0, &result, &error), 0);
        result = chunkkv_result_free(result);
        model_close(&model);
}
END_TEST

START_TEST(region_in_use_stays) {
        struct chunkkv_error error;
        struct model model;

        model_open(&model, CHUNKKV_MODE_PLAN);
        ck_assert_int_eq(chunkkv_region_unregister(model.client, model.region_id, 0, &error), -EREMOTEIO);
        ck_assert_int_eq(chunkkv_cache_unregister(model.client, model.cache_id, 0, &error), 0);
        ck_assert_int_eq(chunkkv_region_unregister(model.client, model.region_id, 0, &error), 0);
        ck_assert_int_eq(chunkkv_region_unregister(model.client, model.region_id, 0, &error), -EREMOTEIO);
        ck_assert_uint_eq(error.code, CHUNKKV_CODE_NOT_FOUND);
        model_close(&model);
}
END_TEST

START_TEST(wrong_arguments_stay_here) {
        struct chunkkv_result *result;
        struct chunkkv_memory memory;
        struct chunkkv_error error;
        struct chunkkv_pong pong;
        struct model model;

        model_open(&model, CHUNKKV_MODE_NONE);
        ck_assert_int_eq(chunkkv_compress(model.client, &model.job, 0, &result, &error), -EINVAL);
        ck_assert_str_eq(error.field, "mode");
        ck_assert_int_eq(chunkkv_ping(model.client, 600001, &pong, &error), -EINVAL);
        ck_assert_str_eq(error.field, "timeout_ms");
        ck_assert_int_eq(chunkkv_ping(model.client, 600000, &pong, NULL), 0);
        ck_assert_int_eq(chunkkv_memory_create("x", 0, CHUNKKV_ACCESS_READ, &memory, &error), -EINVAL);
        ck_assert_int_eq(chunkkv_memory_create("x", 1, CHUNKKV_ACCESS_NONE, &memory, &error), -EINVAL);
        model_close(&model);
}
END_TEST

START_TEST(lists_that_are_null) {
        struct model model;
        struct chunkkv_group_job *job = &model.group;
        const struct { const char *field; size_t *count; void *list; } lists[] = {
                { "groups[0].table.numbers", &job->table.count, &job->table.numbers },
                { "groups[0].destination.numbers", &job->destination.count, &job->destination.numbers },
                { "groups[0].policies", &job->policy_count, &job->policies },
                { "groups[0].protect", &job->protect_count, &job->protect },
                { "groups[0].position_runs", &job->position_run_count, &job->position_runs },
                { "groups[0].chunk_lengths", &job->chunk_length_count, &job->chunk_lengths },
                { "groups[0].given_runs", &job->given_run_count, &job->given_runs },
                { "queries.layers", &model.queries.layer_count, &model.queries.layers },
                { "groups", &model.job.group_count, &model.job.groups },
        };
        const struct chunkkv_group group = { .layer_count = 1 }, none = { 0 };
        struct chunkkv_result *result;
        struct chunkkv_error error;
        uint32_t id;

        model_open(&model, CHUNKKV_MODE_PLAN);
        job->destination.form = CHUNKKV_TABLE_BLOCKS;
        for (size_t i = 0; i < CKV_ARRAY_SIZE(lists); i++) {
                const struct model before = model;

                *lists[i].count = 1;
                memset(lists[i].list, 0, sizeof(void *));
                ck_assert_int_eq(chunkkv_compress(model.client, &model.job, 0, &result, &error), -EINVAL);
                ck_assert_str_eq(error.field, lists[i].field);
                ck_assert_str_eq(error.detail, "is NULL, with a count of 1");
                model = before;
        }
        ck_assert_int_eq(chunkkv_cache_register(model.client, NULL, 1, NULL, 0, 0, &id, NULL, &error), -EINVAL);
        ck_assert_str_eq(error.field, "groups");
        ck_assert_int_eq(chunkkv_cache_register(model.client, &group, 1, NULL, 0, 0, &id, NULL, &error), -EINVAL);
        ck_assert_str_eq(error.field, "groups[0].layers");
        ck_assert_int_eq(chunkkv_cache_register(model.client, &none, 1, NULL, 1, 0, &id, NULL, &error), -EINVAL);
        ck_assert_str_eq(error.field, "planes");
        model_close(&model);
}
END_TEST

START_TEST(a_budget_is_named) {
        const struct chunkkv_error error = { .error = -EREMOTEIO, .code = CHUNKKV_CODE_QUOTA,
                .slot = CHUNKKV_SLOT_SESSIONS, .detail = "1 of 1 are in use, 1 more were asked for" };
        struct chunkkv_error unknown = error;
        char text[CHUNKKV_ERROR_TEXT];

        (void)chunkkv_error_format(&error, text, sizeof(text));
        ck_assert_str_eq(text, "QUOTA of sessions: 1 of 1 are in use, 1 more were asked for; the cache is CLEAN");
        unknown.slot = 99;
        (void)chunkkv_error_format(&unknown, text, sizeof(text));
        ck_assert_str_eq(text, "QUOTA: 1 of 1 are in use, 1 more were asked for; the cache is CLEAN");
}
END_TEST

/* What a daemon does that is just being stopped: the connection is made, and closed without an answer. */
START_TEST(a_daemon_that_leaves) {
        struct sockaddr_un address = { .sun_family = AF_UNIX };
        char prefix[90], record[96];
        const struct chunkkv_options options = { .endpoint = prefix };
        struct chunkkv_client *client = NULL;
        struct chunkkv_error error;
        int fd, status = -1;
        pid_t child;

        (void)snprintf(prefix, sizeof(prefix), "%s/leaves", support_daemon.directory);
        (void)snprintf(address.sun_path, sizeof(address.sun_path), "%s.fd", prefix);
        fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
        ck_assert_int_eq(bind(fd, (struct sockaddr *)&address, sizeof(address)), 0);
        ck_assert_int_eq(listen(fd, 1), 0);
        child = fork();
        if (child == 0)
                _exit(recv(accept(fd, NULL, NULL), record, sizeof(record), 0) == sizeof(record) ? 0 : 1);
        ck_assert_int_eq(chunkkv_connect(&options, &client, &error), -ECONNRESET);
        ck_assert_uint_eq(error.radius, CHUNKKV_RADIUS_SESSION);
        ck_assert_int_eq(waitpid(child, &status, 0), child);
        ck_assert_int_eq(status, 0);
        (void)close(fd);
        (void)unlink(address.sun_path);
}
END_TEST

START_TEST(no_daemon) {
        char prefix[128], path[140];
        struct chunkkv_options options = { .endpoint = prefix };
        struct chunkkv_client *client = NULL;
        struct chunkkv_error error;

        (void)snprintf(prefix, sizeof(prefix), "%s/nobody", support_daemon.directory);
        ck_assert_int_eq(chunkkv_connect(&options, &client, &error), -ENOENT);
        ck_assert_str_eq(error.field, "endpoint");
        /* a file in the place of the socket: nobody listens */
        (void)snprintf(path, sizeof(path), "%s.fd", prefix);
        (void)fclose(fopen(path, "w"));
        ck_assert_int_eq(chunkkv_connect(&options, &client, &error), -ECONNREFUSED);
        memset(prefix, 'x', sizeof(prefix) - 1);
        prefix[sizeof(prefix) - 1] = '\0';
        ck_assert_int_eq(chunkkv_connect(&options, &client, &error), -ENAMETOOLONG);
        options.name = "a\nb";
        ck_assert_int_eq(chunkkv_connect(&options, &client, &error), -EINVAL);
        ck_assert_ptr_null(client);
        ck_assert_ptr_null(chunkkv_close(NULL));
}
END_TEST

START_TEST(one_client_too_many) {
        const struct chunkkv_options options = { .endpoint = support_daemon.endpoint };
        struct chunkkv_client *clients[CONNECTIONS + 1] = { NULL };
        struct chunkkv_error error;

        for (uint32_t i = 0; i < CONNECTIONS; i++)
                ck_assert_int_eq(chunkkv_connect(&options, &clients[i], &error), 0);
        /* more than once: whether the refusal or our own first record is the faster one is a matter of luck */
        for (int i = 0; i < 20; i++) {
                ck_assert_int_eq(chunkkv_connect(&options, &clients[CONNECTIONS], &error), -EREMOTEIO);
                ck_assert_uint_eq(error.code, CHUNKKV_CODE_QUOTA);
                ck_assert_uint_eq(error.slot, CHUNKKV_SLOT_CONNECTIONS);
                ck_assert_uint_eq(error.radius, CHUNKKV_RADIUS_SESSION);
                ck_assert_uint_eq(error.cache, CHUNKKV_CACHE_CLEAN);
                ck_assert_str_eq(error.detail, "16 of 16 side connections of this user are open");
        }
        clients[3] = chunkkv_close(clients[3]);
        ck_assert_int_eq(chunkkv_connect(&options, &clients[3], &error), 0);
        for (uint32_t i = 0; i < CONNECTIONS; i++)
                clients[i] = chunkkv_close(clients[i]);
}
END_TEST

int main(void) {
        const TTest *const tests[] = {
                connect_ping_budgets, plan_writes_nothing, in_place_moves_bit_for_bit, rows_form_lists_the_same,
                runs_there_and_back, answers_find_their_request, refusal_names_the_field, region_in_use_stays,
                wrong_arguments_stay_here, lists_that_are_null, a_budget_is_named, a_daemon_that_leaves,
                no_daemon, one_client_too_many,
        };

        return support_client_run("client_c", tests, CKV_ARRAY_SIZE(tests));
}
