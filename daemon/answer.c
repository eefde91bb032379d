/*
 * Answers.  An answer is built once, as a RESULT record with its attachment,
 * and sent as often as it is asked for; only the head changes, so that a
 * repeat is the same answer to the last bit.
 *
 * Attachment of a Compressed answer, in this order: group results, policies,
 * sets, words.  Neighbouring layers that kept the same rows share a set.
 */
#include "daemon/answer.h"

#include "base/clock.h"
#include "base/fnv.h"
#include "base/macros.h"
#include "daemon/admit.h"
#include "daemon/daemon.h"
#include "daemon/gate_link.h"
#include "daemon/request.h"

#include <errno.h>
#include <math.h>
#include <string.h>

void ckv_answer_init(struct ckv_answer *answer, const struct ckv_record_status *status) {
        *answer = (struct ckv_answer){ 0 };
        answer->record.head.type = CKV_RECORD_RESULT;
        answer->record.body.result.status = *status;
}

static void send_record(const struct ckv_route *route, struct ckv_record *record, const void *attachment, size_t bytes) {
        record->head.connection = route->connection;
        record->head.request_id = route->request_id;
        record->head.generation = route->generation;
        memcpy(record->head.boot_id, route->endpoint->daemon->boot_id, sizeof(record->head.boot_id));
        /* out of memory: the answer is lost like one to a dead gate; it stays stored and the client repeats */
        if (route->endpoint->link)
                (void)ckv_gate_link_send(route->endpoint->link, route->incarnation, record, attachment, bytes);
}

void ckv_answer_send(const struct ckv_route *route, const struct ckv_answer *answer, bool repeated) {
        struct ckv_record record = answer->record;

        record.head.flags = repeated ? CKV_RECORD_REPEATED_ANSWER : 0;
        send_record(route, &record, answer->attachment, answer->bytes);
}

void ckv_answer_send_status(const struct ckv_route *route, const struct ckv_record_status *status) {
        struct ckv_answer answer;

        ckv_answer_init(&answer, status);
        ckv_answer_send(route, &answer, false);
}

void ckv_answer_send_welcome(const struct ckv_route *route, const struct ckv_session *session, const struct ckv_record_status *status) {
        const struct ckv_daemon *daemon = route->endpoint->daemon;
        const struct ckv_options *options = daemon->options;
        struct ckv_record record = { .head.type = CKV_RECORD_WELCOME };
        struct ckv_record_welcome *welcome = &record.body.welcome;

        welcome->status = *status;
        welcome->backend = 1;   /* BACKEND_CPU */
        memcpy(welcome->session_token, session->token, sizeof(welcome->session_token));
        welcome->now_ns = ckv_now_nsec();
        welcome->capabilities = ckv_capabilities();
        welcome->request_bytes = (uint32_t)options->request_bytes;
        welcome->reply_bytes = (uint32_t)options->reply_bytes;
        welcome->in_flight = (uint32_t)options->in_flight;
        welcome->regions = (uint32_t)options->regions;
        welcome->rows = (uint32_t)options->rows;
        welcome->planes = (uint32_t)CKV_LIMIT_PLANES;
        welcome->groups = (uint32_t)CKV_LIMIT_GROUPS;
        welcome->spans = (uint32_t)CKV_LIMIT_SPANS;
        welcome->message_parts = (uint32_t)CKV_LIMIT_MESSAGE_PARTS;
        welcome->mapped_bytes = daemon->mapped_bytes;
        memcpy(welcome->device_uuid, daemon->backend_info.uuid, sizeof(welcome->device_uuid));
        send_record(route, &record, daemon->backend_info.name, strnlen(daemon->backend_info.name, sizeof(daemon->backend_info.name)));
}

static void init_ok(struct ckv_answer *answer, enum ckv_record_answer kind) {
        struct ckv_record_status ok;

        ckv_status_set(&ok, CKV_CODE_OK, CKV_F_NONE, CKV_D_NONE, 0, 0, 0);
        ckv_answer_init(answer, &ok);
        answer->record.body.result.answer = kind;
}

