/*
 * What the gate refuses: one wrong field at a time, at limit and limit + 1,
 * with the path of the field and, where numbers are in it, the sentence.
 */
#include "tests/support_requests.h"

#include "base/clock.h"
#include "base/macros.h"

#include <check.h>
#include <math.h>
#include <string.h>

#define BYTES(n) ((ProtobufCBinaryData){ (n), bytes_b0 })
#define COUNT(n) (&(Chunkkv__V1__Count){ PROTOBUF_C_MESSAGE_INIT(&chunkkv__v1__count__descriptor), (n) })

START_TEST(envelope_form) {
        REFUSED(PING, BAD_MESSAGE, "request_id", "must be 1 to 9223372036854775807, is 0", request.request_id = 0);
        REFUSED(PING, BAD_MESSAGE, "request_id", NULL, request.request_id = UINT64_C(1) << 63);
        ACCEPTED(PING, request.request_id = INT64_MAX);
        REFUSED(PING, BAD_MESSAGE, "body", "is required", request.body_case = CHUNKKV__V1__REQUEST__BODY__NOT_SET);
        REFUSED(PING, BAD_MESSAGE, "boot_id", "must have 16 bytes, has 0", request.boot_id = BYTES(0));
        REFUSED(PING, BAD_MESSAGE, "boot_id", "must have 16 bytes, has 17", request.boot_id = BYTES(17));
        REFUSED(HELLO, BAD_MESSAGE, "boot_id", "must have 0 bytes, has 16", request.boot_id = BYTES(16));
        REFUSED(PING, BAD_MESSAGE, "session_token", "must have 16 bytes, has 15", request.session_token = BYTES(15));
        REFUSED(HELLO, BAD_MESSAGE, "session_token", NULL, request.session_token = BYTES(16));
}
END_TEST

START_TEST(traceparent) {
        static char good[] = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        static char shorter[] = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-0";
        static char upper[] = "00-4BF92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        static char version[] = "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        static char dash[] = "00-4bf92f3577b34da6a3ce929d0e0e4736000f067aa0ba902b7-01";

        ACCEPTED(PING, request.traceparent = good);
        ck_assert_uint_eq(decoded.record.head.flags, CKV_RECORD_HAS_TRACE);
        REFUSED(PING, BAD_MESSAGE, "traceparent", "must have 55 bytes, has 54", request.traceparent = shorter);
        REFUSED(PING, INVALID_ARGUMENT, "traceparent", NULL, request.traceparent = upper);
        REFUSED(PING, INVALID_ARGUMENT, "traceparent", NULL, request.traceparent = version);
        REFUSED(PING, INVALID_ARGUMENT, "traceparent", NULL, request.traceparent = dash);
}
END_TEST

START_TEST(deadline) {
        uint64_t farthest = NOW_NS + 600 * CKV_NSEC_PER_SEC;

        REFUSED(COMPRESS, INVALID_ARGUMENT, "deadline_ns", "is required", request.deadline_ns = 0);
        REFUSED(COMMIT, INVALID_ARGUMENT, "deadline_ns", NULL, request.deadline_ns = 0);
        REFUSED(REPAIR, INVALID_ARGUMENT, "deadline_ns", NULL, request.deadline_ns = 0);
        ACCEPTED(CANCEL, request.deadline_ns = 0);
        ck_assert_uint_eq(decoded.record.head.deadline_ns, NOW_NS + 5 * CKV_NSEC_PER_SEC);
        ACCEPTED(COMPRESS, request.deadline_ns = farthest);
        REFUSED(COMPRESS, OUT_OF_RANGE, "deadline_ns", "is more than 600 s ahead", request.deadline_ns = farthest + 1);
        REFUSED(PING, OUT_OF_RANGE, "deadline_ns", NULL, request.deadline_ns = UINT64_MAX);
        /* too late is for the core to judge */
        ACCEPTED(COMPRESS, request.deadline_ns = 1);
        ck_assert_uint_eq(decoded.record.head.deadline_ns, 1);
}
END_TEST

START_TEST(form_before_values) {
        REFUSED(REGISTER_REGION, BAD_MESSAGE, "register_region.device_uuid", NULL, request.deadline_ns = UINT64_MAX;
                region.size = 0; region.device_uuid = BYTES(15));
}
END_TEST

/* with_unknown() - the packed request and @count fields more that the schema does not have */
static int with_unknown(size_t count) {
        uint8_t message[4096];
        size_t bytes;

        requests_reset(CHUNKKV__V1__REQUEST__BODY_PING);
        bytes = chunkkv__v1__request__pack(&request, message);
        for (size_t i = 0; i < count; i++, bytes += 3)
                memcpy(message + bytes, "\xc0\x0c\x01", 3);
        return requests_decode_bytes(message, bytes);
}

START_TEST(unknown_fields_64_and_65) {
        ck_assert_int_eq(with_unknown(64), 0);
        ck_assert_int_eq(with_unknown(65), CKV_DECODE_E_REFUSED);
        ck_assert_uint_eq(refusal.code, CKV_CODE_BAD_MESSAGE);
        ck_assert_uint_eq(refusal.detail, CKV_D_UNKNOWN_FIELDS);
        ck_assert_uint_eq(refusal.arg[0], 64);
        ck_assert_uint_eq(refusal.arg[1], 65);
        ck_assert_uint_eq(decoded.record.head.request_id, 1234);
}
END_TEST

