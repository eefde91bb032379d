/*
 * Dying and waiting at named points; only in builds that were asked for them.
 *
 * The environment is read once, before main(), so that passing a point is a
 * comparison and a count: no lock, no allocation, nothing that a signal handler
 * or a forked child must not do.  A name that is not in the table ends the
 * program at once; a test that misspelt one would otherwise pass.
 *
 * Death is SIGKILL: no handler, no atexit, no last line of a buffer, as when
 * the kernel runs out of memory.
 */
#include "base/points.h"

#include "base/macros.h"

#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

struct order {
        enum ckv_point point;           /* _CKV_POINTS: no order */
        unsigned count, msec;
        /* only counts; nothing is ordered by it */
        _Atomic unsigned seen;
};

static struct order kill_at = { .point = _CKV_POINTS }, stall_at = { .point = _CKV_POINTS };

#define POINT(name, where) #name,
static const char *const names[] = {
#include "base/points.def"
};
#undef POINT

static enum ckv_point find_point(const char *name, size_t length) {
        unsigned i = 0;

        while (i < _CKV_POINTS && (strlen(names[i]) != length || memcmp(names[i], name, length) != 0))
                i++;
        return i;
}

static void read_order(const char *variable, bool has_msec, struct order *order) {
        const char *text = getenv(variable);
        char behind;
        int fields;

        *order = (struct order){ .point = _CKV_POINTS };
        if (!text)
                return;
        order->point = find_point(text, strcspn(text, ":"));
        fields = has_msec ? sscanf(text, "%*[^:]:%u:%u%c", &order->count, &order->msec, &behind)
                          : sscanf(text, "%*[^:]:%u%c", &order->count, &behind);
        if (order->point != _CKV_POINTS && fields == (has_msec ? 2 : 1) && order->count > 0)
                return;
        (void)fprintf(stderr, "%s=%s: no such point, or not %s\n", variable, text, has_msec ? "name:count:msec" : "name:count");
        _exit(2);
}

__attribute__((constructor)) void ckv_points_read(void) {
        read_order("CHUNKKVD_KILL_AT", false, &kill_at);
        read_order("CHUNKKVD_STALL_AT", true, &stall_at);
}

static bool is_due(struct order *order, enum ckv_point point) {
        return order->point == point && atomic_fetch_add_explicit(&order->seen, 1, memory_order_relaxed) + 1 == order->count;
}

void ckv_point_pass(enum ckv_point point) {
        if (is_due(&stall_at, point)) {
                struct timespec left = { .tv_sec = stall_at.msec / 1000, .tv_nsec = stall_at.msec % 1000 * 1000000L };
                int error = errno;

                (void)!write(STDERR_FILENO, "stalled\n", 8);
                while (nanosleep(&left, &left) < 0 && errno == EINTR)
                        ;
                errno = error;
        }
        if (is_due(&kill_at, point)) {
                (void)kill(getpid(), SIGKILL);
                /* where a filter of system calls forbids that */
                __builtin_trap();
        }
}
