/*
 * The side socket with the test as its client: attaching, offering, each
 * breach, quotas at their borders, deaths.  Every test ends with no tenant
 * left, which asserts that all charges went back, and no descriptor leaked.
 */
#include "daemon/side.h"

#include "base/clock.h"
#include "base/limits.h"
#include "base/log.h"
#include "base/macros.h"
#include "daemon/control.h"
#include "daemon/daemon.h"
#include "daemon/request.h"
#include "daemon/session.h"
#include "daemon/side_offer.h"
#include "ipc/listen.h"
#include "ipc/seqpacket.h"
#include "proto/status.h"
#include "tests/support_files.h"

#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>

enum { SIZE = 8192 };
#define ALL_SEALS (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)

static char dir[SUPPORT_PATH_BYTES], path[SUPPORT_PATH_BYTES + 16];
static struct ckv_options options;
static struct ckv_daemon daemon_;
static struct ckv_endpoint endpoint;
static unsigned fds_before;

/* The session layer's part in this: remember who ended. */
static struct ckv_session *ended;
static unsigned ended_count;
static struct ckv_side_conn *ended_conn;

void ckv_session_end(struct ckv_session *session) {
        ended = session;
        ended_count++;
        /* as the real one does: it may look at the connection once more, and unties itself */
        if (ended_conn) {
                ck_assert_ptr_null(ckv_side_session(ended_conn));
                ckv_side_notice(ended_conn, CKV_SIDE_NOTICE_SESSION_ENDED, 0);
                ckv_side_bind(ended_conn, NULL);
        }
}

/* No request runs here. */
bool ckv_request_cancel(struct ckv_request *request) {
        (void)request;
        return false;
}

static void setup(void) {
        bool replaced;

        ckv_log_open("test_side", CKV_LOG_ERROR);
        support_dir_make(dir);
        (void)snprintf(path, sizeof(path), "%s/main.fd", dir);
        fds_before = support_fds_count();
        ckv_options_init(&options);
        daemon_ = (struct ckv_daemon){ .options = &options, .mapped_bytes = 1 << 30, .boot_id = "0123456789abcde" };
        ck_assert_int_ge(sd_event_new(&daemon_.event), 0);
        endpoint = (struct ckv_endpoint){ .daemon = &daemon_, .name = "main" };
        ck_assert_int_eq(ckv_listen_create(path, SOCK_SEQPACKET, 0600, &endpoint.side_fd, &replaced), 0);
        ck_assert_int_eq(ckv_side_listen(&endpoint), 0);
}

static void teardown(void) {
        ckv_side_shutdown(&endpoint);
        ck_assert_ptr_null(daemon_.tenants);
        (void)close(endpoint.side_fd);
        daemon_.event = sd_event_unref(daemon_.event);
        ck_assert_uint_eq(support_fds_count(), fds_before);
        support_dir_remove(dir);
}

/* turn() - let the daemon do what there is to do */
static void turn(void) {
        for (int i = 0; i < 10; i++)
                ck_assert_int_ge(sd_event_run(daemon_.event, 1000), 0);
}

static int client_connect(void) {
        struct sockaddr_un address = { .sun_family = AF_UNIX };
        int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

        ck_assert_int_ge(fd, 0);
        strcpy(address.sun_path, path);
        ck_assert_int_eq(connect(fd, (const struct sockaddr *)&address, sizeof(address)), 0);
        turn();
        return fd;
}

static void client_send(int client, const struct ckv_side *record, int fd) {
        ck_assert_int_eq(ckv_seqpacket_send(client, record, sizeof(*record), fd), 0);
        turn();
}

/* closed() - did the daemon hang up? */
static bool closed(int client) {
        struct ckv_side record;
        int fd = -1, r = ckv_seqpacket_recv(client, &record, sizeof(record), &fd);

        (void)ckv_close(fd);
        return r == CKV_SEQPACKET_E_CLOSED;
}

/* answer() - the next record of the daemon, its envelope checked; a descriptor where @want_fd says so */
static struct ckv_side answer(int client, uint16_t type, uint64_t cookie, bool want_fd, int *ret_fd) {
        struct ckv_side record;
        int fd = -1;

        ck_assert_int_eq(ckv_seqpacket_recv(client, &record, sizeof(record), &fd), 0);
        ck_assert_uint_eq(record.magic, CKV_SIDE_MAGIC);
        ck_assert_uint_eq(record.version, CKV_SIDE_VERSION);
        ck_assert_uint_eq(record.type, type);
        ck_assert_uint_eq(record.cookie, cookie);
        ck_assert_uint_eq(record.flags, 0);
        ck_assert_uint_eq(record.zero, 0);
        ck_assert_int_eq(fd >= 0, want_fd);
        if (ret_fd)
                *ret_fd = fd;
        else
                (void)ckv_close(fd);
        return record;
}

static struct ckv_side request(uint16_t type) {
        return (struct ckv_side){ .magic = CKV_SIDE_MAGIC, .version = CKV_SIDE_VERSION, .type = type, .cookie = 77 };
}

