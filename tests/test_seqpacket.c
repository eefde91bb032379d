/*
 * Messages with and without a descriptor, and every breach: too short, too
 * long, several descriptors, a descriptor where none is expected.  Each test
 * ends with as many open descriptors as it began with.
 */
#include "ipc/seqpacket.h"

#include "base/macros.h"

#include <check.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>

#define BYTES 96

static int ends[2];
static unsigned fds_before;

static unsigned count_fds(void) {
        DIR *dir = opendir("/proc/self/fd");
        unsigned n = 0;

        ck_assert_ptr_nonnull(dir);
        while (readdir(dir))
                n++;
        (void)closedir(dir);
        return n;
}

static void setup(void) {
        ck_assert_int_eq(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends), 0);
        fds_before = count_fds();
}

static void teardown(void) {
        ck_assert_uint_eq(count_fds(), fds_before);
        (void)close(ends[0]);
        (void)close(ends[1]);
}

/* send_many() - @bytes of message and the same descriptor @count times */
static void send_many(int fd, size_t bytes, unsigned count, int pass) {
        union {
                char bytes[CMSG_SPACE(sizeof(int) * 253)];
                struct cmsghdr align;
        } control = { { 0 } };
        char message[2 * BYTES] = "x";
        struct iovec iov = { message, bytes };
        struct msghdr header = { .msg_iov = &iov, .msg_iovlen = 1 };
        struct cmsghdr *c;

        header.msg_control = control.bytes;
        header.msg_controllen = CMSG_SPACE(sizeof(int) * count);
        c = CMSG_FIRSTHDR(&header);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(sizeof(int) * count);
        for (unsigned i = 0; i < count; i++)
                memcpy(CMSG_DATA(c) + i * sizeof(int), &pass, sizeof(int));
        ck_assert_int_eq(sendmsg(fd, &header, 0), (ssize_t)bytes);
}

START_TEST(plain_message) {
        char out[BYTES], in[BYTES] = { 0 };
        int fd = 5;

        memset(out, 'a', sizeof(out));
        ck_assert_int_eq(ckv_seqpacket_send(ends[0], out, sizeof(out), -1), 0);
        ck_assert_int_eq(ckv_seqpacket_recv(ends[1], in, sizeof(in), &fd), 0);
        ck_assert_mem_eq(in, out, sizeof(out));
        ck_assert_int_eq(fd, -1);
        ck_assert_int_eq(ckv_seqpacket_recv(ends[1], in, sizeof(in), NULL), CKV_SEQPACKET_E_AGAIN);
}
END_TEST

START_TEST(one_descriptor) {
        char out[BYTES] = "d", in[BYTES];
        int fd = -1, null = open("/dev/null", O_RDWR | O_CLOEXEC);

        ck_assert_int_eq(ckv_seqpacket_send(ends[0], out, sizeof(out), null), 0);
        ck_assert_int_ge(fcntl(null, F_GETFD), 0); /* not consumed */
        ck_assert_int_eq(ckv_seqpacket_recv(ends[1], in, sizeof(in), &fd), 0);
        ck_assert_int_ge(fd, 0);
        ck_assert_int_eq(fcntl(fd, F_GETFD), FD_CLOEXEC);
        (void)close(fd);
        (void)close(null);
}
END_TEST

START_TEST(descriptor_not_expected) {
        char out[BYTES] = "d", in[BYTES];

        ck_assert_int_eq(ckv_seqpacket_send(ends[0], out, sizeof(out), ends[0]), 0);
        ck_assert_int_eq(ckv_seqpacket_recv(ends[1], in, sizeof(in), NULL), CKV_SEQPACKET_E_MALFORMED);
}
END_TEST

START_TEST(several_descriptors) {
        static const unsigned counts[] = { 2, 3, 253 };
        char in[BYTES];

        for (size_t i = 0; i < CKV_ARRAY_SIZE(counts); i++) {
                int fd = 7;

                send_many(ends[0], BYTES, counts[i], ends[0]);
                ck_assert_int_eq(ckv_seqpacket_recv(ends[1], in, sizeof(in), &fd), CKV_SEQPACKET_E_MALFORMED);
                ck_assert_int_eq(fd, 7);
        }
}
END_TEST

