/*
 * getrandom(2) without its two surprises: a signal may interrupt it, and a
 * request for more than 256 bytes may be answered in part.
 *
 * There is no fallback to /dev/urandom or to a clock: a kernel without
 * getrandom is older than anything the daemon runs on, and a guessable token
 * would be worse than no daemon.
 */
#include "base/random.h"

#include "base/error.h"

#include <errno.h>
#include <stdint.h>
#include <sys/random.h>

int ckv_random(void *bytes, size_t n) {
        uint8_t *p = bytes;

        while (n > 0) {
                ssize_t got = getrandom(p, n, 0);

                if (got < 0) {
                        if (errno == EINTR)
                                continue;
                        return ckv_error_origin(-errno);
                }
                p += got;
                n -= (size_t)got;
        }
        return 0;
}
