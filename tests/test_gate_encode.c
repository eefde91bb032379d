/*
 * From records of the core to the bytes of a Response: every field of every
 * answer, rows from runs, replies that are too long, records that do not add
 * up.
 */
#include "daemon/gate/encode.h"

#include "base/macros.h"
#include "proto/chunkkv.pb-c.h"
#include "proto/status.h"

#include <check.h>
#include <stdio.h>
#include <string.h>

#define LIMIT_BYTES 524288

static struct ckv_record record;
static Chunkkv__V1__Response *response;

static void setup(void) {
        memset(&record, 0, sizeof(record));
        record.head.type = CKV_RECORD_RESULT;
        record.head.request_id = 7;
        record.head.generation = 9;
        memset(record.head.boot_id, 0xb0, 16);
}

static void release(void) {
        if (response)
                chunkkv__v1__response__free_unpacked(response, NULL);
        response = NULL;
}

/* unpack() - encode the record and decode it again as a client would. Return: as ckv_encode_answer(). */
static int unpack(const void *attachment, size_t bytes, uint64_t limit) {
        _cleanup_free_ void *reply = NULL;
        size_t reply_bytes = 0;
        int r;

        release();
        record.head.ring_bytes = (uint32_t)bytes;
        r = ckv_encode_answer(&record, bytes ? attachment : NULL, limit, &reply, &reply_bytes);
        if (r == 0) {
                response = chunkkv__v1__response__unpack(NULL, reply_bytes, reply);
                ck_assert_ptr_nonnull(response);
                ck_assert_uint_eq(response->request_id, 7);
                ck_assert_uint_eq(response->generation, 9);
                ck_assert_uint_eq(response->boot_id.len, 16);
                ck_assert_mem_eq(response->boot_id.data, record.head.boot_id, 16);
                ck_assert_ptr_nonnull(response->status);
                ck_assert_uint_le(reply_bytes, limit);
        }
        return r;
}

START_TEST(status_vector) {
        /* the vector of the protocol: Response 7, generation 9, INVALID_ARGUMENT, "compress.groups[0].table" */
        static const char want[] = "\x22\x1e\x08\x03\x10\x01\x22\x18" "compress.groups[0].table";
        struct ckv_record_status status;
        _cleanup_free_ void *reply = NULL;
        size_t bytes;

        ckv_status_set(&status, CKV_CODE_INVALID_ARGUMENT, CKV_F_GROUP_TABLE, CKV_D_NONE, 0, 0, 0);
        ck_assert_int_eq(ckv_encode_status(&record.head, &status, &reply, &bytes), 0);
        /* 08 07 10 09, then the boot id (1a 10 ...), then the status */
        ck_assert_uint_eq(bytes, 4 + 18 + sizeof(want) - 1);
        ck_assert_mem_eq(reply, "\x08\x07\x10\x09\x1a\x10", 6);
        ck_assert_mem_eq((const char *)reply + 22, want, sizeof(want) - 1);
}
END_TEST

START_TEST(status_fields) {
        struct ckv_record_status *status = &record.body.result.status;

        ckv_status_set(status, CKV_CODE_QUOTA, CKV_F_GROUP_TABLE_NUMBERS, CKV_D_QUOTA, 1, 2, 3);
        status->index[0] = 4;
        status->index[1] = 5;
        status->slot = 3;
        status->retry_after_ms = 250;
        status->driver_code = -12;
        status->cache = CKV_CACHE_TORN_REPAIRABLE;
        record.head.flags = CKV_RECORD_REPEATED_ANSWER;
        ck_assert_int_eq(unpack(NULL, 0, LIMIT_BYTES), 0);
        ck_assert_int_eq(response->status->code, CHUNKKV__V1__CODE__CODE_QUOTA);
        ck_assert_int_eq(response->status->radius, CHUNKKV__V1__RADIUS__RADIUS_REQUEST);
        ck_assert_int_eq(response->status->cache, CHUNKKV__V1__CACHE_STATE__CACHE_TORN_REPAIRABLE);
        ck_assert_str_eq(response->status->field, "compress.groups[4].table.numbers[5]");
        ck_assert_str_eq(response->status->detail, "1 of 2 are in use, 3 more were asked for");
        ck_assert_uint_eq(response->status->retry_after_ms, 250);
        ck_assert_int_eq(response->status->driver_code, -12);
        ck_assert_int_eq(response->status->slot, CHUNKKV__V1__SLOT__SLOT_REGIONS);
        ck_assert(response->repeated_answer);
        ck_assert_int_eq(response->body_case, CHUNKKV__V1__RESPONSE__BODY__NOT_SET);
}
END_TEST

