/*
 * The envelope of a request, and the bodies that are one number.
 *
 * Order of checks, the first failure is the answer: can it be decoded within
 * the budget; not too many unknown fields; request_id, body, lengths of byte
 * fields (all BAD_MESSAGE: whoever sends that does not speak the protocol);
 * then deadline and body, field by field.  Whether a deadline has passed
 * already is for the core to judge: it must be the last to look at the clock.
 */
#include "daemon/gate/decode.h"

#include "base/clock.h"
#include "base/limits.h"
#include "base/macros.h"
#include "daemon/gate/budget.h"
#include "daemon/gate/check.h"
#include "daemon/gate/unknown.h"

#include <string.h>

enum {
        TRACEPARENT_CHARACTERS = 55,    /* 2 + 32 + 16 + 2 hexadecimal digits and three dashes */
        TRACE_BYTES = 26,
};

/* The oneof has the numbers 16 to 27, the records the same order from 1 on. */
static_assert(CHUNKKV__V1__REQUEST__BODY_REPAIR - CHUNKKV__V1__REQUEST__BODY_HELLO ==
                      CKV_RECORD_REPAIR - CKV_RECORD_HELLO,
              "records are numbered as the bodies of Request");

static int hex_value(char c) {
        if (c >= '0' && c <= '9')
                return c - '0';
        if (c >= 'a' && c <= 'f')
                return c - 'a' + 10;
        return -1;
}

/* parse_trace() - "vv-<32>-<16>-ff" to bytes; W3C forbids version ff */
static bool parse_trace(const char *text, uint8_t ret_trace[static TRACE_BYTES]) {
        size_t at = 0;

        for (size_t i = 0; i < TRACEPARENT_CHARACTERS;) {
                int high, low;

                if (i == 2 || i == 35 || i == 52) {
                        if (text[i++] != '-')
                                return false;
                        continue;
                }
                high = hex_value(text[i]);
                low = hex_value(text[i + 1]);
                if (high < 0 || low < 0)
                        return false;
                ret_trace[at++] = (uint8_t)(high << 4 | low);
                i += 2;
        }
        return ret_trace[0] != 0xff;
}

static bool check_trace(struct ckv_check *check, const char *text) {
        struct ckv_record_head *head = &check->out->record.head;
        struct ckv_at at = ckv_at(CKV_F_TRACEPARENT, 0, 0);
        size_t length = strlen(text);

        if (length == 0)
                return true;
        if (length != TRACEPARENT_CHARACTERS)
                return ckv_check_refuse(check, CKV_CODE_BAD_MESSAGE, at, CKV_D_LENGTH, TRACEPARENT_CHARACTERS, length,
                                        0);
        if (!parse_trace(text, head->trace)) {
                memset(head->trace, 0, sizeof(head->trace));
                return ckv_check_refuse(check, CKV_CODE_INVALID_ARGUMENT, at, CKV_D_TRACEPARENT, 0, 0, 0);
        }
        head->flags |= CKV_RECORD_HAS_TRACE;
        return true;
}

/* check_form() - what makes it a message of this protocol at all */
static bool check_form(struct ckv_check *check, const Chunkkv__V1__Request *request) {
        struct ckv_record_head *head = &check->out->record.head;
        uint64_t unknown = ckv_unknown_fields(&request->base);
        size_t length = request->body_case == CHUNKKV__V1__REQUEST__BODY_HELLO ? 0 : 16;

        if (unknown > CKV_LIMIT_UNKNOWN_FIELDS)
                return ckv_check_refuse(check, CKV_CODE_BAD_MESSAGE, ckv_at(CKV_F_NONE, 0, 0), CKV_D_UNKNOWN_FIELDS,
                                        CKV_LIMIT_UNKNOWN_FIELDS, unknown, 0);
        if (request->request_id == 0 || request->request_id > INT64_MAX)
                return ckv_check_refuse(check, CKV_CODE_BAD_MESSAGE, ckv_at(CKV_F_REQUEST_ID, 0, 0), CKV_D_RANGE, 1,
                                        INT64_MAX, request->request_id);
        if (request->body_case == CHUNKKV__V1__REQUEST__BODY__NOT_SET)
                return ckv_check_refuse(check, CKV_CODE_BAD_MESSAGE, ckv_at(CKV_F_BODY, 0, 0), CKV_D_MISSING, 0, 0, 0);
        if (!ckv_check_length(check, ckv_at(CKV_F_BOOT_ID, 0, 0), &request->boot_id, length) ||
            !ckv_check_length(check, ckv_at(CKV_F_SESSION_TOKEN, 0, 0), &request->session_token, length))
                return false;
        if (length > 0) {
                memcpy(head->boot_id, request->boot_id.data, length);
                memcpy(head->token, request->session_token.data, length);
        }
        if (!check_trace(check, request->traceparent))
                return false;
        if (request->body_case == CHUNKKV__V1__REQUEST__BODY_HELLO)
                return ckv_check_hello_bytes(check, request->hello);
        if (request->body_case == CHUNKKV__V1__REQUEST__BODY_REGISTER_REGION)
                return ckv_check_region_bytes(check, request->register_region);
        return true;
}

