/*
 * Each allocation of the CUDA backend fails once, on the stand-in driver: a plan
 * ends with NO_MEMORY and nothing is left behind, opening says -ENOMEM, and a
 * move, which has no way back, tries again.
 */
#include "base/macros.h"
#include "kernels/backend.h"
#include "kernels/reference.h"
#include "tests/support_alloc.h"
#include "tests/support_fake.h"
#include "tests/support_random.h"

#include <check.h>
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>

enum { MOST = 200 };

static const struct ckv_backend_ops *const ops = &ckv_backend_cuda;

static const struct ckv_policy asked[] = {
        { .window = 4, .norm = CKV_NORM_SEEN, .given = CKV_GIVEN_MIN_TOKENS },
        { .window = 4, .layers = CKV_LAYERS_ONE, .fill = CKV_FILL_BEST, .given = CKV_GIVEN_MIN_TOKENS },
        { .scorer = CKV_SCORER_KEYDIFF, .heads = CKV_HEADS_EACH, .reuse = 2, .given = CKV_GIVEN_MIN_TOKENS },
        { .window = 4, .selector = CKV_SELECTOR_CHUNK_EG, .given = CKV_GIVEN_MIN_TOKENS },
        { .profile = CKV_PROFILE_PAPER, .window = 4 },
};

static struct random_job *new_job(int i) {
        const struct random_shape shape = { .groups = 1, .layers = 2, .rows = 150, .kv_heads = 2, .per_group = 1, .dims = 8,
                                            .contiguous = true, .dtype = CKV_DTYPE_F32, .asked = &asked[i], .keep_ratio = 500000 };
        struct random_job *random = random_job_new(31, &shape);

        random->job->groups[0].want_mass = true;
        return random;
}

static struct ckv_backend *open_backend(void) {
        const struct ckv_backend_options options = { .library = support_fake_path() };
        struct ckv_backend *backend = NULL;

        ck_assert_int_eq(ops->open(&options, &backend), 0);
        return backend;
}

/* Return: whether it came back; no check in between, as those allocate too */
static bool run(struct ckv_backend *backend, struct ckv_job *job, enum ckv_stage stage) {
        struct pollfd done = { .fd = ops->wait_fd(backend), .events = POLLIN };

        job->stage = stage;
        ops->submit(backend, job);
        return poll(&done, 1, 60000) == 1 && ops->reap(backend) == job;
}

START_TEST(plan_without_memory) {
        struct ckv_backend *backend = open_backend();
        bool met = true;
        uint64_t n;

        for (n = 1; met && n < MOST; n++) {
                struct random_job *random = new_job(_i);
                bool back;

                alloc_fail(n);
                back = run(backend, random->job, CKV_STAGE_PLAN);
                met = alloc_failed();
                ck_assert(back);
                ck_assert_msg(random->job->outcome == (met ? CKV_JOB_NO_MEMORY : CKV_JOB_OK), "allocation %lu: outcome %d",
                              (unsigned long)n, random->job->outcome);
                (void)random_job_free(random);
        }
        ck_assert_msg(n > 10 && n < MOST, "%lu allocations", (unsigned long)n);
        (void)ops->close(backend);
}
END_TEST

START_TEST(move_without_memory) {
        struct ckv_backend *backend = open_backend();
        struct random_job *reference = new_job(0), *fast = new_job(0);
        bool back, met;

        ck_assert_int_eq(ckv_ref_run_plan(reference->job), 0);
        ck_assert_int_eq(ckv_ref_run_plan(fast->job), 0);
        ckv_ref_run_move(reference->job);
        alloc_fail(1);
        back = run(backend, fast->job, CKV_STAGE_MOVE);
        met = alloc_failed();
        ck_assert(back && met);
        ck_assert_int_eq(fast->job->outcome, CKV_JOB_OK);
        for (uint32_t i = 0; i < fast->memory_count; i++)
                ck_assert_mem_eq(fast->memory[i].bytes, reference->memory[i].bytes, fast->memory[i].size);
        (void)ops->close(backend);
        (void)random_job_free(reference);
        (void)random_job_free(fast);
}
END_TEST

START_TEST(open_without_memory) {
        const struct ckv_backend_options options = { .library = support_fake_path() };
        struct ckv_backend *backend = NULL;
        bool met = true;
        uint64_t n;

        for (n = 1; met && n < MOST; n++) {
                int r;

                alloc_fail(n);
                r = ops->open(&options, &backend);
                met = alloc_failed();
                ck_assert_int_eq(r, met ? -ENOMEM : 0);
        }
        ck_assert_uint_gt(n, 2);
        (void)ops->close(backend);
}
END_TEST

int main(void) {
        Suite *suite = suite_create("cuda_alloc");
        TCase *tcase = tcase_create("alloc");
        SRunner *runner = srunner_create(suite);
        int failed;

        suite_add_tcase(suite, tcase);
        tcase_set_timeout(tcase, 120);
        tcase_add_loop_test(tcase, plan_without_memory, 0, CKV_ARRAY_SIZE(asked));
        tcase_add_test(tcase, move_without_memory);
        tcase_add_test(tcase, open_without_memory);
        srunner_run_all(runner, CK_NORMAL);
        failed = srunner_ntests_failed(runner);
        srunner_free(runner);
        return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
