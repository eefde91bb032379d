/*
 * Request ids of one session: which were seen, and what was answered.  A
 * request is executed at most once; a repeat gets the stored answer.  The last
 * CKV_LIMIT_STORED_OUTCOMES ids are remembered, the kept sets of the last
 * CKV_LIMIT_STORED_SETS too.
 */
#ifndef CKV_DAEMON_WINDOW_H
#define CKV_DAEMON_WINDOW_H

#include "daemon/tenant.h"
#include "proto/records.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ckv_imported;
struct ckv_request;

/* One answer as it goes to a gate; attachment owned. */
struct ckv_answer {
        struct ckv_record record;       /* type RESULT; head route fields are filled in when it is sent */
        uint8_t *attachment;
        uint32_t bytes;
};

/* ckv_answer_deinit() - free what the answer owns and zero it */
void ckv_answer_deinit(struct ckv_answer *answer);

struct ckv_window_entry {
        uint64_t id;                    /* 0 = never used */
        uint64_t body_digest;
        struct ckv_request *running;    /* that works on it, or NULL; one that is held was answered once already */
        struct ckv_imported *imported;  /* device memory that is being opened or closed, and will answer it; or NULL */
        struct ckv_answer *answer;      /* owned, there from the beginning: an outcome that could not be stored could happen twice */
        bool answered;                  /* *answer is one */
        bool barred;                    /* it was cancelled before it came: answered so, whatever its body */
        bool is_compress;               /* or Repair: has a phase */
        uint8_t phase;                  /* is_compress, and not running: how it ended, enum ckv_phase */
        struct ckv_evictable sets;      /* what the sets of the answer cost, while it has them */
};

struct ckv_window {
        struct ckv_tenant *tenant;              /* pays for stored sets, borrowed; NULL: nobody does */
        struct ckv_window_entry *entries;       /* [CKV_LIMIT_STORED_OUTCOMES], slot = id % length; allocated on first use */
        uint64_t highest;
        uint64_t whole[8];                      /* ids whose answers are stored whole, oldest first from whole_next */
        uint32_t whole_next;
};

enum ckv_window_outcome {
        _CKV_WINDOW_E_SUCCESS,          /* a new id: the entry is taken */
        CKV_WINDOW_E_REPEAT,            /* seen with the same body: *ret_entry has running or answer */
        CKV_WINDOW_E_CONFLICT,          /* seen with another body */
        CKV_WINDOW_E_OLD,               /* below the window */
        CKV_WINDOW_E_BUSY,              /* its slot belongs to a request that still runs */
};

/* ckv_window_enter() - judge an id. Return: 0, a CKV_WINDOW_E_* outcome, or -ENOMEM: the id is as if it had never come. */
int ckv_window_enter(struct ckv_window *window, uint64_t id, uint64_t body_digest, struct ckv_window_entry **ret_entry);

/**
 * ckv_window_bar() - an id that was not seen and may still be on its way is never to be executed
 *
 * A little ahead of the highest id only: one that is far off was never given out, and taking it in would end the use of
 * all that come before it.
 *
 * Return: 0, and the caller stores what it is to be answered; an outcome or -ENOMEM as ckv_window_enter().
 */
int ckv_window_bar(struct ckv_window *window, uint64_t id, struct ckv_window_entry **ret_entry);

/* ckv_window_find() - the entry of an id that was seen and is remembered, or NULL */
struct ckv_window_entry *ckv_window_find(struct ckv_window *window, uint64_t id);

/* ckv_window_forget() - an id whose refusal must not be stored (QUOTA, BUSY, ...): a repeat is judged anew */
void ckv_window_forget(struct ckv_window_entry *entry);

/**
 * ckv_window_store() - remember an answer, in place of an earlier one
 * @entry:  no longer running; whoever holds a request sets that again
 * @answer: what it owns is taken, and it is zeroed
 *
 * Its sets are kept if the tenant's budget has room for them, and go when the room is needed.
 */
void ckv_window_store(struct ckv_window *window, struct ckv_window_entry *entry, struct ckv_answer *answer);

/* ckv_window_lowest() - ids below are refused */
uint64_t ckv_window_lowest(const struct ckv_window *window);

/* ckv_window_deinit() - free all stored answers; no request may be running */
void ckv_window_deinit(struct ckv_window *window);

#endif
