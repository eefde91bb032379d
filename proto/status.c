/*
 * Text of outcomes.  The core speaks in numbers; only the gate (towards a
 * client) and the log (towards the operator) spell them out, both with the
 * functions below, so that a sentence reads the same in both places.
 */
#include "proto/status.h"

#include "base/macros.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static const struct {
        uint32_t number;
        enum ckv_radius radius;
        const char *name;
} codes[] = {
#define CODE(name, number, radius, client) { number, CKV_RADIUS_##radius, #name },
#include "proto/status.def"
#undef CODE
};

static const char *const field_paths[] = {
#define FIELD(name, path) path,
#include "proto/fields.def"
#undef FIELD
};

static const char *const detail_sentences[] = {
#define DETAIL(name, sentence) sentence,
#include "proto/details.def"
#undef DETAIL
};

const char *ckv_code_to_string(uint32_t code) {
        for (size_t i = 0; i < CKV_ARRAY_SIZE(codes); i++)
                if (codes[i].number == code)
                        return codes[i].name;
        return "?";
}

enum ckv_radius ckv_code_radius(uint32_t code) {
        for (size_t i = 0; i < CKV_ARRAY_SIZE(codes); i++)
                if (codes[i].number == code)
                        return codes[i].radius;
        return CKV_RADIUS_REQUEST;
}

void ckv_status_set(struct ckv_record_status *status, enum ckv_code code, enum ckv_field field, enum ckv_detail detail,
                    uint64_t arg0, uint64_t arg1, uint64_t arg2) {
        *status = (struct ckv_record_status){
                .code = (uint16_t)code,
                .radius = (uint8_t)ckv_code_radius(code),
                .cache = CKV_CACHE_CLEAN,
                .field = (uint16_t)field,
                .detail = (uint16_t)detail,
                .arg = { arg0, arg1, arg2 },
        };
}

/* append() - add text to a buffer of @size bytes that holds @used; cut at the end, always terminated */
static size_t append(char *text, size_t size, size_t used, const char *more, size_t n) {
        if (n > size - 1 - used)
                n = size - 1 - used;
        memcpy(text + used, more, n);
        text[used + n] = '\0';
        return used + n;
}

static size_t append_number(char *text, size_t size, size_t used, uint64_t number) {
        char digits[24];
        int n = snprintf(digits, sizeof(digits), "%" PRIu64, number);

        return append(text, size, used, digits, (size_t)n);
}

/* append_half_uuid() - eight bytes as a UUID begins: "6a1b2c3d-4e5f-6071" */
static size_t append_half_uuid(char *text, size_t size, size_t used, uint64_t half) {
        char digits[24];
        int n = snprintf(digits, sizeof(digits), "%08" PRIx64 "-%04" PRIx64 "-%04" PRIx64, half >> 32, half >> 16 & 0xffff,
                         half & 0xffff);

        return append(text, size, used, digits, (size_t)n);
}

void ckv_status_field_format(const struct ckv_record_status *status, char ret_text[static CKV_STATUS_FIELD_MAX + 1]) {
        const char *path = status->field < _CKV_F_N ? field_paths[status->field] : "";
        size_t used = 0, next = 0;

        ret_text[0] = '\0';
        for (const char *p = path; *p; p++) {
                if (*p == '%' && next < CKV_ARRAY_SIZE(status->index))
                        used = append_number(ret_text, CKV_STATUS_FIELD_MAX + 1, used, status->index[next++]);
                else
                        used = append(ret_text, CKV_STATUS_FIELD_MAX + 1, used, p, 1);
        }
}

void ckv_status_detail_format(const struct ckv_record_status *status, char ret_text[static CKV_STATUS_DETAIL_MAX + 1]) {
        const char *sentence = status->detail < _CKV_D_N ? detail_sentences[status->detail] : "";
        size_t used = 0;

        ret_text[0] = '\0';
        for (const char *p = sentence; *p; p++) {
                if (p[0] == '{' && p[1] >= '0' && p[1] <= '2' && p[2] == '}') {
                        used = append_number(ret_text, CKV_STATUS_DETAIL_MAX + 1, used, status->arg[p[1] - '0']);
                        p += 2;
                } else if (p[0] == '{' && p[1] >= '0' && p[1] <= '2' && p[2] == 'u' && p[3] == '}') {
                        used = append_half_uuid(ret_text, CKV_STATUS_DETAIL_MAX + 1, used, status->arg[p[1] - '0']);
                        p += 3;
                } else {
                        used = append(ret_text, CKV_STATUS_DETAIL_MAX + 1, used, p, 1);
                }
        }
}
