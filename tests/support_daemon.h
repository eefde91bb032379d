/*
 * A chunkkvd of this build as a process, in a private directory, with a
 * service manager's notify socket to listen to.  Every function fails the test
 * when it does not work.
 */
#ifndef CKV_TESTS_SUPPORT_DAEMON_H
#define CKV_TESTS_SUPPORT_DAEMON_H

#include "tests/support_files.h"

#include <stdbool.h>
#include <sys/types.h>

enum { SUPPORT_DAEMON_ARGS_MAX = 16, SUPPORT_DAEMON_GATES_MAX = 8 };

struct support_daemon {
        char dir[SUPPORT_PATH_BYTES];           /* private: log, notify socket, and run/ for the daemon */
        char run[SUPPORT_PATH_BYTES + 8];
        pid_t pid;                              /* 0: not running */
        int notify_fd;
};

/* support_daemon_init() - directory and notify socket; nothing runs yet */
void support_daemon_init(struct support_daemon *daemon);

/**
 * support_daemon_spawn() - start it on daemon->run
 * @args:   more arguments, NULL-terminated
 * @listen: sockets to pass as systemd does, [listen_count]
 */
void support_daemon_spawn(struct support_daemon *daemon, const char *const args[], const int *listen_fds, int listen_count);

/* support_daemon_await() - wait up to 15 s for a notification that contains @text, e.g. "READY=1" */
void support_daemon_await(struct support_daemon *daemon, const char *text);

/* support_daemon_wait() - wait up to 15 s for its end. Return: exit status, or 128 + signal. */
int support_daemon_wait(struct support_daemon *daemon);

/* support_daemon_gates() - pids of its children, oldest first. Return: how many. */
int support_daemon_gates(const struct support_daemon *daemon, pid_t ret_gates[static SUPPORT_DAEMON_GATES_MAX]);

/* support_daemon_logged() - does its log contain this? The log goes on over several runs. */
bool support_daemon_logged(const struct support_daemon *daemon, const char *text);

/* support_daemon_deinit() - SIGKILL if it still runs; remove the directory */
void support_daemon_deinit(struct support_daemon *daemon);

#endif
