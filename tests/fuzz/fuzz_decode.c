/*
 * The gate's decoder: any bytes are a request that is translated, or refused
 * with a status that names a field and can be spelled out.  What leaves it for
 * the core must add up: the attachment is as long as the counts of the body.
 */
#include "tests/fuzz/fuzz.h"

#include "base/limits.h"
#include "base/macros.h"
#include "daemon/gate/decode.h"
#include "daemon/gate/encode.h"
#include "proto/status.h"

static uint64_t words_of(const struct ckv_record_group *group) {
        return (uint64_t)group->table_count + group->destination_count + 2 * (uint64_t)group->span_count + group->position_run_count +
               group->chunk_length_count + group->given_run_count;
}

static void check_compress(const struct ckv_outgoing *out, size_t skip) {
        const struct ckv_record_compress *body = &out->record.body.compress;
        const struct ckv_record_group *groups = (const void *)(out->attachment + skip);
        uint64_t words = body->query_layer_count, policies = 0;

        fuzz_assert(skip + (uint64_t)body->group_count * sizeof(*groups) <= out->attachment_bytes);
        for (uint32_t i = 0; i < body->group_count; i++) {
                words += words_of(&groups[i]);
                policies += groups[i].policy_count;
        }
        fuzz_assert(words == body->word_count && policies == body->policy_count);
        fuzz_assert(out->attachment_bytes == skip + body->group_count * sizeof(struct ckv_record_group) +
                                             policies * sizeof(struct ckv_record_policy) + words * sizeof(uint32_t));
        fuzz_assert(body->mode >= 1 && body->mode <= 3);
}

static void check_cache(const struct ckv_outgoing *out) {
        const struct ckv_record_cache *body = &out->record.body.cache;

        fuzz_assert(body->group_count <= CKV_LIMIT_GROUPS && body->plane_count <= CKV_LIMIT_PLANES);
        fuzz_assert(out->attachment_bytes == body->group_count * sizeof(struct ckv_record_cache_group) +
                                             body->plane_count * sizeof(struct ckv_record_plane) +
                                             body->layer_word_count * sizeof(uint32_t));
}

/* A refusal must be one that the gate can spell out */
static void check_refusal(const struct ckv_record_status *status) {
        fuzz_assert(status->code != CKV_CODE_OK && status->code != CKV_CODE_INTERNAL);
        fuzz_assert(status->cache == CKV_CACHE_CLEAN);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
        static const struct ckv_record_limits limits = {
                .request_bytes = CKV_LIMIT_REQUEST_BYTES, .reply_bytes = CKV_LIMIT_REPLY_BYTES,
                .message_parts = CKV_LIMIT_MESSAGE_PARTS, .connections_per_uid = 16, .spans = CKV_LIMIT_SPANS,
                .groups = CKV_LIMIT_GROUPS, .planes = CKV_LIMIT_PLANES, .rows = CKV_LIMIT_ROWS, .boot_id = { 1 },
        };
        static struct ckv_outgoing out;
        struct ckv_record_status status = { 0 };
        int r;

        if (!out.attachment)
                out.attachment = aligned_alloc(16, CKV_ATTACHMENT_MAX_BYTES);
        if (!out.attachment || size > limits.request_bytes)
                return 0;
        r = ckv_decode_request(&limits, 1000000000, data, size, &out, &status);
        fuzz_assert(r == 0 || r == CKV_DECODE_E_REFUSED);
        if (r) {
                check_refusal(&status);
                return 0;
        }
        fuzz_assert(out.attachment_bytes <= CKV_ATTACHMENT_MAX_BYTES);
        fuzz_assert(out.record.head.request_id >= 1 && out.record.head.request_id <= INT64_MAX);
        switch (out.record.head.type) {
        case CKV_RECORD_COMPRESS:
                check_compress(&out, 0);
                break;
        case CKV_RECORD_REPAIR:
                check_compress(&out, sizeof(struct ckv_record_repair));
                break;
        case CKV_RECORD_REGISTER_CACHE:
                check_cache(&out);
                break;
        default:
                break;
        }
        return 0;
}
