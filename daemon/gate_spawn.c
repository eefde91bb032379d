/*
 * Starting gates.  posix_spawn rather than fork: the core may have threads
 * and, with a GPU, a driver that does not survive a fork.  glibc's reports a
 * failed exec as its own error, so a missing program is known at once.
 *
 * The four descriptors must end at 3 to 6 exactly, but may be anything before,
 * for example each other's targets.  They are therefore first copied above the
 * range (close-on-exec), and dup2 in the child can then overwrite nothing that
 * is still needed.  Everything else of the core is close-on-exec, without
 * exception.
 *
 * Limits of the process (memory, descriptors, seccomp) are the gate's own
 * work, before it touches a byte of a client.  Until then it has the filter of
 * the core (daemon/sandbox.c), which a child cannot take off.
 */
#include "daemon/gate_spawn.h"

#include "base/error.h"
#include "base/macros.h"
#include "proto/records.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <string.h>
#include <sys/pidfd.h>
#include <sys/socket.h>
#include <sys/wait.h>

enum { FDS_N = 4, FD_ABOVE = 16 };
static_assert((int)FD_ABOVE > (int)CKV_GATE_FD_RING_TO_GATE, "copies lie above the range they are moved to");

/* Passed on if set: where the log goes, and what instrumented builds want. */
static const char *const environment_names[] = {
        "JOURNAL_STREAM", "CHUNKKVD_TRACE", "LD_LIBRARY_PATH", "ASAN_OPTIONS", "UBSAN_OPTIONS", "TSAN_OPTIONS", "LSAN_OPTIONS",
};
#ifdef CKV_POINTS
/* What tests of faults say to a gate (base/points.h): to the first one only, as the next has to do well. */
static const char *const first_environment_names[] = { "CHUNKKVD_KILL_AT", "CHUNKKVD_STALL_AT", "CHUNKKVD_FAULT", "LD_PRELOAD" };
enum { ENVIRONMENT_N = CKV_ARRAY_SIZE(environment_names) + CKV_ARRAY_SIZE(first_environment_names) };
#else
enum { ENVIRONMENT_N = CKV_ARRAY_SIZE(environment_names) };
#endif

int ckv_gate_path_find(const char *option, char **ret_path) {
        _cleanup_free_ char *beside = NULL, *installed = NULL;
        char self[PATH_MAX], *slash;
        ssize_t n;

        if (*option) {
                *ret_path = strdup(option);
                return *ret_path ? 0 : ckv_error_origin(-ENOMEM);
        }
        n = readlink("/proc/self/exe", self, sizeof(self) - 1);
        if (n < 0)
                return ckv_error_origin(-errno);
        self[n] = '\0';
        slash = strrchr(self, '/');
        if (!slash)
                return ckv_error_origin(-ENOENT);
        *slash = '\0';
        if (asprintf(&beside, "%s/chunkkv-gate", self) < 0) {
                beside = NULL;
                return ckv_error_origin(-ENOMEM);
        }
        if (asprintf(&installed, "%s/../libexec/chunkkv/chunkkv-gate", self) < 0) {
                installed = NULL;
                return ckv_error_origin(-ENOMEM);
        }
        *ret_path = access(beside, X_OK) < 0 && access(installed, X_OK) == 0 ? ckv_steal(&installed) : ckv_steal(&beside);
        return 0;
}

/* environment_add() - "NAME=value" of those of @names that are set, behind what there is */
static int environment_add(char **environment, const char *const *names, size_t count) {
        while (*environment)
                environment++;
        for (size_t i = 0; i < count; i++) {
                const char *value = getenv(names[i]);

                if (value && asprintf(environment, "%s=%s", names[i], value) < 0) {
                        *environment = NULL;
                        return ckv_error_origin(-ENOMEM);
                }
                environment += value != NULL;
        }
        return 0;
}

/* environment_make() - what is passed on, up to a NULL that is there; strings are freed by environment_free() */
static int environment_make(char *ret_environment[static ENVIRONMENT_N + 2]) {
        int r;

        ret_environment[0] = strdup("MALLOC_ARENA_MAX=1");
        if (!ret_environment[0])
                return ckv_error_origin(-ENOMEM);
        r = environment_add(ret_environment, environment_names, CKV_ARRAY_SIZE(environment_names));
#ifdef CKV_POINTS
        static bool told;

        if (!r && !told)
                r = environment_add(ret_environment, first_environment_names, CKV_ARRAY_SIZE(first_environment_names));
        told = true;
#endif
        return r;
}

static void environment_free(char *environment[static ENVIRONMENT_N + 2]) {
        for (size_t i = 0; environment[i]; i++)
                free(environment[i]);
}

/* attributes_set() - no blocked signal, default actions, own group */
static int attributes_set(posix_spawnattr_t *attributes) {
        sigset_t none, all;
        int r;

        (void)sigemptyset(&none);
        (void)sigfillset(&all);
        r = posix_spawnattr_setflags(attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETPGROUP);
        r = r ? r : posix_spawnattr_setsigmask(attributes, &none);
        r = r ? r : posix_spawnattr_setsigdefault(attributes, &all);
        r = r ? r : posix_spawnattr_setpgroup(attributes, 0);
        return ckv_error_origin(-r);
}

