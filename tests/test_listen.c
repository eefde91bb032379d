/*
 * Listening sockets: whose path it is, what may be removed, what is taken over
 * from a service manager; and who a peer is.
 */
#include "ipc/listen.h"
#include "ipc/peer.h"

#include "base/macros.h"
#include "tests/support_files.h"

#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>

static char dir[SUPPORT_PATH_BYTES], path[SUPPORT_PATH_BYTES + 16];
static unsigned fds_before;

static void setup(void) {
        support_dir_make(dir);
        (void)snprintf(path, sizeof(path), "%s/main.fd", dir);
        fds_before = support_fds_count();
}

static void teardown(void) {
        ck_assert_uint_eq(support_fds_count(), fds_before);
        support_dir_remove(dir);
}

static int connect_to(const char *to, int type) {
        struct sockaddr_un address = { .sun_family = AF_UNIX };
        int fd = socket(AF_UNIX, type | SOCK_CLOEXEC, 0);

        ck_assert_int_ge(fd, 0);
        ck_assert_uint_lt(strlen(to), sizeof(address.sun_path));
        strcpy(address.sun_path, to);
        if (connect(fd, (const struct sockaddr *)&address, sizeof(address)) == 0)
                return fd;
        (void)close(fd);
        return -1;
}

START_TEST(made_with_mode_and_type) {
        static const int types[] = { SOCK_STREAM, SOCK_SEQPACKET };

        for (size_t i = 0; i < CKV_ARRAY_SIZE(types); i++) {
                bool replaced = true;
                struct stat st;
                int fd, client, accepted;

                (void)umask(0077);
                ck_assert_int_eq(ckv_listen_create(path, types[i], 0660, &fd, &replaced), 0);
                ck_assert(!replaced);
                ck_assert_int_eq(stat(path, &st), 0);
                ck_assert_uint_eq(st.st_mode & 07777, 0660);
                ck_assert_int_eq(fcntl(fd, F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
                ck_assert_int_eq(accept4(fd, NULL, NULL, 0), -1);
                ck_assert_int_eq(errno, EAGAIN);
                client = connect_to(path, types[i]);
                ck_assert_int_ge(client, 0);
                accepted = accept4(fd, NULL, NULL, SOCK_CLOEXEC);
                ck_assert_int_ge(accepted, 0);
                (void)close(accepted);
                (void)close(client);
                (void)close(fd);
                ck_assert_int_eq(unlink(path), 0);
        }
}
END_TEST

START_TEST(dead_socket_is_replaced_living_is_not) {
        bool replaced;
        int first, second = -1;

        ck_assert_int_eq(ckv_listen_create(path, SOCK_STREAM, 0600, &first, &replaced), 0);
        ck_assert_int_eq(ckv_listen_create(path, SOCK_STREAM, 0600, &second, &replaced), CKV_LISTEN_E_IN_USE);
        /* the other type is somebody else's too */
        ck_assert_int_eq(ckv_listen_create(path, SOCK_SEQPACKET, 0600, &second, &replaced), CKV_LISTEN_E_IN_USE);
        ck_assert_int_eq(second, -1);
        (void)close(first);
        ck_assert_int_eq(ckv_listen_create(path, SOCK_STREAM, 0600, &second, &replaced), 0);
        ck_assert(replaced);
        first = connect_to(path, SOCK_STREAM);
        ck_assert_int_ge(first, 0);
        (void)close(first);
        (void)close(second);
}
END_TEST

START_TEST(full_queue_counts_as_living) {
        int fds[200], n = 0, listening, other;
        bool replaced;

        ck_assert_int_eq(ckv_listen_create(path, SOCK_STREAM, 0600, &listening, &replaced), 0);
        ck_assert_int_eq(listen(listening, 100), 0); /* full sooner */
        for (; n < 200; n++) {
                struct sockaddr_un address = { .sun_family = AF_UNIX };

                strcpy(address.sun_path, path);
                fds[n] = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
                ck_assert_int_ge(fds[n], 0);
                if (connect(fds[n], (const struct sockaddr *)&address, sizeof(address)) < 0)
                        break;
        }
        ck_assert_int_eq(errno, EAGAIN);
        ck_assert_int_lt(n, 200);
        ck_assert_int_eq(ckv_listen_create(path, SOCK_STREAM, 0600, &other, &replaced), CKV_LISTEN_E_IN_USE);
        for (int i = 0; i <= n; i++)
                (void)close(fds[i]);
        (void)close(listening);
}
END_TEST

START_TEST(what_is_no_socket_is_left_alone) {
        bool replaced;
        struct stat st;
        int fd;

        fd = open(path, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
        ck_assert_int_ge(fd, 0);
        (void)close(fd);
        ck_assert_int_eq(ckv_listen_create(path, SOCK_STREAM, 0600, &fd, &replaced), CKV_LISTEN_E_NOT_SOCKET);
        ck_assert_int_eq(stat(path, &st), 0);
        ck_assert(S_ISREG(st.st_mode));
        ck_assert_int_eq(unlink(path), 0);
        /* not even where a link leads to */
        ck_assert_int_eq(symlink("/nowhere", path), 0);
        ck_assert_int_eq(ckv_listen_create(path, SOCK_STREAM, 0600, &fd, &replaced), CKV_LISTEN_E_NOT_SOCKET);
}
END_TEST

START_TEST(path_length_at_its_limit) {
        char name[CKV_LISTEN_PATH_BYTES + 1];
        bool replaced;
        int fd;

        /* 107 characters fit, 108 do not */
        ck_assert_int_eq(chdir(dir), 0);
        memset(name, 'n', sizeof(name));
        name[CKV_LISTEN_PATH_BYTES - 1] = '\0';
        ck_assert_int_eq(ckv_listen_create(name, SOCK_STREAM, 0600, &fd, &replaced), 0);
        (void)close(fd);
        name[CKV_LISTEN_PATH_BYTES - 1] = 'n';
        name[CKV_LISTEN_PATH_BYTES] = '\0';
        ck_assert_int_eq(ckv_listen_create(name, SOCK_STREAM, 0600, &fd, &replaced), CKV_LISTEN_E_PATH_TOO_LONG);
        ck_assert_int_eq(ckv_listen_create("no-such-directory/x", SOCK_STREAM, 0600, &fd, &replaced), -ENOENT);
        ck_assert_int_eq(chdir("/"), 0);
}
END_TEST

START_TEST(adopt_tells_type_and_path) {
        char found[CKV_LISTEN_PATH_BYTES + 1];
        bool replaced;
        int fd, type;

        ck_assert_int_eq(ckv_listen_create(path, SOCK_SEQPACKET, 0600, &fd, &replaced), 0);
        ck_assert_int_eq(fcntl(fd, F_SETFD, 0), 0);
        ck_assert_int_eq(fcntl(fd, F_SETFL, 0), 0);
        ck_assert_int_eq(ckv_listen_adopt(fd, &type, found), 0);
        ck_assert_int_eq(type, SOCK_SEQPACKET);
        ck_assert_str_eq(found, path);
        ck_assert_int_eq(fcntl(fd, F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
        ck_assert_int_eq(fcntl(fd, F_GETFL) & O_NONBLOCK, O_NONBLOCK);
        (void)close(fd);
}
END_TEST

START_TEST(adopt_refuses_the_unsuitable) {
        struct sockaddr_un abstract = { .sun_family = AF_UNIX, .sun_path = "\0chunkkv-test-adopt" };
        char found[CKV_LISTEN_PATH_BYTES + 1];
        struct sockaddr_un bound = { .sun_family = AF_UNIX };
        int fds[6], pair[2], type;

        fds[0] = open("/dev/null", O_RDONLY | O_CLOEXEC);
        fds[1] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        ck_assert_int_eq(listen(fds[1], 1), 0);
        fds[2] = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
        ck_assert_int_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
        fds[3] = pair[0]; /* connected, not listening */
        fds[4] = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
        ck_assert_int_eq(bind(fds[4], (const struct sockaddr *)&abstract, offsetof(struct sockaddr_un, sun_path) + 19), 0);
        ck_assert_int_eq(listen(fds[4], 1), 0);
        fds[5] = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
        strcpy(bound.sun_path, path);
        ck_assert_int_eq(bind(fds[5], (const struct sockaddr *)&bound, sizeof(bound)), 0); /* and nobody listens */
        for (size_t i = 0; i < CKV_ARRAY_SIZE(fds); i++) {
                ck_assert_int_eq(ckv_listen_adopt(fds[i], &type, found), CKV_LISTEN_E_UNSUITABLE);
                (void)close(fds[i]);
        }
        (void)close(pair[1]);
}
END_TEST

START_TEST(peer_is_known_and_watched) {
        struct pollfd p = { .events = POLLIN };
        int listening, accepted, pidfd, done[2];
        bool replaced;
        uid_t uid;
        gid_t gid;
        pid_t pid, child;

        ck_assert_int_eq(ckv_listen_create(path, SOCK_SEQPACKET, 0600, &listening, &replaced), 0);
        ck_assert_int_eq(pipe2(done, O_CLOEXEC), 0);
        child = fork();
        ck_assert_int_ge(child, 0);
        if (child == 0) {
                char c;

                (void)close(done[1]);
                (void)!read(connect_to(path, SOCK_SEQPACKET) >= 0 ? done[0] : -1, &c, 1);
                _exit(0);
        }
        (void)close(done[0]);
        p.fd = listening;
        ck_assert_int_eq(poll(&p, 1, 5000), 1);
        accepted = accept4(listening, NULL, NULL, SOCK_CLOEXEC);
        ck_assert_int_ge(accepted, 0);
        ck_assert_int_eq(ckv_peer_identify(accepted, &uid, &gid, &pid, &pidfd), 0);
        ck_assert_uint_eq(uid, getuid());
        ck_assert_uint_eq(gid, getgid());
        ck_assert_int_eq(pid, child);
        ck_assert_int_eq(fcntl(pidfd, F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
        p.fd = pidfd;
        ck_assert_int_eq(poll(&p, 1, 0), 0);
        (void)close(done[1]);
        ck_assert_int_eq(poll(&p, 1, 5000), 1);
        ck_assert_int_eq(waitpid(child, NULL, 0), child);
        (void)close(pidfd);
        (void)close(accepted);
        (void)close(listening);
}
END_TEST

START_TEST(peer_that_is_gone) {
        int listening, accepted, pidfd = -1, r;
        struct pollfd p = { .events = POLLIN };
        bool replaced;
        uid_t uid;
        gid_t gid;
        pid_t pid, child;

        ck_assert_int_eq(ckv_listen_create(path, SOCK_SEQPACKET, 0600, &listening, &replaced), 0);
        child = fork();
        ck_assert_int_ge(child, 0);
        if (child == 0)
                _exit(connect_to(path, SOCK_SEQPACKET) < 0);
        ck_assert_int_eq(waitpid(child, NULL, 0), child);
        accepted = accept4(listening, NULL, NULL, SOCK_CLOEXEC);
        ck_assert_int_ge(accepted, 0);
        /* newer kernels still hand out a pidfd of a process that was reaped, and it says so */
        r = ckv_peer_identify(accepted, &uid, &gid, &pid, &pidfd);
        ck_assert(r == CKV_PEER_E_GONE || r == 0);
        if (r == 0) {
                p.fd = pidfd;
                ck_assert_int_eq(poll(&p, 1, 0), 1);
                (void)close(pidfd);
        }
        (void)close(accepted);
        (void)close(listening);
}
END_TEST

int main(void) {
        Suite *suite = suite_create("listen");
        TCase *tcase = tcase_create("listen");
        SRunner *runner = srunner_create(suite);
        int failed;

        tcase_add_checked_fixture(tcase, setup, teardown);
        tcase_add_test(tcase, made_with_mode_and_type);
        tcase_add_test(tcase, dead_socket_is_replaced_living_is_not);
        tcase_add_test(tcase, full_queue_counts_as_living);
        tcase_add_test(tcase, what_is_no_socket_is_left_alone);
        tcase_add_test(tcase, path_length_at_its_limit);
        tcase_add_test(tcase, adopt_tells_type_and_path);
        tcase_add_test(tcase, adopt_refuses_the_unsuitable);
        tcase_add_test(tcase, peer_is_known_and_watched);
        tcase_add_test(tcase, peer_that_is_gone);
        suite_add_tcase(suite, tcase);
        srunner_run_all(runner, CK_NORMAL);
        failed = srunner_ntests_failed(runner);
        srunner_free(runner);
        return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