START_TEST(welcome_fields) {
        struct ckv_record_welcome *w = &record.body.welcome;
        const Chunkkv__V1__Welcome *got;

        record.head.type = CKV_RECORD_WELCOME;
        *w = (struct ckv_record_welcome){ .minor = 1,
                                          .backend = 1,
                                          .now_ns = 2,
                                          .capabilities = 1 << 3 | 1 << 9,
                                          .request_bytes = 3,
                                          .reply_bytes = 4,
                                          .in_flight = 5,
                                          .regions = 6,
                                          .rows = 7,
                                          .planes = 8,
                                          .groups = 9,
                                          .spans = 10,
                                          .hold_ms = 11,
                                          .control_slots = 12,
                                          .message_parts = 13,
                                          .mapped_bytes = 14 };
        memset(w->session_token, 0x70, 16);
        ck_assert_int_eq(unpack("8 cores", 7, LIMIT_BYTES), 0);
        ck_assert_int_eq(response->body_case, CHUNKKV__V1__RESPONSE__BODY_WELCOME);
        got = response->welcome;
        ck_assert_uint_eq(got->minor, 1);
        ck_assert_uint_eq(got->session_token.len, 16);
        ck_assert_mem_eq(got->session_token.data, w->session_token, 16);
        ck_assert_uint_eq(got->now_ns, 2);
        ck_assert_uint_eq(got->n_capabilities, 2);
        ck_assert_int_eq(got->capabilities[0], CHUNKKV__V1__CAPABILITY__CAP_MEMFD);
        ck_assert_int_eq(got->capabilities[1], CHUNKKV__V1__CAPABILITY__CAP_TABLE_IN_REGION);
        ck_assert_uint_eq(got->limits->request_bytes, 3);
        ck_assert_uint_eq(got->limits->reply_bytes, 4);
        ck_assert_uint_eq(got->limits->in_flight, 5);
        ck_assert_uint_eq(got->limits->regions, 6);
        ck_assert_uint_eq(got->limits->rows, 7);
        ck_assert_uint_eq(got->limits->planes, 8);
        ck_assert_uint_eq(got->limits->groups, 9);
        ck_assert_uint_eq(got->limits->spans, 10);
        ck_assert_uint_eq(got->limits->hold_ms, 11);
        ck_assert_uint_eq(got->limits->control_slots, 12);
        ck_assert_uint_eq(got->limits->message_parts, 13);
        ck_assert_uint_eq(got->limits->mapped_bytes, 14);
        ck_assert_int_eq(got->device->backend, CHUNKKV__V1__BACKEND__BACKEND_CPU);
        ck_assert_uint_eq(got->device->uuid.len, 0);
        ck_assert_str_eq(got->device->name, "8 cores");
        ck_assert_ptr_nonnull(strstr(got->daemon, CKV_VERSION));

        w->device_uuid[15] = 1;
        ck_assert_int_eq(unpack(NULL, 0, LIMIT_BYTES), 0);
        ck_assert_uint_eq(response->welcome->device->uuid.len, 16);
        ck_assert_str_eq(response->welcome->device->name, "");
        ck_assert_int_eq(unpack((char[65]){ "" }, 65, LIMIT_BYTES), CKV_ENCODE_E_MALFORMED);
}
END_TEST

