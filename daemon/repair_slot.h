/*
 * Reading a control slot as if a stranger had written it: for Repair alone.
 */
#ifndef CKV_DAEMON_REPAIR_SLOT_H
#define CKV_DAEMON_REPAIR_SLOT_H

#include "daemon/request.h"

#include <stdbool.h>
#include <stdint.h>

/* A slot and its kept sets, in memory of our own: read once, judged and used from here only. */
struct ckv_slot_copy {
        struct ckv_control_slot slot;
        uint32_t *words;                /* [slot.kept_used / 4], owned */
};

/* ckv_slot_copy_deinit() - free the words; a zeroed struct is fine */
void ckv_slot_copy_deinit(struct ckv_slot_copy *copy);

/**
 * ckv_slot_read() - copy the claimed slot, and of its kept area what is said to be in use
 * @target: request id that it must be of
 *
 * Return: true: a finished move in place, or one that was torn under an earlier boot id; or false with @ret_status.
 */
bool ckv_slot_read(const struct ckv_request *request, uint64_t target, struct ckv_slot_copy *ret_copy,
                   struct ckv_record_status *ret_status);

/**
 * ckv_slot_adopt() - judge the kept sets against the job, and make them those of the job
 * @request: admitted
 * @groups:  as they came, in the order of the request
 *
 * Return: true: job->groups hold the kept sets, which fit tables, heads, prefixes, checksum and steps; or false with @ret_status.
 */
bool ckv_slot_adopt(struct ckv_request *request, const struct ckv_record_group *groups, const struct ckv_slot_copy *copy,
                    struct ckv_record_status *ret_status);

#endif
