/*
 * Scratch of scoring: pieces that are kept and taken again, freed when nobody
 * wants them; and how much of it a job takes under limits from far too small to
 * ample, with the scores the same within what schemes may differ (R31), and the
 * same bits where the scheme is.
 */
#include "base/clock.h"
#include "base/macros.h"
#include "kernels/backend.h"
#include "kernels/cpu_score.h"
#include "kernels/cpu_scratch.h"
#include "kernels/reference.h"
#include "tests/support_paths.h"
#include "tests/support_random.h"

#include <check.h>
#include <math.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MIB = 1 << 20 };

#define LATER (ckv_now_nsec() + 6 * CKV_NSEC_PER_SEC)

static struct ckv_cpu_scratch *scratch;

static void setup(void) {
        scratch = ckv__cpu_scratch_new(8 * MIB);
        ck_assert_ptr_nonnull(scratch);
}

static void teardown(void) {
        scratch = ckv__cpu_scratch_free(scratch);
}

static void *take(size_t bytes) {
        uint8_t *at = ckv__cpu_scratch_take(scratch, bytes);

        ck_assert_ptr_nonnull(at);
        ck_assert_uint_eq((uintptr_t)at % 64, 0);
        memset(at, 0x5a, bytes);
        return at;
}

/* What a build without sanitizers keeps */
static uint64_t kept(uint64_t bytes) {
        return CKV_SANITIZED ? 0 : bytes;
}

START_TEST(pieces_are_taken_again) {
        void *one = take(MIB), *two = take(2 * MIB), *again;

        ck_assert_uint_eq(ckv__cpu_scratch_kept(scratch), 0);
        ck_assert_uint_eq(ckv__cpu_scratch_most(scratch), 3 * MIB);
        ckv__cpu_scratch_give(scratch, one);
        ckv__cpu_scratch_give(scratch, two);
        ck_assert_uint_eq(ckv__cpu_scratch_kept(scratch), kept(3 * MIB));
        /* the smallest that will do; not one of which more than half would lie idle */
        again = take(MIB - 64);
        ck_assert(CKV_SANITIZED || again == one);
        ck_assert_uint_eq(ckv__cpu_scratch_kept(scratch), kept(2 * MIB));
        one = take(MIB / 2);
        ck_assert_uint_eq(ckv__cpu_scratch_kept(scratch), kept(2 * MIB));
        ckv__cpu_scratch_give(scratch, again);
        ckv__cpu_scratch_give(scratch, one);
        ckv__cpu_scratch_give(scratch, NULL);
        ck_assert_uint_eq(ckv__cpu_scratch_kept(scratch), kept(3 * MIB + MIB / 2));
        ck_assert_uint_eq(ckv__cpu_scratch_most(scratch), 3 * MIB);
}
END_TEST

START_TEST(small_and_large_ones_are_not_kept) {
        void *small = take(60 << 10), *large = take(8 * MIB + 1), *none = take(0);

        ckv__cpu_scratch_give(scratch, small);
        ckv__cpu_scratch_give(scratch, large);
        ckv__cpu_scratch_give(scratch, none);
        ck_assert_uint_eq(ckv__cpu_scratch_kept(scratch), 0);
        ck_assert_ptr_null(ckv__cpu_scratch_take(scratch, SIZE_MAX));
        ck_assert_ptr_null(ckv__cpu_scratch_take(scratch, SIZE_MAX - 64));
}
END_TEST

/* Never more than the limit, and never more than 32 pieces: the oldest make way. */
START_TEST(kept_within_the_limit) {
        void *pieces[40];

        for (uint32_t i = 0; i < CKV_ARRAY_SIZE(pieces); i++)
                pieces[i] = take((64 << 10) * (1 + i % 3));
        for (uint32_t i = 0; i < CKV_ARRAY_SIZE(pieces); i++) {
                ckv__cpu_scratch_give(scratch, pieces[i]);
                ck_assert_uint_le(ckv__cpu_scratch_kept(scratch), 8 * MIB);
        }
        for (uint32_t i = 0; i < 3; i++)
                pieces[i] = take((3 + i) * MIB);
        for (uint32_t i = 0; i < 3; i++) {
                ckv__cpu_scratch_give(scratch, pieces[i]);
                ck_assert_uint_le(ckv__cpu_scratch_kept(scratch), 8 * MIB);
                ck_assert_uint_ge(ckv__cpu_scratch_kept(scratch), kept((3 + i) * MIB));
        }
}
END_TEST

