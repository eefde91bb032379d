/*
 * Preloaded into a daemon or gate: makes calls of the C library fail as the
 * kernel might make them fail.  Allocation, and those that stand for system
 * calls.
 *
 * strace could inject the same, but neither next to the filter of system calls
 * that the processes have, nor where ptrace is forbidden.  What glibc calls
 * inside itself is not seen here: its own errors are not what is tested.
 *
 * The test says what fails by a file that both map ($CHUNKKVD_FAULT), so orders
 * can be given while the process runs, and calls counted: tests/python/faults.py
 * has the other end of struct order.
 */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <malloc.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/pidfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/timerfd.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

/* The order of tests/python/faults.py */
enum call {
        MALLOC, ACCEPT4, RECVMSG, SENDMSG, MMAP, FSTAT, FCNTL, EPOLL_WAIT, EPOLL_CTL, PIDFD_OPEN, POSIX_SPAWN, MEMFD_CREATE,
        EVENTFD, TIMERFD_CREATE, SOCKETPAIR, GETSOCKOPT, FTRUNCATE, OPEN, POLL, PTHREAD_CREATE, READ, WRITE, MINCORE, WAITID, FALLOCATE,
        _CALLS,
};
enum program { CORE, GATE, _PROGRAMS };

/* One call fails with @error from the @from-th time on, @count times; or, if @permyriad is set, so often by chance. */
struct order {
        uint32_t error, from, count, permyriad;
        uint64_t seen, failed;
};

static struct order *orders;    /* [_CALLS] of this program; NULL: nothing fails */

/* splitmix64 of the number of the call: which ones fail depends on nothing else */
static uint64_t mix(uint64_t x) {
        x += 0x9e3779b97f4a7c15;
        x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
        x = (x ^ x >> 27) * 0x94d049bb133111eb;
        return x ^ x >> 31;
}

/* fails() - and errno says why */
static bool fails(enum call call) {
        struct order *order = orders ? &orders[call] : NULL;
        uint64_t n;

        if (!order)
                return false;
        n = __atomic_add_fetch(&order->seen, 1, __ATOMIC_RELAXED);
        if (!order->error)
                return false;
        if (order->permyriad ? mix(order->from * 1000003ULL + n) % 10000 >= order->permyriad : n < order->from || n - order->from >= order->count)
                return false;
        (void)__atomic_add_fetch(&order->failed, 1, __ATOMIC_RELAXED);
        errno = (int)order->error;
        return true;
}

__attribute__((constructor)) static void attach(void) {
        const char *path = getenv("CHUNKKVD_FAULT");
        size_t bytes = _PROGRAMS * _CALLS * sizeof(struct order);
        bool gate = strcmp(program_invocation_short_name, "chunkkv-gate") == 0;
        struct order *all;
        int fd;

        if (!path || (!gate && strcmp(program_invocation_short_name, "chunkkvd") != 0))
                return;
        fd = open(path, O_RDWR | O_CLOEXEC);
        all = fd < 0 ? MAP_FAILED : mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        if (all == MAP_FAILED)
                abort();
        (void)close(fd);
        orders = all + (gate ? GATE : CORE) * _CALLS;
}

/* ---- memory */

extern void *__libc_malloc(size_t size);
extern void *__libc_calloc(size_t count, size_t size);
extern void *__libc_realloc(void *old, size_t size);
extern void *__libc_memalign(size_t alignment, size_t size);

void *malloc(size_t size) {
        return fails(MALLOC) ? NULL : __libc_malloc(size);
}

void *calloc(size_t count, size_t size) {
        return fails(MALLOC) ? NULL : __libc_calloc(count, size);
}

void *realloc(void *old, size_t size) {
        return fails(MALLOC) ? NULL : __libc_realloc(old, size);
}

void *reallocarray(void *old, size_t count, size_t size) {
        size_t bytes;

        if (__builtin_mul_overflow(count, size, &bytes)) {
                errno = ENOMEM;
                return NULL;
        }
        return realloc(old, bytes);
}

void *memalign(size_t alignment, size_t size) {
        return fails(MALLOC) ? NULL : __libc_memalign(alignment, size);
}

void *aligned_alloc(size_t alignment, size_t size) {
        return memalign(alignment, size);
}

int posix_memalign(void **ret, size_t alignment, size_t size) {
        void *memory = memalign(alignment, size);

        if (!memory)
                return ENOMEM;
        *ret = memory;
        return 0;
}

/* ---- system calls */

