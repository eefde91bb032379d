/*
 * Whose slice is next: deficit round robin between keys, in device time.
 */
#ifndef CKV_KERNELS_TURNS_H
#define CKV_KERNELS_TURNS_H

#include "kernels/fifo.h"

#include <stdint.h>

enum { CKV_TURNS_LEFT = 64 };

/* Of one thread. Jobs of a key lie next to each other, in the order in which they came; each has the key's credit. */
struct ckv_turns {
        struct ckv_jobs jobs;           /* the first one's key has its turn */
        int64_t quantum_nsec;           /* device time of one turn */
        uint64_t total_nsec;            /* of all slices so far */
        struct {
                uint64_t key;
                int64_t balance_nsec;   /* below 0: had more than its part when it left; 0: entry not used */
                uint64_t at_nsec;       /* total_nsec then */
        } left[CKV_TURNS_LEFT];         /* keys whose last job left while others had some */
        uint32_t left_next;
};

/* ckv__turns_init() - no job inside; @quantum_nsec: about the length of a slice */
void ckv__turns_init(struct ckv_turns *turns, uint64_t quantum_nsec);

/* ckv__turns_add() - take all jobs out of @jobs; never allocates */
void ckv__turns_add(struct ckv_turns *turns, struct ckv_jobs *jobs);

/* ckv__turns_next() - the job that gets the next slice, still inside; NULL if there is none */
struct ckv_job *ckv__turns_next(struct ckv_turns *turns);

/* ckv__turns_spend() - a slice of @job, which is inside, took @nsec of the device; the turn passes if it is used up */
void ckv__turns_spend(struct ckv_turns *turns, struct ckv_job *job, uint64_t nsec);

/* ckv__turns_remove() - a job leaves, wherever it stands; the last one of a key takes the key along */
void ckv__turns_remove(struct ckv_turns *turns, struct ckv_job *job);

#endif
