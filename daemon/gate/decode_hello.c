/*
 * Hello.  The client's name is for the log of the gate alone and does not
 * cross to the core; printable ASCII, so that it cannot forge lines.
 */
#include "daemon/gate/check.h"

#include "base/limits.h"
#include "base/log.h"

#include <string.h>

bool ckv_check_hello_bytes(struct ckv_check *check, const Chunkkv__V1__Hello *hello) {
        if (hello->attach_token.len == 0)
                return true;
        return ckv_check_length(check, ckv_at(CKV_F_HELLO_ATTACH_TOKEN, 0, 0), &hello->attach_token, 16);
}

static bool is_printable(const char *text) {
        for (; *text; text++)
                if (*text < ' ' || *text > '~')
                        return false;
        return true;
}

bool ckv_check_hello(struct ckv_check *check, const Chunkkv__V1__Hello *hello) {
        struct ckv_record_hello *record = &check->out->record.body.hello;

        static_assert(sizeof(record->needs) == 32, "as many as the limit NEEDS");
        if (hello->minor_min > hello->minor_max)
                return ckv_check_refuse(check, CKV_CODE_OUT_OF_RANGE, ckv_at(CKV_F_HELLO_MINOR, 0, 0), CKV_D_AT_MOST,
                                        hello->minor_max, hello->minor_min, 0);
        if (strlen(hello->client) > CKV_LIMIT_CLIENT_NAME || !is_printable(hello->client))
                return ckv_check_refuse(check, CKV_CODE_INVALID_ARGUMENT, ckv_at(CKV_F_HELLO_CLIENT, 0, 0),
                                        CKV_D_PRINTABLE, CKV_LIMIT_CLIENT_NAME, 0, 0);
        if (!ckv_check_count(check, ckv_at(CKV_F_HELLO_NEEDS, CKV_LIMIT_NEEDS, 0), hello->n_needs, 0, CKV_LIMIT_NEEDS))
                return false;
        for (size_t i = 0; i < hello->n_needs; i++) {
                if (!ckv_check_enum(check, ckv_at(CKV_F_HELLO_NEEDS, i, 0), &chunkkv__v1__capability__descriptor,
                                    (int)hello->needs[i], true))
                        return false;
                record->needs[i] = (uint8_t)hello->needs[i];
        }

        record->minor_min = hello->minor_min;
        record->minor_max = hello->minor_max;
        record->now_ns = hello->now_ns;
        record->needs_count = (uint32_t)hello->n_needs;
        if (hello->attach_token.len > 0) {
                record->has_attach_token = 1;
                memcpy(record->attach_token, hello->attach_token.data, sizeof(record->attach_token));
        }
        ckv_log(CKV_LOG_DEBUG, GATE_CLIENT, "request=%llu client=\"%s\"",
                (unsigned long long)check->out->record.head.request_id, hello->client);
        return true;
}
