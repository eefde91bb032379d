/*
 * The n-th allocation fails, for every n: plans of every scorer and selector,
 * by the reference and on the CPU backend, the backend's own start, requests
 * and answers in the gate.  Each says that there was no memory, leaves nothing
 * behind (a build with ASan looks), and does the same as ever afterwards.
 */
#include "base/clock.h"
#include "base/macros.h"
#include "daemon/gate/encode.h"
#include "kernels/backend.h"
#include "kernels/reference.h"
#include "tests/support_alloc.h"
#include "tests/support_random.h"
#include "tests/support_requests.h"

#include <check.h>
#include <errno.h>
#include <poll.h>
#include <string.h>

enum { MOST = 2000 };

static const struct ckv_policy asked[] = {
        { .scorer = CKV_SCORER_WINDOW },
        { .scorer = CKV_SCORER_WINDOW, .window = 8, .pool = CKV_POOL_MAX },
        { .scorer = CKV_SCORER_WINDOW, .window = 8, .heads = CKV_HEADS_EACH },
        { .scorer = CKV_SCORER_RAW_QK, .window = 8 },
        { .scorer = CKV_SCORER_DROP, .window = 4 },
        { .scorer = CKV_SCORER_KNORM },
        { .scorer = CKV_SCORER_KEYDIFF },
        { .scorer = CKV_SCORER_LAGKV },
        { .scorer = CKV_SCORER_VK_RATIO },
        { .selector = CKV_SELECTOR_TOKEN, .window = 8 },
        { .selector = CKV_SELECTOR_STREAMING },
        { .selector = CKV_SELECTOR_CHUNK_EG, .window = 8 },
        { .selector = CKV_SELECTOR_PAGE, .window = 8, .page = 16 },
        { .profile = CKV_PROFILE_PAPER, .window = 8 },
        { .profile = CKV_PROFILE_KVPRESS },
        { .profile = CKV_PROFILE_RETRIEVAL },
        { .profile = CKV_PROFILE_VOTE },
};

/* The other bits of a policy that say that a field was asked for are set by whoever resolves it: nothing here is 0. */
static struct random_job *new_job(int i) {
        const struct random_shape shape = { .groups = 1, .layers = 2, .rows = 120, .kv_heads = 2, .dims = 8, .contiguous = true,
                                            .dtype = CKV_DTYPE_F32, .asked = &asked[i], .keep_ratio = 400000 };

        return random_job_new(31, &shape);
}

static void same_rows(const struct ckv_job *a, const struct ckv_job *b) {
        ck_assert_int_eq(a->outcome, CKV_JOB_OK);
        ck_assert_int_eq(b->outcome, CKV_JOB_OK);
        ck_assert_uint_eq(a->groups[0].kept_count, b->groups[0].kept_count);
        for (uint32_t k = 0; k < a->groups[0].kept_count; k++) {
                ck_assert_uint_eq(a->groups[0].kept[k].run_count, b->groups[0].kept[k].run_count);
                ck_assert_mem_eq(a->groups[0].kept[k].runs, b->groups[0].kept[k].runs,
                                 a->groups[0].kept[k].run_count * sizeof(*a->groups[0].kept[k].runs));
        }
}

START_TEST(plan_by_the_reference) {
        struct random_job *whole = new_job(_i);
        bool met = true;
        uint64_t n;

        ck_assert_int_eq(ckv_ref_run_plan(whole->job), 0);
        for (n = 1; met && n < MOST; n++) {
                struct random_job *random = new_job(_i);
                int r;

                alloc_fail(n);
                r = ckv_ref_run_plan(random->job);
                met = alloc_failed();
                ck_assert_int_eq(r, met ? -ENOMEM : 0);
                if (met)
                        ck_assert_int_eq(random->job->outcome, CKV_JOB_NO_MEMORY);
                else
                        same_rows(random->job, whole->job);
                (void)random_job_free(random);
        }
        ck_assert_msg(n > 3 && n < MOST, "%lu allocations", (unsigned long)n);
        (void)random_job_free(whole);
}
END_TEST

/* run_plan() - Return: whether it came back; no check in between, as those allocate too */
static bool run_plan(struct ckv_backend *backend, struct ckv_job *job) {
        struct pollfd done = { .fd = ckv_backend_cpu.wait_fd(backend), .events = POLLIN };

        job->stage = CKV_STAGE_PLAN;
        ckv_backend_cpu.submit(backend, job);
        return poll(&done, 1, 60000) == 1 && ckv_backend_cpu.reap(backend) == job;
}

static struct ckv_backend *open_backend(void) {
        const struct ckv_backend_options options = { .threads = 2, .slice_usec = 2000 };
        struct ckv_backend *backend = NULL;

