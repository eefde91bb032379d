/*
 * The C client's control page: the batch rule against the daemon's, slots and
 * their words, hold, commit and cancel, and daemons that are killed at random
 * moments of a move and leave no cache torn.
 */
#include "base/clock.h"
#include "base/macros.h"
#include "clients/c/src/control.h"
#include "clients/c/src/forward.h"
#include "kernels/steps.h"
#include "tests/support_client.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>

/* ---- the batch rule */

enum { RUNS_MAX = 400 };

/* Kept rows of one set, for both rules. */
struct rule {
        struct ckv__run ours[RUNS_MAX];
        struct ckv_run theirs[RUNS_MAX];
        size_t count;
        struct ckv_kept kept;
};

static void rule_add(struct rule *rule, uint32_t first, uint32_t end) {
        rule->ours[rule->count] = (struct ckv__run){ .src = first, .len = end - first, .dst = rule->kept.count };
        rule->theirs[rule->count] = (struct ckv_run){ .src = first, .len = end - first, .dst = rule->kept.count };
        rule->count++;
        rule->kept.count += end - first;
        rule->kept.runs = rule->theirs;
        rule->kept.run_count = rule->count;
}

/* Both rules cut alike. Return: the number of batches. */
static uint32_t rule_compare(const struct rule *rule, uint32_t batch_rows) {
        struct ckv__cut ours = ckv__cut_first(rule->ours, rule->count, batch_rows);
        struct ckv_batch theirs = ckv_batch_first(&rule->kept, batch_rows);
        uint32_t n = 0;

        for (; theirs.begin < theirs.end; n++) {
                ck_assert_uint_eq(ours.begin, theirs.begin);
                ck_assert_uint_eq(ours.end, theirs.end);
                ckv__cut_next(&ours, batch_rows);
                theirs = ckv_batch_next(&rule->kept, batch_rows, &theirs);
        }
        ck_assert_uint_eq(ours.begin, ours.end);
        return n;
}

START_TEST(batches_are_those_of_the_daemon) {
        static const uint32_t caps[] = { 0, 1, 7, 64 };
        uint64_t state = 5;
        uint32_t most = 0;

        for (int round = 0; round < 2000; round++) {
                struct rule rule = { .count = 0 };
                uint32_t row = 0, gap = 1 + (uint32_t)(state >> 40) % 60, length = 1 + (uint32_t)(state >> 50) % 60;

                for (int i = 0; i < 40; i++) {
                        uint32_t first;

                        state = state * UINT64_C(6364136223846793005) + 1442695040888963407u;
                        first = row + (i || round % 3 ? 1 + (uint32_t)(state >> 33) % gap : 0);
                        row = first + 1 + (uint32_t)(state >> 45) % length;
                        rule_add(&rule, first, row);
                }
                for (size_t i = 0; i < CKV_ARRAY_SIZE(caps); i++)
                        most = CKV_MAX(most, rule_compare(&rule, caps[i]));
        }
        ck_assert_uint_gt(most, 500);
}
END_TEST

static char *file_read(const char *path) {
        FILE *file = fopen(path, "r");
        char *text = calloc(1, 1 << 20);

        ck_assert_msg(file && text, "%s: %s", path, strerror(errno));
        ck_assert_uint_gt(fread(text, 1, (1 << 20) - 1, file), 0);
        (void)fclose(file);
        return text;
}

/* The file that Python's rule is held to as well. */
START_TEST(batches_are_those_of_the_vectors) {
        char *text = file_read("tests/vectors/steps.json");
        cJSON *cases = cJSON_Parse(text), *one, *pair;

        ck_assert_int_gt(cJSON_GetArraySize(cases), 50);
        cJSON_ArrayForEach(one, cases) {
                uint32_t batch_rows = (uint32_t)cJSON_GetNumberValue(cJSON_GetObjectItem(one, "batch_rows"));
                struct rule rule = { .count = 0 };
                struct ckv__cut cut;

                cJSON_ArrayForEach(pair, cJSON_GetObjectItem(one, "kept"))
                        rule_add(&rule, (uint32_t)cJSON_GetNumberValue(cJSON_GetArrayItem(pair, 0)),
                                 (uint32_t)cJSON_GetNumberValue(cJSON_GetArrayItem(pair, 1)));
                cut = ckv__cut_first(rule.ours, rule.count, batch_rows);
                cJSON_ArrayForEach(pair, cJSON_GetObjectItem(one, "batches")) {
                        ck_assert_uint_eq(cut.begin, (uint32_t)cJSON_GetNumberValue(cJSON_GetArrayItem(pair, 0)));
                        ck_assert_uint_eq(cut.end, (uint32_t)cJSON_GetNumberValue(cJSON_GetArrayItem(pair, 1)));
                        ckv__cut_next(&cut, batch_rows);
                }
                ck_assert_uint_eq(cut.begin, cut.end);
                (void)rule_compare(&rule, batch_rows);
        }
        cJSON_Delete(cases);
        free(text);
}
END_TEST

