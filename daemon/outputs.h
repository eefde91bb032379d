/*
 * What a request lets the daemon write to beside the cache.
 */
#ifndef CKV_DAEMON_OUTPUTS_H
#define CKV_DAEMON_OUTPUTS_H

#include "daemon/request.h"
#include "proto/records.h"

#include <stdbool.h>

/**
 * ckv_outputs_check() - scores_out and reply_to share no byte with one another, with the planes of the request's groups,
 * or with its queries, tables and scores_in
 *
 * Return: true; or false with @ret_status INVALID_ARGUMENT naming the output.
 */
bool ckv_outputs_check(const struct ckv_request *request, const struct ckv_record_compress *body,
                       const struct ckv_record_group *groups, struct ckv_record_status *ret_status);

#endif
