/*
 * SIGBUS, made survivable for mappings of clients' files.
 *
 * The handler runs on whatever thread touched the page, in the middle of
 * anything, so it takes no lock and allocates nothing: it walks blocks that are
 * only ever added, and finds the mapping that the address lies in.  Entries
 * are used again; a counter that is odd while one changes keeps the handler from
 * joining the start of one mapping to the length of another.  An entry that is
 * changing is never the one looked for, because nobody may touch a mapping
 * whose guard is being added or removed.
 *
 * A page punched out of a file is no SIGBUS by itself: the kernel makes a new
 * one, full of zeros and at the reader's expense.  With userfaultfd's
 * UFFD_FEATURE_SIGBUS a missing page raises the signal instead, so the hole is
 * noticed at the very read and costs nothing.  Nobody reads that descriptor:
 * no fault ever waits.
 *
 * A signal that somebody sent, or for an address that no guard answers for, is
 * handed to the handler before us, as a rule the end of the process.
 */
#include "base/guard.h"

#include "base/error.h"
#include "base/macros.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef UFFD_USER_MODE_ONLY
#define UFFD_USER_MODE_ONLY 1
#endif

enum { BLOCK_GUARDS = 256 };

struct ckv_guard {
        _Atomic uint32_t changes;       /* odd: start, bytes and writable are being written */
        _Atomic uintptr_t start;        /* 0: free */
        _Atomic size_t bytes;
        atomic_bool writable, bad;
        bool watches;
        struct ckv_guard *next_free;    /* under mutex */
};

struct block {
        struct block *next;             /* does not change once the block can be found */
        struct ckv_guard guards[BLOCK_GUARDS];
};

static _Atomic(struct block *) blocks;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static struct ckv_guard *free_guards;   /* under mutex */
static struct sigaction before_us;      /* does not change once the handler is installed */
static int watch_fd = -1;               /* of userfaultfd(2); -1: this kernel or sandbox has none */

/* covers() - does the guard answer for this address? */
static bool covers(const struct ckv_guard *guard, uintptr_t address, uintptr_t *ret_start, size_t *ret_bytes, bool *ret_writable) {
        uint32_t changes = atomic_load_explicit(&guard->changes, memory_order_acquire);

        if (changes & 1)
                return false;
        /* acquire: whoever sees a newer value here sees the newer count below */
        *ret_start = atomic_load_explicit(&guard->start, memory_order_acquire);
        *ret_bytes = atomic_load_explicit(&guard->bytes, memory_order_acquire);
        *ret_writable = atomic_load_explicit(&guard->writable, memory_order_acquire);
        return atomic_load_explicit(&guard->changes, memory_order_relaxed) == changes && *ret_start != 0 && address >= *ret_start &&
               address - *ret_start < *ret_bytes;
}

/* lay_zeros() - over the whole mapping: a second thread that comes late lays the same once more. Return: may the thread go on? */
static bool lay_zeros(uintptr_t address) {
        for (struct block *block = atomic_load_explicit(&blocks, memory_order_acquire); block; block = block->next)
                for (size_t i = 0; i < BLOCK_GUARDS; i++) {
                        struct ckv_guard *guard = &block->guards[i];
                        uintptr_t start;
                        size_t bytes;
                        bool writable;

                        if (!covers(guard, address, &start, &bytes, &writable))
                                continue;
                        /* the mark first: whoever sees zeros and then looks must see it */
                        atomic_store_explicit(&guard->bad, true, memory_order_seq_cst);
                        /* past libc: to a sanitizer its mmap() is a write of the whole mapping */
                        return syscall(SYS_mmap, start, bytes, PROT_READ | (writable ? PROT_WRITE : 0),
                                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0) == (long)start;
                }
        return false;
}

static void on_sigbus(int number, siginfo_t *info, void *context) {
        int saved = errno;
        bool by_access = info->si_code > 0;

        (void)context;
        if (!by_access || !lay_zeros((uintptr_t)info->si_addr)) {
                (void)sigaction(number, &before_us, NULL);
                /* an access is made again when this returns; a signal that was sent is not */
                if (!by_access)
                        (void)raise(number);
        }
        errno = saved;
}

