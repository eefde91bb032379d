/*
 * Who may connect to an endpoint, as it is written behind its name:
 * NAME[:uid=LIST][:gid=LIST].
 */
#ifndef CKV_DAEMON_ACCESS_H
#define CKV_DAEMON_ACCESS_H

#include "proto/access.h"

#include <stddef.h>
#include <stdint.h>

/* Zeroed: everybody whom the socket's file permissions let in. */
struct ckv_access {
        struct ckv_record_access ranges[CKV_ACCESS_RANGES_MAX];
        uint32_t count;
};

enum { CKV_ACCESS_WHY_BYTES = 160 };

/**
 * ckv_access_parse() - read the lists of an endpoint
 * @text:    what stands behind the name: "", or ":uid=1000,2000-2999,alice:gid=inference"; numbers, ranges of numbers,
 *           and names of users or groups, which are looked up
 * @ret_why: a sentence without a subject, "is ...", when it is wrong
 *
 * Return: 0, or -EINVAL.
 */
int ckv_access_parse(const char *text, struct ckv_access *ret_access, char ret_why[static CKV_ACCESS_WHY_BYTES]);

#endif
