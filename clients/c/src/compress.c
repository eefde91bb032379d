/*
 * Compress, and what becomes of the tensors when no answer comes.
 *
 *   PLAN       never writes: CLEAN whatever happens.
 *   COPY_OUT   as IN_PLACE, but the daemon's death leaves the source CLEAN.
 *   IN_PLACE   the daemon promises not to begin to write after the deadline.
 *              An answer that is missing by then may be lost, or the move may
 *              be under way.  So the request is cancelled: the answer to that
 *              says which, and if it says nothing either, the state is PENDING.
 *              With a control slot its word decides, by one swap.
 *              The daemon's death leaves what recover.c makes of the slot, and
 *              TORN without one.
 *
 * A job that is held has an answer and no end: it stays known as a writing.
 */
#include "clients/c/src/control.h"

#include <errno.h>
#include <string.h>

/* How long after the deadline the fate of a writing job is waited for. */
#define SETTLE_NSEC (2 * CKV_NSEC_PER_SEC)
/* How long the answer to a Cancel is waited for that nobody asked for. */
#define CANCEL_MSEC 1000u
/* What the envelope adds to a request: numbers, boot id and session token. */
#define ENVELOPE_BYTES 96u

static int cancel_new(struct chunkkv_client *client, uint64_t target, uint64_t deadline_nsec,
                      struct ckv__request **ret_request, struct chunkkv_error *ret_error) {
        Chunkkv__V1__Cancel body = CHUNKKV__V1__CANCEL__INIT;
        Chunkkv__V1__Request message;

        body.target_request_id = target;
        chunkkv__v1__request__init(&message);
        message.body_case = CHUNKKV__V1__REQUEST__BODY_CANCEL;
        message.cancel = &body;
        return ckv__request_new(client, &message, 0, deadline_nsec, ret_request, ret_error);
}

static int cancel(struct chunkkv_client *client, uint64_t target, uint32_t timeout_ms,
                  struct chunkkv_outcome *ret_outcome, struct chunkkv_error *ret_error) {
        Chunkkv__V1__Cancel body = CHUNKKV__V1__CANCEL__INIT;
        Chunkkv__V1__Request message;
        _cleanup_reply_ Chunkkv__V1__Response *reply = NULL;
        uint64_t deadline_nsec;
        int r;

        r = ckv__deadline(ckv_now_nsec(), timeout_ms, &deadline_nsec, ret_error);
        if (r)
                return r;
        body.target_request_id = target;
        chunkkv__v1__request__init(&message);
        message.body_case = CHUNKKV__V1__REQUEST__BODY_CANCEL;
        message.cancel = &body;
        r = ckv__call(client, &message, deadline_nsec, CHUNKKV__V1__RESPONSE__BODY_OUTCOME, &reply, ret_error);
        if (r)
                return r;
        if (ret_outcome)
                *ret_outcome = (struct chunkkv_outcome){
                        (uint32_t)reply->outcome->phase, (uint32_t)reply->outcome->code,
                        (uint32_t)reply->outcome->cache,
                };
        return 0;
}

/* What the answer to a Cancel says about the tensors; PENDING while the job goes on. */
static uint32_t cache_after_cancel(const Chunkkv__V1__Response *reply) {
        if (!reply->status)
                return CHUNKKV_CACHE_PENDING;
        if (reply->body_case == CHUNKKV__V1__RESPONSE__BODY_OUTCOME &&
            reply->outcome->phase >= CHUNKKV__V1__PHASE__PHASE_DONE)
                return (uint32_t)reply->outcome->cache;
        /* never came through, and its deadline is over: it will not be run any more */
        if (reply->status->code == CHUNKKV__V1__CODE__CODE_NOT_FOUND)
                return CHUNKKV_CACHE_CLEAN;
        return CHUNKKV_CACHE_PENDING;
}

/*
 * The deadline has passed without an answer. Return: 0 if the answer came
 * after all; else -ETIMEDOUT or -EOWNERDEAD and the state of the tensors.
 */
