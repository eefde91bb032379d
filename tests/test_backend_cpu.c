/*
 * The CPU backend as a device: what it promises beyond being right, which
 * test_conformance.c and test_cpu_score.c look at.  The same rows among other
 * jobs; poison that must or must not be seen (R23, R34); turns, cancellation,
 * deadlines, memory, mappings and the device's own sign of life.
 */
#include "base/clock.h"
#include "base/macros.h"
#include "kernels/backend.h"
#include "kernels/cpu_machine.h"
#include "kernels/reference.h"
#include "tests/support_endless.h"
#include "tests/support_random.h"

#include <check.h>
#include <math.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1
#else
#define SANITIZED 0
#endif

static const struct ckv_backend_ops *const ops = &ckv_backend_cpu;

static struct ckv_backend *open_backend(uint32_t threads, uint32_t slice_usec) {
        struct ckv_backend_options options = { .threads = threads, .slice_usec = slice_usec };
        struct ckv_backend *backend = NULL;

        ck_assert_int_eq(ops->open(&options, &backend), 0);
        return backend;
}

static struct ckv_job *reap(struct ckv_backend *backend, int timeout_ms) {
        struct pollfd done = { .fd = ops->wait_fd(backend), .events = POLLIN };

        return poll(&done, 1, timeout_ms) == 1 ? ops->reap(backend) : NULL;
}

static void run_plan(struct ckv_backend *backend, struct ckv_job *job) {
        job->stage = CKV_STAGE_PLAN;
        ops->submit(backend, job);
        ck_assert_ptr_eq(reap(backend, 60000), job);
}

/* Other jobs on the device, other threads, other slices: the same rows. */
START_TEST(kept_same_among_other_jobs) {
        struct random_shape shape = { .groups = 1, .rows = 1500, .kv_heads = 2, .dims = 64 };
        struct random_job *alone = random_job_new(99, &shape), *among = random_job_new(99, &shape);
        struct random_job *others[4];
        struct ckv_backend *backend = open_backend(1, 5000);
        uint32_t reaped = 0;

        run_plan(backend, alone->job);
        (void)ops->close(backend);
        backend = open_backend(3, 100);
        for (uint32_t i = 0; i < CKV_ARRAY_SIZE(others); i++) {
                others[i] = random_job_new(i + 1, &shape);
                others[i]->job->fair_key = i;
                ops->submit(backend, others[i]->job);
                if (i == 1)
                        ops->submit(backend, among->job);
        }
        while (reaped < CKV_ARRAY_SIZE(others) + 1) {
                ck_assert_ptr_nonnull(reap(backend, 60000));
                reaped++;
        }
        (void)ops->close(backend);
        ck_assert_int_eq(alone->job->outcome, CKV_JOB_OK);
        ck_assert_int_eq(among->job->outcome, CKV_JOB_OK);
        ck_assert_uint_eq(alone->job->groups[0].kept_count, among->job->groups[0].kept_count);
        for (uint32_t k = 0; k < alone->job->groups[0].kept_count; k++) {
                const struct ckv_kept *a = &alone->job->groups[0].kept[k], *b = &among->job->groups[0].kept[k];

                ck_assert_uint_eq(a->run_count, b->run_count);
                ck_assert_mem_eq(a->runs, b->runs, a->run_count * sizeof(*a->runs));
        }
        for (uint32_t i = 0; i < CKV_ARRAY_SIZE(others); i++)
                (void)random_job_free(others[i]);
        (void)random_job_free(alone);
        (void)random_job_free(among);
}
END_TEST

/* Where a NaN or an infinity lies, and whether it must be found. */
enum poison { POISON_KEY, POISON_KEY_INFINITE, POISON_QUERY, POISON_MASKED_KEY, POISON_VALUE, POISON_LAST_KEY, POISON_SINK_KEY };

