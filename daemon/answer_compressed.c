/*
 * The Compressed answer of a request whose job is planned or moved.
 * Attachment, in this order: group results, policies, kept mass, sets, words.
 * Sets that go to memory of the client are written here, too.
 */
#include "daemon/answer.h"

#include "base/clock.h"
#include "base/fnv.h"
#include "base/macros.h"
#include "daemon/admit.h"
#include "daemon/answer_sets.h"

#include <errno.h>
#include <math.h>

/* sends_sets() - do sets travel in the answer itself? */
static bool sends_sets(const struct ckv_request *request) {
        return request->reply_form == CKV_REPLY_RUNS || request->reply_form == CKV_REPLY_ROWS;
}

/* mass_count() - kept mass of each layer of a group; none if it was not asked for, or is known of no layer */
static uint32_t mass_count(const struct ckv_request *request, uint32_t index) {
        uint32_t layers = 0;
        bool known = false;

        for (uint32_t k = 0; k < request->groups[index].part_count; k++) {
                const struct ckv_job_group *part = ckv_request_part(request, index, k);

                layers += part->layer_count;
                known = known || (part->want_mass && part->kept_mass);
        }
        return known ? layers : 0;
}

/* write_mass() - NaN for the layers of a policy that has none. Return: the place behind. */
static float *write_mass(const struct ckv_request *request, uint32_t index, float *to) {
        for (uint32_t k = 0; k < request->groups[index].part_count; k++) {
                const struct ckv_job_group *part = ckv_request_part(request, index, k);

                for (uint32_t layer = 0; layer < part->layer_count; layer++)
                        *to++ = part->kept_mass ? part->kept_mass[layer] : NAN;
        }
        return to;
}

static void fill_group_result(const struct ckv_request *request, uint32_t index, const struct ckv_set *sets, uint32_t set_count,
                              struct ckv_record_group_result *ret_result) {
        const struct ckv_job_group *group = ckv_request_part(request, index, 0);
        uint64_t digest = CKV_FNV64_INIT, bytes_moved = 0;
        uint32_t longest = 0, per_entry = group->table.by_token ? 1 : group->table.tokens_per_block;

        for (uint32_t i = 0; i < set_count; i++) {
                longest = CKV_MAX(longest, sets[i].kept->count);
                digest = ckv_set_digest(digest, &sets[i]);
        }
        for (uint32_t k = 0; k < request->groups[index].part_count; k++) {
                const struct ckv_job_group *part = ckv_request_part(request, index, k);

                bytes_moved += part->bytes_moved;
                if (group->budget.kept_all != CKV_DROPPED)
                        group = part;   /* one policy that drops rows is enough */
        }
        *ret_result = (struct ckv_record_group_result){
                .group = group->number, .physical_before = group->selection.rows, .physical_len = longest,
                .kept_all = group->budget.kept_all, .table_used = (longest + per_entry - 1) / per_entry,
                .budget = group->budget.budget, .budget_raised = group->budget.raised,
                .policy_count = request->groups[index].part_count,
                .sets_sent = sends_sets(request) ? set_count : 0, .set_count = set_count, .mass_count = mass_count(request, index),
                .kept_digest = digest, .bytes_moved = bytes_moved,
        };
}

/* fill_policy() - what was used: a scale of 0 stands for 1 / sqrt(head_dim_k) */
static void fill_policy(const struct ckv_job_group *group, struct ckv_record_policy *ret_policy) {
        ckv_policy_to_record(&group->policy, ret_policy);
        if (ret_policy->scale == 0)
                ret_policy->scale = 1.0 / sqrt((double)group->head_dim_k);
}

void ckv_answer_timing(const struct ckv_request *request, struct ckv_record_result *result) {
        const struct ckv_job *job = request->job;
        uint64_t started = CKV_MAX(job->started_nsec, request->arrived_nsec);

        result->u.compressed.queue_us = (uint32_t)((started - request->arrived_nsec) / CKV_NSEC_PER_USEC);
        result->u.compressed.score_us = (uint32_t)(job->score_nsec / CKV_NSEC_PER_USEC);
        result->u.compressed.select_us = (uint32_t)(job->select_nsec / CKV_NSEC_PER_USEC);
        result->u.compressed.move_us = (uint32_t)(job->move_nsec / CKV_NSEC_PER_USEC);
        result->u.compressed.total_us = (uint32_t)((ckv_now_nsec() - request->arrived_nsec) / CKV_NSEC_PER_USEC);
}

/* What the attachment will hold. */
struct layout {
        uint32_t sets, words, masses;   /* how many in all */
        uint32_t *set_counts;           /* of each group of the request */
        struct ckv_set *list;           /* [sets] all groups, in order */
};