/* What is kept and will not do is dropped as soon as both would be more than the limit, the oldest first. */
START_TEST(kept_ones_make_room) {
        void *pieces[3] = { take(3 * MIB), take(2 * MIB), take(MIB) };

        for (uint32_t i = 0; i < 3; i++)
                ckv__cpu_scratch_give(scratch, pieces[i]);
        ck_assert_uint_eq(ckv__cpu_scratch_kept(scratch), kept(6 * MIB));
        pieces[0] = take(MIB / 4);
        ck_assert_uint_eq(ckv__cpu_scratch_kept(scratch), kept(6 * MIB));
        pieces[1] = take(5 * MIB - MIB / 4);
        ck_assert_uint_eq(ckv__cpu_scratch_kept(scratch), kept(3 * MIB));
        pieces[2] = take(4 * MIB);              /* more than the limit already: nothing helps, nothing stays */
        ck_assert_uint_eq(ckv__cpu_scratch_kept(scratch), 0);
        for (uint32_t i = 0; i < 3; i++)
                ckv__cpu_scratch_give(scratch, pieces[i]);
}
END_TEST

static uint64_t resident_bytes(void) {
        FILE *statm = fopen("/proc/self/statm", "re");
        unsigned long pages = 0;

        ck_assert_ptr_nonnull(statm);
        ck_assert_int_eq(fscanf(statm, "%*s %lu", &pages), 1);
        (void)fclose(statm);
        return pages * (uint64_t)sysconf(_SC_PAGESIZE);
}

/* Dropped pieces go back to the system, whatever lies above them. */
START_TEST(dropped_ones_go_back) {
        void *pieces[6], *above[6], *large;
        uint64_t most;

        for (uint32_t round = 0; round < 3; round++) {          /* the C library learns from what is freed */
                for (uint32_t i = 0; i < CKV_ARRAY_SIZE(pieces); i++) {
                        pieces[i] = take(MIB + i * 64);
                        above[i] = malloc(40000);
                        ck_assert_ptr_nonnull(above[i]);
                }
                most = resident_bytes();
                for (uint32_t i = 0; i < CKV_ARRAY_SIZE(pieces); i++)
                        ckv__cpu_scratch_give(scratch, pieces[i]);
                large = ckv__cpu_scratch_take(scratch, 8 * MIB - MIB / 2);
                ck_assert_ptr_nonnull(large);
                ck_assert_uint_eq(ckv__cpu_scratch_kept(scratch), 0);
                if (!CKV_SANITIZED)
                        ck_assert_uint_le(resident_bytes(), most - 4 * MIB);
                ckv__cpu_scratch_give(scratch, large);
                for (uint32_t i = 0; i < CKV_ARRAY_SIZE(above); i++)
                        free(above[i]);
        }
}
END_TEST

START_TEST(freed_when_nobody_comes) {
        ckv__cpu_scratch_give(scratch, take(MIB));
        ckv__cpu_scratch_age(scratch, ckv_now_nsec());
        ck_assert_uint_eq(ckv__cpu_scratch_kept(scratch), kept(MIB));
        ckv__cpu_scratch_age(scratch, LATER);
        ck_assert_uint_eq(ckv__cpu_scratch_kept(scratch), 0);
        ckv__cpu_scratch_age(scratch, LATER);
}
END_TEST

START_TEST(without_a_scratch) {
        void *at = ckv__cpu_scratch_take(NULL, 3 * MIB);

        ck_assert_ptr_nonnull(at);
        ckv__cpu_scratch_give(NULL, at);
        ck_assert_uint_eq(ckv__cpu_scratch_limit(NULL), CKV_CPU_SCRATCH_BYTES);
        ck_assert_ptr_null(ckv__cpu_scratch_free(NULL));
}
END_TEST

