/*
 * Answers: from outcomes to RESULT and WELCOME records.
 */
#ifndef CKV_DAEMON_ANSWER_H
#define CKV_DAEMON_ANSWER_H

#include "daemon/session.h"
#include "daemon/window.h"
#include "proto/status.h"

struct ckv_request;

/* ckv_answer_init() - an answer that carries a status and nothing else */
void ckv_answer_init(struct ckv_answer *answer, const struct ckv_record_status *status);

/* ckv_answer_init_ok() - the same with status OK, about to carry a body of this kind */
void ckv_answer_init_ok(struct ckv_answer *answer, enum ckv_record_answer kind);

/* ckv_answer_send() - to where the route points; *answer stays the caller's */
void ckv_answer_send(const struct ckv_route *route, const struct ckv_answer *answer, bool repeated);

/* ckv_answer_settle() - send it, and remember it for repeats if they are to get the same; what it owns is taken */
void ckv_answer_settle(struct ckv_session *session, const struct ckv_route *route, struct ckv_window_entry *entry,
                       struct ckv_answer *answer);

/* The same for answers that are not stored: a status alone, Welcome, Pong, StatusReply. */
void ckv_answer_send_status(const struct ckv_route *route, const struct ckv_record_status *status);
void ckv_answer_send_welcome(const struct ckv_route *route, const struct ckv_session *session, const struct ckv_record_status *status);
void ckv_answer_send_pong(const struct ckv_route *route, const struct ckv_session *session);
void ckv_answer_send_budgets(const struct ckv_route *route, const struct ckv_session *session);

/* What became of a request, for Cancel and GetStatus. */
struct ckv_outcome {
        uint64_t target_request_id;
        uint32_t phase, code, cache;
};
void ckv_answer_send_outcome(const struct ckv_route *route, const struct ckv_outcome *outcome);

/*
 * ckv_answer_compressed() - the Compressed answer of a request whose job is planned; phase, bytes moved, times and the state of
 * the cache are those of now. Return: 0 or -ENOMEM.
 */
int ckv_answer_compressed(const struct ckv_request *request, struct ckv_answer *ret_answer);

/* ckv_answer_timing() - the times of a Compressed answer, as they are by now */
void ckv_answer_timing(const struct ckv_request *request, struct ckv_record_result *result);

#endif