static int settle(struct chunkkv_client *client, struct ckv__request *request, uint32_t *ret_cache) {
        uint64_t until = ckv_now_nsec() + SETTLE_NSEC;
        struct ckv__request *cancel = NULL;
        uint32_t cache = CHUNKKV_CACHE_PENDING;
        bool won;
        int r;

        if (!request->sent) {
                *ret_cache = CHUNKKV_CACHE_CLEAN;
                return -ETIMEDOUT;
        }
        /* won: nothing will be written; the daemon may read a little longer, so its word is waited for all the same */
        won = request->writing && ckv__ticket_cancel(client->page, &request->writing->ticket);
        r = cancel_new(client, request->target ? request->target : request->id, until, &cancel, NULL);
        if (r == 0)
                r = ckv__wait(client, request, cancel, until);
        if (r == 0 && !request->reply) {
                cache = cache_after_cancel(cancel->reply);
                /* else there is an answer with the kept rows, or will be; a copy that was lost is asked for again */
                request->deadline_nsec = until;
                request->due = true;
                r = cache == CHUNKKV_CACHE_CLEAN ? -ETIMEDOUT : ckv__wait(client, request, NULL, until);
        }
        cancel = ckv__request_free(client, cancel);
        *ret_cache = won ? CHUNKKV_CACHE_CLEAN : r == -EOWNERDEAD ? CHUNKKV_CACHE_TORN : cache;
        return r;
}

/* The request has no answer, and will get none. */
static int report_silence(const struct ckv__request *request, int error, uint32_t cache,
                          struct chunkkv_error *ret_error) {
        const char *tail = "";

        if (request->mode == CHUNKKV_MODE_PLAN) {
                cache = CHUNKKV_CACHE_CLEAN;
        } else if (request->mode == CHUNKKV_MODE_COPY_OUT && error == -EOWNERDEAD) {
                cache = CHUNKKV_CACHE_CLEAN;
                tail = "; the source is untouched, the destination is undefined";
        } else if (cache == CHUNKKV_CACHE_PENDING) {
                tail = "; it may still write: leave the memory alone until the session is closed";
        }
        if (error == -EOWNERDEAD)
                (void)ckv__core_died(ret_error, tail);
        else
                (void)ckv__fault(ret_error, error, "", "%s%s",
                                 error == -ETIMEDOUT ? "no answer in time" : strerror(-error), tail);
        if (ret_error) {
                ret_error->cache = cache;
                ret_error->request_id = request->handle;
        }
        return error;
}

static int take_answer(struct ckv__request *request, struct chunkkv_result **ret_result,
                       struct chunkkv_error *ret_error) {
        int r;

        r = ckv__reply_check(request->reply, CHUNKKV__V1__RESPONSE__BODY_COMPRESSED, ret_error);
        if (r == 0)
                r = ckv__result_new(request, ret_result, ret_error);
        if (r == -EREMOTEIO && ret_error && request->sent_again && request->mode == CHUNKKV_MODE_IN_PLACE &&
            (ret_error->code == CHUNKKV_CODE_STALE_BOOT || ret_error->code == CHUNKKV_CODE_SESSION_UNKNOWN))
                ret_error->cache = CHUNKKV_CACHE_TORN;  /* the first copy may have reached what ended before the second */
        if (r && ret_error) {
                ret_error->request_id = request->handle;
                /* the answer is unreadable, what it said about the tensors is not */
                if (r != -EREMOTEIO)
                        ret_error->cache = CHUNKKV_CACHE_PENDING;
                if (r != -EREMOTEIO && request->reply->status)
                        ret_error->cache = (uint32_t)request->reply->status->cache;
        }
        return r;
}

/* Notes a job whose end must be known, with a slot where there may be one. Return: false without memory. */
static bool note_writing(struct chunkkv_client *client, const struct chunkkv_job *job, Chunkkv__V1__Compress *message,
                         struct ckv__writing **ret_writing) {
        struct ckv__ticket ticket = { 0 };

        *ret_writing = NULL;
        if (job->mode == CHUNKKV_MODE_IN_PLACE) {
                ckv__writings_sweep(client);
                ticket = ckv__ticket_take(client->page);
        }
        if (ticket.number == 0 && !job->hold)
                return true;
        *ret_writing = ckv__writing_new(client, message);
        if (!*ret_writing) {
                if (ticket.number) {
                        (void)ckv__ticket_cancel(client->page, &ticket);
                        ckv__ticket_release(client->page, &ticket);
                }
                return false;
        }
        message->control_slot = ticket.number;
        message->control_use = ticket.use;
        (*ret_writing)->ticket = ticket;
        (*ret_writing)->reply_form = job->reply_form;
        (*ret_writing)->generation = job->generation;
        (*ret_writing)->waited_for = true;
        return true;
}