START_TEST(unknown_fields_in_all_messages_together) {
        /* 33 in each of two planes, none of which is over the limit alone; field 200, varint 1 */
        uint8_t field[] = { 0x01 };
        ProtobufCMessageUnknownField unknown[33];

        for (size_t i = 0; i < CKV_ARRAY_SIZE(unknown); i++)
                unknown[i] = (ProtobufCMessageUnknownField){ 200, PROTOBUF_C_WIRE_TYPE_VARINT, 1, field };
        REFUSED(REGISTER_CACHE, BAD_MESSAGE, "", "the message has 66 unknown fields, the limit is 64",
                planes[0].base.unknown_fields = planes[1].base.unknown_fields = unknown;
                planes[0].base.n_unknown_fields = planes[1].base.n_unknown_fields = 33);
        ACCEPTED(REGISTER_CACHE, planes[0].base.unknown_fields = axes[0].base.unknown_fields = unknown;
                 planes[0].base.n_unknown_fields = axes[0].base.n_unknown_fields = 32);
}
END_TEST

START_TEST(targets_and_ids) {
        REFUSED(GET_STATUS, OUT_OF_RANGE, "get_status.target_request_id", NULL,
                request.get_status->target_request_id = UINT64_MAX);
        request.get_status->target_request_id = 0;
        REFUSED(COMMIT, OUT_OF_RANGE, "commit.target_request_id", NULL, commit_body.target_request_id = 0);
        REFUSED(CANCEL, OUT_OF_RANGE, "cancel.target_request_id", NULL,
                cancel_body.target_request_id = UINT64_C(1) << 63);
        REFUSED(UNREGISTER_REGION, INVALID_ARGUMENT, "unregister_region.region_id", "is required",
                request.unregister_region->region_id = 0);
        REFUSED(UNREGISTER_CACHE, INVALID_ARGUMENT, "unregister_cache.cache_id", "is required",
                request.unregister_cache->cache_id = 0);
        REFUSED(REPAIR, OUT_OF_RANGE, "repair.target_request_id", NULL, repair.target_request_id = 0);
        REFUSED(REPAIR, OUT_OF_RANGE, "repair.control_slot", "must be 1 to 8, is 0", repair.control_slot = 0);
        REFUSED(REPAIR, INVALID_ARGUMENT, "repair.job", "is required", repair.job = NULL);
        REFUSED(REPAIR, INVALID_ARGUMENT, "compress.cache_id", "is required", compress.cache_id = 0);
}
END_TEST

START_TEST(hello_values) {
        static char longest[] = "0123456789012345678901234567890123456789012345678901234567890123";
        static char longer[] = "01234567890123456789012345678901234567890123456789012345678901234";
        static char control[] = "name\n", delete[] = "name\x7f", accent[] = "n\xc3\xa2me";

        REFUSED(HELLO, BAD_MESSAGE, "hello.attach_token", "must have 16 bytes, has 8", hello.attach_token = BYTES(8));
        REFUSED(HELLO, OUT_OF_RANGE, "hello.minor_min", "must be at most 3, is 4", hello.minor_min = 4);
        ACCEPTED(HELLO, hello.minor_min = 3);
        ACCEPTED(HELLO, hello.client = longest);
        REFUSED(HELLO, INVALID_ARGUMENT, "hello.client", "must be at most 64 printable ASCII characters",
                hello.client = longer);
        REFUSED(HELLO, INVALID_ARGUMENT, "hello.client", NULL, hello.client = control);
        REFUSED(HELLO, INVALID_ARGUMENT, "hello.client", NULL, hello.client = delete);
        REFUSED(HELLO, INVALID_ARGUMENT, "hello.client", NULL, hello.client = accent);
        REFUSED(HELLO, OUT_OF_RANGE, "hello.needs[32]", "must have 0 to 32 entries, has 33", hello.n_needs = 33);
        REFUSED(HELLO, INVALID_ARGUMENT, "hello.needs[0]", "has no value numbered 14",
                hello.needs[0] = (Chunkkv__V1__Capability)14);
        REFUSED(HELLO, INVALID_ARGUMENT, "hello.needs[0]", "is required",
                hello.needs[0] = CHUNKKV__V1__CAPABILITY__CAP_NONE);
}
END_TEST

#define SOURCE(NAME, member, ...) \
        region.source_case = CHUNKKV__V1__REGISTER_REGION__SOURCE_##NAME; \
        region.member = __VA_ARGS__

