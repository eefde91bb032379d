/*
 * What outlives the daemon's death inside the client library: the control
 * page, the jobs whose end is not known, and what is registered.  Nothing in
 * here is public; all of it is guarded by the client's mutex.
 */
#ifndef CKV_CLIENTS_CONTROL_H
#define CKV_CLIENTS_CONTROL_H

#include "clients/c/src/client.h"
#include "proto/control.h"

#define CKV__SLOTS_MAX 8u
#define CKV__KEPT_PAGES_DEFAULT 256u
#define CKV__STEPS_MAX 512u

/* ---- control.c: the page */

struct ckv__page {
        struct chunkkv_memory memory;   /* size 0: there is none */
        uint32_t slots, kept_bytes, kept_offset;
        bool taken[CKV__SLOTS_MAX];     /* by a job of ours; entry n - 1 is slot n */
        bool attached;                  /* the daemon of now has it */
};

/**
 * ckv__page_create() - make the page as the options say
 * @ret_page: ends with ckv__page_release(); size 0 if the options want none
 *
 * Return: 0, or -EINVAL, -ENOMEM, -errno with @ret_error filled in.
 */
int ckv__page_create(const struct chunkkv_options *options, struct ckv__page *ret_page, struct chunkkv_error *ret_error);
/* ckv__page_release() - unmap it; none is fine */
void ckv__page_release(struct ckv__page *page);
/* ckv__page_slot() - slot @number, 1 .. slots */
struct ckv_control_slot *ckv__page_slot(const struct ckv__page *page, uint32_t number);
/* ckv__page_kept() - its kept area, kept_bytes long */
const uint8_t *ckv__page_kept(const struct ckv__page *page, uint32_t number);

/* A slot in the hands of one job; number 0: none. */
struct ckv__ticket {
        uint32_t number, use;
};

/* ckv__ticket_take() - a slot whose last job has ended, with the word SUBMITTED; number 0 if there is none */
struct ckv__ticket ckv__ticket_take(struct ckv__page *page);
/* ckv__ticket_renew() - the job was refused and is asked again: a new use of the same slot */
void ckv__ticket_renew(const struct ckv__page *page, struct ckv__ticket *ticket);
/* ckv__ticket_cancel() - swap SUBMITTED, SCORING or SELECTED to CANCELLED. Return: true if nothing will be written. */
bool ckv__ticket_cancel(const struct ckv__page *page, const struct ckv__ticket *ticket);
/* ckv__ticket_phase() - chunkkv_phase of this use, CHUNKKV_PHASE_NONE if the slot has another use by now */
uint32_t ckv__ticket_phase(const struct ckv__page *page, const struct ckv__ticket *ticket);
/* ckv__ticket_end() - write the last phase of a job whose daemon is dead */
void ckv__ticket_end(const struct ckv__page *page, const struct ckv__ticket *ticket, uint32_t phase);
/* ckv__ticket_release() - the job is over: others may have the slot, as soon as its word has ended */
void ckv__ticket_release(struct ckv__page *page, struct ckv__ticket *ticket);

/* ---- writing.c: jobs whose end is not known, or that are held */

struct ckv__writing {
        struct ckv__writing *next;
        uint64_t handle;                /* what the caller knows it by */
        uint64_t id;                    /* what the daemon does */
        uint8_t boot_id[16];            /* of the daemon that it was sent to, or that repaired it last */
        uint8_t repair_boot_id[16];     /* of one that is to repair it and may have begun; else zero */
        struct ckv__ticket ticket;
        uint32_t mode, reply_form;
        uint64_t generation;
        uint8_t *job;                   /* packed Compress, its regions and its cache by handles */
        size_t job_size;
        bool waited_for;                /* a request about it is under way */
        bool selected;                  /* held: its sets are known */
        bool torn;                      /* in the middle of its move, until a repair */
};

/* ckv__writing_new() - a job that is about to be sent. Return: the client's, until ckv__writing_free(); NULL: no memory. */
struct ckv__writing *ckv__writing_new(struct chunkkv_client *client, const Chunkkv__V1__Compress *job);
/* ckv__writing_find() - by the number that the caller knows, or NULL */
struct ckv__writing *ckv__writing_find(const struct chunkkv_client *client, uint64_t handle);
/* ckv__writing_free() - its end is known: give its slot back; NULL is fine. Return: NULL. */
struct ckv__writing *ckv__writing_free(struct chunkkv_client *client, struct ckv__writing *writing);
/* ckv__writings_sweep() - free those that ended while nobody waited for them */
void ckv__writings_sweep(struct chunkkv_client *client);
/* ckv__writing_job() - the job, unpacked; the caller's; NULL without memory */
Chunkkv__V1__Compress *ckv__writing_job(const struct ckv__writing *writing);

