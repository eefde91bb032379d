/*
 * The globals behind REFUSED() and ACCEPTED(), and one decoder run.
 */
#include "tests/support_requests.h"

#include "base/clock.h"
#include "base/macros.h"

#include <check.h>
#include <string.h>

Chunkkv__V1__Request request;
Chunkkv__V1__Hello hello;
Chunkkv__V1__RegisterRegion region;
Chunkkv__V1__CudaIpc ipc;
Chunkkv__V1__RegisterCache cache;
Chunkkv__V1__LayerGroup layer_groups[2];
Chunkkv__V1__Plane planes[2];
Chunkkv__V1__Axis axes[2];
Chunkkv__V1__Compress compress;
Chunkkv__V1__GroupJob jobs[2];
Chunkkv__V1__Table tables[2], destination;
Chunkkv__V1__Policy policies[3];
Chunkkv__V1__Queries queries;
Chunkkv__V1__Slice slices[6];
Chunkkv__V1__Span spans[2];
Chunkkv__V1__Commit commit_body;
Chunkkv__V1__Cancel cancel_body;
Chunkkv__V1__Repair repair;
uint8_t bytes_b0[1 << 18];
uint32_t query_layers[2], numbers[4], runs[4];
struct ckv_outgoing decoded;
struct ckv_record_status refusal;
struct ckv_record_limits limits;

static uint32_t layers_of_group[2][2];
static uint32_t token_runs[4];

static void reset_region(void) {
        chunkkv__v1__cuda_ipc__init(&ipc);
        ipc.handle = (ProtobufCBinaryData){ 64, bytes_b0 };
        ipc.alloc_size = 1 << 20;
        chunkkv__v1__register_region__init(&region);
        region.source_case = CHUNKKV__V1__REGISTER_REGION__SOURCE_CUDA_IPC;
        region.cuda_ipc = &ipc;
        region.offset = 4096;
        region.size = 65536;
        region.device_uuid = (ProtobufCBinaryData){ 16, bytes_b0 };
        region.access = CHUNKKV__V1__ACCESS__ACCESS_READ_WRITE;
        region.buffer_id = 77;
}

static void reset_cache(void) {
        static Chunkkv__V1__LayerGroup *group_list[2];
        static Chunkkv__V1__Plane *plane_list[2];

        chunkkv__v1__register_cache__init(&cache);
        for (uint32_t i = 0; i < 2; i++) {
                group_list[i] = &layer_groups[i];
                plane_list[i] = &planes[i];
                chunkkv__v1__layer_group__init(&layer_groups[i]);
                layer_groups[i].layers = layers_of_group[i];
                layer_groups[i].n_layers = 2 - i;
                layer_groups[i].kv_heads = 2;
                layer_groups[i].q_heads = 8;
                layer_groups[i].head_dim_k = 64 + i;
                layer_groups[i].head_dim_v = 32 + i;
                layer_groups[i].tokens_per_block = 16 + i;
                layer_groups[i].num_blocks = 1000 + i;
                chunkkv__v1__plane__init(&planes[i]);
                planes[i].kind = i ? CHUNKKV__V1__PLANE_KIND__PLANE_V : CHUNKKV__V1__PLANE_KIND__PLANE_K;
                planes[i].dtype = CHUNKKV__V1__DTYPE__DTYPE_BF16;
                planes[i].layer_first = 3;
                planes[i].layer_count = 4;
                planes[i].region_id = 9 + i;
                planes[i].offset = 100 + i;
                planes[i].layer_stride = 200 + i;
                planes[i].block_stride = 300 + i;
                planes[i].head_stride = 400 + i;
                chunkkv__v1__axis__init(&axes[i]);
                axes[i].tile = 8 - 8 * i;
                axes[i].outer = 500 + i;
                axes[i].inner = 600 + i;
        }
        memcpy(layers_of_group, (const uint32_t[2][2]){ { 3, 5 }, { 4, 0 } }, sizeof(layers_of_group));
        planes[0].token = &axes[0];
        planes[0].dim = &axes[1];
        planes[0].scale = 0.5f;
        cache.groups = group_list;
        cache.n_groups = 2;
        cache.planes = plane_list;
        cache.n_planes = 2;
}

