/*
 * The sandboxes of core and gate: what is forbidden is refused, or kills, and
 * what is needed still works.  Each case runs in a child, because a sandbox
 * cannot be left.  Sanitizers have none, so there is nothing to test with them.
 */
#include "daemon/gate/sandbox.h"
#include "daemon/sandbox.h"

#include "base/log.h"
#include "base/macros.h"
#include "tests/support_files.h"

#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/landlock.h>
#include <linux/mempolicy.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>

enum { SURVIVED = 42 };

static char dir[SUPPORT_PATH_BYTES];
static struct ckv_options options;

static void setup(void) {
        ckv_log_open("test_sandbox", CKV_LOG_ERROR);
        support_dir_make(dir);
        /* what daemon/options.c would set; it is not needed here */
        memset(&options, 0, sizeof(options));
        options.sandbox = 1;
        options.runtime_dir = dir;
        options.gate = "/bin/true";
        options.backend = "cpu";
}

static void teardown(void) {
        support_dir_remove(dir);
}

/* in_child() - Return: the status of a child that ran @body(@argument); it exits with what that returns */
static int in_child(int (*body)(int), int argument) {
        pid_t pid = fork();
        int status = -1;

        ck_assert_int_ge(pid, 0);
        if (pid == 0)
                _exit(body(argument));
        ck_assert_int_eq(waitpid(pid, &status, 0), pid);
        return status;
}

static bool landlock_there(void) {
        return syscall(SYS_landlock_create_ruleset, NULL, 0, LANDLOCK_CREATE_RULESET_VERSION) > 0;
}

/* ---- the gate */

static int call_open(void) {
        return open("/dev/null", O_RDONLY);
}

static int call_socket(void) {
        return socket(AF_UNIX, SOCK_STREAM, 0);
}

static int call_connect(void) {
        struct sockaddr_un address = { .sun_family = AF_UNIX, .sun_path = "/nowhere" };

        return connect(STDIN_FILENO, (const struct sockaddr *)&address, sizeof(address));
}

static int call_execve(void) {
        return execl("/bin/true", "true", NULL);
}

static int call_ptrace(void) {
        return (int)ptrace(PTRACE_TRACEME, 0, NULL, NULL);
}

static int call_kill(void) {
        return kill(getppid(), 0);
}

static int call_prctl(void) {
        return prctl(PR_SET_DUMPABLE, 1);
}

static int call_fork(void) {
        return (int)syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
}

static int call_mmap_executable(void) {
        return mmap(NULL, 4096, PROT_READ | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) != MAP_FAILED;
}

static int call_mprotect_executable(void) {
        void *page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

        return mprotect(page, 4096, PROT_READ | PROT_EXEC);
}

static int call_fcntl_owner(void) {
        return fcntl(STDERR_FILENO, F_SETOWN, getpid());
}

static int call_ioctl(void) {
        return (int)syscall(SYS_ioctl, STDIN_FILENO, 0x5413, NULL);
}

static int (*const forbidden[])(void) = { call_open, call_socket, call_connect, call_execve, call_ptrace, call_kill, call_prctl,
                                          call_fork, call_mmap_executable, call_mprotect_executable, call_fcntl_owner, call_ioctl };

static int gate_calls(int index) {
        if (ckv_sandbox_calls())
                return 1;
        (void)forbidden[index]();
        return SURVIVED;
}

START_TEST(forbidden_call_kills_the_gate) {
        int status = in_child(gate_calls, _i);

        ck_assert_msg(WIFSIGNALED(status) && WTERMSIG(status) == SIGSYS, "call %d: status %x", _i, (unsigned)status);
}
END_TEST

static void *thread_forbidden(void *argument) {
        int *pipe_fds = argument;
        char byte;

        (void)!read(pipe_fds[0], &byte, 1);
        (void)call_open();
        return NULL;
}

