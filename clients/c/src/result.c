/*
 * An answer as a result.  The lists of numbers stay where protobuf-c has
 * unpacked them: the result owns the message and points into it.  Sets that
 * came in memory of ours are copied by region_sets.c.  Runs are checked once,
 * here, so that a faulty daemon cannot make a caller walk past its rows.
 */
#include "base/fnv.h"
#include "clients/c/src/control.h"
#include "proto/runs.h"

#include <errno.h>
#include <inttypes.h>

/* What the caller gets, and behind it what that points to. */
struct owned_result {
        struct chunkkv_result result;           /* first: freed by its address */
        struct ckv__arena arena;
        Chunkkv__V1__Response *reply;
};

struct chunkkv_result *chunkkv_result_free(struct chunkkv_result *result) {
        struct owned_result *owned = (struct owned_result *)(void *)result;

        if (!owned)
                return NULL;
        ckv__reply_freep(&owned->reply);
        ckv__arena_deinit(&owned->arena);
        free(owned);
        return NULL;
}

static void result_freep(struct chunkkv_result **result) {
        *result = chunkkv_result_free(*result);
}

static int set_check(const Chunkkv__V1__KeptSet *set, uint32_t rows, struct chunkkv_error *ret_error) {
        for (size_t i = 0; i < set->n_rows; i++) {
                if (set->rows[i] >= rows || (i > 0 && set->rows[i] <= set->rows[i - 1]))
                        return ckv__fault(ret_error, -EPROTO, "rows",
                                          "kept rows of layer %" PRIu32 " are not ascending below %" PRIu32,
                                          set->layer_first, rows);
        }
        if (ckv_runs_check(set->runs, set->n_runs, rows, NULL, NULL) ||
            ckv_runs_check(set->position_runs, set->n_position_runs, UINT32_MAX, NULL, NULL))
                return ckv__fault(ret_error, -EPROTO, "runs",
                                  "kept runs of layer %" PRIu32 " are malformed or pass row %" PRIu32, set->layer_first,
                                  rows);
        return 0;
}

static int sets_decode(struct ckv__arena *arena, const Chunkkv__V1__GroupResult *message,
                       struct chunkkv_group_result *group, struct chunkkv_error *ret_error) {
        struct chunkkv_set *sets = ckv__arena_take(arena, message->n_sets, sizeof(*sets));
        int r;

        if (!sets)
                return ckv__fault(ret_error, -ENOMEM, "", "no memory for %zu sets", message->n_sets);
        for (size_t i = 0; i < message->n_sets; i++) {
                const Chunkkv__V1__KeptSet *set = message->sets[i];

                r = set_check(set, message->physical_before, ret_error);
                if (r)
                        return r;
                sets[i] = (struct chunkkv_set){
                        .layer_first = set->layer_first, .kv_head = set->kv_head, .runs = set->runs,
                        .run_count = set->n_runs,
                        .rows = set->rows, .row_count = set->n_rows, .position_runs = set->position_runs,
                        .position_run_count = set->n_position_runs,
                };
        }
        group->sets = sets;
        group->set_count = message->n_sets;
        return 0;
}

static int group_decode(struct ckv__arena *arena, const Chunkkv__V1__GroupResult *message,
                        struct chunkkv_group_result *group, struct chunkkv_error *ret_error) {
        struct chunkkv_policy *policies = ckv__arena_take(arena, message->n_policies, sizeof(*policies));

        if (!policies)
                return ckv__fault(ret_error, -ENOMEM, "", "no memory for %zu policies", message->n_policies);
        for (size_t i = 0; i < message->n_policies; i++)
                ckv__policy_decode(message->policies[i], &policies[i]);
        *group = (struct chunkkv_group_result){
                .group = message->group, .physical_before = message->physical_before,
                .physical_len = message->physical_len,
                .kept_all = (uint32_t)message->kept_all, .table_used = message->table_used, .budget = message->budget,
                .budget_raised = message->budget_raised, .kept_digest = message->kept_digest,
                .bytes_moved = message->bytes_moved, .set_total = message->set_count,
                .policies = policies, .policy_count = message->n_policies,
        };
        return 0;
}

/* What the request asked for, where its answer came in memory of ours; else NULL. */
static Chunkkv__V1__Request *question(const struct ckv__request *request) {
        return request->sets ? chunkkv__v1__request__unpack(NULL, request->size, request->bytes) : NULL;
}