/* ---- slots, with a daemon */

START_TEST(a_job_in_place_takes_a_slot_by_itself) {
        const struct ckv_control_slot *slot;
        struct chunkkv_result *result;
        struct chunkkv_error error;
        struct model model;

        model_open(&model, CHUNKKV_MODE_IN_PLACE);
        ck_assert_uint_ne(model.client->page->attached, 0);
        slot = ckv__page_slot(model.client->page, 1);
        ck_assert_msg(chunkkv_compress(model.client, &model.job, 0, &result, &error) == 0, "%s", error.detail);
        ck_assert_uint_eq(result->repaired, 0);
        ck_assert_uint_eq(slot->word, ckv_control_word(1, CHUNKKV_PHASE_DONE));
        ck_assert_uint_eq(slot->request_id, result->request_id);
        ck_assert_uint_eq(slot->generation, 4711);
        ck_assert_mem_eq(slot->boot_id, model.client->boot_id, sizeof(slot->boot_id));
        ck_assert_uint_gt(slot->steps, 0);
        ck_assert_uint_eq(slot->steps_done, slot->steps);
        ck_assert_ptr_null(model.client->writings);
        result = chunkkv_result_free(result);
        model_close(&model);
}
END_TEST

START_TEST(slots_of_refused_jobs_are_free_again) {
        struct chunkkv_result *result = NULL;
        struct chunkkv_error error;
        struct model model;

        model_open_with(&model, CHUNKKV_MODE_IN_PLACE, (struct chunkkv_options){ .control_slots = 2 });
        model.group.physical_len = 65;
        for (int i = 0; i < 10; i++)
                ck_assert_int_eq(chunkkv_compress(model.client, &model.job, 0, &result, &error), -EREMOTEIO);
        model.group.physical_len = MODEL_ROWS;
        ck_assert_int_eq(chunkkv_compress(model.client, &model.job, 0, &result, &error), 0);
        ck_assert_uint_eq((uint32_t)ckv__page_slot(model.client->page, 1)->word, CHUNKKV_PHASE_DONE);
        result = chunkkv_result_free(result);
        model_close(&model);
}
END_TEST

START_TEST(sizes_of_a_page) {
        const struct { uint8_t slots; uint16_t kept_pages; const char *field; } wrong[] = {
                { 9, 0, "control_slots" }, { 8, 512, "kept_pages" }, { 1, 4096, "kept_pages" },
        };
        struct chunkkv_client *client = NULL;
        struct chunkkv_error error;

        for (size_t i = 0; i < CKV_ARRAY_SIZE(wrong); i++) {
                const struct chunkkv_options options = { .endpoint = support_daemon.endpoint,
                        .control_slots = wrong[i].slots, .kept_pages = wrong[i].kept_pages };

                ck_assert_int_eq(chunkkv_connect(&options, &client, &error), -EINVAL);
                ck_assert_str_eq(error.field, wrong[i].field);
        }
}
END_TEST