void ckv_answer_send_pong(const struct ckv_route *route, const struct ckv_session *session) {
        const struct ckv_daemon *daemon = route->endpoint->daemon;
        struct ckv_backend_health health;
        struct ckv_answer answer;

        daemon->ops->health(daemon->backend, &health);
        init_ok(&answer, CKV_ANSWER_PONG);
        answer.record.body.result.u.pong.now_ns = ckv_now_nsec();
        answer.record.body.result.u.pong.last_progress_ns = health.last_progress_nsec;
        answer.record.body.result.u.pong.in_flight = session->request_count;
        answer.record.body.result.u.pong.draining = daemon->draining;
        ckv_answer_send(route, &answer, false);
}

void ckv_answer_send_budgets(const struct ckv_route *route, const struct ckv_session *session) {
        struct ckv_record_budget budgets[_CKV_SLOT_N];
        struct ckv_answer answer;
        uint32_t n = 0;

        for (uint32_t slot = CKV_SLOT_NONE + 1; slot < _CKV_SLOT_N; slot++)
                if (session->tenant->limit[slot])
                        budgets[n++] = (struct ckv_record_budget){
                                .slot = slot, .used = session->tenant->used[slot], .limit = session->tenant->limit[slot],
                        };
        init_ok(&answer, CKV_ANSWER_STATUS);
        answer.record.body.result.u.budgets.budget_count = n;
        answer.attachment = (uint8_t *)budgets;
        answer.bytes = (uint32_t)(n * sizeof(budgets[0]));
        ckv_answer_send(route, &answer, false);
}

void ckv_answer_send_outcome(const struct ckv_route *route, const struct ckv_outcome *outcome) {
        struct ckv_answer answer;

        init_ok(&answer, CKV_ANSWER_OUTCOME);
        answer.record.body.result.u.outcome.target_request_id = outcome->target_request_id;
        answer.record.body.result.u.outcome.phase = outcome->phase;
        answer.record.body.result.u.outcome.code = outcome->code;
        answer.record.body.result.u.outcome.cache = outcome->cache;
        ckv_answer_send(route, &answer, false);
}

/* ---- Compressed */

/* One set of a group and the layers it holds for. */
struct set {
        uint32_t layer_first;
        const struct ckv_kept *kept;
};

static bool same_kept(const struct ckv_kept *a, const struct ckv_kept *b) {
        return a->run_count == b->run_count && memcmp(a->runs, b->runs, a->run_count * sizeof(*a->runs)) == 0;
}

/* list_sets() - the sets of a group; kept[k] is that of layer k. Return: how many; @ret_sets has room for kept_count. */
static uint32_t list_sets(const struct ckv_job_group *group, struct set *ret_sets) {
        uint32_t n = 0;

        for (uint32_t k = 0; k < group->kept_count; k++)
                if (n == 0 || !same_kept(ret_sets[n - 1].kept, &group->kept[k]))
                        ret_sets[n++] = (struct set){ group->layers[k].number, &group->kept[k] };
        return n;
}

/* write_runs() - KeptSet.runs of the rows; at most 2 * run_count words. Return: how many. */
static uint32_t write_runs(const struct ckv_kept *kept, uint32_t *words) {
        uint32_t end = 0, n = 0;

        for (size_t i = 0; i < kept->run_count; i++) {
                words[n++] = kept->runs[i].src - end;
                words[n++] = kept->runs[i].len;
                end = kept->runs[i].src + kept->runs[i].len;
        }
        return n;
}

/* write_position_runs() - the same in positions, which may have gaps inside a run of rows. NULL words: only count. */
static uint32_t write_position_runs(const struct ckv_kept *kept, const uint32_t *positions, uint32_t *words) {
        uint32_t end = 0, n = 0;
        bool open = false;

        for (size_t i = 0; i < kept->run_count; i++)
                for (uint32_t k = 0; k < kept->runs[i].len; k++) {
                        uint32_t position = positions[kept->runs[i].src + k];

                        if (open && position == end) {
                                if (words)
                                        words[n - 1]++;
                        } else {
                                if (words) {
                                        words[n] = position - end;
                                        words[n + 1] = 1;
                                }
                                n += 2;
                                open = true;
                        }
                        end = position + 1;
                }
        return n;
}

/* What stands before the runs of a set in REPLY_IN_REGION and REPLY_IN_SLOT form. */
struct set_head {
        uint32_t group, layer_first, kv_head, physical_before, physical_len, run_words;
};

