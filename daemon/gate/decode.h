/* From the bytes of a request to a record for the core, or to a refusal. */
#ifndef CKV_GATE_DECODE_H
#define CKV_GATE_DECODE_H

#include "daemon/gate/link.h"
#include "proto/records.h"

#include <stddef.h>
#include <stdint.h>

enum ckv_decode_outcome {
        _CKV_DECODE_E_SUCCESS,
        CKV_DECODE_E_REFUSED,           /* the client gets a status, the core never sees the request */
};

/**
 * ckv_decode_request() - decode, check, translate
 * @now_ns:     CLOCK_MONOTONIC
 * @message:    [bytes] as received, at most limits->request_bytes
 * @out:        reset and filled in, but for connection, uid, gid, pid and what the link fills in. When refused:
 *              request_id and generation, as far as they could be read
 * @ret_status: written only when refused
 *
 * Return: 0 or CKV_DECODE_E_REFUSED.
 */
int ckv_decode_request(const struct ckv_record_limits *limits, uint64_t now_ns, const uint8_t *message, size_t bytes,
                       struct ckv_outgoing *out, struct ckv_record_status *ret_status);

#endif
