/*
 * Random policies of the whole family over given scores full of ties: the CPU
 * and the reference must agree bit for bit, and what holds of every set must
 * hold: ascending rows, the protected ones among them, exactly the budget where
 * the selector promises it, equally many in all heads of a layer.
 *
 * Jobs have one layer group, whole or in two parts.  No tensor is read.
 */
#include "base/macros.h"
#include "kernels/reference.h"
#include "tests/support_subject.h"

#include <check.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { JOBS = 300 };
#else
enum { JOBS = 3000 };
#endif

static enum ckv_selector any_selector(struct dice *dice) {
        return (enum ckv_selector)(CKV_SELECTOR_CHUNK + dice_roll(dice, CKV_SELECTOR_PAGE));
}

/* A policy that may not be legal; the caller rolls again. */
static struct ckv_policy any_policy(struct dice *dice) {
        struct ckv_policy p = {
                .profile = (enum ckv_profile)dice_roll(dice, CKV_PROFILE_VOTE + 1), .selector = any_selector(dice),
                .scorer = dice_roll(dice, 4) == 0 ? CKV_SCORER_KNORM : CKV_SCORER_OF_PROFILE, .window = 1 + dice_roll(dice, 20),
                .chunk = 2 + dice_roll(dice, 12),
        };

        if (p.profile == CKV_PROFILE_KVPRESS || p.profile == CKV_PROFILE_PAPER) {
                p.beta = p.profile == CKV_PROFILE_KVPRESS && dice_roll(dice, 3) == 0 ? 2 : 0;
                return p;
        }
        p.sinks = dice_roll(dice, 6);
        p.recent = dice_roll(dice, 9);
        p.min_tokens = dice_roll(dice, 30);
        p.given = CKV_GIVEN_SINKS | CKV_GIVEN_MIN_TOKENS | (p.selector == CKV_SELECTOR_H2O ? 0 : CKV_GIVEN_RECENT);
        p.heads = (enum ckv_heads)dice_roll(dice, CKV_HEADS_EACH + 1);
        p.layers = (enum ckv_layers)dice_roll(dice, CKV_LAYERS_ONE + 1);
        p.fill = (enum ckv_fill)dice_roll(dice, CKV_FILL_NONE + 1);
        p.tight = (enum ckv_tight)dice_roll(dice, CKV_TIGHT_REFUSE + 1);
        p.beta = dice_roll(dice, 3) == 0 ? 1 + dice_roll(dice, 20) : 0;
        p.page = p.selector == CKV_SELECTOR_PAGE ? 1 + dice_roll(dice, 20) : 0;
        p.heavy = p.selector == CKV_SELECTOR_H2O ? 1 + dice_roll(dice, 500000) : 0;
        p.recent_part = p.selector == CKV_SELECTOR_H2O ? 1 + dice_roll(dice, 500000) : 0;
        return p;
}

static void any_lengths(struct ckv_selection *selection, struct dice *dice) {
        uint32_t *lengths = malloc(((size_t)selection->rows + 1) * sizeof(*lengths));

        ck_assert_ptr_nonnull(lengths);
        for (uint32_t left = selection->rows; left > 0; left -= lengths[selection->chunk_length_count++])
                lengths[selection->chunk_length_count] = 1 + dice_roll(dice, CKV_MIN(left, 25));
        selection->chunk_lengths = lengths;
}