static struct set_head head_of(const struct ckv_job_group *group, const struct set *set) {
        return (struct set_head){
                .group = group->number, .layer_first = set->layer_first, .physical_before = group->selection.rows,
                .physical_len = set->kept->count, .run_words = (uint32_t)(2 * set->kept->run_count),
        };
}

/* digest_set() - FNV-1a 64 over the words of REPLY_IN_SLOT form: what ranks compare before they commit */
static uint64_t digest_set(uint64_t digest, const struct ckv_job_group *group, const struct set *set) {
        struct set_head head = head_of(group, set);
        uint32_t end = 0;

        digest = ckv_fnv64(digest, &head, sizeof(head));
        for (size_t i = 0; i < set->kept->run_count; i++) {
                uint32_t pair[2] = { set->kept->runs[i].src - end, set->kept->runs[i].len };

                digest = ckv_fnv64(digest, pair, sizeof(pair));
                end = set->kept->runs[i].src + set->kept->runs[i].len;
        }
        return digest;
}

/* sends_sets() - do sets travel in the answer itself? */
static bool sends_sets(const struct ckv_request *request) {
        return request->reply_form == CKV_REPLY_RUNS || request->reply_form == CKV_REPLY_ROWS;
}

/* write_to_region() - REPLY_IN_REGION: head and runs of each set, one after the other. Admission saw to room and alignment. */
static void write_to_region(const struct ckv_request *request, uint32_t index, const struct set *sets, uint32_t set_count,
                            uint8_t **at) {
        for (uint32_t i = 0; i < set_count; i++) {
                struct set_head head = head_of(&request->job->groups[index], &sets[i]);

                memcpy(*at, &head, sizeof(head));
                *at += sizeof(head);
                *at += write_runs(sets[i].kept, (void *)*at) * sizeof(uint32_t);
        }
}

static void fill_group_result(const struct ckv_request *request, uint32_t index, const struct set *sets, uint32_t set_count,
                              struct ckv_record_group_result *ret_result) {
        const struct ckv_job_group *group = &request->job->groups[index];
        uint64_t digest = CKV_FNV64_INIT;
        uint32_t longest = 0, per_entry = group->table.by_token ? 1 : group->table.tokens_per_block;

        for (uint32_t i = 0; i < set_count; i++) {
                longest = CKV_MAX(longest, sets[i].kept->count);
                digest = digest_set(digest, group, &sets[i]);
        }
        *ret_result = (struct ckv_record_group_result){
                .group = group->number, .physical_before = group->selection.rows, .physical_len = longest,
                .kept_all = group->budget.kept_all, .table_used = (longest + per_entry - 1) / per_entry,
                .budget = group->budget.budget, .budget_raised = group->budget.raised, .policy_count = 1,
                .sets_sent = sends_sets(request) ? set_count : 0, .set_count = set_count,
                .kept_digest = digest, .bytes_moved = group->bytes_moved,
        };
}

/* fill_policy() - what was used: a scale of 0 stands for 1 / sqrt(head_dim_k) */
static void fill_policy(const struct ckv_job_group *group, struct ckv_record_policy *ret_policy) {
        ckv_policy_to_record(&group->policy, ret_policy);
        if (ret_policy->scale == 0)
                ret_policy->scale = 1.0 / sqrt((double)group->head_dim_k);
}

static void fill_timing(const struct ckv_request *request, struct ckv_record_result *result) {
        const struct ckv_job *job = request->job;
        uint64_t started = CKV_MAX(job->started_nsec, request->arrived_nsec);

        result->u.compressed.queue_us = (uint32_t)((started - request->arrived_nsec) / CKV_NSEC_PER_USEC);
        result->u.compressed.score_us = (uint32_t)(job->score_nsec / CKV_NSEC_PER_USEC);
        result->u.compressed.select_us = (uint32_t)(job->select_nsec / CKV_NSEC_PER_USEC);
        result->u.compressed.move_us = (uint32_t)(job->move_nsec / CKV_NSEC_PER_USEC);
        result->u.compressed.total_us = (uint32_t)((ckv_now_nsec() - request->arrived_nsec) / CKV_NSEC_PER_USEC);
}

