/*
 * What the CUDA backend does when something goes wrong, on the stand-in driver,
 * whose faults come from the environment: the outcome of the job, what became of
 * the cache, and whether the next job fares better.  And what ends a job early:
 * cancellation and deadlines.
 *
 * Each test is a process of its own, so calls of the driver are counted from 1.
 */
#include "base/clock.h"
#include "base/macros.h"
#include "kernels/reference.h"
#include "kernels/steps.h"
#include "tests/support_fake.h"
#include "tests/support_random.h"
#include "tests/support_subject.h"

#include <check.h>
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* of a device that is lost nothing is freed */
_public_ const char *__lsan_default_suppressions(void);
const char *__lsan_default_suppressions(void) {
        return "leak:cuEventCreate\nleak:cuStreamCreateWithPriority\n";
}

static const struct ckv_backend_ops *const ops = &ckv_backend_cuda;

static const struct ckv_policy asked = { .window = 4, .chunk = 5, .given = CKV_GIVEN_MIN_TOKENS };
static const struct random_shape shape = {
        .groups = 1, .layers = 3, .rows = 150, .kv_heads = 2, .per_group = 2, .dims = 16, .dtype = CKV_DTYPE_BF16,
        .contiguous = true, .asked = &asked, .keep_ratio = 400000,
};

static int try_open(const struct ckv_backend_options *options, struct ckv_backend **ret_backend, char why[256]) {
        struct ckv_backend_options all = *options;

        all.library = all.library ? all.library : support_fake_path();
        all.ret_why = why;
        all.why_bytes = 256;
        why[0] = '\0';
        return ops->open(&all, ret_backend);
}

static struct ckv_backend *open_backend(uint32_t slice_usec) {
        struct ckv_backend *backend = NULL;
        char why[256];

        ck_assert_msg(try_open(&(struct ckv_backend_options){ .slice_usec = slice_usec }, &backend, why) == 0, "%s", why);
        return backend;
}

static struct ckv_job *reap(struct ckv_backend *backend) {
        struct pollfd done = { .fd = ops->wait_fd(backend), .events = POLLIN };

        ck_assert_int_eq(poll(&done, 1, 60000), 1);
        return ops->reap(backend);
}

static void run(struct ckv_backend *backend, struct ckv_job *job, enum ckv_stage stage) {
        job->stage = stage;
        ops->submit(backend, job);
        ck_assert_ptr_eq(reap(backend), job);
}

/* The bytes of all planes and queries of two jobs */
static bool same_bytes(const struct random_job *a, const struct random_job *b) {
        for (uint32_t i = 0; i < a->memory_count; i++)
                if (memcmp(a->memory[i].bytes, b->memory[i].bytes, a->memory[i].size) != 0)
                        return false;
        return true;
}

static struct random_job *planned_job(void) {
        struct random_job *random = random_job_new(5, &shape);

        ck_assert_int_eq(ckv_ref_run_plan(random->job), 0);
        ck_assert_int_eq(random->job->outcome, CKV_JOB_OK);
        ck_assert_uint_eq(random->job->groups[0].budget.kept_all, CKV_DROPPED);
        return random;
}

