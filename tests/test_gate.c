/*
 * chunkkv-gate as a process: requests become records, records become replies,
 * and what happens when one side is slow, silent, gone or wrong.  The checks
 * of single fields are in test_gate_decode.c.
 */
#include "tests/support_gate.h"

#include "base/clock.h"
#include "base/macros.h"

#include <check.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>

static struct core core;
static void *client;

static void setup(void) {
        core_init(&core);
        client = client_open(&core, ZMQ_DEALER);
}

static void teardown(void) {
        (void)zmq_close(client);
        core_deinit(&core);
}

/* exchange() - a ping of @from reaches the core, and its answer comes back; others may leave meanwhile */
static void exchange(void *from, uint64_t request_id) {
        struct ckv_record record, answer;

        client_send(from, ping(request_id));
        do
                core_recv(&core, &record, NULL);
        while (record.head.type == CKV_RECORD_PONG || record.head.type == CKV_RECORD_GONE);
        ck_assert_uint_eq(record.head.type, CKV_RECORD_PING);
        ck_assert_uint_eq(record.head.request_id, request_id);
        answer = core_answer(&core, &record, CKV_RECORD_RESULT);
        answer.body.result.answer = CKV_ANSWER_PONG;
        ck_assert(core_send(&core, &answer, NULL, 0));
        client_expect(from, request_id, CHUNKKV__V1__CODE__CODE_OK, "");
}

START_TEST(envelope_to_head) {
        static const uint8_t trace[26] = {
                0x00, 0x4b, 0xf9, 0x2f, 0x35, 0x77, 0xb3, 0x4d, 0xa6, 0xa3, 0xce, 0x92, 0x9d,
                0x0e, 0x0e, 0x47, 0x36, 0x00, 0xf0, 0x67, 0xaa, 0x0b, 0xa9, 0x02, 0xb7, 0x01
        };
        char traceparent[] = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        Chunkkv__V1__Request *request = ping(INT64_MAX);
        struct ckv_record record;
        uint64_t now = ckv_now_nsec();

        request->generation = UINT64_MAX;
        request->traceparent = traceparent;
        client_send(client, request);
        core_recv(&core, &record, NULL);
        ck_assert_uint_eq(record.head.type, CKV_RECORD_PING);
        ck_assert_uint_eq(record.head.connection, 1);
        ck_assert_uint_eq(record.head.request_id, INT64_MAX);
        ck_assert_uint_eq(record.head.generation, UINT64_MAX);
        ck_assert_uint_ge(record.head.deadline_ns, now + 5 * CKV_NSEC_PER_SEC);
        ck_assert_uint_le(record.head.deadline_ns, ckv_now_nsec() + 5 * CKV_NSEC_PER_SEC);
        ck_assert_uint_eq(record.head.uid, getuid());
        ck_assert_uint_eq(record.head.gid, getgid());
        ck_assert_uint_eq(record.head.pid, (uint32_t)getpid());
        ck_assert_uint_eq(record.head.minor, 0);
        ck_assert_mem_eq(record.head.boot_id, boot_id, 16);
        ck_assert_mem_eq(record.head.token, session_token, 16);
        ck_assert_uint_eq(record.head.flags, CKV_RECORD_HAS_TRACE);
        ck_assert_mem_eq(record.head.trace, trace, sizeof(trace));
}
END_TEST

START_TEST(req_delimiter_echoed) {
        void *req = client_open(&core, ZMQ_REQ);

        /* a REQ socket gives a reply to its user only if the empty frame is in front */
        exchange(req, 1);
        exchange(req, 2);
        exchange(client, 3);
        (void)zmq_close(req);
}
END_TEST

START_TEST(one_number_for_one_connection) {
        void *other = client_open(&core, ZMQ_DEALER);
        struct ckv_record first, second, third;

        client_send(client, ping(1));
        core_recv(&core, &first, NULL);
        client_send(other, ping(2));
        core_recv(&core, &second, NULL);
        client_send(client, ping(3));
        core_recv(&core, &third, NULL);
        ck_assert_uint_ne(first.head.connection, second.head.connection);
        ck_assert_uint_eq(first.head.connection, third.head.connection);
        (void)zmq_close(other);
}
END_TEST

