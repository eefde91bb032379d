/*
 * What the gate makes of good requests: every field arrives in the record or
 * its attachment; and the conformance vectors of the protocol.
 */
#include "tests/support_requests.h"

#include "base/clock.h"
#include "base/macros.h"

#include <check.h>
#include <string.h>

static const struct ckv_record_head *head = &decoded.record.head;

START_TEST(every_kind_has_its_type) {
        for (int kind = CHUNKKV__V1__REQUEST__BODY_HELLO; kind <= CHUNKKV__V1__REQUEST__BODY_REPAIR; kind++) {
                requests_reset((Chunkkv__V1__Request__BodyCase)kind);
                ck_assert_int_eq(requests_decode(), 0);
                ck_assert_uint_eq(head->type, CKV_RECORD_HELLO + kind - CHUNKKV__V1__REQUEST__BODY_HELLO);
                ck_assert_uint_eq(head->request_id, 1234);
                ck_assert_uint_eq(head->generation, 5678);
                ck_assert_uint_eq(head->deadline_ns, NOW_NS + CKV_NSEC_PER_SEC);
                ck_assert_uint_eq(head->boot_id[15], kind == CHUNKKV__V1__REQUEST__BODY_HELLO ? 0 : 0xb0);
                ck_assert_uint_eq(head->token[15], kind == CHUNKKV__V1__REQUEST__BODY_HELLO ? 0 : 0xb0);
                ck_assert_uint_eq(head->flags, 0);
                /* what is the link's and the loop's is still empty */
                ck_assert_uint_eq(head->magic, 0);
                ck_assert_uint_eq(head->connection, 0);
                ck_assert_uint_eq(head->ring_bytes, 0);
        }
}
END_TEST

START_TEST(single_numbers) {
        const struct ckv_record *record = &decoded.record;

        ACCEPTED(UNREGISTER_REGION, );
        ck_assert_uint_eq(record->body.id.id, 44);
        ACCEPTED(UNREGISTER_CACHE, );
        ck_assert_uint_eq(record->body.id.id, 45);
        ACCEPTED(COMMIT, );
        ck_assert_uint_eq(record->body.target.target_request_id, 41);
        ACCEPTED(CANCEL, );
        ck_assert_uint_eq(record->body.target.target_request_id, 42);
        ACCEPTED(GET_STATUS, request.get_status->target_request_id = INT64_MAX);
        ck_assert_uint_eq(record->body.target.target_request_id, INT64_MAX);
        ACCEPTED(GET_STATUS, request.get_status->target_request_id = 0);
        ck_assert_uint_eq(decoded.attachment_bytes, 0);
}
END_TEST

START_TEST(hello_fields) {
        const struct ckv_record_hello *record = &decoded.record.body.hello;
        static const uint8_t needs[32] = { CHUNKKV__V1__CAPABILITY__CAP_MEMFD };

        ACCEPTED(HELLO, hello.minor_min = 2);
        ck_assert_uint_eq(record->minor_min, 2);
        ck_assert_uint_eq(record->minor_max, 3);
        ck_assert_uint_eq(record->now_ns, 5);
        ck_assert_uint_eq(record->has_attach_token, 0);
        ck_assert_uint_eq(record->needs_count, 1);
        ck_assert_mem_eq(record->needs, needs, sizeof(needs));
        ACCEPTED(HELLO, hello.attach_token = ((ProtobufCBinaryData){ 16, bytes_b0 }));
        ck_assert_uint_eq(record->has_attach_token, 1);
        ck_assert_mem_eq(record->attach_token, bytes_b0, 16);
        ACCEPTED(HELLO, hello.n_needs = 32);
        ck_assert_uint_eq(record->needs[31], CHUNKKV__V1__CAPABILITY__CAP_MEMFD);
}
END_TEST