/* attach() - a connection that has attached; its token goes to @ret_token if that is not NULL */
static int attach(uint8_t *ret_token) {
        struct ckv_side record = request(CKV_SIDE_ATTACH);
        int client = client_connect();

        client_send(client, &record, -1);
        record = answer(client, CKV_SIDE_ATTACHED, 77, true, NULL);
        ck_assert_uint_eq(record.code, CKV_CODE_OK);
        if (ret_token)
                memcpy(ret_token, record.token, 16);
        return client;
}

/* offer() - send an OFFER of @fd, which is closed here. Return: the answer. */
static struct ckv_side offer(int client, int fd, uint32_t kind, uint64_t size) {
        struct ckv_side record = request(CKV_SIDE_OFFER);

        record.kind = kind;
        record.size = size;
        client_send(client, &record, fd);
        (void)close(fd);
        return answer(client, CKV_SIDE_OFFERED, 77, false, NULL);
}

static struct ckv_side offer_good(int client) {
        return offer(client, support_memfd(SIZE, SIZE, ALL_SEALS), CKV_SIDE_KIND_MEMFD, SIZE);
}

static uint64_t used(enum ckv_slot slot) {
        uint32_t uid = getuid();
        struct ckv_tenant *tenant;

        HASH_FIND(hh, daemon_.tenants, &uid, sizeof(uid), tenant);
        return tenant ? tenant->used[slot] : 0;
}

START_TEST(attach_tells_what_hello_needs) {
        static const uint8_t no_token[16];
        struct ckv_side record = request(CKV_SIDE_ATTACH);
        uint64_t before = ckv_now_nsec();
        struct pollfd p = { .events = POLLIN };
        struct ckv_side_conn *conn;
        int client = client_connect();

        ck_assert_uint_eq(used(CKV_SLOT_CONNECTIONS), 1);
        ck_assert_ptr_null(ckv_side_find(&endpoint, no_token));
        client_send(client, &record, -1);
        record = answer(client, CKV_SIDE_ATTACHED, 77, true, &p.fd);
        ck_assert_uint_eq(record.code, CKV_CODE_OK);
        ck_assert_mem_eq(record.boot_id, daemon_.boot_id, 16);
        ck_assert_uint_ge(record.now_ns, before);
        ck_assert_uint_le(record.now_ns, ckv_now_nsec());
        ck_assert_uint_eq(record.kind | record.size | record.slots | record.kept_bytes | record.region_id, 0);
        /* the pidfd is of the daemon, which lives */
        ck_assert_int_eq(poll(&p, 1, 0), 0);
        (void)close(p.fd);

        conn = ckv_side_find(&endpoint, record.token);
        ck_assert_ptr_nonnull(conn);
        ck_assert_uint_eq(ckv_side_peer(conn)->uid, getuid());
        ck_assert_uint_eq(ckv_side_peer(conn)->gid, getgid());
        ck_assert_uint_eq(ckv_side_peer(conn)->pid, (uint32_t)getpid());
        record.token[15] ^= 1;
        ck_assert_ptr_null(ckv_side_find(&endpoint, record.token));
        (void)close(client);
        turn();
        record.token[15] ^= 1;
        ck_assert_ptr_null(ckv_side_find(&endpoint, record.token));
        ck_assert_ptr_null(daemon_.tenants);
}
END_TEST

/* page() - a sealed memfd with the header of a control page; @size 0: as the header says */
static int page(const struct ckv_control_header *header, uint64_t size) {
        int fd = support_memfd((off_t)(size ? size : header->size), (off_t)(size ? size : header->size), 0);

        ck_assert_int_eq(pwrite(fd, header, sizeof(*header), 0), sizeof(*header));
        ck_assert_int_eq(fcntl(fd, F_ADD_SEALS, ALL_SEALS), 0);
        return fd;
}

static const struct ckv_control_header good_header = {
        .magic = CKV_CONTROL_MAGIC, .version = CKV_CONTROL_VERSION, .slot_bytes = sizeof(struct ckv_control_slot), .slots = 2,
        .kept_offset = 4096, .kept_bytes = 8192, .size = 4096 + 2 * 8192,
};

/* attach_page() - ATTACH with a page, which is closed here. Return: the code of the answer. */
static uint32_t attach_page(int client, int fd, uint32_t slots, uint32_t kept_bytes) {
        struct ckv_side record = request(CKV_SIDE_ATTACH);
        int self = -1;

        record.slots = slots;
        record.kept_bytes = kept_bytes;
        client_send(client, &record, fd);
        (void)ckv_close(fd);
        ck_assert_int_eq(ckv_seqpacket_recv(client, &record, sizeof(record), &self), 0);
        ck_assert_int_eq(self >= 0, record.code == CKV_CODE_OK);
        (void)ckv_close(self);
        return record.code;
}