        ck_assert_int_eq(ckv_backend_cpu.open(&options, &backend), 0);
        return backend;
}

/* A plan that ran out of memory may be asked for again with the same job, as far as its outcome goes. */
START_TEST(plan_on_the_cpu) {
        struct ckv_backend *backend = open_backend();
        struct random_job *whole = new_job(_i);
        bool met = true;
        uint64_t n;

        ck_assert(run_plan(backend, whole->job));
        ck_assert_int_eq(whole->job->outcome, CKV_JOB_OK);
        for (n = 1; met && n < MOST; n++) {
                struct random_job *random = new_job(_i);
                bool back;

                alloc_fail(n);
                back = run_plan(backend, random->job);
                met = alloc_failed();
                ck_assert(back);
                if (met)
                        ck_assert_msg(random->job->outcome == CKV_JOB_NO_MEMORY, "allocation %lu: outcome %d", (unsigned long)n,
                                      random->job->outcome);
                else
                        same_rows(random->job, whole->job);
                (void)random_job_free(random);
        }
        ck_assert_msg(n > 3 && n < MOST, "%lu allocations", (unsigned long)n);
        (void)random_job_free(whole);
        (void)ckv_backend_cpu.close(backend);
}
END_TEST

START_TEST(start_of_the_cpu_backend) {
        const struct ckv_backend_options options = { .threads = 3, .slice_usec = 2000 };
        struct ckv_backend *backend;
        bool met = true;
        uint64_t n;

        for (n = 1; met && n < MOST; n++) {
                int r;

                alloc_fail(n);
                r = ckv_backend_cpu.open(&options, &backend);
                met = alloc_failed();
                ck_assert_int_eq(r, met ? -ENOMEM : 0);
                if (r == 0)
                        (void)ckv_backend_cpu.close(backend);
        }
        ck_assert(n > 3 && n < MOST);
}
END_TEST

/* The buffer of requests_decode() is the test's own, and comes first. */
START_TEST(decoder_of_the_gate) {
        static uint8_t message[1 << 20];
        size_t bytes;
        bool met = true;
        uint64_t n;

        requests_reset((Chunkkv__V1__Request__BodyCase)_i);
        ck_assert_int_eq(requests_decode(), 0);
        bytes = chunkkv__v1__request__pack(&request, message);
        for (n = 1; met && n < MOST; n++) {
                int r;

                alloc_fail(n);
                r = ckv_decode_request(&limits, NOW_NS, message, bytes, &decoded, &refusal);
                met = alloc_failed();
                ck_assert_int_eq(r, met ? CKV_DECODE_E_REFUSED : 0);
                if (met)
                        ck_assert_msg(refusal.code == CKV_CODE_NO_MEMORY || refusal.code == CKV_CODE_BAD_MESSAGE, "allocation %lu: code %u",
                                      (unsigned long)n, refusal.code);
        }
        ck_assert(n > 2 && n < MOST);
}
END_TEST

START_TEST(answers_of_the_gate) {
        const uint16_t types[] = { CKV_RECORD_WELCOME, CKV_RECORD_RESULT };
        bool met = true;
        uint64_t n;

        for (n = 1; met && n < MOST; n++) {
                struct ckv_record record = { .head = { .type = types[_i], .request_id = 7 } };
                void *reply = NULL;
                size_t bytes;
                int r;

                alloc_fail(n);
                r = ckv_encode_answer(&record, NULL, 524288, &reply, &bytes);
                met = alloc_failed();
                ck_assert_int_eq(r, met ? -ENOMEM : 0);
                if (r == 0)
                        free(reply);
        }
        ck_assert(n > 2 && n < MOST);
}
END_TEST

int main(void) {
        Suite *suite = suite_create("alloc_parts");
        TCase *tcase = tcase_create("alloc_parts");
        SRunner *runner = srunner_create(suite);
        int failed;

        tcase_set_timeout(tcase, 120);
        tcase_add_loop_test(tcase, plan_by_the_reference, 0, (int)CKV_ARRAY_SIZE(asked));
        tcase_add_loop_test(tcase, plan_on_the_cpu, 0, (int)CKV_ARRAY_SIZE(asked));
        tcase_add_test(tcase, start_of_the_cpu_backend);
        tcase_add_loop_test(tcase, decoder_of_the_gate, CHUNKKV__V1__REQUEST__BODY_HELLO, CHUNKKV__V1__REQUEST__BODY_REPAIR + 1);
        tcase_add_loop_test(tcase, answers_of_the_gate, 0, 2);
        suite_add_tcase(suite, tcase);
        srunner_run_all(runner, CK_NORMAL);
        failed = srunner_ntests_failed(runner);
        srunner_free(runner);
        return failed != 0;
}
