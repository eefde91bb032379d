/*
 * One job: what a backend computes on.  A job holds addresses, numbers and
 * copies of what the request said; no tenant, no socket, no configuration.
 * daemon/ builds it (all arrays are owned by the job and freed by
 * ckv_job_free()); from submit until reap it belongs to the backend.
 *
 * A job goes through a backend twice.  CKV_STAGE_PLAN scores and selects and
 * never writes to the cache; with CKV_STAGE_MOVE the kept rows move.  Between
 * the two the job is back in the hands of the event loop, which alone decides
 * whether to commit: deadline, cancel, hold and the death of the engine are
 * all looked at there, in one place.
 */
#ifndef CKV_KERNELS_JOB_H
#define CKV_KERNELS_JOB_H

#include "kernels/layout.h"
#include "kernels/mirror.h"
#include "kernels/policy.h"
#include "kernels/select.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum ckv_stage { CKV_STAGE_PLAN, CKV_STAGE_MOVE };

/* How a stage ended. */
enum ckv_job_outcome {
        CKV_JOB_OK,
        CKV_JOB_CANCELLED,          /* the cancel flag was seen between two slices of CKV_STAGE_PLAN */
        CKV_JOB_EXPIRED,            /* the deadline passed before CKV_STAGE_PLAN was through */
        CKV_JOB_NONFINITE,          /* R23; fail_group, fail_layer, fail_unit */
        CKV_JOB_BUDGET,             /* BUDGET_BELOW_PROTECTED; fail_group */
        CKV_JOB_UNSUPPORTED,        /* sequence too short for the profile; fail_group */
        CKV_JOB_WINDOW_OVER_BUDGET, /* profile paper: L_max < w; fail_group */
        CKV_JOB_SCORES_SIZE,        /* scores in or out: another number of bytes than fail_need; fail_group */
        CKV_JOB_BAD_LSE,            /* R40; fail_group, fail_layer, fail_unit (query head) */
        CKV_JOB_NO_MEMORY,
        CKV_JOB_NOT_ON_DEVICE,      /* this device does not compute that, and did nothing; fail_group, fail_field */
        CKV_JOB_DEVICE_FAILED,      /* a call of the device's driver failed: fail_code; nothing was changed, and others may fare better */
        CKV_JOB_DEVICE_LOST,        /* the device's context is gone. CKV_STAGE_MOVE: rows may be torn, as far as steps.done tells */
};

struct ckv_job_layer {
        uint32_t number;            /* the engine's layer number */
        struct ckv_plane k, v;      /* v.base NULL: no V (latent) */
        const uint8_t *query;       /* row 0, head 0 of this layer's queries; NULL if none were given */
        const uint8_t *lse;         /* binary32 [q_heads][queries.rows], in the ring of the queries, any alignment; NULL: not given */
        const uint8_t *sink_logits; /* binary32 [q_heads], any alignment; NULL: none */
};

/* The window queries, common to all layers of the job. Row r (0 = oldest), head h of a layer lies at
 * layer.query + h * head_stride + ((ring_start + r) % rows) * row_stride, dimensions adjacent. */
struct ckv_job_queries {
        enum ckv_dtype dtype;       /* F32, F16, BF16; NONE: no queries */
        uint32_t rows, ring_start;
        uint64_t head_stride, row_stride;
        uint32_t last_row;          /* cache row of the newest query, 0 = physical_len - 1 of each group: ckv_job_last_row() */
};

/*
 * Scores that leave the job, or come in place of its own (R5): one row of `count` binary32 for each layer, or one for
 * all with layers = one; count is the number of units, or of rows.
 */
struct ckv_job_scores {
        bool by_row;                           /* T32[j] of each row; else C[u] of each unit */
        uint8_t *out;                          /* where to write, any alignment; NULL: nowhere */
        uint64_t out_bytes;
        float *in;                             /* owned by the job; NULL: scored here */
        uint64_t in_count;                     /* floats in it, all layers together */
};

/*
 * Layers of one layer group that share a policy.  A hybrid request (several policies in one group) becomes several of these,
 * ascending by layer, with the same number and equal tables; an answer joins them again.
 */
struct ckv_job_group {
        uint32_t number;                       /* index of the layer group in the registered cache */
        uint32_t layer_index;                  /* place of layers[0] among the compressed layers of the whole layer group (reuse) */
        uint32_t kv_heads, q_heads, head_dim_k, head_dim_v;
        struct ckv_job_layer *layers;          /* [layer_count] ascending by number */
        uint32_t layer_count;
        struct ckv_row_table table;            /* entries owned by the job */
        struct ckv_row_table destination;      /* COPY_OUT: where the kept rows go, no row of the table; entries owned; NULL: in place */
        bool shares_lists;                     /* entries of both tables, positions, spans and chunk lengths are those of an earlier group */
        uint32_t destination_rows;             /* rows that the destination has room for */
        bool given;                            /* kept was filled in at admission: nothing is scored or selected */
        struct ckv_job_scores scores;
        struct ckv_policy policy;              /* resolved */
        struct ckv_selection selection;        /* its arrays are owned by the job; selection.policy = &policy */

