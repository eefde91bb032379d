/*
 * Moves in steps (kernels/steps.h): the state of the memory whenever the count
 * changes; and that a move which was torn in a step, whatever of the step was
 * written, is finished from the count alone, by the reference and by the CPU's
 * own path.  test_batches.c has the cut into batches.
 *
 * A count that is one step late must lose rows in these tests, or they would
 * show nothing.
 */
#include "base/macros.h"
#include "kernels/cpu_move.h"
#include "kernels/reference.h"
#include "kernels/steps.h"
#include "tests/support_moves.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>

enum mover { REFERENCE, CPU_ALONE, CPU_THREADS, MOVERS };

struct pools {
        struct ckv_cpu_pool *of[MOVERS];
};

static void pools_init(struct pools *pools) {
        *pools = (struct pools){ 0 };
        ck_assert_int_eq(ckv__cpu_pool_new(1, &pools->of[CPU_ALONE]), 0);
        ck_assert_int_eq(ckv__cpu_pool_new(3, &pools->of[CPU_THREADS]), 0);
}

static void pools_deinit(struct pools *pools) {
        for (uint32_t i = 0; i < MOVERS; i++)
                (void)ckv__cpu_pool_free(pools->of[i]);
}

static void run_move(struct ckv_job *job, const struct pools *pools, enum mover mover) {
        struct ckv_cpu_move *move;

        if (mover == REFERENCE) {
                ckv_ref_run_move(job);
                return;
        }
        move = ckv__cpu_move_new(job);
        ck_assert_ptr_nonnull(move);
        while (!ckv__cpu_move_step(move, pools->of[mover], 0))
                ;
        (void)ckv__cpu_move_free(move);
}

/* Part of step @step is written, in any order: some rows whole, some in part, some not at all. */
static void tear(struct move_case *moves, uint32_t batch_rows, uint32_t step) {
        for (uint32_t i = 0; i < moves->plane_count; i++) {
                struct move_plane *p = &moves->planes[i];

                for (uint32_t h = 0; h < p->group->kv_heads; h++) {
                        uint32_t begin, end;

                        move_batch(move_case_set(moves, p, h), batch_rows, step, &begin, &end);
                        for (uint32_t row = begin; row < end; row++) {
                                uint32_t written = move_dice(3), dims = p->plane->dims;

                                for (uint32_t x = 0; x < dims; x++)
                                        if (written == 2 || (written == 1 && move_dice(2)))
                                                move_element(moves, p, p->now, row, h, x);
                        }
                }
        }
}

static void set_steps(struct ckv_job *job, uint32_t batch_rows, uint32_t count, _Atomic uint32_t *done) {
        job->steps = (struct ckv_job_steps){ .batch_rows = batch_rows, .first = *done, .count = count, .done = done };
}

static uint32_t random_batch_rows(void) {
        return move_dice(3) == 0 ? 0 : 1 + move_dice(6);
}

/* @late: the count says one step less than is done. Return: trials that did not end in the exact cache, of those that could. */
static uint32_t torn_moves(uint32_t trials, bool late) {
        struct pools pools;
        uint32_t lost = 0;

        pools_init(&pools);
        for (uint32_t trial = 0; trial < trials;) {
                struct move_case *moves = move_case_new(&(struct move_shape){ .groups = 1 + move_dice(2), .dims = 6 });
                struct ckv_job *job = moves->job;
                _Atomic uint32_t done;

                /* a layout is dear, a trial is not */
                for (uint32_t i = 0; i < 8 && trial < trials; i++, trial++) {
                        uint32_t batch_rows = random_batch_rows(), steps = ckv_steps_count(job, batch_rows, UINT32_MAX), step;

                        if (steps == 0)
                                break;
                        step = move_dice(steps);
                        move_case_reset(moves, batch_rows, step);
                        tear(moves, batch_rows, step);
                        done = late && step > 0 ? step - 1 : step;
                        set_steps(job, batch_rows, steps, &done);
                        run_move(job, &pools, trial % MOVERS);
                        ck_assert_uint_eq(done, steps);
                        lost += !move_case_equals(moves);
                }
                (void)move_case_free(moves);
        }
        pools_deinit(&pools);
        return lost;
}