/* A device that does not open says why, and with which error. */
START_TEST(open_says_why) {
        static const struct {
                const char *variable, *value;
                struct ckv_backend_options options;
                int r;
                const char *why;
        } cases[] = {
                { "X", "", { .library = "/nowhere/libcuda.so.1" }, -ENOENT, "there is no NVIDIA driver" },
                { "X", "", { .device = "7" }, -ENODEV, "there is no GPU 7" },
                { "X", "", { .device = "GPU-00000000-0000-0000-0000-000000000000" }, -ENODEV, "none of the 1 GPUs" },
                { "X", "", { .device = "first" }, -ENODEV, "no index and no UUID" },
                { "X", "", { .scratch_bytes = 1 << 20 }, -EINVAL, "at least 16 MiB" },
                { "FAKECUDA_VERSION", "12080", { 0 }, -EOPNOTSUPP, "update the driver" },
                { "FAKECUDA_ATTR", "20:2", { 0 }, -ENODEV, "compute mode is prohibited" },
                { "FAKECUDA_FAIL", "cuInit:0:100", { 0 }, -EIO, "no GPU is visible" },
                { "FAKECUDA_FAIL", "cuDevicePrimaryCtxRetain:1:2", { 0 }, -ENOMEM, "no context" },
                { "FAKECUDA_FAIL", "cuModuleLoadDataEx:1:209", { 0 }, -EIO, "cannot be loaded" },
                { "FAKECUDA_FAIL", "cuModuleGetFunction:3:500", { 0 }, -EIO, "ckv_k_weights" },
                { "FAKECUDA_FAIL", "cuMemAlloc_v2:1:2", { 0 }, -ENOMEM, "256 MiB of scratch" },
                { "FAKECUDA_FAIL", "cuMemHostAlloc:2:2", { 0 }, -ENOMEM, "pinned memory" },
                { "FAKECUDA_FAIL", "cuStreamCreateWithPriority:1:2", { 0 }, -ENOMEM, "no stream" },
                { "FAKECUDA_FAIL", "cuDeviceGetUuid_v2:1:1", { 0 }, -EIO, "does not say what it is: cuDeviceGetUuid_v2" },
                { "FAKECUDA_FAIL", "cuDeviceGetUuid_v2:0:1", { .device = "0" }, -EIO, "does not say what it is: cuDeviceGetUuid_v2" },
                { "FAKECUDA_FAIL", "cuDeviceTotalMem_v2:1:1", { 0 }, -EIO, "does not say what it is: cuDeviceTotalMem_v2" },
                { "FAKECUDA_FAIL", "cuDeviceGetName:1:1", { 0 }, -EIO, "does not say what it is: cuDeviceGetName" },
                { "FAKECUDA_FAIL", "cuDeviceGetAttribute:6:1", { 0 }, -EIO, "does not say what it is: cuDeviceGetAttribute" },
        };
        struct ckv_backend *backend = NULL;
        char why[256];

        (void)setenv(cases[_i].variable, cases[_i].value, 1);
        ck_assert_int_eq(try_open(&cases[_i].options, &backend, why), cases[_i].r);
        ck_assert_ptr_null(backend);
        ck_assert_msg(strstr(why, cases[_i].why) != NULL, "\"%s\" has no \"%s\"", why, cases[_i].why);
}
END_TEST
enum { OPEN_CASES = 19 };

START_TEST(found_by_uuid_and_described) {
        struct ckv_backend_options options = { .device = "GPU-6368756e-6b6b-7664-2d73-74616e64696e" };
        struct ckv_backend *backend = NULL;
        struct ckv_backend_info info;
        struct ckv_backend_health health;
        char why[256];

        ck_assert_int_eq(try_open(&options, &backend, why), 0);
        ops->describe(backend, &info);
        ops->health(backend, &health);
        ck_assert_str_eq(info.name, "stand-in for a GPU, sm_90, CUDA 13.0");
        ck_assert_mem_eq(info.uuid, "chunkkvd-standin", 16);
        ck_assert_int_eq(info.driver_version, 13000);
        ck_assert(info.memory_bytes == UINT64_C(8) << 30);
        ck_assert(!health.lost && health.queued == 0 && health.running == 0);
        (void)ops->close(backend);
}
END_TEST