START_TEST(region_values) {
        static char names[][64] = {
                "chunkkv-1000-0123456789abcdef0123456789abcdef",
                "/chunkkv-01000-0123456789abcdef0123456789abcdef",
                "/chunkkv--0123456789abcdef0123456789abcdef",
                "/chunkkv-4294967296-0123456789abcdef0123456789abcdef",
                "/chunkkv-1000-0123456789ABCDEF0123456789abcdef",
                "/chunkkv-1000-0123456789abcdef0123456789abcde",
                "/chunkkv-1000-0123456789abcdef0123456789abcdef0",
                "/chunkkv-1000-0123456789abcdef0123456789abcdef/",
                "",
        };
        uint64_t most = UINT64_C(1) << 46;

        REFUSED(REGISTER_REGION, BAD_MESSAGE, "register_region.cuda_ipc.handle", "must have 64 bytes, has 63",
                ipc.handle = BYTES(63));
        REFUSED(REGISTER_REGION, BAD_MESSAGE, "register_region.cuda_ipc.handle", "must have 64 bytes, has 66",
                ipc.handle = BYTES(66));
        REFUSED(REGISTER_REGION, BAD_MESSAGE, "register_region.memfd_token", NULL,
                SOURCE(MEMFD_TOKEN, memfd_token, BYTES(15)));
        REFUSED(REGISTER_REGION, BAD_MESSAGE, "register_region.vmm_tokens", "must be a multiple of 16, is 17",
                SOURCE(VMM_TOKENS, vmm_tokens, BYTES(17)));
        REFUSED(REGISTER_REGION, OUT_OF_RANGE, "register_region.vmm_tokens", NULL,
                SOURCE(VMM_TOKENS, vmm_tokens, BYTES(0)));
        REFUSED(REGISTER_REGION, OUT_OF_RANGE, "register_region.vmm_tokens", "must have 1 to 8192 entries, has 8193",
                SOURCE(VMM_TOKENS, vmm_tokens, BYTES(16 * 8193)));
        for (size_t i = 0; i < CKV_ARRAY_SIZE(names); i++)
                REFUSED(REGISTER_REGION, INVALID_ARGUMENT, "register_region.posix_shm", NULL,
                        SOURCE(POSIX_SHM, posix_shm, names[i]));
        REFUSED(REGISTER_REGION, INVALID_ARGUMENT, "register_region.source", "is required",
                region.source_case = CHUNKKV__V1__REGISTER_REGION__SOURCE__NOT_SET);
        REFUSED(REGISTER_REGION, OUT_OF_RANGE, "register_region.size", NULL, region.size = 0);
        REFUSED(REGISTER_REGION, OUT_OF_RANGE, "register_region.size", NULL, region.size = most + 1);
        ACCEPTED(REGISTER_REGION, region.size = most; region.offset = 0; ipc.alloc_size = most);
        REFUSED(REGISTER_REGION, OUT_OF_RANGE, "register_region.offset", "offset, strides and sizes together pass 2^64",
                region.offset = UINT64_MAX - 65535);
        ACCEPTED(REGISTER_REGION, region.offset = (1 << 20) - 65536);
        REFUSED(REGISTER_REGION, OUT_OF_RANGE, "register_region.size",
                "offset + size is 1048577, the allocation has 1048576 bytes", region.offset = (1 << 20) - 65535);
        REFUSED(REGISTER_REGION, OUT_OF_RANGE, "register_region.cuda_ipc.alloc_size", NULL, ipc.alloc_size = 0);
        REFUSED(REGISTER_REGION, BAD_MESSAGE, "register_region.device_uuid", NULL, region.device_uuid = BYTES(17));
        REFUSED(REGISTER_REGION, INVALID_ARGUMENT, "register_region.device_uuid", "is required",
                region.device_uuid = BYTES(0));
        REFUSED(REGISTER_REGION, INVALID_ARGUMENT, "register_region.access", "is required",
                region.access = CHUNKKV__V1__ACCESS__ACCESS_NONE);
        REFUSED(REGISTER_REGION, INVALID_ARGUMENT, "register_region.access", "has no value numbered 3",
                region.access = (Chunkkv__V1__Access)3);
}
END_TEST

START_TEST(cache_groups) {
        static uint32_t many[65537];
        Chunkkv__V1__LayerGroup *g = &layer_groups[1];

        REFUSED(REGISTER_CACHE, OUT_OF_RANGE, "register_cache.groups", "must have 1 to 16 entries, has 0",
                cache.n_groups = 0);
        REFUSED(REGISTER_CACHE, OUT_OF_RANGE, "register_cache.groups", NULL, limits.groups = 1);
        REFUSED(REGISTER_CACHE, OUT_OF_RANGE, "register_cache.planes", NULL, cache.n_planes = 0);
        REFUSED(REGISTER_CACHE, OUT_OF_RANGE, "register_cache.planes", "must have 1 to 1 entries, has 2",
                limits.planes = 1);
        REFUSED(REGISTER_CACHE, OUT_OF_RANGE, "register_cache.groups[1].layers", NULL, g->n_layers = 0);
        for (uint32_t i = 0; i < CKV_ARRAY_SIZE(many); i++)
                many[i] = i;
        REFUSED(REGISTER_CACHE, OUT_OF_RANGE, "register_cache.groups[1].layers",
                "must have 1 to 65536 entries, has 65537", g->layers = many;
                g->n_layers = 65537);
        ACCEPTED(REGISTER_CACHE, g->layers[0] = 65535);
        REFUSED(REGISTER_CACHE, OUT_OF_RANGE, "register_cache.groups[1].layers", "must be 0 to 65535, is 65536",
                g->layers[0] = 65536);
        REFUSED(REGISTER_CACHE, INVALID_ARGUMENT, "register_cache.groups[0].layers",
                "must be strictly ascending at entry 1", layer_groups[0].layers[1] = 3);
        REFUSED(REGISTER_CACHE, INVALID_ARGUMENT, "register_cache.groups[1].layers",
                "layer 5 is in another group already", g->layers[0] = 5);
        REFUSED(REGISTER_CACHE, OUT_OF_RANGE, "register_cache.groups[1].kv_heads", NULL, g->kv_heads = 0);
        REFUSED(REGISTER_CACHE, OUT_OF_RANGE, "register_cache.groups[1].kv_heads", NULL, g->kv_heads = 1025);
        ACCEPTED(REGISTER_CACHE, g->kv_heads = g->q_heads = 1024);
        REFUSED(REGISTER_CACHE, OUT_OF_RANGE, "register_cache.groups[1].q_heads", "must be at least 2, is 1",
                g->q_heads = 1);
        REFUSED(REGISTER_CACHE, INVALID_ARGUMENT, "register_cache.groups[1].q_heads", "must be a multiple of 2, is 9",
                g->q_heads = 9);
        REFUSED(REGISTER_CACHE, OUT_OF_RANGE, "register_cache.groups[1].head_dim_k", NULL, g->head_dim_k = 0);
        REFUSED(REGISTER_CACHE, OUT_OF_RANGE, "register_cache.groups[1].head_dim_k", NULL, g->head_dim_k = 1025);
        ACCEPTED(REGISTER_CACHE, g->head_dim_v = 0);
        REFUSED(REGISTER_CACHE, OUT_OF_RANGE, "register_cache.groups[1].head_dim_v", NULL, g->head_dim_v = 1025);
        REFUSED(REGISTER_CACHE, OUT_OF_RANGE, "register_cache.groups[1].tokens_per_block", NULL,
                g->tokens_per_block = 0);
        REFUSED(REGISTER_CACHE, OUT_OF_RANGE, "register_cache.groups[1].tokens_per_block", NULL,
                g->tokens_per_block = 65537);
        REFUSED(REGISTER_CACHE, OUT_OF_RANGE, "register_cache.groups[1].num_blocks", NULL, g->num_blocks = 0);
}
END_TEST

