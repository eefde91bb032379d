/*
 * Compress requests in flight: from admission to the answer.
 */
#ifndef CKV_DAEMON_REQUEST_H
#define CKV_DAEMON_REQUEST_H

#include "daemon/session.h"
#include "daemon/tenant.h"
#include "kernels/job.h"
#include "proto/records.h"

#include <stdbool.h>
#include <stdint.h>

struct ckv_cache;
struct ckv_region;

/* Phase of chunkkv.proto, as far as a request without control page passes through them. */
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
        struct ckv_route route;                 /* of the newest connection that asked */
        enum ckv_phase phase;
        bool cancelled;                         /* by Cancel, or because the session ends */
        enum ckv_mode mode;
        enum ckv_reply_form reply_form;
        uint8_t *reply_address;                 /* REPLY_IN_REGION: where the sets go, in a region in use; and bytes there */
        uint64_t reply_bytes;
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

/* ckv_request_group_of() - the place in the request of the group that job->groups[@part] is a part of */
uint32_t ckv_request_group_of(const struct ckv_request *request, uint32_t part);

/* ckv_request_cancel() - before the commit: true, and the request will be answered CANCELLED; after it: false */
bool ckv_request_cancel(struct ckv_request *request);

/* ckv_requests_cancel_all() - the session ends */
void ckv_requests_cancel_all(struct ckv_session *session);

/* ckv_request_free() - give back everything; the job must not be in the backend. Return: NULL. */
struct ckv_request *ckv_request_free(struct ckv_request *request);

/* ckv_request_use_region() - count one use of a region until the request ends; twice is fine. Return: 0 or -ENOMEM. */
int ckv_request_use_region(struct ckv_request *request, struct ckv_region *region);

/* ckv_request_intact() - are the pages of all regions in use still there? Return: false with @ret_status REGION_LOST. */
bool ckv_request_intact(const struct ckv_request *request, struct ckv_record_status *ret_status);

/* ckv_request_stage_done() - the backend is through with the job's stage: commit, or answer and free */
void ckv_request_stage_done(struct ckv_request *request);

#endif
