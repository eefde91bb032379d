/*
 * The questions that are about the daemon and not about tensors: is it alive,
 * how much of its budgets does this user hold, and which code scores what.
 * The latter two are one message.
 */
#include "clients/c/src/control.h"

#include <stdio.h>

int chunkkv_ping(struct chunkkv_client *client, uint32_t timeout_ms, struct chunkkv_pong *ret_pong,
                 struct chunkkv_error *ret_error) {
        Chunkkv__V1__Ping body = CHUNKKV__V1__PING__INIT;
        Chunkkv__V1__Request message;
        _cleanup_reply_ Chunkkv__V1__Response *reply = NULL;
        uint64_t asked_nsec = ckv_now_nsec();
        _locked_ struct chunkkv_client *held = ckv__lock(client);
        uint64_t deadline_nsec, begin = ckv_now_nsec();
        int r;

        r = ckv__deadline(asked_nsec, timeout_ms, &deadline_nsec, ret_error);
        if (r == 0)
                r = ckv__revive(client, deadline_nsec, ret_error);
        if (r)
                return r;
        chunkkv__v1__request__init(&message);
        message.body_case = CHUNKKV__V1__REQUEST__BODY_PING;
        message.ping = &body;
        r = ckv__call(client, &message, deadline_nsec, CHUNKKV__V1__RESPONSE__BODY_PONG, &reply, ret_error);
        if (r)
                return r;
        *ret_pong = (struct chunkkv_pong){
                .now_ns = reply->pong->now_ns,
                .last_progress_ns = reply->pong->last_progress_ns,
                .round_trip_ns = ckv_now_nsec() - begin,
                .in_flight = reply->pong->in_flight,
                .draining = reply->pong->draining,
        };
        return 0;
}

/* get_status() - @ret_reply: owned by the caller, with a StatusReply */
static int get_status(struct chunkkv_client *client, uint32_t timeout_ms, Chunkkv__V1__Response **ret_reply,
                      struct chunkkv_error *ret_error) {
        Chunkkv__V1__GetStatus body = CHUNKKV__V1__GET_STATUS__INIT;
        Chunkkv__V1__Request message;
        uint64_t asked_nsec = ckv_now_nsec();
        _locked_ struct chunkkv_client *held = ckv__lock(client);
        uint64_t deadline_nsec;
        int r;

        r = ckv__deadline(asked_nsec, timeout_ms, &deadline_nsec, ret_error);
        if (r == 0)
                r = ckv__revive(client, deadline_nsec, ret_error);
        if (r)
                return r;
        chunkkv__v1__request__init(&message);
        message.body_case = CHUNKKV__V1__REQUEST__BODY_GET_STATUS;
        message.get_status = &body;
        return ckv__call(client, &message, deadline_nsec, CHUNKKV__V1__RESPONSE__BODY_STATUS_REPLY, ret_reply, ret_error);
}

int chunkkv_budgets(struct chunkkv_client *client, uint32_t timeout_ms,
                    struct chunkkv_budget ret_budgets[CHUNKKV_BUDGETS_MAX], size_t *ret_count,
                    struct chunkkv_error *ret_error) {
        _cleanup_reply_ Chunkkv__V1__Response *reply = NULL;
        int r = get_status(client, timeout_ms, &reply, ret_error);
        size_t count;

        if (r)
                return r;
        count = CKV_MIN(reply->status_reply->n_budgets, (size_t)CHUNKKV_BUDGETS_MAX);
        for (size_t i = 0; i < count; i++) {
                const Chunkkv__V1__Budget *budget = reply->status_reply->budgets[i];

                ret_budgets[i] = (struct chunkkv_budget){ (uint32_t)budget->slot, budget->used, budget->limit };
        }
        *ret_count = count;
        return 0;
}

int chunkkv_code_paths(struct chunkkv_client *client, uint32_t timeout_ms,
                       struct chunkkv_code_path ret_paths[CHUNKKV_CODE_PATHS_MAX], size_t *ret_count,
                       struct chunkkv_error *ret_error) {
        _cleanup_reply_ Chunkkv__V1__Response *reply = NULL;
        int r = get_status(client, timeout_ms, &reply, ret_error);
        size_t count;

        if (r)
                return r;
        count = CKV_MIN(reply->status_reply->n_code_paths, (size_t)CHUNKKV_CODE_PATHS_MAX);
        for (size_t i = 0; i < count; i++) {
                const Chunkkv__V1__CodePath *path = reply->status_reply->code_paths[i];

                ret_paths[i] = (struct chunkkv_code_path){
                        .key_dtype = (uint32_t)path->key_dtype, .query_dtype = (uint32_t)path->query_dtype,
                        .head_dim_first = path->head_dim_first, .head_dim_last = path->head_dim_last,
                        .queries_first = path->queries_first, .queries_last = path->queries_last,
                };
                (void)snprintf(ret_paths[i].path, sizeof(ret_paths[i].path), "%s", path->path);
        }
        *ret_count = count;
        return 0;
}
