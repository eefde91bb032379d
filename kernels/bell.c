/*
 * A pipe, where a condition variable or an eventfd would seem the thing to use,
 * because of how Linux wakes a thread.  The writer of a pipe says that it is
 * about to sleep itself, so the reader runs at once on the same CPU.  A futex
 * and an eventfd do not: the thread goes to an idle CPU, which takes an
 * interrupt, 14 us in a virtual machine instead of 4.  Event loop and device
 * thread hand every job over twice a stage, and one of them sleeps each time.
 */
#include "kernels/bell.h"

#include "base/error.h"
#include "base/macros.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>

enum { TRIES = 3 };

int ckv__bell_init(struct ckv_bell *bell) {
        int fds[2];

        *bell = CKV_BELL_NONE;
        if (pipe2(fds, O_CLOEXEC | O_NONBLOCK) < 0)
                return ckv_error_origin(-errno);
        *bell = (struct ckv_bell){ .wait_fd = fds[0], .ring_fd = fds[1] };
        return 0;
}

void ckv__bell_deinit(struct ckv_bell *bell) {
        (void)ckv_close(bell->wait_fd);
        (void)ckv_close(bell->ring_fd);
        *bell = CKV_BELL_NONE;
}

void ckv__bell_ring(const struct ckv_bell *bell) {
        /* EAGAIN is a full pipe, and good; after anything else another try may do */
        for (int i = 0; i < TRIES && write(bell->ring_fd, "", 1) < 0; i++)
                ;
}

bool ckv__bell_hush(const struct ckv_bell *bell) {
        char ignored[64];
        bool rang = false;
        ssize_t n;

        do {
                n = read(bell->wait_fd, ignored, sizeof(ignored));
                rang = rang || n > 0;
        } while (n == (ssize_t)sizeof(ignored) || (n < 0 && errno == EINTR));
        return rang;
}

bool ckv__bell_await(const struct ckv_bell *bell, int msec) {
        struct pollfd rings = { .fd = bell->wait_fd, .events = POLLIN };

        return poll(&rings, 1, msec) > 0;
}
