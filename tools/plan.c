/*
 * A plan: batch by batch into shared memory, registered, planned, forgotten.
 * The daemon sees each batch as an engine's cache of one sequence.  `compress`
 * differs only by the mode: the daemon moves the rows of that cache in place,
 * and what then lies at its front is taken out.
 *
 * How many scores a group has is not said in the answer.  Their place is
 * filled with NaN before, which no score is (NONFINITE_SCORE), so those that
 * were written can be counted.
 */
#include "tools/plan.h"

#include "base/macros.h"
#include "tools/batch.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

/* Query rows that a request may bring, but for selectors that need all of them. */
#define QUERY_ROWS_MAX 256u

bool ckv_plan_needs_value(const struct chunkkv_policy *policy) {
        return policy->value_weight != CHUNKKV_WEIGHT_NONE || policy->scorer == CHUNKKV_SCORER_DROP ||
               policy->scorer == CHUNKKV_SCORER_LAGKV || policy->scorer == CHUNKKV_SCORER_VK_RATIO;
}

bool ckv_plan_needs_query(const struct chunkkv_policy *policy) {
        return policy->scorer != CHUNKKV_SCORER_KNORM && policy->scorer != CHUNKKV_SCORER_KEYDIFF &&
               policy->scorer != CHUNKKV_SCORER_LAGKV && policy->scorer != CHUNKKV_SCORER_VK_RATIO &&
               policy->selector != CHUNKKV_SELECTOR_STREAMING;
}

static int fail(struct chunkkv_error *ret_error, int error, const char *detail) {
        *ret_error = (struct chunkkv_error){ .error = error };
        (void)snprintf(ret_error->detail, sizeof(ret_error->detail), "%s", detail);
        return error;
}

/* The kept rows of a set. Return: 0 or -ENOMEM. */
static int set_ranges(const struct chunkkv_set *set, uint32_t **ret_ranges, size_t *ret_count, uint64_t *ret_kept) {
        uint32_t *ranges = calloc(set->run_count / 2 + 1, 2 * sizeof(uint32_t)), first, end;
        struct chunkkv_cursor cursor = { 0 };
        size_t count = 0;
        uint64_t kept = 0;

        if (!ranges)
                return -ENOMEM;
        while (chunkkv_runs_next(set->runs, set->run_count, &cursor, &first, &end)) {
                ranges[2 * count] = first;
                ranges[2 * count + 1] = end;
                count++;
                kept += end - first;
        }
        *ret_ranges = ranges;
        *ret_count = count;
        *ret_kept = kept;
        return 0;
}

/* The kept rows of one layer out of its sets, or all rows without one. */
static int ranges_fill(struct ckv_plan_layer *layer, const struct chunkkv_group_result *group, uint32_t kv_heads,
                       struct chunkkv_error *ret_error) {
        const struct chunkkv_set *set = chunkkv_set_find(group, layer->number, 0), *other;
        const struct chunkkv_set all = { .runs = (const uint32_t[]){ 0, layer->physical_before }, .run_count = 2 };
        uint64_t kept;

        if (layer->kept_all)
                set = &all;
        if (!set)
                return fail(ret_error, -EPROTO, "the answer has no kept set for a layer");
        if (layer->kept_all && layer->physical_before == 0)
                return 0;
        if (set_ranges(set, &layer->ranges, &layer->range_count, &layer->kept_count))
                return fail(ret_error, -ENOMEM, "no memory for kept rows");
        layer->more = calloc(kv_heads, sizeof(*layer->more));
        if (!layer->more)
                return fail(ret_error, -ENOMEM, "no memory for kept rows");
        for (uint32_t head = 1; !layer->kept_all && head < kv_heads; head++) {
                struct ckv_plan_head *more = &layer->more[layer->more_count];

                other = chunkkv_set_find(group, layer->number, head);
                if (other == set)
                        break;  /* one set for all */
                if (!other)
                        return fail(ret_error, -EPROTO, "the answer has no kept set for a KV head");
                if (set_ranges(other, &more->ranges, &more->range_count, &kept))
                        return fail(ret_error, -ENOMEM, "no memory for kept rows");
                layer->more_count++;
                if (kept != layer->kept_count)
                        return fail(ret_error, -EPROTO, "the KV heads of a layer keep unequal numbers of rows");
        }
        return 0;
}

static int copy_out(const uint8_t *from, uint64_t size, uint8_t **ret_copy, struct chunkkv_error *ret_error) {
        *ret_copy = malloc(size + 1);
        if (!*ret_copy)
                return fail(ret_error, -ENOMEM, "no memory for the rows that are left");
        memcpy(*ret_copy, from, size);
        return 0;
}

