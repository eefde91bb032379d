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
#include "kernels/cuda_launches.h"
#include "kernels/cuda_select.h"
#include "kernels/cuda_shape.h"
#include "kernels/reference.h"
#include "kernels/scores.h"
#include "kernels/sets.h"

#include <string.h>

static void free_room(struct ckv_cuda_score *score) {
        free(score->wrong);
        free(score->counts);
        free(score->unit_scores);
        free(score->row_scores);
        free(score->runs);
        score->room_layers = 0;
}

struct ckv_cuda_score *ckv__cuda_score_free(struct ckv_cuda_score *score) {
        if (!score)
                return NULL;
        ckv__cuda_layers_deinit(&score->layers);
        free(score->visible);
        free(score->seen);
        free(score->bounds);
        free(score->begins);
        free_room(score);
        free(score);
        return NULL;
}

/* What each of @count query rows from @first on sees */
static void look(const struct ckv_cuda_score *score, uint32_t first, uint32_t count, uint32_t *ret_visible) {
        const struct ckv_job *job = score->job;
        const struct ckv_job_group *group = score->group;

        for (uint32_t i = 0; i < count; i++) {
                ckv_ref_visible(job, group, job->queries.rows - 1 - first - i, &ret_visible[2 * i], &ret_visible[2 * i + 1]);
                if (group->policy.scorer == CKV_SCORER_RAW_QK) {        /* bare products are of all rows */
                        ret_visible[2 * i] = 0;
                        ret_visible[2 * i + 1] = group->selection.rows;
                }
        }
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
        score->older = raw ? 0 : part.contrast_end - part.contrast_first;
        score->older_first = part.contrast_first;
        score->mean = !raw && policy->window_reduce != CKV_ROWS_MAX;
        score->visible = malloc(((size_t)score->votes + score->older + 1) * 2 * sizeof(*score->visible));
        if (!score->visible)
                return false;
        look(score, score->vote_first, score->votes, score->visible);
        look(score, score->older_first, score->older, score->visible + 2 * (size_t)score->votes);
        if (!score->mean || policy->norm != CKV_NORM_SEEN)
                return true;
        score->seen = malloc(((size_t)group->selection.rows + 1) * sizeof(*score->seen));
        if (score->seen)
                ckv_ref_seen(job, group, score->seen);
        return score->seen != NULL;
}

/* Where chunks of the caller's begin, up to which scores leak more. Return: false if out of memory. */
static bool init_begins(struct ckv_cuda_score *score) {
        const struct ckv_selection *selection = &score->group->selection;
        uint32_t at = 0;

        if (score->group->policy.pool != CKV_POOL_LEAK || !selection->chunk_lengths)
                return true;
        score->begins = calloc((size_t)selection->rows + 1, sizeof(*score->begins));
        for (size_t i = 0; score->begins && i < selection->chunk_length_count; i++) {
                at += selection->chunk_lengths[i];
                score->begins[CKV_MIN(at, selection->rows)] = 1;
        }
        return score->begins != NULL;
}

static void init_tables(struct ckv_cuda_score *score) {
        const struct ckv_job_group *group = score->group;
        uint64_t rows = group->selection.rows, word = sizeof(uint32_t), units = score->units->count;

        score->tables[TABLE_ENTRIES].from = group->table.entries;
        score->tables[TABLE_ENTRIES].bytes = ckv__cuda_table_entries(&group->table, (uint32_t)rows) * word;
        score->tables[TABLE_VISIBLE].from = score->visible;
        score->tables[TABLE_VISIBLE].bytes = score->visible ? ((uint64_t)score->votes + score->older) * 2 * word : 0;
        score->tables[TABLE_SEEN].from = score->seen;
        score->tables[TABLE_SEEN].bytes = score->seen ? rows * word : 0;
        score->tables[TABLE_UNIT_OF_ROW].from = score->units->unit_of_row;
        score->tables[TABLE_UNIT_OF_ROW].bytes = rows * word;
        score->tables[TABLE_FIRST_ROW].from = score->units->first_row;
        score->tables[TABLE_FIRST_ROW].bytes = units * word;
        score->tables[TABLE_SIZE].from = score->units->size;
        score->tables[TABLE_SIZE].bytes = units * word;
        score->tables[TABLE_PROTECT].from = score->protected_rows;
        score->tables[TABLE_PROTECT].bytes = score->selects ? rows : 0;
        score->tables[TABLE_BOUNDS].from = score->bounds;
        score->tables[TABLE_BOUNDS].bytes = score->bounds ? ckv_k_segments((uint32_t)rows) * 2 * word : 0;
        score->tables[TABLE_BEGINS].from = score->begins;
        score->tables[TABLE_BEGINS].bytes = score->begins ? rows + 1 : 0;
}

