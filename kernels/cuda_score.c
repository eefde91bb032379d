/*
 * One group: its tables go to the GPU once, then come batches of layers.  A
 * batch is queued from end to end (what the layers need, the kernels in the
 * order of kernels/cuda/params.h, what comes back) and waited for once.
 *
 * How many layers make a slice is learned: what a batch took, divided by its
 * products, says how many the next one may have.  A kernel cannot be stopped,
 * and one layer is the least that can be launched; of the longest sequences it
 * takes more than a slice.
 *
 * Other jobs have their slices in between, and the same scratch: the tables are
 * sent again if somebody else has been there.
 */
#include "kernels/cuda_score.h"

#include "base/clock.h"
#include "base/macros.h"
#include "kernels/cuda_layers.h"
#include "kernels/cuda_shape.h"
#include "kernels/reference.h"
#include "kernels/sets.h"

#include <string.h>

enum table { TABLE_ENTRIES, TABLE_VISIBLE, TABLE_SEEN, TABLE_UNIT_OF_ROW, TABLE_FIRST_ROW, TABLE_SIZE, _TABLES };

/* What a batch has in the scratch; the first ones are of kernels/cuda_layers.h. */
enum room {
        ROOM_PART = _CKV__CUDA_LAYER_ROOMS, ROOM_LSE, ROOM_INPUT, ROOM_WRONG, ROOM_KEY_PART, ROOM_NORMS, ROOM_ROWS, ROOM_UNITS, _ROOMS,
};

struct ckv_cuda_score {
        const struct ckv_job *job;
        const struct ckv_job_group *group;
        const struct ckv_units *units;
        bool need_rows;
        bool keys;                      /* the scorer gives S[g][j] and reads no queries */
        bool mean;                      /* norm means something */
        uint32_t votes, vote_first;
        uint32_t *visible, *seen;       /* [votes][2], [L + 1]; NULL where they mean nothing */

        struct {
                const void *from;
                uint64_t bytes;
                CUdeviceptr at;
        } tables[_TABLES];
        uint64_t owner, tables_end;     /* of the scratch, once the tables are there */

        uint64_t each[_ROOMS];          /* bytes of one layer */
        CUdeviceptr at[_ROOMS];
        struct ckv__cuda_layers layers;

        uint32_t room_layers;           /* that wrong, unit_scores and row_scores have room for */
        uint32_t *wrong;
        float *unit_scores, *row_scores;
};

struct ckv_cuda_score *ckv__cuda_score_free(struct ckv_cuda_score *score) {
        if (!score)
                return NULL;
        ckv__cuda_layers_deinit(&score->layers);
        free(score->visible);
        free(score->seen);
        free(score->wrong);
        free(score->unit_scores);
        free(score->row_scores);
        free(score);
        return NULL;
}

/* What each query sees, and each row is seen by. Return: false if out of memory. */
static bool init_queries(struct ckv_cuda_score *score) {
        const struct ckv_job *job = score->job;
        const struct ckv_job_group *group = score->group;
        const struct ckv_policy *policy = &group->policy;
        struct ckv_query_rows part = ckv_ref_query_rows(job, group);
        bool raw = policy->scorer == CKV_SCORER_RAW_QK;

        score->votes = part.vote_end - part.vote_first;
        score->vote_first = part.vote_first;
        score->mean = !raw && policy->window_reduce != CKV_ROWS_MAX;
        score->visible = malloc(((size_t)score->votes + 1) * 2 * sizeof(*score->visible));
        if (!score->visible)
                return false;
        for (uint32_t i = 0; i < score->votes; i++) {
                ckv_ref_visible(job, group, job->queries.rows - 1 - part.vote_first - i, &score->visible[2 * i],
                                &score->visible[2 * i + 1]);
                if (raw) {              /* bare products are of all rows */
                        score->visible[2 * i] = 0;
                        score->visible[2 * i + 1] = group->selection.rows;
                }
        }
        if (!score->mean || policy->norm != CKV_NORM_SEEN)
                return true;
        score->seen = malloc(((size_t)group->selection.rows + 1) * sizeof(*score->seen));
        if (score->seen)
                ckv_ref_seen(job, group, score->seen);
        return score->seen != NULL;
}