START_TEST(poison_in_visible_data_only) {
        struct ckv_policy asked = { .window = 8, .pool = CKV_POOL_MAX, .heads = CKV_HEADS_MAX, .group_heads = CKV_GROUP_MAX };
        struct random_shape shape = { .groups = 2, .layers = 3, .rows = 700, .kv_heads = 2, .per_group = 2, .dims = 16,
                                      .dtype = CKV_DTYPE_F32, .asked = &asked, .keep_ratio = 300000 };
        struct random_job *random = random_job_new(11, &shape), *reference = random_job_new(11, &shape), *both[] = { random, reference };
        struct ckv_backend *backend = open_backend(2, 1000);
        bool bad = _i < POISON_MASKED_KEY;

        for (uint32_t i = 0; i < 2; i++) {
                struct ckv_job_group *group = &both[i]->job->groups[1];
                struct ckv_job_layer *layer = &group->layers[2];
                const float nan = NAN, infinity = INFINITY;
                uint32_t row = _i == POISON_MASKED_KEY ? 695 : 300;

                both[i]->job->queries.last_row = 690;
                if (_i == POISON_LAST_KEY || _i == POISON_SINK_KEY) {
                        /* a query that sees its own row alone, which is no row of any unit: those are before it, or behind */
                        bool last = _i == POISON_LAST_KEY;

                        both[i]->job->queries.last_row = row = last ? 699 : 690;
                        group->policy.sliding = 1;
                        group->policy.pool = CKV_POOL_NONE;
                        group->policy.sinks = last ? 0 : 691;
                        group->policy.recent = last ? 1 : 0;
                        group->selection.keep_ratio = 999000;
                }
                if (_i == POISON_QUERY) {
                        const struct ckv_job_queries *q = &both[i]->job->queries;
                        size_t newest = (q->ring_start + q->rows - 1) % q->rows * q->row_stride;

                        memset((uint8_t *)(uintptr_t)layer->query + newest + q->head_stride, 0xff, ckv_dtype_bytes(q->dtype));
                } else if (_i == POISON_VALUE) {
                        ck_assert_ptr_nonnull(layer->v.base);
                        memcpy(random_element(group, &layer->v, row, 1, 3), &nan, sizeof(nan));
                } else
                        memcpy(random_element(group, &layer->k, row, 1, 3), _i == POISON_KEY_INFINITE ? &infinity : &nan,
                               sizeof(nan));
        }
        ck_assert_int_eq(ckv_ref_run_plan(reference->job), 0);
        run_plan(backend, random->job);
        ck_assert_int_eq(random->job->outcome, bad ? CKV_JOB_NONFINITE : CKV_JOB_OK);
        ck_assert_int_eq(reference->job->outcome, random->job->outcome);
        if (bad) {
                ck_assert_uint_eq(random->job->fail_group, 1);
                ck_assert_uint_eq(random->job->fail_layer, 9);
                ck_assert_uint_eq(random->job->fail_unit, reference->job->fail_unit);
        }
        (void)ops->close(backend);
        (void)random_job_free(random);
        (void)random_job_free(reference);
}
END_TEST

/* Nothing is scored where the budget settles the answer: there may be no queries at all (R20). */
START_TEST(settled_budget_needs_no_queries) {
        struct endless e;
        struct ckv_backend *backend = open_backend(1, 0);

        endless_init(&e, 1000, 8, 0);
        e.job->groups[0].selection.keep_ratio = 1000000;
        e.job->groups[0].layers[0].query = NULL;
        e.job->groups[0].layers[0].k.base = NULL;
        run_plan(backend, e.job);
        ck_assert_int_eq(e.job->outcome, CKV_JOB_OK);
        ck_assert_int_eq(e.job->groups[0].budget.kept_all, CKV_KEPT_FITS);
        ck_assert_uint_eq(e.job->groups[0].kept[0].count, 1000);
        (void)ops->close(backend);
        endless_deinit(&e);
}
END_TEST