/* A set that may not fit the slot's area: the job is done, and cannot be repaired. */
START_TEST(sets_that_may_not_fit_go_without_a_slot) {
        static uint32_t runs[2 * 700];
        const struct chunkkv_shape shape = { .layers = 1, .rows = 4096, .kv_heads = 1, .q_heads = 1, .head_dim = 8,
                .query_rows = 1, .dtype = CHUNKKV_DTYPE_F32 };
        const uint32_t table[] = { 0, 4096 };
        const struct chunkkv_policy policy = { 0 };
        const struct chunkkv_options options = { .endpoint = support_daemon.endpoint, .kept_pages = 1 };
        struct chunkkv_group_job group = {
                .physical_len = 4096, .table = { .form = CHUNKKV_TABLE_TOKEN_RUNS, .numbers = table, .count = 2 },
                .policies = &policy, .policy_count = 1, .given_runs = runs, .given_run_count = CKV_ARRAY_SIZE(runs),
        };
        struct chunkkv_job job = { .mode = CHUNKKV_MODE_IN_PLACE, .groups = &group, .group_count = 1 };
        struct chunkkv_client *client;
        struct chunkkv_result *result;
        struct chunkkv_error error;
        struct chunkkv_dense dense;
        int r;

        for (size_t i = 0; i < CKV_ARRAY_SIZE(runs); i += 2) {
                runs[i] = 4;
                runs[i + 1] = 1;
        }
        ck_assert_int_eq(chunkkv_connect(&options, &client, &error), 0);
        ck_assert_int_eq(chunkkv_dense_create(client, &shape, &dense, &error), 0);
        job.cache_id = dense.cache_id;
        r = chunkkv_compress(client, &job, 0, &result, &error);
        ck_assert_msg(r == 0, "%s: %s", error.field, error.detail);
        ck_assert_uint_eq(result->groups[0].physical_len, 700);
        ck_assert_uint_ne((uint32_t)ckv__page_slot(client->page, 1)->word, CHUNKKV_PHASE_DONE);
        result = chunkkv_result_free(result);
        chunkkv_dense_release(client, &dense);
        client = chunkkv_close(client);
}
END_TEST

START_TEST(hold_and_commit) {
        _cleanup_free_ void *before = NULL;
        struct chunkkv_result *held, *done;
        struct chunkkv_error error;
        struct model model;

        model_open(&model, CHUNKKV_MODE_IN_PLACE);
        before = malloc(model.memory.size);
        ck_assert_ptr_nonnull(before);
        memcpy(before, model.memory.address, model.memory.size);
        model.job.hold = true;
        ck_assert_msg(chunkkv_compress(model.client, &model.job, 0, &held, &error) == 0, "%s", error.detail);
        ck_assert_uint_eq(held->phase, CHUNKKV_PHASE_SELECTED);
        ck_assert_uint_eq(held->cache, CHUNKKV_CACHE_CLEAN);
        ck_assert_uint_eq(held->groups[0].set_count, 1);
        ck_assert_mem_eq(before, model.memory.address, model.memory.size);
        ck_assert_msg(chunkkv_commit(model.client, held->request_id, 0, &done, &error) == 0, "%s", error.detail);
        ck_assert_uint_eq(done->phase, CHUNKKV_PHASE_DONE);
        ck_assert_uint_eq(done->cache, CHUNKKV_CACHE_COMMITTED);
        ck_assert_uint_eq(done->request_id, held->request_id);
        ck_assert_uint_eq(done->generation, 4711);
        ck_assert_uint_eq(done->groups[0].kept_digest, held->groups[0].kept_digest);
        ck_assert_int_ne(memcmp(before, model.memory.address, model.memory.size), 0);
        ck_assert_int_eq(chunkkv_commit(model.client, held->request_id, 0, &done, &error), -EINVAL);
        held = chunkkv_result_free(held);
        done = chunkkv_result_free(done);
        model_close(&model);
}
END_TEST

START_TEST(hold_and_cancel) {
        _cleanup_free_ void *before = NULL;
        struct chunkkv_result *held, *done = NULL;
        struct chunkkv_outcome outcome;
        struct chunkkv_error error;
        struct model model;

        model_open(&model, CHUNKKV_MODE_IN_PLACE);
        before = malloc(model.memory.size);
        ck_assert_ptr_nonnull(before);
        memcpy(before, model.memory.address, model.memory.size);
        model.job.hold = true;
        ck_assert_int_eq(chunkkv_compress(model.client, &model.job, 0, &held, &error), 0);
        ck_assert_int_eq(chunkkv_cancel(model.client, held->request_id, 0, &outcome, &error), 0);
        ck_assert_uint_eq(outcome.phase, CHUNKKV_PHASE_CANCELLED);
        ck_assert_uint_eq(outcome.cache, CHUNKKV_CACHE_CLEAN);
        ck_assert_int_eq(chunkkv_commit(model.client, held->request_id, 0, &done, &error), -EINVAL);
        ck_assert_mem_eq(before, model.memory.address, model.memory.size);
        ck_assert_ptr_null(model.client->writings);
        held = chunkkv_result_free(held);
        model_close(&model);
}
END_TEST