static void init_tables(struct ckv_cuda_score *score) {
        const struct ckv_job_group *group = score->group;
        uint64_t rows = group->selection.rows, word = sizeof(uint32_t), units = score->units->count;

        score->tables[TABLE_ENTRIES].from = group->table.entries;
        score->tables[TABLE_ENTRIES].bytes = ckv__cuda_table_entries(&group->table, (uint32_t)rows) * word;
        score->tables[TABLE_VISIBLE].from = score->visible;
        score->tables[TABLE_VISIBLE].bytes = score->visible ? score->votes * 2 * word : 0;
        score->tables[TABLE_SEEN].from = score->seen;
        score->tables[TABLE_SEEN].bytes = score->seen ? rows * word : 0;
        score->tables[TABLE_UNIT_OF_ROW].from = score->units->unit_of_row;
        score->tables[TABLE_UNIT_OF_ROW].bytes = rows * word;
        score->tables[TABLE_FIRST_ROW].from = score->units->first_row;
        score->tables[TABLE_FIRST_ROW].bytes = units * word;
        score->tables[TABLE_SIZE].from = score->units->size;
        score->tables[TABLE_SIZE].bytes = units * word;
}

static void init_rooms(struct ckv_cuda_score *score) {
        const struct ckv_job_group *group = score->group;
        uint64_t rows = group->selection.rows, segments = ckv_k_segments((uint32_t)rows), heads = ckv_score_heads(group);
        uint64_t queries = (uint64_t)group->q_heads * score->votes, *each = score->each;

        ckv__cuda_layers_rooms(score->job, group, !score->keys, each);
        if (!score->keys) {
                each[ROOM_PART] = queries * segments * 2 * sizeof(float);
                each[ROOM_LSE] = queries * sizeof(float);
        } else if (group->policy.scorer == CKV_SCORER_KEYDIFF)
                each[ROOM_KEY_PART] = group->kv_heads * segments * group->head_dim_k * sizeof(double);
        each[ROOM_INPUT] = (score->keys ? group->kv_heads : group->q_heads) * rows * sizeof(float);
        each[ROOM_WRONG] = sizeof(uint32_t);
        if (group->policy.value_weight != CKV_WEIGHT_NONE)
                each[ROOM_NORMS] = group->kv_heads * rows * sizeof(float);
        each[ROOM_ROWS] = heads * rows * sizeof(float);
        each[ROOM_UNITS] = heads * score->units->count * sizeof(float);
}

struct ckv_cuda_score *ckv__cuda_score_new(const struct ckv_job *job, const struct ckv_job_group *group, const struct ckv_units *units,
                                           bool need_rows) {
        struct ckv_cuda_score *score = calloc(1, sizeof(*score));

        if (!score)
                return NULL;
        score->job = job;
        score->group = group;
        score->units = units;
        score->need_rows = need_rows;
        score->keys = ckv_ref_scores_kv_heads(&group->policy);
        if (!score->keys && !init_queries(score))
                return ckv__cuda_score_free(score);
        init_tables(score);
        init_rooms(score);
        return score;
}

/* bytes of scratch that @layers take */
static uint64_t bytes_of(const struct ckv_cuda_score *score, uint64_t layers) {
        uint64_t bytes = 0;

        for (uint32_t i = 0; i < _ROOMS; i++)
                bytes += ckv__cuda_rounded(score->each[i] * layers);
        return bytes;
}

static uint64_t bytes_of_tables(const struct ckv_cuda_score *score) {
        uint64_t bytes = 0;

        for (uint32_t i = 0; i < _TABLES; i++)
                bytes += ckv__cuda_rounded(score->tables[i].bytes);
        return bytes;
}

