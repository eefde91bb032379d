/*
 * Shared by the decode_*.c files: where a check failed, with which sentence,
 * and the checks that several of them make.  Each returns true, or writes the
 * refusal and returns false.
 */
#ifndef CKV_GATE_CHECK_H
#define CKV_GATE_CHECK_H

#include "base/macros.h"
#include "daemon/gate/link.h"
#include "proto/chunkkv.pb-c.h"
#include "proto/status.h"

#include <stdbool.h>
#include <stdint.h>

/* One request under examination. */
struct ckv_check {
        const struct ckv_record_limits *limits;
        uint64_t now_ns;
        struct ckv_outgoing *out;               /* the record that the request becomes */
        struct ckv_record_status status;        /* the refusal, when a check returned false */
};

/* A field of the request: its path, and what the path's brackets hold. */
struct ckv_at {
        enum ckv_field field;
        uint32_t index[2];
};

/* ckv_at() - a field and the indices of its brackets */
static inline struct ckv_at ckv_at(enum ckv_field field, size_t first, size_t second) {
        return (struct ckv_at){ field,
                                { (uint32_t)CKV_MIN(first, UINT16_MAX), (uint32_t)CKV_MIN(second, UINT16_MAX) } };
}

/* ckv_check_refuse() - the refusal. Return: false, always. */
bool ckv_check_refuse(struct ckv_check *check, enum ckv_code code, struct ckv_at at, enum ckv_detail detail,
                      uint64_t arg0, uint64_t arg1, uint64_t arg2);

/* ckv_check_missing() - the field is required and not there. Return: false, always. */
bool ckv_check_missing(struct ckv_check *check, struct ckv_at at);

/* ckv_check_range() - low <= value <= high, else OUT_OF_RANGE */
bool ckv_check_range(struct ckv_check *check, struct ckv_at at, uint64_t value, uint64_t low, uint64_t high);

/* ckv_check_count() - a repeated field has low to high entries, else OUT_OF_RANGE */
bool ckv_check_count(struct ckv_check *check, struct ckv_at at, size_t count, uint64_t low, uint64_t high);

/* ckv_check_length() - a byte field has exactly @want bytes, else BAD_MESSAGE */
bool ckv_check_length(struct ckv_check *check, struct ckv_at at, const ProtobufCBinaryData *data, size_t want);

/* ckv_check_enum() - the number has a name in the schema, else INVALID_ARGUMENT; @required: and is not 0 */
bool ckv_check_enum(struct ckv_check *check, struct ckv_at at, const ProtobufCEnumDescriptor *descriptor, int value,
                    bool required);

/**
 * ckv_check_slice() - a reference into a region: id given, size at least 1 and a multiple of @unit, end below 2^64
 * @slice:     NULL = not given, which is fine: region_id 0
 * @ret_slice: written in both cases
 */
bool ckv_check_slice(struct ckv_check *check, struct ckv_at at, const Chunkkv__V1__Slice *slice, uint64_t unit,
                     struct ckv_record_slice *ret_slice);

/**
 * ckv_check_runs() - alternating run lengths: even number, 0 only at the start, end within @rows
 * @ret_kept: written only on success
 */
bool ckv_check_runs(struct ckv_check *check, struct ckv_at at, const uint32_t *runs, size_t count, uint64_t rows,
                    uint64_t *ret_kept);

/* ckv_check_append() - @bytes more of attachment, else BAD_MESSAGE. Return: where to write; NULL when refused. */
void *ckv_check_append(struct ckv_check *check, size_t bytes);

/* ckv_check_append_words() - words as they are */
bool ckv_check_append_words(struct ckv_check *check, const uint32_t *words, size_t count);

/*
 * One for each kind of request: check all of it but the envelope and write
 * out->record.body and the attachment.
 */
bool ckv_check_hello(struct ckv_check *check, const Chunkkv__V1__Hello *hello);
bool ckv_check_region(struct ckv_check *check, const Chunkkv__V1__RegisterRegion *region);
bool ckv_check_cache(struct ckv_check *check, const Chunkkv__V1__RegisterCache *cache);
bool ckv_check_compress(struct ckv_check *check, const Chunkkv__V1__Compress *compress);
bool ckv_check_repair(struct ckv_check *check, const Chunkkv__V1__Repair *repair);

/* ckv_check_hello_bytes() - lengths of byte fields, which come before all other checks; _region_bytes() likewise */
bool ckv_check_hello_bytes(struct ckv_check *check, const Chunkkv__V1__Hello *hello);
bool ckv_check_region_bytes(struct ckv_check *check, const Chunkkv__V1__RegisterRegion *region);

/* ckv_check_group() - compress->groups[index]; its words are appended, @policies has room for its policies */
bool ckv_check_group(struct ckv_check *check, const Chunkkv__V1__Compress *compress, size_t index,
                     struct ckv_record_group *group, struct ckv_record_policy *policies);

/* ckv_check_policy() - one Policy of group @index */
bool ckv_check_policy(struct ckv_check *check, const Chunkkv__V1__Policy *policy, size_t index, size_t policy_index,
                      struct ckv_record_policy *record);

#endif