static void init_rooms(struct ckv_cuda_score *score) {
        const struct ckv_job_group *group = score->group;
        uint64_t rows = group->selection.rows, segments = ckv_k_segments((uint32_t)rows), heads = ckv_score_heads(group);
        /* those that vote and the older ones take turns in the same room */
        uint64_t queries = (uint64_t)group->q_heads * CKV_MAX(score->votes, score->older), *each = score->rooms[0];

        ckv__cuda_layers_rooms(score->job, group, !score->keys, each);
        if (!score->keys) {
                each[ROOM_PART] = queries * segments * 2 * sizeof(float);
                each[ROOM_LSE] = queries * sizeof(float);
        } else if (group->policy.scorer == CKV_SCORER_KEYDIFF)
                each[ROOM_KEY_PART] = group->kv_heads * segments * group->head_dim_k * sizeof(double);
        each[ROOM_INPUT] = (score->keys ? group->kv_heads : group->q_heads) * rows * sizeof(float);
        if (score->older > 0)
                each[ROOM_OLDER] = each[ROOM_INPUT];
        each[ROOM_WRONG] = sizeof(uint32_t);
        if (group->policy.value_weight != CKV_WEIGHT_NONE)
                each[ROOM_NORMS] = group->kv_heads * rows * sizeof(float);
        each[ROOM_ROWS] = heads * rows * sizeof(float);
        each[ROOM_UNITS] = heads * score->units->count * sizeof(float);
        if (!score->selects)
                return;
        each[ROOM_FLAGS] = heads * rows;
        each[ROOM_RUNS] = heads * score->runs_most * sizeof(struct ckv_run);
        each[ROOM_COUNTS] = heads * 3 * sizeof(uint32_t);
}

/* Borders of sums by unit, and their rooms in place of weights by row, if such sums will do. Return: false if out of memory. */
static bool init_sums(struct ckv_cuda_score *score) {
        const struct ckv_job_group *group = score->group;
        uint64_t units = score->units->count, segments = ckv_k_segments(group->selection.rows), *each = score->rooms[1];
        uint64_t columns = ckv_k_columns((uint32_t)units, (uint32_t)segments);

        memcpy(each, score->rooms[0], sizeof(score->rooms[0]));
        if (score->keys || group->policy.scorer != CKV_SCORER_WINDOW || !ckv_scores_units_will_do(group, (uint32_t)units))
                return true;
        score->bounds = malloc(segments * 2 * sizeof(*score->bounds));
        if (!score->bounds)
                return false;
        if (!ckv__cuda_sums_bounds(group, score->units, score->bounds)) {
                free(score->bounds);
                score->bounds = NULL;
                return true;
        }
        each[ROOM_INPUT] = each[ROOM_ROWS] = 0;
        each[ROOM_REFERENCE] = (uint64_t)group->q_heads * score->votes * 2 * sizeof(float);
        each[ROOM_SUMS] = columns * group->q_heads * CKV_K_MMA_WIDTH(score->votes) * sizeof(float);
        return true;
}

struct ckv_cuda_score *ckv__cuda_score_new(const struct ckv_job *job, const struct ckv_job_group *group,
                                           const struct ckv_units *units, const uint8_t *protected_rows) {
        struct ckv_cuda_score *score = calloc(1, sizeof(*score));

        if (!score)
                return NULL;
        score->job = job;
        score->group = group;
        score->units = units;
        score->protected_rows = protected_rows;
        score->selects = ckv__cuda_selects(group, units);
        score->runs_most = ckv__cuda_select_runs(group);
        score->units_down = !score->selects || (group->scores.out && !group->scores.by_row);
        score->rows_down = (!score->selects && ckv_scores_need_rows(group)) || (group->scores.out && group->scores.by_row) ||
                           group->kept_mass;
        score->keys = ckv_ref_scores_kv_heads(&group->policy);
        if (!score->keys && (!init_queries(score) || !init_begins(score)))
                return ckv__cuda_score_free(score);
        init_rooms(score);
        if (!init_sums(score))
                return ckv__cuda_score_free(score);
        init_tables(score);
        score->each = score->rooms[0];
        score->far = UINT32_MAX;
        return score;
}