/* watch_open() - best effort */
static void watch_open(void) {
        struct uffdio_api api = { .api = UFFD_API, .features = UFFD_FEATURE_SIGBUS };
        int fd = (int)syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK | UFFD_USER_MODE_ONLY);

        if (fd >= 0 && ioctl(fd, UFFDIO_API, &api) < 0)
                fd = ckv_close(fd);
        watch_fd = fd < 0 ? -1 : fd;
}

int ckv_guard_install(void) {
        struct sigaction action = { .sa_sigaction = on_sigbus, .sa_flags = SA_SIGINFO | SA_RESTART | SA_ONSTACK };

        (void)sigemptyset(&action.sa_mask);
        if (sigaction(SIGBUS, NULL, &before_us) < 0 || sigaction(SIGBUS, &action, NULL) < 0)
                return ckv_error_origin(-errno);
        watch_open();
        return 0;
}

/* more() - a block more, all of it free. Return: false if out of memory. */
static bool more(void) {
        struct block *block = calloc(1, sizeof(*block));

        if (!block)
                return false;
        for (size_t i = 0; i < BLOCK_GUARDS; i++) {
                block->guards[i].next_free = free_guards;
                free_guards = &block->guards[i];
        }
        block->next = atomic_load_explicit(&blocks, memory_order_relaxed);
        atomic_store_explicit(&blocks, block, memory_order_release);
        return true;
}

/* set() - what the handler reads, so that it sees all of it or nothing */
static void set(struct ckv_guard *guard, uintptr_t start, size_t bytes, bool writable) {
        (void)atomic_fetch_add_explicit(&guard->changes, 1, memory_order_relaxed);
        atomic_store_explicit(&guard->start, start, memory_order_release);
        atomic_store_explicit(&guard->bytes, bytes, memory_order_release);
        atomic_store_explicit(&guard->writable, writable, memory_order_release);
        atomic_store_explicit(&guard->bad, false, memory_order_relaxed);
        (void)atomic_fetch_add_explicit(&guard->changes, 1, memory_order_release);
}

/* watch() - have holes of it raise SIGBUS. Refused (EPERM) where the file is not open for writing, or sealed FUTURE_WRITE. */
static bool watch(void *start, size_t bytes) {
        size_t page = (size_t)sysconf(_SC_PAGESIZE);
        struct uffdio_register range = {
                .range = { .start = (uintptr_t)start, .len = (bytes + page - 1) / page * page }, .mode = UFFDIO_REGISTER_MODE_MISSING,
        };

        return watch_fd >= 0 && ioctl(watch_fd, UFFDIO_REGISTER, &range) == 0;
}

struct ckv_guard *ckv_guard_add(void *start, size_t bytes, bool writable) {
        struct ckv_guard *guard = NULL;

        (void)pthread_mutex_lock(&mutex);
        if (free_guards || more()) {
                guard = free_guards;
                free_guards = guard->next_free;
        }
        (void)pthread_mutex_unlock(&mutex);
        if (!guard)
                return NULL;
        set(guard, (uintptr_t)start, bytes, writable);
        guard->watches = watch(start, bytes);
        return guard;
}

struct ckv_guard *ckv_guard_remove(struct ckv_guard *guard) {
        if (!guard)
                return NULL;
        set(guard, 0, 0, false);
        (void)pthread_mutex_lock(&mutex);
        guard->next_free = free_guards;
        free_guards = guard;
        (void)pthread_mutex_unlock(&mutex);
        return NULL;
}

bool ckv_guard_bad(const struct ckv_guard *guard) {
        return guard && atomic_load_explicit(&guard->bad, memory_order_seq_cst);
}

bool ckv_guard_watches(const struct ckv_guard *guard) {
        return guard->watches;
}

void ckv_guard_block_signals(sigset_t *ret_before) {
        sigset_t set;

        (void)sigfillset(&set);
        (void)sigdelset(&set, SIGBUS);
        (void)sigdelset(&set, SIGSEGV);
        (void)sigdelset(&set, SIGILL);
        (void)sigdelset(&set, SIGFPE);
        (void)pthread_sigmask(SIG_SETMASK, &set, ret_before);
}