/* gate_thread() - one that ran before the filter came */
static int gate_thread(int unused) {
        pthread_t thread;
        int fds[2];

        (void)unused;
        if (pipe(fds) < 0 || pthread_create(&thread, NULL, thread_forbidden, fds) || ckv_sandbox_calls())
                return 1;
        (void)!write(fds[1], "x", 1);
        (void)pthread_join(thread, NULL);
        return SURVIVED;
}

START_TEST(threads_that_run_already_are_bound_too) {
        int status = in_child(gate_thread, 0);

        ck_assert(WIFSIGNALED(status) && WTERMSIG(status) == SIGSYS);
}
END_TEST

static int gate_needs(int unused) {
        void *bytes;
        int fd;

        (void)unused;
        if (ckv_sandbox_limits() || ckv_sandbox_files() || ckv_sandbox_calls())
                return 1;
        fd = fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 3);
        bytes = malloc(8 << 20);
        if (fd < 0 || !bytes)
                return 2;
        memset(bytes, 1, 8 << 20);
        free(bytes);
        (void)close(fd);
        /* memory has an end, and that is an error, not death */
        bytes = malloc((size_t)300 << 20);
        if (bytes)
                return 3;
        ckv_log(CKV_LOG_ERROR, GATE_UNFIT, "reason=\"this line is a test\"");
        return SURVIVED;
}

START_TEST(what_a_gate_needs_still_works) {
        int status = in_child(gate_needs, 0);

        ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) == SURVIVED, "status %x", (unsigned)status);
}
END_TEST

static int gate_aborts(int unused) {
        (void)unused;
        if (ckv_sandbox_limits() || ckv_sandbox_calls())
                return 1;
        abort();
}

START_TEST(failed_assertion_is_a_sigabrt) {
        int status = in_child(gate_aborts, 0);

        ck_assert(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
}
END_TEST

static int gate_files(int unused) {
        (void)unused;
        if (ckv_sandbox_files())
                return 1;
        return open("/dev/null", O_RDONLY) < 0 && errno == EACCES ? SURVIVED : 2;
}

START_TEST(gate_opens_no_file_even_without_its_filter) {
        int status = in_child(gate_files, 0);

        if (landlock_there())
                ck_assert(WIFEXITED(status) && WEXITSTATUS(status) == SURVIVED);
}
END_TEST

/* ---- the core */

/* refused() - did a call fail with this errno? */
static bool refused(long result, int error) {
        return result < 0 && errno == error;
}

static int core_calls(int unused) {
        void *page;

        (void)unused;
        if (ckv_sandbox_enter(&options))
                return 1;
        if (!refused(socket(AF_INET, SOCK_STREAM, 0), EPERM) || !refused(socket(AF_NETLINK, SOCK_RAW, 0), EPERM))
                return 2;
        if (!refused(ptrace(PTRACE_TRACEME, 0, NULL, NULL), EPERM) || !refused(unshare(CLONE_NEWUSER), EPERM))
                return 3;
        if (!refused(syscall(SYS_clone, CLONE_NEWUSER | SIGCHLD, 0, 0, 0, 0), EPERM) || !refused(syscall(SYS_clone3, NULL, 0), ENOSYS))
                return 4;
        page = mmap(NULL, 4096, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (page != MAP_FAILED || errno != EPERM)
                return 5;
        page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (page == MAP_FAILED || !refused(mprotect(page, 4096, PROT_READ | PROT_EXEC), EPERM))
                return 6;
        if (!refused(syscall(SYS_process_vm_readv, getppid(), NULL, 0, NULL, 0, 0), EPERM) ||
            !refused(syscall(SYS_pidfd_getfd, 0, 0, 0), EPERM) || !refused(mkdir("/tmp/x", 0700), EPERM))
                return 7;
        /* where a page is may be asked for, and nothing else of memory policies */
        if (!refused(syscall(SYS_get_mempolicy, NULL, NULL, 0UL, NULL, 0UL), EPERM) ||
            !refused(syscall(SYS_move_pages, 0, 0UL, NULL, NULL, NULL, 0), EPERM))
                return 8;
        return SURVIVED;
}

START_TEST(forbidden_call_is_refused_in_the_core) {
        int status = in_child(core_calls, 0);

        ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) == SURVIVED, "status %x", (unsigned)status);
}
END_TEST