START_TEST(a_hold_ends_with_its_daemon) {
        struct chunkkv_result *held, *done = NULL;
        struct chunkkv_error error;
        struct chunkkv_pong pong;
        struct model model;

        model_open(&model, CHUNKKV_MODE_IN_PLACE);
        model.job.hold = true;
        for (int i = 0; i < 2; i++) {
                ck_assert_int_eq(chunkkv_compress(model.client, &model.job, 0, &held, &error), 0);
                (void)kill(support_daemon.pid, SIGKILL);
                support_daemon_again();
                if (i == 1)
                        ck_assert_int_eq(chunkkv_ping(model.client, 0, &pong, &error), 0);
                ck_assert_int_eq(chunkkv_commit(model.client, held->request_id, 0, &done, &error), -EOWNERDEAD);
                ck_assert_uint_eq(error.cache, CHUNKKV_CACHE_CLEAN);
                held = chunkkv_result_free(held);
        }
        ck_assert_ptr_null(model.client->writings);
        model_close(&model);
}
END_TEST

/* ---- daemons that die in the move */

enum { LAYERS = 2, ROWS = 8192, HEADS = 4, DIM = 64, STRETCH = 64, SEEDS = 40 };

static uint32_t given[2 * ROWS / (2 * STRETCH)];

/* Row @row of a plane holds numbers of its own. */
static void big_fill(const struct chunkkv_dense *dense) {
        for (uint32_t plane = CHUNKKV_PLANE_K; plane <= CHUNKKV_PLANE_V; plane++)
                for (uint32_t layer = 0; layer < LAYERS; layer++)
                        for (uint32_t row = 0; row < ROWS; row++) {
                                uint32_t *words = chunkkv_dense_row(dense, plane, layer, row);

                                for (uint32_t i = 0; i < HEADS * DIM; i++)
                                        words[i] = ((plane * LAYERS + layer) * ROWS + row) * HEADS * DIM + i;
                        }
}

/* Is every row below @rows what the kept rows say, or what it was? */
static bool big_is(const struct chunkkv_dense *dense, bool moved, uint32_t rows) {
        for (uint32_t plane = CHUNKKV_PLANE_K; plane <= CHUNKKV_PLANE_V; plane++)
                for (uint32_t layer = 0; layer < LAYERS; layer++)
                        for (uint32_t row = 0; row < rows; row++) {
                                const uint32_t *words = chunkkv_dense_row(dense, plane, layer, row);
                                uint32_t from = moved ? row / STRETCH * 2 * STRETCH + STRETCH + row % STRETCH : row;

                                for (uint32_t i = 0; i < HEADS * DIM; i++)
                                        if (words[i] != ((plane * LAYERS + layer) * ROWS + from) * HEADS * DIM + i)
                                                return false;
                        }
        return true;
}

static void check_result(const struct chunkkv_dense *dense, const struct chunkkv_result *result) {
        const struct chunkkv_group_result *group = &result->groups[0];
        const struct chunkkv_set *set = chunkkv_set_find(group, LAYERS - 1, 0);

        ck_assert_uint_eq(result->phase, CHUNKKV_PHASE_DONE);
        ck_assert_uint_eq(result->cache, CHUNKKV_CACHE_COMMITTED);
        ck_assert_uint_eq(result->generation, 12);
        ck_assert_uint_eq(group->physical_len, ROWS / 2);
        ck_assert_uint_eq(group->table_used, ROWS / 2);
        ck_assert_ptr_nonnull(set);
        ck_assert_uint_eq(set->run_count, CKV_ARRAY_SIZE(given));
        ck_assert_mem_eq(set->runs, given, sizeof(given));
        ck_assert(big_is(dense, true, ROWS / 2));
}

static struct chunkkv_client *big_open(bool no_roll_forward, struct chunkkv_dense *ret_dense) {
        const struct chunkkv_shape shape = { .layers = LAYERS, .rows = ROWS, .kv_heads = HEADS, .q_heads = HEADS,
                .head_dim = DIM, .query_rows = 1, .dtype = CHUNKKV_DTYPE_F32 };
        const struct chunkkv_options options = { .endpoint = support_daemon.endpoint, .no_roll_forward = no_roll_forward };
        struct chunkkv_client *client;
        struct chunkkv_error error;

        for (size_t i = 0; i < CKV_ARRAY_SIZE(given); i++)
                given[i] = STRETCH;
        ck_assert_int_eq(chunkkv_connect(&options, &client, &error), 0);
        ck_assert_int_eq(chunkkv_dense_create(client, &shape, ret_dense, &error), 0);
        return client;
}