START_TEST(turns_between_keys_order_within) {
        struct endless long_one, second, other;
        struct ckv_backend *backend = open_backend(1, 500);

        endless_init(&long_one, 300000, 8, 1);
        endless_init(&second, 2000, 1, 1);
        endless_init(&other, 2000, 1, 2);
        ops->submit(backend, long_one.job);
        ops->submit(backend, second.job);
        ops->submit(backend, other.job);
        /* another key does not wait for the long job; the same key does, although it is short */
        ck_assert_ptr_eq(reap(backend, 60000), other.job);
        ck_assert_ptr_eq(reap(backend, 60000), long_one.job);
        ck_assert_ptr_eq(reap(backend, 60000), second.job);
        ck_assert_int_eq(long_one.job->outcome, CKV_JOB_OK);
        ck_assert_uint_gt(long_one.job->score_nsec, other.job->score_nsec);
        ck_assert_uint_le(long_one.job->device_nsec, long_one.job->score_nsec + long_one.job->select_nsec);
        ck_assert_uint_gt(long_one.job->select_nsec, 0);
        (void)ops->close(backend);
        endless_deinit(&long_one);
        endless_deinit(&second);
        endless_deinit(&other);
}
END_TEST

START_TEST(cancel_running_and_queued) {
        struct endless running, queued;
        struct ckv_backend *backend = open_backend(1, 500);
        struct ckv_backend_health health;
        uint64_t start;

        endless_init(&running, 1000000, 8, 1);
        endless_init(&queued, 1000000, 8, 1);
        ops->submit(backend, running.job);
        ops->submit(backend, queued.job);
        do
                ops->health(backend, &health);
        while (health.running == 0);
        ops->health(backend, &health);
        ck_assert_uint_eq(health.running, 1);
        ck_assert_uint_eq(health.queued, 1);
        start = ckv_now_nsec();
        ops->cancel(backend, queued.job);
        ck_assert_ptr_eq(reap(backend, 60000), queued.job);
        ops->cancel(backend, running.job);
        ck_assert_ptr_eq(reap(backend, 60000), running.job);
        /* both together are many seconds of work */
        ck_assert_uint_lt(ckv_now_nsec() - start, 2 * CKV_NSEC_PER_SEC);
        ck_assert_int_eq(queued.job->outcome, CKV_JOB_CANCELLED);
        ck_assert_int_eq(running.job->outcome, CKV_JOB_CANCELLED);
        ck_assert_uint_eq(queued.job->started_nsec, 0);
        ops->health(backend, &health);
        ck_assert_uint_eq(health.running + health.queued, 0);
        (void)ops->close(backend);
        endless_deinit(&running);
        endless_deinit(&queued);
}
END_TEST

START_TEST(deadline_ends_plan) {
        struct endless e, late;
        struct ckv_backend *backend = open_backend(2, 500);
        uint64_t start = ckv_now_nsec();

        endless_init(&e, 1000000, 8, 1);
        endless_init(&late, 100, 8, 2);
        e.job->deadline_nsec = start + 20 * CKV_NSEC_PER_MSEC;
        late.job->deadline_nsec = start - 1;
        ops->submit(backend, late.job);
        ops->submit(backend, e.job);
        ck_assert_ptr_eq(reap(backend, 60000), late.job);
        ck_assert_ptr_eq(reap(backend, 60000), e.job);
        ck_assert_uint_ge(ckv_now_nsec(), e.job->deadline_nsec);
        ck_assert_int_eq(e.job->outcome, CKV_JOB_EXPIRED);
        ck_assert_int_eq(late.job->outcome, CKV_JOB_EXPIRED);
        ck_assert_uint_eq(late.job->device_nsec, 0);
        (void)ops->close(backend);
        endless_deinit(&e);
        endless_deinit(&late);
}
END_TEST