/* bytes of scratch that one layer takes */
static uint64_t bytes_of(const uint64_t each[_ROOMS]) {
        uint64_t bytes = 0;

        for (uint32_t i = 0; i < _ROOMS; i++)
                bytes += ckv__cuda_rounded(each[i]);
        return bytes;
}

static uint64_t bytes_of_tables(const struct ckv_cuda_score *score) {
        uint64_t bytes = 0;

        for (uint32_t i = 0; i < _TABLES; i++)
                bytes += ckv__cuda_rounded(score->tables[i].bytes);
        return bytes;
}

uint64_t ckv__cuda_score_need(const struct ckv_cuda_score *score) {
        return bytes_of_tables(score) + bytes_of(score->rooms[0]);
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

        return score->keys ? row * (double)group->kv_heads : row * (double)group->q_heads * ((double)score->votes + score->older);
}

/* Layers of the next batch: as many as fit in time and scratch. 0: not even one fits. */
static uint32_t count_layers(const struct ckv_cuda_score *score, const struct ckv_cuda_device *device, uint64_t slice_nsec) {
        uint64_t free_bytes = device->scratch_bytes - device->used, one = bytes_of(score->each), layers = free_bytes / one;
        double in_time = (double)slice_nsec / (device->nsec_per_work[score->keys] * work_of(score));

        if (in_time < (double)layers)
                layers = in_time > 1 ? (uint64_t)in_time : CKV_MIN(layers, UINT64_C(1));
        /* what comes down lies in the memory of this process for a while */
        layers = CKV_MIN(layers, CKV_MAX(CKV__CUDA_DOWN_BYTES / (score->each[ROOM_ROWS] + score->each[ROOM_UNITS]), UINT64_C(1)));
        return (uint32_t)CKV_MIN(layers, UINT64_C(65535) / (ckv_score_heads(score->group)));
}

static bool make_room(struct ckv_cuda_score *score, uint32_t layers) {
        const uint64_t *each = score->each;

        if (layers <= score->room_layers)
                return true;
        free_room(score);
        score->wrong = malloc(layers * each[ROOM_WRONG]);
        score->counts = malloc(layers * each[ROOM_COUNTS] + 1);
        score->unit_scores = malloc(layers * each[ROOM_UNITS] + 1);
        score->row_scores = malloc(layers * (ckv_scores_need_rows(score->group) || score->rows_down ? each[ROOM_ROWS] : 0) + 1);
        score->runs = malloc(layers * each[ROOM_RUNS] + 1);
        if (!score->wrong || !score->counts || !score->unit_scores || !score->row_scores || !score->runs) {
                free_room(score);
                score->wrong = score->counts = NULL;
                score->unit_scores = score->row_scores = NULL;
                score->runs = NULL;
                return false;
        }
        score->room_layers = layers;
        return true;
}

/* What a batch left in one of its rooms */
static bool down(const struct ckv_cuda_score *score, struct ckv_cuda_device *device, enum ckv__cuda_score_room room, void *to) {
        return ckv__cuda_down(device, to, score->at[room], score->layers.count * score->each[room]);
}

/* Everything of a batch, from its layers to what comes back */
static bool queue(struct ckv_cuda_score *score, struct ckv_cuda_device *device, uint32_t leader) {
        return ckv__cuda_layers_send(&score->layers, device, score->job, score->group, leader, score->at) &&
               /* before lse: it keeps the lowest head that is wrong */
               CKV__CUDA(device, cuMemsetD32Async, score->at[ROOM_WRONG], UINT32_MAX, score->layers.count, device->stream) &&
               ckv__cuda_launch_scores(score, device) && down(score, device, ROOM_WRONG, score->wrong) &&
               (!score->selects ||
                (down(score, device, ROOM_COUNTS, score->counts) && down(score, device, ROOM_RUNS, score->runs))) &&
               (!score->units_down || down(score, device, ROOM_UNITS, score->unit_scores)) &&
               (!score->rows_down || down(score, device, ROOM_ROWS, score->row_scores));
}

