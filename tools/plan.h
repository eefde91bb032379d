/* From layers of a file to kept rows: the tensors go into shared memory, a daemon plans, moves, tells its scores. */
#ifndef CKV_TOOLS_PLAN_H
#define CKV_TOOLS_PLAN_H

#include "clients/c/include/chunkkv.h"
#include "tools/layers.h"
#include "tools/settings.h"

/* Kept rows of one KV head. */
struct ckv_plan_head {
        uint32_t *ranges;               /* [range_count][2] */
        size_t range_count;
};

struct ckv_plan_layer {
        uint32_t number;
        uint32_t physical_before, logical_len, budget;
        uint32_t kept_all;              /* chunkkv_kept_all */
        uint64_t kept_count;
        uint32_t *ranges;               /* [range_count][2] first and end, half-open, ascending; of KV head 0 if heads differ */
        size_t range_count;
        struct ckv_plan_head *more;     /* [more_count] heads = each: KV heads 1, 2, ..., which keep other rows, equally many */
        size_t more_count;
        float kept_mass;                /* NaN = not asked for, or not known */
        uint8_t *key, *value;           /* compress: the kept rows, as the daemon left them; else NULL */
        uint64_t key_bytes, value_bytes;
        float *scores;                  /* explain: [score_count] of each unit, ascending; NULL = nothing was scored */
        size_t score_count;
};

struct ckv_plan {
        struct ckv_plan_layer *layers;  /* [layer_count] ascending */
        size_t layer_count;
        struct chunkkv_policy policy;   /* the values that were used */
        struct chunkkv_policy upper;    /* with --hybrid: those of the upper half of the layers */
        bool has_upper;
        uint64_t queue_us, score_us, select_us, move_us, total_us;      /* of all requests together */
};

/**
 * ckv_plan_run() - ask the daemon which rows it would keep; `compress`: have it move them; `explain`: and tell scores
 * @layers:   [count] ascending, with query, and value where the policy needs it
 * @ret_plan: ends with ckv_plan_deinit(), also after a failure
 *
 * Layers of one length go into one request, those of one shape into one group
 * of it.
 *
 * Return: 0 or -errno with @ret_error filled in.
 */
int ckv_plan_run(struct chunkkv_client *client, const struct ckv_settings *settings, const struct ckv_layer *layers,
                 size_t count, struct ckv_plan *ret_plan, struct chunkkv_error *ret_error);

/* ckv_plan_deinit() - free its lists */
void ckv_plan_deinit(struct ckv_plan *plan);

/* ckv_plan_needs_value() - does this policy look at V? */
bool ckv_plan_needs_value(const struct chunkkv_policy *policy);
/* ckv_plan_needs_query() - does this policy look at queries? */
bool ckv_plan_needs_query(const struct chunkkv_policy *policy);

#endif