/* Once rows move, neither a cancellation nor a deadline stops them; and a move of many slices shares the device. */
START_TEST(move_knows_no_way_back) {
        struct random_shape shape = { .groups = 1, .layers = 4, .rows = 6000, .kv_heads = 2, .per_group = 1, .dims = 256,
                                      .dtype = CKV_DTYPE_F32, .keep_ratio = 500000,
                                      .asked = &(struct ckv_policy){ .window = 1, .chunk = 3 } };
        struct random_job *fast = random_job_new(21, &shape), *slow = random_job_new(21, &shape);
        struct ckv_backend *backend = open_backend(2, 20);

        run_plan(backend, fast->job);
        ck_assert_int_eq(fast->job->outcome, CKV_JOB_OK);
        for (uint32_t k = 0; k < 4; k++) {
                slow->job->groups[0].kept = slow->job->groups[0].kept ? slow->job->groups[0].kept : calloc(4, sizeof(struct ckv_kept));
                ck_assert_int_eq(ckv_kept_copy(&fast->job->groups[0].kept[k], &slow->job->groups[0].kept[k]), 0);
                slow->job->groups[0].kept_count = k + 1;
        }
        ckv_ref_run_move(slow->job);
        fast->job->stage = CKV_STAGE_MOVE;
        fast->job->deadline_nsec = 1;
        ops->cancel(backend, fast->job);
        ops->submit(backend, fast->job);
        ck_assert_ptr_eq(reap(backend, 60000), fast->job);
        ck_assert_int_eq(fast->job->outcome, CKV_JOB_OK);
        ck_assert_uint_gt(fast->job->move_nsec, 0);
        ck_assert_uint_gt(fast->job->groups[0].bytes_moved, 16 << 20);
        ck_assert_uint_eq(fast->job->groups[0].bytes_moved, slow->job->groups[0].bytes_moved);
        for (uint32_t i = 0; i < fast->memory_count; i++)
                ck_assert_mem_eq(fast->memory[i].bytes, slow->memory[i].bytes, fast->memory[i].size);
        (void)ops->close(backend);
        (void)random_job_free(fast);
        (void)random_job_free(slow);
}
END_TEST

/* Scratch that cannot be had is an outcome of the job, and the device goes on. */
START_TEST(no_memory_is_an_outcome) {
        struct endless huge, small;
        struct ckv_backend *backend = open_backend(1, 0);
        struct rlimit limit, before;

        endless_init(&huge, 1000000, 512, 1);
        endless_init(&small, 100, 1, 1);
        if (SANITIZED) {
                printf("no_memory_is_an_outcome: left out, sanitizers need the address space that the test would take away\n");
        } else {
                ck_assert_int_eq(getrlimit(RLIMIT_AS, &before), 0);
                limit = before;
                limit.rlim_cur = (rlim_t)1 << 30;
                ck_assert_int_eq(setrlimit(RLIMIT_AS, &limit), 0);
                run_plan(backend, huge.job);
                ck_assert_int_eq(huge.job->outcome, CKV_JOB_NO_MEMORY);
                ck_assert_uint_eq(huge.job->fail_group, 0);
                run_plan(backend, small.job);
                ck_assert_int_eq(small.job->outcome, CKV_JOB_OK);
                ck_assert_int_eq(setrlimit(RLIMIT_AS, &before), 0);
        }
        (void)ops->close(backend);
        endless_deinit(&huge);
        endless_deinit(&small);
}
END_TEST

/* Is a flag among the VmFlags of the mapping that holds an address? */
static bool mapping_has_flag(const void *address, const char *flag) {
        FILE *maps = fopen("/proc/self/smaps", "re");
        char line[512];
        bool here = false, found = false;

        ck_assert_ptr_nonnull(maps);
        while (fgets(line, sizeof(line), maps)) {
                unsigned long from, to;

                if (sscanf(line, "%lx-%lx ", &from, &to) == 2)
                        here = (uintptr_t)address >= from && (uintptr_t)address < to;
                else if (here && strncmp(line, "VmFlags:", 8) == 0)
                        found = found || strstr(line, flag) != NULL;
        }
        (void)fclose(maps);
        return found;
}

