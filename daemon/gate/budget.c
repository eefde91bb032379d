/*
 * protobuf-c allocates up to 64 bytes for each byte of a hostile message.  With
 * this allocator it runs into NULL instead, gives up and frees what it had.
 *
 * Freed blocks give their bytes back but not their count: a message that makes
 * protobuf-c allocate and free in turn (a field that comes again and again)
 * costs time, and the count bounds that.
 */
#include "daemon/gate/budget.h"

#include "base/macros.h"

/* In front of each block; 16 bytes keep malloc's alignment. */
struct header {
        size_t bytes, unused;
};

static void *budget_alloc(void *data, size_t bytes) {
        struct ckv_budget *budget = data;
        struct header *header;

        if (budget->blocks == 0 || bytes > budget->bytes)
                return NULL;
        header = malloc(sizeof(*header) + bytes);
        if (!header)
                return NULL;
        header->bytes = bytes;
        budget->blocks--;
        budget->bytes -= bytes;
        budget->held += bytes;
        return header + 1;
}

static void budget_free(void *data, void *block) {
        struct ckv_budget *budget = data;
        struct header *header = block;

        if (!block)
                return;
        header--;
        budget->bytes += header->bytes;
        budget->held -= header->bytes;
        free(header);
}

void ckv_budget_init(struct ckv_budget *budget, size_t bytes, size_t blocks) {
        *budget = (struct ckv_budget){
                .allocator = { .alloc = budget_alloc, .free = budget_free, .allocator_data = budget },
                .bytes = bytes,
                .blocks = blocks,
        };
}