START_TEST(cache_planes) {
        Chunkkv__V1__Plane *p = &planes[1];

        REFUSED(REGISTER_CACHE, INVALID_ARGUMENT, "register_cache.planes[1].kind", "is required",
                p->kind = CHUNKKV__V1__PLANE_KIND__PLANE_NONE);
        REFUSED(REGISTER_CACHE, INVALID_ARGUMENT, "register_cache.planes[1].kind", NULL,
                p->kind = (Chunkkv__V1__PlaneKind)5);
        REFUSED(REGISTER_CACHE, INVALID_ARGUMENT, "register_cache.planes[1].dtype", NULL,
                p->dtype = (Chunkkv__V1__DType)8);
        REFUSED(REGISTER_CACHE, INVALID_ARGUMENT, "register_cache.planes[1].dtype", "is required",
                p->dtype = CHUNKKV__V1__DTYPE__DTYPE_NONE);
        REFUSED(REGISTER_CACHE, OUT_OF_RANGE, "register_cache.planes[1].layer_first", NULL, p->layer_first = 65536);
        REFUSED(REGISTER_CACHE, OUT_OF_RANGE, "register_cache.planes[1].layer_count", NULL, p->layer_count = 0);
        REFUSED(REGISTER_CACHE, OUT_OF_RANGE, "register_cache.planes[1].layer_count", "must be 1 to 1024, is 1025",
                p->layer_count = 1025);
        ACCEPTED(REGISTER_CACHE, p->layer_first = 65535; p->layer_count = 1);
        REFUSED(REGISTER_CACHE, OUT_OF_RANGE, "register_cache.planes[1].layer_count", "must be 1 to 1, is 2",
                p->layer_first = 65535;
                p->layer_count = 2);
        REFUSED(REGISTER_CACHE, INVALID_ARGUMENT, "register_cache.planes[1].region_id", "is required",
                p->region_id = 0);
        REFUSED(REGISTER_CACHE, INVALID_ARGUMENT, "register_cache.planes[1].scale", "must be a finite number",
                p->scale = NAN);
        REFUSED(REGISTER_CACHE, INVALID_ARGUMENT, "register_cache.planes[1].scale", NULL, p->scale = -INFINITY);
}
END_TEST

START_TEST(compress_job) {
        REFUSED(COMPRESS, INVALID_ARGUMENT, "compress.cache_id", "is required", compress.cache_id = 0);
        REFUSED(COMPRESS, INVALID_ARGUMENT, "compress.mode", "is required",
                compress.mode = CHUNKKV__V1__MODE__MODE_NONE);
        REFUSED(COMPRESS, INVALID_ARGUMENT, "compress.mode", "has no value numbered 4294967295",
                compress.mode = (Chunkkv__V1__Mode)-1);
        REFUSED(COMPRESS, INVALID_ARGUMENT, "compress.hold", NULL, compress.hold = 1;
                compress.mode = CHUNKKV__V1__MODE__MODE_PLAN);
        REFUSED(COMPRESS, OUT_OF_RANGE, "compress.control_slot", "must be 0 to 8, is 9", compress.control_slot = 9);
        REFUSED(COMPRESS, INVALID_ARGUMENT, "compress.control_use", NULL, compress.control_use = 1);
        REFUSED(COMPRESS, OUT_OF_RANGE, "compress.groups", NULL, compress.n_groups = 0);
        REFUSED(COMPRESS, OUT_OF_RANGE, "compress.groups", "must have 1 to 1 entries, has 2", limits.groups = 1);
        REFUSED(COMPRESS, INVALID_ARGUMENT, "compress.reply_form", NULL,
                compress.reply_form = (Chunkkv__V1__ReplyForm)5);
        REFUSED(COMPRESS, INVALID_ARGUMENT, "compress.reply_to", "is required",
                compress.reply_form = CHUNKKV__V1__REPLY_FORM__REPLY_IN_REGION);
        REFUSED(COMPRESS, INVALID_ARGUMENT, "compress.reply_to", NULL, compress.reply_to = &slices[1]);
        REFUSED(COMPRESS, INVALID_ARGUMENT, "compress.control_slot", "is required",
                compress.reply_form = CHUNKKV__V1__REPLY_FORM__REPLY_IN_SLOT);
        REFUSED(COMPRESS, INVALID_ARGUMENT, "compress.reply_to", "must be a multiple of 4, is 4098",
                compress.reply_form = CHUNKKV__V1__REPLY_FORM__REPLY_IN_REGION;
                compress.reply_to = &slices[1]; slices[1].size = 4098);
}
END_TEST

