/*
 * Memory for one message under construction.  protobuf-c wants a tree of
 * structs with pointers; they all die together once the message is packed, so
 * each piece is a list element and nobody frees a single one.  A failure is
 * remembered, so that an encoder may check once at its end.
 */
#include "clients/c/src/client.h"

#include <string.h>

struct ckv__arena_block {
        struct ckv__arena_block *next;
        max_align_t bytes[];
};

void *ckv__arena_take(struct ckv__arena *arena, size_t count, size_t size) {
        struct ckv__arena_block *block;
        size_t bytes;

        if (__builtin_mul_overflow(count, size, &bytes) || __builtin_add_overflow(bytes, sizeof(*block), &bytes)) {
                arena->failed = true;
                return NULL;
        }
        block = arena->failed ? NULL : calloc(1, bytes);
        if (!block) {
                arena->failed = true;
                return NULL;
        }
        block->next = arena->blocks;
        arena->blocks = block;
        return block->bytes;
}

uint32_t *ckv__arena_words(struct ckv__arena *arena, const uint32_t *words, size_t count) {
        uint32_t *copy = ckv__arena_take(arena, count, sizeof(*words));

        if (copy && count > 0)
                memcpy(copy, words, count * sizeof(*words));
        return copy;
}

void ckv__arena_deinit(struct ckv__arena *arena) {
        while (arena->blocks) {
                struct ckv__arena_block *block = arena->blocks;

                arena->blocks = block->next;
                free(block);
        }
}
