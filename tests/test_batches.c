/*
 * How a move in place is cut into batches and steps (kernels/steps.h), against
 * support_moves.c, which goes row by row; how many there are; and that counting
 * them takes no time that anybody would notice.
 */
#include "base/clock.h"
#include "base/macros.h"
#include "kernels/cpu_move.h"
#include "kernels/steps.h"
#include "tests/support_moves.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>

/* One kept set, as a test writes it */
static struct ckv_job *job_of(const uint8_t *flags, uint32_t rows) {
        struct ckv_job *job = ckv_job_new(1);

        job->groups[0].kept = calloc(1, sizeof(struct ckv_kept));
        job->groups[0].kept_count = 1;
        ck_assert_int_eq(ckv_kept_from_flags(flags, rows, &job->groups[0].kept[0]), 0);
        return job;
}

static void batches_of_one_set(const struct move_set *set, const struct ckv_kept *kept, uint32_t batch_rows) {
        struct ckv_batch batch = ckv_batch_first(kept, batch_rows);
        uint32_t begin, end, row = ckv_kept_stay(kept);

        for (uint32_t step = 0;; step++) {
                move_batch(set, batch_rows, step, &begin, &end);
                ck_assert_uint_eq(batch.begin, begin);
                ck_assert_uint_eq(batch.end, end);
                if (begin == end)
                        break;
                for (size_t i = batch.run; i < kept->run_count && kept->runs[i].dst < batch.end; i++) {
                        struct ckv_run part = ckv_batch_part(&batch, &kept->runs[i]);

                        ck_assert_uint_gt(part.len, 0);
                        for (uint32_t n = 0; n < part.len; n++, row++) {
                                ck_assert_uint_eq(part.dst + n, row);
                                ck_assert_uint_eq(part.src + n, set->k[row]);
                                ck_assert_uint_ge(part.src + n, batch.end);
                        }
                }
                ck_assert_uint_eq(row, batch.end);
                batch = ckv_batch_next(kept, batch_rows, &batch);
        }
        ck_assert_uint_eq(begin, set->count);
        ck_assert_uint_eq(batch.run, kept->run_count);
        batch = ckv_batch_next(kept, batch_rows, &batch);
        ck_assert_uint_eq(batch.begin, batch.end);
}

START_TEST(batches_follow_the_rule) {
        srand(1);
        for (int round = 0; round < 3000; round++) {
                const struct move_shape shape = { .groups = 1 + move_dice(2), .blocks = 10, .dims = 1 };
                struct move_case *moves = move_case_new(&shape);
                uint32_t batch_rows = move_dice(3) == 0 ? 0 : 1 + move_dice(12), steps = move_case_steps(moves, batch_rows);

                for (uint32_t i = 0; i < moves->job->group_count; i++)
                        for (uint32_t k = 0; k < moves->job->groups[i].kept_count; k++)
                                batches_of_one_set(&moves->sets[i][k], &moves->job->groups[i].kept[k], batch_rows);
                ck_assert_uint_eq(ckv_steps_count(moves->job, batch_rows, UINT32_MAX), steps);
                for (uint32_t limit = 0; limit < steps + 2; limit++)
                        ck_assert_uint_eq(ckv_steps_count(moves->job, batch_rows, limit), CKV_MIN(steps, limit + 1));
                (void)move_case_free(moves);
        }
}
END_TEST

START_TEST(what_does_not_move_in_place_has_no_steps) {
        const uint8_t dropped[6] = { 1, 0, 1, 0, 1, 1 }, stays[6] = { 1, 1, 1, 0, 0, 0 }, none[6] = { 0 };
        struct ckv_job *job = job_of(dropped, 6);

        /* k = 0 2 4 5: [1, 2), [2, 4) */
        ck_assert_uint_eq(ckv_steps_count(job, 0, 512), 2);
        ck_assert_uint_eq(ckv_steps_count(job, 1, 512), 3);
        job->groups[0].budget.kept_all = CKV_KEPT_FITS;
        ck_assert_uint_eq(ckv_steps_count(job, 0, 512), 0);
        job->groups[0].budget.kept_all = CKV_DROPPED;
        job->groups[0].destination.entries = calloc(1, sizeof(uint32_t));
        ck_assert_uint_eq(ckv_steps_count(job, 0, 512), 0);
        (void)ckv_job_free(job);
        job = job_of(stays, 6);
        ck_assert_uint_eq(ckv_steps_count(job, 1, 512), 0);
        (void)ckv_job_free(job);
        job = job_of(none, 6);
        ck_assert_uint_eq(ckv_steps_count(job, 1, 512), 0);
        (void)ckv_job_free(job);
}
END_TEST