START_TEST(length_minus_one_and_plus_one) {
        char out[BYTES + 1] = "l", in[BYTES];
        int fd = -1;

        ck_assert_int_eq(ckv_seqpacket_send(ends[0], out, BYTES - 1, -1), 0);
        ck_assert_int_eq(ckv_seqpacket_recv(ends[1], in, BYTES, &fd), CKV_SEQPACKET_E_MALFORMED);
        ck_assert_int_eq(ckv_seqpacket_send(ends[0], out, BYTES + 1, -1), 0);
        ck_assert_int_eq(ckv_seqpacket_recv(ends[1], in, BYTES, &fd), CKV_SEQPACKET_E_MALFORMED);
        ck_assert_int_eq(ckv_seqpacket_send(ends[0], out, BYTES, -1), 0);
        ck_assert_int_eq(ckv_seqpacket_recv(ends[1], in, BYTES, &fd), 0);
        send_many(ends[0], BYTES - 1, 1, ends[0]);
        ck_assert_int_eq(ckv_seqpacket_recv(ends[1], in, BYTES, &fd), CKV_SEQPACKET_E_MALFORMED);
        ck_assert_int_eq(fd, -1);
}
END_TEST

START_TEST(full_then_room_again) {
        char out[BYTES] = "f", in[BYTES];
        unsigned sent = 0;
        int r;

        while ((r = ckv_seqpacket_send(ends[0], out, sizeof(out), -1)) == 0)
                sent++;
        ck_assert_int_eq(r, CKV_SEQPACKET_E_AGAIN);
        ck_assert_uint_gt(sent, 1);
        for (unsigned i = 0; i < sent; i++)
                ck_assert_int_eq(ckv_seqpacket_recv(ends[1], in, sizeof(in), NULL), 0);
        ck_assert_int_eq(ckv_seqpacket_recv(ends[1], in, sizeof(in), NULL), CKV_SEQPACKET_E_AGAIN);
        ck_assert_int_eq(ckv_seqpacket_send(ends[0], out, sizeof(out), -1), 0);
}
END_TEST

START_TEST(other_end_gone) {
        char message[BYTES] = "g";
        int fd = -1;

        ck_assert_int_eq(ckv_seqpacket_send(ends[0], message, sizeof(message), -1), 0);
        (void)close(ends[0]);
        ends[0] = open("/dev/null", O_RDWR | O_CLOEXEC);
        /* what was sent before still arrives */
        ck_assert_int_eq(ckv_seqpacket_recv(ends[1], message, sizeof(message), &fd), 0);
        ck_assert_int_eq(ckv_seqpacket_recv(ends[1], message, sizeof(message), &fd), CKV_SEQPACKET_E_CLOSED);
        /* and no SIGPIPE */
        ck_assert_int_eq(ckv_seqpacket_send(ends[1], message, sizeof(message), -1), CKV_SEQPACKET_E_CLOSED);
}
END_TEST

START_TEST(not_a_socket) {
        char message[BYTES] = "n";
        int null = open("/dev/null", O_RDWR | O_CLOEXEC);

        ck_assert_int_eq(ckv_seqpacket_send(null, message, sizeof(message), -1), -ENOTSOCK);
        ck_assert_int_eq(ckv_seqpacket_recv(null, message, sizeof(message), NULL), -ENOTSOCK);
        (void)close(null);
}
END_TEST

int main(void) {
        Suite *suite = suite_create("seqpacket");
        TCase *tcase = tcase_create("seqpacket");
        SRunner *runner;
        int failed;

        tcase_add_checked_fixture(tcase, setup, teardown);
        tcase_add_test(tcase, plain_message);
        tcase_add_test(tcase, one_descriptor);
        tcase_add_test(tcase, descriptor_not_expected);
        tcase_add_test(tcase, several_descriptors);
        tcase_add_test(tcase, length_minus_one_and_plus_one);
        tcase_add_test(tcase, full_then_room_again);
        tcase_add_test(tcase, other_end_gone);
        tcase_add_test(tcase, not_a_socket);
        suite_add_tcase(suite, tcase);
        runner = srunner_create(suite);
        srunner_run_all(runner, CK_NORMAL);
        failed = srunner_ntests_failed(runner);
        srunner_free(runner);
        return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