START_TEST(map_at_any_offset) {
        struct ckv_backend *backend = open_backend(1, 0);
        struct ckv_mapping mapping, read_only, none;
        int fd = memfd_create("test", MFD_CLOEXEC);
        char there[4] = { 0 };

        ck_assert_int_ge(fd, 0);
        ck_assert_int_eq(ftruncate(fd, 20000), 0);
        ck_assert_int_eq((int)pwrite(fd, "abcd", 4, 4999), 4);
        ck_assert_int_eq(ops->map(backend, fd, 4999, 10000, true, &mapping), 0);
        ck_assert_int_eq(ops->map(backend, fd, 4999, 4, false, &read_only), 0);
        ck_assert_int_lt(ops->map(backend, fd, 0, 0, true, &none), 0);
        ck_assert_int_lt(ops->map(backend, -1, 0, 1, true, &none), 0);
        ck_assert_int_lt(ops->map(backend, fd, UINT64_MAX - 5, 100, true, &none), 0);
        ck_assert_mem_eq(mapping.base, "abcd", 4);
        mapping.base[1] = 'x';
        ck_assert_mem_eq(read_only.base, "axcd", 4);
        ck_assert_int_eq((int)pread(fd, there, 4, 4999), 4);
        ck_assert_mem_eq(there, "axcd", 4);
        ck_assert(mapping.writable && !read_only.writable && mapping.size == 10000);
        ck_assert(mapping_has_flag(mapping.base, " wr") && !mapping_has_flag(read_only.base, " wr"));
        ck_assert(mapping_has_flag(mapping.base, " dc") && mapping_has_flag(mapping.base, " dd"));
        ops->unmap(backend, &mapping);
        ck_assert_ptr_null(mapping.base);
        ops->unmap(backend, &mapping);
        ops->unmap(backend, &read_only);
        (void)close(fd);
        (void)ops->close(backend);
}
END_TEST

START_TEST(idle_device_answers) {
        struct ckv_backend *backend = open_backend(2, 0);
        struct ckv_backend_health before, after;
        struct timespec second = { .tv_sec = 1 };

        ops->health(backend, &before);
        (void)nanosleep(&second, NULL);
        ops->health(backend, &after);
        ck_assert_uint_gt(after.last_progress_nsec, before.last_progress_nsec);
        ck_assert_uint_lt(ckv_now_nsec() - after.last_progress_nsec, CKV_NSEC_PER_SEC);
        ck_assert_uint_eq(after.queued + after.running, 0);
        (void)ops->close(backend);
}
END_TEST

START_TEST(describe_names_path_and_threads) {
        struct ckv_backend *backend = open_backend(3, 0);
        struct ckv_backend_info info;

        ops->describe(backend, &info);
        ck_assert_uint_eq(info.threads, 3);
        ck_assert_ptr_nonnull(strstr(info.picks, info.path));
        ck_assert_uint_gt(info.tried_usec, 0);
        ck_assert_str_eq(info.wrong, "");
        ck_assert_ptr_nonnull(strstr(info.name, info.path));
        ck_assert_ptr_nonnull(strstr(info.name, "3 threads"));
        printf("%s\n", info.name);
        (void)ops->close(backend);
        backend = open_backend(0, 0);
        ops->describe(backend, &info);
        ck_assert_uint_eq(info.threads, ckv__cpu_threads(&ckv__cpu_this_machine));
        ck_assert_uint_ge(info.threads, 1);
        (void)ops->close(backend);
        ck_assert_ptr_null(ops->close(NULL));
}
END_TEST

int main(void) {
        Suite *suite = suite_create("backend_cpu");
        TCase *plans = tcase_create("plans"), *device = tcase_create("device");
        SRunner *runner = srunner_create(suite);
        int failed;

        suite_add_tcase(suite, plans);
        suite_add_tcase(suite, device);
        tcase_set_timeout(plans, 300);
        tcase_set_timeout(device, 120);
        tcase_add_test(plans, kept_same_among_other_jobs);
        tcase_add_loop_test(plans, poison_in_visible_data_only, POISON_KEY, POISON_SINK_KEY + 1);
        tcase_add_test(device, settled_budget_needs_no_queries);
        tcase_add_test(device, turns_between_keys_order_within);
        tcase_add_test(device, cancel_running_and_queued);
        tcase_add_test(device, deadline_ends_plan);
        tcase_add_test(device, move_knows_no_way_back);
        tcase_add_test(device, no_memory_is_an_outcome);
        tcase_add_test(device, map_at_any_offset);
        tcase_add_test(device, idle_device_answers);
        tcase_add_test(device, describe_names_path_and_threads);
        srunner_run_all(runner, CK_NORMAL);
        failed = srunner_ntests_failed(runner);
        srunner_free(runner);
        return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
