/*
 * A gate that was taken over.  Started by the core in place of chunkkv-gate,
 * it answers pings for a second, so that the daemon becomes ready; then it does
 * what the name of its endpoint says, once a second.  For an endpoint with any
 * other name it becomes the real gate, which lies beside it.
 *
 * tests/python/test_gate_hostile.py names the outcomes.
 */
#include "base/clock.h"
#include "base/macros.h"
#include "ipc/ring.h"
#include "ipc/seqpacket.h"
#include "proto/records.h"

#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>

enum { WAIT_MSEC = 1000, FLOOD = 200000 };
#define QUIET_NSEC CKV_NSEC_PER_SEC      /* the daemon becomes ready meanwhile */

static struct ckv_ring ring;
static uint64_t sequence;
static uint8_t boot_id[16];

static struct ckv_record record_make(enum ckv_record_type type) {
        struct ckv_record record = { .head = { .magic = CKV_RECORD_MAGIC, .version = CKV_RECORD_VERSION, .type = (uint16_t)type } };

        if (type < CKV_RECORD_PONG)
                record.head.connection = 1;
        memcpy(record.head.boot_id, boot_id, sizeof(boot_id));
        record.head.sequence = ++sequence;
        record.head.deadline_ns = UINT64_MAX / 2;
        return record;
}

/* send_bytes() - Return: false when the core is gone */
static bool send_bytes(const void *bytes, size_t size) {
        struct pollfd pair = { .fd = CKV_GATE_FD_PAIR, .events = POLLOUT };

        return poll(&pair, 1, WAIT_MSEC) == 1 && ckv_seqpacket_send(CKV_GATE_FD_PAIR, bytes, size, -1) == 0;
}

static bool send_record(const struct ckv_record *record) {
        return send_bytes(record, sizeof(*record));
}

/* attach() - say that the attachment lies there */
static void attach(struct ckv_record *record, uint32_t offset, uint32_t bytes) {
        record->head.ring_offset = offset;
        record->head.ring_bytes = bytes;
}

/* broken() - what breaks the protocol of records. Return: false if @how names no such thing. */
static bool broken(const char *how, struct ckv_record *record) {
        *record = record_make(CKV_RECORD_PING);
        if (strcmp(how, "garbage") == 0)
                memset(record, 0xa5, sizeof(*record));
        else if (strcmp(how, "version") == 0)
                record->head.version++;
        else if (strcmp(how, "type") == 0)
                record->head.type = CKV_RECORD_WELCOME;
        else if (strcmp(how, "sequence") == 0)
                record->head.sequence++;
        else if (strcmp(how, "repeat") == 0)
                record->head.sequence--;
        else if (strcmp(how, "nobody") == 0)
                record->head.connection = 0;
        else if (strcmp(how, "ring-ahead") == 0)
                record->head.ring_consumed = UINT64_MAX / 2;
        else if (strcmp(how, "ring-offset") == 0)
                attach(record, CKV_RING_BYTES, 64);
        else if (strcmp(how, "ring-end") == 0)
                attach(record, CKV_RING_BYTES - 16, 64);
        else if (strcmp(how, "ring-long") == 0)
                attach(record, 0, CKV_ATTACHMENT_MAX_BYTES + 1);
        else if (strcmp(how, "ring-stray") == 0)
                record->head.ring_offset = 64;
        else if (strcmp(how, "counts") == 0) {
                record->head.type = CKV_RECORD_STATS;
                record->body.stats.uid_count = UINT32_MAX;
        } else
                return false;
        return true;
}

/* pong_all() - answer what the core has sent; false when it is gone */
static bool pong_all(int wait_msec) {
        struct pollfd pair = { .fd = CKV_GATE_FD_PAIR, .events = POLLIN };
        struct ckv_record record;

        while (poll(&pair, 1, wait_msec) == 1) {
                wait_msec = 0;
                if (ckv_seqpacket_recv(CKV_GATE_FD_PAIR, &record, sizeof(record), NULL))
                        return false;
                if (record.head.type == CKV_RECORD_LIMITS)
                        memcpy(boot_id, record.body.limits.boot_id, sizeof(boot_id));
                if (record.head.type == CKV_RECORD_GATE_PING) {
                        record = record_make(CKV_RECORD_PONG);
                        if (!send_record(&record))
                                return false;
                }
        }
        return true;
}

/* strange() - right in form, wrong in what they say: answered with an error, and the gate lives */
static void strange(void) {
        static const enum ckv_record_type types[] = {
                CKV_RECORD_PING, CKV_RECORD_GET_STATUS, CKV_RECORD_END_SESSION, CKV_RECORD_REGISTER_REGION,
                CKV_RECORD_UNREGISTER_REGION, CKV_RECORD_REGISTER_CACHE, CKV_RECORD_UNREGISTER_CACHE, CKV_RECORD_COMPRESS,
                CKV_RECORD_COMMIT, CKV_RECORD_CANCEL, CKV_RECORD_REPAIR, CKV_RECORD_HELLO, CKV_RECORD_GONE,
        };

        for (size_t i = 0; i < CKV_ARRAY_SIZE(types); i++) {
                struct ckv_record record = record_make(types[i]);

                /* a session that does not exist, of a user and a process that may not exist, with a body of noise */
                memset(record.head.token, 0x5a, sizeof(record.head.token));
                record.head.uid = 4711;
                record.head.pid = INT32_MAX;
                memset(&record.body, 0xa5, sizeof(record.body));
                (void)send_record(&record);
        }
}

static int behave(const char *how) {
        uint64_t begin = ckv_now_nsec();
        struct ckv_record record;

        while (pong_all(WAIT_MSEC)) {
                if (ckv_now_nsec() - begin < QUIET_NSEC)
                        continue;
                if (strcmp(how, "silent") == 0)
                        for (;;)
                                (void)pause();
                if (strcmp(how, "short") == 0)
                        (void)send_bytes("x", 1);
                else if (strcmp(how, "strange") == 0)
                        strange();
                else if (strcmp(how, "flood") == 0)
                        for (int i = 0; i < FLOOD && pong_all(0); i++) {
                                record = record_make(CKV_RECORD_PING);
                                if (!send_record(&record))
                                        return 1;
                        }
                else if (broken(how, &record))
                        (void)send_record(&record);
        }
        return 0;
}

int main(int argc, char *argv[]) {
        static const char *const modes[] = {
                "garbage", "version", "type", "sequence", "repeat", "nobody", "ring-ahead", "ring-offset", "ring-end", "ring-long",
                "ring-stray", "counts", "short", "silent", "strange", "flood",
        };
        char path[PATH_MAX + 16] = { 0 }, *slash;

        if (argc < 2)
                return 2;
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        for (size_t i = 0; i < CKV_ARRAY_SIZE(modes); i++)
                if (strcmp(argv[1], modes[i]) == 0)
                        return ckv_ring_init(&ring, CKV_GATE_FD_RING_TO_CORE, CKV_RING_BYTES, true) ? 2 : behave(argv[1]);
        if (readlink("/proc/self/exe", path, PATH_MAX) < 0)
                return 2;
        slash = strrchr(path, '/');
        (void)snprintf(slash, sizeof(path) - (size_t)(slash - path), "/chunkkv-gate");
        (void)execv(path, argv);
        return 2;
}
