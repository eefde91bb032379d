/*
 * The table of cpu_scheme.h.  It reads the policy, the types and where the keys
 * lie, and nothing of threads or time, so a layer goes the same way always
 * (R30).
 */
#include "kernels/cpu_scheme.h"

#include "base/macros.h"
#include "kernels/reference.h"
#include "kernels/scores.h"

/* Can the kernel read these keys, and do what the policy asks of a weight? */
static bool serves(const struct ckv_job *job, const struct ckv_job_group *group, const struct ckv_job_layer *layer,
                   const struct ckv_cpu_window_kernel *window, uint32_t panel) {
        const struct ckv_policy *policy = &group->policy;
        struct ckv_query_rows part = ckv_ref_query_rows(job, group);
        uint32_t votes = part.vote_end - part.vote_first, older = part.contrast_end - part.contrast_first;

        return policy->scorer == CKV_SCORER_WINDOW && CKV_MAX(votes, older) <= panel && ckv_plane_dims_adjacent(&layer->k) &&
               (layer->k.scale == 0 || layer->k.scale == 1) &&
               window->takes(layer->k.dtype, job->queries.dtype, group->head_dim_k);
}

enum ckv_cpu_scheme ckv__cpu_scheme(const struct ckv_job *job, const struct ckv_job_group *group, const struct ckv_job_layer *layer,
                                    const struct ckv_cpu_window_kernel *window, uint32_t panel, uint32_t units) {
        if (!window || !serves(job, group, layer, window, panel))
                return CKV_CPU_GENERAL;
        if (layer->lse)
                return CKV_CPU_LSE;
        if (ckv_scores_units_will_do(group, units))
                return CKV_CPU_UNITS_ONCE;
        return CKV_CPU_TWICE;
}