START_TEST(a_torn_move_is_finished_from_its_count) {
        srand(2);
        ck_assert_uint_eq(torn_moves(10000, false), 0);
}
END_TEST

START_TEST(a_count_that_is_late_loses_rows) {
        srand(3);
        ck_assert_uint_gt(torn_moves(2000, true), 100);
}
END_TEST

/* Steps before @done are written, of those before @begun any byte may be, and nothing else is. */
static void check_progress(const struct move_case *moves, uint32_t batch_rows, uint32_t done, uint32_t begun) {
        for (uint32_t i = 0; i < moves->plane_count; i++) {
                const struct move_plane *p = &moves->planes[i];
                uint8_t *least = malloc(p->bytes), *most = malloc(p->bytes);
                uint64_t at = 0;

                ck_assert(least && most);
                move_image(moves, p, batch_rows, done, least);
                move_image(moves, p, batch_rows, begun, most);
                while (at < p->bytes && (p->now[at] == least[at] || p->now[at] == most[at]))
                        at++;
                ck_assert_msg(at == p->bytes, "plane %u, byte %lu of %lu, %u steps done", i, (unsigned long)at,
                              (unsigned long)p->bytes, done);
                free(least);
                free(most);
        }
}

/* So many columns that a step takes more than one turn, and the count is looked at in the middle of one. */
START_TEST(the_count_is_exact_after_every_turn) {
        struct pools pools;
        uint32_t within = 0;

        srand(4);
        pools_init(&pools);
        for (int round = 0; round < 60; round++) {
                struct move_case *moves = move_case_new(&(struct move_shape){ .layers = 100, .dims = 2, .blocks = 8, .tokens = 8 });
                struct ckv_job *job = moves->job;
                uint32_t batch_rows = random_batch_rows(), steps = ckv_steps_count(job, batch_rows, UINT32_MAX), before;
                _Atomic uint32_t done = 0;
                struct ckv_cpu_move *move;
                bool through = steps == 0;

                set_steps(job, batch_rows, steps, &done);
                move = ckv__cpu_move_new(job);
                while (!through) {
                        before = done;
                        through = ckv__cpu_move_step(move, pools.of[CPU_ALONE + round % 2], 0);
                        ck_assert_uint_le(done - before, 1);
                        within += done == before;
                        check_progress(moves, batch_rows, done, done + 1);
                }
                ck_assert_uint_eq(done, steps);
                ck_assert(move_case_equals(moves));
                ck_assert_uint_eq(move_case_bytes(moves), moves->bytes_moved);
                (void)ckv__cpu_move_free(move);
                (void)move_case_free(moves);
        }
        ck_assert_uint_gt(within, 100);
        pools_deinit(&pools);
}
END_TEST

/* A job that is told of fewer steps does exactly those; so each step is what the rule says, and no more. */
START_TEST(each_step_moves_its_batches_only) {
        struct pools pools;

        srand(5);
        pools_init(&pools);
        for (uint32_t round = 0; round < 1500; round++) {
                struct move_case *moves = move_case_new(&(struct move_shape){ .groups = 1 + move_dice(2) });
                struct ckv_job *job = moves->job;
                uint32_t batch_rows = random_batch_rows(), steps = ckv_steps_count(job, batch_rows, UINT32_MAX);
                uint32_t first = steps > 0 ? move_dice(steps) : 0, end = steps > 0 ? first + 1 + move_dice(steps - first) : 0;
                _Atomic uint32_t done = first;

                if (steps > 0) {
                        move_case_reset(moves, batch_rows, first);
                        set_steps(job, batch_rows, end, &done);
                        run_move(job, &pools, round % MOVERS);
                        ck_assert_uint_eq(done, end);
                        check_progress(moves, batch_rows, end, end);
                }
                (void)move_case_free(moves);
        }
        pools_deinit(&pools);
}
END_TEST

