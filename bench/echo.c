/*
 * The floor of a request is measured with processes of this program's own, so
 * that nothing but the transport is in it.  They are forked before ZeroMQ has
 * threads.  None may outlive a measurement that failed: whoever ends in order,
 * also by exit() in the middle of it, kills them and removes their socket; where
 * this process is killed, the kernel kills them (PR_SET_PDEATHSIG), and the
 * directory of the socket stays behind.
 */
#include "bench/echo.h"

#include "base/macros.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>
#include <zmq.h>

/* For the end of this process. */
static struct {
        char directory[32], address[64];
        pid_t processes[BENCH_ECHO_PROCESSES];
} left;

static _Noreturn void fail(const char *what) {
        perror(what);
        exit(EXIT_FAILURE);
}

/* Whole messages, sender's name included, go back. */
static _Noreturn void answer_zmq(const char *address) {
        void *context = zmq_ctx_new(), *socket = context ? zmq_socket(context, ZMQ_ROUTER) : NULL;

        if (!socket || zmq_bind(socket, address) < 0)
                _exit(EXIT_FAILURE);
        for (;;) {
                zmq_msg_t frame;
                int more;

                (void)zmq_msg_init(&frame);
                if (zmq_msg_recv(&frame, socket, 0) < 0)
                        _exit(EXIT_FAILURE);
                more = zmq_msg_more(&frame);
                if (zmq_msg_send(&frame, socket, more ? ZMQ_SNDMORE : 0) < 0)
                        _exit(EXIT_FAILURE);
        }
}

static _Noreturn void answer_pair(int fd) {
        char message[BENCH_ECHO_BYTES];
        ssize_t n;

        while ((n = recv(fd, message, sizeof(message), 0)) > 0)
                if (send(fd, message, (size_t)n, 0) != n)
                        _exit(EXIT_FAILURE);
        _exit(EXIT_SUCCESS);
}

static void end_processes(void) {
        for (size_t i = 0; i < CKV_ARRAY_SIZE(left.processes); i++)
                if (left.processes[i] > 0) {
                        (void)kill(left.processes[i], SIGKILL);
                        (void)waitpid(left.processes[i], NULL, 0);
                }
        (void)unlink(left.address + strlen("ipc://"));
        (void)rmdir(left.directory);
}

/* fork(), for a child that ends with its parent */
static pid_t fork_echo(void) {
        pid_t parent = getpid(), pid = fork();

        if (pid < 0)
                fail("fork");
        /* who was orphaned before he asked is not told any more */
        if (pid == 0 && (prctl(PR_SET_PDEATHSIG, SIGKILL) < 0 || getppid() != parent))
                _exit(EXIT_FAILURE);
        return pid;
}

void bench_echoes_start(struct bench_echoes *ret_echoes) {
        struct bench_echoes echoes;
        int pair[2];

        (void)snprintf(left.directory, sizeof(left.directory), "/tmp/chunkkv-rpc-XXXXXX");
        if (!mkdtemp(left.directory) || socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
                fail("mkdtemp, socketpair");
        (void)snprintf(left.address, sizeof(left.address), "ipc://%s/zmq", left.directory);
        if (atexit(end_processes) != 0)
                fail("atexit");
        left.processes[0] = fork_echo();
        if (left.processes[0] == 0) {
                (void)ckv_close(pair[0]);
                answer_pair(pair[1]);
        }
        left.processes[1] = fork_echo();
        if (left.processes[1] == 0) {
                (void)ckv_close(pair[0]);
                (void)ckv_close(pair[1]);
                answer_zmq(left.address);
        }
        (void)ckv_close(pair[1]);
        echoes.pair = pair[0];
        echoes.context = zmq_ctx_new();
        echoes.socket = echoes.context ? zmq_socket(echoes.context, ZMQ_DEALER) : NULL;
        if (!echoes.socket || zmq_connect(echoes.socket, left.address) < 0)
                fail("ZeroMQ");
        memcpy(echoes.processes, left.processes, sizeof(echoes.processes));
        *ret_echoes = echoes;
}

void bench_echoes_close(struct bench_echoes *echoes) {
        (void)zmq_close(echoes->socket);
        (void)zmq_ctx_term(echoes->context);
        echoes->pair = ckv_close(echoes->pair);
        echoes->socket = echoes->context = NULL;
}

void bench_echo_zmq(const struct bench_echoes *echoes) {
        char message[BENCH_ECHO_BYTES] = { 0 };

        if (zmq_send(echoes->socket, message, sizeof(message), 0) < 0 || zmq_recv(echoes->socket, message, sizeof(message), 0) < 0)
                fail("ZeroMQ");
}

void bench_echo_pair(const struct bench_echoes *echoes) {
        char message[BENCH_ECHO_BYTES] = { 0 };

        if (send(echoes->pair, message, sizeof(message), 0) < 0 || recv(echoes->pair, message, sizeof(message), 0) <= 0)
                fail("socketpair");
}
