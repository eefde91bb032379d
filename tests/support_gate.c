/*
 * What a core does for its gate, in the smallest form: a listening socket, a
 * pair, two rings, posix_spawn.  The gate's program lies beside the test's.
 * PR_SET_PDEATHSIG ends the gate with the test, however that ends.
 */
#include "tests/support_gate.h"

#include "base/macros.h"
#include "ipc/seqpacket.h"

#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>

extern char **environ;

uint8_t boot_id[16], session_token[16];

/* high() - the same descriptor, above those that the gate wants */
static int high(int fd) {
        int other = fcntl(fd, F_DUPFD_CLOEXEC, 20);

        ck_assert_int_ge(other, 20);
        (void)close(fd);
        return other;
}

void core_start_gate(struct core *core) {
        char self[PATH_MAX] = { 0 }, program[PATH_MAX + 16];
        char *argv[] = { program, (char[]){ "test" }, NULL };
        struct ckv_record limits = { .head = { .type = CKV_RECORD_LIMITS }, .body = { .limits = core->limits } };
        posix_spawn_file_actions_t actions;
        int ends[2], rings[2];

        ck_assert_int_gt(readlink("/proc/self/exe", self, sizeof(self) - 1), 0);
        (void)snprintf(program, sizeof(program), "%s/chunkkv-gate", dirname(self));

        ck_assert_int_eq(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
        core->pair = high(ends[0]);
        ends[1] = high(ends[1]);
        ckv_ring_deinit(&core->to_core);
        ckv_ring_deinit(&core->to_gate);
        for (int i = 0; i < 2; i++) {
                ck_assert_int_eq(ckv_ring_create(CKV_RING_BYTES, &rings[i]), 0);
                rings[i] = high(rings[i]);
        }
        ck_assert_int_eq(ckv_ring_init(&core->to_core, rings[0], CKV_RING_BYTES, false), 0);
        ck_assert_int_eq(ckv_ring_init(&core->to_gate, rings[1], CKV_RING_BYTES, true), 0);

        ck_assert_int_eq(posix_spawn_file_actions_init(&actions), 0);
        (void)posix_spawn_file_actions_adddup2(&actions, core->stderr_fd, STDERR_FILENO);
        (void)posix_spawn_file_actions_adddup2(&actions, core->listen_fd, CKV_GATE_FD_LISTEN);
        (void)posix_spawn_file_actions_adddup2(&actions, ends[1], CKV_GATE_FD_PAIR);
        (void)posix_spawn_file_actions_adddup2(&actions, rings[0], CKV_GATE_FD_RING_TO_CORE);
        (void)posix_spawn_file_actions_adddup2(&actions, rings[1], CKV_GATE_FD_RING_TO_GATE);
        ck_assert_int_eq(posix_spawn(&core->gate, program, &actions, NULL, argv, environ), 0);
        (void)posix_spawn_file_actions_destroy(&actions);
        (void)close(ends[1]);
        (void)close(rings[0]);
        (void)close(rings[1]);
        core->sent = core->received = 0;
        ck_assert(core_send(core, &limits, NULL, 0));
}

void core_init(struct core *core) {
        struct sockaddr_un address = { .sun_family = AF_UNIX };

        *core = (struct core){ .pair = -1, .dir = "/tmp/test-gate-XXXXXX" };
        memset(boot_id, 0xb0, sizeof(boot_id));
        memset(session_token, 0x70, sizeof(session_token));
        core->limits = (struct ckv_record_limits){ .request_bytes = 262144,
                                                   .reply_bytes = 524288,
                                                   .message_parts = 4096,
                                                   .connections_per_uid = 16,
                                                   .spans = 1024,
                                                   .groups = 16,
                                                   .planes = 1024,
                                                   .rows = 1048576 };
        memset(core->limits.boot_id, 0xb0, sizeof(core->limits.boot_id));
        ck_assert_ptr_nonnull(mkdtemp(core->dir));
        (void)snprintf(core->path, sizeof(core->path), "%s/main.zmq", core->dir);
        core->listen_fd = high(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
        (void)snprintf(address.sun_path, sizeof(address.sun_path), "%s", core->path);
        ck_assert_int_eq(bind(core->listen_fd, (const struct sockaddr *)&address, sizeof(address)), 0);
        ck_assert_int_eq(listen(core->listen_fd, 64), 0);
        core->stderr_fd = high(memfd_create("stderr", MFD_CLOEXEC));
        core->context = zmq_ctx_new();
        core_start_gate(core);
}

int core_await_exit(struct core *core) {
        int status = -1;

        for (int waited = 0; waited < WAIT_MSEC; waited++) {
                if (waitpid(core->gate, &status, WNOHANG) == core->gate) {
                        core->gate = 0;
                        core->pair = ckv_close(core->pair);
                        return status;
                }
                (void)nanosleep(&(struct timespec){ .tv_nsec = 1000000 }, NULL);
        }
        ck_abort_msg("the gate did not end");
        return status;
}

int core_kill_gate(struct core *core) {
        ck_assert_int_eq(kill(core->gate, SIGKILL), 0);
        return core_await_exit(core);
}

int core_end_pair(struct core *core) {
        core->pair = ckv_close(core->pair);
        return core_await_exit(core);
}

void core_deinit(struct core *core) {
        if (core->gate > 0)
                ck_assert_int_eq(core_end_pair(core), 0);
        ck_assert_int_eq(zmq_ctx_term(core->context), 0);
        ckv_ring_deinit(&core->to_core);
        ckv_ring_deinit(&core->to_gate);
        (void)close(core->listen_fd);
        (void)close(core->stderr_fd);
        /* whatever happened to gates, nobody has removed the socket */
        ck_assert_int_eq(unlink(core->path), 0);
        ck_assert_int_eq(rmdir(core->dir), 0);
}

void core_send_raw(struct core *core, const struct ckv_record *record, size_t bytes) {
        ck_assert_int_eq(ckv_seqpacket_send(core->pair, record, bytes, -1), 0);
}

bool core_send(struct core *core, struct ckv_record *record, const void *attachment, uint32_t bytes) {
        int r;

        record->head.magic = CKV_RECORD_MAGIC;
        record->head.version = CKV_RECORD_VERSION;
        record->head.sequence = core->sent + 1;
        record->head.ring_consumed = core->to_core.head;
        if (bytes > 0) {
                void *to = ckv_ring_reserve(&core->to_gate, bytes, &record->head.ring_offset);

                ck_assert_ptr_nonnull(to);
                memcpy(to, attachment, bytes);
                record->head.ring_bytes = bytes;
        }
        r = ckv_seqpacket_send(core->pair, record, sizeof(*record), -1);
        if (r == CKV_SEQPACKET_E_AGAIN && bytes == 0)
                return false;
        ck_assert_int_eq(r, 0);
        core->sent++;
        return true;
}

/* take() - the next record, whatever it is */
static void take(struct core *core, struct ckv_record *ret_record, void *attachment) {
        struct pollfd pair = { .fd = core->pair, .events = POLLIN };

        ck_assert_int_eq(poll(&pair, 1, WAIT_MSEC), 1);
        ck_assert_int_eq(ckv_seqpacket_recv(core->pair, ret_record, sizeof(*ret_record), NULL), 0);
        ck_assert_uint_eq(ret_record->head.magic, CKV_RECORD_MAGIC);
        ck_assert_uint_eq(ret_record->head.version, CKV_RECORD_VERSION);
        ck_assert_uint_eq(ret_record->head.sequence, ++core->received);
        ck_assert(ckv_ring_consumed(&core->to_gate, ret_record->head.ring_consumed));
        if (ret_record->head.ring_bytes > 0) {
                const void *from =
                        ckv_ring_read(&core->to_core, ret_record->head.ring_offset, ret_record->head.ring_bytes);

                ck_assert_ptr_nonnull(from);
                if (attachment)
                        memcpy(attachment, from, ret_record->head.ring_bytes);
        }
}

void core_recv(struct core *core, struct ckv_record *ret_record, void *attachment) {
        do
                take(core, ret_record, attachment);
        while (ret_record->head.type == CKV_RECORD_STATS);
}

void core_ask_stats(struct core *core, struct ckv_record_stats *ret_stats) {
        struct ckv_record record = { .head = { .type = CKV_RECORD_GATE_PING } };

        ck_assert(core_send(core, &record, NULL, 0));
        do {
                take(core, &record, NULL);
                if (record.head.type == CKV_RECORD_STATS)
                        *ret_stats = record.body.stats;
        } while (record.head.type != CKV_RECORD_PONG);
}

void core_recv_type(struct core *core, enum ckv_record_type type, struct ckv_record *ret_record, void *attachment) {
        do
                core_recv(core, ret_record, attachment);
        while (ret_record->head.type == CKV_RECORD_PONG && type != CKV_RECORD_PONG);
        ck_assert_uint_eq(ret_record->head.type, type);
}

bool core_quiet(struct core *core, int msec) {
        struct pollfd pair = { .fd = core->pair, .events = POLLIN };
        struct ckv_record record;

        while (poll(&pair, 1, msec) > 0) {
                take(core, &record, NULL);
                if (record.head.type != CKV_RECORD_PONG && record.head.type != CKV_RECORD_STATS)
                        return false;
        }
        return true;
}

struct ckv_record core_answer(const struct core *core, const struct ckv_record *request, enum ckv_record_type type) {
        struct ckv_record answer = { .head = { .type = (uint16_t)type, .connection = request->head.connection,
                                               .request_id = request->head.request_id,
                                               .generation = request->head.generation } };

        memcpy(answer.head.boot_id, core->limits.boot_id, sizeof(answer.head.boot_id));
        return answer;
}

void *client_new(struct core *core, int type) {
        void *client = zmq_socket(core->context, type);
        int one = 1, zero = 0, wait = WAIT_MSEC, again = 10;

        ck_assert_ptr_nonnull(client);
        (void)zmq_setsockopt(client, ZMQ_IMMEDIATE, &one, sizeof(one));
        (void)zmq_setsockopt(client, ZMQ_LINGER, &zero, sizeof(zero));
        (void)zmq_setsockopt(client, ZMQ_SNDTIMEO, &wait, sizeof(wait));
        (void)zmq_setsockopt(client, ZMQ_RECONNECT_IVL, &again, sizeof(again));
        return client;
}

void client_connect(struct core *core, void *client) {
        char address[128];

        (void)snprintf(address, sizeof(address), "ipc://%s", core->path);
        ck_assert_int_eq(zmq_connect(client, address), 0);
}

void *client_open(struct core *core, int type) {
        void *client = client_new(core, type);

        client_connect(core, client);
        return client;
}

void client_send_bytes(void *client, const void *bytes, size_t count) {
        ck_assert_int_eq(zmq_send(client, bytes, count, 0), (int)count);
}

bool client_offer(void *client, const Chunkkv__V1__Request *request) {
        size_t bytes = chunkkv__v1__request__get_packed_size(request);
        _cleanup_free_ uint8_t *packed = malloc(bytes + 1);

        ck_assert_ptr_nonnull(packed);
        (void)chunkkv__v1__request__pack(request, packed);
        return zmq_send(client, packed, bytes, 0) == (int)bytes;
}

void client_send(void *client, const Chunkkv__V1__Request *request) {
        ck_assert(client_offer(client, request));
}

Chunkkv__V1__Response *client_recv(void *client, int msec) {
        Chunkkv__V1__Response *response;
        zmq_msg_t message;

        (void)zmq_setsockopt(client, ZMQ_RCVTIMEO, &msec, sizeof(msec));
        (void)zmq_msg_init(&message);
        if (zmq_msg_recv(&message, client, 0) < 0) {
                ck_assert_int_eq(errno, EAGAIN);
                return NULL;
        }
        ck_assert(!zmq_msg_more(&message));
        response = chunkkv__v1__response__unpack(NULL, zmq_msg_size(&message), zmq_msg_data(&message));
        ck_assert_ptr_nonnull(response);
        (void)zmq_msg_close(&message);
        return response;
}

void client_expect(void *client, uint64_t request_id, Chunkkv__V1__Code code, const char *field) {
        Chunkkv__V1__Response *response = client_recv(client, WAIT_MSEC);

        ck_assert_ptr_nonnull(response);
        ck_assert_uint_eq(response->request_id, request_id);
        ck_assert_ptr_nonnull(response->status);
        ck_assert_uint_eq(response->status->code, code);
        ck_assert_str_eq(response->status->field, field);
        ck_assert_uint_eq(response->boot_id.len, 16);
        ck_assert_mem_eq(response->boot_id.data, boot_id, 16);
        chunkkv__v1__response__free_unpacked(response, NULL);
}

Chunkkv__V1__Request *ping(uint64_t request_id) {
        static Chunkkv__V1__Ping body = CHUNKKV__V1__PING__INIT;
        static Chunkkv__V1__Request request;

        chunkkv__v1__request__init(&request);
        request.request_id = request_id;
        request.boot_id = (ProtobufCBinaryData){ 16, boot_id };
        request.session_token = (ProtobufCBinaryData){ 16, session_token };
        request.body_case = CHUNKKV__V1__REQUEST__BODY_PING;
        request.ping = &body;
        return &request;
}