static const uint32_t big_table[] = { 0, ROWS };
static const struct chunkkv_policy big_policy = { 0 };
static const struct chunkkv_group_job big_group = {
        .physical_len = ROWS, .table = { .form = CHUNKKV_TABLE_TOKEN_RUNS, .numbers = big_table, .count = 2 },
        .policies = &big_policy, .policy_count = 1, .given_runs = given, .given_run_count = CKV_ARRAY_SIZE(given),
};

static void sleep_usec(uint32_t usec) {
        const struct timespec span = { .tv_nsec = (long)usec * 1000 };     /* below a second */

        (void)nanosleep(&span, NULL);
}

static void *kill_later(void *argument) {
        sleep_usec(*(const uint32_t *)argument);
        (void)kill(support_daemon.pid, SIGKILL);
        return NULL;
}

/* Submits, kills the core @usec later, and returns what the wait returns. */
static int compress_and_kill(struct chunkkv_client *client, uint32_t cache_id, uint32_t usec, struct chunkkv_result **ret_result,
                             struct chunkkv_error *ret_error) {
        const struct chunkkv_job job = { .cache_id = cache_id, .mode = CHUNKKV_MODE_IN_PLACE, .generation = 12,
                .groups = &big_group, .group_count = 1 };
        struct chunkkv_pong pong;
        pthread_t killer;
        int r;

        /* the client goes over to the daemon of now first: it is to die in the job */
        r = chunkkv_ping(client, 20000, &pong, ret_error);
        ck_assert_msg(r == 0, "%s", ret_error->detail);
        ck_assert_int_eq(pthread_create(&killer, NULL, kill_later, &usec), 0);
        r = chunkkv_compress(client, &job, 20000, ret_result, ret_error);
        ck_assert_int_eq(pthread_join(killer, NULL), 0);
        return r;
}

START_TEST(no_cache_is_torn_by_a_death) {
        uint32_t clean = 0, done = 0, repaired = 0, state = 77;
        struct chunkkv_client *client;
        struct chunkkv_result *result;
        struct chunkkv_error error;
        struct chunkkv_dense dense;

        client = big_open(false, &dense);
        for (int seed = 0; seed < SEEDS; seed++) {
                int r;

                big_fill(&dense);
                state = state * 1103515245u + 12345u;
                r = compress_and_kill(client, dense.cache_id, state / 65536 % 16000, &result, &error);
                if (r == 0) {
                        check_result(&dense, result);
                        *(result->repaired ? &repaired : &done) += 1;
                        result = chunkkv_result_free(result);
                } else {
                        ck_assert_msg(r == -EOWNERDEAD, "%d: %s", r, error.detail);
                        ck_assert_msg(error.cache == CHUNKKV_CACHE_CLEAN, "%s", error.detail);
                        ck_assert(big_is(&dense, false, ROWS));
                        clean++;
                }
                support_daemon_again();
        }
        printf("%d daemons killed: %u jobs done, %u repaired, %u clean\n", SEEDS, done, repaired, clean);
        ck_assert_uint_gt(repaired, 0);
        chunkkv_dense_release(client, &dense);
        client = chunkkv_close(client);
}
END_TEST

struct worker {
        struct chunkkv_client *client;
        struct chunkkv_dense dense;
        pthread_t thread;
        bool stop;
        uint32_t done, repaired, clean, torn;
};

/* Compresses its own cache again and again; what comes of it is counted, and checked by the main thread's rule. */
static void *work(void *argument) {
        struct worker *worker = argument;
        const struct chunkkv_job job = { .cache_id = worker->dense.cache_id, .mode = CHUNKKV_MODE_IN_PLACE, .generation = 12,
                .groups = &big_group, .group_count = 1 };

        while (!__atomic_load_n(&worker->stop, __ATOMIC_RELAXED)) {
                struct chunkkv_result *result;
                struct chunkkv_error error;
                int r;

                big_fill(&worker->dense);
                r = chunkkv_compress(worker->client, &job, 20000, &result, &error);
                if (r == 0) {
                        *(result->repaired ? &worker->repaired : &worker->done) += 1;
                        worker->torn += !big_is(&worker->dense, true, ROWS / 2);
                        result = chunkkv_result_free(result);
                } else {
                        worker->clean++;
                        worker->torn += r != -EOWNERDEAD || error.cache != CHUNKKV_CACHE_CLEAN ||
                                        !big_is(&worker->dense, false, ROWS);
                }
        }
        return NULL;
}

