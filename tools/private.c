/*
 * The daemon is started as a child in a process group of its own, so that a
 * Ctrl-C at the terminal reaches only the parent, which then stops it in
 * order.  Should the parent die without that, the kernel sends the child
 * SIGTERM.  Its sockets, lock and log lie in one new directory, which is
 * removed whole.
 */
#include "tools/private.h"

#include "base/clock.h"
#include "base/macros.h"
#include "clients/c/include/chunkkv.h"

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#define POLL_NSEC (20 * CKV_NSEC_PER_MSEC)
#define STOP_NSEC (10 * CKV_NSEC_PER_SEC)

static int fail(char *why, int error, const char *format, ...) _printf_(3, 4);
static int fail(char *why, int error, const char *format, ...) {
        va_list args;

        va_start(args, format);
        (void)vsnprintf(why, CKV_PRIVATE_WHY, format, args);
        va_end(args);
        return error;
}

static void pause_nsec(uint64_t nsec) {
        struct timespec span = { .tv_sec = (time_t)(nsec / CKV_NSEC_PER_SEC),
                .tv_nsec = (long)(nsec % CKV_NSEC_PER_SEC) };

        (void)nanosleep(&span, NULL);
}

bool ckv_private_program(char *ret_path, size_t size) {
        char self[PATH_MAX];
        ssize_t n = readlink("/proc/self/exe", self, sizeof(self) - 1);
        char *slash;
        int written;

        if (n <= 0)
                return false;
        self[n] = '\0';
        slash = strrchr(self, '/');
        if (!slash)
                return false;
        *slash = '\0';
        written = snprintf(ret_path, size, "%s/chunkkvd", self);
        return written > 0 && (size_t)written < size && access(ret_path, X_OK) == 0;
}

/* In the child; only what is safe between fork and exec. */
static _Noreturn void child_run(const struct ckv_private *private, const char *program, pid_t parent, int log_fd) {
        char *arguments[] = {
                (char[]){ "chunkkvd" }, (char[]){ "--runtime-dir" }, NULL, (char[]){ "--endpoint" }, (char[]){ "main" },
                NULL,
        };
        char directory[sizeof(private->directory)];
        int null_fd = open("/dev/null", O_RDONLY);
        sigset_t none;

        memcpy(directory, private->directory, sizeof(directory));
        arguments[2] = directory;
        (void)prctl(PR_SET_PDEATHSIG, SIGTERM);
        if (getppid() != parent)
                _exit(127);
        (void)setpgid(0, 0);
        (void)sigemptyset(&none);
        (void)sigprocmask(SIG_SETMASK, &none, NULL);
        if (null_fd < 0 || dup2(null_fd, STDIN_FILENO) < 0 || dup2(log_fd, STDOUT_FILENO) < 0 ||
            dup2(log_fd, STDERR_FILENO) < 0)
                _exit(127);
        if (*program)
                (void)execv(program, arguments);
        (void)execvp("chunkkvd", arguments);
        (void)dprintf(STDERR_FILENO, "cannot run chunkkvd: %s\n", strerror(errno));
        _exit(127);
}

/* The last line the daemon wrote, for the sentence about its failure. */
static void log_tail(const struct ckv_private *private, char *ret_line, size_t size) {
        char path[128], text[2048];
        _cleanup_close_ int fd = -1;
        ssize_t n;
        off_t end;
        char *line;

        (void)snprintf(ret_line, size, "it wrote nothing");
        (void)snprintf(path, sizeof(path), "%s/log", private->directory);
        fd = open(path, O_RDONLY | O_CLOEXEC);
        end = fd < 0 ? 0 : lseek(fd, 0, SEEK_END);
        n = fd < 0 ? 0 : pread(fd, text, sizeof(text) - 1,
                               end > (off_t)sizeof(text) - 1 ? end - (off_t)sizeof(text) + 1 : 0);
        while (n > 0 && text[n - 1] == '\n')
                n--;
        if (n <= 0)
                return;
        text[n] = '\0';
        line = strrchr(text, '\n');
        (void)snprintf(ret_line, size, "%.200s", line ? line + 1 : text);
}

