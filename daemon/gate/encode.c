/*
 * Responses.  Numbers become text here and nowhere else: names of fields and
 * sentences are spelled out by proto/status.c.  protobuf-c packs structs that
 * live on the stack; only Compressed needs memory of its own
 * (encode_compressed.c).
 *
 * A reply that is too long for the limit is replaced by a sentence that says
 * so.  The core refuses most such requests at admission; what is left are its
 * estimates gone wrong, and the cache state then still tells the truth.
 */
#include "daemon/gate/encode.h"

#include "base/error.h"
#include "base/macros.h"
#include "daemon/gate/encode_compressed.h"
#include "proto/chunkkv.pb-c.h"
#include "proto/code_path.h"
#include "proto/status.h"

#include <errno.h>
#include <string.h>

enum { DEVICE_NAME_MAX = 64, CAPABILITIES_MAX = 64 };

/* A Response and what it points to. */
struct response {
        Chunkkv__V1__Response message;
        Chunkkv__V1__Status status;
        char field[CKV_STATUS_FIELD_MAX + 1], detail[CKV_STATUS_DETAIL_MAX + 1];
        union {
                struct {
                        Chunkkv__V1__Welcome message;
                        Chunkkv__V1__Limits limits;
                        Chunkkv__V1__Device device;
                        Chunkkv__V1__Capability capabilities[CAPABILITIES_MAX];
                        char device_name[DEVICE_NAME_MAX + 1];
                } welcome;
                Chunkkv__V1__Pong pong;
                struct {
                        Chunkkv__V1__StatusReply message;
                        Chunkkv__V1__Budget *budgets;
                        Chunkkv__V1__Budget **list;
                        Chunkkv__V1__CodePath *paths;
                        Chunkkv__V1__CodePath **path_list;
                } budgets;
                Chunkkv__V1__RegionRegistered region;
                Chunkkv__V1__CacheRegistered cache;
                Chunkkv__V1__Outcome outcome;
                struct ckv_compressed compressed;
        } body;
};

/* bytes_of() - protobuf-c has no const: it only reads */
static ProtobufCBinaryData bytes_of(const uint8_t *data, size_t bytes) {
        return (ProtobufCBinaryData){ .len = bytes, .data = (uint8_t *)(uintptr_t)data };
}

static void response_init(struct response *response, const struct ckv_record_head *head,
                          const struct ckv_record_status *status) {
        Chunkkv__V1__Status *wire = &response->status;

        memset(response, 0, sizeof(*response));
        chunkkv__v1__response__init(&response->message);
        chunkkv__v1__status__init(wire);
        ckv_status_field_format(status, response->field);
        ckv_status_detail_format(status, response->detail);
        wire->code = (Chunkkv__V1__Code)status->code;
        wire->radius = (Chunkkv__V1__Radius)status->radius;
        wire->cache = (Chunkkv__V1__CacheState)status->cache;
        wire->field = response->field;
        wire->detail = response->detail;
        wire->retry_after_ms = status->retry_after_ms;
        wire->driver_code = status->driver_code;
        wire->slot = (Chunkkv__V1__Slot)status->slot;
        response->message.request_id = head->request_id;
        response->message.generation = head->generation;
        response->message.boot_id = bytes_of(head->boot_id, sizeof(head->boot_id));
        response->message.status = wire;
        response->message.repeated_answer = (head->flags & CKV_RECORD_REPEATED_ANSWER) != 0;
}

static void response_deinit(struct response *response) {
        switch (response->message.body_case) {
        case CHUNKKV__V1__RESPONSE__BODY_STATUS_REPLY:
                free(response->body.budgets.budgets);
                free(response->body.budgets.list);
                free(response->body.budgets.paths);
                free(response->body.budgets.path_list);
                break;
        case CHUNKKV__V1__RESPONSE__BODY_COMPRESSED:
                ckv_compressed_deinit(&response->body.compressed);
                break;
        default:
                break;
        }
}

