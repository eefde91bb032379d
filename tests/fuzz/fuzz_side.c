/*
 * The side socket: any records with any descriptors on one connection after
 * another.  Each record is answered or ends its connection; when a connection
 * is gone, no charge, no descriptor and no offer of it is left.
 */
#include "tests/fuzz/fuzz.h"

#include "base/log.h"
#include "base/macros.h"
#include "daemon/daemon.h"
#include "daemon/request.h"
#include "daemon/session.h"
#include "daemon/side.h"
#include "ipc/listen.h"
#include "ipc/seqpacket.h"
#include "proto/control.h"
#include "tests/support_files.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

enum { OFFER_BYTES = 8192, PAGE_BYTES = 4096 + 8192, RECORDS_MAX = 12 };

static char dir[SUPPORT_PATH_BYTES], path[SUPPORT_PATH_BYTES + 16];
static struct ckv_options options;
static struct ckv_daemon core;
static struct ckv_endpoint endpoint;
static int good, loose, page, nothing;
static uint8_t token[16];       /* of the newest answer */

/* No session and no request is behind these connections. */
void ckv_session_end(struct ckv_session *session) {
        fuzz_assert(!session);
}

bool ckv_request_cancel(struct ckv_request *request) {
        fuzz_assert(!request);
        return false;
}

static int memfd(size_t bytes, bool sealed) {
        int fd = memfd_create("fuzz", MFD_CLOEXEC | MFD_ALLOW_SEALING);

        fuzz_assert(fd >= 0 && posix_fallocate(fd, 0, (off_t)bytes) == 0);
        if (sealed)
                fuzz_assert(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0);
        return fd;
}

static void remove_dir(void) {
        support_dir_remove(dir);
}

static void setup(void) {
        const struct ckv_control_header header = {
                .magic = CKV_CONTROL_MAGIC, .version = CKV_CONTROL_VERSION, .slot_bytes = sizeof(struct ckv_control_slot),
                .slots = 1, .kept_offset = 4096, .kept_bytes = 8192, .size = PAGE_BYTES,
        };
        bool replaced;

        ckv_log_open("fuzz_side", CKV_LOG_ERROR);
        support_dir_make(dir);
        (void)snprintf(path, sizeof(path), "%s/main.fd", dir);
        ckv_options_init(&options);
        core = (struct ckv_daemon){ .options = &options, .boot_id = "0123456789abcde", .mapped_bytes = UINT64_C(1) << 30 };
        fuzz_assert(sd_event_new(&core.event) >= 0);
        endpoint = (struct ckv_endpoint){ .daemon = &core, .name = "main" };
        fuzz_assert(ckv_listen_create(path, SOCK_SEQPACKET, 0600, &endpoint.side_fd, &replaced) == 0);
        fuzz_assert(ckv_side_listen(&endpoint) == 0);
        /* a fuzzer connects more often than is good for anybody */
        fuzz_assert(sd_event_source_set_ratelimit(endpoint.side_source, 0, 0) >= 0);
        good = memfd(OFFER_BYTES, true);
        loose = memfd(OFFER_BYTES, false);
        page = memfd(PAGE_BYTES, true);
        nothing = open("/dev/null", O_RDWR | O_CLOEXEC);
        fuzz_assert(nothing >= 0 && pwrite(page, &header, sizeof(header), 0) == (ssize_t)sizeof(header));
        (void)atexit(remove_dir);
}

static void turn(void) {
        while (sd_event_run(core.event, 0) > 0)
                ;
}

static void send_record(struct fuzz_input *input, int client) {
        const int descriptors[] = { -1, good, loose, page, nothing, client, -1, good };
        struct ckv_side record = { .magic = CKV_SIDE_MAGIC, .version = CKV_SIDE_VERSION, .cookie = 7 };
        int fd = descriptors[fuzz_u8(input) % CKV_ARRAY_SIZE(descriptors)];

        record.type = fuzz_u8(input) % 8;
        if (record.type == CKV_SIDE_ATTACH && fd == page) {
                record.slots = 1;
                record.kept_bytes = 8192;
        } else if (record.type == CKV_SIDE_OFFER) {
                record.kind = CKV_SIDE_KIND_MEMFD;
                record.size = OFFER_BYTES;
        } else if (record.type == CKV_SIDE_WITHDRAW) {
                memcpy(record.token, token, sizeof(token));
        }
        fuzz_patch(input, &record, sizeof(record));
        (void)ckv_seqpacket_send(client, &record, sizeof(record), fd);
}

static void receive(int client) {
        struct ckv_side answer;
        int fd = -1;

        while (ckv_seqpacket_recv(client, &answer, sizeof(answer), &fd) == 0) {
                fuzz_assert(answer.magic == CKV_SIDE_MAGIC && answer.version == CKV_SIDE_VERSION);
                memcpy(token, answer.token, sizeof(token));
                (void)ckv_close(fd);
                fd = -1;
        }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
        struct sockaddr_un address = { .sun_family = AF_UNIX };
        struct fuzz_input input = { data, size };
        int client;

        if (!core.event)
                setup();
        (void)snprintf(address.sun_path, sizeof(address.sun_path), "%s", path);
        client = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        fuzz_assert(client >= 0 && connect(client, (const struct sockaddr *)&address, sizeof(address)) == 0);
        for (int i = 0; i < RECORDS_MAX && (i == 0 || input.left > 0); i++) {
                send_record(&input, client);
                turn();
                receive(client);
        }
        (void)close(client);
        turn();
        fuzz_assert(!endpoint.side_conns && !core.tenants);
        return 0;
}
