/* From a record of the core, or a refusal of the gate, to the bytes of a Response. */
#ifndef CKV_GATE_ENCODE_H
#define CKV_GATE_ENCODE_H

#include "proto/records.h"

#include <stddef.h>
#include <stdint.h>

enum ckv_encode_outcome {
        _CKV_ENCODE_E_SUCCESS,
        CKV_ENCODE_E_MALFORMED,         /* a record that no right core writes */
        CKV_ENCODE_E_TOO_LARGE,         /* longer than the limit; inside encode*.c only */
};

/**
 * ckv_encode_status() - a Response without a body
 * @head:      request_id, generation, boot_id and the flag REPEATED_ANSWER are taken from it
 * @ret_reply: [*ret_bytes] from malloc, owned by the caller
 *
 * Return: 0 or -ENOMEM.
 */
int ckv_encode_status(const struct ckv_record_head *head, const struct ckv_record_status *status, void **ret_reply,
                      size_t *ret_bytes);

/**
 * ckv_encode_answer() - the Response that a WELCOME or RESULT stands for
 * @attachment:  [record->head.ring_bytes], 4-byte aligned; NULL if there is none
 * @reply_bytes: a longer reply becomes the status REPLY_TOO_LARGE, with the cache state of the record
 * @ret_reply:   as above
 *
 * Return: 0, CKV_ENCODE_E_MALFORMED, or -ENOMEM.
 */
int ckv_encode_answer(const struct ckv_record *record, const void *attachment, uint64_t reply_bytes, void **ret_reply,
                      size_t *ret_bytes);

#endif
