/*
 * Bare round trips: a message there and back, with a process at the other end
 * that does nothing else.
 */
#ifndef CKV_BENCH_ECHO_H
#define CKV_BENCH_ECHO_H

#include <sys/types.h>

enum { BENCH_ECHO_BYTES = 256, BENCH_ECHO_PROCESSES = 2 };

/* Both echoes, as this process sees them. */
struct bench_echoes {
        void *context, *socket;                 /* of ZeroMQ */
        int pair;                               /* SOCK_SEQPACKET */
        pid_t processes[BENCH_ECHO_PROCESSES];
};

/**
 * bench_echoes_start() - make the two processes, and connect to them; a failure ends the program
 *
 * Once in a process, while it has one thread.  The echoes end with it, however it ends.
 */
void bench_echoes_start(struct bench_echoes *ret_echoes);

/* bench_echoes_close() - give back this side's sockets; the processes end with this one */
void bench_echoes_close(struct bench_echoes *echoes);

/* bench_echo_zmq() - BENCH_ECHO_BYTES there and back over ZeroMQ (DEALER, ROUTER, ipc); a failure ends the program */
void bench_echo_zmq(const struct bench_echoes *echoes);

/* bench_echo_pair() - the same over a SOCK_SEQPACKET pair */
void bench_echo_pair(const struct bench_echoes *echoes);

#endif