/* spawn_with() - posix_spawn with @fds[i], all above the range, at CKV_GATE_FD_LISTEN + i */
static int spawn_with(const char *path, const char *endpoint, bool sandbox, const int fds[static FDS_N], pid_t *ret_pid) {
        char program[] = "chunkkv-gate", off[] = "sandbox=off", argument[64];
        char *environment[ENVIRONMENT_N + 2] = { NULL };
        char *argv[] = { program, argument, sandbox ? NULL : off, NULL };
        posix_spawn_file_actions_t actions;
        posix_spawnattr_t attributes;
        int r;

        (void)snprintf(argument, sizeof(argument), "%s", endpoint);
        r = posix_spawn_file_actions_init(&actions);
        if (r)
                return ckv_error_origin(-r);
        r = posix_spawnattr_init(&attributes);
        if (r) {
                (void)posix_spawn_file_actions_destroy(&actions);
                return ckv_error_origin(-r);
        }

        r = posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
        for (int i = 0; !r && i < FDS_N; i++)
                r = posix_spawn_file_actions_adddup2(&actions, fds[i], CKV_GATE_FD_LISTEN + i);
        r = ckv_error_origin(-r);
        r = r ? r : attributes_set(&attributes);
        r = r ? r : environment_make(environment);
        r = r ? r : ckv_error_origin(-posix_spawn(ret_pid, path, &actions, &attributes, argv, environment));

        environment_free(environment);
        (void)posix_spawnattr_destroy(&attributes);
        (void)posix_spawn_file_actions_destroy(&actions);
        return r;
}

/* ring_make() - a ring mapped here in one role, and its descriptor for the other side */
static int ring_make(struct ckv_ring *ring, bool writer, int *ret_fd) {
        _cleanup_close_ int fd = -1;
        int r;

        r = ckv_ring_create(CKV_RING_BYTES, &fd);
        r = r ? r : ckv_ring_init(ring, fd, CKV_RING_BYTES, writer);
        if (r)
                return ckv_error_trace(r);
        *ret_fd = fd;
        fd = -1; /* consumed by the caller */
        return 0;
}

/* process_make() - everything of @process but the process itself, and copies above the range of what the gate gets */
static int process_make(struct ckv_gate_process *process, int listen_fd, int ret_fds[static FDS_N]) {
        _cleanup_close_ int gate_end = -1, to_core_fd = -1, to_gate_fd = -1;
        int pair[2], r;

        if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair) < 0)
                return ckv_error_origin(-errno);
        process->pair_fd = pair[0];
        gate_end = pair[1];
        r = ring_make(&process->to_core, false, &to_core_fd);
        r = r ? r : ring_make(&process->to_gate, true, &to_gate_fd);
        if (r)
                return ckv_error_trace(r);

        const int sources[FDS_N] = { listen_fd, gate_end, to_core_fd, to_gate_fd };

        for (int i = 0; i < FDS_N; i++) {
                ret_fds[i] = fcntl(sources[i], F_DUPFD_CLOEXEC, FD_ABOVE);
                if (ret_fds[i] < 0)
                        return ckv_error_origin(-errno);
        }
        return 0;
}

int ckv_gate_process_spawn(const char *path, const char *endpoint, bool sandbox, int listen_fd,
                           struct ckv_gate_process *ret_process) {
        struct ckv_gate_process process = CKV_GATE_PROCESS_NONE;
        int fds[FDS_N] = { -1, -1, -1, -1 }, r, status;

        r = process_make(&process, listen_fd, fds);
        r = r ? r : spawn_with(path, endpoint, sandbox, fds, &process.pid);
        for (int i = 0; i < FDS_N; i++)
                (void)ckv_close(fds[i]);
        if (!r) {
                /* the number is ours until it is reaped: no race */
                process.pidfd = pidfd_open(process.pid, 0);
                if (process.pidfd < 0) {
                        r = ckv_error_origin(-errno);
                        (void)kill(process.pid, SIGKILL);
                        (void)waitpid(process.pid, &status, 0);
                }
        }
        if (r) {
                ckv_gate_process_hang_up(&process);
                return ckv_error_trace(r);
        }
        *ret_process = process;
        return 0;
}

void ckv_gate_process_kill(const struct ckv_gate_process *process) {
        if (process->pidfd >= 0)
                (void)pidfd_send_signal(process->pidfd, SIGKILL, NULL, 0);
}

void ckv_gate_process_hang_up(struct ckv_gate_process *process) {
        process->pair_fd = ckv_close(process->pair_fd);
        ckv_ring_deinit(&process->to_core);
        ckv_ring_deinit(&process->to_gate);
}

bool ckv_gate_process_reap(struct ckv_gate_process *process, int wait_msec, int *ret_status) {
        struct pollfd p = { .fd = process->pidfd, .events = POLLIN };
        int status = 0, r;

        if (process->pidfd >= 0) {
                do
                        r = poll(&p, 1, wait_msec);
                while (r < 0 && errno == EINTR);
                if (r <= 0)
                        return false;
                (void)waitpid(process->pid, &status, WNOHANG);
        }
        ckv_gate_process_hang_up(process);
        (void)ckv_close(process->pidfd);
        *process = CKV_GATE_PROCESS_NONE;
        *ret_status = status;
        return true;
}