/* listens() - on a socket of cuInit()'s kind: seqpacket, abstract. Return: 0 or the errno. */
static int listens(void) {
        struct sockaddr_un address = { .sun_family = AF_UNIX };
        int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0), size;

        size = snprintf(address.sun_path + 1, sizeof(address.sun_path) - 1, "test-uvmfd-%d", (int)getpid());
        if (fd < 0 || bind(fd, (const struct sockaddr *)&address, (socklen_t)(sizeof(sa_family_t) + 1 + (size_t)size)) < 0 ||
            listen(fd, 1) < 0)
                return errno;
        return close(fd);
}

static void *thread_named_by_file(void *argument) {
        char path[64];
        int fd;

        (void)snprintf(path, sizeof(path), "/proc/self/task/%ld/comm", (long)syscall(SYS_gettid));
        fd = open(path, O_WRONLY);
        *(int *)argument = fd >= 0 && write(fd, "cuda", 4) == 4;
        return NULL;
}

/* names_threads() - as cuInit() does, in a process that hides its memory as the core does */
static bool names_threads(void) {
        pthread_t thread;
        int done = 0;

        return prctl(PR_SET_DUMPABLE, 0) == 0 && pthread_create(&thread, NULL, thread_named_by_file, &done) == 0 &&
               pthread_join(thread, NULL) == 0 && done;
}

/* What the NVIDIA driver needs is allowed where one is served, and there alone. */
static int driver_calls(int cuda) {
        static char page[4096];
        int error = cuda ? 0 : EPERM;
        struct sockaddr_un address = { .sun_family = AF_UNIX, .sun_path = "/tmp/test-uvmfd" };
        int fd;

        options.backend = cuda ? "cuda" : "cpu";
        if (ckv_sandbox_enter(&options))
                return 1;
        if ((ioctl(STDIN_FILENO, FIONREAD, page) < 0 && errno == EPERM) != !cuda)
                return 2;
        if ((mlock(page, sizeof(page)) < 0 ? errno : 0) != error && !cuda)
                return 3;
        if (!refused(socket(AF_INET, SOCK_STREAM, 0), EPERM) || !refused(open("/dev/zero", O_RDWR), EACCES))
                return 4;
        if (listens() != error)
                return 5;
        if (!names_threads())
                return 6;
        fd = socket(AF_UNIX, SOCK_SEQPACKET, 0);
        if (fd < 0 || !refused(bind(fd, (const struct sockaddr *)&address, sizeof(address)), cuda ? EACCES : EPERM))
                return 7;
        return SURVIVED;
}

START_TEST(calls_of_a_driver_with_a_gpu_only) {
        int status = in_child(driver_calls, _i);

        if (landlock_there())
                ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) == SURVIVED, "status %x", (unsigned)status);
}
END_TEST

static int spawn(const char *path) {
        char name[] = "x", *argv[] = { name, NULL }, *environment[] = { NULL };
        int status, r;
        pid_t pid;

        r = posix_spawn(&pid, path, NULL, NULL, argv, environment);
        if (r)
                return -r;
        return waitpid(pid, &status, 0) == pid && WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}

static int core_files(int unused) {
        char lock[SUPPORT_PATH_BYTES + 8];

        (void)unused;
        (void)snprintf(lock, sizeof(lock), "%s/lock", dir);
        if (ckv_sandbox_enter(&options))
                return 1;
        if (!refused(open("/etc/passwd", O_RDONLY), EACCES) || !refused(open("/root", O_RDONLY | O_DIRECTORY), EACCES))
                return 2;
        if (!refused(open(lock, O_RDWR | O_CREAT, 0600), EACCES) || !refused(open("/dev/zero", O_RDWR), EACCES))
                return 3;
        if (open("/proc/self/cgroup", O_RDONLY) < 0 || open("/dev/null", O_RDONLY) < 0)
                return 4;
        /* the gate and nothing else */
        if (spawn("/bin/true") != 0)
                return 5;
        if (spawn("/bin/sh") != -EACCES)
                return 6;
        return SURVIVED;
}

