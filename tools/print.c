/*
 * Printing.  The JSON is built with cJSON and is one line; an object that
 * could not be built for want of memory prints as nothing and is an error.
 * Ranges are half-open in JSON, [first, end), and first-last in the text.
 */
#include "tools/print.h"

#include "base/macros.h"
#include "tools/code_paths.h"
#include "tools/settings.h"

#include <cjson/cJSON.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>

static const char *const kept_all_words[] = { NULL, "empty", "short", "fits", "protected" };
static const char *const backend_words[] = { "none", "cpu", "cuda" };
static const char *const slot_words[] = {
        "none", "connections", "sessions", "regions", "mapped_bytes", "requests", "queued_bytes", "fds", "device_time",
};

#define WORD(list, number) ((number) < CKV_ARRAY_SIZE(list) ? (list)[number] : "?")

const char *ckv_print_slot(uint32_t slot) {
        return WORD(slot_words, slot);
}

/* Prints and frees. */
static bool json_print(cJSON *root) {
        char *text = root ? cJSON_PrintUnformatted(root) : NULL;
        bool written = text && printf("%s\n", text) > 0 && fflush(stdout) == 0;

        cJSON_free(text);
        cJSON_Delete(root);
        return written;
}

static void ranges_add(cJSON *list, const uint32_t *ranges, size_t count) {
        for (size_t i = 0; i < count; i++) {
                const double pair[2] = { ranges[2 * i], ranges[2 * i + 1] };

                (void)cJSON_AddItemToArray(list, cJSON_CreateDoubleArray(pair, 2));
        }
}

/* "kept_heads": the ranges of every KV head, where they differ; "kept" is then that of the first. */
static void heads_add(cJSON *to, const struct ckv_plan_layer *layer) {
        cJSON *heads = layer->more_count > 0 ? cJSON_AddArrayToObject(to, "kept_heads") : NULL;

        for (size_t i = 0; heads && i <= layer->more_count; i++) {
                cJSON *list = cJSON_CreateArray();

                (void)cJSON_AddItemToArray(heads, list);
                if (i == 0)
                        ranges_add(list, layer->ranges, layer->range_count);
                else
                        ranges_add(list, layer->more[i - 1].ranges, layer->more[i - 1].range_count);
        }
}

static void layer_add(cJSON *to, const struct ckv_plan_layer *layer) {
        cJSON *object = cJSON_CreateObject();
        const char *why = WORD(kept_all_words, layer->kept_all);

        (void)cJSON_AddItemToArray(to, object);
        (void)cJSON_AddNumberToObject(object, "layer", layer->number);
        (void)cJSON_AddNumberToObject(object, "physical_before", layer->physical_before);
        (void)cJSON_AddNumberToObject(object, "logical_len", layer->logical_len);
        (void)cJSON_AddNumberToObject(object, "kept_count", (double)layer->kept_count);
        (void)cJSON_AddNumberToObject(object, "budget", layer->budget);
        (void)cJSON_AddItemToObject(object, "kept_all", why ? cJSON_CreateString(why) : cJSON_CreateNull());
        ranges_add(cJSON_AddArrayToObject(object, "kept"), layer->ranges, layer->range_count);
        heads_add(object, layer);
        if (!isnan(layer->kept_mass))
                (void)cJSON_AddNumberToObject(object, "kept_mass", (double)layer->kept_mass);
}

static void policy_add(cJSON *to, const struct chunkkv_policy *policy) {
        struct ckv_parameter parameter;

        for (size_t i = 0; ckv_settings_parameter(policy, i, &parameter); i++) {
                if (!parameter.present)
                        (void)cJSON_AddNullToObject(to, parameter.name);
                else if (parameter.word)
                        (void)cJSON_AddStringToObject(to, parameter.name, parameter.word);
                else
                        (void)cJSON_AddNumberToObject(to, parameter.name, parameter.number);
        }
}

