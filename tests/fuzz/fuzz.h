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

#endif