START_TEST(control_pages_that_are_none) {
        struct ckv_control_header h = good_header;
        int client = client_connect();

        ck_assert_uint_eq(attach_page(client, -1, 2, 8192), CKV_CODE_INVALID_ARGUMENT);
        ck_assert_uint_eq(attach_page(client, page(&h, 0), 0, 8192), CKV_CODE_INVALID_ARGUMENT);
        ck_assert_uint_eq(attach_page(client, page(&h, 0), 2, 0), CKV_CODE_INVALID_ARGUMENT);
        ck_assert_uint_eq(attach_page(client, page(&h, 0), 0, 0), CKV_CODE_INVALID_ARGUMENT);
        ck_assert_uint_eq(attach_page(client, page(&h, 0), 1, 8192), CKV_CODE_INVALID_ARGUMENT);
        ck_assert_uint_eq(attach_page(client, page(&h, 0), 2, 4096), CKV_CODE_INVALID_ARGUMENT);
        ck_assert_uint_eq(attach_page(client, page(&h, 0), 9, 4096), CKV_CODE_INVALID_ARGUMENT);
        ck_assert_uint_eq(attach_page(client, page(&h, 0), 2, 8191), CKV_CODE_INVALID_ARGUMENT);
        /* the file: too short, too long, sparse, not sealed, none at all */
        ck_assert_uint_eq(attach_page(client, support_memfd(0, 0, ALL_SEALS), 2, 8192), CKV_CODE_OUT_OF_RANGE);
        ck_assert_uint_eq(attach_page(client, page(&h, h.size + 4096), 2, 8192), CKV_CODE_OUT_OF_RANGE);
        ck_assert_uint_eq(attach_page(client, page(&h, h.size - 4096), 2, 8192), CKV_CODE_OUT_OF_RANGE);
        ck_assert_uint_eq(attach_page(client, page(&h, CKV_CONTROL_BYTES_MAX + 4096), 2, 8192), CKV_CODE_OUT_OF_RANGE);
        ck_assert_uint_eq(attach_page(client, support_memfd((off_t)h.size, (off_t)h.size / 2, ALL_SEALS), 2, 8192), CKV_CODE_SPARSE);
        ck_assert_uint_eq(attach_page(client, support_memfd((off_t)h.size, (off_t)h.size, 0), 2, 8192), CKV_CODE_NOT_SEALED);
        ck_assert_uint_eq(attach_page(client, open("/dev/zero", O_RDWR | O_CLOEXEC), 2, 8192), CKV_CODE_HANDLE_INVALID);
        ck_assert_uint_eq(used(CKV_SLOT_MAPPED_BYTES), 0);
        /* none of it was a breach: it can still attach */
        ck_assert_uint_eq(attach_page(client, page(&h, 0), 2, 8192), CKV_CODE_OK);
        (void)close(client);
}
END_TEST

/* Each field of the header made wrong. */
static void header_magic(struct ckv_control_header *h) { h->magic++; }
static void header_version(struct ckv_control_header *h) { h->version++; }
static void header_slot_bytes(struct ckv_control_header *h) { h->slot_bytes = 64; }
static void header_slots(struct ckv_control_header *h) { h->slots = 1; }
static void header_kept_bytes(struct ckv_control_header *h) { h->kept_bytes = 4096; }
static void header_kept_offset_odd(struct ckv_control_header *h) { h->kept_offset = 4095; }
static void header_kept_offset_zero(struct ckv_control_header *h) { h->kept_offset = 0; }
static void header_kept_offset_high(struct ckv_control_header *h) { h->kept_offset = 8192; }
static void header_kept_offset_wraps(struct ckv_control_header *h) { h->kept_offset = UINT32_MAX - 4095; }
static void header_size(struct ckv_control_header *h) { h->size += 4096; }
static void header_zero(struct ckv_control_header *h) { h->zero = 1; }
static void header_zero2(struct ckv_control_header *h) { h->zero2 = 1; }

static void (*const wrong_headers[])(struct ckv_control_header *) = {
        header_magic, header_version, header_slot_bytes, header_slots, header_kept_bytes, header_kept_offset_odd,
        header_kept_offset_zero, header_kept_offset_high, header_kept_offset_wraps, header_size, header_zero, header_zero2,
};

START_TEST(control_headers) {
        struct ckv_control_header h = good_header;
        int client = client_connect();
        uint32_t code;

        wrong_headers[_i](&h);
        code = attach_page(client, page(&h, good_header.size), 2, 8192);
        ck_assert(code == CKV_CODE_INVALID_ARGUMENT || code == CKV_CODE_OUT_OF_RANGE);
        ck_assert_uint_eq(used(CKV_SLOT_MAPPED_BYTES), 0);
        (void)close(client);
}
END_TEST