static int ready_wait(struct ckv_private *private, uint64_t until_nsec, char *why) {
        const struct chunkkv_options options = {
                .endpoint = private->endpoint, .timeout_ms = 500, .control_slots = CHUNKKV_NO_SLOTS,
        };
        struct chunkkv_client *client;
        struct chunkkv_error error;
        char line[256];
        int r, status;

        for (;;) {
                r = chunkkv_connect(&options, &client, &error);
                if (r == 0) {
                        client = chunkkv_close(client);
                        return 0;
                }
                if (waitpid(private->pid, &status, WNOHANG) == private->pid) {
                        private->pid = 0;
                        log_tail(private, line, sizeof(line));
                        return fail(why, -ECHILD, "a private chunkkvd ended at once: %s", line);
                }
                if (r != -ENOENT && r != -ECONNREFUSED && r != -ETIMEDOUT)
                        return fail(why, r, "a private chunkkvd does not answer: %s", error.detail);
                if (ckv_now_nsec() >= until_nsec)
                        return fail(why, -ETIMEDOUT, "a private chunkkvd does not answer in time: %s", error.detail);
                pause_nsec(POLL_NSEC);
        }
}

int ckv_private_again(struct ckv_private *private, uint32_t timeout_ms, char ret_why[static CKV_PRIVATE_WHY]) {
        uint64_t until = ckv_now_nsec() + timeout_ms * CKV_NSEC_PER_MSEC;
        char program[PATH_MAX], path[128];
        _cleanup_close_ int log_fd = -1;
        pid_t parent = getpid();

        if (!ckv_private_program(program, sizeof(program)))
                program[0] = '\0';
        (void)snprintf(path, sizeof(path), "%s/log", private->directory);
        log_fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
        if (log_fd < 0)
                return fail(ret_why, -errno, "%s: %s", path, strerror(errno));
        private->pid = fork();
        if (private->pid == 0)
                child_run(private, program, parent, log_fd);
        if (private->pid < 0) {
                private->pid = 0;
                return fail(ret_why, -errno, "fork: %s", strerror(errno));
        }
        return ready_wait(private, until, ret_why);
}

int ckv_private_start(uint32_t timeout_ms, struct ckv_private *ret_private, char ret_why[static CKV_PRIVATE_WHY]) {
        const char *parent_directory = getenv("TMPDIR");
        int n;

        *ret_private = (struct ckv_private){ 0 };
        /* the name of a socket has at most 107 bytes: a long TMPDIR does not do */
        if (!parent_directory || parent_directory[0] != '/' || strlen(parent_directory) > 40)
                parent_directory = "/tmp";
        n = snprintf(ret_private->directory, sizeof(ret_private->directory), "%s/chunkkv-XXXXXX", parent_directory);
        if (n < 0 || !mkdtemp(ret_private->directory)) {
                n = errno;
                ret_private->directory[0] = '\0';
                return fail(ret_why, -n, "no directory for a private chunkkvd in %s: %s", parent_directory,
                            strerror(n));
        }
        (void)snprintf(ret_private->endpoint, sizeof(ret_private->endpoint), "%s/main", ret_private->directory);
        return ckv_private_again(ret_private, timeout_ms, ret_why);
}

static int entry_remove(const char *path, const struct stat *info, int type, struct FTW *where) {
        (void)info;
        (void)type;
        (void)where;
        (void)remove(path);
        return 0;
}

void ckv_private_stop(struct ckv_private *private) {
        uint64_t until = ckv_now_nsec() + STOP_NSEC;
        int status;

        if (private->pid > 0) {
                (void)kill(private->pid, SIGTERM);
                while (waitpid(private->pid, &status, WNOHANG) == 0) {
                        if (ckv_now_nsec() >= until)
                                (void)kill(private->pid, SIGKILL);
                        pause_nsec(POLL_NSEC);
                }
        }
        if (private->directory[0])
                (void)nftw(private->directory, entry_remove, 16, FTW_DEPTH | FTW_PHYS);
        *private = (struct ckv_private){ 0 };
}
