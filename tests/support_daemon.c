/*
 * Starting and watching a daemon.  The program is taken from $CHUNKKV_BUILD,
 * or from the directory that this test was built into.  Started with fork and
 * exec, because LISTEN_PID is a number that only the child knows.
 */
#include "tests/support_daemon.h"

#include "base/clock.h"
#include "base/macros.h"

#include <check.h>
#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <signal.h>
#include <string.h>
#include <sys/pidfd.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>

enum { WAIT_MSEC = 15000, LISTEN_FDS_START = 3, LISTEN_FDS_ABOVE = 32 };

/* program() - path of chunkkvd */
static const char *program(void) {
        static char path[PATH_MAX + 16];
        const char *build = getenv("CHUNKKV_BUILD");
        ssize_t n;

        if (build && *build) {
                (void)snprintf(path, sizeof(path), "%s/chunkkvd", build);
                return path;
        }
        n = readlink("/proc/self/exe", path, PATH_MAX);
        ck_assert_int_gt(n, 0);
        path[n] = '\0';
        strcpy(strrchr(path, '/'), "/chunkkvd");
        return path;
}

void support_daemon_init(struct support_daemon *daemon) {
        struct sockaddr_un address = { .sun_family = AF_UNIX };

        *daemon = (struct support_daemon){ .notify_fd = -1 };
        support_dir_make(daemon->dir);
        (void)snprintf(daemon->run, sizeof(daemon->run), "%s/run", daemon->dir);
        (void)snprintf(address.sun_path, sizeof(address.sun_path), "%s/notify", daemon->dir);
        daemon->notify_fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
        ck_assert_int_ge(daemon->notify_fd, 0);
        ck_assert_int_eq(bind(daemon->notify_fd, (const struct sockaddr *)&address, sizeof(address)), 0);
}

/* child_fds() - log to stderr, passed sockets at 3 and up */
static void child_fds(const struct support_daemon *daemon, const int *listen_fds, int listen_count) {
        int above[64], log;
        char text[256];

        (void)snprintf(text, sizeof(text), "%s/log", daemon->dir);
        log = open(text, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
        if (log < 0 || dup2(log, STDERR_FILENO) < 0)
                _exit(120);
        for (int i = 0; i < listen_count; i++)
                above[i] = fcntl(listen_fds[i], F_DUPFD_CLOEXEC, LISTEN_FDS_ABOVE);
        for (int i = 0; i < listen_count; i++)
                if (dup2(above[i], LISTEN_FDS_START + i) < 0)
                        _exit(121);
        if (listen_count == 0)
                return;
        (void)snprintf(text, sizeof(text), "%d", (int)getpid());
        (void)setenv("LISTEN_PID", text, 1);
        (void)snprintf(text, sizeof(text), "%d", listen_count);
        (void)setenv("LISTEN_FDS", text, 1);
}

void support_daemon_spawn(struct support_daemon *daemon, const char *const args[], const int *listen_fds, int listen_count) {
        char *argv[SUPPORT_DAEMON_ARGS_MAX + 4] = { NULL }, notify[256];
        int argc = 0;

        ck_assert_int_eq(daemon->pid, 0);
        argv[argc++] = strdup(program());
        argv[argc++] = strdup("--runtime-dir");
        argv[argc++] = strdup(daemon->run);
        for (int i = 0; args && args[i]; i++) {
                ck_assert_int_lt(i, SUPPORT_DAEMON_ARGS_MAX);
                argv[argc++] = strdup(args[i]);
        }
        (void)snprintf(notify, sizeof(notify), "%s/notify", daemon->dir);

        daemon->pid = fork();
        ck_assert_int_ge(daemon->pid, 0);
        if (daemon->pid == 0) {
                /* a test that fails leaves no daemon behind */
                (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
                (void)setenv("NOTIFY_SOCKET", notify, 1);
                child_fds(daemon, listen_fds, listen_count);
                (void)execv(argv[0], argv);
                _exit(122);
        }
        for (int i = 0; i < argc; i++)
                free(argv[i]);
}

void support_daemon_await(struct support_daemon *daemon, const char *text) {
        uint64_t end = ckv_now_nsec() + WAIT_MSEC * CKV_NSEC_PER_MSEC;
        struct pollfd p = { .fd = daemon->notify_fd, .events = POLLIN };
        char got[4096];

        while (ckv_now_nsec() < end) {
                ssize_t n;

                if (poll(&p, 1, 100) != 1)
                        continue;
                n = recv(daemon->notify_fd, got, sizeof(got) - 1, 0);
                ck_assert_int_ge(n, 0);
                got[n] = '\0';
                if (strstr(got, text))
                        return;
        }
        ck_abort_msg("no notification \"%s\" within 15 s", text);
}

int support_daemon_wait(struct support_daemon *daemon) {
        struct pollfd p = { .fd = pidfd_open(daemon->pid, 0), .events = POLLIN };
        int status, r;

        ck_assert_int_ge(p.fd, 0);
        r = poll(&p, 1, WAIT_MSEC);
        (void)close(p.fd);
        ck_assert_msg(r == 1, "the daemon did not end within 15 s");
        ck_assert_int_eq(waitpid(daemon->pid, &status, 0), daemon->pid);
        daemon->pid = 0;
        return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

int support_daemon_gates(const struct support_daemon *daemon, pid_t ret_gates[static SUPPORT_DAEMON_GATES_MAX]) {
        DIR *dir = opendir("/proc");
        struct dirent *entry;
        int n = 0;

        ck_assert_ptr_nonnull(dir);
        while ((entry = readdir(dir)) && n < SUPPORT_DAEMON_GATES_MAX) {
                char path[300], state;
                int pid, parent;
                FILE *file;

                (void)snprintf(path, sizeof(path), "/proc/%s/stat", entry->d_name);
                if (entry->d_name[0] < '0' || entry->d_name[0] > '9' || !(file = fopen(path, "re")))
                        continue;
                /* a name of ours holds no blank and no bracket */
                if (fscanf(file, "%d (%*[^)]) %c %d", &pid, &state, &parent) == 3 && parent == daemon->pid && state != 'Z')
                        ret_gates[n++] = pid;
                (void)fclose(file);
        }
        (void)closedir(dir);
        return n;
}

bool support_daemon_logged(const struct support_daemon *daemon, const char *text) {
        char path[256], *line = NULL;
        size_t size = 0;
        bool found = false;
        FILE *file;

        (void)snprintf(path, sizeof(path), "%s/log", daemon->dir);
        file = fopen(path, "re");
        while (file && !found && getline(&line, &size, file) > 0)
                found = strstr(line, text) != NULL;
        free(line);
        if (file)
                (void)fclose(file);
        return found;
}

void support_daemon_deinit(struct support_daemon *daemon) {
        if (daemon->pid > 0) {
                (void)kill(daemon->pid, SIGKILL);
                (void)waitpid(daemon->pid, NULL, 0);
        }
        (void)close(daemon->notify_fd);
        support_dir_remove(daemon->dir);
        *daemon = (struct support_daemon){ .notify_fd = -1 };
}
