/*
 * Legal requests of every kind to start from: a test calls requests_reset(),
 * spoils one field of the globals, and packs `request`.
 */
#ifndef CKV_TESTS_SUPPORT_REQUESTS_H
#define CKV_TESTS_SUPPORT_REQUESTS_H

#include "daemon/gate/decode.h"
#include "proto/chunkkv.pb-c.h"
#include "proto/status.h"

#include <stdint.h>

#define NOW_NS UINT64_C(1000000000000)

extern Chunkkv__V1__Request request;
extern Chunkkv__V1__Hello hello;
extern Chunkkv__V1__RegisterRegion region;
extern Chunkkv__V1__CudaIpc ipc;
extern Chunkkv__V1__RegisterCache cache;
extern Chunkkv__V1__LayerGroup layer_groups[2];
extern Chunkkv__V1__Plane planes[2];
extern Chunkkv__V1__Axis axes[2];
extern Chunkkv__V1__Compress compress;
extern Chunkkv__V1__GroupJob jobs[2];
extern Chunkkv__V1__Table tables[2], destination;
extern Chunkkv__V1__Policy policies[3];
extern Chunkkv__V1__Queries queries;
extern Chunkkv__V1__Slice slices[6];
extern Chunkkv__V1__Span spans[2];
extern Chunkkv__V1__Commit commit_body;
extern Chunkkv__V1__Cancel cancel_body;
extern Chunkkv__V1__Repair repair;
extern uint8_t bytes_b0[1 << 18];               /* 0xb0 everywhere */
extern uint32_t query_layers[2], numbers[4], runs[4];

/*
 * Hello, RegisterRegion (CUDA IPC) and RegisterCache (two groups of 2 and 1
 * layers, two planes) as they are; Compress IN_PLACE with two groups (job 0:
 * 64 rows in 4 blocks, policies 0 and 1, two spans; job 1: 32 rows in two
 * token runs, policy 2) and queries for layers 3 and 5.
 */
void requests_reset(Chunkkv__V1__Request__BodyCase kind);

/* requests_decode() - pack `request` and run it through the gate's decoder */
int requests_decode(void);
int requests_decode_bytes(const void *message, size_t bytes);

/* What requests_decode() wrote. */
extern struct ckv_outgoing decoded;
extern struct ckv_record_status refusal;
extern struct ckv_record_limits limits;

/* requests_expect() - the request is refused with this code and field; detail NULL = not looked at */
void requests_expect(enum ckv_code code, const char *field, const char *detail);

/* REFUSED() - a legal request of a kind, but for what the last argument does to it */
#define REFUSED(kind, code, field, detail, ...) do { \
        requests_reset(CHUNKKV__V1__REQUEST__BODY_##kind); \
        __VA_ARGS__; \
        requests_expect(CKV_CODE_##code, (field), (detail)); \
} while (0)

/* ACCEPTED() - the same, still legal */
#define ACCEPTED(kind, ...) do { \
        requests_reset(CHUNKKV__V1__REQUEST__BODY_##kind); \
        __VA_ARGS__; \
        ck_assert_int_eq(requests_decode(), 0); \
} while (0)

#endif
