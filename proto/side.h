/*
 * The side socket's record (protocol.md 5): what ZeroMQ cannot carry.  One
 * AF_UNIX SOCK_SEQPACKET message is one 96-byte record and at most one
 * descriptor, both ways.  What a type does not use is zero, and checked.  Any
 * breach closes the connection; its closing ends the session.
 */
#ifndef CKV_PROTO_SIDE_H
#define CKV_PROTO_SIDE_H

#include <assert.h>
#include <stddef.h>
#include <stdint.h>

#define CKV_SIDE_MAGIC UINT32_C(0x31534b43)      /* "CKS1" */
#define CKV_SIDE_VERSION 1

enum ckv_side_type {
        CKV_SIDE_ATTACH = 1,    /* c->d: version, slots, kept_bytes; descriptor: control memfd, or none */
        CKV_SIDE_ATTACHED = 2,  /* d->c: boot_id, token (of Hello), now_ns; descriptor: pidfd of the core */
        CKV_SIDE_OFFER = 3,     /* c->d: kind, size; exactly one descriptor */
        CKV_SIDE_OFFERED = 4,   /* d->c: token for RegisterRegion, good once, for 60 s */
        CKV_SIDE_WITHDRAW = 5,  /* c->d: token of an offer; answered by OFFERED with the same token */
        CKV_SIDE_NOTICE = 6,    /* d->c: kind of notice, region_id; or of a connection over its user's limit: SESSION_ENDED,
                                   code QUOTA, size = the limit, slots = how many are open, and the socket closes */
};

enum ckv_side_kind { CKV_SIDE_KIND_MEMFD = 1, CKV_SIDE_KIND_CUDA_VMM = 2 };

enum ckv_side_notice { CKV_SIDE_NOTICE_DRAINING = 1, CKV_SIDE_NOTICE_REGION_LOST = 2, CKV_SIDE_NOTICE_SESSION_ENDED = 3 };

struct ckv_side {
        uint32_t magic;         /*  0 CKV_SIDE_MAGIC */
        uint16_t version, type; /*  4 CKV_SIDE_VERSION; ckv_side_type */
        uint64_t cookie;        /*  8 the client's, given back */
        uint32_t code, kind;    /* 16 Code of chunkkv.proto; ckv_side_kind, or ckv_side_notice */
        uint64_t size, now_ns;  /* 24 bytes of the memory offered; CLOCK_MONOTONIC of the daemon */
        uint8_t boot_id[16];    /* 40 */
        uint8_t token[16];      /* 56 */
        uint32_t slots, kept_bytes, region_id, flags;   /* 72 */
        uint64_t zero;          /* 88 */
};

static_assert(sizeof(struct ckv_side) == 96, "a side record has 96 bytes");
static_assert(offsetof(struct ckv_side, boot_id) == 40 && offsetof(struct ckv_side, slots) == 72, "as documented");

#endif
