/*
 * Compressed: groups, the policies that were used, kept sets.  The core names
 * every set as run lengths; a client that asked for rows gets them expanded
 * here, because 4 bytes a row are ten times the runs and the core's ring has
 * better uses.
 *
 * The counts in the body and in the groups must add up to the attachment
 * exactly.  If they do not, gate and core disagree about the format, and the
 * gate must not guess.
 */
#include "daemon/gate/encode_compressed.h"

#include "base/error.h"
#include "base/macros.h"
#include "daemon/gate/encode.h"
#include "proto/runs.h"

#include <errno.h>

enum { POLICY_COUNTS = 6 };         /* Counts of one Policy */

/* The five parts of the attachment. */
struct parts {
        const struct ckv_record_group_result *groups;
        const struct ckv_record_policy *policies;
        const float *masses;
        const struct ckv_record_set *sets;
        const uint32_t *words;
};

/* find_parts() - do all counts add up to what is there? */
static bool find_parts(const struct ckv_record_result *result, const void *attachment, uint32_t bytes,
                       struct parts *ret_parts) {
        uint64_t groups = result->u.compressed.group_count, policies = result->u.compressed.policy_count;
        uint64_t sets = result->u.compressed.set_count, words = result->u.compressed.word_count;
        uint64_t masses = result->u.compressed.mass_count, group_policies = 0, group_masses = 0, group_sets = 0;
        uint64_t set_words = 0;
        const char *at = attachment;

        if (groups * sizeof(*ret_parts->groups) + policies * sizeof(*ret_parts->policies) +
                    masses * sizeof(float) + sets * sizeof(*ret_parts->sets) + words * sizeof(uint32_t) !=
            bytes)
                return false;
        if (bytes == 0)
                return true;
        ret_parts->groups = (const void *)at;
        at += groups * sizeof(*ret_parts->groups);
        ret_parts->policies = (const void *)at;
        at += policies * sizeof(*ret_parts->policies);
        ret_parts->masses = (const void *)at;
        at += masses * sizeof(float);
        ret_parts->sets = (const void *)at;
        at += sets * sizeof(*ret_parts->sets);
        ret_parts->words = (const void *)at;

        for (uint64_t i = 0; i < groups; i++) {
                group_policies += ret_parts->groups[i].policy_count;
                group_masses += ret_parts->groups[i].mass_count;
                group_sets += ret_parts->groups[i].sets_sent;
        }
        for (uint64_t i = 0; i < sets; i++)
                set_words += (uint64_t)ret_parts->sets[i].run_count + ret_parts->sets[i].position_run_count;
        return group_policies == policies && group_masses == masses && group_sets == sets && set_words == words;
}

static void fill_policy(const struct ckv_record_policy *record, Chunkkv__V1__Policy *policy,
                        Chunkkv__V1__Count *counts) {
        chunkkv__v1__policy__init(policy);

#define ENUM(NAME, name) policy->name = record->name;
#define NUMBER(NAME, name, low, high) policy->name = record->name;
#define REAL(NAME, name) policy->name = record->name;
#define COUNT(NAME, name, high) \
        if (record->given & CKV_RECORD_GIVEN_##NAME) { \
                chunkkv__v1__count__init(counts); \
                counts->value = record->name; \
                policy->name = counts++; \
        }
#include "daemon/gate/policy.def"
#undef ENUM
#undef NUMBER
#undef REAL
#undef COUNT
}

static void fill_group(const struct ckv_record_group_result *record, Chunkkv__V1__GroupResult *group) {
        chunkkv__v1__group_result__init(group);
        group->group = record->group;
        group->physical_before = record->physical_before;
        group->physical_len = record->physical_len;
        group->kept_all = (Chunkkv__V1__KeptAll)record->kept_all;
        group->table_used = record->table_used;
        group->set_count = record->set_count;
        group->kept_digest = record->kept_digest;
        group->budget = record->budget;
        group->budget_raised = record->budget_raised != 0;
        group->bytes_moved = record->bytes_moved;
}

/* expand_rows() - every kept row of one set. Return: where the next set's rows go. */
static uint32_t *expand_rows(const uint32_t *runs, size_t count, uint32_t *to) {
        uint32_t row = 0, first, length;
        size_t at = 0;

        while (ckv_runs_next(runs, count, &at, &row, &first, &length))
                for (uint32_t i = 0; i < length; i++)
                        *to++ = first + i;
        return to;
}

/* count_rows() - kept rows of all sets. Return: false if a set's runs are no runs. */
static bool count_rows(const struct parts *parts, uint32_t set_count, uint64_t *ret_rows) {
        const uint32_t *words = parts->words;
        uint64_t kept, total = 0;

        for (uint32_t i = 0; i < set_count; i++) {
                if (ckv_runs_check(words, parts->sets[i].run_count, UINT32_MAX, &kept, NULL))
                        return false;
                total += kept;
                words += parts->sets[i].run_count + parts->sets[i].position_run_count;
        }
        *ret_rows = total;
        return true;
}

