/*
 * chunkkvd-reference: the daemon whose plans are made by the scalar reference
 * instead of the CPU path, so that both can be asked the same question in the
 * same words (bench/random_problems.py).
 *
 * The linker puts these three in the place of those of kernels/cpu_plan.c
 * (--wrap); all else, moving bytes included, is the daemon as it ships.  A plan
 * is made in one slice however long it takes, so this is for small problems.
 */
#include "kernels/cpu_plan.h"
#include "kernels/reference.h"

struct ckv_cpu_plan *__wrap_ckv__cpu_plan_new(struct ckv_job *job, struct ckv_cpu_scratch *scratch);
bool __wrap_ckv__cpu_plan_step(struct ckv_cpu_plan *plan, struct ckv_cpu_pool *pool, const struct ckv_cpu_choice *choice,
                               uint64_t until_nsec);
struct ckv_cpu_plan *__wrap_ckv__cpu_plan_free(struct ckv_cpu_plan *plan);

/* The state of such a plan is its job and nothing else. */
struct ckv_cpu_plan *__wrap_ckv__cpu_plan_new(struct ckv_job *job, struct ckv_cpu_scratch *scratch) {
        (void)scratch;
        return (struct ckv_cpu_plan *)(void *)job;
}

bool __wrap_ckv__cpu_plan_step(struct ckv_cpu_plan *plan, struct ckv_cpu_pool *pool, const struct ckv_cpu_choice *choice,
                               uint64_t until_nsec) {
        (void)pool;
        (void)choice;
        (void)until_nsec;
        (void)ckv_ref_run_plan((struct ckv_job *)(void *)plan); /* its one failure is an outcome of the job, too */
        return true;
}

struct ckv_cpu_plan *__wrap_ckv__cpu_plan_free(struct ckv_cpu_plan *plan) {
        (void)plan;
        return NULL;
}