static int groups_decode(struct ckv__arena *arena, const struct ckv__request *request,
                         const Chunkkv__V1__Compressed *message, struct chunkkv_group_result *groups,
                         struct chunkkv_error *ret_error) {
        Chunkkv__V1__Request *asked = question(request);
        uint64_t at = 0;
        int r = 0;

        if (request->sets && (!asked || asked->compress->n_groups != message->n_groups))
                r = ckv__fault(ret_error, asked ? -EPROTO : -ENOMEM, "groups", "the answer has %zu groups",
                               message->n_groups);
        for (size_t i = 0; r == 0 && i < message->n_groups; i++) {
                r = group_decode(arena, message->groups[i], &groups[i], ret_error);
                if (r)
                        break;
                if (asked) {
                        groups[i].set_count = groups[i].set_total;
                        r = ckv__region_sets(arena, request, asked->compress->groups[i], &at, &groups[i], ret_error);
                } else {
                        r = sets_decode(arena, message->groups[i], &groups[i], ret_error);
                }
        }
        if (asked)
                chunkkv__v1__request__free_unpacked(asked, NULL);
        return r;
}

int ckv__result_new(struct ckv__request *request, struct chunkkv_result **ret_result, struct chunkkv_error *ret_error) {
        _cleanup_(result_freep) struct chunkkv_result *result = NULL;
        const Chunkkv__V1__Response *reply = request->reply;
        const Chunkkv__V1__Compressed *message = reply->compressed;
        struct chunkkv_group_result *groups;
        struct owned_result *owned;
        int r;

        owned = calloc(1, sizeof(*owned));
        if (!owned)
                return ckv__fault(ret_error, -ENOMEM, "", "no memory for a result");
        result = &owned->result;
        *result = (struct chunkkv_result){
                .request_id = request->handle, .generation = reply->generation,
                .phase = (uint32_t)message->phase,
                .cache = (uint32_t)reply->status->cache, .logical_len = message->logical_len,
                .repeated_answer = reply->repeated_answer,
        };
        if (message->timing) {
                result->queue_us = message->timing->queue_us;
                result->score_us = message->timing->score_us;
                result->select_us = message->timing->select_us;
                result->move_us = message->timing->move_us;
                result->total_us = message->timing->total_us;
        }
        groups = ckv__arena_take(&owned->arena, message->n_groups, sizeof(*groups));
        if (!groups)
                return ckv__fault(ret_error, -ENOMEM, "", "no memory for %zu groups", message->n_groups);
        r = groups_decode(&owned->arena, request, message, groups, ret_error);
        if (r)
                return r;
        result->groups = groups;
        result->group_count = message->n_groups;
        owned->reply = ckv_steal(&request->reply);
        *ret_result = ckv_steal(&result);
        return 0;
}

/* One group of an answer that is made of found sets. Return: false without memory. */
static bool group_of_sets(struct ckv__arena *arena, const struct ckv__writing *writing, const Chunkkv__V1__GroupJob *job,
                          const struct ckv__found *found, size_t count, uint32_t tokens_per_block,
                          struct chunkkv_group_result *group) {
        struct chunkkv_set *sets = ckv__arena_take(arena, count, sizeof(*sets));
        bool blocks = job->table && (job->table->form == CHUNKKV__V1__TABLE_FORM__TABLE_BLOCKS ||
                                     job->table->form == CHUNKKV__V1__TABLE_FORM__TABLE_BLOCK_RUNS);
        uint32_t length = 0, per_entry = blocks ? tokens_per_block : 1;
        uint64_t digest = CKV_FNV64_INIT;
        size_t n = 0;

        for (size_t i = 0; sets && i < count; i++) {
                const struct chunkkv_region_set *set = &found[i].set;
                const uint32_t head[] = { set->group, set->layer_first, set->kv_head, set->physical_before,
                        set->physical_len, (uint32_t)set->run_count };

                if (set->group != job->group)
                        continue;
                digest = ckv_fnv64(digest, head, sizeof(head));
                digest = ckv_fnv64(digest, set->runs, set->run_count * sizeof(*set->runs));
                length = CKV_MAX(length, set->physical_len);
                if (ckv__set_fill(arena, writing->reply_form, job, set, &sets[n++]))
                        return false;
        }
        *group = (struct chunkkv_group_result){
                .group = job->group, .physical_before = job->physical_len, .physical_len = length,
                .table_used = (length + per_entry - 1) / per_entry, .kept_digest = digest, .sets = sets, .set_count = n,
                .set_total = n,
        };
        if (length == job->physical_len)
                group->kept_all = length ? CHUNKKV_KEPT_FITS : CHUNKKV_KEPT_EMPTY;
        return sets != NULL;
}

