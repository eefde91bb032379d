/*
 * The core has the memory of all tenants in its hands, and integers from their
 * gates in its ears.  What it can do to the machine besides is bounded here:
 * files by Landlock, system calls by seccomp.  The service's unit bounds the
 * same once more; this holds without a unit too.
 *
 * A call that is not in the table fails with EPERM and does not kill: the core
 * then says what it could not do, or answers one request with an error, and the
 * caches of everybody else live on.  Only calls of a foreign architecture kill.
 *
 * The gate begins its life inside this sandbox, because a filter passes through
 * execve().  So the table has what a dynamic loader needs as well, and execve()
 * itself; which programs that can be is Landlock's business: the gate and the
 * system's libraries.  Where the kernel has no Landlock, the unit's NoExecPaths=
 * says so.  clone3() hides its flags from a filter and is said not to exist;
 * glibc then takes clone(), whose flags may not ask for a namespace.
 *
 * A backend that needs more (device files, arch_prctl for tile registers) gets
 * it here, in these two tables, and nowhere else.  What the NVIDIA driver needs
 * is there with --backend cuda only.  Which files and calls that are was read,
 * not tried: there was no GPU where this was written.  cuInit() writes the names
 * of its threads to /proc/PID/task/TID/comm, makes a memfd, and listens on an
 * abstract socket, on which it hands its descriptor of /dev/nvidia-uvm to those
 * who open its memory; one that may not answers "operating system call failed"
 * (304).  A path is bound by Landlock all the same.  Modules are loaded and
 * device files made before the daemon starts: nvidia-modprobe, which the driver
 * would execute for it, gets no rights from here.
 */
#include "daemon/sandbox.h"

#include "base/error.h"
#include "base/log.h"
#include "base/macros.h"
#include "ipc/filter.h"
#include "ipc/landlock.h"

#include <errno.h>
#include <linux/mempolicy.h>
#include <linux/userfaultfd.h>
#include <sched.h>
#include <seccomp.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>

#define NAMESPACES (CLONE_NEWNS | CLONE_NEWCGROUP | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWNET)
#define ALL_BITS UINT32_MAX

#define ALLOW(call) { .number = SCMP_SYS(call) }
/* only where these bits of an argument have this value */
#define ALLOW_IF(call, n, bits, bits_value) { .number = SCMP_SYS(call), .argument = (n), .mask = (bits), .value = (bits_value) }
#define FAIL(call, errno_value) { .number = SCMP_SYS(call), .error = (errno_value) }