START_TEST(compress_queries) {
        REFUSED(COMPRESS, INVALID_ARGUMENT, "compress.queries",
                "the scorer needs queries: send them, or ask for scorer knorm or keydiff, which read keys alone",
                compress.queries = NULL);
        REFUSED(COMPRESS, INVALID_ARGUMENT, "compress.queries", NULL, compress.queries = NULL;
                jobs[0].n_policies = jobs[1].n_policies = 0);
        ACCEPTED(COMPRESS, compress.queries = NULL;
                 policies[0].scorer = policies[1].scorer = CHUNKKV__V1__SCORER__SCORER_KNORM;
                 policies[2].selector = CHUNKKV__V1__SELECTOR__SELECTOR_STREAMING);
        ACCEPTED(COMPRESS, compress.queries = NULL; jobs[0].scores_in = &slices[1]; jobs[1].given_runs = runs;
                 jobs[1].n_given_runs = 4; jobs[1].keep_ratio = 0);
        REFUSED(COMPRESS, INVALID_ARGUMENT, "compress.queries.data", "is required", queries.data = NULL);
        REFUSED(COMPRESS, INVALID_ARGUMENT, "compress.queries.data", "is required", slices[0].region_id = 0);
        REFUSED(COMPRESS, OUT_OF_RANGE, "compress.queries.data", "must be at least 1, is 0", slices[0].size = 0);
        REFUSED(COMPRESS, OUT_OF_RANGE, "compress.queries.data", NULL,
                slices[0].offset = UINT64_MAX - slices[0].size + 1);
        ACCEPTED(COMPRESS, slices[0].offset = UINT64_MAX - slices[0].size);
        REFUSED(COMPRESS, INVALID_ARGUMENT, "compress.queries.dtype", "is required",
                queries.dtype = CHUNKKV__V1__DTYPE__DTYPE_NONE);
        REFUSED(COMPRESS, OUT_OF_RANGE, "compress.queries.dtype", NULL,
                queries.dtype = CHUNKKV__V1__DTYPE__DTYPE_F8_E4M3);
        REFUSED(COMPRESS, OUT_OF_RANGE, "compress.queries.rows", NULL, queries.rows = 0);
        ACCEPTED(COMPRESS, queries.rows = 256);
        REFUSED(COMPRESS, OUT_OF_RANGE, "compress.queries.rows", "must be 1 to 256, is 257", queries.rows = 257);
        ACCEPTED(COMPRESS, queries.rows = 257; policies[2].selector = CHUNKKV__V1__SELECTOR__SELECTOR_H2O);
        REFUSED(COMPRESS, OUT_OF_RANGE, "compress.queries.ring_start", "must be 0 to 31, is 32",
                queries.ring_start = 32);
        REFUSED(COMPRESS, OUT_OF_RANGE, "compress.queries.last_row", "row 32 is past the last row 31",
                queries.last_row = 32);
        REFUSED(COMPRESS, INVALID_ARGUMENT, "compress.queries.layers[1]", NULL, query_layers[1] = 3);
        REFUSED(COMPRESS, OUT_OF_RANGE, "compress.queries.layers[1]", NULL, query_layers[1] = 65536);
        REFUSED(COMPRESS, INVALID_ARGUMENT, "compress.queries.lse", NULL, queries.lse = &slices[1]; slices[1].size = 6);
        REFUSED(COMPRESS, INVALID_ARGUMENT, "compress.queries.sink_logits", NULL, queries.sink_logits = &slices[1];
                slices[1].region_id = 0);
}
END_TEST