static void any_group(struct ckv_job_group *group, uint32_t first, uint32_t layers, uint32_t heads, uint32_t rows,
                      struct dice *dice) {
        struct ckv_policy asked;
        struct ckv_policy_fault fault;
        size_t sets, count;

        do
                asked = any_policy(dice);
        while (!ckv_policy_resolve(&asked, &group->policy, &fault));
        group->layer_index = first;
        group->layer_count = layers;
        group->kv_heads = group->q_heads = heads;
        group->layers = calloc((size_t)layers + 1, sizeof(*group->layers));
        group->selection.rows = rows;
        group->selection.keep_ratio = group->policy.selector == CKV_SELECTOR_H2O ? 0 : 1 + dice_roll(dice, 1000000);
        if (dice_roll(dice, 2) && group->policy.profile != CKV_PROFILE_KVPRESS && group->policy.profile != CKV_PROFILE_PAPER)
                group->policy.reuse = 1 + dice_roll(dice, layers);
        if (group->policy.selector == CKV_SELECTOR_CHUNK_AT)
                any_lengths(&group->selection, dice);
        for (uint32_t i = 0; i < layers; i++)
                group->layers[i].number = first + i;
        sets = (size_t)(group->policy.layers == CKV_LAYERS_ONE ? 1 : layers) * ckv_score_heads(group);
        count = sets * rows;
        group->scores.by_row = true;
        group->scores.in_count = count;
        group->scores.in = malloc((count + 1) * sizeof(float));
        ck_assert(group->layers && group->scores.in);
        /* so few values that whole pages tie */
        for (size_t i = 0; i < count; i++)
                group->scores.in[i] = (float)dice_roll(dice, 5) / 4 - 0.25f;
        group->want_mass = true;
}

static struct ckv_job *any_job(uint64_t seed) {
        struct dice dice = { seed * 0x9e3779b97f4a7c15u };
        uint32_t parts = 1 + dice_roll(&dice, 2), layers = 1 + dice_roll(&dice, 7), heads = 1 + dice_roll(&dice, 3);
        uint32_t rows = dice_roll(&dice, 8) ? 20 + dice_roll(&dice, 300) : dice_roll(&dice, 20);
        struct ckv_job *job = ckv_job_new(parts);

        ck_assert_ptr_nonnull(job);
        job->deadline_nsec = UINT64_MAX;
        for (uint32_t i = 0; i < parts; i++)
                any_group(&job->groups[i], i * layers, layers, heads, rows, &dice);
        return job;
}

static void compare(const struct ckv_job *reference, const struct ckv_job *fast, uint64_t seed) {
        ck_assert_msg(reference->outcome == fast->outcome, "job %" PRIu64 ": outcomes %d and %d", seed, (int)reference->outcome,
                      (int)fast->outcome);
        for (uint32_t i = 0; i < reference->group_count && reference->outcome == CKV_JOB_OK; i++) {
                const struct ckv_job_group *a = &reference->groups[i], *b = &fast->groups[i];

                ck_assert_mem_eq(&a->budget, &b->budget, sizeof(a->budget));
                ck_assert_uint_eq(a->kept_count, b->kept_count);
                ck_assert_uint_eq(a->kept_heads, b->kept_heads);
                ck_assert_int_eq(a->budgets == NULL, b->budgets == NULL);
                ck_assert(!a->budgets || memcmp(a->budgets, b->budgets, a->layer_count * sizeof(*a->budgets)) == 0);
                ck_assert(!a->kept_mass && !b->kept_mass);
                for (uint32_t k = 0; k < a->kept_count; k++) {
                        const struct ckv_kept *x = &a->kept[k], *y = &b->kept[k];

                        ck_assert_msg(x->run_count == y->run_count &&
                                              memcmp(x->runs, y->runs, x->run_count * sizeof(*x->runs)) == 0,
                                      "job %" PRIu64 ", group %u, set %u: other rows kept", seed, i, k);
                }
        }
}

/* Selectors that use up their budget, whatever the scores */
static bool is_exact(const struct ckv_job_group *group) {
        enum ckv_selector selector = group->policy.selector;

        if (group->budget.kept_all != CKV_DROPPED || group->budget.raised || ckv_policy_counts_chunks(&group->policy))
                return false;
        return selector == CKV_SELECTOR_TOKEN || selector == CKV_SELECTOR_H2O || selector == CKV_SELECTOR_STREAMING ||
               selector == CKV_SELECTOR_CHUNK_EG || (selector != CKV_SELECTOR_PAGE && group->policy.fill != CKV_FILL_NONE);
}

