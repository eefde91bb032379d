/*
 * Records between core and gate, with the test in the place of the gate: what
 * a right gate sends arrives, each thing that a wrong one may send is a breach,
 * and what cannot be sent waits in order.
 */
#include "daemon/gate_channel.h"

#include "base/macros.h"
#include "ipc/seqpacket.h"
#include "tests/support_files.h"

#include <check.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

static struct ckv_gate_channel channel;
static struct ckv_ring core_reads, core_writes, gate_writes, gate_reads;
static int core_end, gate_end;
static uint8_t *attachment;
static unsigned fds_before;

static void setup(void) {
        int ends[2], to_core, to_gate;

        fds_before = support_fds_count();
        attachment = malloc(CKV_ATTACHMENT_MAX_BYTES);
        ck_assert_ptr_nonnull(attachment);
        ck_assert_int_eq(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends), 0);
        core_end = ends[0];
        gate_end = ends[1];
        ck_assert_int_eq(ckv_ring_create(CKV_RING_BYTES, &to_core), 0);
        ck_assert_int_eq(ckv_ring_create(CKV_RING_BYTES, &to_gate), 0);
        ck_assert_int_eq(ckv_ring_init(&core_reads, to_core, CKV_RING_BYTES, false), 0);
        ck_assert_int_eq(ckv_ring_init(&gate_writes, to_core, CKV_RING_BYTES, true), 0);
        ck_assert_int_eq(ckv_ring_init(&core_writes, to_gate, CKV_RING_BYTES, true), 0);
        ck_assert_int_eq(ckv_ring_init(&gate_reads, to_gate, CKV_RING_BYTES, false), 0);
        (void)close(to_core);
        (void)close(to_gate);
        ckv_gate_channel_init(&channel, core_end, &core_reads, &core_writes);
}

static void teardown(void) {
        ckv_gate_channel_deinit(&channel);
        ckv_ring_deinit(&core_reads);
        ckv_ring_deinit(&core_writes);
        ckv_ring_deinit(&gate_writes);
        ckv_ring_deinit(&gate_reads);
        core_end = ckv_close(core_end);
        gate_end = ckv_close(gate_end);
        free(attachment);
        ck_assert_uint_eq(support_fds_count(), fds_before);
}

/* right_record() - what a right gate sends first */
static struct ckv_record right_record(uint16_t type) {
        struct ckv_record record = { .head = { .magic = CKV_RECORD_MAGIC, .version = CKV_RECORD_VERSION, .type = type, .connection = 1,
                                               .sequence = 1 } };

        return record;
}

static void gate_send(const struct ckv_record *record) {
        ck_assert_int_eq(ckv_seqpacket_send(gate_end, record, sizeof(*record), -1), 0);
}

/* gate_attach() - an attachment of @bytes times @fill, named in the record */
static void gate_attach(struct ckv_record *record, uint32_t bytes, int fill) {
        void *place = ckv_ring_reserve(&gate_writes, bytes, &record->head.ring_offset);

        ck_assert_ptr_nonnull(place);
        memset(place, fill, bytes);
        record->head.ring_bytes = bytes;
}

static int receive(struct ckv_record *record, const char **breach) {
        *breach = "";
        return ckv_gate_channel_recv(&channel, record, attachment, breach);
}

/* gate_receive() - the core's next record as a right gate takes it */
static struct ckv_record gate_receive(uint64_t sequence) {
        struct ckv_record record;

        ck_assert_int_eq(ckv_seqpacket_recv(gate_end, &record, sizeof(record), NULL), 0);
        ck_assert_uint_eq(record.head.magic, CKV_RECORD_MAGIC);
        ck_assert_uint_eq(record.head.version, CKV_RECORD_VERSION);
        ck_assert_uint_eq(record.head.sequence, sequence);
        if (record.head.ring_bytes)
                ck_assert_ptr_nonnull(ckv_ring_read(&gate_reads, record.head.ring_offset, record.head.ring_bytes));
        return record;
}

START_TEST(right_records_arrive_with_private_copies) {
        struct ckv_record record, got;
        const char *breach;

        for (uint64_t i = 1; i <= 20; i++) {
                record = right_record(i % 2 ? CKV_RECORD_COMPRESS : CKV_RECORD_PONG);
                record.head.connection = i % 2 ? 7 : 0;
                record.head.sequence = i;
                /* 20 times 1 MiB goes several times around a ring of 4 MiB */
                gate_attach(&record, 1048575, (int)i);
                gate_send(&record);
                ck_assert_int_eq(receive(&got, &breach), 0);
                ck_assert_mem_eq(&got, &record, sizeof(got));
                memset(gate_writes.base + record.head.ring_offset, 0xee, record.head.ring_bytes);
                ck_assert_uint_eq(attachment[0], i);
                ck_assert_uint_eq(attachment[1048574], i);
                /* the core tells how far it has read with whatever it sends */
                ck_assert_uint_gt(ckv_gate_channel_unreported(&channel), 0);
                ck_assert_int_eq(ckv_gate_channel_pass(&channel, &(struct ckv_record){ .head.type = CKV_RECORD_GATE_PING }), 0);
                ck_assert_uint_eq(ckv_gate_channel_unreported(&channel), 0);
                ck_assert(ckv_ring_consumed(&gate_writes, gate_receive(i).head.ring_consumed));
        }
        ck_assert_int_eq(receive(&got, &breach), CKV_GATE_CHANNEL_E_EMPTY);
}
END_TEST