static const struct ckv_filter_call calls[] = {
        /* descriptors */
        ALLOW(read), ALLOW(write), ALLOW(readv), ALLOW(writev), ALLOW(pread64), ALLOW(pwrite64), ALLOW(lseek), ALLOW(close),
        ALLOW(close_range), ALLOW(fcntl), ALLOW(dup2), ALLOW(dup3), ALLOW(fstatfs), ALLOW(flock), ALLOW(ftruncate),
        ALLOW(fallocate), ALLOW(memfd_create), ALLOW(eventfd2), ALLOW(pipe2),
        /* files, as far as Landlock lets it */
        ALLOW(openat), ALLOW(newfstatat), ALLOW(fstat), ALLOW(statx), ALLOW(statfs), ALLOW(access), ALLOW(faccessat),
        ALLOW(faccessat2), ALLOW(readlink), ALLOW(readlinkat), ALLOW(getdents64), ALLOW(getcwd), ALLOW(unlink),
        ALLOW(unlinkat), ALLOW(umask),
        /* the loop */
        ALLOW(epoll_create1), ALLOW(epoll_ctl), ALLOW(epoll_wait), ALLOW(epoll_pwait), ALLOW(epoll_pwait2), ALLOW(poll),
        ALLOW(ppoll), ALLOW(timerfd_create), ALLOW(timerfd_settime), ALLOW(signalfd4), ALLOW(clock_gettime),
        ALLOW(clock_getres), ALLOW(clock_nanosleep), ALLOW(nanosleep), ALLOW(gettimeofday), ALLOW(restart_syscall),
        /* sockets of this machine: side connections, pairs, the service manager */
        ALLOW_IF(socket, 0, ALL_BITS, AF_UNIX), ALLOW_IF(socketpair, 0, ALL_BITS, AF_UNIX), ALLOW(connect), ALLOW(accept4),
        ALLOW(sendmsg), ALLOW(sendto), ALLOW(recvmsg), ALLOW(recvfrom), ALLOW(getsockopt), ALLOW(setsockopt),
        ALLOW(getsockname), ALLOW(getpeername), ALLOW(shutdown),
        /* memory that can be written or executed, never both */
        ALLOW_IF(mmap, 2, PROT_EXEC, 0), ALLOW_IF(mmap, 2, PROT_WRITE, 0), ALLOW_IF(mprotect, 2, PROT_EXEC, 0), ALLOW(munmap),
        ALLOW(mremap), ALLOW(madvise), ALLOW(brk), ALLOW(mincore), ALLOW_IF(ioctl, 1, ALL_BITS, UFFDIO_REGISTER),
        /* which node a page is on */
        ALLOW_IF(get_mempolicy, 4, ALL_BITS, MPOL_F_NODE | MPOL_F_ADDR),
        /* threads, and gates */
        ALLOW_IF(clone, 0, NAMESPACES, 0), FAIL(clone3, ENOSYS), ALLOW(execve), ALLOW(wait4), ALLOW(waitid), ALLOW(kill),
        ALLOW(tgkill), ALLOW(pidfd_open), ALLOW(pidfd_send_signal), ALLOW(setpgid), ALLOW(exit), ALLOW(exit_group),
        ALLOW(futex), ALLOW(set_tid_address), ALLOW(set_robust_list), ALLOW(rseq), ALLOW(sched_yield),
        ALLOW(sched_getaffinity), ALLOW(sched_setaffinity), ALLOW(sched_getparam), ALLOW(sched_getscheduler),
        ALLOW_IF(sched_setscheduler, 1, ALL_BITS, SCHED_OTHER), ALLOW(getcpu), ALLOW(membarrier),
        /* signals */
        ALLOW(rt_sigaction), ALLOW(rt_sigprocmask), ALLOW(rt_sigreturn), ALLOW(rt_sigtimedwait), ALLOW(rt_sigpending),
        ALLOW(sigaltstack),
        /* what it is, and limits for itself and its gates */
        ALLOW(getpid), ALLOW(gettid), ALLOW(getppid), ALLOW(getpgrp), ALLOW(getpgid), ALLOW(getuid), ALLOW(geteuid),
        ALLOW(getgid), ALLOW(getegid), ALLOW(getrandom), ALLOW(getrlimit), ALLOW(prlimit64), ALLOW(getrusage), ALLOW(sysinfo),
        ALLOW(uname), ALLOW(prctl), ALLOW(arch_prctl), ALLOW(seccomp), ALLOW(landlock_create_ruleset),
        ALLOW(landlock_add_rule), ALLOW(landlock_restrict_self),
        /* the last lines: only for the NVIDIA driver, which speaks to its devices so, holds memory in place for them, and listens */
        ALLOW(ioctl), ALLOW(mlock), ALLOW(munlock), ALLOW(bind), ALLOW(listen),
};

enum { CALLS_OF_CUDA = 5, GPUS = 64, PATHS = 128 };

/* A table of files while it grows. */
struct files {
        struct ckv_landlock_path paths[PATHS];
        size_t count;
        char gpus[GPUS][16];            /* "/dev/nvidia0" */
};

static void files_add(struct files *files, const char *path, unsigned access) {
        assert(files->count < PATHS);
        files->paths[files->count++] = (struct ckv_landlock_path){ path, access };
}

