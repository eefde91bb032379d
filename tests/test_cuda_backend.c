/*
 * The CUDA backend on the stand-in driver: random jobs held to the reference,
 * as tests/test_conformance.c does it for the CPU.
 *
 * The kernels are the emulated ones of tests/emu, some thousand times slower
 * than a GPU, so jobs are short; what the device does not compute is passed
 * over, and how much was compared is asserted.  Planes and queries lie in this
 * process's memory, which the stand-in's kernels can read: that they lie in
 * device memory, and whose, is looked at by tests/python/test_cuda_*.py.
 */
#include "base/macros.h"
#include "tests/support_fake.h"
#include "tests/support_random.h"
#include "tests/support_subject.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>

#if CKV_SANITIZED
enum { JOBS = 20 };
#else
enum { JOBS = 60 };
#endif

static struct subject forms[] = {
        { "cuda", &ckv_backend_cuda, { .slice_usec = 2000 } },
        { "cuda, long slices", &ckv_backend_cuda, { .slice_usec = 2000000, .scratch_bytes = 64 << 20 } },
};

static struct ckv_backend *open_form(uint32_t i) {
        forms[i].options.library = support_fake_path();
        return subject_open(&forms[i]);
}

/* Scorer window's votes, contrast and mute; of rows of the window, whose queries alone a random job has */
static void random_votes(struct dice *dice, struct ckv_policy *p) {
        p->window_reduce = dice_roll(dice, 3);
        p->vote_rows = p->window_reduce == CKV_ROWS_MAX ? dice_roll(dice, p->window + 1) : 0;
        p->norm = p->window_reduce == CKV_ROWS_MAX ? CKV_NORM_SUM : p->norm;
        p->given |= CKV_GIVEN_CONTRAST_FIRST | CKV_GIVEN_CONTRAST_END | CKV_GIVEN_MUTE;
        p->contrast_first = dice_roll(dice, p->window);
        p->contrast_end = p->contrast_first + dice_roll(dice, p->window - p->contrast_first + 1);
        p->mute = dice_roll(dice, 9);
}

/* A policy that the device takes, by chance. */
static struct ckv_policy random_asked(struct dice *dice) {
        struct ckv_policy asked, resolved;
        struct ckv_policy_fault fault;

        do {
                uint32_t profile = dice_roll(dice, 7), scorer = dice_roll(dice, 8);

                asked = (struct ckv_policy){
                        .window = 1 + dice_roll(dice, 9), .chunk = 1 + dice_roll(dice, 12), .pool = dice_roll(dice, 5),
                        .pool_size = 1 + 2 * dice_roll(dice, 4), .given = CKV_GIVEN_MIN_TOKENS,
                };
                if (profile == 0) {
                        asked.profile = CKV_PROFILE_KVPRESS;
                        continue;
                }
                if (profile == 1) {
                        asked.profile = CKV_PROFILE_PAPER;
                        asked.join = dice_roll(dice, 3);
                        continue;
                }
                if (profile == 3) {
                        /* the contrast begins at row 32 of the queries, which are those of the window */
                        asked.profile = CKV_PROFILE_VOTE;
                        asked.window = dice_roll(dice, 4) > 0 ? 33 + dice_roll(dice, 30) : 0;
                        asked.pool = dice_roll(dice, 2) ? CKV_POOL_LEAK : 0;
                        asked.layers = dice_roll(dice, 3);
                        asked.layer_reduce = dice_roll(dice, 2);
                        asked.reuse = dice_roll(dice, 3);
                        continue;
                }
                asked.profile = profile == 2 ? CKV_PROFILE_RETRIEVAL : CKV_PROFILE_DEFAULT;
                asked.scorer = scorer == 0 ? CKV_SCORER_KNORM : scorer == 1 ? CKV_SCORER_KEYDIFF :
                               scorer == 2 ? CKV_SCORER_VK_RATIO : scorer == 3 ? CKV_SCORER_RAW_QK : CKV_SCORER_WINDOW;
                asked.selector = dice_roll(dice, 4) == 0 ? CKV_SELECTOR_TOKEN : CKV_SELECTOR_CHUNK;
                asked.norm = dice_roll(dice, 4);
                asked.heads = dice_roll(dice, 4);
                asked.group_heads = dice_roll(dice, 4);
                asked.value_weight = dice_roll(dice, 4) == 0 ? 1 + dice_roll(dice, 2) : 0;
                asked.unit_reduce = dice_roll(dice, 4);
                asked.layers = dice_roll(dice, 3);
                asked.layer_reduce = asked.layers == CKV_LAYERS_ONE ? dice_roll(dice, 3) : 0;
                asked.reuse = dice_roll(dice, 4);
                asked.fill = dice_roll(dice, 4);
                asked.softcap = dice_roll(dice, 4) == 0 ? 20 : 0;
                asked.sliding = dice_roll(dice, 4) == 0 ? 50 : 0;
                asked.sinks = dice_roll(dice, 5);
                asked.given |= CKV_GIVEN_SINKS;
                if (asked.scorer == CKV_SCORER_WINDOW && dice_roll(dice, 2) == 0)
                        random_votes(dice, &asked);
        } while (!ckv_policy_resolve(&asked, &resolved, &fault));
        return asked;
}

START_TEST(plan_and_move_random) {
        const struct subject *subject = &forms[_i];
        struct ckv_backend *backend = open_form((uint32_t)_i);
        struct dice dice = { .state = 77 };
        struct tally tally = { 0 };

        for (uint32_t seed = 1; seed <= JOBS; seed++) {
                struct ckv_policy asked = random_asked(&dice);
                struct random_shape shape = {
                        .groups = 1 + seed % 2, .layers = 1 + seed % 4, .rows = 40 + dice_roll(&dice, 160),
                        .kv_heads = 1 + seed % 3, .per_group = 1 + seed % 2,
                        .dims = seed % 5 == 0 ? 31 : 16U << seed % 3, .dtype = 1 + seed % 3,
                        .contiguous = seed % 3 > 0, .asked = &asked, .copy_out = seed % 7 == 0,
                };

                subject_run_random(subject, backend, seed, &shape, &tally);
        }
        (void)subject->ops->close(backend);
        printf("%s: %u jobs, %u not for this device, %u groups moved, %u with contrast, %u refused, %u kept sets inside the band\n",
               subject->name, tally.planned, tally.left_out, tally.moved, tally.contrasted, tally.failed, tally.within);
        ck_assert_uint_gt(tally.moved, JOBS / 2);
        ck_assert_uint_ge(tally.contrasted, JOBS / 10);
        ck_assert_uint_le(tally.within, 3);
}
END_TEST

int main(void) {
        Suite *suite = suite_create("cuda_backend");
        TCase *tcase = tcase_create("backend");
        SRunner *runner = srunner_create(suite);
        int failed;

        suite_add_tcase(suite, tcase);
        tcase_set_timeout(tcase, 300);
        tcase_add_loop_test(tcase, plan_and_move_random, 0, CKV_ARRAY_SIZE(forms));
        srunner_run_all(runner, CK_NORMAL);
        failed = srunner_ntests_failed(runner);
        srunner_free(runner);
        return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
