/*
 * What every fuzz target has: one function that takes bytes and must neither
 * crash, nor leak, nor break one of its own assertions.  libFuzzer calls it
 * with inputs of its own (make fuzz); tests/fuzz/replay.c with the files of a
 * corpus and simple changes to them (make check).
 */
#ifndef CKV_TESTS_FUZZ_H
#define CKV_TESTS_FUZZ_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* fuzz_assert() - in every build, also without assertions */
#define fuzz_assert(condition)                                                                      \
        do {                                                                                        \
                if (!(condition)) {                                                                 \
                        (void)fprintf(stderr, "%s:%d: not true: %s\n", __FILE__, __LINE__, #condition); \
                        abort();                                                                    \
                }                                                                                   \
        } while (0)

/* An input that is taken apart from the front; past its end there are zeros. */
struct fuzz_input {
        const uint8_t *at;
        size_t left;
};

/* fuzz_take() - the next @bytes of the input */
static inline void fuzz_take(struct fuzz_input *input, void *ret, size_t bytes) {
        size_t have = bytes < input->left ? bytes : input->left;

        memset(ret, 0, bytes);
        if (have)
                memcpy(ret, input->at, have);
        input->at += have;
        input->left -= have;
}

static inline uint8_t fuzz_u8(struct fuzz_input *input) {
        uint8_t value;

        fuzz_take(input, &value, sizeof(value));
        return value;
}

static inline uint16_t fuzz_u16(struct fuzz_input *input) {
        uint16_t value;

        fuzz_take(input, &value, sizeof(value));
        return value;
}

static inline uint32_t fuzz_u32(struct fuzz_input *input) {
        uint32_t value;

        fuzz_take(input, &value, sizeof(value));
        return value;
}

/* fuzz_patch() - a few numbers somewhere in @bytes[size], as the input says: of any width, often such as lie at a border */
static inline void fuzz_patch(struct fuzz_input *input, void *bytes, size_t size) {
        static const uint64_t borders[] = { 0, 1, 2, 3, 7, 8, 0x7f, 0x80, 0xff, 0xffff, INT32_MAX, UINT32_MAX, INT64_MAX, UINT64_MAX };

        for (uint8_t count = fuzz_u8(input) % 6; count > 0; count--) {
                size_t at = fuzz_u16(input) % size, width = (size_t)1 << fuzz_u8(input) % 4;
                uint8_t kind = fuzz_u8(input);
                uint64_t value = borders[kind % (sizeof(borders) / sizeof(borders[0]))];

                if (kind >= 128)
                        fuzz_take(input, &value, width);
                at -= at % width;
                if (at + width <= size)
                        memcpy((uint8_t *)bytes + at, &value, width);
        }
}

#endif