/* The function that this one stands before */
#define REAL(name)                                                                                                     \
        ({                                                                                                             \
                static __typeof__(name) *real;                                                                         \
                if (!real)                                                                                             \
                        real = (__typeof__(real))dlsym(RTLD_NEXT, #name);                                              \
                real;                                                                                                  \
        })

#define WRAP(call, type, name, parameters, arguments)                                                                  \
        type name parameters {                                                                                         \
                return fails(call) ? (type)-1 : REAL(name) arguments;                                                  \
        }

/* these return the error */
#define WRAP_POSIX(call, name, parameters, arguments)                                                                  \
        int name parameters {                                                                                          \
                return fails(call) ? errno : REAL(name) arguments;                                                     \
        }

WRAP(ACCEPT4, int, accept4, (int fd, struct sockaddr *restrict to, socklen_t *restrict size, int flags), (fd, to, size, flags))
WRAP(RECVMSG, ssize_t, recvmsg, (int fd, struct msghdr *message, int flags), (fd, message, flags))
WRAP(SENDMSG, ssize_t, sendmsg, (int fd, const struct msghdr *message, int flags), (fd, message, flags))
WRAP(MMAP, void *, mmap, (void *at, size_t size, int protection, int flags, int fd, off_t offset),
     (at, size, protection, flags, fd, offset))
WRAP(FSTAT, int, fstat, (int fd, struct stat *to), (fd, to))
WRAP(EPOLL_WAIT, int, epoll_wait, (int fd, struct epoll_event *to, int most, int msec), (fd, to, most, msec))
WRAP(EPOLL_WAIT, int, epoll_pwait2,
     (int fd, struct epoll_event *to, int most, const struct timespec *span, const sigset_t *mask), (fd, to, most, span, mask))
WRAP(EPOLL_CTL, int, epoll_ctl, (int fd, int order, int other, struct epoll_event *event), (fd, order, other, event))
WRAP(PIDFD_OPEN, int, pidfd_open, (pid_t pid, unsigned flags), (pid, flags))
WRAP_POSIX(POSIX_SPAWN, posix_spawn,
           (pid_t *restrict pid, const char *restrict path, const posix_spawn_file_actions_t *actions,
            const posix_spawnattr_t *restrict attributes, char *const *argv, char *const *environment),
           (pid, path, actions, attributes, argv, environment))
WRAP(MEMFD_CREATE, int, memfd_create, (const char *name, unsigned flags), (name, flags))
WRAP(EVENTFD, int, eventfd, (unsigned count, int flags), (count, flags))
WRAP(TIMERFD_CREATE, int, timerfd_create, (int clock, int flags), (clock, flags))
WRAP(SOCKETPAIR, int, socketpair, (int domain, int type, int protocol, int to[2]), (domain, type, protocol, to))
WRAP(GETSOCKOPT, int, getsockopt, (int fd, int level, int name, void *restrict to, socklen_t *restrict size),
     (fd, level, name, to, size))
WRAP(FTRUNCATE, int, ftruncate, (int fd, off_t size), (fd, size))
WRAP(POLL, int, poll, (struct pollfd *of, unsigned long count, int msec), (of, count, msec))
WRAP(POLL, int, ppoll, (struct pollfd *of, unsigned long count, const struct timespec *span, const sigset_t *mask),
     (of, count, span, mask))
WRAP_POSIX(PTHREAD_CREATE, pthread_create,
           (pthread_t *restrict thread, const pthread_attr_t *restrict attributes, void *(*begin)(void *), void *restrict argument),
           (thread, attributes, begin, argument))
WRAP(READ, ssize_t, read, (int fd, void *to, size_t size), (fd, to, size))
WRAP(WRITE, ssize_t, write, (int fd, const void *from, size_t size), (fd, from, size))
WRAP(READ, ssize_t, pread, (int fd, void *to, size_t size, off_t offset), (fd, to, size, offset))
WRAP(WRITE, ssize_t, pwrite, (int fd, const void *from, size_t size, off_t offset), (fd, from, size, offset))
WRAP_POSIX(FALLOCATE, posix_fallocate, (int fd, off_t offset, off_t size), (fd, offset, size))
WRAP(MINCORE, int, mincore, (void *at, size_t size, unsigned char *to), (at, size, to))
WRAP(WAITID, int, waitid, (idtype_t type, id_t id, siginfo_t *to, int options), (type, id, to, options))

int fcntl(int fd, int order, ...) {
        va_list list;
        long argument;

        va_start(list, order);
        argument = va_arg(list, long);
        va_end(list);
        return fails(FCNTL) ? -1 : REAL(fcntl)(fd, order, argument);
}

int open(const char *path, int flags, ...) {
        va_list list;
        unsigned mode = 0;

        if (flags & (O_CREAT | O_TMPFILE)) {
                va_start(list, flags);
                mode = va_arg(list, unsigned);
                va_end(list);
        }
        return fails(OPEN) ? -1 : REAL(open)(path, flags, mode);
}

int openat(int at, const char *path, int flags, ...) {
        va_list list;
        unsigned mode = 0;

        if (flags & (O_CREAT | O_TMPFILE)) {
                va_start(list, flags);
                mode = va_arg(list, unsigned);
                va_end(list);
        }
        return fails(OPEN) ? -1 : REAL(openat)(at, path, flags, mode);
}