/* Ten rows gone in front of all others: each step moves ten rows. */
START_TEST(a_short_gap_makes_too_many_steps) {
        enum { ROWS = 131072, CHUNK = 10 };
        uint8_t *flags = malloc(ROWS);
        struct ckv_job *job;

        ck_assert_ptr_nonnull(flags);
        memset(flags, 1, ROWS);
        memset(flags, 0, CHUNK);
        job = job_of(flags, ROWS);
        ck_assert_uint_eq(ckv_steps_count(job, 0, UINT32_MAX), (ROWS - CHUNK + CHUNK - 1) / CHUNK);
        ck_assert_uint_eq(ckv_steps_count(job, 0, 512), 513);
        (void)ckv_job_free(job);
        /* every tenth chunk kept: few */
        for (uint32_t j = 0; j < ROWS; j++)
                flags[j] = j / CHUNK % 10 == 9;
        job = job_of(flags, ROWS);
        ck_assert_uint_lt(ckv_steps_count(job, 0, 512), 6);
        ck_assert_uint_eq(ckv_steps_count(job, 100, 512), 132);
        (void)ckv_job_free(job);
        free(flags);
}
END_TEST

/* The loop counts steps, and the device begins a move, in a time that half a million runs do not lengthen. */
START_TEST(many_runs_cost_nothing_before_the_move) {
        enum { ROWS = 1 << 20, LAYERS = 64, ROUNDS = 20 };
        uint8_t *flags = malloc(ROWS);
        struct ckv_job *job;
        struct ckv_job_group *group;
        uint64_t before;

        ck_assert_ptr_nonnull(flags);
        for (uint32_t j = 0; j < ROWS; j++)
                flags[j] = j % 2;
        job = job_of(flags, ROWS);
        group = &job->groups[0];
        group->kv_heads = 1;
        group->layers = calloc(LAYERS, sizeof(*group->layers));
        group->layer_count = LAYERS;
        for (uint32_t l = 0; l < LAYERS; l++)
                group->layers[l].k = (struct ckv_plane){ .base = flags, .dtype = CKV_DTYPE_BYTE, .dims = 1 };
        before = ckv_now_nsec();
        for (uint32_t i = 0; i < ROUNDS; i++) {
                ck_assert_uint_eq(ckv_steps_count(job, 0, 512), 20);
                (void)ckv__cpu_move_free(ckv__cpu_move_new(job));
        }
        /* read once per layer, the runs would take some 50 ms a round */
        ck_assert_uint_lt(ckv_now_nsec() - before, 10 * CKV_NSEC_PER_MSEC * ROUNDS);
        ck_assert_uint_eq(group->bytes_moved, 2ull * LAYERS * (ROWS / 2));
        (void)ckv_job_free(job);
        free(flags);
}
END_TEST

int main(void) {
        Suite *suite = suite_create("batches");
        TCase *tcase = tcase_create("batches");
        SRunner *runner = srunner_create(suite);
        int failed;

        suite_add_tcase(suite, tcase);
        tcase_set_timeout(tcase, 60);
        tcase_add_test(tcase, batches_follow_the_rule);
        tcase_add_test(tcase, what_does_not_move_in_place_has_no_steps);
        tcase_add_test(tcase, a_short_gap_makes_too_many_steps);
        tcase_add_test(tcase, many_runs_cost_nothing_before_the_move);
        srunner_run_all(runner, CK_NORMAL);
        failed = srunner_ntests_failed(runner);
        srunner_free(runner);
        return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
