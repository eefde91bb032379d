/*
 * Which kept sets the GPU selects, and by which parameters it equals
 * ckv_select(): the three walks of kernels/select.c as one.
 *
 * Left to the host are chunk_eg, whose gate is an entropy; budgets that differ
 * between layers; scores that are put together there; and fill = best in units of many rows, where the kernel would
 * compare each row with each.
 */
#include "kernels/cuda_select.h"

#include "base/macros.h"

enum {
        BEST_ROWS = 256,        /* of a unit in which the kernel looks for the best ones */
        RUNS_MORE = 64,         /* protected spans, first and last rows, and the unit that was cut */
};

bool ckv__cuda_selects(const struct ckv_job_group *group, const struct ckv_units *units) {
        const struct ckv_policy *policy = &group->policy;

        if (units->count == 0 || group->budgets || policy->layers == CKV_LAYERS_ONE || policy->selector == CKV_SELECTOR_CHUNK_EG)
                return false;
        for (uint32_t u = 0; policy->fill == CKV_FILL_BEST && u < units->count; u++)
                if (units->size[u] > BEST_ROWS)
                        return false;
        return true;
}

uint32_t ckv__cuda_select_runs(const struct ckv_job_group *group) {
        uint32_t rows = CKV_MAX(group->budget.budget, group->budget.protected_rows);
        uint32_t chunk = group->policy.selector == CKV_SELECTOR_CHUNK ? group->policy.chunk : 1;
        uint64_t runs = (uint64_t)rows / chunk + group->selection.span_count + RUNS_MORE;

        return (uint32_t)CKV_MIN(runs, (uint64_t)ckv_k_runs_most(group->selection.rows));
}

/* R52, as select_kvpress(): the chunks of the window come first, then the one at its edge, then the others by score */
static void kvpress_rule(const struct ckv_job_group *group, const struct ckv_units *units, struct ckv_k_select *p) {
        const struct ckv_policy *policy = &group->policy;
        uint32_t window = ckv_policy_reads_queries(policy) ? policy->window : 0, edge = group->selection.rows - window;
        uint32_t left = group->budget.chunks, forced;
        bool straddles = window > 0 && edge % policy->chunk != 0;

        p->ranked = window > 0 ? edge / policy->chunk : units->count;
        p->forced_begin = p->ranked + straddles;
        forced = CKV_MIN(left, units->count - p->forced_begin);
        p->forced_end = p->forced_begin + forced;
        left -= forced;
        if (straddles && left > 0) {
                p->forced_begin--;
                left--;
        }
        p->budget = left;
}

struct ckv_k_select ckv__cuda_select_rule(const struct ckv_job_group *group, const struct ckv_units *units, uint64_t protect) {
        const struct ckv_policy *policy = &group->policy;
        struct ckv_k_select p = {
                .rows = group->selection.rows, .units = units->count, .ranked = units->count, .room = UINT32_MAX,
        };

        if (!ckv_policy_counts_chunks(policy)) {
                p.protect = protect;
                p.sized = 1;
                p.budget = group->budget.budget - group->budget.protected_rows;
                p.fill = policy->fill;
        } else if (policy->profile == CKV_PROFILE_KVPRESS) {
                kvpress_rule(group, units, &p);
        } else {
                p.budget = group->budget.chunks;
                p.tail = policy->window;
                if (policy->join == CKV_JOIN_CUT)
                        p.room = group->budget.budget - policy->window;
        }
        return p;
}