START_TEST(small_answers) {
        struct ckv_record_result *r = &record.body.result;
        const struct ckv_record_budget budgets[2] = { { .slot = 3, .used = 1, .limit = 4096 },
                                                      { .slot = 6, .used = UINT64_MAX } };
        const struct ckv_record_code_path paths[2] = { { .path = 4, .key_dtype = 3, .query_dtype = 3, .head_dim_first = 81,
                                                         .head_dim_last = 160, .queries_first = 97, .queries_last = UINT32_MAX },
                                                       { .path = 99, .key_dtype = 1 } };
        uint8_t both[sizeof(budgets) + sizeof(paths)];

        r->answer = CKV_ANSWER_PONG;
        r->u.pong.now_ns = 1;
        r->u.pong.last_progress_ns = 2;
        r->u.pong.in_flight = 3;
        r->u.pong.draining = 1;
        ck_assert_int_eq(unpack(NULL, 0, LIMIT_BYTES), 0);
        ck_assert_int_eq(response->body_case, CHUNKKV__V1__RESPONSE__BODY_PONG);
        ck_assert_uint_eq(response->pong->now_ns, 1);
        ck_assert_uint_eq(response->pong->last_progress_ns, 2);
        ck_assert_uint_eq(response->pong->in_flight, 3);
        ck_assert(response->pong->draining);
        ck_assert_int_eq(unpack("x", 1, LIMIT_BYTES), CKV_ENCODE_E_MALFORMED);

        setup();
        r->answer = CKV_ANSWER_STATUS;
        r->u.budgets.budget_count = 2;
        ck_assert_int_eq(unpack(budgets, sizeof(budgets), LIMIT_BYTES), 0);
        ck_assert_int_eq(response->body_case, CHUNKKV__V1__RESPONSE__BODY_STATUS_REPLY);
        ck_assert_uint_eq(response->status_reply->n_budgets, 2);
        ck_assert_int_eq(response->status_reply->budgets[0]->slot, CHUNKKV__V1__SLOT__SLOT_REGIONS);
        ck_assert_uint_eq(response->status_reply->budgets[0]->used, 1);
        ck_assert_uint_eq(response->status_reply->budgets[0]->limit, 4096);
        ck_assert_uint_eq(response->status_reply->budgets[1]->used, UINT64_MAX);
        ck_assert_uint_eq(response->status_reply->n_code_paths, 0);
        ck_assert_int_eq(unpack(budgets, sizeof(budgets) - 8, LIMIT_BYTES), CKV_ENCODE_E_MALFORMED);
        memcpy(both, budgets, sizeof(budgets));
        memcpy(both + sizeof(budgets), paths, sizeof(paths));
        ck_assert_int_eq(unpack(both, sizeof(both), LIMIT_BYTES), CKV_ENCODE_E_MALFORMED);
        r->u.budgets.code_path_count = 2;
        ck_assert_int_eq(unpack(both, sizeof(both) - 8, LIMIT_BYTES), CKV_ENCODE_E_MALFORMED);
        ck_assert_int_eq(unpack(both, sizeof(both), LIMIT_BYTES), 0);
        ck_assert_uint_eq(response->status_reply->n_budgets, 2);
        ck_assert_uint_eq(response->status_reply->n_code_paths, 2);
        ck_assert_str_eq(response->status_reply->code_paths[0]->path, "avx512bf16");
        ck_assert_int_eq(response->status_reply->code_paths[0]->key_dtype, CHUNKKV__V1__DTYPE__DTYPE_BF16);
        ck_assert_int_eq(response->status_reply->code_paths[0]->query_dtype, CHUNKKV__V1__DTYPE__DTYPE_BF16);
        ck_assert_uint_eq(response->status_reply->code_paths[0]->head_dim_first, 81);
        ck_assert_uint_eq(response->status_reply->code_paths[0]->head_dim_last, 160);
        ck_assert_uint_eq(response->status_reply->code_paths[0]->queries_first, 97);
        ck_assert_uint_eq(response->status_reply->code_paths[0]->queries_last, UINT32_MAX);
        ck_assert_str_eq(response->status_reply->code_paths[1]->path, "?");

        setup();
        r->answer = CKV_ANSWER_REGION;
        r->u.region.region_id = 5;
        r->u.region.shared = 1;
        ck_assert_int_eq(unpack(NULL, 0, LIMIT_BYTES), 0);
        ck_assert_uint_eq(response->region_registered->region_id, 5);
        ck_assert(response->region_registered->shared);

        setup();
        r->answer = CKV_ANSWER_CACHE;
        r->u.cache.cache_id = 6;
        ck_assert_int_eq(unpack(NULL, 0, LIMIT_BYTES), 0);
        ck_assert_uint_eq(response->cache_registered->cache_id, 6);
        ck_assert(!response->cache_registered->fast_path);

        setup();
        r->answer = CKV_ANSWER_OUTCOME;
        r->u.outcome.target_request_id = 8;
        r->u.outcome.phase = 5;
        r->u.outcome.code = CKV_CODE_EXPIRED;
        r->u.outcome.cache = CKV_CACHE_COMMITTED;
        ck_assert_int_eq(unpack(NULL, 0, LIMIT_BYTES), 0);
        ck_assert_uint_eq(response->outcome->target_request_id, 8);
        ck_assert_int_eq(response->outcome->phase, CHUNKKV__V1__PHASE__PHASE_DONE);
        ck_assert_int_eq(response->outcome->code, CHUNKKV__V1__CODE__CODE_EXPIRED);
        ck_assert_int_eq(response->outcome->cache, CHUNKKV__V1__CACHE_STATE__CACHE_COMMITTED);
}
END_TEST

