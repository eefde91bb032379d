/*
 * Who may connect to an endpoint: ranges of user and group ids.  The core
 * holds them, asks them for side connections and sessions, and hands them to
 * the gate, which asks them at accept.
 */
#ifndef CKV_PROTO_ACCESS_H
#define CKV_PROTO_ACCESS_H

#include "proto/records.h"

#include <stdbool.h>
#include <stdint.h>

/**
 * ckv_access_allows() - may a process with these ids connect?
 * @ranges: [count]; count 0 lets in everybody whom the socket's file permissions let in
 * @uid, @gid: effective ids, of SO_PEERCRED and nowhere else
 *
 * Return: true if @uid lies in one of the uid ranges, or @gid in one of the gid ranges, or there is no range.
 */
bool ckv_access_allows(const struct ckv_record_access *ranges, uint32_t count, uint32_t uid, uint32_t gid);

/* ckv_access_valid() - are kinds known, ranges not empty and unused fields zero? For the reader of a LIMITS record. */
bool ckv_access_valid(const struct ckv_record_access *ranges, uint32_t count);

#endif