static void reset_jobs(void) {
        static Chunkkv__V1__Policy *policy_list[3] = { &policies[0], &policies[1], &policies[2] };
        static Chunkkv__V1__Span *span_list[2] = { &spans[0], &spans[1] };

        for (uint32_t i = 0; i < 3; i++)
                chunkkv__v1__policy__init(&policies[i]);
        policies[1].layer_first = 5;
        for (uint32_t i = 0; i < 2; i++) {
                chunkkv__v1__group_job__init(&jobs[i]);
                chunkkv__v1__table__init(&tables[i]);
                chunkkv__v1__span__init(&spans[i]);
                spans[i].first = 10 * i;
                spans[i].count = 1 + i;
                jobs[i].group = i;
                jobs[i].table = &tables[i];
                jobs[i].keep_ratio = 300000 + i;
        }
        memcpy(numbers, (const uint32_t[]){ 7, 3, 9, 1 }, sizeof(numbers));
        memcpy(token_runs, (const uint32_t[]){ 100, 16, 300, 16 }, sizeof(token_runs));
        memcpy(runs, (const uint32_t[]){ 0, 4, 16, 10 }, sizeof(runs));
        tables[0].form = CHUNKKV__V1__TABLE_FORM__TABLE_BLOCKS;
        tables[0].numbers = numbers;
        tables[0].n_numbers = 4;
        tables[1].form = CHUNKKV__V1__TABLE_FORM__TABLE_TOKEN_RUNS;
        tables[1].numbers = token_runs;
        tables[1].n_numbers = 4;
        chunkkv__v1__table__init(&destination);
        destination.form = CHUNKKV__V1__TABLE_FORM__TABLE_BLOCKS;
        destination.numbers = token_runs;
        destination.n_numbers = 1;
        jobs[0].physical_len = 64;
        jobs[0].policies = policy_list;
        jobs[0].n_policies = 2;
        jobs[0].protect = span_list;
        jobs[0].n_protect = 2;
        jobs[0].protect_prefix = 5;
        jobs[0].max_tokens = 40;
        jobs[1].physical_len = 32;
        jobs[1].policies = policy_list + 2;
        jobs[1].n_policies = 1;
}

static void reset_compress(void) {
        static Chunkkv__V1__GroupJob *job_list[2] = { &jobs[0], &jobs[1] };

        reset_jobs();
        for (uint32_t i = 0; i < CKV_ARRAY_SIZE(slices); i++) {
                chunkkv__v1__slice__init(&slices[i]);
                slices[i].region_id = 20 + i;
                slices[i].offset = 1000 + 4 * i;
                slices[i].size = 4096 + 8 * i;
        }
        memcpy(query_layers, (const uint32_t[]){ 3, 5 }, sizeof(query_layers));
        chunkkv__v1__queries__init(&queries);
        queries.data = &slices[0];
        queries.dtype = CHUNKKV__V1__DTYPE__DTYPE_BF16;
        queries.rows = 32;
        queries.ring_start = 31;
        queries.layer_stride = 11;
        queries.head_stride = 12;
        queries.row_stride = 13;
        queries.layers = query_layers;
        queries.n_layers = 2;
        queries.last_row = 31;
        chunkkv__v1__compress__init(&compress);
        compress.cache_id = 6;
        compress.mode = CHUNKKV__V1__MODE__MODE_IN_PLACE;
        compress.logical_len = 90;
        compress.groups = job_list;
        compress.n_groups = 2;
        compress.queries = &queries;
}