/* Two groups, three policies, three sets; the runs of set 0 are the vector of the protocol. */
static struct attachment {
        struct ckv_record_group_result groups[2];
        struct ckv_record_policy policies[3];
        float masses[2];                /* of the first group */
        struct ckv_record_set sets[3];
        uint32_t words[12];
} attachment;

static void compressed(uint32_t reply_form) {
        struct ckv_record_result *r = &record.body.result;

        setup();
        r->answer = CKV_ANSWER_COMPRESSED;
        r->status.cache = CKV_CACHE_COMMITTED;
        r->u.compressed.phase = 5;
        r->u.compressed.logical_len = 500;
        r->u.compressed.group_count = 2;
        r->u.compressed.policy_count = 3;
        r->u.compressed.set_count = 3;
        r->u.compressed.word_count = 12;
        r->u.compressed.mass_count = 2;
        r->u.compressed.reply_form = reply_form;
        r->u.compressed.queue_us = 1;
        r->u.compressed.score_us = 2;
        r->u.compressed.select_us = 3;
        r->u.compressed.move_us = 4;
        r->u.compressed.total_us = 10;
        attachment = (struct attachment){
                .groups = { { .group = 4,
                              .physical_before = 400,
                              .physical_len = 314,
                              .table_used = 20,
                              .budget = 313,
                              .budget_raised = 1,
                              .policy_count = 2,
                              .sets_sent = 2,
                              .set_count = 2,
                              .mass_count = 2,
                              .kept_digest = UINT64_C(0x8000000000000001),
                              .bytes_moved = 99 },
                            { .group = 5, .kept_all = 3, .policy_count = 1, .sets_sent = 1, .set_count = 30 } },
                .policies = { { .profile = 3,
                                .chunk = 10,
                                .window = 8,
                                .sinks = 0,
                                .recent = 8,
                                .given = 3,
                                .scale = 0.125 },
                              { .layer_first = 5, .given = 32, .mute = 4 },
                              { .selector = 3 } },
                .masses = { 0.5f, 0.25f },
                .sets = { { .layer_first = 0, .run_count = 6, .position_run_count = 2 },
                          { .layer_first = 2, .kv_head = 1, .run_count = 2 },
                          { .layer_first = 9, .run_count = 2 } },
                .words = { 0, 4, 16, 10, 70, 300, 5, 314, 0, 1, 7, 2 },
        };
}