/* The first rows of a layer, after the daemon moved them. */
static int rows_take(const struct ckv_batch *batch, struct ckv_plan_layer *layer, struct chunkkv_error *ret_error) {
        const uint8_t *base = batch->memory.address;
        size_t i = 0;
        int r;

        while (batch->layers[i]->number != layer->number)
                i++;
        layer->key_bytes = layer->kept_count * batch->planes[2 * i].token.outer;
        layer->value_bytes = layer->kept_count * batch->planes[2 * i + 1].token.outer;
        r = copy_out(base + batch->planes[2 * i].offset, layer->key_bytes, &layer->key, ret_error);
        return r ? r : copy_out(base + batch->planes[2 * i + 1].offset, layer->value_bytes, &layer->value, ret_error);
}

/* The scores of a group, for each of its layers; with one set for all, all get the same. */
static int scores_take(const struct ckv_batch *batch, size_t group, bool one, struct ckv_plan_layer *layers,
                       struct chunkkv_error *ret_error) {
        const uint8_t *base = batch->memory.address;
        const float *from = (const float *)(const void *)(base + batch->scores[group].offset);
        size_t layer_count = batch->groups[group].layer_count, parts = one ? 1 : layer_count, count = 0;

        while (count < batch->scores[group].size / sizeof(float) && !isnan(from[count]))
                count++;
        if (count % parts != 0)
                return fail(ret_error, -EPROTO, "the scores are not equally many for each layer");
        for (size_t i = 0; i < layer_count && count > 0; i++) {
                layers[i].score_count = count / parts;
                layers[i].scores = malloc(layers[i].score_count * sizeof(float));
                if (!layers[i].scores)
                        return fail(ret_error, -ENOMEM, "no memory for scores");
                memcpy(layers[i].scores, from + (one ? 0 : i * layers[i].score_count),
                       layers[i].score_count * sizeof(float));
        }
        return 0;
}

static void policies_take(struct ckv_plan *plan, const struct chunkkv_group_result *group) {
        if (group->policy_count > 0)
                plan->policy = group->policies[0];
        if (group->policy_count > 1) {
                plan->upper = group->policies[1];
                plan->has_upper = true;
        }
}

static int result_take(const struct ckv_batch *batch, const struct chunkkv_result *result, uint32_t mode,
                       struct ckv_plan *plan, struct chunkkv_error *ret_error) {
        const float *mass = NULL;
        size_t mass_count;
        int r = 0;

        if (result->group_count != batch->group_count)
                return fail(ret_error, -EPROTO, "the answer has not one result for each group");
        for (size_t i = 0; i < result->group_count; i++) {
                const struct chunkkv_group_result *group = &result->groups[i];

                policies_take(plan, group);
                mass_count = chunkkv_kept_mass(result, i, &mass);
                for (size_t k = 0; k < batch->groups[i].layer_count; k++) {
                        struct ckv_plan_layer *layer = &plan->layers[plan->layer_count++];

                        *layer = (struct ckv_plan_layer){
                                .number = batch->groups[i].layers[k], .physical_before = group->physical_before,
                                .logical_len = result->logical_len, .budget = group->budget,
                                .kept_all = group->kept_all, .kept_mass = k < mass_count ? mass[k] : NAN,
                        };
                        r = ranges_fill(layer, group, batch->groups[i].kv_heads, ret_error);
                        if (r == 0 && mode == CHUNKKV_MODE_IN_PLACE)
                                r = rows_take(batch, layer, ret_error);
                        if (r)
                                return r;
                }
                if (batch->scores[i].size > 0)
                        r = scores_take(batch, i, plan->policy.layers == CHUNKKV_LAYERS_ONE,
                                        plan->layers + plan->layer_count - batch->groups[i].layer_count, ret_error);
                if (r)
                        return r;
        }
        plan->queue_us += result->queue_us;
        plan->score_us += result->score_us;
        plan->select_us += result->select_us;
        plan->move_us += result->move_us;
        plan->total_us += result->total_us;
        return 0;
}

/* One policy for the layers of a group, or two with --hybrid: a group of one layer has no upper half. Return: how many. */
static size_t plan_of_layers(const struct ckv_settings *settings, const struct chunkkv_group *group,
                             struct chunkkv_policy ret_policies[static 2]) {
        ret_policies[0] = ret_policies[1] = settings->policy;
        if (!settings->hybrid || group->layer_count < 2)
                return 1;
        ret_policies[1].selector = settings->hybrid;
        ret_policies[1].layer_first = group->layers[group->layer_count / 2];
        return 2;
}