/* The ways in which a first record can be wrong. */
static void wrong_magic(struct ckv_record *r) { r->head.magic++; }
static void wrong_version(struct ckv_record *r) { r->head.version++; }
static void type_zero(struct ckv_record *r) { r->head.type = 0; }
static void type_above(struct ckv_record *r) { r->head.type = CKV_RECORD_STATS + 1; }
static void type_of_core(struct ckv_record *r) { r->head.type = CKV_RECORD_RESULT; }
static void sequence_zero(struct ckv_record *r) { r->head.sequence = 0; }
static void sequence_skips(struct ckv_record *r) { r->head.sequence = 2; }
static void no_connection(struct ckv_record *r) { r->head.connection = 0; }
static void offset_without_bytes(struct ckv_record *r) { r->head.ring_offset = 8; }
static void attachment_too_long(struct ckv_record *r) { r->head.ring_bytes = CKV_ATTACHMENT_MAX_BYTES + 1; }
static void attachment_elsewhere(struct ckv_record *r) { r->head.ring_bytes = 8; r->head.ring_offset = 8; }
static void attachment_outside(struct ckv_record *r) { r->head.ring_bytes = 8; r->head.ring_offset = CKV_RING_BYTES; }
static void consumed_too_much(struct ckv_record *r) { r->head.ring_consumed = 1; }

static void (*const wrongs[])(struct ckv_record *) = {
        wrong_magic, wrong_version, type_zero, type_above, type_of_core, sequence_zero, sequence_skips, no_connection,
        offset_without_bytes, attachment_too_long, attachment_elsewhere, attachment_outside, consumed_too_much,
};

START_TEST(each_wrong_record_is_a_breach) {
        struct ckv_record record = right_record(CKV_RECORD_HELLO), got = { .head.magic = 5 };
        const char *breach;

        wrongs[_i](&record);
        gate_send(&record);
        ck_assert_int_eq(receive(&got, &breach), CKV_GATE_CHANNEL_E_BREACH);
        ck_assert_uint_gt(strlen(breach), 5);
        ck_assert_uint_eq(got.head.magic, 5);
}
END_TEST

START_TEST(a_repeated_sequence_is_a_breach) {
        struct ckv_record record = right_record(CKV_RECORD_GONE), got;
        const char *breach;

        gate_send(&record);
        gate_send(&record);
        ck_assert_int_eq(receive(&got, &breach), 0);
        ck_assert_int_eq(receive(&got, &breach), CKV_GATE_CHANNEL_E_BREACH);
}
END_TEST

START_TEST(wrong_lengths_and_descriptors_are_breaches) {
        struct ckv_record record[2] = { right_record(CKV_RECORD_HELLO) }, got;
        const char *breach;

        ck_assert_int_eq(ckv_seqpacket_send(gate_end, record, sizeof(*record) - 1, -1), 0);
        ck_assert_int_eq(receive(&got, &breach), CKV_GATE_CHANNEL_E_BREACH);
        ck_assert_int_eq(ckv_seqpacket_send(gate_end, record, sizeof(*record) + 1, -1), 0);
        ck_assert_int_eq(receive(&got, &breach), CKV_GATE_CHANNEL_E_BREACH);
        ck_assert_int_eq(ckv_seqpacket_send(gate_end, record, sizeof(*record), STDIN_FILENO), 0);
        ck_assert_int_eq(receive(&got, &breach), CKV_GATE_CHANNEL_E_BREACH);
        /* none of them counted, and nothing leaked: see teardown */
        gate_send(record);
        ck_assert_int_eq(receive(&got, &breach), 0);
}
END_TEST

START_TEST(hung_up_gate) {
        struct ckv_record record = right_record(CKV_RECORD_HELLO), got;
        const char *breach;

        gate_send(&record);
        gate_end = ckv_close(gate_end);
        ck_assert_int_eq(receive(&got, &breach), 0);
        ck_assert_int_eq(receive(&got, &breach), CKV_GATE_CHANNEL_E_CLOSED);
        ck_assert_int_eq(ckv_gate_channel_queue(&channel, &record, NULL, 0), 0);
        ck_assert_int_eq(ckv_gate_channel_flush(&channel), CKV_GATE_CHANNEL_E_CLOSED);
}
END_TEST