static void reset_bodies(void) {
        static Chunkkv__V1__Capability needs[64];
        static char name[] = "test/1";

        for (size_t i = 0; i < CKV_ARRAY_SIZE(needs); i++)
                needs[i] = CHUNKKV__V1__CAPABILITY__CAP_MEMFD;
        chunkkv__v1__hello__init(&hello);
        hello.minor_max = 3;
        hello.client = name;
        hello.now_ns = 5;
        hello.needs = needs;
        hello.n_needs = 1;
        reset_region();
        reset_cache();
        reset_compress();
        chunkkv__v1__commit__init(&commit_body);
        commit_body.target_request_id = 41;
        chunkkv__v1__cancel__init(&cancel_body);
        cancel_body.target_request_id = 42;
        chunkkv__v1__repair__init(&repair);
        repair.target_request_id = 43;
        repair.control_slot = 2;
        repair.job = &compress;
}

static void set_body(Chunkkv__V1__Request__BodyCase kind) {
        static Chunkkv__V1__Ping ping = CHUNKKV__V1__PING__INIT;
        static Chunkkv__V1__EndSession end_session = CHUNKKV__V1__END_SESSION__INIT;
        static Chunkkv__V1__GetStatus get_status = CHUNKKV__V1__GET_STATUS__INIT;
        static Chunkkv__V1__UnregisterRegion unregister_region = CHUNKKV__V1__UNREGISTER_REGION__INIT;
        static Chunkkv__V1__UnregisterCache unregister_cache = CHUNKKV__V1__UNREGISTER_CACHE__INIT;
        void *const bodies[] = { &hello, &ping, &get_status, &end_session, &region, &unregister_region,
                                 &cache, &unregister_cache, &compress, &commit_body, &cancel_body, &repair };

        unregister_region.region_id = 44;
        unregister_cache.cache_id = 45;
        request.body_case = kind;
        request.hello = bodies[kind - CHUNKKV__V1__REQUEST__BODY_HELLO];
}

void requests_reset(Chunkkv__V1__Request__BodyCase kind) {
        static uint8_t room[CKV_ATTACHMENT_MAX_BYTES];

        limits = (struct ckv_record_limits){ .request_bytes = 262144,
                                             .reply_bytes = 524288,
                                             .message_parts = 4096,
                                             .spans = 1024,
                                             .groups = 16,
                                             .planes = 1024,
                                             .rows = 1048576 };
        decoded.attachment = room;
        if (!bytes_b0[0])
                memset(bytes_b0, 0xb0, sizeof(bytes_b0));
        reset_bodies();
        chunkkv__v1__request__init(&request);
        request.request_id = 1234;
        request.generation = 5678;
        request.deadline_ns = NOW_NS + CKV_NSEC_PER_SEC;
        set_body(kind);
        if (kind != CHUNKKV__V1__REQUEST__BODY_HELLO)
                request.boot_id = request.session_token = (ProtobufCBinaryData){ 16, bytes_b0 };
}

int requests_decode_bytes(const void *message, size_t bytes) {
        return ckv_decode_request(&limits, NOW_NS, message, bytes, &decoded, &refusal);
}

int requests_decode(void) {
        size_t bytes = chunkkv__v1__request__get_packed_size(&request);
        _cleanup_free_ uint8_t *packed = malloc(bytes + 1);

        ck_assert_ptr_nonnull(packed);
        (void)chunkkv__v1__request__pack(&request, packed);
        return requests_decode_bytes(packed, bytes);
}

void requests_expect(enum ckv_code code, const char *field, const char *detail) {
        char text[CKV_STATUS_DETAIL_MAX + 1];

        ck_assert_msg(requests_decode() == CKV_DECODE_E_REFUSED, "%s: was not refused", field);
        ckv_status_field_format(&refusal, text);
        ck_assert_str_eq(text, field);
        ck_assert_str_eq(ckv_code_to_string(refusal.code), ckv_code_to_string(code));
        if (detail) {
                ckv_status_detail_format(&refusal, text);
                ck_assert_str_eq(text, detail);
        }
        ck_assert_uint_eq(decoded.record.head.request_id, request.request_id);
        ck_assert_uint_eq(decoded.record.head.generation, request.generation);
}