START_TEST(region_of_each_source) {
        static const uint8_t digits[16] = { 0x01, 0x23, 0x45, 0x67, 0x89, 0xab, 0xcd, 0xef,
                                            0x01, 0x23, 0x45, 0x67, 0x89, 0xab, 0xcd, 0xef };
        static char name[] = "/chunkkv-1000-0123456789abcdef0123456789abcdef";
        const struct ckv_record_region *record = &decoded.record.body.region;

        ACCEPTED(REGISTER_REGION, );
        ck_assert_uint_eq(record->source, CKV_SOURCE_CUDA_IPC);
        ck_assert_uint_eq(record->access, 2);
        ck_assert_uint_eq(record->offset, 4096);
        ck_assert_uint_eq(record->size, 65536);
        ck_assert_uint_eq(record->buffer_id, 77);
        ck_assert_uint_eq(record->alloc_size, 1 << 20);
        ck_assert_uint_eq(record->has_device_uuid, 1);
        ck_assert_mem_eq(record->device_uuid, bytes_b0, 16);
        ck_assert_mem_eq(record->handle.cuda_handle, bytes_b0, 64);
        ck_assert_uint_eq(decoded.attachment_bytes, 0);

        ACCEPTED(REGISTER_REGION, region.source_case = CHUNKKV__V1__REGISTER_REGION__SOURCE_MEMFD_TOKEN;
                 region.memfd_token = ((ProtobufCBinaryData){ 16, bytes_b0 }); region.device_uuid.len = 0);
        ck_assert_uint_eq(record->source, CKV_SOURCE_MEMFD);
        ck_assert_uint_eq(record->has_device_uuid, 0);
        ck_assert_uint_eq(record->alloc_size, 0);
        ck_assert_mem_eq(record->handle.memfd_token, bytes_b0, 16);
        ck_assert_uint_eq(record->handle.cuda_handle[16], 0);

        ACCEPTED(REGISTER_REGION, region.source_case = CHUNKKV__V1__REGISTER_REGION__SOURCE_VMM_TOKENS;
                 region.vmm_tokens = ((ProtobufCBinaryData){ 16 * 8192, bytes_b0 }));
        ck_assert_uint_eq(record->source, CKV_SOURCE_CUDA_VMM);
        ck_assert_uint_eq(record->token_count, 8192);
        ck_assert_uint_eq(decoded.attachment_bytes, 16 * 8192);
        ck_assert_mem_eq(decoded.attachment, bytes_b0, 16 * 8192);

        ACCEPTED(REGISTER_REGION, region.source_case = CHUNKKV__V1__REGISTER_REGION__SOURCE_POSIX_SHM;
                 region.posix_shm = name);
        ck_assert_uint_eq(record->source, CKV_SOURCE_POSIX_SHM);
        ck_assert_uint_eq(record->handle.posix_shm.uid, 1000);
        ck_assert_mem_eq(record->handle.posix_shm.hex, digits, sizeof(digits));
}
END_TEST

START_TEST(cache_attachment) {
        const struct ckv_record_cache *record = &decoded.record.body.cache;
        const struct ckv_record_cache_group *groups = (const void *)decoded.attachment;
        const struct ckv_record_plane *plane;
        const uint32_t *words;

        ACCEPTED(REGISTER_CACHE, );
        groups = (const void *)decoded.attachment;
        plane = (const void *)(groups + 2);
        words = (const void *)(plane + 2);
        ck_assert_uint_eq(record->group_count, 2);
        ck_assert_uint_eq(record->plane_count, 2);
        ck_assert_uint_eq(record->layer_word_count, 3);
        ck_assert_uint_eq(decoded.attachment_bytes, 2 * sizeof(*groups) + 2 * sizeof(*plane) + 3 * sizeof(*words));
        ck_assert_mem_eq(words, ((const uint32_t[]){ 3, 5, 4 }), 12);
        for (uint32_t i = 0; i < 2; i++) {
                const struct ckv_record_cache_group group = { 2 - i, 2, 8, 64 + i, 32 + i, 16 + i, 1000 + i, 0 };
                const struct ckv_record_plane want = {
                        .kind = (uint16_t)(1 + i), .dtype = 3, .layer_first = 3, .layer_count = 4, .region_id = 9 + i,
                        .offset = 100 + i, .layer_stride = 200 + i, .block_stride = 300 + i, .head_stride = 400 + i,
                        .token_tile = i ? 1 : 8, .token_outer = i ? 0 : 500, .token_inner = i ? 0 : 600,
                        .dim_tile = 1, .dim_outer = i ? 0 : 501, .dim_inner = i ? 0 : 601, .scale = i ? 1.0f : 0.5f,
                };

                ck_assert_mem_eq(&groups[i], &group, sizeof(group));
                ck_assert_mem_eq(&plane[i], &want, sizeof(want));
        }
}
END_TEST