/* files_add_cuda() - where the driver may lie, its devices, and what it reads of the machine */
static void files_add_cuda(struct files *files) {
        static const char *const devices[] = { "/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidia-caps" };

        files_add(files, "/usr/local/nvidia", CKV_LANDLOCK_READ | CKV_LANDLOCK_EXECUTE);
        files_add(files, "/usr/local/cuda", CKV_LANDLOCK_READ | CKV_LANDLOCK_EXECUTE);
        files_add(files, "/sys/bus/pci", CKV_LANDLOCK_READ);
        files_add(files, "/sys/devices", CKV_LANDLOCK_READ);
        files_add(files, "/sys/module", CKV_LANDLOCK_READ);
        for (size_t i = 0; i < CKV_ARRAY_SIZE(devices); i++)
                files_add(files, devices[i], CKV_LANDLOCK_DEVICE);
        for (unsigned i = 0; i < GPUS; i++) {
                (void)snprintf(files->gpus[i], sizeof(files->gpus[i]), "/dev/nvidia%u", i);
                files_add(files, files->gpus[i], CKV_LANDLOCK_DEVICE);
        }
}

static int restrict_files(const struct ckv_options *options) {
        const struct ckv_landlock_path always[] = {
                /* its own sockets go when it ends */
                { options->runtime_dir, CKV_LANDLOCK_SOCKETS },
                /* the gate, and what its start reads */
                { options->gate, CKV_LANDLOCK_READ | CKV_LANDLOCK_EXECUTE },
                { "/lib", CKV_LANDLOCK_READ | CKV_LANDLOCK_EXECUTE },
                { "/lib64", CKV_LANDLOCK_READ | CKV_LANDLOCK_EXECUTE },
                { "/usr/lib", CKV_LANDLOCK_READ | CKV_LANDLOCK_EXECUTE },
                { "/usr/lib64", CKV_LANDLOCK_READ | CKV_LANDLOCK_EXECUTE },
                { "/usr/local/lib", CKV_LANDLOCK_READ | CKV_LANDLOCK_EXECUTE },
                { "/etc/ld.so.cache", CKV_LANDLOCK_READ },
                { "/etc/ld.so.preload", CKV_LANDLOCK_READ },
                { "/etc/nsswitch.conf", CKV_LANDLOCK_READ },
                { "/etc/protocols", CKV_LANDLOCK_READ },
                { "/dev/null", CKV_LANDLOCK_READ },
                /* limits of memory and of processors; a gate writes its own oom_score_adj */
                { "/proc", CKV_LANDLOCK_READ | CKV_LANDLOCK_WRITE },
                { "/sys/fs/cgroup", CKV_LANDLOCK_READ },
                { "/sys/devices/system", CKV_LANDLOCK_READ },
        };
        struct files files = { .count = 0 };

        for (size_t i = 0; i < CKV_ARRAY_SIZE(always); i++)
                files_add(&files, always[i].path, always[i].access);
        if (options->posix_shm)
                files_add(&files, "/dev/shm", CKV_LANDLOCK_READ | CKV_LANDLOCK_WRITE);
        if (ckv_options_cuda(options))
                files_add_cuda(&files);
        /* not the abstract sockets: the service manager may listen on one */
        return ckv_landlock_restrict(files.paths, files.count, CKV_LANDLOCK_SIGNALS);
}

int ckv_sandbox_enter(const struct ckv_options *options) {
        bool files;
        int r;

        if (!options->sandbox) {
                ckv_log(CKV_LOG_WARNING, SANDBOX_OFF, "option=\"--sandbox off\"");
                return 0;
        }
        if (CKV_SANITIZED)
                return 0;
        r = restrict_files(options);
        files = r == 0;
        if (r >= 0)
                r = ckv_filter_install(calls, CKV_ARRAY_SIZE(calls) - (ckv_options_cuda(options) ? 0 : CALLS_OF_CUDA), EPERM);
        if (r) {
                ckv_log(CKV_LOG_ERROR, START_FAILED, "why=\"the sandbox cannot be set up: %s; --sandbox off runs without\"",
                        strerror(-r));
                return ckv_error_trace(r);
        }
        ckv_log(CKV_LOG_INFO, SANDBOX_ON, "landlock=%s seccomp=yes", files ? "yes" : "\"not in this kernel\"");
        return 0;
}