START_TEST(dropped_connection_gets_a_new_number) {
        struct ckv_record first, second, drop = { .head = { .type = CKV_RECORD_DROP } }, answer;

        client_send(client, ping(1));
        core_recv(&core, &first, NULL);
        drop.head.connection = first.head.connection;
        ck_assert(core_send(&core, &drop, NULL, 0));
        /* an answer to a number that was dropped goes nowhere */
        answer = core_answer(&core, &first, CKV_RECORD_RESULT);
        ck_assert(core_send(&core, &answer, NULL, 0));
        ck_assert_ptr_null(client_recv(client, 100));
        client_send(client, ping(2));
        core_recv(&core, &second, NULL);
        ck_assert_uint_gt(second.head.connection, first.head.connection);
}
END_TEST

START_TEST(answer_to_a_closed_client_is_gone) {
        void *other = client_open(&core, ZMQ_DEALER);
        struct ckv_record record, answer, gone;

        client_send(other, ping(1));
        core_recv(&core, &record, NULL);
        (void)zmq_close(other);
        ck_assert(core_quiet(&core, 300));
        answer = core_answer(&core, &record, CKV_RECORD_RESULT);
        ck_assert(core_send(&core, &answer, NULL, 0));
        core_recv_type(&core, CKV_RECORD_GONE, &gone, NULL);
        ck_assert_uint_eq(gone.head.connection, record.head.connection);
        exchange(client, 2);
}
END_TEST

/* client_with_id() - a client that chose its routing id */
static void *client_with_id(size_t bytes) {
        void *named = client_new(&core, ZMQ_DEALER);
        char id[255];

        memset(id, 'i', sizeof(id));
        ck_assert_int_eq(zmq_setsockopt(named, ZMQ_ROUTING_ID, id, bytes), 0);
        client_connect(&core, named);
        return named;
}

START_TEST(routing_id_64_and_65) {
        void *fits = client_with_id(64), *longer = client_with_id(65);

        exchange(fits, 1);
        client_send(longer, ping(2));
        ck_assert(core_quiet(&core, 200));
        ck_assert_ptr_null(client_recv(longer, 0));
        exchange(fits, 3);
        (void)zmq_close(fits);
        (void)zmq_close(longer);
}
END_TEST

START_TEST(more_than_one_frame) {
        ck_assert_int_eq(zmq_send(client, "\x08\x07", 2, ZMQ_SNDMORE), 2);
        client_send_bytes(client, "\x8a\x01\x00", 3);
        client_expect(client, 0, CHUNKKV__V1__CODE__CODE_BAD_MESSAGE, "");
        for (int i = 0; i < 1000; i++)
                ck_assert_int_eq(zmq_send(client, "", 0, ZMQ_SNDMORE), 0);
        client_send_bytes(client, "", 0);
        /* the first frame was empty, so the reply has one in front too */
        ck_assert_int_eq(zmq_recv(client, NULL, 0, 0), 0);
        client_expect(client, 0, CHUNKKV__V1__CODE__CODE_BAD_MESSAGE, "");
        exchange(client, 1);
}
END_TEST

START_TEST(longest_request_and_one_byte_more) {
        static uint8_t name[262144];
        Chunkkv__V1__Request *request = ping(1);
        Chunkkv__V1__Response *response;
        size_t head = chunkkv__v1__request__get_packed_size(request);
        uint8_t *at = name + head;

        (void)chunkkv__v1__request__pack(request, name);
        /* an unknown field 200 of bytes: 2 bytes tag, 3 bytes length */
        *at++ = 0xc2;
        *at++ = 0x0c;
        for (size_t n = sizeof(name) - head - 5, i = 0; i < 3; i++, n >>= 7)
                *at++ = (uint8_t)((n & 127) | (i < 2 ? 128 : 0));
        client_send_bytes(client, name, sizeof(name));
        core_recv(&core, &(struct ckv_record){ 0 }, NULL);

        core.limits.request_bytes = sizeof(name) - 1;
        ck_assert(core_send(&core,
                            &(struct ckv_record){ .head = { .type = CKV_RECORD_LIMITS },
                                                  .body = { .limits = core.limits } },
                            NULL, 0));
        /* its answer comes when the limits before it hold */
        core_ask_stats(&core, &(struct ckv_record_stats){ 0 });
        client_send_bytes(client, name, sizeof(name) - 1);
        /* one unknown field shorter than it says: not decodable */
        client_expect(client, 0, CHUNKKV__V1__CODE__CODE_BAD_MESSAGE, "");
        client_send_bytes(client, name, sizeof(name));
        response = client_recv(client, WAIT_MSEC);
        ck_assert_str_eq(response->status->detail, "the message has 262144 bytes, the limit is 262143");
        ck_assert_int_eq(response->status->code, CHUNKKV__V1__CODE__CODE_BAD_MESSAGE);
        chunkkv__v1__response__free_unpacked(response, NULL);
}
END_TEST

