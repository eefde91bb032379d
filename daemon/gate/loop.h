/* The gate itself: what it owns, and its one thread. */
#ifndef CKV_GATE_LOOP_H
#define CKV_GATE_LOOP_H

#include "base/log.h"
#include "daemon/gate/connections.h"
#include "daemon/gate/link.h"
#include "daemon/gate/router.h"
#include "proto/records.h"

#include <stdint.h>

struct ckv_gate {
        const char *endpoint;                   /* name, for log lines */
        struct ckv_record_limits limits;        /* as the core said last */
        struct ckv_link link;
        struct ckv_router router;
        struct ckv_connections connections;
        struct ckv_log_rate shed_rate;
        struct ckv_record_stats stats;          /* dropped_* are counted here, the rest is accept's */
        struct ckv_record_stats reported;       /* what the core was told last */
};

/* ckv_gate_await_limits() - the core's first record. Return: 0, CKV_LINK_E_CLOSED, CKV_LINK_E_MALFORMED, -errno. */
int ckv_gate_await_limits(struct ckv_gate *gate);

/* ckv_gate_serve() - until the core closes the pair. Return: CKV_LINK_E_CLOSED, CKV_LINK_E_MALFORMED, or -errno. */
int ckv_gate_serve(struct ckv_gate *gate);

#endif