/* Free and in steps, from the start and from a later step, in place and to a destination: bytes and bytes_moved. */
START_TEST(all_movers_end_in_the_same_bytes) {
        struct pools pools;

        srand(6);
        pools_init(&pools);
        for (uint32_t round = 0; round < 6000; round++) {
                struct move_case *moves = move_case_new(&(struct move_shape){ .groups = 1 + move_dice(2), .copy = round % 5 == 0 });
                struct ckv_job *job = moves->job;
                uint32_t batch_rows = random_batch_rows();
                _Atomic uint32_t done = 0;

                set_steps(job, batch_rows, round % 2 ? ckv_steps_count(job, batch_rows, UINT32_MAX) : 0, &done);
                run_move(job, &pools, round % MOVERS);
                ck_assert(move_case_equals(moves));
                ck_assert_uint_eq(move_case_bytes(moves), moves->bytes_moved);
                ck_assert_uint_eq(done, job->steps.count);
                (void)move_case_free(moves);
        }
        pools_deinit(&pools);
}
END_TEST

/* Turns that are large enough for threads to be woken. */
START_TEST(large_moves_share_their_rows) {
        struct pools pools;

        srand(7);
        pools_init(&pools);
        for (uint32_t round = 0; round < 12; round++) {
                const struct move_shape shape = { .blocks = 50, .tokens = 20, .dims = 200, .large = true };
                struct move_case *moves = move_case_new(&shape);
                struct ckv_job *job = moves->job;
                _Atomic uint32_t done = 0;

                set_steps(job, 0, round % 3 ? ckv_steps_count(job, 0, UINT32_MAX) : 0, &done);
                run_move(job, &pools, CPU_THREADS);
                ck_assert(move_case_equals(moves));
                ck_assert_uint_eq(move_case_bytes(moves), moves->bytes_moved);
                ck_assert_uint_eq(done, job->steps.count);
                (void)move_case_free(moves);
        }
        pools_deinit(&pools);
}
END_TEST

/* A repair counts what it moves itself; one of a move that was through does nothing. */
START_TEST(a_repair_counts_its_own_bytes) {
        const uint8_t flags[10] = { 1, 0, 0, 1, 0, 1, 1, 1, 0, 1 };
        uint8_t bytes[10] = { 0, 1, 2, 3, 4, 5, 6, 7, 8, 9 };
        const uint64_t moved[3] = { 10, 6, 0 };
        struct pools pools;

        pools_init(&pools);
        /* k = 0 3 5 6 7 9: [1, 3), [3, 6) */
        for (enum mover mover = REFERENCE; mover < MOVERS; mover++)
                for (uint32_t first = 0; first <= 2; first++) {
                        struct ckv_job *job = ckv_job_new(1);
                        struct ckv_job_group *group = &job->groups[0];
                        _Atomic uint32_t done = first;

                        group->kept = calloc(1, sizeof(*group->kept));
                        group->kept_count = 1;
                        ck_assert_int_eq(ckv_kept_from_flags(flags, 10, group->kept), 0);
                        group->kv_heads = 1;
                        group->layer_count = 1;
                        group->layers = calloc(1, sizeof(*group->layers));
                        group->table = (struct ckv_row_table){ .entries = calloc(1, sizeof(uint32_t)), .tokens_per_block = 10 };
                        group->layers[0].k = (struct ckv_plane){
                                .base = bytes, .dtype = CKV_DTYPE_BYTE, .dims = 1, .token = { .tile = 1, .outer = 1 },
                                .dim = { .tile = 1, .outer = 1 }
                        };
                        set_steps(job, 0, 2, &done);
                        run_move(job, &pools, mover);
                        ck_assert_uint_eq(group->bytes_moved, moved[first]);
                        ck_assert_uint_eq(done, 2);
                        (void)ckv_job_free(job);
                }
        pools_deinit(&pools);
}
END_TEST

int main(void) {
        Suite *suite = suite_create("steps");
        TCase *tcase = tcase_create("steps");
        SRunner *runner = srunner_create(suite);
        int failed;

        suite_add_tcase(suite, tcase);
        tcase_set_timeout(tcase, 60);
        tcase_add_test(tcase, a_torn_move_is_finished_from_its_count);
        tcase_add_test(tcase, a_count_that_is_late_loses_rows);
        tcase_add_test(tcase, the_count_is_exact_after_every_turn);
        tcase_add_test(tcase, each_step_moves_its_batches_only);
        tcase_add_test(tcase, all_movers_end_in_the_same_bytes);
        tcase_add_test(tcase, large_moves_share_their_rows);
        tcase_add_test(tcase, a_repair_counts_its_own_bytes);
        srunner_run_all(runner, CK_NORMAL);
        failed = srunner_ntests_failed(runner);
        srunner_free(runner);
        return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