/* A sanitizer's allocator keeps what was freed. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define GROWTH_MAX_KIB 65536
#else
#define GROWTH_MAX_KIB 4096
#endif

/* peak_kib() - VmHWM of the gate */
static unsigned long peak_kib(void) {
        char path[64], line[256];
        unsigned long kib = 0;
        FILE *file;

        (void)snprintf(path, sizeof(path), "/proc/%d/status", (int)core.gate);
        file = fopen(path, "re");
        ck_assert_ptr_nonnull(file);
        while (fgets(line, sizeof(line), file))
                if (sscanf(line, "VmHWM: %lu kB", &kib) == 1)
                        break;
        (void)fclose(file);
        ck_assert_uint_gt(kib, 0);
        return kib;
}

START_TEST(amplification_is_bounded) {
        static uint8_t message[262144];
        static const char shapes[][3] = { "\x22\x00", "\x7a\x00", "\x32\x00" };
        unsigned long before;

        exchange(client, 1);
        before = peak_kib();
        for (size_t shape = 0; shape < CKV_ARRAY_SIZE(shapes); shape++) {
                for (size_t size = 65536; size <= sizeof(message); size *= 4) {
                        for (size_t i = 0; i < size; i += 2)
                                memcpy(message + i, shapes[shape], 2);
                        client_send_bytes(client, message, size);
                        client_expect(client, 0, CHUNKKV__V1__CODE__CODE_BAD_MESSAGE, "");
                }
        }
        ck_assert_uint_lt(peak_kib() - before, GROWTH_MAX_KIB);
        exchange(client, 2);
}
END_TEST

/* send_cache() - RegisterCache whose attachment has @words layer numbers of 4 bytes. Return: as client_offer(). */
static bool send_cache(uint64_t request_id, uint32_t words) {
        Chunkkv__V1__LayerGroup group = CHUNKKV__V1__LAYER_GROUP__INIT, *groups[] = { &group };
        Chunkkv__V1__Plane plane = CHUNKKV__V1__PLANE__INIT, *planes[] = { &plane };
        Chunkkv__V1__RegisterCache cache = CHUNKKV__V1__REGISTER_CACHE__INIT;
        Chunkkv__V1__Request *request = ping(request_id);
        _cleanup_free_ uint32_t *layers = calloc(words, sizeof(*layers));

        for (uint32_t i = 0; i < words; i++)
                layers[i] = i;
        group.layers = layers;
        group.n_layers = words;
        group.kv_heads = group.q_heads = group.head_dim_k = group.tokens_per_block = group.num_blocks = 1;
        plane.kind = CHUNKKV__V1__PLANE_KIND__PLANE_K;
        plane.dtype = CHUNKKV__V1__DTYPE__DTYPE_F32;
        plane.layer_count = plane.region_id = 1;
        cache.groups = groups;
        cache.planes = planes;
        cache.n_groups = cache.n_planes = 1;
        request->body_case = CHUNKKV__V1__REQUEST__BODY_REGISTER_CACHE;
        request->register_cache = &cache;
        return client_offer(client, request);
}

