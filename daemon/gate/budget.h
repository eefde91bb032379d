/* Memory for decoding one message, with a bound. */
#ifndef CKV_GATE_BUDGET_H
#define CKV_GATE_BUDGET_H

#include <protobuf-c/protobuf-c.h>
#include <stddef.h>

struct ckv_budget {
        ProtobufCAllocator allocator;   /* hand this to protobuf-c */
        size_t bytes, blocks;           /* still to be had */
        size_t held;                    /* bytes out now; 0 when the message was freed */
};

/* ckv_budget_init() - @bytes of memory and @blocks allocations; the struct must not move afterwards */
void ckv_budget_init(struct ckv_budget *budget, size_t bytes, size_t blocks);

#endif