static bool plan_json(const struct ckv_plan *plan, const struct ckv_written *written) {
        cJSON *root = cJSON_CreateObject(), *layers = cJSON_AddArrayToObject(root, "layers"), *timing;

        for (size_t i = 0; i < plan->layer_count; i++)
                layer_add(layers, &plan->layers[i]);
        policy_add(cJSON_AddObjectToObject(root, "policy"), &plan->policy);
        if (plan->has_upper)
                policy_add(cJSON_AddObjectToObject(root, "upper_policy"), &plan->upper);
        timing = cJSON_AddObjectToObject(root, "timing_us");
        (void)cJSON_AddNumberToObject(timing, "queue", (double)plan->queue_us);
        (void)cJSON_AddNumberToObject(timing, "score", (double)plan->score_us);
        (void)cJSON_AddNumberToObject(timing, "select", (double)plan->select_us);
        (void)cJSON_AddNumberToObject(timing, "move", (double)plan->move_us);
        (void)cJSON_AddNumberToObject(timing, "total", (double)plan->total_us);
        if (written->path) {
                (void)cJSON_AddStringToObject(root, "out", written->path);
                (void)cJSON_AddNumberToObject(root, "bytes", (double)written->bytes);
        }
        return json_print(root);
}

static void ranges_text(const uint32_t *ranges, size_t count) {
        for (size_t k = 0; k < count; k++) {
                uint32_t first = ranges[2 * k], last = ranges[2 * k + 1] - 1;

                if (first == last)
                        printf(" %" PRIu32, first);
                else
                        printf(" %" PRIu32 "-%" PRIu32, first, last);
        }
}

static void policy_text(const char *label, const struct chunkkv_policy *policy) {
        struct ckv_parameter parameter;

        printf("%s:", label);
        for (size_t i = 0; ckv_settings_parameter(policy, i, &parameter); i++) {
                if (parameter.present && parameter.word)
                        printf(" %s=%s", parameter.name, parameter.word);
                else if (parameter.present && parameter.number != 0)
                        printf(" %s=%g", parameter.name, parameter.number);
        }
        printf("\n");
}

static void plan_text(const struct ckv_plan *plan) {
        printf("layer     rows     kept   budget  kept rows\n");
        for (size_t i = 0; i < plan->layer_count; i++) {
                const struct ckv_plan_layer *layer = &plan->layers[i];
                const char *why = WORD(kept_all_words, layer->kept_all);

                printf("%5" PRIu32 " %8" PRIu32 " %8" PRIu64 " %8" PRIu32 " ", layer->number, layer->physical_before,
                       layer->kept_count, layer->budget);
                if (why)
                        printf(" all (%s)", why);
                else
                        ranges_text(layer->ranges, layer->range_count);
                for (size_t k = 0; k < layer->more_count; k++) {
                        printf("\n%34s head %zu:", "", k + 1);
                        ranges_text(layer->more[k].ranges, layer->more[k].range_count);
                }
                if (!isnan(layer->kept_mass))
                        printf("  mass %.4f", (double)layer->kept_mass);
                printf("\n");
        }
        policy_text("policy", &plan->policy);
        if (plan->has_upper)
                policy_text("upper half", &plan->upper);
        printf("time: queue %" PRIu64 " us, score %" PRIu64 " us, select %" PRIu64 " us, move %" PRIu64 " us, total %"
        PRIu64 " us\n",
               plan->queue_us, plan->score_us, plan->select_us, plan->move_us, plan->total_us);
}

bool ckv_print_written(const struct ckv_written *written) {
        printf("wrote %s, %" PRIu64 " bytes\n", written->path, written->bytes);
        return fflush(stdout) == 0 && !ferror(stdout);
}

bool ckv_print_plan(const struct ckv_plan *plan, const struct ckv_written *written, bool json) {
        if (json)
                return plan_json(plan, written);
        plan_text(plan);
        if (written->path)
                return ckv_print_written(written);
        return fflush(stdout) == 0 && !ferror(stdout);
}