/* A call that fails and leaves the device as it was: the job has its outcome, the next one is planned. */
START_TEST(failed_call_is_one_jobs) {
        static const struct {
                const char *call;
                enum ckv_job_outcome outcome;
                int code;
        } cases[] = {
                { "cuLaunchKernel:1:1", CKV_JOB_DEVICE_FAILED, 1 },      { "cuLaunchKernel:4:801", CKV_JOB_DEVICE_FAILED, 801 },
                { "cuLaunchKernel:2:2", CKV_JOB_NO_MEMORY, 2 },          { "cuMemcpyHtoDAsync_v2:1:1", CKV_JOB_DEVICE_FAILED, 1 },
                { "cuMemcpyHtoDAsync_v2:7:1", CKV_JOB_DEVICE_FAILED, 1 }, { "cuMemcpyDtoHAsync_v2:1:2", CKV_JOB_NO_MEMORY, 2 },
                { "cuMemsetD32Async:1:1", CKV_JOB_DEVICE_FAILED, 1 },    { "cuEventRecord:1:1", CKV_JOB_DEVICE_FAILED, 1 },
                { "cuEventQuery:1:400", CKV_JOB_DEVICE_FAILED, 400 },
        };
        struct random_job *first = random_job_new(5, &shape), *second = random_job_new(5, &shape);
        struct random_job *untouched = random_job_new(5, &shape), *reference = planned_job();
        struct ckv_backend *backend;
        struct ckv_backend_health health;

        (void)setenv("FAKECUDA_FAIL", cases[_i].call, 1);
        backend = open_backend(0);
        run(backend, first->job, CKV_STAGE_PLAN);
        ck_assert_int_eq(first->job->outcome, cases[_i].outcome);
        ck_assert_int_eq(first->job->fail_code, cases[_i].code);
        ck_assert(same_bytes(first, untouched));
        run(backend, second->job, CKV_STAGE_PLAN);
        ck_assert_uint_eq(subject_compare_plans(&(struct subject){ .name = "cuda" }, 5, reference->job, second->job), 0);
        ops->health(backend, &health);
        ck_assert(!health.lost);
        (void)ops->close(backend);
        (void)random_job_free(first);
        (void)random_job_free(second);
        (void)random_job_free(untouched);
        (void)random_job_free(reference);
}
END_TEST
enum { CALL_CASES = 9 };

/* An error that stays ends all jobs, those that wait as well, and imports; what was planned is untouched. */
START_TEST(lost_in_plan) {
        struct random_job *jobs[3], *untouched = random_job_new(5, &shape);
        struct ckv_import import = { .kind = CKV_IMPORT_IPC, .size = 1 };
        struct ckv_backend *backend;
        struct ckv_backend_health health;
        struct pollfd done;

        (void)setenv("FAKECUDA_FAULT", _i ? "4:719" : "1:700", 1);
        backend = open_backend(0);
        for (uint32_t i = 0; i < 3; i++) {
                jobs[i] = random_job_new(5, &shape);
                jobs[i]->job->fair_key = i;
                ops->submit(backend, jobs[i]->job);
        }
        for (uint32_t i = 0; i < 3;)
                i += reap(backend) != NULL;
        for (uint32_t i = 0; i < 3; i++) {
                ck_assert_int_eq(jobs[i]->job->outcome, CKV_JOB_DEVICE_LOST);
                ck_assert_int_eq(jobs[i]->job->fail_code, _i ? 719 : 700);
                ck_assert(same_bytes(jobs[i], untouched));
        }
        ops->health(backend, &health);
        ck_assert(health.lost);
        ck_assert_int_eq(health.lost_code, _i ? 719 : 700);
        done = (struct pollfd){ .fd = ops->wait_fd(backend), .events = POLLIN };
        ops->import(backend, &import);
        ck_assert_int_eq(poll(&done, 1, 60000), 1);
        ck_assert_ptr_eq(ops->reap_import(backend), &import);
        ck_assert_int_eq(import.outcome, CKV_IMPORT_DEVICE_LOST);
        (void)ops->close(backend);
        for (uint32_t i = 0; i < 3; i++)
                (void)random_job_free(jobs[i]);
        (void)random_job_free(untouched);
}
END_TEST

static uint32_t give_steps(struct ckv_job *job, _Atomic uint32_t *done) {
        job->steps = (struct ckv_job_steps){ .batch_rows = 10, .done = done };
        job->steps.count = ckv_steps_count(job, 10, UINT32_MAX);
        ck_assert_uint_gt(job->steps.count, 3);
        return job->steps.count;
}

/* The device is lost in the middle of a move: the count says how far it came, and from there it can be finished. */
START_TEST(lost_in_move_is_counted) {
        struct random_job *fast = planned_job(), *reference = planned_job();
        struct ckv_backend *backend;
        _Atomic uint32_t done = 0;
        uint32_t steps = give_steps(fast->job, &done);

        ckv_ref_run_move(reference->job);
        (void)setenv("FAKECUDA_FAULT", "3:700", 1);
        backend = open_backend(2000000);
        run(backend, fast->job, CKV_STAGE_MOVE);
        ck_assert_int_eq(fast->job->outcome, CKV_JOB_DEVICE_LOST);
        ck_assert_int_eq(fast->job->fail_code, 700);
        ck_assert_uint_gt(fast->job->move_nsec, 0);
        ck_assert_uint_gt(done, 0);
        ck_assert_uint_lt(done, steps);
        ck_assert(!same_bytes(fast, reference));
        (void)ops->close(backend);
        fast->job->steps.first = done;
        ckv_ref_run_move(fast->job);
        ck_assert_uint_eq(done, steps);
        ck_assert(same_bytes(fast, reference));
        fast->job->steps = (struct ckv_job_steps){ 0 };
        (void)random_job_free(fast);
        (void)random_job_free(reference);
}
END_TEST