/* The job never reached the daemon, or was refused: its slot is for others. */
static struct ckv__writing *drop_writing(struct chunkkv_client *client, struct ckv__writing *writing) {
        if (writing)
                (void)ckv__ticket_cancel(client->page, &writing->ticket);
        return ckv__writing_free(client, writing);
}

int chunkkv_compress_submit_ordered(struct chunkkv_client *client, const struct chunkkv_job *job,
                                    const struct chunkkv_timeline *wait, const struct chunkkv_timeline *signal,
                                    uint32_t timeout_ms, uint64_t *ret_request_id, struct chunkkv_error *ret_error) {
        _cleanup_(ckv__arena_deinit) struct ckv__arena arena = { 0 };
        uint64_t asked_nsec = ckv_now_nsec();
        _locked_ struct chunkkv_client *held = ckv__lock(client);
        Chunkkv__V1__Compress *compress;
        Chunkkv__V1__Request message;
        struct ckv__request *request;
        struct ckv__writing *writing;
        struct ckv__scratch *tables;
        uint64_t deadline_nsec;
        size_t most = client->info.request_bytes ? client->info.request_bytes - ENVELOPE_BYTES : SIZE_MAX;
        int r;

        r = ckv__deadline(asked_nsec, timeout_ms, &deadline_nsec, ret_error);
        if (r)
                return r;
        r = ckv__job_encode(&arena, job, wait, signal, &compress, ret_error);
        if (r == 0)
                r = ckv__revive(client, deadline_nsec, ret_error);
        if (r)
                return r;
        chunkkv__v1__request__init(&message);
        message.body_case = CHUNKKV__V1__REQUEST__BODY_COMPRESS;
        message.compress = compress;
        message.generation = job->generation;
        r = ckv__fit_tables(client, &arena, &message, most, deadline_nsec, &tables, ret_error);
        if (r)
                return r;
        r = note_writing(client, job, compress, &writing) ? 0 : ckv__fault(ret_error, -ENOMEM, "", "no memory for a job");
        if (r == 0) {
                r = ckv__request_new(client, &message, job->mode, deadline_nsec, &request, ret_error);
                if (r)
                        writing = drop_writing(client, writing);
        }
        if (r) {
                tables = ckv__scratch_release(tables);
                return r;
        }
        if (writing)
                writing->handle = writing->id = request->handle;
        request->writing = writing;
        request->reply_form = job->reply_form;
        request->tables = tables;
        ckv__send(client);
        *ret_request_id = request->handle;
        return 0;
}

int chunkkv_compress_submit(struct chunkkv_client *client, const struct chunkkv_job *job, uint32_t timeout_ms,
                            uint64_t *ret_request_id, struct chunkkv_error *ret_error) {
        return chunkkv_compress_submit_ordered(client, job, NULL, NULL, timeout_ms, ret_request_id, ret_error);
}

/* Waits until there is an answer, or none to be had. Return: as ckv__wait(), and then what became of the tensors. */
static int await_answer(struct chunkkv_client *client, struct ckv__request *request, uint32_t *ret_cache) {
        uint32_t cache;
        int r;

        do
                r = ckv__wait(client, request, NULL, request->deadline_nsec);
        while (r == 0 && ckv__fit_answer(client, request));
        cache = r == -EOWNERDEAD && request->sent ? CHUNKKV_CACHE_TORN : CHUNKKV_CACHE_CLEAN;
        if (r == -EIO && request->sent)
                cache = CHUNKKV_CACHE_PENDING;
        if (r == -ETIMEDOUT) {
                if (request->mode == CHUNKKV_MODE_PLAN)
                        (void)cancel(client, request->id, 1, NULL, NULL);       /* saves the daemon the work */
                else
                        r = settle(client, request, &cache);
        }
        *ret_cache = cache;
        return r;
}

static bool is_stale(const struct ckv__request *request) {
        const Chunkkv__V1__Response *reply = request->reply;

        return reply && reply->status && reply->status->code == CHUNKKV__V1__CODE__CODE_STALE_BOOT;
}

static bool is_held(const struct ckv__request *request) {
        const Chunkkv__V1__Response *reply = request->reply;

        return reply && reply->body_case == CHUNKKV__V1__RESPONSE__BODY_COMPRESSED &&
               reply->compressed->phase == CHUNKKV__V1__PHASE__PHASE_SELECTED;
}