static void fill_sets(struct ckv_compressed *compressed, const struct parts *parts, uint32_t set_count) {
        uint32_t *rows = compressed->rows;
        /* protobuf-c has no const: it only reads */
        uint32_t *words = (uint32_t *)(uintptr_t)parts->words;

        for (uint32_t i = 0; i < set_count; i++) {
                const struct ckv_record_set *record = &parts->sets[i];
                Chunkkv__V1__KeptSet *set = &compressed->sets[i];

                chunkkv__v1__kept_set__init(set);
                set->layer_first = record->layer_first;
                set->kv_head = record->kv_head;
                if (rows) {
                        uint32_t *end = expand_rows(words, record->run_count, rows);

                        set->rows = rows;
                        set->n_rows = (size_t)(end - rows);
                        rows = end;
                } else {
                        set->runs = words;
                        set->n_runs = record->run_count;
                }
                words += record->run_count;
                set->position_runs = words;
                set->n_position_runs = record->position_run_count;
                words += record->position_run_count;
                compressed->set_list[i] = set;
        }
}

/* allocate() - every array of the message; one element at least, so that NULL means failure */
static bool allocate(struct ckv_compressed *compressed, const struct ckv_record_result *result) {
        size_t groups = result->u.compressed.group_count + (size_t)1,
               policies = result->u.compressed.policy_count + (size_t)1;
        size_t sets = result->u.compressed.set_count + (size_t)1;

        compressed->groups = calloc(groups, sizeof(*compressed->groups));
        compressed->group_list = calloc(groups, sizeof(*compressed->group_list));
        compressed->policies = calloc(policies, sizeof(*compressed->policies));
        compressed->policy_list = calloc(policies, sizeof(*compressed->policy_list));
        compressed->counts = calloc(policies, POLICY_COUNTS * sizeof(*compressed->counts));
        compressed->sets = calloc(sets, sizeof(*compressed->sets));
        compressed->set_list = calloc(sets, sizeof(*compressed->set_list));
        return compressed->groups && compressed->group_list && compressed->policies && compressed->policy_list &&
               compressed->counts && compressed->sets && compressed->set_list;
}

static void fill_message(struct ckv_compressed *compressed, const struct ckv_record_result *result,
                         const struct parts *parts) {
        Chunkkv__V1__Compressed *message = &compressed->message;
        /* protobuf-c has no const: it only reads */
        float *masses = (float *)(uintptr_t)parts->masses;
        size_t policy = 0, set = 0;

        for (uint32_t i = 0; i < result->u.compressed.policy_count; i++) {
                fill_policy(&parts->policies[i], &compressed->policies[i],
                            &compressed->counts[i * (size_t)POLICY_COUNTS]);
                compressed->policy_list[i] = &compressed->policies[i];
        }
        fill_sets(compressed, parts, result->u.compressed.set_count);
        for (uint32_t i = 0; i < result->u.compressed.group_count; i++) {
                Chunkkv__V1__GroupResult *group = &compressed->groups[i];

                fill_group(&parts->groups[i], group);
                group->policies = &compressed->policy_list[policy];
                group->n_policies = parts->groups[i].policy_count;
                policy += group->n_policies;
                group->kept_mass = masses;
                group->n_kept_mass = parts->groups[i].mass_count;
                masses += group->n_kept_mass;
                group->sets = &compressed->set_list[set];
                group->n_sets = parts->groups[i].sets_sent;
                set += group->n_sets;
                compressed->group_list[i] = group;
        }

        chunkkv__v1__timing__init(&compressed->timing);
        compressed->timing.queue_us = result->u.compressed.queue_us;
        compressed->timing.score_us = result->u.compressed.score_us;
        compressed->timing.select_us = result->u.compressed.select_us;
        compressed->timing.move_us = result->u.compressed.move_us;
        compressed->timing.total_us = result->u.compressed.total_us;
        message->phase = (Chunkkv__V1__Phase)result->u.compressed.phase;
        message->logical_len = result->u.compressed.logical_len;
        message->groups = compressed->group_list;
        message->n_groups = result->u.compressed.group_count;
        message->timing = &compressed->timing;
}

int ckv_compressed_init(struct ckv_compressed *compressed, const struct ckv_record_result *result,
                        const void *attachment, uint32_t bytes, uint64_t reply_bytes, uint64_t *ret_need_bytes) {
        bool as_rows = result->u.compressed.reply_form == CHUNKKV__V1__REPLY_FORM__REPLY_ROWS;
        struct parts parts = { 0 };
        uint64_t rows = 0;

        *compressed = (struct ckv_compressed){ 0 };
        chunkkv__v1__compressed__init(&compressed->message);
        if (!find_parts(result, attachment, bytes, &parts) ||
            !count_rows(&parts, result->u.compressed.set_count, &rows))
                return CKV_ENCODE_E_MALFORMED;
        if (as_rows && rows > reply_bytes / sizeof(uint32_t)) {
                *ret_need_bytes = rows * sizeof(uint32_t);
                return CKV_ENCODE_E_TOO_LARGE;
        }
        if (as_rows) {
                compressed->rows = calloc(rows + 1, sizeof(uint32_t));
                if (!compressed->rows)
                        return ckv_error_origin(-ENOMEM);
        }
        if (!allocate(compressed, result))
                return ckv_error_origin(-ENOMEM);
        fill_message(compressed, result, &parts);
        return 0;
}

void ckv_compressed_deinit(struct ckv_compressed *compressed) {
        free(compressed->groups);
        free(compressed->group_list);
        free(compressed->policies);
        free(compressed->policy_list);
        free(compressed->counts);
        free(compressed->sets);
        free(compressed->set_list);
        free(compressed->rows);
        *compressed = (struct ckv_compressed){ 0 };
}
