/*
 * What a request lets the daemon write to beside the cache.
 */
#ifndef CKV_DAEMON_OUTPUTS_H
#define CKV_DAEMON_OUTPUTS_H

#include "daemon/request.h"
#include "proto/records.h"

#include <stdbool.h>

/**
 * ckv_outputs_check() - scores_out, reply_to and the word to signal share no byte with one another, with the planes of the
 * request's groups, or with its queries, tables, scores_in and the word to wait for
 * @timeline: NULL: none
 *
 * Return: true; or false with @ret_status INVALID_ARGUMENT naming the output.
 */
bool ckv_outputs_check(const struct ckv_request *request, const struct ckv_record_compress *body,
                       const struct ckv_record_group *groups, const struct ckv_record_timeline *timeline,
                       struct ckv_record_status *ret_status);

#endif