START_TEST(compressed_as_runs) {
        const Chunkkv__V1__Compressed *got;
        const Chunkkv__V1__GroupResult *g;

        compressed(CHUNKKV__V1__REPLY_FORM__REPLY_RUNS);
        ck_assert_int_eq(unpack(&attachment, sizeof(attachment), LIMIT_BYTES), 0);
        ck_assert_int_eq(response->body_case, CHUNKKV__V1__RESPONSE__BODY_COMPRESSED);
        got = response->compressed;
        ck_assert_int_eq(got->phase, CHUNKKV__V1__PHASE__PHASE_DONE);
        ck_assert_uint_eq(got->logical_len, 500);
        ck_assert_uint_eq(got->timing->queue_us, 1);
        ck_assert_uint_eq(got->timing->score_us, 2);
        ck_assert_uint_eq(got->timing->select_us, 3);
        ck_assert_uint_eq(got->timing->move_us, 4);
        ck_assert_uint_eq(got->timing->total_us, 10);
        ck_assert_uint_eq(got->n_groups, 2);

        g = got->groups[0];
        ck_assert_uint_eq(g->group, 4);
        ck_assert_uint_eq(g->physical_before, 400);
        ck_assert_uint_eq(g->physical_len, 314);
        ck_assert_uint_eq(g->table_used, 20);
        ck_assert_uint_eq(g->budget, 313);
        ck_assert(g->budget_raised);
        ck_assert_uint_eq(g->set_count, 2);
        ck_assert_uint_eq(g->kept_digest, UINT64_C(0x8000000000000001));
        ck_assert_uint_eq(g->bytes_moved, 99);
        ck_assert_uint_eq(g->n_policies, 2);
        ck_assert_int_eq(g->policies[0]->profile, CHUNKKV__V1__PROFILE__PROFILE_RETRIEVAL);
        ck_assert_uint_eq(g->policies[0]->chunk, 10);
        ck_assert(g->policies[0]->scale >= 0.125 && g->policies[0]->scale <= 0.125);
        ck_assert_ptr_nonnull(g->policies[0]->sinks);
        ck_assert_uint_eq(g->policies[0]->sinks->value, 0);
        ck_assert_uint_eq(g->policies[0]->recent->value, 8);
        ck_assert_ptr_null(g->policies[0]->min_tokens);
        ck_assert_ptr_null(g->policies[0]->mute);
        ck_assert_uint_eq(g->policies[1]->layer_first, 5);
        ck_assert_uint_eq(g->policies[1]->mute->value, 4);
        ck_assert_uint_eq(g->n_sets, 2);
        ck_assert_uint_eq(g->sets[0]->n_runs, 6);
        ck_assert_mem_eq(g->sets[0]->runs, attachment.words, 24);
        ck_assert_uint_eq(g->sets[0]->n_position_runs, 2);
        ck_assert_mem_eq(g->sets[0]->position_runs, attachment.words + 6, 8);
        ck_assert_uint_eq(g->sets[0]->n_rows, 0);
        ck_assert_uint_eq(g->sets[1]->layer_first, 2);
        ck_assert_uint_eq(g->sets[1]->kv_head, 1);
        ck_assert_uint_eq(g->n_kept_mass, 2);
        ck_assert_float_eq(g->kept_mass[0], 0.5f);
        ck_assert_float_eq(g->kept_mass[1], 0.25f);
        ck_assert_uint_eq(got->groups[1]->n_kept_mass, 0);

        g = got->groups[1];
        ck_assert_int_eq(g->kept_all, CHUNKKV__V1__KEPT_ALL__KEPT_FITS);
        ck_assert_uint_eq(g->set_count, 30);
        ck_assert_int_eq(g->policies[0]->selector, CHUNKKV__V1__SELECTOR__SELECTOR_TOKEN);
        ck_assert_uint_eq(g->n_sets, 1);
        ck_assert_uint_eq(g->sets[0]->layer_first, 9);
        ck_assert_mem_eq(g->sets[0]->runs, attachment.words + 10, 8);
}
END_TEST