/* Has each set as many runs as there is room for? */
static bool runs_fit(const struct ckv_cuda_score *score) {
        for (uint32_t i = 0; score->selects && i < score->layers.count * ckv_score_heads(score->group); i++)
                if (score->counts[3 * i] > score->runs_most)
                        return false;
        return true;
}

/* The host selects what has more runs than were expected: it needs the scores for that. Return: false: an error. */
static bool select_on_host(struct ckv_cuda_score *score, struct ckv_cuda_device *device) {
        bool done = (score->units_down || down(score, device, ROOM_UNITS, score->unit_scores)) &&
                    (score->rows_down || !ckv_scores_need_rows(score->group) || down(score, device, ROOM_ROWS, score->row_scores));

        return ckv__cuda_finish(device) && done;
}

/* The way of the leader at hand, and of the batch that begins with it */
static void set_scheme(struct ckv_cuda_score *score, struct ckv_cuda_device *device, uint32_t leader) {
        struct ckv_cuda_kind kind = ckv__cuda_layers_kind(device, score->job, score->group, leader);
        bool sums = score->bounds && leader != score->far &&
                    bytes_of_tables(score) + bytes_of(score->rooms[1]) <= device->scratch_bytes;

        score->scheme = ckv__cuda_scheme(score->group, &kind, sums ? score->units->count : 0);
        score->each = score->rooms[score->scheme == CKV_CUDA_UNITS_ONCE];
}

/* Layers of the batch before the first one whose references were far from its logits, which is remembered. */
static uint32_t count_near(struct ckv_cuda_score *score, uint32_t leader) {
        uint32_t near = 0;

        while (near < score->layers.count && score->wrong[near] == UINT32_MAX) {
                leader = ckv_sets_next_leader(score->group, leader);
                near++;
        }
        if (near < score->layers.count)
                score->far = leader;
        return near;
}

enum ckv_cuda_scored ckv__cuda_score_run(struct ckv_cuda_score *score, struct ckv_cuda_device *device, uint32_t leader,
                                         uint64_t slice_nsec, struct ckv_cuda_batch *ret_batch) {
        uint64_t start = ckv_now_nsec();
        bool selects = score->selects, done;
        uint32_t layers;

        if (ckv__cuda_score_need(score) > device->scratch_bytes)
                return CKV_CUDA_SCORED_NO_ROOM;
        if (!send_tables(score, device)) {
                (void)ckv__cuda_finish(device);
                return CKV_CUDA_SCORED_FAILED;
        }
        set_scheme(score, device, leader);
        layers = leader == score->far ? 1 : count_layers(score, device, slice_nsec);
        if (!ckv__cuda_layers_choose(&score->layers, device, score->job, score->group, leader, layers) ||
            !make_room(score, score->layers.count)) {
                (void)ckv__cuda_finish(device);
                return CKV_CUDA_SCORED_NO_MEMORY;
        }
        for (uint32_t i = 0; i < _ROOMS; i++)
                score->at[i] = ckv__cuda_room(device, score->each[i] * score->layers.count);
        done = queue(score, device, leader);
        done = ckv__cuda_finish(device) && done;
        if (done && score->scheme == CKV_CUDA_UNITS_ONCE) {
                score->layers.count = count_near(score, leader);
                if (score->layers.count == 0)
                        return ckv__cuda_score_run(score, device, leader, slice_nsec, ret_batch);
        }
        if (done && !runs_fit(score)) {
                selects = false;
                done = select_on_host(score, device);
        }
        if (!done) {
                score->owner = 0;
                return CKV_CUDA_SCORED_FAILED;
        }
        ckv__cuda_learn(&device->nsec_per_work[score->keys], (double)score->layers.count * work_of(score), ckv_now_nsec() - start,
                        slice_nsec);
        *ret_batch = (struct ckv_cuda_batch){
                .count = score->layers.count, .wrong = score->wrong, .units = score->unit_scores, .rows = score->row_scores,
                .counts = selects ? score->counts : NULL, .runs = score->runs, .runs_most = score->runs_most,
        };
        return CKV_CUDA_SCORED;
}
