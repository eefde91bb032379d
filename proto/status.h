/*
 * The tables of outcomes, fields and sentences (status.def, fields.def,
 * details.def) as enums and text.  One fact in one place: gate, core, clients
 * and documents all take them from here.
 */
#ifndef CKV_PROTO_STATUS_H
#define CKV_PROTO_STATUS_H

#include "proto/records.h"

#include <stddef.h>

#define CODE(name, number, radius, client) CKV_CODE_##name = (number),
enum ckv_code {
#include "proto/status.def"
};
#undef CODE

enum ckv_radius { CKV_RADIUS_NONE, CKV_RADIUS_REQUEST, CKV_RADIUS_REGION, CKV_RADIUS_SESSION, CKV_RADIUS_DEVICE, CKV_RADIUS_DAEMON };
enum ckv_cache_state {
        CKV_CACHE_CLEAN, CKV_CACHE_COMMITTED, CKV_CACHE_TORN, CKV_CACHE_TORN_REPAIRABLE, CKV_CACHE_PENDING,
};

#define FIELD(name, path) CKV_F_##name,
enum ckv_field {
#include "proto/fields.def"
        _CKV_F_N,
};
#undef FIELD

#define DETAIL(name, sentence) CKV_D_##name,
enum ckv_detail {
#include "proto/details.def"
        _CKV_D_N,
};
#undef DETAIL

#define CKV_STATUS_FIELD_MAX 96         /* characters of Status.field, with the final NUL one more */
#define CKV_STATUS_DETAIL_MAX 200

/* ckv_code_to_string() - "INVALID_ARGUMENT"; "?" for a number without a name */
const char *ckv_code_to_string(uint32_t code);

/* ckv_code_radius() - the usual radius of a code; RADIUS_REQUEST for a number without a name */
enum ckv_radius ckv_code_radius(uint32_t code);

/**
 * ckv_status_set() - fill in a status with the usual radius of its code
 * @status: overwritten whole; cache = CLEAN
 */
void ckv_status_set(struct ckv_record_status *status, enum ckv_code code, enum ckv_field field, enum ckv_detail detail,
                    uint64_t arg0, uint64_t arg1, uint64_t arg2);

/* ckv_status_field_format() - path with its indices into @ret_text, always terminated */
void ckv_status_field_format(const struct ckv_record_status *status, char ret_text[static CKV_STATUS_FIELD_MAX + 1]);

/* ckv_status_detail_format() - sentence with its numbers into @ret_text, always terminated */
void ckv_status_detail_format(const struct ckv_record_status *status, char ret_text[static CKV_STATUS_DETAIL_MAX + 1]);

#endif
