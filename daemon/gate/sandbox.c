/*
 * The gate reads what tenants write, with libraries that were not made for
 * hostile input.  Somebody may take it over one day; this file says what is
 * then left to do: talk to the peers that it has, and send records to the
 * core, which believes none of them.
 *
 * The table below is what libzmq 4.3.4, protobuf-c, malloc and the log were
 * seen to call under glibc 2.36, and what they call when memory is short or an
 * assertion fails.  Any other call is not an error but death: code that makes
 * one is not ours any more, and the core starts another gate.
 *
 * Not in it, on purpose: open, socket, connect, bind, execve, clone, ptrace,
 * ioctl, kill of others, prctl but for a thread's name, and memory that can be
 * executed.
 *
 * A build with sanitizers gets neither the limit on memory (they reserve
 * terabytes) nor the filters (they read /proc and trace themselves).
 */
#include "daemon/gate/sandbox.h"

#include "base/error.h"
#include "base/macros.h"
#include "ipc/filter.h"
#include "ipc/landlock.h"

#include <errno.h>
#include <fcntl.h>
#include <malloc.h>
#include <sched.h>
#include <seccomp.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>

enum { NOFILE = 512, DATA_MIB = 256 };

static int set_limit(int resource, rlim_t value) {
        struct rlimit limit;

        if (getrlimit((__rlimit_resource_t)resource, &limit) < 0)
                return ckv_error_origin(-errno);
        limit.rlim_cur = CKV_MIN(value, limit.rlim_max);
        limit.rlim_max = limit.rlim_cur;
        return setrlimit((__rlimit_resource_t)resource, &limit) < 0 ? ckv_error_origin(-errno) : 0;
}

int ckv_sandbox_limits(void) {
        int r, fd;

        if (prctl(PR_SET_PDEATHSIG, SIGKILL) < 0)
                return ckv_error_origin(-errno);
        r = set_limit(RLIMIT_NOFILE, NOFILE);
        if (r == 0)
                r = set_limit(RLIMIT_CORE, 0);
        if (r == 0 && !CKV_SANITIZED)
                r = set_limit(RLIMIT_DATA, (rlim_t)DATA_MIB << 20);
        if (r)
                return ckv_error_trace(r);
        (void)mallopt(M_ARENA_MAX, 1);
        (void)signal(SIGPIPE, SIG_IGN);

        /* best effort: /proc may not be there */
        fd = open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC);
        if (fd >= 0) {
                (void)!write(fd, "500", 3);
                (void)ckv_close(fd);
        }
        return 0;
}

int ckv_sandbox_files(void) {
        int r;

        if (CKV_SANITIZED)
                return 0;
        r = ckv_landlock_restrict(NULL, 0, CKV_LANDLOCK_SIGNALS | CKV_LANDLOCK_ABSTRACT);
        return r < 0 ? ckv_error_trace(r) : 0;
}

#define ALLOW(call) { .number = SCMP_SYS(call) }
/* only where these bits of an argument have this value */
#define ALLOW_IF(call, n, bits, bits_value) { .number = SCMP_SYS(call), .argument = (n), .mask = (bits), .value = (bits_value) }
#define ALL_BITS UINT32_MAX

int ckv_sandbox_calls(void) {
        const uint64_t self = (uint64_t)getpid();
        const struct ckv_filter_call calls[] = {
                /* peers, the pair, the log */
                ALLOW(accept4), ALLOW(close), ALLOW(read), ALLOW(recvfrom), ALLOW(recvmsg), ALLOW(sendmsg), ALLOW(sendto),
                ALLOW(shutdown), ALLOW(write), ALLOW(writev), ALLOW(getsockname), ALLOW(getpeername), ALLOW(getsockopt),
                ALLOW_IF(fcntl, 1, ALL_BITS, F_GETFL), ALLOW_IF(fcntl, 1, ALL_BITS, F_SETFL),
                ALLOW_IF(fcntl, 1, ALL_BITS, F_GETFD), ALLOW_IF(fcntl, 1, ALL_BITS, F_SETFD),
                ALLOW_IF(fcntl, 1, ALL_BITS, F_DUPFD_CLOEXEC),
                /* waiting */
                ALLOW(poll), ALLOW(ppoll), ALLOW(epoll_ctl), ALLOW(epoll_wait), ALLOW(epoll_pwait), ALLOW(futex),
                ALLOW(clock_gettime), ALLOW(clock_nanosleep), ALLOW(restart_syscall), ALLOW(sched_yield),
                /* memory, none of it executable */
                ALLOW_IF(mmap, 2, PROT_EXEC, 0), ALLOW_IF(mprotect, 2, PROT_EXEC, 0), ALLOW(munmap), ALLOW(mremap),
                ALLOW(madvise), ALLOW(brk),
                /* libzmq asks in each call whether it was forked; malloc and the hash of names want random bytes */
                ALLOW(getpid), ALLOW(gettid), ALLOW(getrandom),
                /* a thread that libzmq has made may not have had its first turn yet: what glibc and libzmq call there */
                ALLOW(rseq), ALLOW(set_robust_list), ALLOW(sched_getparam), ALLOW(sched_getscheduler),
                ALLOW_IF(sched_setscheduler, 1, ALL_BITS, SCHED_OTHER), ALLOW_IF(prctl, 0, ALL_BITS, PR_SET_NAME),
                /* the end: of a thread, of the process, by an assertion */
                ALLOW(exit), ALLOW(exit_group), ALLOW(rt_sigaction), ALLOW(rt_sigprocmask), ALLOW(rt_sigreturn),
                ALLOW_IF(tgkill, 0, ALL_BITS, self), ALLOW_IF(kill, 0, ALL_BITS, self),
        };

        if (CKV_SANITIZED)
                return 0;
        return ckv_error_trace(ckv_filter_install(calls, CKV_ARRAY_SIZE(calls), CKV_FILTER_KILL));
}