/* What the driver refuses once is done again; rows end where they belong. */
START_TEST(refused_once_in_move) {
        static const char *const calls[] = { "cuLaunchKernel:1:1", "cuLaunchKernel:3:2", "cuMemcpyHtoDAsync_v2:2:1",
                                             "cuEventRecord:2:1", "cuEventQuery:3:1" };
        struct random_job *fast = planned_job(), *reference = planned_job();
        struct ckv_backend *backend;
        _Atomic uint32_t done = 0;
        uint32_t steps = give_steps(fast->job, &done);

        ckv_ref_run_move(reference->job);
        (void)setenv("FAKECUDA_FAIL", calls[_i], 1);
        backend = open_backend(0);
        run(backend, fast->job, CKV_STAGE_MOVE);
        ck_assert_int_eq(fast->job->outcome, CKV_JOB_OK);
        ck_assert_uint_eq(done, steps);
        ck_assert(same_bytes(fast, reference));
        (void)ops->close(backend);
        fast->job->steps = (struct ckv_job_steps){ 0 };
        (void)random_job_free(fast);
        (void)random_job_free(reference);
}
END_TEST
enum { MOVE_CASES = 5 };

/* What it refuses for good ends the device; a move that waited has not begun, and says so. */
START_TEST(refused_for_good_in_move) {
        struct random_job *fast = planned_job(), *waits = planned_job(), *untouched = planned_job();
        struct ckv_backend *backend;
        struct ckv_backend_health health;
        _Atomic uint32_t done = 0;

        (void)give_steps(fast->job, &done);
        fast->job->stage = waits->job->stage = CKV_STAGE_MOVE;
        waits->job->move_nsec = 1;
        (void)setenv("FAKECUDA_FAIL", "cuLaunchKernel:0:1", 1);
        backend = open_backend(0);
        ops->submit(backend, fast->job);
        ops->submit(backend, waits->job);
        for (uint32_t i = 0; i < 2;)
                i += reap(backend) != NULL;
        ck_assert_int_eq(fast->job->outcome, CKV_JOB_DEVICE_LOST);
        ck_assert_int_eq(waits->job->outcome, CKV_JOB_DEVICE_LOST);
        ck_assert_uint_eq(waits->job->move_nsec, 0);
        ck_assert_uint_eq(done, 0);
        ck_assert(same_bytes(fast, untouched) && same_bytes(waits, untouched));
        ops->health(backend, &health);
        ck_assert(health.lost && health.lost_code == 1);
        (void)ops->close(backend);
        fast->job->steps = (struct ckv_job_steps){ 0 };
        (void)random_job_free(fast);
        (void)random_job_free(waits);
        (void)random_job_free(untouched);
}
END_TEST