static bool check_deadline(struct ckv_check *check, const Chunkkv__V1__Request *request) {
        struct ckv_record_head *head = &check->out->record.head;
        struct ckv_at at = ckv_at(CKV_F_DEADLINE, 0, 0);

        switch (request->body_case) {
        case CHUNKKV__V1__REQUEST__BODY_COMPRESS:
        case CHUNKKV__V1__REQUEST__BODY_COMMIT:
        case CHUNKKV__V1__REQUEST__BODY_REPAIR:
                if (request->deadline_ns == 0)
                        return ckv_check_missing(check, at);
                break;
        default:
                break;
        }
        if (request->deadline_ns > check->now_ns + CKV_LIMIT_DEADLINE_SECONDS * CKV_NSEC_PER_SEC)
                return ckv_check_refuse(check, CKV_CODE_OUT_OF_RANGE, at, CKV_D_DEADLINE_FAR,
                                        CKV_LIMIT_DEADLINE_SECONDS, 0, 0);
        head->deadline_ns = request->deadline_ns;
        if (head->deadline_ns == 0)
                head->deadline_ns = check->now_ns + CKV_LIMIT_DEFAULT_DEADLINE_SECONDS * CKV_NSEC_PER_SEC;
        return true;
}

/* check_target() - the request that this one is about; @low: 0 where it need not be given */
static bool check_target(struct ckv_check *check, enum ckv_field field, uint64_t target, uint64_t low) {
        check->out->record.body.target.target_request_id = target;
        return ckv_check_range(check, ckv_at(field, 0, 0), target, low, INT64_MAX);
}

static bool check_id(struct ckv_check *check, enum ckv_field field, uint32_t id) {
        check->out->record.body.id.id = id;
        return id ? true : ckv_check_missing(check, ckv_at(field, 0, 0));
}

static bool check_body(struct ckv_check *check, const Chunkkv__V1__Request *request) {
        switch (request->body_case) {
        case CHUNKKV__V1__REQUEST__BODY_HELLO:
                return ckv_check_hello(check, request->hello);
        case CHUNKKV__V1__REQUEST__BODY_GET_STATUS:
                return check_target(check, CKV_F_STATUS_TARGET, request->get_status->target_request_id, 0);
        case CHUNKKV__V1__REQUEST__BODY_REGISTER_REGION:
                return ckv_check_region(check, request->register_region);
        case CHUNKKV__V1__REQUEST__BODY_UNREGISTER_REGION:
                return check_id(check, CKV_F_UNREGISTER_REGION_ID, request->unregister_region->region_id);
        case CHUNKKV__V1__REQUEST__BODY_REGISTER_CACHE:
                return ckv_check_cache(check, request->register_cache);
        case CHUNKKV__V1__REQUEST__BODY_UNREGISTER_CACHE:
                return check_id(check, CKV_F_UNREGISTER_CACHE_ID, request->unregister_cache->cache_id);
        case CHUNKKV__V1__REQUEST__BODY_COMPRESS:
                return ckv_check_compress(check, request->compress);
        case CHUNKKV__V1__REQUEST__BODY_COMMIT:
                return check_target(check, CKV_F_COMMIT_TARGET, request->commit->target_request_id, 1);
        case CHUNKKV__V1__REQUEST__BODY_CANCEL:
                return check_target(check, CKV_F_CANCEL_TARGET, request->cancel->target_request_id, 1);
        case CHUNKKV__V1__REQUEST__BODY_REPAIR:
                return ckv_check_repair(check, request->repair);
        default:
                return true; /* Ping and EndSession say nothing more */
        }
}

int ckv_decode_request(const struct ckv_record_limits *limits, uint64_t now_ns, const uint8_t *message, size_t bytes,
                       struct ckv_outgoing *out, struct ckv_record_status *ret_status) {
        struct ckv_check check = { .limits = limits, .now_ns = now_ns, .out = out };
        Chunkkv__V1__Request *request;
        struct ckv_budget budget;
        bool good;

        ckv_outgoing_reset(out);
        ckv_budget_init(&budget, CKV_LIMIT_DECODE_BYTES, limits->message_parts);
        request = chunkkv__v1__request__unpack(&budget.allocator, bytes, message);
        if (!request) {
                assert(budget.held == 0);
                ckv_status_set(ret_status, CKV_CODE_BAD_MESSAGE, CKV_F_NONE, CKV_D_NOT_DECODABLE, 0, 0, 0);
                return CKV_DECODE_E_REFUSED;
        }

        out->record.head.type =
                (uint16_t)(CKV_RECORD_HELLO + ((int)request->body_case - (int)CHUNKKV__V1__REQUEST__BODY_HELLO));
        out->record.head.request_id = request->request_id;
        out->record.head.generation = request->generation;
        good = check_form(&check, request) && check_deadline(&check, request) && check_body(&check, request);

        chunkkv__v1__request__free_unpacked(request, &budget.allocator);
        assert(budget.held == 0);
        if (good)
                return 0;
        *ret_status = check.status;
        return CKV_DECODE_E_REFUSED;
}
