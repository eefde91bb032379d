/*
 * How long each path takes, told apart from what neighbours do to it.
 *
 * A measurement can only be disturbed upwards: by an interrupt, by a neighbour
 * on the other half of the core or on the bus to the memory.  So what counts of
 * a path is its shortest time, and the question is when it was seen.  Nobody
 * knows how long a disturbance lasts, but two things help.  A round goes through
 * all trials and paths before it comes back to the first, a millisecond or more
 * later: what hits one path in one round has passed by the next, or hits all.
 * And a shortest time is believed when others came near it: by chance and alone
 * it may be far above what the path can do.  Where two paths are close, more are
 * asked for.
 *
 * A trial that is decided takes no part in later rounds.  One that stays
 * undecided ends the same way as the others, with the shortest times so far,
 * when the contest has had its CPU time: a start must not take long, and what
 * cannot be told apart is not far apart.
 */
#include "kernels/cpu_contest.h"

#include "base/error.h"
#include "base/macros.h"

enum {
        ROUNDS_LEAST = 4,
        NEAR_PERCENT = 10,              /* above the shortest: a time that confirms it, and a path that may still win */
        TIMES = 4, TIMES_CLOSE = 9,     /* near the shortest, itself included, to believe it; where another path is near, too */
};

static bool near(uint64_t nsec, uint64_t least) {
        return nsec - least <= least * NEAR_PERCENT / 100;
}

uint64_t ckv__cpu_contest_best(const struct ckv_cpu_contest *contest, size_t entrant) {
        uint64_t least = UINT64_MAX;

        for (uint32_t i = 0; i < contest->rounds[entrant]; i++)
                least = CKV_MIN(least, contest->nsec[entrant][i]);
        return least;
}

static bool believed(const struct ckv_cpu_contest *contest, size_t entrant, uint32_t times) {
        uint64_t least = ckv__cpu_contest_best(contest, entrant);
        uint32_t seen = 0;

        for (uint32_t i = 0; i < contest->rounds[entrant]; i++)
                seen += near(contest->nsec[entrant][i], least);
        return seen >= times;
}

static bool decided(const struct ckv_cpu_contest *contest, size_t entrants) {
        uint64_t best[CKV_CPU_ENTRANTS_MOST], least = UINT64_MAX;
        uint32_t leaders = 0;

        for (size_t i = 0; i < entrants; i++) {
                best[i] = ckv__cpu_contest_best(contest, i);
                least = CKV_MIN(least, best[i]);
        }
        for (size_t i = 0; i < entrants; i++)
                leaders += contest->rounds[i] > 0 && near(best[i], least);
        for (size_t i = 0; i < entrants; i++)
                if (contest->rounds[i] > 0 && !believed(contest, i, leaders > 1 && near(best[i], least) ? TIMES_CLOSE : TIMES))
                        return false;
        return true;
}

/* judge() - two paths found different totals: at least one of them is wrong. Return: 0 or -ENOMEM. */
static int judge(struct ckv_cpu_contest *contest, const struct ckv_cpu_window_kernel *const *kernels, size_t entrant, bool *wrong) {
        const size_t both[] = { contest->by, entrant };

        for (size_t i = 0; i < CKV_ARRAY_SIZE(both); i++) {
                bool right;
                int r = ckv__cpu_trial_right(contest->trial, kernels[both[i]], &right);

                if (r < 0)
                        return ckv_error_origin(r);
                wrong[both[i]] = wrong[both[i]] || !right;
        }
        if (wrong[contest->by])
                contest->expected = 0;
        else
                /* right this time, perhaps */
                wrong[entrant] = true;
        return 0;
}

static int run(struct ckv_cpu_contest *contest, const struct ckv_cpu_window_kernel *const *kernels, size_t entrant, bool *wrong) {
        uint64_t nsec;
        double total;
        int r = ckv__cpu_trial_nsec(contest->trial, kernels[entrant], &nsec, &total);

        if (r < 0)
                return ckv_error_origin(r);
        if (contest->expected <= 0) {
                contest->expected = total;
                contest->by = entrant;
        }
        /* said so that a NaN is wrong */
        if (!(total > contest->expected * 0.9999 && total < contest->expected * 1.0001))
                return ckv_error_trace(judge(contest, kernels, entrant, wrong));
        contest->nsec[entrant][contest->rounds[entrant]++] = nsec;
        return 0;
}

/* Return: 1 if something was left to be measured, 0, or -ENOMEM */
static int run_round(struct ckv_cpu_contest *contests, size_t count, const struct ckv_cpu_window_kernel *const *kernels,
                     size_t entrants, bool *wrong, uint32_t round) {
        int r = 0, any = 0;

        for (size_t n = 0; r == 0 && n < count; n++) {
                if (!contests[n].trial || (round >= ROUNDS_LEAST && decided(&contests[n], entrants)))
                        continue;
                for (size_t k = 0; r == 0 && k < entrants; k++) {
                        /* who comes behind whom changes */
                        size_t i = (k + round) % entrants;

                        if (wrong[i] || !ckv__cpu_trial_takes(contests[n].trial, kernels[i]))
                                continue;
                        any = 1;
                        r = run(&contests[n], kernels, i, wrong);
                }
        }
        return r < 0 ? ckv_error_trace(r) : any;
}

int ckv__cpu_contests_run(struct ckv_cpu_contest *contests, size_t count, const struct ckv_cpu_window_kernel *const *kernels,
                          size_t entrants, bool *wrong) {
        uint64_t start = ckv__cpu_trial_clock();
        int r = 1;

        assert(entrants <= CKV_CPU_ENTRANTS_MOST);
        for (uint32_t round = 0; r > 0 && round < CKV_CPU_ROUNDS_MOST; round++) {
                if (round >= ROUNDS_LEAST && ckv__cpu_trial_clock() - start >= CKV_CPU_ROUNDS_USEC * UINT64_C(1000))
                        break;
                r = run_round(contests, count, kernels, entrants, wrong, round);
        }
        return r < 0 ? ckv_error_trace(r) : 0;
}