uint64_t ckv__cuda_score_need(const struct ckv_cuda_score *score) {
        return bytes_of_tables(score) + bytes_of(score, 1);
}

/* The tables are in the scratch, and nothing behind them. Return: false: an error. */
static bool send_tables(struct ckv_cuda_score *score, struct ckv_cuda_device *device) {
        if (score->owner == device->owner && score->owner > 0) {
                device->used = score->tables_end;
                return true;
        }
        device->used = 0;
        score->owner = ++device->owner;
        for (uint32_t i = 0; i < _TABLES; i++) {
                score->tables[i].at = ckv__cuda_room(device, score->tables[i].bytes);
                if (!ckv__cuda_up(device, score->tables[i].at, score->tables[i].from, score->tables[i].bytes)) {
                        score->owner = 0;
                        return false;
                }
        }
        score->tables_end = device->used;
        return true;
}

/* Products of one layer, or what else its time goes by. */
static double work_of(const struct ckv_cuda_score *score) {
        const struct ckv_job_group *group = score->group;
        double row = (double)group->selection.rows * (double)group->head_dim_k;

        return score->keys ? row * (double)group->kv_heads : row * (double)group->q_heads * (double)score->votes;
}

/* Layers of the next batch: as many as fit in time and scratch. 0: not even one fits. */
static uint32_t count_layers(const struct ckv_cuda_score *score, const struct ckv_cuda_device *device, uint64_t slice_nsec) {
        uint64_t free_bytes = device->scratch_bytes - device->used, one = bytes_of(score, 1), layers = free_bytes / one;
        double in_time = (double)slice_nsec / (device->nsec_per_work[score->keys] * work_of(score));

        if (in_time < (double)layers)
                layers = in_time > 1 ? (uint64_t)in_time : CKV_MIN(layers, UINT64_C(1));
        /* what comes down lies in the memory of this process for a while */
        layers = CKV_MIN(layers, CKV_MAX(CKV__CUDA_DOWN_BYTES / (score->each[ROOM_ROWS] + score->each[ROOM_UNITS]), UINT64_C(1)));
        return (uint32_t)CKV_MIN(layers, UINT64_C(65535) / (ckv_score_heads(score->group)));
}

static bool make_room(struct ckv_cuda_score *score, uint32_t layers) {
        size_t rows = score->need_rows ? score->each[ROOM_ROWS] : 0;

        if (layers <= score->room_layers)
                return true;
        free(score->wrong);
        free(score->unit_scores);
        free(score->row_scores);
        score->room_layers = 0;
        score->wrong = malloc(layers * sizeof(*score->wrong));
        score->unit_scores = malloc(layers * score->each[ROOM_UNITS] + 1);
        score->row_scores = malloc(layers * rows + 1);
        if (!score->wrong || !score->unit_scores || !score->row_scores)
                return false;
        score->room_layers = layers;
        return true;
}

