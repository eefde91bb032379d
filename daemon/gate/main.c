/*
 * chunkkv-gate: the process that speaks ZeroMQ and protobuf for one endpoint.
 *
 * The core starts it with descriptors 3 to 6 (enum ckv_gate_fd): the listening
 * socket, the pair, the rings.  It is the part that may die: a peer can abort
 * the owner of a libzmq socket, so nothing here is worth keeping.  It ends when
 * the pair ends, and it ends itself rather than go on with a core it does not
 * understand.
 *
 * It sets its own limits, lest one tenant's messages take the memory of the
 * machine, and makes itself the first choice of the OOM killer.  Filters on
 * system calls and an accept() of its own are not here yet.
 */
#include "base/error.h"
#include "base/log.h"
#include "base/macros.h"
#include "daemon/gate/loop.h"

#include <errno.h>
#include <fcntl.h>
#include <malloc.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/resource.h>

/* gcc says it with macros, clang with __has_feature() */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1
#elif defined(__has_feature)
#define SANITIZED (__has_feature(address_sanitizer) || __has_feature(thread_sanitizer))
#else
#define SANITIZED 0
#endif

enum { NOFILE = 512, DATA_MIB = 256 };

static int set_limit(int resource, rlim_t value) {
        struct rlimit limit;

        if (getrlimit((__rlimit_resource_t)resource, &limit) < 0)
                return ckv_error_origin(-errno);
        limit.rlim_cur = CKV_MIN(value, limit.rlim_max);
        limit.rlim_max = limit.rlim_cur;
        return setrlimit((__rlimit_resource_t)resource, &limit) < 0 ? ckv_error_origin(-errno) : 0;
}

/* confine() - what a gate may use, and what happens to it when its core is gone or memory is short */
static int confine(void) {
        int r, fd;

        if (prctl(PR_SET_PDEATHSIG, SIGKILL) < 0)
                return ckv_error_origin(-errno);
        r = set_limit(RLIMIT_NOFILE, NOFILE);
        if (r == 0)
                r = set_limit(RLIMIT_CORE, 0);
        /* sanitizers reserve terabytes */
        if (r == 0 && !SANITIZED)
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

/* seed() - libzmq draws its first routing id from rand() and never seeds it; a known id can be claimed by a peer */
static int seed(void) {
        unsigned value;

        if (getrandom(&value, sizeof(value), 0) != sizeof(value))
                return ckv_error_origin(-EIO);
        srand(value);
        return 0;
}

static int run(struct ckv_gate *gate) {
        int r;

        r = confine();
        if (r == 0)
                r = seed();
        if (r == 0)
                r = ckv_link_init(&gate->link, CKV_GATE_FD_PAIR, CKV_GATE_FD_RING_TO_CORE, CKV_GATE_FD_RING_TO_GATE);
        if (r)
                return ckv_error_trace(r);
        (void)close(CKV_GATE_FD_RING_TO_CORE);
        (void)close(CKV_GATE_FD_RING_TO_GATE);

        r = ckv_gate_await_limits(gate);
        if (r)
                return r;
        r = ckv_router_open(&gate->router, CKV_GATE_FD_LISTEN, &gate->limits);
        if (r)
                return ckv_error_trace(r);
        ckv_log(CKV_LOG_DEBUG, GATE_SERVING, "endpoint=%s", gate->endpoint);
        return ckv_gate_serve(gate);
}

int main(int argc, char **argv) {
        const char *trace = getenv("CHUNKKVD_TRACE");
        struct ckv_gate *gate;
        int r;

        ckv_log_open("chunkkv-gate", trace && strcmp(trace, "1") == 0 ? CKV_LOG_DEBUG : CKV_LOG_INFO);
        if (argc != 2) {
                ckv_log(CKV_LOG_ERROR, GATE_UNFIT, "usage=\"chunkkv-gate ENDPOINT, started by chunkkvd\"");
                return EXIT_FAILURE;
        }
        gate = calloc(1, sizeof(*gate));
        if (!gate)
                return EXIT_FAILURE;
        gate->endpoint = argv[1];
        gate->link.fd = -1;
        r = run(gate);
        if (r == CKV_LINK_E_MALFORMED)
                ckv_log(CKV_LOG_ERROR, GATE_UNFIT, "endpoint=%s reason=\"malformed record from the core\"",
                        gate->endpoint);
        else if (r < 0)
                ckv_log(CKV_LOG_ERROR, GATE_UNFIT, "endpoint=%s reason=\"%s\"", gate->endpoint, strerror(-r));
        ckv_router_close(&gate->router);
        ckv_link_deinit(&gate->link);
        free(gate);
        return r == CKV_LINK_E_CLOSED ? EXIT_SUCCESS : EXIT_FAILURE;
}