/* ---- scoring with so much */

struct scored {
        float *units;                   /* [N] */
        bool by_unit;                   /* in scheme B */
        uint64_t most;                  /* bytes taken */
};

static struct scored score_with(const struct random_job *random, const struct ckv_units *units, uint64_t bytes) {
        const struct ckv_job_group *group = &random->job->groups[0];
        struct ckv_cpu_scratch *own = ckv__cpu_scratch_new(bytes);
        struct ckv_cpu_choice *choice = paths_choice(paths_widest());
        struct scored scored = { .units = calloc(units->count, sizeof(float)) };
        struct ckv_cpu_score *score;
        struct ckv_cpu_pool *pool;

        ck_assert(own && scored.units);
        ck_assert_int_eq(ckv__cpu_pool_new(2, &pool), 0);
        ck_assert_int_eq(ckv__cpu_score_new_in(random->job, group, own, &score), 0);
        ckv__cpu_score_expect_units(score, units);
        for (uint32_t layer = 0; layer < group->layer_count; layer++) {
                ckv__cpu_score_begin(score, &group->layers[layer]);
                while (!ckv__cpu_score_step(score, pool, choice, UINT64_MAX))
                        ;
                ck_assert(!ckv__cpu_score_no_memory(score));
        }
        scored.by_unit = ckv__cpu_score_units(score) != NULL;
        if (scored.by_unit)
                memcpy(scored.units, ckv__cpu_score_units(score), units->count * sizeof(float));
        else
                ckv_ref_unit_scores(&group->policy, units, group->selection.rows, ckv__cpu_score_rows(score), scored.units);
        scored.most = ckv__cpu_scratch_most(own);
        (void)ckv__cpu_score_free(score);
        (void)ckv__cpu_scratch_free(own);
        (void)ckv__cpu_pool_free(pool);
        (void)ckv__cpu_choice_free(choice);
        return scored;
}

/* Within the limit, or as much as one KV head takes; from small to large first by rows, then by unit. */
START_TEST(as_much_as_is_allowed) {
        struct ckv_policy asked = { .window = 16, .chunk = 10, .pool = _i == 0 ? CKV_POOL_NONE : CKV_POOL_AVG, .pool_size = 5,
                                    .norm = _i == 2 ? CKV_NORM_SEEN : CKV_NORM_SUM };
        struct random_shape shape = { .groups = 1, .layers = 2, .rows = 16000, .kv_heads = 4, .per_group = 4, .dims = 64,
                                      .dtype = CKV_DTYPE_BF16, .contiguous = true, .asked = &asked, .keep_ratio = 300000 };
        struct random_job *random = random_job_new(41, &shape);
        const struct ckv_job_group *group = &random->job->groups[0];
        /* rows and what belongs to them, the weights of one head, its queries and sums of segments */
        const uint64_t head = (uint64_t)shape.rows * (8 + 5 + 4) + (uint64_t)shape.rows * 4 * 4 + MIB;
        uint8_t *flags = calloc(shape.rows + 1U, 1);
        struct scored ample, first_by_row = { 0 };
        struct ckv_budget budget;
        struct ckv_units units;
        uint32_t by_row = 0, count = 0;

        ck_assert_ptr_nonnull(flags);
        ck_assert_int_eq(ckv_select_budget(&group->selection, flags, &budget), 0);
        ck_assert_int_eq(ckv_units_init(&units, &group->selection, flags), 0);
        ample = score_with(random, &units, 0);
        ck_assert(ample.by_unit == (paths_widest()->window != NULL));
        for (uint64_t limit = 64 << 10; limit < 10 * MIB; limit = limit < MIB / 2 ? MIB / 2 : limit + limit / 5, count++) {
                struct scored now = score_with(random, &units, limit);

                printf("%lu KiB: %s, %lu KiB\n", (unsigned long)(limit >> 10), now.by_unit ? "by unit" : "by row",
                       (unsigned long)(now.most >> 10));
                ck_assert_uint_le(now.most, CKV_MAX(limit, head));
                by_row += !now.by_unit;
                for (uint32_t u = 0; u < units.count; u++)
                        ck_assert(fabsf(now.units[u] - ample.units[u]) <= 1e-4F * fabsf(ample.units[u]));
                if (now.by_unit == ample.by_unit)
                        ck_assert_mem_eq(now.units, ample.units, units.count * sizeof(float));
                if (!now.by_unit && first_by_row.units)
                        ck_assert_mem_eq(now.units, first_by_row.units, units.count * sizeof(float));
                if (now.by_unit || first_by_row.units)
                        free(now.units);
                else
                        first_by_row = now;
        }
        /* both ways were taken, where there are two */
        if (ample.by_unit)
                ck_assert(by_row > 0 && by_row < count);
        free(first_by_row.units);
        free(ample.units);
        free(flags);
        ckv_units_deinit(&units);
        (void)random_job_free(random);
}
END_TEST