START_TEST(group_numbers) {
        REFUSED(COMPRESS, OUT_OF_RANGE, "compress.groups[1].group", "must be 0 to 15, is 16", jobs[1].group = 16);
        REFUSED(COMPRESS, INVALID_ARGUMENT, "compress.groups[1].group", "group 0 is named twice", jobs[1].group = 0);
        REFUSED(COMPRESS, OUT_OF_RANGE, "compress.groups[1].physical_len", "has 1048577 rows, the limit is 1048576",
                jobs[1].physical_len = 1048577; compress.logical_len = UINT32_MAX);
        REFUSED(COMPRESS, INVALID_ARGUMENT, "compress.logical_len", "must be at least physical_len 64, is 63",
                compress.logical_len = 63);
        ACCEPTED(COMPRESS, compress.logical_len = 64);
        REFUSED(COMPRESS, OUT_OF_RANGE, "compress.groups[0].protect_prefix", NULL, jobs[0].protect_prefix = 1048577);
        REFUSED(COMPRESS, OUT_OF_RANGE, "compress.groups[1].keep_ratio", "must be 1 to 1000000, is 1000001",
                jobs[1].keep_ratio = 1000001);
        ACCEPTED(COMPRESS, jobs[1].keep_ratio = 1000000);
        REFUSED(COMPRESS, INVALID_ARGUMENT, "compress.groups[1].keep_ratio", "keep_ratio or max_tokens is required",
                jobs[1].keep_ratio = 0);
        ACCEPTED(COMPRESS, jobs[1].keep_ratio = 0; jobs[1].max_tokens = UINT32_MAX);
        ACCEPTED(COMPRESS, jobs[1].keep_ratio = 0; policies[2].selector = CHUNKKV__V1__SELECTOR__SELECTOR_H2O);
}
END_TEST

START_TEST(group_tables) {
        REFUSED(COMPRESS, INVALID_ARGUMENT, "compress.groups[0].table", "is required", jobs[0].table = NULL);
        ACCEPTED(COMPRESS, jobs[1].table = NULL; jobs[1].physical_len = 0);
        REFUSED(COMPRESS, INVALID_ARGUMENT, "compress.groups[0].table", "is required", tables[0].n_numbers = 0);
        REFUSED(COMPRESS, INVALID_ARGUMENT, "compress.groups[0].table.form", "is required",
                tables[0].form = CHUNKKV__V1__TABLE_FORM__TABLE_NONE);
        REFUSED(COMPRESS, INVALID_ARGUMENT, "compress.groups[1].table.form", NULL,
                tables[1].form = (Chunkkv__V1__TableForm)5);
        REFUSED(COMPRESS, INVALID_ARGUMENT, "compress.groups[0].table.from",
                "must be one of numbers and from, both are set", tables[0].from = &slices[1]);
        REFUSED(COMPRESS, INVALID_ARGUMENT, "compress.groups[1].table", "runs come in pairs: must have an even number of entries, has 3",
                tables[1].n_numbers = 3);
        REFUSED(COMPRESS, OUT_OF_RANGE, "compress.groups[1].table.numbers[3]", NULL, tables[1].numbers[3] = 0);
        ACCEPTED(COMPRESS, tables[1].numbers[2] = 0);
        REFUSED(COMPRESS, INVALID_ARGUMENT, "compress.groups[1].table.from", "must be a multiple of 8, is 4100",
                tables[1].n_numbers = 0; tables[1].from = &slices[1]; slices[1].size = 4100);
        REFUSED(COMPRESS, INVALID_ARGUMENT, "compress.groups[0].destination", NULL, jobs[0].destination = &destination);
        REFUSED(COMPRESS, INVALID_ARGUMENT, "compress.groups[0].destination", "is required",
                compress.mode = CHUNKKV__V1__MODE__MODE_COPY_OUT);
        REFUSED(COMPRESS, INVALID_ARGUMENT, "compress.groups[1].destination.form", NULL,
                compress.mode = CHUNKKV__V1__MODE__MODE_COPY_OUT; jobs[0].destination = &destination;
                Chunkkv__V1__Table second = CHUNKKV__V1__TABLE__INIT; second.numbers = numbers; second.n_numbers = 1;
                jobs[1].destination = &second);
}
END_TEST