START_TEST(control_page_lives_with_its_connection) {
        struct ckv_control_header *h;
        uint64_t beat;
        int client = client_connect(), fd = page(&good_header, 0);

        h = mmap(NULL, good_header.size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        ck_assert_ptr_ne(h, MAP_FAILED);
        ck_assert_uint_eq(attach_page(client, fd, 2, 8192), CKV_CODE_OK);
        ck_assert_uint_eq(used(CKV_SLOT_MAPPED_BYTES), good_header.size);
        ck_assert_mem_eq(h->boot_id, daemon_.boot_id, 16);
        beat = h->heartbeat_ns;
        ck_assert_uint_le(ckv_now_nsec() - beat, CKV_NSEC_PER_SEC);
        /* it beats, and whatever the client makes of the header, nothing happens to the daemon */
        memset(h, 0xff, 48);
        while (h->heartbeat_ns == beat)
                ck_assert_int_ge(sd_event_run(daemon_.event, 100000), 0);
        ck_assert_uint_le(h->heartbeat_ns - beat, CKV_NSEC_PER_SEC);
        ck_assert_uint_eq(h->magic, UINT32_MAX);
        (void)close(client);
        turn();
        ck_assert_ptr_null(daemon_.tenants);
        beat = h->heartbeat_ns;
        (void)usleep(600000);
        turn();
        ck_assert_uint_eq(h->heartbeat_ns, beat);
        (void)munmap(h, good_header.size);
}
END_TEST

START_TEST(control_page_over_quota) {
        int client = client_connect();

        daemon_.mapped_bytes = good_header.size - 1;
        ckv_tenants_set_limits(&daemon_);
        ck_assert_uint_eq(attach_page(client, page(&good_header, 0), 2, 8192), CKV_CODE_QUOTA);
        daemon_.mapped_bytes++;
        ckv_tenants_set_limits(&daemon_);
        ck_assert_uint_eq(attach_page(client, page(&good_header, 0), 2, 8192), CKV_CODE_OK);
        (void)close(client);
}
END_TEST

/* Breaches: a record made wrong, whether to attach before, and with which descriptor (0: none, 1: a memfd). */
static void wrong_magic(struct ckv_side *r) { r->magic++; }
static void wrong_version(struct ckv_side *r) { r->version = 2; }
static void wrong_type(struct ckv_side *r) { r->type = CKV_SIDE_NOTICE; }
static void type_zero(struct ckv_side *r) { r->type = 0; }
static void nothing(struct ckv_side *r) { (void)r; }
static void with_code(struct ckv_side *r) { r->code = 1; }
static void with_kind(struct ckv_side *r) { r->kind = 1; }
static void with_size(struct ckv_side *r) { r->size = 1; }
static void with_now(struct ckv_side *r) { r->now_ns = 1; }
static void with_boot_id(struct ckv_side *r) { r->boot_id[15] = 1; }
static void with_token(struct ckv_side *r) { r->token[15] = 1; }
static void with_slots(struct ckv_side *r) { r->slots = 1; }
static void with_region(struct ckv_side *r) { r->region_id = 1; }
static void with_flags(struct ckv_side *r) { r->flags = 1; }
static void with_zero(struct ckv_side *r) { r->zero = 1; }

static const struct {
        void (*spoil)(struct ckv_side *);
        uint16_t type;
        bool attached, fd;
} breaches[] = {
        { wrong_magic, CKV_SIDE_ATTACH, false, false },  { wrong_version, CKV_SIDE_ATTACH, false, false },
        { wrong_type, CKV_SIDE_ATTACH, true, false },    { type_zero, CKV_SIDE_ATTACH, true, false },
        { wrong_type, CKV_SIDE_ATTACH, true, true },     { nothing, CKV_SIDE_ATTACHED, true, false },
        { nothing, CKV_SIDE_OFFER, false, true },        { nothing, CKV_SIDE_WITHDRAW, false, false },
        { nothing, CKV_SIDE_ATTACH, true, false },       { nothing, CKV_SIDE_ATTACH, true, true },
        { nothing, CKV_SIDE_OFFER, true, false },        { nothing, CKV_SIDE_WITHDRAW, true, true },
        { with_code, CKV_SIDE_ATTACH, false, false },    { with_kind, CKV_SIDE_ATTACH, false, false },
        { with_size, CKV_SIDE_ATTACH, false, true },     { with_now, CKV_SIDE_ATTACH, false, false },
        { with_boot_id, CKV_SIDE_ATTACH, false, false }, { with_token, CKV_SIDE_ATTACH, false, false },
        { with_region, CKV_SIDE_ATTACH, false, false },  { with_flags, CKV_SIDE_ATTACH, false, false },
        { with_zero, CKV_SIDE_ATTACH, false, false },    { with_token, CKV_SIDE_OFFER, true, true },
        { with_slots, CKV_SIDE_OFFER, true, true },      { with_code, CKV_SIDE_OFFER, true, true },
        { with_size, CKV_SIDE_WITHDRAW, true, false },   { with_kind, CKV_SIDE_WITHDRAW, true, false },
        { with_slots, CKV_SIDE_WITHDRAW, true, false },
};

START_TEST(each_breach_closes_the_connection) {
        struct ckv_side record = request(breaches[_i].type);
        int client = breaches[_i].attached ? attach(NULL) : client_connect(), fd = -1, bystander = attach(NULL);

        if (breaches[_i].fd)
                fd = support_memfd(SIZE, SIZE, ALL_SEALS);
        if (breaches[_i].type == CKV_SIDE_OFFER) {
                record.kind = CKV_SIDE_KIND_MEMFD;
                record.size = SIZE;
        }
        breaches[_i].spoil(&record);
        client_send(client, &record, fd);
        ck_assert(closed(client));
        ck_assert(!closed(bystander));
        ck_assert_uint_eq(used(CKV_SLOT_CONNECTIONS), 1);
        ck_assert_uint_eq(used(CKV_SLOT_FDS), 0);
        (void)ckv_close(fd);
        (void)close(client);
        (void)close(bystander);
}
END_TEST

START_TEST(malformed_messages_close_the_connection) {
        struct ckv_side record[2] = { request(CKV_SIDE_ATTACH), request(CKV_SIDE_ATTACH) };
        int client = client_connect();

        ck_assert_int_eq(send(client, record, sizeof(*record) - 1, 0), sizeof(*record) - 1);
        turn();
        ck_assert(closed(client));
        (void)close(client);
        client = client_connect();
        ck_assert_int_eq(send(client, record, sizeof(record), 0), sizeof(record));
        turn();
        ck_assert(closed(client));
        (void)close(client);
}
END_TEST

START_TEST(two_descriptors_close_the_connection) {
        union {
                char bytes[CMSG_SPACE(2 * sizeof(int))];
                struct cmsghdr align;
        } control = { { 0 } };
        int client = attach(NULL), fds[2] = { support_memfd(SIZE, SIZE, ALL_SEALS), support_memfd(SIZE, SIZE, ALL_SEALS) };
        struct ckv_side record = request(CKV_SIDE_OFFER);
        struct iovec iov = { &record, sizeof(record) };
        struct msghdr header = { .msg_iov = &iov, .msg_iovlen = 1, .msg_control = control.bytes,
                                 .msg_controllen = sizeof(control.bytes) };
        struct cmsghdr *c = CMSG_FIRSTHDR(&header);

        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(sizeof(fds));
        memcpy(CMSG_DATA(c), fds, sizeof(fds));
        record.kind = CKV_SIDE_KIND_MEMFD;
        record.size = SIZE;
        ck_assert_int_eq(sendmsg(client, &header, 0), sizeof(record));
        turn();
        ck_assert(closed(client));
        (void)close(fds[0]);
        (void)close(fds[1]);
        (void)close(client);
}
END_TEST

START_TEST(offers_say_what_is_wrong) {
        static const uint8_t no_token[16];
        int client = attach(NULL), pipes[2];
        struct ckv_side got;

        ck_assert_uint_eq(offer(client, support_memfd(SIZE, SIZE, 0), CKV_SIDE_KIND_MEMFD, SIZE).code, CKV_CODE_NOT_SEALED);
        ck_assert_uint_eq(offer(client, support_memfd(SIZE, 4096, ALL_SEALS), CKV_SIDE_KIND_MEMFD, SIZE).code, CKV_CODE_SPARSE);
        ck_assert_uint_eq(offer(client, support_memfd(SIZE, SIZE, ALL_SEALS), CKV_SIDE_KIND_MEMFD, SIZE + 1).code,
                          CKV_CODE_OUT_OF_RANGE);
        ck_assert_uint_eq(offer(client, support_memfd(0, 0, ALL_SEALS), CKV_SIDE_KIND_MEMFD, 0).code, CKV_CODE_INVALID_ARGUMENT);
        ck_assert_uint_eq(offer(client, support_memfd(SIZE, SIZE, ALL_SEALS), 3, SIZE).code, CKV_CODE_INVALID_ARGUMENT);
        ck_assert_uint_eq(offer(client, support_memfd(SIZE, SIZE, ALL_SEALS), CKV_SIDE_KIND_CUDA_VMM, SIZE).code, CKV_CODE_UNSUPPORTED);
        ck_assert_int_eq(pipe2(pipes, O_CLOEXEC), 0);
        got = offer(client, pipes[0], CKV_SIDE_KIND_MEMFD, SIZE);
        ck_assert_uint_eq(got.code, CKV_CODE_HANDLE_INVALID);
        ck_assert_mem_eq(got.token, no_token, 16);
        (void)close(pipes[1]);
        ck_assert_uint_eq(used(CKV_SLOT_FDS), 0);
        got = offer_good(client);
        ck_assert_uint_eq(got.code, CKV_CODE_OK);
        ck_assert_mem_ne(got.token, no_token, 16);
        ck_assert_uint_eq(used(CKV_SLOT_FDS), 1);
        (void)close(client);
}
END_TEST

START_TEST(an_offer_is_taken_once) {
        uint8_t token[16];
        int client = attach(token), other = attach(NULL), fd = -1;
        struct ckv_side_conn *conn = ckv_side_find(&endpoint, token);
        struct ckv_side got = offer_good(client);
        uint64_t size = 0;
        uint32_t kind = 0;

        token[0] = (uint8_t)(got.token[0] ^ 1);
        memcpy(token + 1, got.token + 1, 15);
        ck_assert(!ckv_side_take(conn, token, &fd, &kind, &size));
        ck_assert(ckv_side_take(conn, got.token, &fd, &kind, &size));
        ck_assert_int_ge(fd, 0);
        ck_assert_uint_eq(kind, CKV_SIDE_KIND_MEMFD);
        ck_assert_uint_eq(size, SIZE);
        ck_assert_int_eq(fcntl(fd, F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
        ck_assert_uint_eq(used(CKV_SLOT_FDS), 0);
        (void)close(fd);
        fd = -1;
        ck_assert(!ckv_side_take(conn, got.token, &fd, &kind, &size));
        ck_assert_int_eq(fd, -1);
        (void)close(client);
        (void)close(other);
}
END_TEST

START_TEST(withdraw_gives_the_descriptor_up) {
        struct ckv_side record = request(CKV_SIDE_WITHDRAW), got;
        int client = attach(NULL);

        memcpy(record.token, offer_good(client).token, 16);
        client_send(client, &record, -1);
        got = answer(client, CKV_SIDE_OFFERED, 77, false, NULL);
        ck_assert_uint_eq(got.code, CKV_CODE_OK);
        ck_assert_mem_eq(got.token, record.token, 16);
        ck_assert_uint_eq(used(CKV_SLOT_FDS), 0);
        client_send(client, &record, -1);
        got = answer(client, CKV_SIDE_OFFERED, 77, false, NULL);
        ck_assert_uint_eq(got.code, CKV_CODE_NOT_FOUND);
        ck_assert_mem_eq(got.token, record.token, 16);
        (void)close(client);
}
END_TEST

START_TEST(offers_expire_in_order) {
        const uint64_t minute = CKV_LIMIT_OFFER_SECONDS * CKV_NSEC_PER_SEC, second = CKV_NSEC_PER_SEC;
        struct ckv_side_offers offers = { 0 };
        struct ckv_tenant *tenant;
        uint8_t first[16], last[16];
        uint64_t size;
        uint32_t kind;
        int fd;

        ck_assert_int_eq(ckv_tenant_ref(&daemon_, getuid(), &tenant), 0);
        ck_assert_uint_eq(ckv_side_offers_expire(&offers, 5), 0);
        fd = support_memfd(SIZE, SIZE, ALL_SEALS);
        ck_assert_int_eq(ckv_side_offer_add(&offers, tenant, fd, CKV_SIDE_KIND_MEMFD, SIZE, second, first), CKV_CODE_OK);
        fd = support_memfd(SIZE, SIZE, ALL_SEALS);
        ck_assert_int_eq(ckv_side_offer_add(&offers, tenant, fd, CKV_SIDE_KIND_MEMFD, SIZE, 2 * second, last), CKV_CODE_OK);
        ck_assert_uint_eq(ckv_side_offers_expire(&offers, second + minute - 1), second + minute);
        ck_assert_uint_eq(tenant->used[CKV_SLOT_FDS], 2);
        ck_assert_uint_eq(ckv_side_offers_expire(&offers, second + minute), 2 * second + minute);
        ck_assert_uint_eq(tenant->used[CKV_SLOT_FDS], 1);
        ck_assert(!ckv_side_offer_take(&offers, first, second, &fd, &kind, &size));
        ck_assert(!ckv_side_offer_take(&offers, last, 2 * second + minute, &fd, &kind, &size));
        ck_assert_uint_eq(tenant->used[CKV_SLOT_FDS], 0);
        ckv_tenant_unref(tenant);
}
END_TEST

START_TEST(descriptors_at_their_limit) {
        struct ckv_side record = request(CKV_SIDE_WITHDRAW);
        int client;

        options.fds = 3;
        client = attach(NULL);
        ck_assert_uint_eq(offer_good(client).code, CKV_CODE_OK);
        ck_assert_uint_eq(offer_good(client).code, CKV_CODE_OK);
        memcpy(record.token, offer_good(client).token, 16);
        ck_assert_uint_eq(used(CKV_SLOT_FDS), 3);
        ck_assert_uint_eq(offer_good(client).code, CKV_CODE_QUOTA);
        ck_assert_uint_eq(used(CKV_SLOT_FDS), 3);
        client_send(client, &record, -1);
        ck_assert_uint_eq(answer(client, CKV_SIDE_OFFERED, 77, false, NULL).code, CKV_CODE_OK);
        ck_assert_uint_eq(offer_good(client).code, CKV_CODE_OK);
        ck_assert_uint_eq(offer_good(client).code, CKV_CODE_QUOTA);
        /* closing gives everything back */
        (void)close(client);
        turn();
        ck_assert_ptr_null(daemon_.tenants);
}
END_TEST

/* refused_for_quota() - one connection more than @limit: is told so, and closed, whether or not it has written */
static void refused_for_quota(uint32_t limit, uint32_t open, bool writes) {
        const struct ckv_side attach_record = { .magic = CKV_SIDE_MAGIC, .version = CKV_SIDE_VERSION, .type = CKV_SIDE_ATTACH };
        struct sockaddr_un address = { .sun_family = AF_UNIX };
        int over = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0), pending = 0;
        socklen_t size = sizeof(pending);
        struct ckv_side record;

        strcpy(address.sun_path, path);
        ck_assert_int_eq(connect(over, (const struct sockaddr *)&address, sizeof(address)), 0);
        if (writes)
                ck_assert_int_eq(ckv_seqpacket_send(over, &attach_record, sizeof(attach_record), -1), 0);
        turn();
        /* what was never read is reported once, before what was sent to us */
        ck_assert_int_eq(getsockopt(over, SOL_SOCKET, SO_ERROR, &pending, &size), 0);
        ck_assert_int_eq(pending, writes ? ECONNRESET : 0);
        record = answer(over, CKV_SIDE_NOTICE, 0, false, NULL);
        ck_assert_uint_eq(record.kind, CKV_SIDE_NOTICE_SESSION_ENDED);
        ck_assert_uint_eq(record.code, CKV_CODE_QUOTA);
        ck_assert_uint_eq(record.size, limit);
        ck_assert_uint_eq(record.slots, open);
        ck_assert(closed(over));
        (void)close(over);
}

START_TEST(connections_at_their_limit) {
        int clients[3];

        options.connections = 3;
        for (int i = 0; i < 3; i++)
                clients[i] = attach(NULL);
        refused_for_quota(3, 3, false);
        ck_assert_uint_eq(used(CKV_SLOT_CONNECTIONS), 3);
        (void)close(clients[1]);
        turn();
        clients[1] = attach(NULL);
        refused_for_quota(3, 3, true);
        /* a limit that was lowered takes nothing away */
        options.connections = 2;
        ckv_tenants_set_limits(&daemon_);
        refused_for_quota(2, 3, true);
        for (int i = 0; i < 3; i++) {
                ck_assert(!closed(clients[i]));
                (void)close(clients[i]);
        }
}
END_TEST

START_TEST(closing_ends_the_bound_session_once) {
        struct ckv_session *session = (struct ckv_session *)(void *)&ended_count;
        uint8_t token[16];
        int client = attach(token);

        ended_conn = ckv_side_find(&endpoint, token);
        ckv_side_bind(ended_conn, session);
        ck_assert_ptr_eq(ckv_side_session(ended_conn), session);
        (void)close(client);
        turn();
        ck_assert_ptr_eq(ended, session);
        ck_assert_uint_eq(ended_count, 1);
        ck_assert_ptr_null(endpoint.side_conns);
}
END_TEST

START_TEST(untied_session_is_left_alone) {
        struct ckv_session *session = (struct ckv_session *)(void *)&ended_count;
        uint8_t token[16];
        int client = attach(token);

        ckv_side_bind(ckv_side_find(&endpoint, token), session);
        ckv_side_bind(ckv_side_find(&endpoint, token), NULL);
        (void)close(client);
        turn();
        ck_assert_uint_eq(ended_count, 0);
}
END_TEST

/* engine_process() - attach, tell the token, leave a copy of the socket with a grandchild that lives until @go ends */
static void engine_process(int go, int told) {
        struct sockaddr_un address = { .sun_family = AF_UNIX };
        struct ckv_side record = request(CKV_SIDE_ATTACH);
        int fd = socket(AF_UNIX, SOCK_SEQPACKET, 0);

        strcpy(address.sun_path, path);
        if (connect(fd, (const struct sockaddr *)&address, sizeof(address)) < 0 || send(fd, &record, sizeof(record), 0) < 0 ||
            recv(fd, &record, sizeof(record), 0) != sizeof(record))
                _exit(1);
        if (fork() == 0) {
                (void)!read(go, &record, 1);
                _exit(0);
        }
        (void)!write(told, record.token, 16);
        for (;;)
                (void)pause();
}

START_TEST(death_of_the_process_ends_the_session) {
        struct ckv_session *session = (struct ckv_session *)(void *)&ended_count;
        int go[2], told[2];
        uint8_t token[16];
        pid_t child;

        ck_assert_int_eq(pipe2(go, O_CLOEXEC), 0);
        ck_assert_int_eq(pipe2(told, O_CLOEXEC), 0);
        child = fork();
        ck_assert_int_ge(child, 0);
        if (child == 0) {
                (void)close(go[1]);
                engine_process(go[0], told[1]);
        }
        do
                turn();
        while (poll(&(struct pollfd){ .fd = told[0], .events = POLLIN }, 1, 0) != 1);
        ck_assert_int_eq(read(told[0], token, 16), 16);
        ck_assert_uint_eq(ckv_side_peer(ckv_side_find(&endpoint, token))->pid, (uint32_t)child);
        ckv_side_bind(ckv_side_find(&endpoint, token), session);
        turn();
        ck_assert_uint_eq(ended_count, 0);

        /* the grandchild keeps the socket open: only the pidfd tells */
        ck_assert_int_eq(kill(child, SIGKILL), 0);
        ck_assert_int_eq(waitpid(child, NULL, 0), child);
        turn();
        ck_assert_ptr_eq(ended, session);
        ck_assert_uint_eq(ended_count, 1);
        ck_assert_ptr_null(endpoint.side_conns);
        for (int i = 0; i < 2; i++) {
                (void)close(go[i]);
                (void)close(told[i]);
        }
}
END_TEST

START_TEST(notices_reach_the_attached) {
        uint8_t token[16];
        int client = attach(token), silent = client_connect();
        struct ckv_side got;

        ckv_side_notice_all(&endpoint, CKV_SIDE_NOTICE_DRAINING);
        got = answer(client, CKV_SIDE_NOTICE, 0, false, NULL);
        ck_assert_uint_eq(got.kind, CKV_SIDE_NOTICE_DRAINING);
        ckv_side_notice(ckv_side_find(&endpoint, token), CKV_SIDE_NOTICE_REGION_LOST, 9);
        got = answer(client, CKV_SIDE_NOTICE, 0, false, NULL);
        ck_assert_uint_eq(got.kind, CKV_SIDE_NOTICE_REGION_LOST);
        ck_assert_uint_eq(got.region_id, 9);
        ck_assert_int_eq(ckv_seqpacket_recv(silent, &got, sizeof(got), NULL), CKV_SEQPACKET_E_AGAIN);
        (void)close(client);
        (void)close(silent);
}
END_TEST

START_TEST(client_that_does_not_read_is_cut) {
        struct ckv_side record = request(CKV_SIDE_WITHDRAW);
        int client = attach(NULL), sent = 0;

        while (endpoint.side_conns && sent < 100000) {
                int r = ckv_seqpacket_send(client, &record, sizeof(record), -1);

                if (r == 0)
                        sent++;
                else
                        turn();
        }
        ck_assert_ptr_null(endpoint.side_conns);
        ck_assert_uint_eq(used(CKV_SLOT_CONNECTIONS), 0);
        (void)close(client);
}
END_TEST

START_TEST(shutdown_ends_everything) {
        struct ckv_session *session = (struct ckv_session *)(void *)&ended_count;
        uint8_t token[16];
        int client = attach(token), idle = client_connect();

        (void)offer_good(client);
        ckv_side_bind(ckv_side_find(&endpoint, token), session);
        ckv_side_shutdown(&endpoint);
        ck_assert_uint_eq(ended_count, 1);
        ck_assert(closed(client));
        ck_assert(closed(idle));
        ck_assert_ptr_null(daemon_.tenants);
        (void)close(client);
        (void)close(idle);
}
END_TEST

int main(void) {
        Suite *suite = suite_create("side");
        TCase *tcase = tcase_create("side");
        SRunner *runner = srunner_create(suite);
        int failed;

        tcase_add_checked_fixture(tcase, setup, teardown);
        tcase_add_test(tcase, attach_tells_what_hello_needs);
        tcase_add_test(tcase, control_pages_that_are_none);
        tcase_add_loop_test(tcase, control_headers, 0, CKV_ARRAY_SIZE(wrong_headers));
        tcase_add_test(tcase, control_page_lives_with_its_connection);
        tcase_add_test(tcase, control_page_over_quota);
        tcase_add_loop_test(tcase, each_breach_closes_the_connection, 0, (int)CKV_ARRAY_SIZE(breaches));
        tcase_add_test(tcase, malformed_messages_close_the_connection);
        tcase_add_test(tcase, two_descriptors_close_the_connection);
        tcase_add_test(tcase, offers_say_what_is_wrong);
        tcase_add_test(tcase, an_offer_is_taken_once);
        tcase_add_test(tcase, withdraw_gives_the_descriptor_up);
        tcase_add_test(tcase, offers_expire_in_order);
        tcase_add_test(tcase, descriptors_at_their_limit);
        tcase_add_test(tcase, connections_at_their_limit);
        tcase_add_test(tcase, closing_ends_the_bound_session_once);
        tcase_add_test(tcase, untied_session_is_left_alone);
        tcase_add_test(tcase, death_of_the_process_ends_the_session);
        tcase_add_test(tcase, notices_reach_the_attached);
        tcase_add_test(tcase, client_that_does_not_read_is_cut);
        tcase_add_test(tcase, shutdown_ends_everything);
        suite_add_tcase(suite, tcase);
        srunner_run_all(runner, CK_NORMAL);
        failed = srunner_ntests_failed(runner);
        srunner_free(runner);
        return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
