/*
 * What a stream of the stand-in driver does, one after the other.
 */
#ifndef CKV_TESTS_FAKE_STREAM_H
#define CKV_TESTS_FAKE_STREAM_H

#include "tests/emu/launch.h"
#include "tests/fake/fake.h"

enum ckv_fake_op_kind {
        CKV_FAKE_WRITE32, CKV_FAKE_WRITE64, CKV_FAKE_WAIT64, CKV_FAKE_RECORD, CKV_FAKE_COPY, CKV_FAKE_SET, CKV_FAKE_KERNEL,
        CKV_FAKE_QUIT,
};

struct ckv_fake_op {
        struct ckv_fake_op *next;
        enum ckv_fake_op_kind kind;
        void *to;
        const void *from;
        uint64_t value, count;          /* of COPY: bytes; of SET: words */
        CUevent event;
        ckv_emu_kernel *kernel;
        uint32_t grid[3], block[3];
        size_t shared_bytes;
        void *parameters;               /* a copy, owned */
};

/* ckv_fake_push() - behind what the stream has to do; takes op->parameters, also when it fails */
CUresult ckv_fake_push(CUstream stream, const struct ckv_fake_op *op);

#endif
