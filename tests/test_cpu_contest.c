/*
 * Turns of paths at trials: kernels that take as much CPU time as a test says,
 * and more when it says that they are disturbed.
 */
#include "base/clock.h"
#include "base/macros.h"
#include "kernels/cpu_choice.h"
#include "kernels/cpu_contest.h"

#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { QUERIES = 16, CONTESTS = 2, USEC = 60, ROUNDS_LEAST = 4 };

static bool takes(enum ckv_dtype keys, enum ckv_dtype queries, uint32_t dims) {
        return keys == CKV_DTYPE_BF16 && queries == CKV_DTYPE_BF16 && dims > 0;
}

static size_t pack_bytes(uint32_t query_count, uint32_t dims) {
        return ((size_t)query_count * dims * sizeof(float) + 63) / 64 * 64;
}

static void pack(const float *values, uint32_t query_count, uint32_t dims, void *ret_pack) {
        memcpy(ret_pack, values, (size_t)query_count * dims * sizeof(float));
}

static void rows_none(const struct ckv_cpu_window_segment *segment, const float *inverse, float *ret_a, size_t stride, float *ret_above,
                      float *ret_total) {
        (void)segment;
        (void)inverse;
        (void)ret_a;
        (void)stride;
        (void)ret_above;
        (void)ret_total;
}

/* What a kernel does in its n-th call: CPU time, and the total that it finds */
struct act { uint32_t calls; uint32_t (*usec)(uint32_t call); float total; };

static struct act acts[3];

static void play(struct act *act, const struct ckv_cpu_window_segment *segment, float *ret_total) {
        uint64_t end = ckv__cpu_trial_clock() + act->usec(act->calls++) * CKV_NSEC_PER_USEC;

        for (uint32_t n = 0; n < segment->query_count; n++)
                ret_total[n] = act->total;
        while (ckv__cpu_trial_clock() < end)
                ;
}

#define UNITS(n) \
        static void units_##n(const struct ckv_cpu_window_segment *segment, const struct ckv_cpu_window_map *map, float *ret_columns, \
                              float *ret_total) { \
                (void)map; \
                (void)ret_columns; \
                play(&acts[n], segment, ret_total); \
        } \
        static const struct ckv_cpu_window_kernel kernel_##n = { \
                .name = "kernel", .takes = takes, .pack_bytes = pack_bytes, .pack = pack, .units = units_##n, .rows = rows_none, \
        }

UNITS(0);
UNITS(1);
UNITS(2);

static const struct ckv_cpu_window_kernel *const kernels[] = { NULL, &kernel_0, &kernel_1, &kernel_2 };

/* ---- courses of times */

static uint32_t even(uint32_t call) {
        (void)call;
        return USEC;
}

static uint32_t slower(uint32_t call) {
        (void)call;
        return 2 * USEC;
}

/* Fast, but a neighbour was there in three of four rounds, the first three among them */
static uint32_t mostly_disturbed(uint32_t call) {
        return call / CONTESTS % 4 == 3 ? USEC : 4 * USEC;
}

static uint32_t slightly_slower(uint32_t call) {
        (void)call;
        return USEC + USEC / 20;
}

static uint32_t never_the_same(uint32_t call) {
        return 5000 / (call / CONTESTS + 1);
}

static uint32_t very_long(uint32_t call) {
        (void)call;
        return CKV_CPU_ROUNDS_USEC / ROUNDS_LEAST;
}

static struct ckv_cpu_contest contests[CONTESTS];

static void run(uint32_t (*of_0)(uint32_t), uint32_t (*of_1)(uint32_t), uint32_t (*of_2)(uint32_t), bool wrong[4]) {
        const struct ckv_cpu_trial_shape shape = {
                .keys = CKV_DTYPE_BF16, .exact_queries = true, .dims = 64, .rows = 64, .query_count = QUERIES, .window = QUERIES / 4,
        };

        memset(contests, 0, sizeof(contests));
        acts[0] = (struct act){ .usec = of_0, .total = 1 };
        acts[1] = (struct act){ .usec = of_1, .total = 1 };
        acts[2] = (struct act){ .usec = of_2, .total = acts[2].total };
        for (size_t n = 0; n < CONTESTS; n++) {
                contests[n].trial = ckv__cpu_trial_new(&shape);
                ck_assert_ptr_nonnull(contests[n].trial);
        }
        ck_assert_int_eq(ckv__cpu_contests_run(contests, CONTESTS, kernels, CKV_ARRAY_SIZE(kernels), wrong), 0);
        for (size_t n = 0; n < CONTESTS; n++)
                contests[n].trial = ckv__cpu_trial_free(contests[n].trial);
}

static uint64_t best_usec(size_t contest, size_t entrant) {
        return ckv__cpu_contest_best(&contests[contest], entrant) / CKV_NSEC_PER_USEC;
}