START_TEST(files_of_the_core) {
        int status = in_child(core_files, 0);

        if (landlock_there())
                ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) == SURVIVED, "status %x", (unsigned)status);
}
END_TEST

static void *thread_works(void *argument) {
        *(int *)argument = 1;
        return NULL;
}

static bool asks_for_node(void) {
        int node = 0;

        return syscall(SYS_get_mempolicy, &node, NULL, 0UL, &node, (unsigned long)(MPOL_F_NODE | MPOL_F_ADDR)) == 0;
}

static int core_needs(int unused) {
        char path[SUPPORT_PATH_BYTES + 16];
        pthread_t thread;
        /* a container may forbid it */
        bool node_known = asks_for_node();
        int done = 0, fd;

        (void)unused;
        (void)snprintf(path, sizeof(path), "%s/main.fd", dir);
        fd = socket(AF_UNIX, SOCK_SEQPACKET, 0);
        if (fd < 0)
                return 1;
        {
                struct sockaddr_un address = { .sun_family = AF_UNIX };

                (void)snprintf(address.sun_path, sizeof(address.sun_path), "%s", path);
                if (bind(fd, (const struct sockaddr *)&address, sizeof(address)) < 0)
                        return 2;
        }
        if (ckv_sandbox_enter(&options))
                return 3;
        if (pthread_create(&thread, NULL, thread_works, &done) || pthread_join(thread, NULL) || !done)
                return 4;
        if (unlink(path) < 0)
                return 5;
        if (node_known && !asks_for_node())
                return 7;
        /* a filter of its own, as the gate has, on top */
        if (ckv_sandbox_limits() || ckv_sandbox_files() || ckv_sandbox_calls())
                return 6;
        return SURVIVED;
}

START_TEST(what_the_core_needs_still_works) {
        int status = in_child(core_needs, 0);

        ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) == SURVIVED, "status %x", (unsigned)status);
}
END_TEST

static int core_off(int unused) {
        (void)unused;
        options.sandbox = 0;
        if (ckv_sandbox_enter(&options))
                return 1;
        return open("/etc/passwd", O_RDONLY) >= 0 && socket(AF_INET, SOCK_STREAM, 0) >= 0 ? SURVIVED : 2;
}

START_TEST(off_is_off) {
        int status = in_child(core_off, 0);

        ck_assert(WIFEXITED(status) && WEXITSTATUS(status) == SURVIVED);
}
END_TEST

int main(void) {
        Suite *suite;
        TCase *tcase;
        SRunner *runner;
        int failed;

        if (CKV_SANITIZED) {
                puts("no sandbox in a build with sanitizers");
                return 77;
        }
        suite = suite_create("sandbox");
        tcase = tcase_create("sandbox");
        runner = srunner_create(suite);
        tcase_add_checked_fixture(tcase, setup, teardown);
        tcase_add_loop_test(tcase, forbidden_call_kills_the_gate, 0, CKV_ARRAY_SIZE(forbidden));
        tcase_add_test(tcase, threads_that_run_already_are_bound_too);
        tcase_add_test(tcase, what_a_gate_needs_still_works);
        tcase_add_test(tcase, failed_assertion_is_a_sigabrt);
        tcase_add_test(tcase, gate_opens_no_file_even_without_its_filter);
        tcase_add_test(tcase, forbidden_call_is_refused_in_the_core);
        tcase_add_loop_test(tcase, calls_of_a_driver_with_a_gpu_only, 0, 2);
        tcase_add_test(tcase, files_of_the_core);
        tcase_add_test(tcase, what_the_core_needs_still_works);
        tcase_add_test(tcase, off_is_off);
        suite_add_tcase(suite, tcase);
        srunner_run_all(runner, CK_NORMAL);
        failed = srunner_ntests_failed(runner);
        srunner_free(runner);
        return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
