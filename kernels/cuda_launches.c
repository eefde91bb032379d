/*
 * The kernels of one batch, in the order of kernels/cuda/params.h, and what each
 * is launched with.
 */
#include "kernels/cuda_launches.h"

#include "base/macros.h"
#include "kernels/cuda_select.h"
#include "kernels/cuda_shape.h"
#include "kernels/reference.h"

/* On tensor cores K is read once where the caller brought the log-sum-exps, which are checked afterwards. */
static bool launch_mma(const struct ckv_cuda_score *score, struct ckv_cuda_device *device, struct ckv_k_score *p) {
        p->given = 1;
        for (uint32_t i = 0; i < p->layer_count; i++)
                p->given = p->given && score->layers.structs[i].lse != 0;
        if (p->given)
                return CKV__CUDA_LAUNCH(device, mma_weights, p) && CKV__CUDA_LAUNCH(device, lse, p);
        return CKV__CUDA_LAUNCH(device, mma_lse_part, p) && CKV__CUDA_LAUNCH(device, lse, p) &&
               CKV__CUDA_LAUNCH(device, mma_weights, p);
}

/* Scores of units without weights by row: references of the first rows that all queries see, one pass over K, 1 / Z, units */
static bool launch_sums(const struct ckv_cuda_score *score, struct ckv_cuda_device *device, const struct ckv_k_score *all) {
        const struct ckv_job_group *group = score->group;
        const struct ckv_policy *policy = &group->policy;
        uint32_t rows = all->rows, newest = score->visible[2 * (score->votes - 1)];
        struct ckv_k_score few = *all;
        struct ckv_k_sums p = {
                .score = *all, .reference = score->at[ROOM_REFERENCE], .sums = score->at[ROOM_SUMS],
                .seen = score->seen ? score->tables[TABLE_SEEN].at : 0, .unit_of_row = score->tables[TABLE_UNIT_OF_ROW].at,
                .first_row = score->tables[TABLE_FIRST_ROW].at, .size = score->tables[TABLE_SIZE].at,
                .bounds = score->tables[TABLE_BOUNDS].at, .out = score->at[ROOM_UNITS], .units = score->units->count,
                .columns = ckv_k_columns(score->units->count, all->segments),
                .domain = policy->pool == CKV_POOL_AVG ? ckv_ref_pool_domain(group) : 0, .half = ckv__cuda_sums_half(policy),
                .score_heads = ckv_score_heads(group),
                .divisor = (policy->norm == CKV_NORM_MEAN ? score->votes : 1) *
                           (policy->group_heads == CKV_GROUP_MEAN ? group->q_heads / group->kv_heads : 1),
                .mean = policy->unit_reduce == CKV_UNIT_MEAN,
        };

        few.part = score->at[ROOM_REFERENCE];
        few.first = CKV_MIN(newest, rows - 1);
        few.rows = CKV_MIN(rows - few.first, (uint32_t)CKV_K_REFERENCE_ROWS) + few.first;
        few.segments = 1;
        p.score.looks_far = 1;
        return CKV__CUDA_LAUNCH(device, mma_lse_part, &few) && CKV__CUDA_LAUNCH(device, mma_sums, &p) &&
               CKV__CUDA_LAUNCH(device, lse, &p.score) && CKV__CUDA_LAUNCH(device, sum_units, &p);
}

