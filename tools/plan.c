/*
 * A plan: batch by batch into shared memory, registered, planned, forgotten.
 * The daemon sees each batch as an engine's cache of one sequence.
 */
#include "tools/plan.h"

#include "base/macros.h"
#include "tools/batch.h"

#include <errno.h>
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

/* The kept rows of one layer out of its set, or all rows without one. */
static int ranges_fill(struct ckv_plan_layer *layer, const struct chunkkv_set *set, struct chunkkv_error *ret_error) {
        struct chunkkv_cursor cursor = { 0 };
        uint32_t first, end;

        if (!set && !layer->kept_all)
                return fail(ret_error, -EPROTO, "the answer has no kept set for a layer");
        layer->ranges = calloc(set ? set->run_count / 2 + 1 : 1, 2 * sizeof(uint32_t));
        if (!layer->ranges)
                return fail(ret_error, -ENOMEM, "no memory for kept rows");
        if (layer->kept_all && layer->physical_before > 0) {
                layer->ranges[1] = layer->physical_before;
                layer->range_count = 1;
                layer->kept_count = layer->physical_before;
        }
        while (!layer->kept_all && chunkkv_runs_next(set->runs, set->run_count, &cursor, &first, &end)) {
                layer->ranges[2 * layer->range_count] = first;
                layer->ranges[2 * layer->range_count + 1] = end;
                layer->range_count++;
                layer->kept_count += end - first;
        }
        return 0;
}

static int result_take(const struct ckv_batch *batch, const struct chunkkv_result *result, struct ckv_plan *plan,
                       struct chunkkv_error *ret_error) {
        int r;

        if (result->group_count != batch->group_count)
                return fail(ret_error, -EPROTO, "the answer has not one result for each group");
        for (size_t i = 0; i < result->group_count; i++) {
                const struct chunkkv_group_result *group = &result->groups[i];

                /* a set for each KV head has no place in this answer, and the daemon plans none */
                if (group->set_count > 0 && group->sets[group->set_count - 1].kv_head > 0)
                        return fail(ret_error, -EPROTO, "the answer has a kept set for each KV head");
                if (group->policy_count > 0)
                        plan->policy = group->policies[0];
                for (size_t k = 0; k < batch->groups[i].layer_count; k++) {
                        struct ckv_plan_layer *layer = &plan->layers[plan->layer_count++];

                        *layer = (struct ckv_plan_layer){
                                .number = batch->groups[i].layers[k], .physical_before = group->physical_before,
                                .logical_len = result->logical_len, .budget = group->budget,
                                .kept_all = group->kept_all,
                        };
                        r = ranges_fill(layer, chunkkv_set_find(group, layer->number, 0), ret_error);
                        if (r)
                                return r;
                }
        }
        plan->queue_us += result->queue_us;
        plan->score_us += result->score_us;
        plan->select_us += result->select_us;
        plan->move_us += result->move_us;
        plan->total_us += result->total_us;
        return 0;
}

static int compress(struct chunkkv_client *client, const struct ckv_settings *settings, const struct ckv_batch *batch,
                    uint32_t cache_id, struct ckv_plan *plan, struct chunkkv_error *ret_error) {
        const uint32_t all_blocks[] = { 0, batch->blocks };
        struct chunkkv_group_job groups[CKV_BATCH_GROUPS_MAX];
        struct chunkkv_job job = {
                .cache_id = cache_id, .mode = CHUNKKV_MODE_PLAN, .groups = groups, .group_count = batch->group_count,
                .logical_len = settings->logical_len, .queries = batch->queries.data.size > 0 ? &batch->queries : NULL,
        };
        struct chunkkv_result *result;
        int r;

        for (size_t i = 0; i < batch->group_count; i++)
                groups[i] = (struct chunkkv_group_job){
                        .group = (uint32_t)i, .physical_len = batch->rows,
                        .table = { .form = CHUNKKV_TABLE_BLOCK_RUNS, .numbers = all_blocks, .count = 2 },
                        .policies = &settings->policy, .policy_count = 1, .keep_ratio = settings->keep_ratio,
                        .max_tokens = settings->max_tokens, .protect_prefix = settings->protect_prefix,
                        .protect = settings->protect, .protect_count = settings->protect_count,
                        .chunk_lengths = settings->chunk_lengths, .chunk_length_count = settings->chunk_length_count,
                };
        r = chunkkv_compress(client, &job, settings->timeout_ms, &result, ret_error);
        if (r)
                return r;
        r = result_take(batch, result, plan, ret_error);
        result = chunkkv_result_free(result);
        return r;
}

static int batch_plan(struct chunkkv_client *client, const struct ckv_settings *settings, struct ckv_batch *batch,
                      struct ckv_plan *plan, struct chunkkv_error *ret_error) {
        const struct chunkkv_region region = { .fd = batch->memory.fd, .access = CHUNKKV_ACCESS_READ };
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
                r = ckv_batch_build(layers, count, taken, query_rows, &batch, ret_error);
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
        for (size_t i = 0; i < plan->layer_count; i++)
                free(plan->layers[i].ranges);
        free(plan->layers);
        *plan = (struct ckv_plan){ 0 };
}
