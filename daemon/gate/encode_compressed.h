/* The body of the largest answer, with all that it points to. */
#ifndef CKV_GATE_ENCODE_COMPRESSED_H
#define CKV_GATE_ENCODE_COMPRESSED_H

#include "proto/chunkkv.pb-c.h"
#include "proto/records.h"

#include <stdint.h>

struct ckv_compressed {
        Chunkkv__V1__Compressed message;        /* points into what follows, and into the attachment */
        Chunkkv__V1__Timing timing;
        Chunkkv__V1__GroupResult *groups;       /* [group_count] */
        Chunkkv__V1__GroupResult **group_list;
        Chunkkv__V1__Policy *policies;          /* [policy_count] */
        Chunkkv__V1__Policy **policy_list;
        Chunkkv__V1__Count *counts;             /* [policy_count][6] */
        Chunkkv__V1__KeptSet *sets;             /* [set_count] */
        Chunkkv__V1__KeptSet **set_list;
        uint32_t *rows;                         /* with REPLY_ROWS: the rows of all sets */
};

/**
 * ckv_compressed_init() - build the message
 * @attachment:     [bytes] as proto/records.h says; must live as long as the message
 * @reply_bytes:    rows that cannot fit in so many bytes are not even expanded
 * @ret_need_bytes: with CKV_ENCODE_E_TOO_LARGE: what the rows alone need
 *
 * Return: 0, CKV_ENCODE_E_MALFORMED, CKV_ENCODE_E_TOO_LARGE, or -ENOMEM. ckv_compressed_deinit() in any case.
 */
int ckv_compressed_init(struct ckv_compressed *compressed, const struct ckv_record_result *result,
                        const void *attachment, uint32_t bytes, uint64_t reply_bytes, uint64_t *ret_need_bytes);
void ckv_compressed_deinit(struct ckv_compressed *compressed);

#endif
