/*
 * How the CPU device scores, from inside: a method is a list of phases, a
 * phase a list of items that the pool works off.  cpu_score.c steps through
 * them; cpu_attention.c, cpu_keys.c and cpu_drop.c are the methods.
 *
 * An item's size depends on the shape alone, and what items write does not
 * depend on their order, so neither threads nor slices show in the result
 * (R30).
 */
#ifndef CKV_KERNELS_CPU_SCORER_H
#define CKV_KERNELS_CPU_SCORER_H

#include "kernels/cpu_choice.h"
#include "kernels/cpu_pool.h"
#include "kernels/cpu_scratch.h"
#include "kernels/job.h"

enum { CKV_CPU_PHASE_DONE = UINT32_MAX >> 1 };

struct ckv_cpu_score;

struct ckv_cpu_method {
        const ckv_cpu_work *work;                                       /* [phases] an item of each; its context is the score */
        int (*init)(struct ckv_cpu_score *score);                       /* make state; 0 or -ENOMEM */
        void (*deinit)(struct ckv_cpu_score *score);                    /* free state, also if it is NULL or half made */
        void (*begin)(struct ckv_cpu_score *score);                     /* turn to score->layer; sets phase */
        uint32_t (*items)(const struct ckv_cpu_score *score);           /* of the phase; 0 is fine */
        void (*next)(struct ckv_cpu_score *score);                      /* the phase is through: set the next */
        ckv_cpu_where where;                                            /* the first key or value that an item of the phase reads */
};

struct ckv_cpu_score {
        const struct ckv_cpu_method *method;
        struct ckv_cpu_scratch *scratch;        /* of the device; NULL: nothing is kept */
        const struct ckv_job *job;
        const struct ckv_job_group *group;
        const struct ckv_job_layer *layer;
        const struct ckv_cpu_path *path;        /* of the layer */
        const struct ckv_cpu_kernel *kernel;    /* of the path */
        uint32_t phase;
        uint32_t cursor;                        /* first item of the phase that is not done, as far as near does not know better */
        struct ckv_cpu_near near;
        double *rows;                           /* [ckv_score_heads()][L] */
        const struct ckv_units *units;          /* of the group, where their scores will do; NULL: rows are wanted */
        const float *unit_scores;               /* [ckv_score_heads()][N] of the layer, if the method formed them; else rows are */
        bool chosen;                            /* the path is known, and the method has begun */
        uint32_t bad_head;                      /* h + 1 */
        bool no_memory;                         /* the layer could not be scored */
        void *state;                            /* of the method */
};

extern const struct ckv_cpu_method ckv__cpu_attention, ckv__cpu_keys, ckv__cpu_drop;

/* ckv__cpu_pieces() - pieces of @size that hold @count */
static inline uint32_t ckv__cpu_pieces(uint32_t count, uint32_t size) {
        return count / size + (count % size != 0);
}

/* ckv__cpu_fold_heads() - an item of a method's last phase, where it gives @s[kv_heads][L]: rows item * CKV_CPU_FOLD_ROWS and
 * following become T[j]; @scratch as of a pool's item */
void ckv__cpu_fold_heads(const struct ckv_cpu_score *score, const double *s, uint32_t item, float *scratch);

#endif