/* Weights of those that vote or, with @older, the sums of those whose mean is subtracted */
static bool launch_queries(struct ckv_cuda_score *score, struct ckv_cuda_device *device, bool older) {
        const struct ckv_job_group *group = score->group;
        const struct ckv_job_queries *queries = &score->job->queries;
        struct ckv_k_score p = {
                .layers = score->at[CKV__CUDA_LAYER_STRUCTS],
                .visible = score->tables[TABLE_VISIBLE].at + (older ? score->votes * 2 * sizeof(uint32_t) : 0),
                .part = score->at[ROOM_PART], .lse = score->at[ROOM_LSE], .weights = score->at[older ? ROOM_OLDER : ROOM_INPUT],
                .wrong = score->at[ROOM_WRONG],
                .table = ckv__cuda_table(&group->table, score->tables[TABLE_ENTRIES].at),
                .query_head_stride = score->layers.head_stride, .query_row_stride = score->layers.row_stride,
                .query_dtype = queries->dtype, .query_rows = queries->rows, .ring_start = queries->ring_start,
                .query_first = older ? score->older_first : score->vote_first, .votes = older ? score->older : score->votes,
                .layer_count = score->layers.count, .kv_heads = group->kv_heads, .q_heads = group->q_heads,
                .head_dim = group->head_dim_k, .rows = group->selection.rows, .segments = ckv_k_segments(group->selection.rows),
                .raw = group->policy.scorer == CKV_SCORER_RAW_QK,
                .most = !older && group->policy.scorer != CKV_SCORER_RAW_QK && group->policy.window_reduce == CKV_ROWS_MAX,
                .scale = (float)ckv_ref_scale(group), .softcap = (float)group->policy.softcap,
        };

        if (score->scheme == CKV_CUDA_UNITS_ONCE)
                return launch_sums(score, device, &p);
        if (ckv_k_mma_takes(&p, score->layers.structs))
                return launch_mma(score, device, &p);
        if (!p.raw && (!CKV__CUDA_LAUNCH(device, lse_part, &p) || !CKV__CUDA_LAUNCH(device, lse, &p)))
                return false;
        return CKV__CUDA_LAUNCH(device, weights, &p);
}

static bool launch_norms(struct ckv_cuda_score *score, struct ckv_cuda_device *device, uint32_t kind, CUdeviceptr out) {
        const struct ckv_job_group *group = score->group;
        struct ckv_k_norms p = {
                .layers = score->at[CKV__CUDA_LAYER_STRUCTS], .out = out,
                .table = ckv__cuda_table(&group->table, score->tables[TABLE_ENTRIES].at), .layer_count = score->layers.count,
                .kv_heads = group->kv_heads, .rows = group->selection.rows, .head_dim = group->head_dim_k, .kind = kind,
        };

        return CKV__CUDA_LAUNCH(device, norms, &p);
}

static bool launch_keys(struct ckv_cuda_score *score, struct ckv_cuda_device *device) {
        const struct ckv_job_group *group = score->group;
        struct ckv_k_keys p = {
                .layers = score->at[CKV__CUDA_LAYER_STRUCTS], .part = score->at[ROOM_KEY_PART], .out = score->at[ROOM_INPUT],
                .table = ckv__cuda_table(&group->table, score->tables[TABLE_ENTRIES].at), .layer_count = score->layers.count,
                .kv_heads = group->kv_heads, .rows = group->selection.rows, .head_dim = group->head_dim_k,
                .segments = ckv_k_segments(group->selection.rows),
        };

        if (group->policy.scorer != CKV_SCORER_KEYDIFF)
                return launch_norms(score, device,
                                    group->policy.scorer == CKV_SCORER_KNORM ? CKV_K_NORM_KNORM : CKV_K_NORM_VK_RATIO,
                                    score->at[ROOM_INPUT]);
        return CKV__CUDA_LAUNCH(device, key_sum, &p) && CKV__CUDA_LAUNCH(device, keydiff, &p);
}

/* pool = leak: S1's end and S2 take place here, so ckv_k_rows finds nothing more to do before S3 */
static bool launch_leak(const struct ckv_cuda_score *score, struct ckv_cuda_device *device, struct ckv_k_rows *rows) {
        struct ckv_k_leak p = { .rows = *rows, .begins = score->begins ? score->tables[TABLE_BEGINS].at : 0 };

        rows->pool = CKV_POOL_NONE;
        rows->seen = rows->older = rows->divisor = rows->mute = 0;
        return CKV__CUDA_LAUNCH(device, leak, &p);
}