/* sleeps() - does the gate use next to no CPU for half a second? */
static bool sleeps(void) {
        unsigned long ticks[2];
        char path[64];

        (void)snprintf(path, sizeof(path), "/proc/%d/stat", (int)core.gate);
        for (int i = 0; i < 2; i++) {
                unsigned long user, kernel;
                FILE *file = fopen(path, "re");

                ck_assert_ptr_nonnull(file);
                ck_assert_int_eq(fscanf(file, "%*d %*s %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu", &user,
                                        &kernel),
                                 2);
                (void)fclose(file);
                ticks[i] = user + kernel;
                if (i == 0)
                        (void)poll(NULL, 0, 500);
        }
        return ticks[1] - ticks[0] <= 10;
}

/* Requests without (0) and with (1) attachments, as many as libzmq takes while nobody reads at the core. */
START_TEST(requests_wait_while_the_core_sleeps) {
        enum { REQUESTS = 3000 };
        static uint8_t attachment[CKV_ATTACHMENT_MAX_BYTES];
        enum ckv_record_type type = _i ? CKV_RECORD_REGISTER_CACHE : CKV_RECORD_PING;
        struct ckv_record record;
        uint64_t sent = 0;

        (void)zmq_setsockopt(client, ZMQ_SNDTIMEO, &(int){ 200 }, sizeof(int));
        while (sent < REQUESTS &&
               (_i ? send_cache(sent + 1, 1 + (uint32_t)sent) : client_offer(client, ping(sent + 1))))
                sent++;
        ck_assert_uint_gt(sent, 100);
        ck_assert_uint_lt(sent, REQUESTS);
        ck_assert(sleeps());

        /* nothing was lost or reordered */
        for (uint64_t i = 1; i <= sent; i++) {
                core_recv_type(&core, type, &record, attachment);
                ck_assert_uint_eq(record.head.request_id, i);
                if (_i)
                        ck_assert_uint_eq(record.body.cache.layer_word_count, i);
                /* without attachments the room in the pair alone must wake the gate */
                if (_i && i % 16 == 0)
                        ck_assert(core_send(&core, &(struct ckv_record){ .head = { .type = CKV_RECORD_GATE_PING } },
                                            NULL, 0));
        }
        ck_assert(core_quiet(&core, 100));
        exchange(client, UINT32_MAX);
}
END_TEST

START_TEST(attachments_wait_for_the_ring) {
        enum { REQUESTS = 100, WORDS = 65536 };
        static uint8_t attachment[CKV_ATTACHMENT_MAX_BYTES];
        static uint32_t want[WORDS];
        struct ckv_record record;

        for (uint32_t i = 0; i < WORDS; i++)
                want[i] = i;
        /* 262272 bytes each: 15 fill the ring of 4 MiB, the rest must wait for it */
        for (uint64_t i = 1; i <= 24; i++)
                ck_assert(send_cache(i, WORDS));
        ck_assert(sleeps());
        for (uint64_t i = 1; i <= REQUESTS; i++) {
                struct ckv_record silent = { .head = { .type = CKV_RECORD_GATE_PING } };

                core_recv_type(&core, CKV_RECORD_REGISTER_CACHE, &record, attachment);
                ck_assert_uint_eq(record.head.request_id, i);
                ck_assert_uint_eq(record.head.ring_bytes, sizeof(struct ckv_record_cache_group) +
                                                                  sizeof(struct ckv_record_plane) +
                                                                  WORDS * sizeof(uint32_t));
                ck_assert_mem_eq(attachment + 128, want, sizeof(want));
                /* only a record tells the gate how far the core has read */
                ck_assert(core_send(&core, &silent, NULL, 0));
                if (i + 24 <= REQUESTS)
                        ck_assert(send_cache(i + 24, WORDS));
        }
}
END_TEST