/* Several threads, one connection: one of them finds the next daemon, and none loses its cache. */
START_TEST(threads_survive_their_daemon) {
        struct worker workers[3] = { 0 };
        struct chunkkv_client *client;
        struct chunkkv_error error;
        uint32_t done = 0, lost = 0;

        client = big_open(false, &workers[0].dense);
        for (size_t i = 0; i < CKV_ARRAY_SIZE(workers); i++) {
                workers[i].client = client;
                if (i > 0)
                        ck_assert_int_eq(chunkkv_dense_create(client, &workers[0].dense.shape, &workers[i].dense, &error), 0);
                ck_assert_int_eq(pthread_create(&workers[i].thread, NULL, work, &workers[i]), 0);
        }
        for (int i = 0; i < 8; i++) {
                sleep_usec(150000 + 7000 * (uint32_t)i);
                (void)kill(support_daemon.pid, SIGKILL);
                support_daemon_again();
        }
        for (size_t i = 0; i < CKV_ARRAY_SIZE(workers); i++)
                __atomic_store_n(&workers[i].stop, true, __ATOMIC_RELAXED);
        for (size_t i = 0; i < CKV_ARRAY_SIZE(workers); i++) {
                ck_assert_int_eq(pthread_join(workers[i].thread, NULL), 0);
                ck_assert_uint_eq(workers[i].torn, 0);
                done += workers[i].done + workers[i].repaired;
                lost += workers[i].repaired + workers[i].clean;
                printf("thread %zu: %u done, %u repaired, %u clean\n", i, workers[i].done, workers[i].repaired,
                       workers[i].clean);
        }
        ck_assert_uint_gt(done, 0);
        /* with a sanitizer most of the time goes into filling and comparing */
        ck_assert(lost > 0 || CKV_SANITIZED);
        for (size_t i = 0; i < CKV_ARRAY_SIZE(workers); i++)
                chunkkv_dense_release(client, &workers[i].dense);
        client = chunkkv_close(client);
}
END_TEST

/* The same left to the next daemon. */
START_TEST(a_daemon_repairs_on_demand) {
        uint32_t repaired = 0, state = 5;
        struct chunkkv_client *client;
        struct chunkkv_result *result = NULL;
        struct chunkkv_error error;
        struct chunkkv_dense dense;

        client = big_open(true, &dense);
        for (int seed = 0; seed < SEEDS && repaired < 3; seed++) {
                int r;

                big_fill(&dense);
                state = state * 1103515245u + 12345u;
                r = compress_and_kill(client, dense.cache_id, 1000 + state / 65536 % 12000, &result, &error);
                support_daemon_again();
                if (r == 0 || error.cache == CHUNKKV_CACHE_CLEAN) {
                        result = r == 0 ? chunkkv_result_free(result) : NULL;
                        continue;
                }
                ck_assert_uint_eq(error.cache, CHUNKKV_CACHE_TORN_REPAIRABLE);
                ck_assert_uint_ne(error.request_id, 0);
                r = chunkkv_repair(client, error.request_id, 0, &result, &error);
                ck_assert_msg(r == 0, "%s: %s", error.field, error.detail);
                ck_assert_uint_ne(result->repaired, 0);
                check_result(&dense, result);
                ck_assert_int_eq(chunkkv_repair(client, result->request_id, 0, &result, &error), -EINVAL);
                result = chunkkv_result_free(result);
                repaired++;
        }
        ck_assert_uint_gt(repaired, 0);
        chunkkv_dense_release(client, &dense);
        client = chunkkv_close(client);
}
END_TEST

int main(void) {
        const TTest *const tests[] = {
                batches_are_those_of_the_daemon, batches_are_those_of_the_vectors, a_job_in_place_takes_a_slot_by_itself,
                slots_of_refused_jobs_are_free_again, sizes_of_a_page, sets_that_may_not_fit_go_without_a_slot, hold_and_commit,
                hold_and_cancel, a_hold_ends_with_its_daemon, no_cache_is_torn_by_a_death,
                threads_survive_their_daemon, a_daemon_repairs_on_demand,
        };

        return support_client_run("client_control", tests, CKV_ARRAY_SIZE(tests));
}
