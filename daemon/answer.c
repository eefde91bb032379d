/*
 * Answers.  An answer is built once, as a RESULT record with its attachment,
 * and sent as often as it is asked for; only the head changes, so that a
 * repeat is the same answer to the last bit.  What a Compressed answer says is
 * put together in answer_compressed.c.
 */
#include "daemon/answer.h"

#include "base/clock.h"
#include "base/macros.h"
#include "daemon/daemon.h"
#include "daemon/engine.h"
#include "daemon/gate_link.h"
#include "proto/code_path.h"

#include <string.h>

enum { BACKEND_CPU = 1, BACKEND_CUDA = 2 };     /* Backend of chunkkv.proto */

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

/* worth_storing() - refusals that a later repeat of the same id may not meet again are not remembered */
static bool worth_storing(uint16_t code) {
        return code != CKV_CODE_QUOTA && code != CKV_CODE_BUSY && code != CKV_CODE_NO_MEMORY && code != CKV_CODE_DRAINING;
}

void ckv_answer_settle(struct ckv_session *session, const struct ckv_route *route, struct ckv_window_entry *entry,
                       struct ckv_answer *answer) {
        ckv_answer_send(route, answer, false);
        if (worth_storing(answer->record.body.result.status.code))
                ckv_window_store(&session->window, entry, answer);
        else
                ckv_window_forget(entry);
        ckv_answer_deinit(answer);
}

void ckv_answer_send_status(const struct ckv_route *route, const struct ckv_record_status *status) {
        struct ckv_answer answer;

        ckv_answer_init(&answer, status);
        ckv_answer_send(route, &answer, false);
}

void ckv_answer_send_welcome(const struct ckv_route *route, const struct ckv_session *session, const struct ckv_record_status *status) {
        const struct ckv_daemon *daemon = route->endpoint->daemon;
        const struct ckv_share *share = &daemon->shares[CKV_SLOT_MAPPED_BYTES];
        const struct ckv_options *options = daemon->options;
        struct ckv_record record = { .head.type = CKV_RECORD_WELCOME };
        struct ckv_record_welcome *welcome = &record.body.welcome;

        welcome->status = *status;
        welcome->backend = daemon->ops->import ? BACKEND_CUDA : BACKEND_CPU;
        memcpy(welcome->session_token, session->token, sizeof(welcome->session_token));
        welcome->now_ns = ckv_now_nsec();
        welcome->capabilities = ckv_capabilities(options);
        welcome->request_bytes = (uint32_t)options->request_bytes;
        welcome->reply_bytes = (uint32_t)options->reply_bytes;
        welcome->in_flight = (uint32_t)options->in_flight;
        welcome->regions = (uint32_t)options->regions;
        welcome->rows = (uint32_t)options->rows;
        welcome->planes = (uint32_t)CKV_LIMIT_PLANES;
        welcome->groups = (uint32_t)CKV_LIMIT_GROUPS;
        welcome->spans = (uint32_t)CKV_LIMIT_SPANS;
        welcome->hold_ms = (uint32_t)options->hold_ms;
        welcome->control_slots = (uint32_t)CKV_LIMIT_CONTROL_SLOTS;
        welcome->message_parts = (uint32_t)CKV_LIMIT_MESSAGE_PARTS;
        /* what a user alone may have: the reserve is for others (daemon/share.h) */
        welcome->mapped_bytes = share->total ? CKV_MIN(daemon->mapped_bytes, share->total - share->reserve) : daemon->mapped_bytes;
        if (daemon->ops->import)
                welcome->mapped_bytes += ckv_tenant_most(session->tenant, CKV_SLOT_DEVICE_BYTES);
        memcpy(welcome->device_uuid, daemon->backend_info.uuid, sizeof(welcome->device_uuid));
        send_record(route, &record, daemon->backend_info.name, strnlen(daemon->backend_info.name, sizeof(daemon->backend_info.name)));
}

