/*
 * Deficit round robin (Shreedhar and Varghese 1995) between the keys of jobs,
 * users as it were, with the time that slices really took as the size of a
 * packet.  A slice aims at the quantum but ends only between two items of
 * work, so its cost is known afterwards: a key goes into debt and waits as many
 * rounds as that takes.  Keys with long slices and keys with short ones thus
 * get equal time, not equal turns.
 *
 * A key that comes anew goes first: what it asks for is most often short, and
 * it waits for one slice only.  So that coming and going is no way to get more,
 * a key that leaves while others wait is remembered with what it had beyond
 * its part, earns its part of what they get meanwhile, and goes last while
 * something is owed.  The memory is 64 entries, the oldest makes way; when the
 * device has nothing to do, all is settled.
 *
 * Everything is a walk over one list of the jobs inside, of which there are a
 * few for each user; nothing is allocated.
 */
#include "kernels/turns.h"

#include "base/macros.h"

#include <stdbool.h>
#include <stddef.h>

void ckv__turns_init(struct ckv_turns *turns, uint64_t quantum_nsec) {
        *turns = (struct ckv_turns){ .quantum_nsec = (int64_t)quantum_nsec };
        ckv__jobs_init(&turns->jobs);
}

static void add_credit(struct ckv_turns *turns, uint64_t key, int64_t nsec) {
        for (struct ckv_job *job = turns->jobs.first; job; job = job->next)
                if (job->fair_key == key) {
                        job->turn_nsec += nsec;
                        job->turn_had = job->turn_had || nsec < 0;
                }
}

/* insert() - behind @before, or in front of all for NULL */
static void insert(struct ckv_turns *turns, struct ckv_job *before, struct ckv_job *job) {
        struct ckv_job **link = before ? &before->next : &turns->jobs.first;

        job->next = *link;
        *link = job;
        if (!job->next)
                turns->jobs.last = &job->next;
}

/* last_of() - the last job of a key, or NULL */
static struct ckv_job *last_of(const struct ckv_turns *turns, uint64_t key) {
        struct ckv_job *last = NULL;

        for (struct ckv_job *job = turns->jobs.first; job; job = job->next)
                if (job->fair_key == key)
                        last = job;
        return last;
}

static uint32_t count_keys(const struct ckv_turns *turns) {
        uint32_t n = 0;

        for (const struct ckv_job *job = turns->jobs.first; job; job = job->next)
                n += !job->next || job->next->fair_key != job->fair_key;
        return n;
}

/* settle() - forget a key that comes back. Return: what it still owes, as a number <= 0. */
static int64_t settle(struct ckv_turns *turns, uint64_t key) {
        for (uint32_t i = 0; i < CKV_TURNS_LEFT; i++)
                if (turns->left[i].balance_nsec < 0 && turns->left[i].key == key) {
                        uint64_t earned = (turns->total_nsec - turns->left[i].at_nsec) / (count_keys(turns) + 1);
                        int64_t balance = turns->left[i].balance_nsec;

                        turns->left[i].balance_nsec = 0;
                        return earned < (uint64_t)-balance ? balance + (int64_t)earned : 0;
                }
        return 0;
}

void ckv__turns_add(struct ckv_turns *turns, struct ckv_jobs *jobs) {
        struct ckv_job *job, *fresh = NULL;

        while ((job = ckv__jobs_take(jobs))) {
                struct ckv_job *before = last_of(turns, job->fair_key);
                int64_t owed;

                if (before) {
                        job->turn_nsec = before->turn_nsec;
                        job->turn_had = before->turn_had;
                        job->turn_lent = before->turn_lent;
                        insert(turns, before, job);
                        /* newcomers of one call keep their order */
                        fresh = fresh == before ? job : fresh;
                        continue;
                }
                owed = settle(turns, job->fair_key);
                job->turn_nsec = turns->quantum_nsec + owed;
                job->turn_had = false;
                job->turn_lent = owed == 0;
                if (owed < 0) {
                        ckv__jobs_append(&turns->jobs, job);
                } else {
                        insert(turns, fresh, job);
                        fresh = job;
                }
        }
}

/* pass_turn() - the jobs of the key whose turn it was go to the end, with credit for their next turn */
static void pass_turn(struct ckv_turns *turns) {
        uint64_t key = turns->jobs.first->fair_key;
        struct ckv_jobs same;

        ckv__jobs_init(&same);
        while (turns->jobs.first && turns->jobs.first->fair_key == key)
                ckv__jobs_append(&same, ckv__jobs_take(&turns->jobs));
        ckv__jobs_move(&same, &turns->jobs);
        add_credit(turns, key, turns->quantum_nsec);
}

/* skip_idle_rounds() - if all are in debt, the rounds in which nobody would get a slice are given in one go */
static void skip_idle_rounds(struct ckv_turns *turns) {
        int64_t most = INT64_MIN, rounds;

        for (const struct ckv_job *job = turns->jobs.first; job; job = job->next)
                most = CKV_MAX(most, job->turn_nsec);
        if (most > 0)
                return;
        rounds = -most / turns->quantum_nsec + 1;
        for (struct ckv_job *job = turns->jobs.first; job; job = job->next)
                job->turn_nsec += rounds * turns->quantum_nsec;
}

struct ckv_job *ckv__turns_next(struct ckv_turns *turns) {
        if (!turns->jobs.first)
                return NULL;
        skip_idle_rounds(turns);
        while (turns->jobs.first->turn_nsec <= 0)
                pass_turn(turns);
        return turns->jobs.first;
}

void ckv__turns_spend(struct ckv_turns *turns, struct ckv_job *job, uint64_t nsec) {
        turns->total_nsec += nsec;
        add_credit(turns, job->fair_key, -(int64_t)nsec);
        /* a rest of less than half a slice would be overdrawn by the next one: it is kept for the next turn */
        if (job->turn_nsec < turns->quantum_nsec / 2 && turns->jobs.first->fair_key == job->fair_key)
                pass_turn(turns);
}

/*
 * beyond_part() - what a key that leaves has had and others have not had yet, as a number <= 0
 *
 * Credit is given in advance.  The quantum of the turn that a key waits for is not earned before the others have had
 * theirs; and a key that came first in line has had a first one that nobody else had before it.
 */
static int64_t beyond_part(const struct ckv_turns *turns, const struct ckv_job *job) {
        bool waits = turns->jobs.first->fair_key != job->fair_key && (job->turn_had || !job->turn_lent);

        return CKV_MIN(job->turn_nsec - turns->quantum_nsec * (waits + job->turn_lent), 0);
}

void ckv__turns_remove(struct ckv_turns *turns, struct ckv_job *job) {
        int64_t balance = beyond_part(turns, job);
        struct ckv_job **link = &turns->jobs.first;

        while (*link != job)
                link = &(*link)->next;
        *link = job->next;
        if (!job->next)
                turns->jobs.last = link;
        job->next = NULL;
        if (!turns->jobs.first) {
                for (uint32_t i = 0; i < CKV_TURNS_LEFT; i++)
                        turns->left[i].balance_nsec = 0;
                return;
        }
        if (balance == 0 || last_of(turns, job->fair_key))
                return;
        turns->left[turns->left_next].key = job->fair_key;
        turns->left[turns->left_next].balance_nsec = balance;
        turns->left[turns->left_next].at_nsec = turns->total_nsec;
        turns->left_next = (turns->left_next + 1) % CKV_TURNS_LEFT;
}