START_TEST(group_lists) {
        static uint32_t lengths[2] = { 30, 2 };
        Chunkkv__V1__GroupJob *g = &jobs[1];

#define RUNS(member, count) g->member = runs; g->n_##member = (count); g->keep_ratio = 0; g->max_tokens = 0
        REFUSED(COMPRESS, OUT_OF_RANGE, "compress.groups[0].protect[1]", "must have 0 to 1 entries, has 2",
                limits.spans = 1);
        REFUSED(COMPRESS, OUT_OF_RANGE, "compress.groups[0].protect[1]", NULL, spans[1].count = 0);
        ACCEPTED(COMPRESS, spans[1].first = spans[1].count = UINT32_MAX);
        ACCEPTED(COMPRESS, RUNS(given_runs, 4));
        REFUSED(COMPRESS, INVALID_ARGUMENT, "compress.groups[1].given_runs", "runs come in pairs: must have an even number of entries, has 3",
                RUNS(given_runs, 3));
        REFUSED(COMPRESS, INVALID_ARGUMENT, "compress.groups[1].given_runs", "run 2 is 0: only the first may be",
                RUNS(given_runs, 4);
                runs[2] = 0);
        REFUSED(COMPRESS, OUT_OF_RANGE, "compress.groups[1].given_runs", "the runs reach row 33, there are 32",
                RUNS(given_runs, 4);
                runs[3] = 13);
        ACCEPTED(COMPRESS, RUNS(given_runs, 4); runs[3] = 12);
        REFUSED(COMPRESS, INVALID_ARGUMENT, "compress.groups[1].keep_ratio", NULL, RUNS(given_runs, 4);
                g->keep_ratio = 1);
        REFUSED(COMPRESS, INVALID_ARGUMENT, "compress.groups[1].max_tokens", NULL, RUNS(given_runs, 4);
                g->max_tokens = 1);
        REFUSED(COMPRESS, INVALID_ARGUMENT, "compress.groups[1].scores_out", NULL, RUNS(given_runs, 4);
                g->scores_out = &slices[1]);
        REFUSED(COMPRESS, INVALID_ARGUMENT, "compress.groups[1].scores_in", NULL, RUNS(given_runs, 4);
                g->scores_in = &slices[1]);

        REFUSED(COMPRESS, INVALID_ARGUMENT, "compress.groups[1].position_runs", "the runs keep 14 rows, must keep 32",
                g->position_runs = runs; g->n_position_runs = 4);
        ACCEPTED(COMPRESS, g->position_runs = runs; g->n_position_runs = 4; runs[3] = 28; runs[2] = 58);
        REFUSED(COMPRESS, OUT_OF_RANGE, "compress.groups[1].position_runs", "the runs reach row 91, there are 90",
                g->position_runs = runs; g->n_position_runs = 4; runs[3] = 28; runs[2] = 59);

        REFUSED(COMPRESS, INVALID_ARGUMENT, "compress.groups[1].chunk_lengths", NULL, g->chunk_lengths = lengths;
                g->n_chunk_lengths = 2);
        REFUSED(COMPRESS, INVALID_ARGUMENT, "compress.groups[1].chunk_lengths",
                "chunk_at keeps the caller's chunks: send the rows of each, or ask for selector chunk",
                policies[2].selector = CHUNKKV__V1__SELECTOR__SELECTOR_CHUNK_AT);
        ACCEPTED(COMPRESS, policies[2].selector = CHUNKKV__V1__SELECTOR__SELECTOR_CHUNK_AT; g->chunk_lengths = lengths;
                 g->n_chunk_lengths = 2);
        REFUSED(COMPRESS, INVALID_ARGUMENT, "compress.groups[1].chunk_lengths", "the entries add up to 30, must be 32",
                policies[2].selector = CHUNKKV__V1__SELECTOR__SELECTOR_CHUNK_AT;
                g->chunk_lengths = lengths; g->n_chunk_lengths = 1);
        lengths[1] = 0;
        REFUSED(COMPRESS, INVALID_ARGUMENT, "compress.groups[1].chunk_lengths", "entry 1 is 0",
                policies[2].selector = CHUNKKV__V1__SELECTOR__SELECTOR_CHUNK_AT;
                g->chunk_lengths = lengths; g->n_chunk_lengths = 2);

        REFUSED(COMPRESS, INVALID_ARGUMENT, "compress.groups[1].score_kind", NULL,
                g->score_kind = (Chunkkv__V1__ScoreKind)2);
        REFUSED(COMPRESS, INVALID_ARGUMENT, "compress.groups[0].scores_in",
                "scorer given selects by the caller's scores: send scores_in, or ask for another scorer",
                policies[1].scorer = CHUNKKV__V1__SCORER__SCORER_GIVEN);
        REFUSED(COMPRESS, INVALID_ARGUMENT, "compress.groups[1].scores_out", "must be a multiple of 4, is 5",
                g->scores_out = &slices[1];
                slices[1].size = 5);
#undef RUNS
}
END_TEST

#define POLICY "compress.groups[0].policies[1]."

START_TEST(policy_numbers) {
        Chunkkv__V1__Policy *p = &policies[1];

#define BOUND(name, most) do { \
        ACCEPTED(COMPRESS, p->name = (most)); \
        REFUSED(COMPRESS, OUT_OF_RANGE, POLICY #name, NULL, p->name = (most) + 1); \
} while (0)
        BOUND(layer_first, 65535);
        BOUND(window, 256);
        BOUND(chunk, 1024);
        BOUND(reuse, 65536);
        BOUND(align, 1024);
        BOUND(spike_keep, 1023);
        BOUND(page, 1024);
        BOUND(heavy, 1000000);
        BOUND(recent_part, 1000000);
        BOUND(vote_rows, 256);
        BOUND(pool_size, 31);
#undef BOUND
        REFUSED(COMPRESS, OUT_OF_RANGE, POLICY "window", "must be 1 to 256, is 257", p->window = 257);
        REFUSED(COMPRESS, INVALID_ARGUMENT, POLICY "pool_size", "must be odd, is 30", p->pool_size = 30);
        ACCEPTED(COMPRESS, p->sinks = COUNT(1024); p->contrast_first = p->contrast_end = COUNT(256));
        REFUSED(COMPRESS, OUT_OF_RANGE, POLICY "sinks", "must be 0 to 1024, is 1025", p->sinks = COUNT(1025));
        REFUSED(COMPRESS, OUT_OF_RANGE, POLICY "contrast_first", NULL, p->contrast_first = COUNT(257));
        REFUSED(COMPRESS, OUT_OF_RANGE, POLICY "contrast_end", NULL, p->contrast_end = COUNT(257));
        ACCEPTED(COMPRESS, p->scale = 1e300);
        REFUSED(COMPRESS, INVALID_ARGUMENT, POLICY "scale", "must be a finite number, at least 0",
                p->scale = (double)NAN);
        REFUSED(COMPRESS, INVALID_ARGUMENT, POLICY "scale", NULL, p->scale = -1e-300);
        REFUSED(COMPRESS, INVALID_ARGUMENT, POLICY "softcap", NULL, p->softcap = (double)INFINITY);
        REFUSED(COMPRESS, INVALID_ARGUMENT, POLICY "layer_first", "must be strictly ascending at entry 1",
                p->layer_first = 0);
        ACCEPTED(COMPRESS, policies[0].layer_first = 4);
        REFUSED(COMPRESS, INVALID_ARGUMENT, POLICY "layer_first", NULL, policies[0].layer_first = 5);
}
END_TEST