/* S2, S3 and S4 of what the scorer left in ROOM_INPUT */
static bool launch_units(struct ckv_cuda_score *score, struct ckv_cuda_device *device) {
        const struct ckv_job_group *group = score->group;
        const struct ckv_policy *policy = &group->policy;
        bool weighs = policy->value_weight != CKV_WEIGHT_NONE;
        uint32_t heads = ckv_score_heads(group), layers = score->layers.count;
        struct ckv_k_rows rows = {
                .in = score->at[ROOM_INPUT], .seen = score->seen ? score->tables[TABLE_SEEN].at : 0,
                .older = score->older > 0 ? score->at[ROOM_OLDER] : 0, .older_rows = score->older,
                .value_norms = weighs ? score->at[ROOM_NORMS] : 0, .out = score->at[ROOM_ROWS], .layer_count = layers,
                .heads_in = score->keys ? group->kv_heads : group->q_heads, .kv_heads = group->kv_heads, .score_heads = heads,
                .rows = group->selection.rows, .domain = ckv_ref_pool_domain(group), .pool = policy->pool,
                .pool_size = policy->pool_size, .group_heads = policy->group_heads, .heads = policy->heads,
                .divisor = score->mean && policy->norm == CKV_NORM_MEAN ? score->votes : 0,
                .mute = score->keys || policy->scorer == CKV_SCORER_RAW_QK ? 0 : policy->mute,
        };
        struct ckv_k_units units = {
                .rows_in = score->at[ROOM_ROWS], .unit_of_row = score->tables[TABLE_UNIT_OF_ROW].at,
                .first_row = score->tables[TABLE_FIRST_ROW].at, .size = score->tables[TABLE_SIZE].at, .out = score->at[ROOM_UNITS],
                .sets = layers * heads, .rows = group->selection.rows, .units = score->units->count,
                .unit_reduce = policy->unit_reduce,
        };

        if (weighs && !launch_norms(score, device, policy->value_weight == CKV_WEIGHT_L1 ? CKV_K_NORM_L1 : CKV_K_NORM_L2,
                                    score->at[ROOM_NORMS]))
                return false;
        if (policy->pool == CKV_POOL_LEAK && !launch_leak(score, device, &rows))
                return false;
        return CKV__CUDA_LAUNCH(device, rows, &rows) && CKV__CUDA_LAUNCH(device, units, &units);
}

/* S7 and S8 */
static bool launch_select(struct ckv_cuda_score *score, struct ckv_cuda_device *device) {
        struct ckv_k_select p = ckv__cuda_select_rule(score->group, score->units, score->tables[TABLE_PROTECT].at);

        p.scores = score->at[ROOM_UNITS];
        p.rows_in = p.fill == CKV_FILL_BEST ? score->at[ROOM_ROWS] : 0;
        p.unit_of_row = score->tables[TABLE_UNIT_OF_ROW].at;
        p.first_row = score->tables[TABLE_FIRST_ROW].at;
        p.size = score->tables[TABLE_SIZE].at;
        p.flags = score->at[ROOM_FLAGS];
        p.runs = score->at[ROOM_RUNS];
        p.counts = score->at[ROOM_COUNTS];
        p.sets = score->layers.count * ckv_score_heads(score->group);
        p.runs_most = score->runs_most;
        return CKV__CUDA_LAUNCH(device, select, &p);
}

bool ckv__cuda_launch_scores(struct ckv_cuda_score *score, struct ckv_cuda_device *device) {
        return (score->keys ? launch_keys(score, device) : launch_queries(score, device, false)) &&
               (score->older == 0 || launch_queries(score, device, true)) &&
               (score->scheme == CKV_CUDA_UNITS_ONCE || launch_units(score, device)) &&
               (!score->selects || launch_select(score, device));
}