void ckv_answer_init_ok(struct ckv_answer *answer, enum ckv_record_answer kind) {
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
        ckv_answer_init_ok(&answer, CKV_ANSWER_PONG);
        answer.record.body.result.u.pong.now_ns = ckv_now_nsec();
        answer.record.body.result.u.pong.last_progress_ns = health.last_progress_nsec;
        answer.record.body.result.u.pong.in_flight = session->request_count;
        answer.record.body.result.u.pong.draining = daemon->draining;
        ckv_answer_send(route, &answer, false);
}

/* put_code_paths() - what the device said when it was opened. Return: how many. */
static uint32_t put_code_paths(const struct ckv_backend_info *info, struct ckv_record_code_path ret_paths[CKV_CPU_PICKS_MOST]) {
        for (uint32_t i = 0; i < info->picked_count; i++) {
                const struct ckv_cpu_pick *pick = &info->picked[i];

                ret_paths[i] = (struct ckv_record_code_path){
                        .path = ckv_code_path_parse(pick->path), .key_dtype = pick->keys, .query_dtype = pick->queries,
                        .head_dim_first = pick->dims_first, .head_dim_last = pick->dims_last,
                        .queries_first = pick->queries_first, .queries_last = pick->queries_last,
                };
        }
        return info->picked_count;
}

void ckv_answer_send_budgets(const struct ckv_route *route, const struct ckv_session *session) {
        const struct ckv_daemon *daemon = route->endpoint->daemon;
        struct ckv_record_code_path paths[CKV_CPU_PICKS_MOST];
        struct ckv_record_budget budgets[_CKV_SLOT_N];
        uint8_t attachment[sizeof(budgets) + sizeof(paths)];
        struct ckv_answer answer;
        uint32_t n = 0, path_count = put_code_paths(&daemon->backend_info, paths);

        for (uint32_t slot = CKV_SLOT_NONE + 1; slot < CKV_SLOT_DEVICE_TIME; slot++)
                budgets[n++] = (struct ckv_record_budget){
                        .slot = slot, .used = session->tenant->used[slot], .limit = ckv_tenant_most(session->tenant, slot),
                };
        if (daemon->ops->import) {
                /* one number for people: what is open of the host's and of the device's memory */
                budgets[CKV_SLOT_MAPPED_BYTES - 1].used += session->tenant->used[CKV_SLOT_DEVICE_BYTES];
                budgets[CKV_SLOT_MAPPED_BYTES - 1].limit += ckv_tenant_most(session->tenant, CKV_SLOT_DEVICE_BYTES);
        }
        budgets[n] = (struct ckv_record_budget){ .slot = CKV_SLOT_DEVICE_TIME };
        ckv_engine_device_time(session->tenant, &budgets[n].used, &budgets[n].limit);
        n++;
        ckv_answer_init_ok(&answer, CKV_ANSWER_STATUS);
        memcpy(attachment, budgets, n * sizeof(budgets[0]));
        memcpy(attachment + n * sizeof(budgets[0]), paths, path_count * sizeof(paths[0]));
        answer.record.body.result.u.budgets.budget_count = n;
        answer.record.body.result.u.budgets.code_path_count = path_count;
        answer.attachment = attachment;
        answer.bytes = (uint32_t)(n * sizeof(budgets[0]) + path_count * sizeof(paths[0]));
        ckv_answer_send(route, &answer, false);
}

void ckv_answer_send_outcome(const struct ckv_route *route, const struct ckv_outcome *outcome) {
        struct ckv_answer answer;

        ckv_answer_init_ok(&answer, CKV_ANSWER_OUTCOME);
        answer.record.body.result.u.outcome.target_request_id = outcome->target_request_id;
        answer.record.body.result.u.outcome.phase = outcome->phase;
        answer.record.body.result.u.outcome.code = outcome->code;
        answer.record.body.result.u.outcome.cache = outcome->cache;
        ckv_answer_send(route, &answer, false);
}