START_TEST(compressed_as_rows) {
        const Chunkkv__V1__KeptSet *set;

        compressed(CHUNKKV__V1__REPLY_FORM__REPLY_ROWS);
        ck_assert_int_eq(unpack(&attachment, sizeof(attachment), LIMIT_BYTES), 0);
        set = response->compressed->groups[0]->sets[0];
        ck_assert_uint_eq(set->n_runs, 0);
        ck_assert_uint_eq(set->n_rows, 314);
        for (uint32_t i = 0; i < 314; i++)
                ck_assert_uint_eq(set->rows[i], i < 4 ? i : i < 14 ? i + 16 : i + 86);
        ck_assert_uint_eq(set->n_position_runs, 2);
        set = response->compressed->groups[0]->sets[1];
        ck_assert_uint_eq(set->n_rows, 1);
        ck_assert_uint_eq(set->rows[0], 0);
        set = response->compressed->groups[1]->sets[0];
        ck_assert_uint_eq(set->n_rows, 2);
        ck_assert_uint_eq(set->rows[0], 7);
        ck_assert_uint_eq(set->rows[1], 8);
}
END_TEST

START_TEST(compressed_without_sets) {
        static const struct ckv_record_group_result group = { .group = 1, .set_count = 8, .kept_digest = 3 };

        compressed(CHUNKKV__V1__REPLY_FORM__REPLY_NO_SETS);
        record.body.result.u.compressed.group_count = 1;
        record.body.result.u.compressed.policy_count = record.body.result.u.compressed.set_count = 0;
        record.body.result.u.compressed.word_count = record.body.result.u.compressed.mass_count = 0;
        ck_assert_int_eq(unpack(&group, sizeof(group), LIMIT_BYTES), 0);
        ck_assert_uint_eq(response->compressed->groups[0]->set_count, 8);
        ck_assert_uint_eq(response->compressed->groups[0]->n_sets, 0);
        record.body.result.u.compressed.group_count = 0;
        ck_assert_int_eq(unpack(NULL, 0, LIMIT_BYTES), 0);
        ck_assert_uint_eq(response->compressed->n_groups, 0);
}
END_TEST

START_TEST(too_large_at_the_limit) {
        _cleanup_free_ void *reply = NULL;
        size_t bytes;
        char detail[256];

        compressed(CHUNKKV__V1__REPLY_FORM__REPLY_RUNS);
        record.head.ring_bytes = sizeof(attachment);
        ck_assert_int_eq(ckv_encode_answer(&record, &attachment, LIMIT_BYTES, &reply, &bytes), 0);
        ck_assert_int_eq(unpack(&attachment, sizeof(attachment), bytes), 0);
        ck_assert_int_eq(response->status->code, CHUNKKV__V1__CODE__CODE_OK);
        ck_assert_int_eq(unpack(&attachment, sizeof(attachment), bytes - 1), 0);
        ck_assert_int_eq(response->status->code, CHUNKKV__V1__CODE__CODE_REPLY_TOO_LARGE);
        ck_assert_str_eq(response->status->field, "compress.reply_form");
        (void)snprintf(detail, sizeof(detail),
                       "the answer may take %zu bytes, the limit is %zu: ask for another reply_form", bytes, bytes - 1);
        ck_assert_str_eq(response->status->detail, detail);
        /* the rows have moved, whatever fits into a reply */
        ck_assert_int_eq(response->status->cache, CHUNKKV__V1__CACHE_STATE__CACHE_COMMITTED);
        ck_assert_int_eq(response->body_case, CHUNKKV__V1__RESPONSE__BODY__NOT_SET);
}
END_TEST