START_TEST(full_socket_keeps_the_order) {
        struct ckv_record record = { .head.type = CKV_RECORD_RESULT };
        uint64_t queued = 0, received = 0;

        while (ckv_gate_channel_flush(&channel) == 0) {
                record.head.request_id = ++queued;
                ck_assert_int_eq(ckv_gate_channel_queue(&channel, &record, &queued, sizeof(queued)), 0);
                ck_assert_uint_lt(queued, 100000);
        }
        ck_assert_int_eq(ckv_gate_channel_flush(&channel), CKV_GATE_CHANNEL_E_SOCKET_FULL);
        for (int i = 0; i < 10; i++) {
                record.head.request_id = ++queued;
                ck_assert_int_eq(ckv_gate_channel_queue(&channel, &record, &queued, sizeof(queued)), 0);
        }
        ck_assert_uint_gt(channel.queued_bytes, 10 * sizeof(record));
        while (received < queued) {
                struct ckv_record got = gate_receive(received + 1);
                uint64_t text;

                received++;
                ck_assert_uint_eq(got.head.request_id, received);
                memcpy(&text, gate_reads.base + got.head.ring_offset, sizeof(text));
                ck_assert_uint_eq(text, received);
                (void)ckv_gate_channel_flush(&channel);
        }
        ck_assert_uint_eq(channel.queued_bytes, 0);
        ck_assert_int_eq(ckv_gate_channel_flush(&channel), 0);
}
END_TEST

START_TEST(full_ring_waits_for_the_reader_and_a_ping_passes) {
        struct ckv_record record = { .head.type = CKV_RECORD_RESULT }, got;
        const struct ckv_record ping = { .head.type = CKV_RECORD_GATE_PING };
        const char *breach;

        for (uint64_t i = 1; i <= 3; i++) {
                record.head.request_id = i;
                memset(attachment, (int)i, CKV_ATTACHMENT_MAX_BYTES);
                ck_assert_int_eq(ckv_gate_channel_queue(&channel, &record, attachment, CKV_ATTACHMENT_MAX_BYTES), 0);
        }
        ck_assert_int_eq(ckv_gate_channel_flush(&channel), CKV_GATE_CHANNEL_E_RING_FULL);
        ck_assert_int_eq(ckv_gate_channel_pass(&channel, &ping), 0);
        ck_assert_uint_eq(gate_receive(1).head.request_id, 1);
        ck_assert_uint_eq(gate_receive(2).head.request_id, 2);
        ck_assert_uint_eq(gate_receive(3).head.type, CKV_RECORD_GATE_PING);
        ck_assert_int_eq(ckv_gate_channel_flush(&channel), CKV_GATE_CHANNEL_E_RING_FULL);

        got = right_record(CKV_RECORD_PONG);
        got.head.ring_consumed = gate_reads.head;
        gate_send(&got);
        ck_assert_int_eq(receive(&got, &breach), 0);
        ck_assert_int_eq(ckv_gate_channel_flush(&channel), 0);
        got = gate_receive(4);
        ck_assert_uint_eq(got.head.request_id, 3);
        ck_assert_uint_eq(gate_reads.base[got.head.ring_offset], 3);
        ck_assert_uint_eq(gate_reads.base[got.head.ring_offset + CKV_ATTACHMENT_MAX_BYTES - 1], 3);
}
END_TEST

START_TEST(attachment_length_at_its_limit) {
        struct ckv_record record = { .head.type = CKV_RECORD_RESULT };

        ck_assert_int_eq(ckv_gate_channel_queue(&channel, &record, attachment, CKV_ATTACHMENT_MAX_BYTES + 1), -EMSGSIZE);
        ck_assert_uint_eq(channel.queued_bytes, 0);
        ck_assert_int_eq(ckv_gate_channel_queue(&channel, &record, attachment, CKV_ATTACHMENT_MAX_BYTES), 0);
        ck_assert_int_eq(ckv_gate_channel_queue(&channel, &record, attachment, CKV_ATTACHMENT_MAX_BYTES - 1), 0);
        ck_assert_int_eq(ckv_gate_channel_flush(&channel), 0);
}
END_TEST

int main(void) {
        Suite *suite = suite_create("gate_channel");
        TCase *tcase = tcase_create("gate_channel");
        SRunner *runner = srunner_create(suite);
        int failed;

        tcase_add_checked_fixture(tcase, setup, teardown);
        tcase_add_test(tcase, right_records_arrive_with_private_copies);
        tcase_add_loop_test(tcase, each_wrong_record_is_a_breach, 0, (int)CKV_ARRAY_SIZE(wrongs));
        tcase_add_test(tcase, a_repeated_sequence_is_a_breach);
        tcase_add_test(tcase, wrong_lengths_and_descriptors_are_breaches);
        tcase_add_test(tcase, hung_up_gate);
        tcase_add_test(tcase, full_socket_keeps_the_order);
        tcase_add_test(tcase, full_ring_waits_for_the_reader_and_a_ping_passes);
        tcase_add_test(tcase, attachment_length_at_its_limit);
        suite_add_tcase(suite, tcase);
        srunner_run_all(runner, CK_NORMAL);
        failed = srunner_ntests_failed(runner);
        srunner_free(runner);
        return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