START_TEST(ping_is_answered_and_reading_reported) {
        static uint8_t big[CKV_RING_BYTES / 4 + 8];
        struct ckv_record record, answer;

        ck_assert(core_send(&core, &(struct ckv_record){ .head = { .type = CKV_RECORD_GATE_PING } }, NULL, 0));
        core_recv_type(&core, CKV_RECORD_PONG, &record, NULL);
        ck_assert_uint_eq(record.head.ring_consumed, 0);

        /* a little: reported after a while, though there is nothing to say */
        client_send(client, ping(1));
        core_recv(&core, &record, NULL);
        answer = core_answer(&core, &record, CKV_RECORD_RESULT);
        answer.body.result.answer = CKV_ANSWER_STATUS;
        answer.body.result.u.budgets.budget_count = 1;
        ck_assert(core_send(&core, &answer, big, sizeof(struct ckv_record_budget)));
        core_recv_type(&core, CKV_RECORD_PONG, &record, NULL);
        ck_assert_uint_eq(record.head.ring_consumed, core.to_gate.head);

        /* much: the reply is too large, and the ring is reported all the same */
        answer.body.result.u.budgets.budget_count = sizeof(big) / sizeof(struct ckv_record_budget);
        ck_assert(core_send(&core, &answer, big, (uint32_t)(sizeof(big) / 24 * 24)));
        core_recv_type(&core, CKV_RECORD_PONG, &record, NULL);
        ck_assert_uint_eq(record.head.ring_consumed, core.to_gate.head);
}
END_TEST

/* slow_client() - one whose library takes in no more than it must */
static void *slow_client(void) {
        void *slow = client_new(&core, ZMQ_DEALER);
        int small = 1;

        (void)zmq_setsockopt(slow, ZMQ_RCVHWM, &small, sizeof(small));
        client_connect(&core, slow);
        return slow;
}

/* long_answer() - 128 KiB for the sender of a request */
static void long_answer(const struct ckv_record *request) {
        static uint32_t words[32768];
        const uint32_t count = sizeof(words) / sizeof(struct ckv_record_budget);
        struct ckv_record answer = core_answer(&core, request, CKV_RECORD_RESULT);

        answer.body.result.answer = CKV_ANSWER_STATUS;
        answer.body.result.u.budgets.budget_count = count;
        ck_assert(core_send(&core, &answer, words, count * (uint32_t)sizeof(struct ckv_record_budget)));
}

START_TEST(reader_that_stays_slow_is_shut_down) {
        void *slow = slow_client();
        struct ckv_record_stats stats = { 0 };
        struct ckv_record request;
        uint64_t end;

        client_send(slow, ping(1));
        core_recv_type(&core, CKV_RECORD_PING, &request, NULL);
        for (end = ckv_now_nsec() + 20 * CKV_NSEC_PER_SEC; stats.dropped_peers == 0; core_ask_stats(&core, &stats)) {
                ck_assert_uint_lt(ckv_now_nsec(), end);
                long_answer(&request);
                (void)poll(NULL, 0, 10);
        }
        /* that one and nobody else */
        exchange(client, 2);
        ck_assert_uint_eq(stats.dropped_peers, 1);
        (void)zmq_close(slow);
}
END_TEST

START_TEST(slow_reader_loses_only_its_own) {
        void *slow = slow_client();
        struct ckv_record_stats stats = { 0 };
        struct ckv_record request;
        int got = 0;
        Chunkkv__V1__Response *response;

        client_send(slow, ping(1));
        core_recv_type(&core, CKV_RECORD_PING, &request, NULL);
        for (int i = 0; i < 200; i++) {
                long_answer(&request);
                core_ask_stats(&core, &stats);
        }
        exchange(client, 2);
        ck_assert_uint_gt(stats.dropped_replies, 0);
        while ((response = client_recv(slow, 200))) {
                got++;
                chunkkv__v1__response__free_unpacked(response, NULL);
        }
        ck_assert_int_gt(got, 0);
        ck_assert_int_lt(got, 200);
        exchange(slow, 3);
        (void)zmq_close(slow);
}
END_TEST

START_TEST(next_gate_on_the_same_socket) {
        exchange(client, 1);
        for (uint64_t i = 0; i < 3; i++) {
                ck_assert(WIFSIGNALED(core_kill_gate(&core)));
                ck_assert_int_eq(access(core.path, F_OK), 0);
                core_start_gate(&core);
                exchange(client, 2 + i);
        }
        /* nor does it go when a gate ends in peace */
        ck_assert_int_eq(core_end_pair(&core), 0);
        ck_assert_int_eq(access(core.path, F_OK), 0);
        core_start_gate(&core);
        exchange(client, 9);
}
END_TEST