/* every list and slice of a Compress at once; the fields that exclude each other are in other tests */
static void fill_compress(void) {
        static uint32_t chunk_lengths[2] = { 60, 4 };
        static uint32_t position_runs[4] = { 3, 60, 7, 4 };

        jobs[0].position_runs = position_runs;
        jobs[0].n_position_runs = 4;
        jobs[0].chunk_lengths = chunk_lengths;
        jobs[0].n_chunk_lengths = 2;
        policies[1].selector = CHUNKKV__V1__SELECTOR__SELECTOR_CHUNK_AT;
        jobs[0].score_kind = CHUNKKV__V1__SCORE_KIND__SCORE_ROWS;
        jobs[0].scores_out = &slices[1];
        jobs[0].scores_in = &slices[2];
        jobs[1].keep_ratio = 0;
        jobs[1].given_runs = runs;
        jobs[1].n_given_runs = 4;
        queries.lse = &slices[3];
        queries.sink_logits = &slices[4];
        compress.hold = compress.single_pass = compress.want_kept_mass = 1;
        compress.control_slot = 8;
        compress.control_use = UINT32_MAX;
        compress.reply_form = CHUNKKV__V1__REPLY_FORM__REPLY_IN_REGION;
        compress.reply_to = &slices[5];
        compress.mode = CHUNKKV__V1__MODE__MODE_COPY_OUT;
        jobs[0].destination = &destination;
        jobs[1].destination = &destination;
}

#define SLICE(i) { .region_id = 20 + (i), .offset = 1000 + 4 * (i), .size = 4096 + 8 * (i) }

static void check_compress(size_t at) {
        const struct ckv_record_compress body = {
                .cache_id = 6,
                .mode = 3,
                .hold = 1,
                .reply_form = 2,
                .single_pass = 1,
                .want_kept_mass = 1,
                .control_slot = at ? 2 : 8,
                .control_use = UINT32_MAX,
                .logical_len = 90,
                .group_count = 2,
                .policy_count = 3,
                .query_layer_count = 2,
                .query_dtype = 3,
                .query_rows = 32,
                .query_ring_start = 31,
                .query_last_row = 31,
                .has_queries = 1,
                .word_count = 26,
                .query_layer_stride = 11,
                .query_head_stride = 12,
                .query_row_stride = 13,
                .queries = SLICE(0),
                .lse = SLICE(3),
                .sink_logits = SLICE(4),
                .reply_to = SLICE(5),
        };
        const struct ckv_record_group want[2] = {
                { .group = 0,
                  .physical_len = 64,
                  .table_form = 1,
                  .table_count = 4,
                  .destination_form = 1,
                  .destination_count = 1,
                  .policy_count = 2,
                  .keep_ratio = 300000,
                  .max_tokens = 40,
                  .protect_prefix = 5,
                  .span_count = 2,
                  .position_run_count = 4,
                  .chunk_length_count = 2,
                  .score_kind = 1,
                  .scores_out = SLICE(1),
                  .scores_in = SLICE(2) },
                { .group = 1,
                  .physical_len = 32,
                  .table_form = 4,
                  .table_count = 4,
                  .destination_form = 1,
                  .destination_count = 1,
                  .policy_count = 1,
                  .given_run_count = 4 },
        };
        static const uint32_t want_words[26] = { 3, 5, /* group 0 */ 7, 3, 9, 1, 100, 0, 1, 10, 2, 3, 60, 7, 4, 60, 4,
                                                 /* group 1 */ 100, 16, 300, 16, 100, 0, 4, 16, 10 };
        const struct ckv_record_group *groups = (const void *)(decoded.attachment + at);
        const struct ckv_record_policy *of_groups = (const void *)(groups + 2);
        const uint32_t *words = (const void *)(of_groups + 3);

        ck_assert_uint_eq(decoded.attachment_bytes, at + sizeof(want) + 3 * sizeof(*of_groups) + sizeof(want_words));
        ck_assert_mem_eq(&decoded.record.body.compress, &body, sizeof(body));
        ck_assert_mem_eq(groups, want, sizeof(want));
        ck_assert_mem_eq(words, want_words, sizeof(want_words));
        ck_assert_uint_eq(of_groups[0].layer_first, 0);
        ck_assert_uint_eq(of_groups[1].layer_first, 5);
        ck_assert_uint_eq(of_groups[1].selector, 2);
        ck_assert_uint_eq(of_groups[2].layer_first, 0);
}

