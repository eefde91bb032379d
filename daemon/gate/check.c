/*
 * The checks that several kinds of request share, and the words of their
 * refusals.  Which numbers an enum has comes from the descriptors that
 * protoc-c made of the schema, so a new value needs no change here.
 */
#include "daemon/gate/check.h"

#include "base/checked.h"
#include "proto/runs.h"

#include <string.h>

bool ckv_check_refuse(struct ckv_check *check, enum ckv_code code, struct ckv_at at, enum ckv_detail detail,
                      uint64_t arg0, uint64_t arg1, uint64_t arg2) {
        ckv_status_set(&check->status, code, at.field, detail, arg0, arg1, arg2);
        check->status.index[0] = (uint16_t)at.index[0];
        check->status.index[1] = (uint16_t)at.index[1];
        return false;
}

bool ckv_check_missing(struct ckv_check *check, struct ckv_at at) {
        return ckv_check_refuse(check, CKV_CODE_INVALID_ARGUMENT, at, CKV_D_MISSING, 0, 0, 0);
}

bool ckv_check_range(struct ckv_check *check, struct ckv_at at, uint64_t value, uint64_t low, uint64_t high) {
        if (value >= low && value <= high)
                return true;
        return ckv_check_refuse(check, CKV_CODE_OUT_OF_RANGE, at, CKV_D_RANGE, low, high, value);
}

bool ckv_check_count(struct ckv_check *check, struct ckv_at at, size_t count, uint64_t low, uint64_t high) {
        if (count >= low && count <= high)
                return true;
        return ckv_check_refuse(check, CKV_CODE_OUT_OF_RANGE, at, CKV_D_COUNT, low, high, count);
}

bool ckv_check_length(struct ckv_check *check, struct ckv_at at, const ProtobufCBinaryData *data, size_t want) {
        if (data->len == want)
                return true;
        return ckv_check_refuse(check, CKV_CODE_BAD_MESSAGE, at, CKV_D_LENGTH, want, data->len, 0);
}

bool ckv_check_enum(struct ckv_check *check, struct ckv_at at, const ProtobufCEnumDescriptor *descriptor, int value,
                    bool required) {
        if (!protobuf_c_enum_descriptor_get_value(descriptor, value))
                return ckv_check_refuse(check, CKV_CODE_INVALID_ARGUMENT, at, CKV_D_ENUM, (uint32_t)value, 0, 0);
        if (required && value == 0)
                return ckv_check_missing(check, at);
        return true;
}

bool ckv_check_slice(struct ckv_check *check, struct ckv_at at, const Chunkkv__V1__Slice *slice, uint64_t unit,
                     struct ckv_record_slice *ret_slice) {
        uint64_t end;

        *ret_slice = (struct ckv_record_slice){ 0 };
        if (!slice)
                return true;
        if (slice->region_id == 0)
                return ckv_check_missing(check, at);
        if (slice->size == 0)
                return ckv_check_refuse(check, CKV_CODE_OUT_OF_RANGE, at, CKV_D_AT_LEAST, 1, 0, 0);
        if (slice->size % unit)
                return ckv_check_refuse(check, CKV_CODE_INVALID_ARGUMENT, at, CKV_D_MULTIPLE, unit, slice->size, 0);
        if (!ckv_add_u64(slice->offset, slice->size, &end))
                return ckv_check_refuse(check, CKV_CODE_OUT_OF_RANGE, at, CKV_D_OVERFLOW, 0, 0, 0);
        *ret_slice = (struct ckv_record_slice){ .region_id = slice->region_id,
                                                .offset = slice->offset,
                                                .size = slice->size };
        return true;
}

bool ckv_check_runs(struct ckv_check *check, struct ckv_at at, const uint32_t *runs, size_t count, uint64_t rows,
                    uint64_t *ret_kept) {
        uint64_t end = 0;
        size_t zero = 1;

        switch (ckv_runs_check(runs, count, rows, ret_kept, NULL)) {
        case CKV_RUNS_E_ODD:
                return ckv_check_refuse(check, CKV_CODE_INVALID_ARGUMENT, at, CKV_D_EVEN_COUNT, count, 0, 0);
        case CKV_RUNS_E_ZERO:
                while (runs[zero])
                        zero++;
                return ckv_check_refuse(check, CKV_CODE_INVALID_ARGUMENT, at, CKV_D_RUN_ZERO, zero, 0, 0);
        case CKV_RUNS_E_OVERFLOW:
                for (size_t i = 0; i < count; i++)
                        end += runs[i];
                return ckv_check_refuse(check, CKV_CODE_OUT_OF_RANGE, at, CKV_D_RUNS_END, rows, end, 0);
        default:
                return true;
        }
}

void *ckv_check_append(struct ckv_check *check, size_t bytes) {
        void *to = ckv_outgoing_append(check->out, bytes);

        if (!to)
                (void)ckv_check_refuse(check, CKV_CODE_BAD_MESSAGE, ckv_at(CKV_F_BODY, 0, 0), CKV_D_NOT_DECODABLE, 0, 0,
                                       0);
        return to;
}

bool ckv_check_append_words(struct ckv_check *check, const uint32_t *words, size_t count) {
        void *to;

        if (count == 0)
                return true;
        to = ckv_check_append(check, count * sizeof(*words));
        if (!to)
                return false;
        memcpy(to, words, count * sizeof(*words));
        return true;
}