/* Jobs of the device one after the other, in another scratch each time: the same rows, and nothing left at the end */
START_TEST(device_with_little) {
        static const uint64_t limits[] = { 0, MIB, 64 << 10 };
        struct ckv_policy asked = { .window = 16, .chunk = 10 };
        struct random_shape shape = { .groups = 2, .layers = 2, .rows = 6000, .kv_heads = 2, .per_group = 2, .dims = 64,
                                      .dtype = CKV_DTYPE_F32, .no_ties = true, .asked = &asked, .keep_ratio = 300000 };
        struct random_job *first = NULL;

        for (uint32_t i = 0; i < CKV_ARRAY_SIZE(limits); i++) {
                struct ckv_backend_options options = { .threads = 2, .path = paths_widest()->name, .scratch_bytes = limits[i] };
                struct random_job *random = random_job_new(17, &shape);
                struct ckv_backend *backend = NULL;
                struct pollfd done;

                ck_assert_int_eq(ckv_backend_cpu.open(&options, &backend), 0);
                done = (struct pollfd){ .fd = ckv_backend_cpu.wait_fd(backend), .events = POLLIN };
                random->job->stage = CKV_STAGE_PLAN;
                ckv_backend_cpu.submit(backend, random->job);
                ck_assert_int_eq(poll(&done, 1, 60000), 1);
                ck_assert_ptr_eq(ckv_backend_cpu.reap(backend), random->job);
                ck_assert_int_eq(random->job->outcome, CKV_JOB_OK);
                (void)ckv_backend_cpu.close(backend);
                for (uint32_t g = 0; first && g < 2; g++) {
                        const struct ckv_kept *a = first->job->groups[g].kept, *b = random->job->groups[g].kept;

                        ck_assert_uint_eq(a->run_count, b->run_count);
                        ck_assert_mem_eq(a->runs, b->runs, a->run_count * sizeof(*a->runs));
                }
                if (first)
                        (void)random_job_free(random);
                else
                        first = random;
        }
        (void)random_job_free(first);
}
END_TEST

int main(void) {
        Suite *suite = suite_create("cpu_scratch");
        TCase *pieces = tcase_create("pieces"), *jobs = tcase_create("jobs");
        SRunner *runner = srunner_create(suite);
        int failed;

        suite_add_tcase(suite, pieces);
        suite_add_tcase(suite, jobs);
        tcase_add_checked_fixture(pieces, setup, teardown);
        tcase_add_test(pieces, pieces_are_taken_again);
        tcase_add_test(pieces, small_and_large_ones_are_not_kept);
        tcase_add_test(pieces, kept_within_the_limit);
        tcase_add_test(pieces, kept_ones_make_room);
        tcase_add_test(pieces, dropped_ones_go_back);
        tcase_add_test(pieces, freed_when_nobody_comes);
        tcase_add_test(pieces, without_a_scratch);
        tcase_set_timeout(jobs, 300);
        tcase_add_loop_test(jobs, as_much_as_is_allowed, 0, 3);
        tcase_add_test(jobs, device_with_little);
        srunner_run_all(runner, CK_ENV);
        failed = srunner_ntests_failed(runner);
        srunner_free(runner);
        return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
