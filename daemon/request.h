/*
 * Compress requests in flight: from admission to the answer.
 */
#ifndef CKV_DAEMON_REQUEST_H
#define CKV_DAEMON_REQUEST_H

#include "daemon/control.h"
#include "daemon/session.h"
#include "daemon/tenant.h"
#include "daemon/timeline.h"
#include "daemon/window.h"
#include "kernels/job.h"
#include "proto/records.h"

#include <stdbool.h>
#include <stdint.h>

struct ckv_cache;
struct ckv_region;

/* Phase of chunkkv.proto; with a control slot the lower half of its word. */
enum ckv_phase {
        CKV_PHASE_NONE, CKV_PHASE_SUBMITTED, CKV_PHASE_SCORING, CKV_PHASE_SELECTED, CKV_PHASE_COMMITTING, CKV_PHASE_DONE,
        CKV_PHASE_TORN, CKV_PHASE_CANCELLED, CKV_PHASE_FAILED,
};

enum ckv_mode { CKV_MODE_NONE, CKV_MODE_PLAN, CKV_MODE_IN_PLACE, CKV_MODE_COPY_OUT };
enum ckv_reply_form { CKV_REPLY_RUNS, CKV_REPLY_ROWS, CKV_REPLY_IN_REGION, CKV_REPLY_IN_SLOT, CKV_REPLY_NO_SETS };

/* One GroupJob of the request: a group of the cache, cut into groups of the job where policies change. */
struct ckv_request_group {
        uint32_t first_part, part_count;        /* in job->groups */
        uint32_t table_form;                    /* TableForm as asked */
};

struct ckv_request {
        struct ckv_session *session;
        struct ckv_request *prev, *next;        /* session->requests */
        struct ckv_window_entry *entry;         /* of session->window; entry->running points back */
        struct ckv_route route;                 /* of the newest connection that asked; of Commit once that came */
        enum ckv_phase phase;
        bool cancelled;                         /* by Cancel, the slot's word, or because the session ends */
        bool hold, single_pass;                 /* as asked */
        bool repairs;                           /* a Repair: goes on where a daemon that died left off */
        sd_event_source *hold_timer;            /* while it is held: selected and answered, and nothing of it in the backend */
        struct ckv_window_entry *commit;        /* of the Commit that a held request waits for no more, or NULL */
        struct ckv_claim claim;                 /* its control slot; zeroed: none */
        uint64_t table_hash;                    /* of the tables as they came, see proto/control.h */
        struct ckv_answer answer;               /* made before the first row moves, so that nothing can fail after it */
        enum ckv_mode mode;
        enum ckv_reply_form reply_form;
        uint8_t *reply_address;                 /* REPLY_IN_REGION: where the sets go, in a region in use; and bytes there */
        uint64_t reply_bytes;
        struct ckv_timeline timeline;
        uint32_t logical_len;
        uint64_t arrived_nsec;
        struct ckv_cache *cache;                /* counts one request use */
        struct ckv_region **regions;            /* [region_count] each counts one request use */
        uint32_t region_count;
        struct ckv_job *job;
        struct ckv_request_group *groups;       /* [group_count] in the order of the request */
        uint32_t group_count;
        struct ckv_charge requests_charge, bytes_charge;
};

/**
 * ckv_request_start() - COMPRESS: admit, charge, hand to the backend
 * @entry: new in the session's window
 *
 * Return: true; or false with @ret_status and nothing left behind.
 */
bool ckv_request_start(struct ckv_session *session, const struct ckv_route *route, const struct ckv_record *record,
                       const uint8_t *attachment, uint32_t bytes, struct ckv_window_entry *entry,
                       struct ckv_record_status *ret_status);

/* ckv_request_new() - one that is charged for, and not yet admitted. Return: NULL with @ret_status. */
struct ckv_request *ckv_request_new(struct ckv_session *session, const struct ckv_route *route, struct ckv_window_entry *entry,
                                    struct ckv_record_status *ret_status);

/* ckv_request_charge() - QUEUED_BYTES: what came in, what the job holds, and @more. Return: false with @ret_status. */
bool ckv_request_charge(struct ckv_request *request, uint64_t more, struct ckv_record_status *ret_status);

/* ckv_request_link() - admitted: session and window know it */
void ckv_request_link(struct ckv_request *request);

/* ckv_request_group_of() - the place in the request of the group that job->groups[@part] is a part of */
uint32_t ckv_request_group_of(const struct ckv_request *request, uint32_t part);

/**
 * ckv_request_cancel() - before the commit: true, and the request will be answered CANCELLED; after it: false
 *
 * One that is held ends, and is freed, at once.
 */
bool ckv_request_cancel(struct ckv_request *request);

/* ckv_requests_cancel_all() - the session ends */
void ckv_requests_cancel_all(struct ckv_session *session);

/* ckv_request_free() - give back everything; the job must not be in the backend. Return: NULL. */
struct ckv_request *ckv_request_free(struct ckv_request *request);

/* ckv_request_use_region() - count one use of a region until the request ends; twice is fine. Return: 0 or -ENOMEM. */
int ckv_request_use_region(struct ckv_request *request, struct ckv_region *region);

/* ckv_request_pull() - bytes of a region in use that the job reads beside its rows, if they must be copied. Return: 0 or -ENOMEM. */
int ckv_request_pull(struct ckv_request *request, struct ckv_region *region, uint8_t *address, uint64_t bytes);