/* Kernels that take 20 ms each: a running job ends at its next slice, one that waits at once; a move does not end. */
START_TEST(cancel_and_deadline) {
        struct random_shape many = shape;
        struct random_job *warm, *running, *queued, *late, *moved = planned_job(), *reference = planned_job();
        struct ckv_backend *backend;
        struct ckv_backend_health health;

        many.layers = 24;
        warm = random_job_new(5, &shape);
        running = random_job_new(6, &many);
        queued = random_job_new(6, &many);
        late = random_job_new(6, &many);
        (void)setenv("FAKECUDA_DELAY", "kernel:20000", 1);
        backend = open_backend(100);
        /* how long its layers take is known after this, so the next ones come one by one */
        run(backend, warm->job, CKV_STAGE_PLAN);
        ck_assert_int_eq(warm->job->outcome, CKV_JOB_OK);
        ops->submit(backend, running->job);
        ops->submit(backend, queued->job);
        do
                ops->health(backend, &health);
        while (health.running == 0);
        ck_assert_uint_eq(health.queued, 1);
        ops->cancel(backend, queued->job);
        ck_assert_ptr_eq(reap(backend), queued->job);
        ops->cancel(backend, running->job);
        ck_assert_ptr_eq(reap(backend), running->job);
        ck_assert_int_eq(queued->job->outcome, CKV_JOB_CANCELLED);
        ck_assert_int_eq(running->job->outcome, CKV_JOB_CANCELLED);
        ck_assert_uint_eq(queued->job->started_nsec, 0);
        late->job->deadline_nsec = ckv_now_nsec() + 50 * CKV_NSEC_PER_MSEC;
        run(backend, late->job, CKV_STAGE_PLAN);
        ck_assert_int_eq(late->job->outcome, CKV_JOB_EXPIRED);
        ck_assert_uint_ge(ckv_now_nsec(), late->job->deadline_nsec);
        moved->job->deadline_nsec = 1;
        ops->cancel(backend, moved->job);
        run(backend, moved->job, CKV_STAGE_MOVE);
        ckv_ref_run_move(reference->job);
        ck_assert_int_eq(moved->job->outcome, CKV_JOB_OK);
        ck_assert(same_bytes(moved, reference));
        ops->health(backend, &health);
        ck_assert_uint_eq(health.queued + health.running, 0);
        (void)ops->close(backend);
        (void)random_job_free(warm);
        (void)random_job_free(running);
        (void)random_job_free(queued);
        (void)random_job_free(late);
        (void)random_job_free(moved);
        (void)random_job_free(reference);
}
END_TEST

/* A sequence whose tables and scores are more than the scratch is refused with what it needs, and needs no tries for that. */
START_TEST(scratch_too_small) {
        const struct ckv_policy many = { .selector = CKV_SELECTOR_H2O, .heavy = 100000, .recent_part = 100000 };
        const struct random_shape long_shape = { .groups = 1, .layers = 1, .rows = 1500, .kv_heads = 1, .per_group = 8, .dims = 8,
                                                 .dtype = CKV_DTYPE_F32, .contiguous = true, .asked = &asked };
        struct random_job *random = random_job_new(5, &long_shape);
        struct ckv_backend_options options = { .scratch_bytes = 32 << 20 };
        struct ckv_policy_fault fault;
        struct ckv_backend *backend = NULL;
        char why[256];

        ck_assert_int_eq(try_open(&options, &backend, why), 0);
        ck_assert(ckv_policy_resolve(&many, &random->job->groups[0].policy, &fault));
        random->job->groups[0].q_heads = 1024;
        random->job->queries.rows = 1500;
        random->job->queries.last_row = 0;
        random->job->groups[0].selection.keep_ratio = 0;
        random->job->groups[0].selection.max_tokens = 0;
        run(backend, random->job, CKV_STAGE_PLAN);
        ck_assert_int_eq(random->job->outcome, CKV_JOB_NOT_ON_DEVICE);
        ck_assert_uint_gt(random->job->fail_need, 32 << 20);
        (void)ops->close(backend);
        (void)random_job_free(random);
}
END_TEST

int main(void) {
        Suite *suite = suite_create("cuda_faults");
        TCase *tcase = tcase_create("faults");
        SRunner *runner = srunner_create(suite);
        int failed;

        suite_add_tcase(suite, tcase);
        tcase_set_timeout(tcase, 120);
        tcase_add_loop_test(tcase, open_says_why, 0, OPEN_CASES);
        tcase_add_test(tcase, found_by_uuid_and_described);
        tcase_add_loop_test(tcase, failed_call_is_one_jobs, 0, CALL_CASES);
        tcase_add_loop_test(tcase, lost_in_plan, 0, 2);
        tcase_add_test(tcase, lost_in_move_is_counted);
        tcase_add_loop_test(tcase, refused_once_in_move, 0, MOVE_CASES);
        tcase_add_test(tcase, refused_for_good_in_move);
        tcase_add_test(tcase, cancel_and_deadline);
        tcase_add_test(tcase, scratch_too_small);
        srunner_run_all(runner, CK_NORMAL);
        failed = srunner_ntests_failed(runner);
        srunner_free(runner);
        return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
