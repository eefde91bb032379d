/*
 * One process of chunkkv-gate with its pair and rings: made, killed, reaped.
 * When to do which is daemon/gate_link.c's business.
 */
#ifndef CKV_DAEMON_GATE_SPAWN_H
#define CKV_DAEMON_GATE_SPAWN_H

#include "ipc/ring.h"

#include <stdbool.h>
#include <sys/types.h>

struct ckv_gate_process {
        pid_t pid;
        int pidfd;              /* readable once the process has ended */
        int pair_fd;            /* the core's end, non-blocking */
        struct ckv_ring to_core;        /* the core reads */
        struct ckv_ring to_gate;        /* the core writes */
};

/* CKV_GATE_PROCESS_NONE - the value that stands for no process; deinit is fine on it */
#define CKV_GATE_PROCESS_NONE ((struct ckv_gate_process){ .pidfd = -1, .pair_fd = -1 })

/**
 * ckv_gate_path_find() - where the gate program is
 * @option:   value of --gate; if not empty it is the answer, unchecked
 * @ret_path: owned by the caller. Beside our own executable, or in ../libexec/chunkkv from there; the former if neither
 *            exists, so that a message can name it.
 *
 * Return: 0 or -errno.
 */
int ckv_gate_path_find(const char *option, char **ret_path);

/**
 * ckv_gate_process_spawn() - start a gate
 * @path:      of the program
 * @endpoint:  its argument, for ps(1)
 * @sandbox:   false: a second argument asks it to serve without its filters
 * @listen_fd: listening socket, *NOT* consumed
 *
 * The child has stdin from /dev/null, our stdout and stderr, descriptors 3 to 6 of proto/records.h, no blocked signal,
 * a process group of its own (Ctrl-C is for the core) and of our environment only what concerns logs and sanitizers.
 *
 * Return: 0 or -errno, exec's errors included.
 */
int ckv_gate_process_spawn(const char *path, const char *endpoint, bool sandbox, int listen_fd,
                           struct ckv_gate_process *ret_process);

/* ckv_gate_process_kill() - SIGKILL, if it still runs; it is to be reaped all the same */
void ckv_gate_process_kill(const struct ckv_gate_process *process);

/* ckv_gate_process_hang_up() - close pair and rings, which asks a right gate to leave; the process itself stays */
void ckv_gate_process_hang_up(struct ckv_gate_process *process);

/**
 * ckv_gate_process_reap() - collect an ended process
 * @wait_msec: how long to wait for its end
 * @ret_status: as of wait(2); 0 if it was collected by somebody else
 *
 * Return: true: *process is CKV_GATE_PROCESS_NONE now; false: it still runs.
 */
bool ckv_gate_process_reap(struct ckv_gate_process *process, int wait_msec, int *ret_status);

#endif