static bool launch_queries(struct ckv_cuda_score *score, struct ckv_cuda_device *device) {
        const struct ckv_job_group *group = score->group;
        const struct ckv_job_queries *queries = &score->job->queries;
        struct ckv_k_score p = {
                .layers = score->at[CKV__CUDA_LAYER_STRUCTS], .visible = score->tables[TABLE_VISIBLE].at, .part = score->at[ROOM_PART],
                .lse = score->at[ROOM_LSE], .weights = score->at[ROOM_INPUT], .wrong = score->at[ROOM_WRONG],
                .table = ckv__cuda_table(&group->table, score->tables[TABLE_ENTRIES].at),
                .query_head_stride = score->layers.head_stride, .query_row_stride = score->layers.row_stride,
                .query_dtype = queries->dtype, .query_rows = queries->rows, .ring_start = queries->ring_start,
                .query_first = score->vote_first, .votes = score->votes, .layer_count = score->layers.count,
                .kv_heads = group->kv_heads, .q_heads = group->q_heads, .head_dim = group->head_dim_k, .rows = group->selection.rows,
                .segments = ckv_k_segments(group->selection.rows), .raw = group->policy.scorer == CKV_SCORER_RAW_QK,
                .most = group->policy.scorer != CKV_SCORER_RAW_QK && group->policy.window_reduce == CKV_ROWS_MAX,
                .scale = (float)ckv_ref_scale(group), .softcap = (float)group->policy.softcap,
        };

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

/* S2, S3 and S4 of what the scorer left in ROOM_INPUT */
static bool launch_units(struct ckv_cuda_score *score, struct ckv_cuda_device *device) {
        const struct ckv_job_group *group = score->group;
        const struct ckv_policy *policy = &group->policy;
        bool weighs = policy->value_weight != CKV_WEIGHT_NONE;
        uint32_t heads = ckv_score_heads(group), layers = score->layers.count;
        struct ckv_k_rows rows = {
                .in = score->at[ROOM_INPUT], .seen = score->seen ? score->tables[TABLE_SEEN].at : 0,
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
        return CKV__CUDA_LAUNCH(device, rows, &rows) && CKV__CUDA_LAUNCH(device, units, &units);
}

/* Everything of a batch, from its layers to what comes back */
static bool queue(struct ckv_cuda_score *score, struct ckv_cuda_device *device, uint32_t leader) {
        uint32_t layers = score->layers.count;

        return ckv__cuda_layers_send(&score->layers, device, score->job, score->group, leader, score->at) &&
               /* before lse: it keeps the lowest head that is wrong */
               CKV__CUDA(device, cuMemsetD32Async, score->at[ROOM_WRONG], UINT32_MAX, layers, device->stream) &&
               (score->keys ? launch_keys(score, device) : launch_queries(score, device)) && launch_units(score, device) &&
               ckv__cuda_down(device, score->wrong, score->at[ROOM_WRONG], layers * sizeof(*score->wrong)) &&
               ckv__cuda_down(device, score->unit_scores, score->at[ROOM_UNITS], layers * score->each[ROOM_UNITS]) &&
               (!score->need_rows || ckv__cuda_down(device, score->row_scores, score->at[ROOM_ROWS], layers * score->each[ROOM_ROWS]));
}

enum ckv_cuda_scored ckv__cuda_score_run(struct ckv_cuda_score *score, struct ckv_cuda_device *device, uint32_t leader,
                                         uint64_t slice_nsec, struct ckv_cuda_batch *ret_batch) {
        uint64_t start = ckv_now_nsec();
        double *rate = &device->nsec_per_work[score->keys];
        uint32_t layers;
        bool done;

        if (ckv__cuda_score_need(score) > device->scratch_bytes)
                return CKV_CUDA_SCORED_NO_ROOM;
        if (!send_tables(score, device)) {
                (void)ckv__cuda_finish(device);
                return CKV_CUDA_SCORED_FAILED;
        }
        layers = count_layers(score, device, slice_nsec);
        if (!ckv__cuda_layers_choose(&score->layers, device, score->group, leader, layers) || !make_room(score, score->layers.count)) {
                (void)ckv__cuda_finish(device);
                return CKV_CUDA_SCORED_NO_MEMORY;
        }
        for (uint32_t i = 0; i < _ROOMS; i++)
                score->at[i] = ckv__cuda_room(device, score->each[i] * score->layers.count);
        done = queue(score, device, leader);
        done = ckv__cuda_finish(device) && done;
        if (!done) {
                score->owner = 0;
                return CKV_CUDA_SCORED_FAILED;
        }
        *rate = (*rate + (double)(ckv_now_nsec() - start) / ((double)score->layers.count * work_of(score))) / 2;
        *ret_batch = (struct ckv_cuda_batch){
                .count = score->layers.count, .wrong = score->wrong, .units = score->unit_scores,
                .rows = score->need_rows ? score->row_scores : NULL,
        };
        return CKV_CUDA_SCORED;
}