        /* written by CKV_STAGE_PLAN */
        struct ckv_budget budget;
        uint32_t *budgets;                     /* [layer_count] B of each layer (beta); NULL: budget.budget holds for all; owned */
        struct ckv_kept *kept;                 /* [kept_count], use ckv_job_kept(): (1 or layer_count) times kept_heads, layers outside */
        uint32_t kept_count;
        uint32_t kept_heads;                   /* kv_heads with heads = each, else 1: sets of a layer */
        bool want_mass;                        /* asked for: kept_mass is to be formed */
        float *kept_mass;                      /* [layer_count] sum of T[j] over kept rows / over all rows; NULL: not known; owned */
        /* written by CKV_STAGE_MOVE */
        uint64_t bytes_moved;                  /* read plus written */
};

/*
 * How an in-place move is cut into steps that can be repaired (reliability.md 8.3, kernels/steps.h).  count = 0: the move
 * runs freely, in one pass.
 */
struct ckv_job_steps {
        uint32_t batch_rows;        /* most rows of a step; 0: no cap */
        uint32_t first;             /* step to begin with: those before it were done by somebody else */
        uint32_t count;             /* of all steps */
        _Atomic uint32_t *done;     /* borrowed: p + 1 is stored (release) when every row of step p is written, and only then */
};

struct ckv_job {
        struct ckv_job *next;                  /* for whoever holds the job: loop queue, backend queue, done list */
        void *owner;                           /* the daemon's request; backends never look at it */
        uint64_t fair_key;                     /* jobs with equal keys share one turn between slices */
        uint64_t deadline_nsec;                /* CLOCK_MONOTONIC */
        enum ckv_stage stage;
        atomic_bool cancel;                    /* set by backend->cancel(), seen between slices of CKV_STAGE_PLAN */

        struct ckv_job_group *groups;          /* [group_count] */
        uint32_t group_count;
        struct ckv_job_queries queries;
        struct ckv_job_steps steps;            /* set between the stages; not used where there are mirrors */
        struct ckv_mirror **mirrors;           /* [mirror_count] borrowed: what planes may lie in that is not mapped; array owned */
        uint32_t mirror_count;
        struct ckv_mirror_span *spans;         /* [span_count] of mirrors, to be there before the first slice: queries and the like; owned */
        uint32_t span_count;

        /* written by the backend, read after reap */
        enum ckv_job_outcome outcome;
        uint32_t fail_group, fail_layer, fail_unit;       /* index into groups, layer number, unit index */
        enum ckv_policy_field fail_field;      /* CKV_FIELD_NONE: how the planes lie */
        int fail_code;                         /* CUresult of CKV_JOB_DEVICE_FAILED and _LOST */
        uint64_t fail_need;                    /* bytes that scores_in or scores_out should have; CKV_JOB_NOT_ON_DEVICE: of scratch, or 0 */
        uint64_t started_nsec;                 /* first slice of CKV_STAGE_PLAN */
        uint64_t score_nsec, select_nsec, move_nsec;      /* time in the phase, first slice to last */
        uint64_t device_nsec;                  /* time that slices of this job occupied the device */

        uint64_t charged_nsec;                 /* of the daemon: what of device_nsec its user has been charged for */

        void *backend_state;                   /* of the backend, while it holds the job */
        struct ckv_mirror_walk walk;           /* of the backend: what of the mirrors has been copied */
        int64_t turn_nsec;                     /* of the backend: device time that is left of its key's turn; below 0: a debt */
        bool turn_had, turn_lent;              /* of the backend: the key has had a slice since it came; it came first in line */
};

/* ckv_job_last_row() - cache row of the newest query for one group; query row r sits at this - queries.rows + 1 + r */
static inline uint32_t ckv_job_last_row(const struct ckv_job *job, const struct ckv_job_group *group) {
        return job->queries.last_row ? job->queries.last_row : group->selection.rows - 1;
}

/* ckv_score_heads() - score vectors T[.][j] that a layer has: one for each KV head with heads = each, else one for all */
static inline uint32_t ckv_score_heads(const struct ckv_job_group *group) {
        return group->policy.heads == CKV_HEADS_EACH ? group->kv_heads : 1;
}

/* ckv_job_kept() - the kept rows of one layer (index in the group) and KV head, once there are any */
static inline const struct ckv_kept *ckv_job_kept(const struct ckv_job_group *group, uint32_t layer, uint32_t head) {
        uint32_t layers = group->kept_count / group->kept_heads;

        return &group->kept[(layers == 1 ? 0 : layer) * group->kept_heads + (group->kept_heads == 1 ? 0 : head)];
}

/* ckv_job_new() - a zeroed job with @group_count groups, each selection.policy set and kept_heads 1. Return: NULL if out of memory. */
struct ckv_job *ckv_job_new(uint32_t group_count);

/* ckv_job_free() - free a job and every array it owns; NULL is fine. Return: NULL. */
struct ckv_job *ckv_job_free(struct ckv_job *job);

static inline void ckv_job_freep(struct ckv_job **job) {
        *job = ckv_job_free(*job);
}

#endif