static int compress(struct chunkkv_client *client, const struct ckv_settings *settings, const struct ckv_batch *batch,
                    uint32_t cache_id, struct ckv_plan *plan, struct chunkkv_error *ret_error) {
        const uint32_t all_blocks[] = { 0, batch->blocks };
        uint32_t mode = settings->command == CKV_COMMAND_COMPRESS ? CHUNKKV_MODE_IN_PLACE : CHUNKKV_MODE_PLAN;
        struct chunkkv_group_job groups[CKV_BATCH_GROUPS_MAX];
        struct chunkkv_policy policies[CKV_BATCH_GROUPS_MAX][2];
        struct chunkkv_job job = {
                .cache_id = cache_id, .mode = mode, .groups = groups, .group_count = batch->group_count,
                .logical_len = settings->logical_len, .queries = batch->queries.data.size > 0 ? &batch->queries : NULL,
                .want_kept_mass = settings->kept_mass,
        };
        struct chunkkv_result *result;
        int r;

        for (size_t i = 0; i < batch->group_count; i++)
                groups[i] = (struct chunkkv_group_job){
                        .group = (uint32_t)i, .physical_len = batch->rows,
                        .table = { .form = CHUNKKV_TABLE_BLOCK_RUNS, .numbers = all_blocks, .count = 2 },
                        .policies = policies[i], .policy_count = plan_of_layers(settings, &batch->groups[i], policies[i]),
                        .keep_ratio = settings->keep_ratio,
                        .max_tokens = settings->max_tokens, .protect_prefix = settings->protect_prefix,
                        .protect = settings->protect, .protect_count = settings->protect_count,
                        .chunk_lengths = settings->chunk_lengths, .chunk_length_count = settings->chunk_length_count,
                        .score_kind = CHUNKKV_SCORE_UNITS, .scores_out = batch->scores[i],
                };
        r = chunkkv_compress(client, &job, settings->timeout_ms, &result, ret_error);
        if (r)
                return r;
        r = result_take(batch, result, mode, plan, ret_error);
        result = chunkkv_result_free(result);
        return r;
}

static enum ckv_batch_use use_of(const struct ckv_settings *settings) {
        if (settings->command == CKV_COMMAND_COMPRESS)
                return CKV_BATCH_MOVE;
        return settings->command == CKV_COMMAND_EXPLAIN ? CKV_BATCH_SCORE : CKV_BATCH_READ;
}

static enum chunkkv_access access_of(const struct ckv_settings *settings) {
        return use_of(settings) == CKV_BATCH_READ ? CHUNKKV_ACCESS_READ : CHUNKKV_ACCESS_READ_WRITE;
}

static int batch_plan(struct chunkkv_client *client, const struct ckv_settings *settings, struct ckv_batch *batch,
                      struct ckv_plan *plan, struct chunkkv_error *ret_error) {
        const struct chunkkv_region region = { .fd = batch->memory.fd, .access = access_of(settings) };
        uint32_t region_id, cache_id, timeout_ms = settings->timeout_ms;
        int r;

        r = chunkkv_region_register(client, &region, timeout_ms, &region_id, ret_error);
        if (r)
                return r;
        ckv_batch_region_set(batch, region_id);
        r = chunkkv_cache_register(client, batch->groups, batch->group_count, batch->planes, 2 * batch->count,
                                   timeout_ms, &cache_id, NULL, ret_error);
        if (r)
                return r;
        r = compress(client, settings, batch, cache_id, plan, ret_error);
        if (r)
                return r;
        r = chunkkv_cache_unregister(client, cache_id, timeout_ms, ret_error);
        return r ? r : chunkkv_region_unregister(client, region_id, timeout_ms, ret_error);
}

static int by_number(const void *a, const void *b) {
        const struct ckv_plan_layer *x = a, *y = b;

        return (x->number > y->number) - (x->number < y->number);
}

int ckv_plan_run(struct chunkkv_client *client, const struct ckv_settings *settings, const struct ckv_layer *layers,
                 size_t count, struct ckv_plan *ret_plan, struct chunkkv_error *ret_error) {
        uint32_t query_rows = settings->query_rows ? settings->query_rows : QUERY_ROWS_MAX;
        _cleanup_free_ bool *taken = calloc(count, sizeof(*taken));
        struct ckv_batch batch;
        int r;

        *ret_plan = (struct ckv_plan){ .layers = calloc(count, sizeof(struct ckv_plan_layer)) };
        if (!taken || !ret_plan->layers)
                return fail(ret_error, -ENOMEM, "no memory for a plan");
        if (settings->policy.selector == CHUNKKV_SELECTOR_H2O && !settings->query_rows)
                query_rows = UINT32_MAX;
        do {
                r = ckv_batch_build(layers, count, taken, query_rows, use_of(settings), &batch, ret_error);
                if (r > 0) {
                        r = batch_plan(client, settings, &batch, ret_plan, ret_error);
                        r = r ? r : 1;
                }
                ckv_batch_deinit(&batch);
        } while (r > 0);
        if (r == 0)
                qsort(ret_plan->layers, ret_plan->layer_count, sizeof(*ret_plan->layers), by_number);
        return r;
}

void ckv_plan_deinit(struct ckv_plan *plan) {
        for (size_t i = 0; i < plan->layer_count; i++) {
                for (size_t k = 0; k < plan->layers[i].more_count; k++)
                        free(plan->layers[i].more[k].ranges);
                free(plan->layers[i].more);
                free(plan->layers[i].ranges);
                free(plan->layers[i].key);
                free(plan->layers[i].value);
                free(plan->layers[i].scores);
        }
        free(plan->layers);
        *plan = (struct ckv_plan){ 0 };
}