/* Is the end of the job known, so that it can be forgotten? */
static bool is_known(const struct ckv__writing *writing, int error, uint32_t cache) {
        if (error == 0)
                return !writing->selected;
        return cache != CHUNKKV_CACHE_PENDING && cache != CHUNKKV_CACHE_TORN_REPAIRABLE;
}

int ckv__request_finish(struct chunkkv_client *client, struct ckv__request *request, struct chunkkv_result **ret_result,
                        struct chunkkv_error *ret_error) {
        struct ckv__writing *writing = request->writing;
        struct chunkkv_error error = { 0 };
        uint32_t cache;
        bool settled;
        int r;

        request->waited_for = true;
        r = await_answer(client, request, &cache);
        settled = r == 0 || !request->sent;
        if (writing && writing->ticket.number && (r == -EOWNERDEAD || (r == 0 && is_stale(request)))) {
                /* another daemon answers when the one that had the job is dead, and its slot says the rest */
                r = ckv__writing_recover(client, writing, !client->no_roll_forward, ret_result, &cache, &error);
        } else {
                r = r == 0 ? take_answer(request, ret_result, &error) : report_silence(request, r, cache, &error);
                cache = error.cache;
        }
        if (r && writing && writing->torn && cache == CHUNKKV_CACHE_CLEAN)
                cache = error.cache = CHUNKKV_CACHE_TORN_REPAIRABLE;    /* it was a repair, and did nothing */
        /* held for a caller who does not get to know: not for long; its slot is free when the next job comes that way */
        if (r && is_held(request))
                (void)cancel(client, request->id, CANCEL_MSEC, NULL, NULL);
        if (writing) {
                writing->torn = r && cache == CHUNKKV_CACHE_TORN_REPAIRABLE;
                writing->selected = r == 0 && (*ret_result)->phase == CHUNKKV_PHASE_SELECTED;
                writing->waited_for = false;
                if (is_known(writing, r, cache))
                        writing = drop_writing(client, writing);
        }
        if (r && ret_error)
                *ret_error = error;
        /* without an answer the daemon may still use them */
        if (settled) {
                request->tables = ckv__scratch_release(request->tables);
                request->sets = ckv__scratch_release(request->sets);
        }
        (void)ckv__request_free(client, request);
        return r;
}

int chunkkv_compress_wait(struct chunkkv_client *client, uint64_t request_id, struct chunkkv_result **ret_result,
                          struct chunkkv_error *ret_error) {
        _locked_ struct chunkkv_client *held = ckv__lock(client);
        struct ckv__request *request = ckv__request_find_handle(client, request_id);

        if (!request || !request->mode || request->waited_for)
                return ckv__fault(ret_error, -EINVAL, "request_id",
                                  "no job of this number was submitted, or it is or was waited for already");
        return ckv__request_finish(client, request, ret_result, ret_error);
}

int chunkkv_compress(struct chunkkv_client *client, const struct chunkkv_job *job, uint32_t timeout_ms,
                     struct chunkkv_result **ret_result, struct chunkkv_error *ret_error) {
        uint64_t request_id;
        int r;

        r = chunkkv_compress_submit(client, job, timeout_ms, &request_id, ret_error);
        if (r)
                return r;
        return chunkkv_compress_wait(client, request_id, ret_result, ret_error);
}

int chunkkv_cancel(struct chunkkv_client *client, uint64_t request_id, uint32_t timeout_ms,
                   struct chunkkv_outcome *ret_outcome, struct chunkkv_error *ret_error) {
        _locked_ struct chunkkv_client *held = ckv__lock(client);
        const struct ckv__request *request = ckv__request_find_handle(client, request_id);
        struct ckv__writing *writing = ckv__writing_find(client, request_id);
        uint64_t target = request_id;
        bool won = writing && writing->ticket.number && ckv__ticket_cancel(client->page, &writing->ticket);
        int r;

        /* a job that was asked again has another number with the daemon */
        if (writing)
                target = writing->id;
        else if (request)
                target = request->id;
        r = cancel(client, target, timeout_ms, ret_outcome, ret_error);
        if (won) {
                /* whatever the daemon says, or if it says nothing: it will write nothing */
                if (ret_outcome)
                        *ret_outcome = (struct chunkkv_outcome){
                                CHUNKKV_PHASE_CANCELLED, CHUNKKV_CODE_CANCELLED, CHUNKKV_CACHE_CLEAN,
                        };
                r = 0;
        }
        if (r == 0 && writing && writing->selected && !writing->waited_for)
                writing = ckv__writing_free(client, writing);
        return r;
}