START_TEST(policy_enums) {
        Chunkkv__V1__Policy *p = &policies[1];

#define BOUND(name, Type, most) do { \
        ACCEPTED(COMPRESS, p->name = (Chunkkv__V1__##Type)(most)); \
        REFUSED(COMPRESS, INVALID_ARGUMENT, POLICY #name, NULL, p->name = (Chunkkv__V1__##Type)((most) + 1)); \
} while (0)
        BOUND(profile, Profile, 4);
        BOUND(pool, Pool, 4);
        BOUND(norm, Norm, 3);
        BOUND(heads, Heads, 3);
        BOUND(value_weight, ValueWeight, 2);
        BOUND(unit_reduce, UnitReduce, 3);
        BOUND(layers, Layers, 2);
        BOUND(fill, Fill, 3);
        BOUND(tight, Tight, 2);
        BOUND(join, Join, 2);
        BOUND(group_heads, GroupHeads, 3);
        BOUND(window_reduce, WindowReduce, 2);
        BOUND(layer_reduce, LayerReduce, 2);
#undef BOUND
        ACCEPTED(COMPRESS, p->scorer = CHUNKKV__V1__SCORER__SCORER_GIVEN; jobs[0].scores_in = &slices[1]);
        REFUSED(COMPRESS, INVALID_ARGUMENT, POLICY "scorer", NULL, p->scorer = (Chunkkv__V1__Scorer)9);
}
END_TEST

START_TEST(policy_combinations) {
        Chunkkv__V1__Policy *p = &policies[1], *many[65];

        ACCEPTED(COMPRESS, p->pool = CHUNKKV__V1__POOL__POOL_LEAK);
        ACCEPTED(COMPRESS, p->pool = CHUNKKV__V1__POOL__POOL_LEAK; numbers[0] = 60; numbers[1] = 4;
                 jobs[0].chunk_lengths = numbers; jobs[0].n_chunk_lengths = 2);
        REFUSED(COMPRESS, INVALID_ARGUMENT, "compress.groups[0].chunk_lengths", NULL, numbers[0] = 60; numbers[1] = 4;
                jobs[0].chunk_lengths = numbers; jobs[0].n_chunk_lengths = 2);

        REFUSED(COMPRESS, INVALID_ARGUMENT, POLICY "selector",
                "page moves nothing, whole blocks are freed: ask for PLAN, or for selector chunk",
                p->selector = CHUNKKV__V1__SELECTOR__SELECTOR_PAGE);
        ACCEPTED(COMPRESS, p->selector = CHUNKKV__V1__SELECTOR__SELECTOR_PAGE;
                 compress.mode = CHUNKKV__V1__MODE__MODE_PLAN);
        REFUSED(COMPRESS, INVALID_ARGUMENT, POLICY "selector", "has no value numbered 8",
                p->selector = (Chunkkv__V1__Selector)8);
        for (size_t i = 0; i < CKV_ARRAY_SIZE(many); i++)
                many[i] = p;
        REFUSED(COMPRESS, OUT_OF_RANGE, "compress.groups[0].policies", "must have 0 to 64 entries, has 65",
                jobs[0].policies = many;
                jobs[0].n_policies = 65);
        ACCEPTED(COMPRESS, jobs[0].n_policies = jobs[1].n_policies = 0);
}
END_TEST

/* What is allocated by mistake would be found by a sanitizer; what is over the budget must be refused. */
START_TEST(message_parts) {
        REFUSED(REGISTER_CACHE, BAD_MESSAGE, "", NULL, limits.message_parts = 10;
                request.request_id = request.generation = 0);
        ACCEPTED(REGISTER_CACHE, limits.message_parts = 30);
}
END_TEST

int main(void) {
        Suite *suite = suite_create("gate_refusals");
        TCase *tcase = tcase_create("refusals");
        SRunner *runner;
        int failed;

        tcase_add_test(tcase, envelope_form);
        tcase_add_test(tcase, traceparent);
        tcase_add_test(tcase, deadline);
        tcase_add_test(tcase, form_before_values);
        tcase_add_test(tcase, unknown_fields_64_and_65);
        tcase_add_test(tcase, unknown_fields_in_all_messages_together);
        tcase_add_test(tcase, targets_and_ids);
        tcase_add_test(tcase, hello_values);
        tcase_add_test(tcase, region_values);
        tcase_add_test(tcase, cache_groups);
        tcase_add_test(tcase, cache_planes);
        tcase_add_test(tcase, compress_job);
        tcase_add_test(tcase, compress_queries);
        tcase_add_test(tcase, group_numbers);
        tcase_add_test(tcase, group_tables);
        tcase_add_test(tcase, group_lists);
        tcase_add_test(tcase, policy_numbers);
        tcase_add_test(tcase, policy_enums);
        tcase_add_test(tcase, policy_combinations);
        tcase_add_test(tcase, message_parts);
        suite_add_tcase(suite, tcase);
        runner = srunner_create(suite);
        srunner_run_all(runner, CK_NORMAL);
        failed = srunner_ntests_failed(runner);
        srunner_free(runner);
        return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