START_TEST(compress_attachment) {
        ACCEPTED(COMPRESS, fill_compress());
        check_compress(0);
}
END_TEST

START_TEST(repair_attachment) {
        const struct ckv_record_repair want = { .target_request_id = 43 };

        ACCEPTED(REPAIR, fill_compress());
        check_compress(sizeof(want));
        ck_assert_mem_eq(decoded.attachment, &want, sizeof(want));
}
END_TEST

START_TEST(table_in_a_region) {
        const struct ckv_record_group *group;

        ACCEPTED(COMPRESS, tables[0].n_numbers = 0; tables[0].from = &slices[1]);
        group = (const void *)decoded.attachment;
        ck_assert_uint_eq(group->table_form, 1);
        ck_assert_uint_eq(group->table_count, 0);
        ck_assert_uint_eq(group->table_from.region_id, 21);
        ck_assert_uint_eq(group->table_from.offset, 1004);
        ck_assert_uint_eq(group->table_from.size, 4104);
}
END_TEST

START_TEST(policy_fields) {
        Chunkkv__V1__Count counts[6];
        Chunkkv__V1__Policy *p = &policies[0];
        const struct ckv_record_policy *record;
        static const struct ckv_record_policy want = {
                .profile = 3,
                .scorer = 1,
                .selector = 1,
                .pool = 3,
                .norm = 3,
                .heads = 2,
                .group_heads = 2,
                .value_weight = 1,
                .unit_reduce = 1,
                .layers = 2,
                .fill = 1,
                .tight = 2,
                .join = 2,
                .window_reduce = 2,
                .layer_reduce = 2,
                .given = 63,
                .layer_first = 3,
                .window = 256,
                .chunk = 1024,
                .sinks = 0,
                .recent = 1,
                .min_tokens = 2,
                .pool_size = 31,
                .reuse = 4,
                .align = 1023,
                .sliding = 4096,
                .spike_keep = 5,
                .page = 6,
                .beta = 7,
                .heavy = 8,
                .recent_part = 9,
                .vote_rows = 10,
                .contrast_first = 3,
                .contrast_end = 4,
                .mute = 5,
                .scale = 0.125,
                .softcap = 50,
        };

        requests_reset(CHUNKKV__V1__REQUEST__BODY_COMPRESS);
        for (uint32_t i = 0; i < 6; i++) {
                chunkkv__v1__count__init(&counts[i]);
                counts[i].value = i;
        }
        p->profile = CHUNKKV__V1__PROFILE__PROFILE_RETRIEVAL;
        p->scorer = CHUNKKV__V1__SCORER__SCORER_WINDOW;
        p->selector = CHUNKKV__V1__SELECTOR__SELECTOR_CHUNK;
        p->layer_first = 3;
        p->window = 256;
        p->chunk = 1024;
        p->sinks = &counts[0];
        p->recent = &counts[1];
        p->min_tokens = &counts[2];
        p->pool = CHUNKKV__V1__POOL__POOL_MAX;
        p->pool_size = 31;
        p->norm = CHUNKKV__V1__NORM__NORM_SEEN;
        p->heads = CHUNKKV__V1__HEADS__HEADS_MAX;
        p->value_weight = CHUNKKV__V1__VALUE_WEIGHT__WEIGHT_L1;
        p->unit_reduce = CHUNKKV__V1__UNIT_REDUCE__UNIT_MEAN;
        p->layers = CHUNKKV__V1__LAYERS__LAYERS_ONE;
        p->reuse = 4;
        p->fill = CHUNKKV__V1__FILL__FILL_LEAD;
        p->tight = CHUNKKV__V1__TIGHT__TIGHT_REFUSE;
        p->align = 1023;
        p->join = CHUNKKV__V1__JOIN__JOIN_UNION;
        p->scale = 0.125;
        p->softcap = 50;
        p->sliding = 4096;
        p->spike_keep = 5;
        p->page = 6;
        p->beta = 7;
        p->heavy = 8;
        p->recent_part = 9;
        p->group_heads = CHUNKKV__V1__GROUP_HEADS__GROUP_MAX;
        p->window_reduce = CHUNKKV__V1__WINDOW_REDUCE__ROWS_MAX;
        p->vote_rows = 10;
        p->contrast_first = &counts[3];
        p->contrast_end = &counts[4];
        p->mute = &counts[5];
        p->layer_reduce = CHUNKKV__V1__LAYER_REDUCE__LAYER_TOP4;
        ck_assert_int_eq(requests_decode(), 0);
        record = (const void *)(decoded.attachment + 2 * sizeof(struct ckv_record_group));
        ck_assert_mem_eq(record, &want, sizeof(want));
}
END_TEST