START_TEST(too_many_rows_are_not_expanded) {
        compressed(CHUNKKV__V1__REPLY_FORM__REPLY_ROWS);
        /* 2^31 rows in 8 bytes of runs: 8 GiB if it were done */
        attachment.words[11] = UINT32_C(1) << 31;
        ck_assert_int_eq(unpack(&attachment, sizeof(attachment), LIMIT_BYTES), 0);
        ck_assert_int_eq(response->status->code, CHUNKKV__V1__CODE__CODE_REPLY_TOO_LARGE);
        compressed(CHUNKKV__V1__REPLY_FORM__REPLY_ROWS);
        /* one row too many; the number is that of the rows alone, so no reply was built */
        attachment.words[11] = LIMIT_BYTES / 4 - 315 + 1;
        ck_assert_int_eq(unpack(&attachment, sizeof(attachment), LIMIT_BYTES), 0);
        ck_assert_int_eq(response->status->code, CHUNKKV__V1__CODE__CODE_REPLY_TOO_LARGE);
        ck_assert_str_eq(response->status->detail,
                         "the answer may take 524292 bytes, the limit is 524288: ask for another reply_form");
}
END_TEST

START_TEST(counts_that_do_not_add_up) {
        for (int i = 0; i < 10; i++) {
                size_t bytes = sizeof(attachment);

                compressed(CHUNKKV__V1__REPLY_FORM__REPLY_RUNS);
                switch (i) {
                case 0:
                        bytes -= 4;
                        break;
                case 1:
                        record.body.result.u.compressed.word_count++;
                        break;
                case 2:
                        attachment.groups[0].policy_count++;
                        break;
                case 3:
                        attachment.groups[1].sets_sent = 0;
                        break;
                case 4:
                        attachment.sets[1].run_count += 2;
                        break;
                case 5:
                        attachment.sets[0].position_run_count--;
                        break;
                case 6:
                        attachment.words[2] = 0;
                        break;
                case 7:
                        record.body.result.u.compressed.group_count = UINT32_MAX;
                        break;
                case 8:
                        attachment.groups[0].mass_count = 1;
                        break;
                default:
                        record.body.result.answer = CKV_ANSWER_OUTCOME + 1;
                        break;
                }
                ck_assert_msg(unpack(&attachment, bytes, LIMIT_BYTES) == CKV_ENCODE_E_MALFORMED, "case %d", i);
        }
}
END_TEST

int main(void) {
        Suite *suite = suite_create("gate_encode");
        TCase *tcase = tcase_create("encode");
        SRunner *runner;
        int failed;

        tcase_add_checked_fixture(tcase, setup, release);
        tcase_add_test(tcase, status_vector);
        tcase_add_test(tcase, status_fields);
        tcase_add_test(tcase, welcome_fields);
        tcase_add_test(tcase, small_answers);
        tcase_add_test(tcase, compressed_as_runs);
        tcase_add_test(tcase, compressed_as_rows);
        tcase_add_test(tcase, compressed_without_sets);
        tcase_add_test(tcase, too_large_at_the_limit);
        tcase_add_test(tcase, too_many_rows_are_not_expanded);
        tcase_add_test(tcase, counts_that_do_not_add_up);
        suite_add_tcase(suite, tcase);
        runner = srunner_create(suite);
        srunner_run_all(runner, CK_NORMAL);
        failed = srunner_ntests_failed(runner);
        srunner_free(runner);
        return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