/* Where the parts of the attachment lie while it is written. */
struct layout {
        uint32_t sets, words;           /* how many in all */
        uint32_t *set_counts;           /* [group_count] */
        struct set *list;               /* [sets] all groups, in order */
};

/* measure() - list all sets and count their words */
static int measure(const struct ckv_request *request, struct layout *ret_layout) {
        const struct ckv_job *job = request->job;
        uint32_t most = 0;

        for (uint32_t i = 0; i < job->group_count; i++)
                most += job->groups[i].kept_count;
        ret_layout->set_counts = calloc((size_t)job->group_count + 1, sizeof(*ret_layout->set_counts));
        ret_layout->list = calloc((size_t)most + 1, sizeof(*ret_layout->list));
        if (!ret_layout->set_counts || !ret_layout->list)
                return -ENOMEM;
        for (uint32_t i = 0; i < job->group_count; i++) {
                const uint32_t *positions = job->groups[i].selection.positions;
                struct set *list = ret_layout->list + ret_layout->sets;

                ret_layout->set_counts[i] = list_sets(&job->groups[i], list);
                ret_layout->sets += ret_layout->set_counts[i];
                if (!sends_sets(request))
                        continue;
                for (uint32_t k = 0; k < ret_layout->set_counts[i]; k++)
                        ret_layout->words += (uint32_t)(2 * list[k].kept->run_count) +
                                             (positions ? write_position_runs(list[k].kept, positions, NULL) : 0);
        }
        return 0;
}

static void layout_deinit(struct layout *layout) {
        free(layout->set_counts);
        free(layout->list);
}

int ckv_answer_compressed(const struct ckv_request *request, struct ckv_answer *ret_answer) {
        const struct ckv_job *job = request->job;
        _cleanup_(layout_deinit) struct layout layout = { 0 };
        struct ckv_record_group_result *results;
        struct ckv_record_policy *policies;
        struct ckv_record_result *result;
        struct ckv_record_set *heads;
        struct ckv_answer answer;
        uint8_t *region = request->reply_address;
        uint32_t *words, sets_sent, at = 0;
        size_t bytes;
        int r;

        r = measure(request, &layout);
        if (r)
                return r;
        sets_sent = sends_sets(request) ? layout.sets : 0;
        bytes = job->group_count * (sizeof(*results) + sizeof(*policies)) + sets_sent * sizeof(*heads) + layout.words * sizeof(*words);
        init_ok(&answer, CKV_ANSWER_COMPRESSED);
        answer.attachment = calloc(1, bytes);
        if (!answer.attachment)
                return -ENOMEM;
        answer.bytes = (uint32_t)bytes;
        results = (void *)answer.attachment;
        policies = (void *)(results + job->group_count);
        heads = (void *)(policies + job->group_count);
        words = (void *)(heads + sets_sent);

        for (uint32_t i = 0; i < job->group_count; i++) {
                const struct set *sets = layout.list + at;

                if (request->reply_form == CKV_REPLY_IN_REGION)
                        write_to_region(request, i, sets, layout.set_counts[i], &region);
                fill_group_result(request, i, sets, layout.set_counts[i], &results[i]);
                fill_policy(&job->groups[i], &policies[i]);
                for (uint32_t k = 0; sets_sent && k < layout.set_counts[i]; k++) {
                        const uint32_t *positions = job->groups[i].selection.positions;
                        struct ckv_record_set *head = &heads[at + k];

                        head->layer_first = sets[k].layer_first;
                        head->run_count = write_runs(sets[k].kept, words);
                        words += head->run_count;
                        head->position_run_count = positions ? write_position_runs(sets[k].kept, positions, words) : 0;
                        words += head->position_run_count;
                }
                at += layout.set_counts[i];
        }
        result = &answer.record.body.result;
        result->status.cache = request->mode == CKV_MODE_PLAN ? CKV_CACHE_CLEAN : CKV_CACHE_COMMITTED;
        result->u.compressed.phase = request->phase;
        result->u.compressed.logical_len = request->logical_len;
        result->u.compressed.group_count = job->group_count;
        result->u.compressed.policy_count = job->group_count;
        result->u.compressed.set_count = sets_sent;
        result->u.compressed.word_count = layout.words;
        result->u.compressed.reply_form = request->reply_form;
        fill_timing(request, result);
        *ret_answer = answer;
        return 0;
}