bool ckv_print_pong(const struct chunkkv_info *info, const struct chunkkv_pong *pong, bool json) {
        uint64_t age_ns = pong->now_ns > pong->last_progress_ns ? pong->now_ns - pong->last_progress_ns : 0;
        cJSON *root;

        if (json) {
                root = cJSON_CreateObject();
                (void)cJSON_AddStringToObject(root, "daemon", info->daemon);
                (void)cJSON_AddNumberToObject(root, "round_trip_us", (double)(pong->round_trip_ns / 1000));
                (void)cJSON_AddNumberToObject(root, "last_progress_ms_ago", (double)(age_ns / 1000000));
                (void)cJSON_AddNumberToObject(root, "in_flight", pong->in_flight);
                (void)cJSON_AddBoolToObject(root, "draining", pong->draining);
                return json_print(root);
        }
        printf("%s answers in %" PRIu64 " us; the device last made progress %" PRIu64 " ms ago%s\n", info->daemon,
               pong->round_trip_ns / 1000, age_ns / 1000000, pong->draining ? "; it is shutting down" : "");
        return fflush(stdout) == 0 && !ferror(stdout);
}

/* left_of() - what may still be had; the limit says what this user could hold now, its share included */
static uint64_t left_of(const struct chunkkv_budget *budget) {
        return budget->limit > budget->used ? budget->limit - budget->used : 0;
}

static bool status_json(const struct chunkkv_info *info, const struct ckv_state *state) {
        cJSON *root = cJSON_CreateObject(), *limits, *list;

        (void)cJSON_AddStringToObject(root, "daemon", info->daemon);
        (void)cJSON_AddStringToObject(root, "device", info->device);
        (void)cJSON_AddStringToObject(root, "backend", WORD(backend_words, info->backend));
        (void)cJSON_AddNumberToObject(root, "minor", info->minor);
        list = cJSON_AddArrayToObject(root, "budgets");
        for (size_t i = 0; i < state->budget_count; i++) {
                const struct chunkkv_budget *budget = &state->budgets[i];
                cJSON *object = cJSON_CreateObject();

                (void)cJSON_AddItemToArray(list, object);
                (void)cJSON_AddStringToObject(object, "slot", WORD(slot_words, budget->slot));
                (void)cJSON_AddNumberToObject(object, "used", (double)budget->used);
                (void)cJSON_AddNumberToObject(object, "limit", (double)budget->limit);
                (void)cJSON_AddNumberToObject(object, "left", (double)left_of(budget));
        }
        ckv_code_paths_add(root, state->paths, state->path_count);
        limits = cJSON_AddObjectToObject(root, "limits");
        (void)cJSON_AddNumberToObject(limits, "request_bytes", info->request_bytes);
        (void)cJSON_AddNumberToObject(limits, "reply_bytes", info->reply_bytes);
        (void)cJSON_AddNumberToObject(limits, "rows", info->rows);
        (void)cJSON_AddNumberToObject(limits, "planes", info->planes);
        (void)cJSON_AddNumberToObject(limits, "groups", info->groups);
        (void)cJSON_AddNumberToObject(limits, "spans", info->spans);
        return json_print(root);
}

bool ckv_print_status(const struct chunkkv_info *info, const struct ckv_state *state, bool json) {
        if (json)
                return status_json(info, state);
        printf("%s on %s (%s)\n", info->daemon, info->device, WORD(backend_words, info->backend));
        printf("%-14s %16s %16s %16s\n", "budget", "used", "limit", "left");
        for (size_t i = 0; i < state->budget_count; i++)
                printf("%-14s %16" PRIu64 " %16" PRIu64 " %16" PRIu64 "\n", WORD(slot_words, state->budgets[i].slot),
                       state->budgets[i].used, state->budgets[i].limit, left_of(&state->budgets[i]));
        ckv_code_paths_print(state->paths, state->path_count);
        return fflush(stdout) == 0 && !ferror(stdout);
}