/**
 * ckv__writing_recover() - the daemon that had the job is dead: see how far it came, and finish the move
 * @may_move:   false: leave a torn cache to chunkkv_repair()
 * @ret_result: what the daemon would have answered, if the rows are moved now; may be NULL
 *
 * Return: 0; -EOWNERDEAD with the state of the tensors in @ret_error, and in @ret_cache.
 */
int ckv__writing_recover(struct chunkkv_client *client, struct ckv__writing *writing, bool may_move,
                         struct chunkkv_result **ret_result, uint32_t *ret_cache, struct chunkkv_error *ret_error);

/* ---- registry.c: what is registered, and under which numbers */

struct ckv__region {
        struct ckv__region *next;
        uint32_t handle, id;            /* the caller's number; the daemon's of now, 0 = it does not have it */
        int fd;                         /* of our own; -1 with device memory */
        uint64_t offset, size;
        enum chunkkv_access access;
        struct chunkkv_device_memory *device;   /* NULL: a file; its descriptors are our own */
};

struct ckv__cache {
        struct ckv__cache *next;
        uint32_t handle, id;
        uint8_t *bytes;                 /* packed RegisterCache, its regions by handles */
        size_t size;
};

/* ckv__region_find() - by handle, or NULL */
struct ckv__region *ckv__region_find(const struct chunkkv_client *client, uint32_t handle);
/* ckv__region_new() - what is to be known of a region; the descriptor is copied. Return: NULL without memory or descriptor. */
struct ckv__region *ckv__region_new(const struct chunkkv_region *region, uint64_t size);
/* ckv__region_new_device() - the same of device memory; all of it is copied */
struct ckv__region *ckv__region_new_device(const struct chunkkv_device_memory *memory, enum chunkkv_access access);
/* ckv__region_free() - one that was not added. Return: NULL. */
struct ckv__region *ckv__region_free(struct ckv__region *region);
/* ckv__region_add() - it is registered; the client owns it now. Return: its handle. */
uint32_t ckv__region_add(struct chunkkv_client *client, struct ckv__region *region);
/* ckv__region_forget() - it is unregistered */
void ckv__region_forget(struct chunkkv_client *client, uint32_t handle);
/* ckv__cache_find() - by handle, or NULL */
struct ckv__cache *ckv__cache_find(const struct chunkkv_client *client, uint32_t handle);
/* ckv__cache_remember() - the cache of these packed bytes was registered as @id; takes the bytes. Return: handle, or 0. */
uint32_t ckv__cache_remember(struct chunkkv_client *client, uint8_t *bytes, size_t size, uint32_t id);
/* ckv__cache_forget() - it is unregistered */
void ckv__cache_forget(struct chunkkv_client *client, uint32_t handle);
/* ckv__registry_free() - forget everything */
void ckv__registry_free(struct chunkkv_client *client);

/* ckv__translate() - the daemon's numbers in place of handles, all over a request; one that it does not know: 2^32 - 1 */
void ckv__translate(const struct chunkkv_client *client, Chunkkv__V1__Request *message);

/* ---- revive.c */

/* ckv__core_is_dead() - has the daemon died? As far as one can know: by its pidfd. */
bool ckv__core_is_dead(struct chunkkv_client *client);

/**
 * ckv__revive() - if the daemon has died: wait for a new one, begin a session, register everything again
 *
 * Requests that still wait for the dead one end with -EOWNERDEAD.
 *
 * Return: 0, also if it lives; -EOWNERDEAD if none came in time.
 */
int ckv__revive(struct chunkkv_client *client, uint64_t deadline_nsec, struct chunkkv_error *ret_error);

/* ---- client.c */

/* ckv__session_begin() - attach, connect and say hello, until an absolute time. Return: 0 or -errno with @ret_error. */
int ckv__session_begin(struct chunkkv_client *client, uint64_t deadline_nsec, struct chunkkv_error *ret_error);
/* ckv__session_drop() - close all sockets of the session */
void ckv__session_drop(struct chunkkv_client *client);

/* ---- result.c */

/* A kept set out of a kept area. */
struct ckv__found {
        struct chunkkv_region_set set;
        struct ckv__run *moves;         /* [move_count] its runs with their destinations */
        size_t move_count;
};

/**
 * ckv__result_of_sets() - the answer that a dead daemon owed
 * @layout: of the cache; it has all groups of the job
 * @found:  [count]
 *
 * Return: 0 or -ENOMEM.
 */
int ckv__result_of_sets(const struct ckv__writing *writing, const Chunkkv__V1__Compress *job,
                        const Chunkkv__V1__RegisterCache *layout, const struct ckv__found *found, size_t count,
                        struct chunkkv_result **ret_result);
/* ckv__result_repaired() - mark it as finished by others than the daemon that was asked */
void ckv__result_repaired(struct chunkkv_result *result, uint64_t request_id);

#endif
