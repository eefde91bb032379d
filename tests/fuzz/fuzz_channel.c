/*
 * The core's end of the pair to a gate that was taken over: any records, any
 * contents of its ring.  Each record is taken with an attachment that lies in
 * the ring and was copied whole, or ends the gate with a reason.
 */
#include "tests/fuzz/fuzz.h"

#include "base/macros.h"
#include "daemon/gate_channel.h"

#include <sys/socket.h>
#include <unistd.h>

/* A record as a right gate sends it, but for what the input changes. */
static void send_record(struct fuzz_input *input, int fd, uint64_t sequence) {
        struct ckv_record record = {
                .head = { .magic = CKV_RECORD_MAGIC, .version = CKV_RECORD_VERSION, .connection = 1, .sequence = sequence },
        };
        uint8_t *bytes = (uint8_t *)&record;
        size_t length = sizeof(record);

        record.head.type = fuzz_u8(input) % (CKV_RECORD_STATS + 2);
        record.head.ring_offset = fuzz_u32(input) % (CKV_RING_BYTES + 64);
        record.head.ring_bytes = fuzz_u32(input) % (CKV_ATTACHMENT_MAX_BYTES + 64);
        for (uint8_t changes = fuzz_u8(input) % 4; changes > 0; changes--) {
                size_t at = fuzz_u16(input) % sizeof(record);

                bytes[at] = fuzz_u8(input);
        }
        if (fuzz_u8(input) == 1)
                length = fuzz_u16(input) % (2 * sizeof(record));
        length = CKV_MIN(length, sizeof(record));
        (void)send(fd, &record, length, MSG_DONTWAIT | MSG_NOSIGNAL);
}

static void receive(struct ckv_gate_channel *channel, uint8_t *attachment) {
        for (;;) {
                const char *breach = NULL;
                struct ckv_record record;
                int r = ckv_gate_channel_recv(channel, &record, attachment, &breach);

                if (r == CKV_GATE_CHANNEL_E_EMPTY || r == CKV_GATE_CHANNEL_E_CLOSED)
                        return;
                if (r == CKV_GATE_CHANNEL_E_BREACH) {
                        fuzz_assert(breach && *breach);
                        return;
                }
                fuzz_assert(r == 0);
                fuzz_assert(record.head.ring_bytes <= CKV_ATTACHMENT_MAX_BYTES);
                fuzz_assert(record.head.type >= CKV_RECORD_HELLO && record.head.type <= CKV_RECORD_STATS);
        }
}

/* What the core sends meets a ring that the gate says to have read, or not. */
static void send_back(struct fuzz_input *input, struct ckv_gate_channel *channel, const uint8_t *attachment) {
        for (uint8_t records = fuzz_u8(input) % 8; records > 0; records--) {
                struct ckv_record record = { .head.type = CKV_RECORD_RESULT, .head.connection = 1 };
                /* mostly short: copies of 2 MiB would be all that there is time for */
                size_t bytes = fuzz_u8(input) ? fuzz_u16(input) : fuzz_u32(input) % (CKV_ATTACHMENT_MAX_BYTES + 64);
                int r = ckv_gate_channel_queue(channel, &record, attachment, bytes);

                fuzz_assert((r == 0) == (bytes <= CKV_ATTACHMENT_MAX_BYTES));
                r = fuzz_u8(input) % 4 ? ckv_gate_channel_flush(channel) : ckv_gate_channel_pass(channel, &record);
                fuzz_assert(r >= 0);
        }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
        static struct ckv_ring to_core, to_gate;
        static uint8_t *attachment;
        struct fuzz_input input = { data, size };
        struct ckv_gate_channel channel;
        uint8_t records;
        int pair[2];

        if (!attachment) {
                int fds[2];

                fuzz_assert(ckv_ring_create(CKV_RING_BYTES, &fds[0]) == 0 && ckv_ring_create(CKV_RING_BYTES, &fds[1]) == 0);
                fuzz_assert(ckv_ring_init(&to_core, fds[0], CKV_RING_BYTES, false) == 0);
                fuzz_assert(ckv_ring_init(&to_gate, fds[1], CKV_RING_BYTES, true) == 0);
                (void)close(fds[0]);
                (void)close(fds[1]);
                attachment = malloc(CKV_ATTACHMENT_MAX_BYTES);
        }
        fuzz_assert(attachment && socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair) == 0);
        to_core.head = to_core.tail = to_gate.head = to_gate.tail = 0;
        ckv_gate_channel_init(&channel, pair[0], &to_core, &to_gate);
        records = fuzz_u8(&input) % 16;
        for (uint64_t sequence = 1; sequence <= records; sequence++)
                send_record(&input, pair[1], sequence);
        receive(&channel, attachment);
        send_back(&input, &channel, attachment);
        receive(&channel, attachment);
        ckv_gate_channel_deinit(&channel);
        (void)close(pair[0]);
        (void)close(pair[1]);
        return 0;
}