static int fill_welcome(struct response *response, const struct ckv_record_welcome *record, const void *attachment,
                        uint32_t bytes) {
        static const uint8_t no_uuid[16];
        Chunkkv__V1__Welcome *welcome = &response->body.welcome.message;
        Chunkkv__V1__Limits *limits = &response->body.welcome.limits;
        Chunkkv__V1__Device *device = &response->body.welcome.device;

        if (bytes > DEVICE_NAME_MAX)
                return CKV_ENCODE_E_MALFORMED;
        chunkkv__v1__limits__init(limits);
        limits->request_bytes = record->request_bytes;
        limits->reply_bytes = record->reply_bytes;
        limits->in_flight = record->in_flight;
        limits->regions = record->regions;
        limits->mapped_bytes = record->mapped_bytes;
        limits->rows = record->rows;
        limits->planes = record->planes;
        limits->groups = record->groups;
        limits->spans = record->spans;
        limits->hold_ms = record->hold_ms;
        limits->control_slots = record->control_slots;
        limits->message_parts = record->message_parts;

        chunkkv__v1__device__init(device);
        device->backend = (Chunkkv__V1__Backend)record->backend;
        if (memcmp(record->device_uuid, no_uuid, sizeof(no_uuid)) != 0)
                device->uuid = bytes_of(record->device_uuid, sizeof(record->device_uuid));
        if (bytes > 0)
                memcpy(response->body.welcome.device_name, attachment, bytes);
        device->name = response->body.welcome.device_name;

        chunkkv__v1__welcome__init(welcome);
        welcome->minor = record->minor;
        welcome->session_token = bytes_of(record->session_token, sizeof(record->session_token));
        welcome->now_ns = record->now_ns;
        welcome->capabilities = response->body.welcome.capabilities;
        for (uint32_t bit = 0; bit < CAPABILITIES_MAX; bit++)
                if (record->capabilities & (UINT64_C(1) << bit))
                        welcome->capabilities[welcome->n_capabilities++] = (Chunkkv__V1__Capability)bit;
        welcome->limits = limits;
        welcome->device = device;
        welcome->daemon = (char *)(uintptr_t)"chunkkvd " CKV_VERSION;
        response->message.body_case = CHUNKKV__V1__RESPONSE__BODY_WELCOME;
        response->message.welcome = welcome;
        return 0;
}

static void fill_pong(struct response *response, const struct ckv_record_result *result) {
        Chunkkv__V1__Pong *pong = &response->body.pong;

        chunkkv__v1__pong__init(pong);
        pong->now_ns = result->u.pong.now_ns;
        pong->last_progress_ns = result->u.pong.last_progress_ns;
        pong->in_flight = result->u.pong.in_flight;
        pong->draining = result->u.pong.draining != 0;
        response->message.body_case = CHUNKKV__V1__RESPONSE__BODY_PONG;
        response->message.pong = pong;
}

/* fill_paths() - @records: [count] */
static int fill_paths(struct response *response, const struct ckv_record_code_path *records, size_t count) {
        Chunkkv__V1__StatusReply *reply = &response->body.budgets.message;

        response->body.budgets.paths = calloc(count + 1, sizeof(*response->body.budgets.paths));
        response->body.budgets.path_list = calloc(count + 1, sizeof(*response->body.budgets.path_list));
        if (!response->body.budgets.paths || !response->body.budgets.path_list)
                return ckv_error_origin(-ENOMEM);
        for (size_t i = 0; i < count; i++) {
                Chunkkv__V1__CodePath *path = &response->body.budgets.paths[i];

                chunkkv__v1__code_path__init(path);
                path->key_dtype = (Chunkkv__V1__DType)records[i].key_dtype;
                path->query_dtype = (Chunkkv__V1__DType)records[i].query_dtype;
                path->head_dim_first = records[i].head_dim_first;
                path->head_dim_last = records[i].head_dim_last;
                path->queries_first = records[i].queries_first;
                path->queries_last = records[i].queries_last;
                path->path = (char *)(uintptr_t)ckv_code_path_to_string(records[i].path);
                response->body.budgets.path_list[i] = path;
        }
        reply->code_paths = response->body.budgets.path_list;
        reply->n_code_paths = count;
        return 0;
}

static int fill_budgets(struct response *response, const struct ckv_record_result *result, const void *attachment,
                        uint32_t bytes) {
        const struct ckv_record_budget *records = attachment;
        size_t count = result->u.budgets.budget_count, path_count = result->u.budgets.code_path_count;
        Chunkkv__V1__StatusReply *reply = &response->body.budgets.message;

        if (count * sizeof(*records) + path_count * sizeof(struct ckv_record_code_path) != bytes)
                return CKV_ENCODE_E_MALFORMED;
        chunkkv__v1__status_reply__init(reply);
        response->message.body_case = CHUNKKV__V1__RESPONSE__BODY_STATUS_REPLY;
        response->message.status_reply = reply;
        response->body.budgets.budgets = calloc(count + 1, sizeof(*response->body.budgets.budgets));
        response->body.budgets.list = calloc(count + 1, sizeof(*response->body.budgets.list));
        if (!response->body.budgets.budgets || !response->body.budgets.list)
                return ckv_error_origin(-ENOMEM);
        for (size_t i = 0; i < count; i++) {
                Chunkkv__V1__Budget *budget = &response->body.budgets.budgets[i];

                chunkkv__v1__budget__init(budget);
                budget->slot = (Chunkkv__V1__Slot)records[i].slot;
                budget->used = records[i].used;
                budget->limit = records[i].limit;
                response->body.budgets.list[i] = budget;
        }
        reply->budgets = response->body.budgets.list;
        reply->n_budgets = count;
        return fill_paths(response, (const void *)(records + count), path_count);
}

static void fill_outcome(struct response *response, const struct ckv_record_result *result) {
        Chunkkv__V1__Outcome *outcome = &response->body.outcome;

        chunkkv__v1__outcome__init(outcome);
        outcome->target_request_id = result->u.outcome.target_request_id;
        outcome->phase = (Chunkkv__V1__Phase)result->u.outcome.phase;
        outcome->code = (Chunkkv__V1__Code)result->u.outcome.code;
        outcome->cache = (Chunkkv__V1__CacheState)result->u.outcome.cache;
        response->message.body_case = CHUNKKV__V1__RESPONSE__BODY_OUTCOME;
        response->message.outcome = outcome;
}