/* ckv_request_intact() - are the pages of all regions in use still there? Return: false with @ret_status REGION_LOST. */
bool ckv_request_intact(const struct ckv_request *request, struct ckv_record_status *ret_status);

/* ---- commit.c: what becomes of a request when its job comes back */

/* ckv_request_stage_done() - the backend is through with the job's stage: commit, hold, or answer and free */
void ckv_request_stage_done(struct ckv_request *request);

/**
 * ckv_request_hung() - the device hangs with the job, @seconds without progress: say so, with the state of the cache
 *
 * Nothing is freed and no memory unmapped, since the device may go on at any time: the process must end soon.
 */
void ckv_request_hung(struct ckv_request *request, uint64_t seconds);

/* ckv_request_commit() - decide, once and here, whether rows move; the request is submitted, or answered and freed */
void ckv_request_commit(struct ckv_request *request);

/* ckv_request_fail() - nothing was written: end as FAILED, or CANCELLED where that is the code; answer and free */
void ckv_request_fail(struct ckv_request *request, const struct ckv_record_status *status);

/* ckv_request_fail_cancelled() - the same, because the client changed its mind */
void ckv_request_fail_cancelled(struct ckv_request *request);

/* ckv_request_end() - out of the session's list, the phase into the window, freed; nothing is answered */
void ckv_request_end(struct ckv_request *request);

/* ckv_request_move() - rows move from here on: hand the job to the backend */
void ckv_request_move(struct ckv_request *request);

/* ckv_request_finish() - all rows are where they belong: answer and free */
void ckv_request_finish(struct ckv_request *request);

/* ckv_plan_failed() - outcome.c: the outcome of CKV_STAGE_PLAN as a status. Return: true if it is a failure. */
bool ckv_plan_failed(const struct ckv_request *request, struct ckv_record_status *ret_status);

/* ---- hold.c */

/* ckv_hold_begin() - selected: answer so, and wait for Commit. Return: false with @ret_status NO_MEMORY, nothing was answered. */
bool ckv_hold_begin(struct ckv_request *request, struct ckv_record_status *ret_status);

/* ckv_hold_end() - a held request that will not be committed, for the reason that @status says: its end is stored, it is freed */
void ckv_hold_end(struct ckv_request *request, const struct ckv_record_status *status);

/**
 * ckv_hold_commit() - COMMIT
 * @entry: of the Commit, new in the session's window
 *
 * Return: true: it is answered, or will be; or false with @ret_status.
 */
bool ckv_hold_commit(struct ckv_session *session, const struct ckv_route *route, uint64_t target, struct ckv_window_entry *entry,
                     struct ckv_record_status *ret_status);

/* ckv_hold_moving() - rows move from here on: a repeat of the Compress must not be told that the cache is CLEAN */
void ckv_hold_moving(struct ckv_request *request);

/* ckv_hold_settle() - the Commit was answered so: the Compress is answered so too, where it is repeated */
void ckv_hold_settle(struct ckv_request *request, const struct ckv_answer *answer);

/* ---- slot.c: what a request writes to its control slot */

/* ckv_slot_take() - hold slot @number of the session's page; nothing is read or written. @field is at fault if that fails. */
bool ckv_slot_take(struct ckv_request *request, uint32_t number, enum ckv_field field, struct ckv_record_status *ret_status);

/* ckv_request_claim() - where a request names a slot: hold it, and look whether the client submitted this use of it */
bool ckv_request_claim(struct ckv_request *request, const struct ckv_record_compress *body, struct ckv_record_status *ret_status);

/* ckv_request_stores_sets() - do the kept sets go to the slot? Where a move can be repaired, or the answer says so. */
bool ckv_request_stores_sets(const struct ckv_request *request);

/* ckv_slot_hash_table() - add words to request->table_hash: of each group number, rows, form, then the table as far as it matters */
void ckv_slot_hash_table(struct ckv_request *request, const uint32_t *words, uint64_t count);

/* ckv_slot_open() - what is known before scoring, then SUBMITTED > SCORING. Return: false: the client has cancelled. */
bool ckv_slot_open(struct ckv_request *request);

/* ckv_slot_select() - kept sets and steps, before SELECTED. Return: false with @ret_status. */
bool ckv_slot_select(struct ckv_request *request, struct ckv_record_status *ret_status);

/* ckv_slot_code() - Code of the answer, into the slot if there is one; before an end state */
void ckv_slot_code(const struct ckv_request *request, uint32_t code);

/* ckv_slot_enter() - the next phase, for the request and for its word. Return: false: the client has cancelled; nothing changed. */
bool ckv_slot_enter(struct ckv_request *request, enum ckv_phase phase);

/* ckv_slot_refuse() - a request with this body was refused before it held its slot: its word must not wait for ever */
void ckv_slot_refuse(struct ckv_session *session, const struct ckv_record_compress *body, uint32_t code);

/* ---- repair.c */

/**
 * ckv_repair_start() - REPAIR: admit the job, read and judge the slot, go on with its steps
 * @attachment: as ckv_request_start(), a struct ckv_record_repair in front
 * @entry: of the Repair, new in the session's window
 *
 * Return: true; or false with @ret_status, and neither the cache nor the slot was written to.
 */
bool ckv_repair_start(struct ckv_session *session, const struct ckv_route *route, const struct ckv_record *record,
                      const uint8_t *attachment, uint32_t bytes, struct ckv_window_entry *entry,
                      struct ckv_record_status *ret_status);

#endif
