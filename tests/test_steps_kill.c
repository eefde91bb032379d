/*
 * Moves in steps of processes that are killed, at random moments and at named
 * points (a build with POINTS=1), while another process shares the memory and
 * the count.  The survivor finishes the move from the count alone.
 */
#include "base/clock.h"
#include "base/macros.h"
#include "base/points.h"
#include "kernels/cpu_move.h"
#include "kernels/reference.h"
#include "kernels/steps.h"
#include "tests/support_moves.h"

#include <check.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

static _Atomic uint32_t *shared_count(void) {
        void *p = mmap(NULL, sizeof(_Atomic uint32_t), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

        ck_assert_ptr_ne(p, MAP_FAILED);
        return p;
}

/* @threads: 0 for the reference */
static void move_all(struct ckv_job *job, uint32_t threads) {
        struct ckv_cpu_pool *pool = NULL;
        struct ckv_cpu_move *move;

        if (threads == 0) {
                ckv_ref_run_move(job);
                return;
        }
        move = ckv__cpu_move_new(job);
        if (!move || ckv__cpu_pool_new(threads, &pool) < 0)
                abort();
        while (!ckv__cpu_move_step(move, pool, 0))
                ;
        (void)ckv__cpu_move_free(move);
        (void)ckv__cpu_pool_free(pool);
}

/* A child that moves from step 0, to be killed, or to die by @kill_at */
static pid_t start_move(struct ckv_job *job, uint32_t threads, const char *kill_at) {
        pid_t child = fork();

        ck_assert_int_ge(child, 0);
        if (child > 0)
                return child;
#ifdef CKV_POINTS
        if (kill_at) {
                (void)setenv("CHUNKKVD_KILL_AT", kill_at, 1);
                ckv_points_read();
        }
#else
        (void)kill_at;
#endif
        move_all(job, threads);
        _exit(0);
}

/* Return: was it killed, or through before? */
static bool wait_for(pid_t child) {
        int status;

        ck_assert_int_eq(waitpid(child, &status, 0), child);
        ck_assert(WIFSIGNALED(status) ? WTERMSIG(status) == SIGKILL : WEXITSTATUS(status) == 0);
        return WIFSIGNALED(status);
}

static void begin_again(struct move_case *moves, uint32_t batch_rows, uint32_t steps, _Atomic uint32_t *done) {
        move_case_reset(moves, batch_rows, 0);
        *done = 0;
        moves->job->steps = (struct ckv_job_steps){ .batch_rows = batch_rows, .count = steps, .done = done };
}

static void repair(struct move_case *moves, uint32_t threads) {
        struct ckv_job *job = moves->job;

        job->steps.first = *job->steps.done;
        move_all(job, threads);
        ck_assert_uint_eq(*job->steps.done, job->steps.count);
        ck_assert(move_case_equals(moves));
}

/* Some microseconds after @count steps are done, at most a second from now */
static void wait_for_count(const _Atomic uint32_t *done, uint32_t count, uint32_t usec) {
        uint64_t end = ckv_now_nsec() + CKV_NSEC_PER_SEC;

        while (*done < count && ckv_now_nsec() < end)
                ;
        end = ckv_now_nsec() + usec * CKV_NSEC_PER_USEC;
        while (ckv_now_nsec() < end)
                ;
}

/* ThreadSanitizer looks for something else, and takes ten times as long */
#ifdef __SANITIZE_THREAD__
enum { CASES = 1, KILLS = 20 };
#else
enum { CASES = 5, KILLS = 40 };
#endif

START_TEST(killed_at_random_moments) {
        _Atomic uint32_t *done = shared_count();
        uint32_t killed = 0, midway = 0;

        srand(11);
        for (uint32_t i = 0; i < CASES; i++) {
                struct move_case *moves = move_case_new(
                        &(struct move_shape){ .blocks = 50, .tokens = 20, .dims = 400, .large = true, .shared = true });
                uint32_t batch_rows = i % 3 ? 8 : 0, steps = ckv_steps_count(moves->job, batch_rows, UINT32_MAX);

                if (steps == 0) {
                        (void)move_case_free(moves);
                        continue;
                }
                begin_again(moves, batch_rows, steps, done);
                ck_assert(!wait_for(start_move(moves->job, 2, NULL)));
                ck_assert(move_case_equals(moves));
                for (uint32_t n = 0; n < KILLS; n++) {
                        pid_t child;

                        begin_again(moves, batch_rows, steps, done);
                        child = start_move(moves->job, n % 3, NULL);
                        wait_for_count(done, move_dice(steps), move_dice(200));
                        (void)kill(child, SIGKILL);
                        killed += wait_for(child);
                        midway += *done > 0 && *done < steps;
                        repair(moves, (n + 1) % 3);
                }
                (void)move_case_free(moves);
        }
        printf("%u killed, %u of them between the first step and the last\n", killed, midway);
        ck_assert_uint_gt(midway, 0);
}
END_TEST

#ifdef CKV_POINTS
START_TEST(killed_at_named_points) {
        static const char *const points[] = { "move_begin", "step_stretch", "step_column", "step_turn", "step_written",
                                              "step_counted", "move_end" };
        _Atomic uint32_t *done = shared_count();
        uint32_t killed[CKV_ARRAY_SIZE(points)] = { 0 };

        srand(12);
        for (uint32_t i = 0; i < 40; i++) {
                struct move_case *moves = move_case_new(&(struct move_shape){ .blocks = 20, .tokens = 10, .shared = true });
                uint32_t batch_rows = i % 2 ? 1 + move_dice(16) : 0, steps = ckv_steps_count(moves->job, batch_rows, UINT32_MAX);

                for (uint32_t p = 0; p < CKV_ARRAY_SIZE(points) && steps > 0; p++)
                        for (uint32_t n = 1; n < 40; n += n) {
                                char at[64];

                                (void)snprintf(at, sizeof(at), "%s:%u", points[p], n + move_dice(n));
                                begin_again(moves, batch_rows, steps, done);
                                killed[p] += wait_for(start_move(moves->job, move_dice(3), at));
                                repair(moves, move_dice(3));
                        }
                (void)move_case_free(moves);
        }
        for (uint32_t p = 0; p < CKV_ARRAY_SIZE(points); p++)
                ck_assert_msg(killed[p] > 0, "nobody died at %s", points[p]);
}
END_TEST

/* A child that passes score_slice twice under an order. Return: its status. */
static int pass_under(const char *variable, const char *value, uint64_t *ret_nsec) {
        uint64_t before = ckv_now_nsec();
        pid_t child = fork();
        int status;

        ck_assert_int_ge(child, 0);
        if (child == 0) {
                (void)setenv(variable, value, 1);
                ckv_points_read();
                CKV_POINT(score_slice);
                CKV_POINT(score_slice);
                _exit(0);
        }
        ck_assert_int_eq(waitpid(child, &status, 0), child);
        *ret_nsec = ckv_now_nsec() - before;
        return status;
}

START_TEST(orders_are_obeyed_or_refused) {
        static const char *const bad[] = { "score_slices:1", "score_slic:1", ":1", "", "score_slice", "score_slice:0",
                                           "score_slice:1x", "score_slice:1:5" };
        uint64_t nsec;

        ck_assert_int_eq(pass_under("CHUNKKVD_KILL_AT", "score_slice:2", &nsec), SIGKILL);
        ck_assert_int_eq(pass_under("CHUNKKVD_KILL_AT", "score_slice:3", &nsec), 0);
        ck_assert_int_eq(pass_under("CHUNKKVD_KILL_AT", "select_set:1", &nsec), 0);
        ck_assert_int_eq(pass_under("CHUNKKVD_STALL_AT", "score_slice:2:60", &nsec), 0);
        ck_assert_uint_ge(nsec, 60 * CKV_NSEC_PER_MSEC);
        for (uint32_t i = 0; i < CKV_ARRAY_SIZE(bad); i++) {
                int status = pass_under("CHUNKKVD_KILL_AT", bad[i], &nsec);

                ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) == 2, "%s: status %d", bad[i], status);
        }
}
END_TEST
#endif

int main(void) {
        Suite *suite = suite_create("steps_kill");
        TCase *tcase = tcase_create("steps_kill");
        SRunner *runner = srunner_create(suite);
        int failed;

        suite_add_tcase(suite, tcase);
        tcase_set_timeout(tcase, 120);
        tcase_add_test(tcase, killed_at_random_moments);
#ifdef CKV_POINTS
        tcase_add_test(tcase, killed_at_named_points);
        tcase_add_test(tcase, orders_are_obeyed_or_refused);
#endif
        srunner_run_all(runner, CK_NORMAL);
        failed = srunner_ntests_failed(runner);
        srunner_free(runner);
        return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
