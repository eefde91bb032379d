/*
 * chunkkv-gate: the process that speaks ZeroMQ and protobuf for one endpoint.
 *
 * The core starts it with descriptors 3 to 6 (enum ckv_gate_fd): the listening
 * socket, the pair, the rings.  It is the part that may die: a peer can abort
 * the owner of a libzmq socket, so nothing here is worth keeping.  It ends when
 * the pair ends, and it ends itself rather than go on with a core it does not
 * understand.
 *
 * Before it hears the first peer it gives up all that it will not need
 * (daemon/gate/sandbox.h).  If it cannot, it does not serve: only an argument
 * from the core, which an operator asked for, lets it go on without.
 */
#include "base/error.h"
#include "base/log.h"
#include "base/macros.h"
#include "daemon/gate/loop.h"
#include "daemon/gate/sandbox.h"

#include <errno.h>
#include <string.h>
#include <sys/random.h>

/* seed() - libzmq draws its first routing id from rand() and never seeds it; a known id can be claimed by a peer */
static int seed(void) {
        unsigned value;

        if (getrandom(&value, sizeof(value), 0) != sizeof(value))
                return ckv_error_origin(-EIO);
        srand(value);
        return 0;
}

/* unfit() - why this process cannot serve. Return: @error. */
static int unfit(const struct ckv_gate *gate, const char *what, int error) {
        if (error < 0)
                ckv_log(CKV_LOG_ERROR, GATE_UNFIT, "endpoint=%s reason=\"%s: %s\"", gate->endpoint, what, strerror(-error));
        else if (error == CKV_LINK_E_MALFORMED)
                ckv_log(CKV_LOG_ERROR, GATE_UNFIT, "endpoint=%s reason=\"malformed record from the core\"", gate->endpoint);
        return error;
}

/* open_router() - with the sandbox around it: nobody is heard before it is closed */
static int open_router(struct ckv_gate *gate, bool sandbox) {
        int r;

        r = ckv_router_init(&gate->router);
        if (r)
                return unfit(gate, "the socket library", r);
        r = sandbox ? ckv_sandbox_files() : 0;
        if (r)
                return unfit(gate, "Landlock; --sandbox off serves without", r);
        r = ckv_router_open(&gate->router, CKV_GATE_FD_LISTEN, &gate->limits);
        if (r)
                return unfit(gate, "the socket", r);
        r = sandbox ? ckv_sandbox_calls() : 0;
        if (r)
                return unfit(gate, "the filter of system calls; --sandbox off serves without", r);
        return unfit(gate, "the listening socket", ckv_router_bind(&gate->router));
}

static int run(struct ckv_gate *gate, bool sandbox) {
        int r;

        r = ckv_sandbox_limits();
        if (r == 0)
                r = seed();
        if (r == 0)
                r = ckv_link_init(&gate->link, CKV_GATE_FD_PAIR, CKV_GATE_FD_RING_TO_CORE, CKV_GATE_FD_RING_TO_GATE);
        if (r)
                return unfit(gate, "start", r);
        (void)close(CKV_GATE_FD_RING_TO_CORE);
        (void)close(CKV_GATE_FD_RING_TO_GATE);

        r = ckv_gate_await_limits(gate);
        if (r)
                return unfit(gate, "limits", r);
        r = open_router(gate, sandbox);
        if (r)
                return r;
        ckv_log(CKV_LOG_DEBUG, GATE_SERVING, "endpoint=%s sandbox=%s", gate->endpoint, sandbox ? "on" : "off");
        return unfit(gate, "serving", ckv_gate_serve(gate));
}

int main(int argc, char **argv) {
        const char *trace = getenv("CHUNKKVD_TRACE");
        bool sandbox = argc == 2;
        struct ckv_gate *gate;
        int r;

        ckv_log_open("chunkkv-gate", trace && strcmp(trace, "1") == 0 ? CKV_LOG_DEBUG : CKV_LOG_INFO);
        if (!sandbox && (argc != 3 || strcmp(argv[2], "sandbox=off") != 0)) {
                ckv_log(CKV_LOG_ERROR, GATE_UNFIT, "usage=\"chunkkv-gate ENDPOINT [sandbox=off], started by chunkkvd\"");
                return EXIT_FAILURE;
        }
        gate = calloc(1, sizeof(*gate));
        if (!gate)
                return EXIT_FAILURE;
        gate->endpoint = argv[1];
        gate->link.fd = -1;
        r = run(gate, sandbox);
        ckv_router_close(&gate->router);
        ckv_link_deinit(&gate->link);
        free(gate);
        return r == CKV_LINK_E_CLOSED ? EXIT_SUCCESS : EXIT_FAILURE;
}
