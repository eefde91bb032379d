/*
 * The core's one big struct: who is there and what is open.  It is owned by
 * the event loop thread; backend threads never see it.
 */
#ifndef CKV_DAEMON_DAEMON_H
#define CKV_DAEMON_DAEMON_H

#include "base/hash.h"
#include "daemon/access.h"
#include "daemon/breach.h"
#include "daemon/options.h"
#include "daemon/share.h"
#include "daemon/tenant.h"
#include "kernels/backend.h"

#include <stdbool.h>
#include <stdint.h>
#include <systemd/sd-event.h>

struct ckv_closer;
struct ckv_file;
struct ckv_gate_link;
struct ckv_handle;
struct ckv_mapped;
struct ckv_side_conn;
struct ckv_session;
struct ckv_daemon;

enum { CKV_EXIT_HUNG = 75 };    /* EX_TEMPFAIL, exit status where the device is at fault: start me again */

/* One pair of sockets, <runtime-dir>/<name>.zmq and <name>.fd, and the users who may connect. */
struct ckv_endpoint {
        struct ckv_daemon *daemon;
        char name[32];
        int stream_fd;                  /* listening, for the gate */
        int side_fd;                    /* listening, for the core */
        bool passed;                    /* both sockets came from the service manager, and stay */
        struct ckv_access access;       /* who may connect */
        struct ckv_seen strangers;      /* users that were turned away and logged */
        struct ckv_gate_link *link;
        sd_event_source *side_source;
        struct ckv_side_conn *side_conns;
};

struct ckv_daemon {
        sd_event *event;
        const struct ckv_options *options;
        uint8_t boot_id[16];
        const struct ckv_backend_ops *ops;
        struct ckv_backend *backend;
        struct ckv_backend_info backend_info;
        struct ckv_endpoint *endpoints; /* [endpoint_count] */
        uint32_t endpoint_count;
        struct ckv_tenant *tenants;     /* hash by uid */
        struct ckv_session *sessions;   /* hash by token */
        struct ckv_file *files;         /* hash: files of which something is mapped; of daemon/mapped.c */
        struct ckv_mapped *mapped;      /* hash: what is mapped */
        struct ckv_handle *handles;     /* hash: device memory that is open by a handle; of daemon/imported.c */
        struct ckv_closer *closer;      /* daemon/closer.c */
        uint64_t mapped_bytes;          /* that one user may register: --mapped-bytes, or what the memory limit leaves */
        struct ckv_share shares[_CKV_SLOT_N];   /* what all tenants draw from together */
        bool draining;                  /* SIGTERM, or the device is lost or hangs: new work is refused, running jobs end */
        uint32_t import_count;          /* device memory that the backend is opening or closing */
        struct ckv_device_end *device_end;      /* daemon/device.c: the device is lost or hangs, and the process about to end; or NULL */
        uint64_t device_seen_nsec;      /* daemon/device.c: the last progress of the device that was seen, */
        uint32_t device_still;          /* and how often in turn it was the same, with work inside */
        struct ckv_engine *engine;      /* daemon/engine.c: jobs in flight and waiting */
};

/* ckv_assert_loop_thread() - all functions on tenants, sessions, regions and requests run on one thread */
#ifndef NDEBUG
void ckv_assert_loop_thread(void);
#else
static inline void ckv_assert_loop_thread(void) {
}
#endif

/*
 * Implemented by daemon/engine.c, called by main: the loop's end of the
 * backend.  start: watch wait_fd. drained: true when no job is left inside.
 */
int ckv_engine_start(struct ckv_daemon *daemon);
bool ckv_engine_drained(const struct ckv_daemon *daemon);
void ckv_engine_stop(struct ckv_daemon *daemon);

/* ckv_engine_finish() - at the end, after the loop: wait until the device has let go of all memory; false after 5 s */
bool ckv_engine_finish(struct ckv_daemon *daemon);

/* ckv_sessions_end_all() - daemon/session.c: at shutdown, after the engine is drained */
void ckv_sessions_end_all(struct ckv_daemon *daemon);

#endif