int ckv__result_of_sets(const struct ckv__writing *writing, const Chunkkv__V1__Compress *job, const Chunkkv__V1__RegisterCache *layout,
                        const struct ckv__found *found, size_t count, struct chunkkv_result **ret_result) {
        _cleanup_(result_freep) struct chunkkv_result *result = NULL;
        struct owned_result *owned = calloc(1, sizeof(*owned));
        struct chunkkv_group_result *groups;

        if (!owned)
                return -ENOMEM;
        result = &owned->result;
        *result = (struct chunkkv_result){
                .request_id = writing->handle, .generation = writing->generation, .phase = CHUNKKV_PHASE_DONE,
                .cache = CHUNKKV_CACHE_COMMITTED, .logical_len = job->logical_len, .group_count = job->n_groups,
        };
        groups = ckv__arena_take(&owned->arena, job->n_groups, sizeof(*groups));
        for (size_t i = 0; groups && i < job->n_groups; i++) {
                if (!group_of_sets(&owned->arena, writing, job->groups[i], found, count, layout->groups[job->groups[i]->group]->tokens_per_block,
                                   &groups[i]))
                        return -ENOMEM;
        }
        if (!groups)
                return -ENOMEM;
        result->groups = groups;
        *ret_result = ckv_steal(&result);
        return 0;
}

void ckv__result_repaired(struct chunkkv_result *result, uint64_t request_id) {
        result->repaired = true;
        result->request_id = request_id;
}

const struct chunkkv_set *chunkkv_set_find(const struct chunkkv_group_result *group, uint32_t layer, uint32_t kv_head) {
        const struct chunkkv_set *found = NULL;
        uint32_t first = 0, heads = 0;

        /* the sets of the newest layer named up to this one: one, or one for each KV head */
        for (size_t i = 0; i < group->set_count; i++) {
                const struct chunkkv_set *set = &group->sets[i];

                if (set->layer_first > layer || (heads > 0 && set->layer_first < first))
                        continue;
                if (heads == 0 || set->layer_first > first) {
                        first = set->layer_first;
                        heads = 0;
                        found = NULL;
                }
                heads++;
                if (set->kv_head == kv_head || (set->kv_head == 0 && !found))
                        found = set;
        }
        return heads <= 1 || found->kv_head == kv_head ? found : NULL;
}

size_t chunkkv_kept_mass(const struct chunkkv_result *result, size_t group, const float **ret_mass) {
        const struct owned_result *owned = (const struct owned_result *)(const void *)result;
        const Chunkkv__V1__GroupResult *message;

        if (!owned->reply || !owned->reply->compressed || group >= owned->reply->compressed->n_groups)
                return 0;
        message = owned->reply->compressed->groups[group];
        if (message->n_kept_mass > 0)
                *ret_mass = message->kept_mass;
        return message->n_kept_mass;
}

bool chunkkv_runs_next(const uint32_t *runs, size_t count, struct chunkkv_cursor *cursor, uint32_t *ret_first,
                       uint32_t *ret_end) {
        uint32_t kept;

        if (!ckv_runs_next(runs, count, &cursor->at, &cursor->row, ret_first, &kept))
                return false;
        *ret_end = *ret_first + kept;
        return true;
}

uint64_t chunkkv_runs_kept(const uint32_t *runs, size_t count) {
        uint64_t kept = 0;

        for (size_t i = 1; i < count; i += 2)
                kept += runs[i];
        return kept;
}

size_t chunkkv_runs_to_rows(const uint32_t *runs, size_t count, uint32_t *ret_rows, size_t room) {
        struct chunkkv_cursor cursor = { 0 };
        uint32_t row, end;
        size_t n = 0;

        while (chunkkv_runs_next(runs, count, &cursor, &row, &end)) {
                for (; row < end; row++, n++) {
                        if (n < room)
                                ret_rows[n] = row;
                }
        }
        return n;
}

size_t chunkkv_runs_encode(const uint32_t *ranges, size_t range_count, uint32_t *ret_runs) {
        return ckv_runs_encode(ranges, range_count, ret_runs);
}