START_TEST(quiet_is_short) {
        bool wrong[4] = { false };

        acts[2].total = 1;
        run(even, slower, slower, wrong);
        for (size_t n = 0; n < CONTESTS; n++) {
                ck_assert(ckv__cpu_contest_best(&contests[n], 0) == UINT64_MAX);
                ck_assert_uint_ge(best_usec(n, 1), USEC);
                ck_assert_uint_lt(best_usec(n, 1), best_usec(n, 2));
                ck_assert_uint_ge(contests[n].rounds[1], ROUNDS_LEAST);
        }
        ck_assert(!wrong[1] && !wrong[2] && !wrong[3]);
}
END_TEST

/* Three times that were alike, all of them disturbed, decide nothing: the fast one is seen to be fast. */
START_TEST(disturbed_three_times) {
        bool wrong[4] = { false };

        acts[2].total = 1;
        run(slower, mostly_disturbed, slower, wrong);
        for (size_t n = 0; n < CONTESTS; n++)
                ck_assert_uint_lt(best_usec(n, 2), best_usec(n, 1));
        /* and one short time is not believed */
        ck_assert_uint_gt(contests[0].rounds[2], 4);
        ck_assert_uint_le(acts[1].calls, CONTESTS * CKV_CPU_ROUNDS_MOST);
}
END_TEST

START_TEST(close_is_longer) {
        bool wrong[4] = { false };

        acts[2].total = 1;
        run(even, slightly_slower, slower, wrong);
        ck_assert_uint_ge(contests[0].rounds[1], 9);
        ck_assert_uint_ge(contests[1].rounds[2], 9);
        ck_assert_uint_le(acts[0].calls, CONTESTS * CKV_CPU_ROUNDS_MOST);
}
END_TEST

START_TEST(ends) {
        bool wrong[4] = { false };

        acts[2].total = 1;
        /* by the number of rounds, or by the time */
        run(never_the_same, even, slower, wrong);
        ck_assert_uint_le(acts[0].calls, CONTESTS * CKV_CPU_ROUNDS_MOST);
        run(even, very_long, slower, wrong);
        ck_assert_uint_eq(acts[1].calls, CONTESTS * ROUNDS_LEAST);
        ck_assert_uint_lt(best_usec(0, 1), best_usec(0, 2));
}
END_TEST

/* Two that differ are both looked at, and neither of these computes what it should. */
START_TEST(different_totals) {
        bool wrong[4] = { false };

        acts[2].total = 2;
        run(even, even, slower, wrong);
        ck_assert(wrong[1] && wrong[3]);
        memset(wrong, 0, sizeof(wrong));
        acts[2].total = NAN;
        run(slower, slower, even, wrong);
        ck_assert(wrong[3]);
        memset(wrong, 0, sizeof(wrong));
        wrong[3] = true;
        run(even, even, even, wrong);
        ck_assert_uint_eq(acts[2].calls, 0);
        ck_assert(!wrong[1] && !wrong[2]);
}
END_TEST

/* ---- ties, in the choice itself */

static bool yes(void) {
        return true;
}

/* A kernel of this machine under two names: whichever was a little faster, the later one has the place */
START_TEST(tie_is_for_the_later) {
        size_t count;
        const struct ckv_cpu_path *all = ckv__cpu_paths(&count), *one = &all[1];
        struct ckv_cpu_path paths[3];

        if (count < 2 || !one->usable())
                return;
        paths[0] = all[0];
        paths[1] = (struct ckv_cpu_path){ "first", one->kernel, one->window, yes };
        paths[2] = (struct ckv_cpu_path){ "second", one->kernel, one->window, yes };
        for (int i = 0; i < 5; i++) {
                struct ckv_cpu_pick picks[CKV_CPU_PICKS_MOST];
                struct ckv_cpu_choice *choice;
                size_t later = 0, n;

                ck_assert_int_eq(ckv__cpu_choice_of(paths, 3, NULL, &choice), 0);
                n = ckv__cpu_choice_picks(choice, picks);
                for (size_t k = 0; k < n; k++)
                        later += strcmp(picks[k].path, "second") == 0;
                /* not all: their times may be further apart than a tie on a machine that others use */
                ck_assert_uint_gt(later, n / 2);
                (void)ckv__cpu_choice_free(choice);
        }
}
END_TEST

int main(void) {
        Suite *suite = suite_create("cpu_contest");
        TCase *tcase = tcase_create("all");
        SRunner *runner = srunner_create(suite);
        int failed;

        tcase_set_timeout(tcase, 120);
        suite_add_tcase(suite, tcase);
        tcase_add_test(tcase, quiet_is_short);
        tcase_add_test(tcase, disturbed_three_times);
        tcase_add_test(tcase, close_is_longer);
        tcase_add_test(tcase, ends);
        tcase_add_test(tcase, different_totals);
        tcase_add_test(tcase, tie_is_for_the_later);
        srunner_run_all(runner, CK_NORMAL);
        failed = srunner_ntests_failed(runner);
        srunner_free(runner);
        return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