/* fill_result() - Return: 0, CKV_ENCODE_E_MALFORMED, CKV_ENCODE_E_TOO_LARGE with @ret_need_bytes, or -ENOMEM */
static int fill_result(struct response *response, const struct ckv_record_result *result, const void *attachment,
                       uint32_t bytes, uint64_t reply_bytes, uint64_t *ret_need_bytes) {
        switch (result->answer) {
        case CKV_ANSWER_STATUS:
                return fill_budgets(response, result, attachment, bytes);
        case CKV_ANSWER_COMPRESSED:
                response->message.body_case = CHUNKKV__V1__RESPONSE__BODY_COMPRESSED;
                response->message.compressed = &response->body.compressed.message;
                return ckv_compressed_init(&response->body.compressed, result, attachment, bytes, reply_bytes,
                                           ret_need_bytes);
        default:
                break;
        }

        if (bytes > 0)
                return CKV_ENCODE_E_MALFORMED;
        switch (result->answer) {
        case CKV_ANSWER_NONE:
                return 0;
        case CKV_ANSWER_PONG:
                fill_pong(response, result);
                return 0;
        case CKV_ANSWER_REGION:
                chunkkv__v1__region_registered__init(&response->body.region);
                response->body.region.region_id = result->u.region.region_id;
                response->body.region.shared = result->u.region.shared != 0;
                response->message.body_case = CHUNKKV__V1__RESPONSE__BODY_REGION_REGISTERED;
                response->message.region_registered = &response->body.region;
                return 0;
        case CKV_ANSWER_CACHE:
                chunkkv__v1__cache_registered__init(&response->body.cache);
                response->body.cache.cache_id = result->u.cache.cache_id;
                response->body.cache.fast_path = result->u.cache.fast_path != 0;
                response->message.body_case = CHUNKKV__V1__RESPONSE__BODY_CACHE_REGISTERED;
                response->message.cache_registered = &response->body.cache;
                return 0;
        case CKV_ANSWER_OUTCOME:
                fill_outcome(response, result);
                return 0;
        default:
                return CKV_ENCODE_E_MALFORMED;
        }
}

/* pack() - Return: 0, CKV_ENCODE_E_TOO_LARGE with @ret_need_bytes, or -ENOMEM */
static int pack(const struct response *response, uint64_t reply_bytes, uint64_t *ret_need_bytes, void **ret_reply,
                size_t *ret_bytes) {
        size_t bytes = chunkkv__v1__response__get_packed_size(&response->message);
        uint8_t *reply;

        if (bytes > reply_bytes) {
                *ret_need_bytes = bytes;
                return CKV_ENCODE_E_TOO_LARGE;
        }
        reply = malloc(bytes + 1);
        if (!reply)
                return ckv_error_origin(-ENOMEM);
        (void)chunkkv__v1__response__pack(&response->message, reply);
        *ret_reply = reply;
        *ret_bytes = bytes;
        return 0;
}

int ckv_encode_status(const struct ckv_record_head *head, const struct ckv_record_status *status, void **ret_reply,
                      size_t *ret_bytes) {
        _cleanup_(response_deinit) struct response response;
        uint64_t need_bytes;

        response_init(&response, head, status);
        return pack(&response, UINT64_MAX, &need_bytes, ret_reply, ret_bytes);
}

int ckv_encode_answer(const struct ckv_record *record, const void *attachment, uint64_t reply_bytes, void **ret_reply,
                      size_t *ret_bytes) {
        /* WELCOME and RESULT both begin with it */
        const struct ckv_record_status *status = &record->body.result.status;
        _cleanup_(response_deinit) struct response response;
        struct ckv_record_status too_large;
        uint64_t need_bytes = 0;
        int r;

        static_assert(offsetof(struct ckv_record_welcome, status) == 0 &&
                              offsetof(struct ckv_record_result, status) == 0,
                      "the status comes first");
        response_init(&response, &record->head, status);
        if (record->head.type == CKV_RECORD_WELCOME)
                r = fill_welcome(&response, &record->body.welcome, attachment, record->head.ring_bytes);
        else
                r = fill_result(&response, &record->body.result, attachment, record->head.ring_bytes, reply_bytes,
                                &need_bytes);
        if (r == 0)
                r = pack(&response, reply_bytes, &need_bytes, ret_reply, ret_bytes);
        if (r != CKV_ENCODE_E_TOO_LARGE)
                return r;

        ckv_status_set(&too_large, CKV_CODE_REPLY_TOO_LARGE, CKV_F_COMPRESS_REPLY_FORM, CKV_D_REPLY_TOO_LARGE,
                       need_bytes, reply_bytes, 0);
        too_large.cache = status->cache;
        return ckv_encode_status(&record->head, &too_large, ret_reply, ret_bytes);
}