/* stderr_has() - did a gate write this? */
static bool stderr_has(const char *text) {
        char written[8192] = { 0 };

        ck_assert_int_ge(pread(core.stderr_fd, written, sizeof(written) - 1, 0), 0);
        return strstr(written, text) != NULL;
}

/* Records that no right core sends: the gate says so once and ends. */
START_TEST(malformed_record_ends_the_gate) {
        struct ckv_record bad = { .head = { .magic = CKV_RECORD_MAGIC, .version = CKV_RECORD_VERSION, .sequence = 2,
                                            .type = CKV_RECORD_GATE_PING } };
        size_t bytes = sizeof(bad);
        int status;

        switch (_i) {
        case 0:
                bad.head.magic++;
                break;
        case 1:
                bad.head.version++;
                break;
        case 2:
                bad.head.sequence = 1;
                break;
        case 3:
                bad.head.type = CKV_RECORD_HELLO;
                break;
        case 4:
                bad.head.ring_consumed = 1;
                break;
        case 5:
                bad.head.ring_offset = 8;
                bad.head.ring_bytes = 8;
                break;
        case 6:
                bytes--;
                break;
        case 7:
                bad.head.type = CKV_RECORD_RESULT;
                bad.body.result.answer = CKV_ANSWER_OUTCOME + 1;
                break;
        case 8:
                bad.head.type = CKV_RECORD_RESULT;
                bad.body.result.answer = CKV_ANSWER_COMPRESSED;
                bad.body.result.u.compressed.group_count = 1;
                break;
        case 9:
                bad.head.type = CKV_RECORD_LIMITS;
                break;
        default:
                break;
        }
        exchange(client, 1);
        bad.head.sequence += 1; /* one record was sent by the exchange */
        if (_i == 2)
                bad.head.sequence = 1;
        core_send_raw(&core, &bad, bytes);
        status = core_await_exit(&core);
        ck_assert(WIFEXITED(status));
        ck_assert_int_eq(WEXITSTATUS(status), 1);
        ck_assert(stderr_has("malformed record from the core"));
}
END_TEST

START_TEST(end_of_the_pair_is_the_end) {
        exchange(client, 1);
        ck_assert_int_eq(core_end_pair(&core), 0);
        ck_assert(!stderr_has("GATE_UNFIT"));
}
END_TEST

int main(void) {
        Suite *suite = suite_create("gate");
        TCase *tcase = tcase_create("gate");
        SRunner *runner;
        int failed;

        tcase_set_timeout(tcase, 60);
        tcase_add_checked_fixture(tcase, setup, teardown);
        tcase_add_test(tcase, envelope_to_head);
        tcase_add_test(tcase, req_delimiter_echoed);
        tcase_add_test(tcase, one_number_for_one_connection);
        tcase_add_test(tcase, dropped_connection_gets_a_new_number);
        tcase_add_test(tcase, answer_to_a_closed_client_is_gone);
        tcase_add_test(tcase, routing_id_64_and_65);
        tcase_add_test(tcase, more_than_one_frame);
        tcase_add_test(tcase, longest_request_and_one_byte_more);
        tcase_add_test(tcase, amplification_is_bounded);
        tcase_add_loop_test(tcase, requests_wait_while_the_core_sleeps, 0, 2);
        tcase_add_test(tcase, attachments_wait_for_the_ring);
        tcase_add_test(tcase, ping_is_answered_and_reading_reported);
        tcase_add_test(tcase, slow_reader_loses_only_its_own);
        tcase_add_test(tcase, reader_that_stays_slow_is_shut_down);
        tcase_add_test(tcase, next_gate_on_the_same_socket);
        tcase_add_loop_test(tcase, malformed_record_ends_the_gate, 0, 10);
        tcase_add_test(tcase, end_of_the_pair_is_the_end);
        suite_add_tcase(suite, tcase);
        runner = srunner_create(suite);
        srunner_run_all(runner, CK_NORMAL);
        failed = srunner_ntests_failed(runner);
        srunner_free(runner);
        return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