/* ---- tests/vectors of the protocol, section 11 */

#define DECODE(literal) requests_decode_bytes((literal), sizeof(literal) - 1)

START_TEST(vector_ping_without_boot_id) {
        char text[CKV_STATUS_FIELD_MAX + 1];

        requests_reset(CHUNKKV__V1__REQUEST__BODY_PING);
        ck_assert_int_eq(DECODE("\x08\x07\x8a\x01\x00"), CKV_DECODE_E_REFUSED);
        ck_assert_uint_eq(refusal.code, CKV_CODE_BAD_MESSAGE);
        ck_assert_uint_eq(refusal.radius, CKV_RADIUS_REQUEST);
        ckv_status_field_format(&refusal, text);
        ck_assert_str_eq(text, "boot_id");
        ck_assert_uint_eq(head->request_id, 7);
}
END_TEST

START_TEST(vector_two_bodies_last_wins) {
        /* request 7 with ids, Ping, then Cancel 299 */
        static const uint8_t message[] = "\x08\x07"
                                         "\x22\x10"
                                         "0123456789abcdef"
                                         "\x2a\x10"
                                         "0123456789abcdef"
                                         "\x8a\x01\x00"
                                         "\xd2\x01\x03\x08\xab\x02";

        requests_reset(CHUNKKV__V1__REQUEST__BODY_PING);
        ck_assert_int_eq(requests_decode_bytes(message, sizeof(message) - 1), 0);
        ck_assert_uint_eq(head->type, CKV_RECORD_CANCEL);
        ck_assert_uint_eq(decoded.record.body.target.target_request_id, 299);
}
END_TEST