/* measure() - list all sets and count their words */
static int measure(const struct ckv_request *request, struct layout *ret_layout) {
        ret_layout->set_counts = calloc((size_t)request->group_count + 1, sizeof(*ret_layout->set_counts));
        ret_layout->list = calloc((size_t)ckv_sets_most(request) + 1, sizeof(*ret_layout->list));
        if (!ret_layout->set_counts || !ret_layout->list)
                return -ENOMEM;
        for (uint32_t i = 0; i < request->group_count; i++) {
                const uint32_t *positions = ckv_request_part(request, i, 0)->selection.positions;
                struct ckv_set *list = ret_layout->list + ret_layout->sets;

                ret_layout->set_counts[i] = ckv_sets_list(request, i, list);
                ret_layout->sets += ret_layout->set_counts[i];
                ret_layout->masses += mass_count(request, i);
                if (!sends_sets(request))
                        continue;
                for (uint32_t k = 0; k < ret_layout->set_counts[i]; k++)
                        ret_layout->words += (uint32_t)(2 * list[k].kept->run_count) +
                                             (positions ? ckv_set_write_position_runs(list[k].kept, positions, NULL) : 0);
        }
        return 0;
}

static void layout_deinit(struct layout *layout) {
        free(layout->set_counts);
        free(layout->list);
}

/* write_sets() - heads and runs into the attachment. Return: the place behind the words. */
static uint32_t *write_sets(const struct ckv_set *sets, uint32_t count, struct ckv_record_set *heads, uint32_t *words) {
        for (uint32_t k = 0; k < count; k++) {
                const uint32_t *positions = sets[k].group->selection.positions;

                heads[k].layer_first = sets[k].layer_first;
                heads[k].kv_head = sets[k].kv_head;
                heads[k].run_count = ckv_set_write_runs(sets[k].kept, words);
                words += heads[k].run_count;
                heads[k].position_run_count = positions ? ckv_set_write_position_runs(sets[k].kept, positions, words) : 0;
                words += heads[k].position_run_count;
        }
        return words;
}

/* fill_attachment() - everything but the record itself; @attachment has room for the layout */
static void fill_attachment(const struct ckv_request *request, const struct layout *layout, uint8_t *attachment) {
        struct ckv_record_group_result *results = (void *)attachment;
        struct ckv_record_policy *policies = (void *)(results + request->group_count);
        float *masses = (void *)(policies + request->job->group_count);
        struct ckv_record_set *heads = (void *)(masses + layout->masses);
        uint32_t *words = (void *)(heads + (sends_sets(request) ? layout->sets : 0));
        uint32_t *region = (void *)request->reply_address;
        const struct ckv_set *sets = layout->list;

        for (uint32_t i = 0; i < request->group_count; i++) {
                uint32_t count = layout->set_counts[i];

                fill_group_result(request, i, sets, count, &results[i]);
                for (uint32_t k = 0; k < request->groups[i].part_count; k++)
                        fill_policy(ckv_request_part(request, i, k), policies++);
                if (results[i].mass_count)
                        masses = write_mass(request, i, masses);
                if (sends_sets(request)) {
                        words = write_sets(sets, count, heads, words);
                        heads += count;
                }
                /* admission saw to room and alignment */
                for (uint32_t k = 0; request->reply_form == CKV_REPLY_IN_REGION && k < count; k++)
                        region = ckv_set_write(&sets[k], region);
                sets += count;
        }
}

int ckv_answer_compressed(const struct ckv_request *request, struct ckv_answer *ret_answer) {
        _cleanup_(layout_deinit) struct layout layout = { 0 };
        struct ckv_record_result *result;
        struct ckv_answer answer;
        uint32_t sets_sent;
        size_t bytes;
        int r;

        r = measure(request, &layout);
        if (r)
                return r;
        sets_sent = sends_sets(request) ? layout.sets : 0;
        bytes = request->group_count * sizeof(struct ckv_record_group_result) +
                request->job->group_count * sizeof(struct ckv_record_policy) + layout.masses * sizeof(float) +
                sets_sent * sizeof(struct ckv_record_set) + layout.words * sizeof(uint32_t);
        ckv_answer_init_ok(&answer, CKV_ANSWER_COMPRESSED);
        answer.attachment = calloc(1, bytes);
        if (!answer.attachment)
                return -ENOMEM;
        answer.bytes = (uint32_t)bytes;
        fill_attachment(request, &layout, answer.attachment);
        result = &answer.record.body.result;
        /* CLEAN until the rows have moved */
        result->u.compressed.phase = request->phase;
        result->u.compressed.logical_len = request->logical_len;
        result->u.compressed.group_count = request->group_count;
        result->u.compressed.policy_count = request->job->group_count;
        result->u.compressed.set_count = sets_sent;
        result->u.compressed.word_count = layout.words;
        result->u.compressed.mass_count = layout.masses;
        result->u.compressed.reply_form = request->reply_form;
        ckv_answer_timing(request, result);
        *ret_answer = answer;
        return 0;
}