static void check_sets(const struct ckv_job_group *group, uint64_t seed) {
        uint8_t *flags = calloc(1, (size_t)group->selection.rows + 1), *is_kept = malloc((size_t)group->selection.rows + 1);
        struct ckv_budget budget;

        ck_assert(flags && is_kept);
        ck_assert_int_eq(ckv_select_budget(&group->selection, flags, &budget), 0);
        for (uint32_t l = 0; l < group->layer_count; l++)
                for (uint32_t h = 0; h < group->kept_heads; h++) {
                        const struct ckv_kept *kept = ckv_job_kept(group, l, h);
                        uint32_t end = 0, count = 0;

                        memset(is_kept, 0, group->selection.rows);
                        for (size_t i = 0; i < kept->run_count; i++) {
                                ck_assert(kept->runs[i].src > end || i == 0);
                                ck_assert_uint_eq(kept->runs[i].dst, count);
                                end = kept->runs[i].src + kept->runs[i].len;
                                count += kept->runs[i].len;
                                ck_assert_uint_le(end, group->selection.rows);
                                memset(is_kept + kept->runs[i].src, 1, kept->runs[i].len);
                        }
                        ck_assert_uint_eq(count, kept->count);
                        ck_assert_uint_eq(count, ckv_job_kept(group, l, 0)->count);
                        for (uint32_t j = 0; j < group->selection.rows; j++)
                                ck_assert_msg(is_kept[j] || (!flags[j] && budget.kept_all == CKV_DROPPED),
                                              "job %" PRIu64 ": row %u is dropped", seed, j);
                        if (is_exact(group))
                                ck_assert_uint_eq(count, group->budgets ? group->budgets[l] : group->budget.budget);
                }
        free(flags);
        free(is_kept);
}

START_TEST(any_policy_over_any_scores) {
        const struct subject *subject = &subjects[_i];
        struct ckv_backend *backend = subject_open(subject);
        uint32_t exact[CKV_SELECTOR_PAGE + 1] = { 0 }, sets = 0, budgets = 0;

        for (uint64_t seed = 1; seed <= JOBS; seed++) {
                struct ckv_job *reference = any_job(seed), *fast = any_job(seed);

                ck_assert_int_eq(ckv_ref_run_plan(reference), 0);
                subject_run(subject, backend, fast, CKV_STAGE_PLAN);
                compare(reference, fast, seed);
                for (uint32_t i = 0; i < reference->group_count && reference->outcome == CKV_JOB_OK; i++) {
                        const struct ckv_job_group *group = &reference->groups[i];

                        check_sets(group, seed);
                        exact[group->policy.selector] += !group->budget.settled || group->policy.selector == CKV_SELECTOR_STREAMING;
                        sets += group->kept_heads > 1;
                        budgets += group->budgets != NULL;
                }
                (void)ckv_job_free(reference);
                (void)ckv_job_free(fast);
        }
        (void)subject->ops->close(backend);
        /* each of them really ran */
        for (enum ckv_selector s = CKV_SELECTOR_CHUNK; s <= CKV_SELECTOR_PAGE; s++)
                ck_assert_msg(exact[s] > JOBS / 60, "selector %d: %u", (int)s, exact[s]);
        ck_assert_uint_gt(sets, JOBS / 30);
        ck_assert_uint_gt(budgets, JOBS / 30);
}
END_TEST

int main(void) {
        Suite *suite = suite_create("sets_random");
        TCase *tcase = tcase_create("jobs");
        SRunner *runner = srunner_create(suite);
        int failed;

        suite_add_tcase(suite, tcase);
        tcase_set_timeout(tcase, 300);
        tcase_add_loop_test(tcase, any_policy_over_any_scores, 0, SUBJECTS);
        srunner_run_all(runner, CK_NORMAL);
        failed = srunner_ntests_failed(runner);
        srunner_free(runner);
        return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