START_TEST(vector_table_packed_and_not) {
        static const char *const forms[] = { "\x08\x01\x12\x0c\x01\x00\x00\x00\x00\x01\x00\x00\xff\xff\xff\xff",
                                             "\x08\x01\x15\x01\x00\x00\x00\x15\x00\x01\x00\x00\x15\xff\xff\xff\xff" };
        static const size_t sizes[] = { 16, 17 };

        for (size_t i = 0; i < 2; i++) {
                Chunkkv__V1__Table *table = chunkkv__v1__table__unpack(NULL, sizes[i], (const uint8_t *)forms[i]);

                ck_assert_ptr_nonnull(table);
                ACCEPTED(COMPRESS, jobs[0].table = table);
                ck_assert_mem_eq(decoded.attachment + 2 * sizeof(struct ckv_record_group) +
                                         3 * sizeof(struct ckv_record_policy) + 8,
                                 ((const uint32_t[]){ 1, 256, UINT32_MAX }), 12);
                chunkkv__v1__table__free_unpacked(table, NULL);
        }
}
END_TEST

START_TEST(vector_empty_submessages) {
        static uint8_t message[262144];

        for (size_t i = 0; i < sizeof(message); i += 2)
                memcpy(message + i, "\x22\x00", 2);
        requests_reset(CHUNKKV__V1__REQUEST__BODY_PING);
        ck_assert_int_eq(requests_decode_bytes(message, sizeof(message)), CKV_DECODE_E_REFUSED);
        ck_assert_uint_eq(refusal.code, CKV_CODE_BAD_MESSAGE);
        ck_assert_uint_eq(refusal.detail, CKV_D_NOT_DECODABLE);
}
END_TEST

START_TEST(garbage_is_refused_not_crashed_on) {
        uint32_t seed = 12345;

        requests_reset(CHUNKKV__V1__REQUEST__BODY_COMPRESS);
        for (unsigned trial = 0; trial < 20000; trial++) {
                uint8_t packed[2048];
                size_t bytes;

                requests_reset((Chunkkv__V1__Request__BodyCase)(CHUNKKV__V1__REQUEST__BODY_HELLO + trial % 12));
                bytes = chunkkv__v1__request__get_packed_size(&request);
                ck_assert_uint_le(bytes, sizeof(packed));
                (void)chunkkv__v1__request__pack(&request, packed);
                for (unsigned flips = trial % 7; flips > 0; flips--) {
                        seed = seed * 1664525 + 1013904223;
                        packed[(seed >> 8) % bytes] ^= (uint8_t)(1u << (seed >> 29));
                }
                seed = seed * 1664525 + 1013904223;
                if (trial % 5 == 0)
                        bytes = (seed >> 8) % bytes;
                if (requests_decode_bytes(packed, bytes))
                        ck_assert_uint_ne(refusal.code, CKV_CODE_OK);
        }
}
END_TEST

int main(void) {
        Suite *suite = suite_create("gate_decode");
        TCase *tcase = tcase_create("decode");
        SRunner *runner;
        int failed;

        tcase_add_test(tcase, every_kind_has_its_type);
        tcase_add_test(tcase, single_numbers);
        tcase_add_test(tcase, hello_fields);
        tcase_add_test(tcase, region_of_each_source);
        tcase_add_test(tcase, cache_attachment);
        tcase_add_test(tcase, compress_attachment);
        tcase_add_test(tcase, repair_attachment);
        tcase_add_test(tcase, table_in_a_region);
        tcase_add_test(tcase, policy_fields);
        tcase_add_test(tcase, vector_ping_without_boot_id);
        tcase_add_test(tcase, vector_two_bodies_last_wins);
        tcase_add_test(tcase, vector_table_packed_and_not);
        tcase_add_test(tcase, vector_empty_submessages);
        tcase_add_test(tcase, garbage_is_refused_not_crashed_on);
        suite_add_tcase(suite, tcase);
        runner = srunner_create(suite);
        srunner_run_all(runner, CK_NORMAL);
        failed = srunner_ntests_failed(runner);
        srunner_free(runner);
        return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
