/*
 * The command line of the daemon: any words, divided by newlines, are settings
 * within their limits, or a refusal.
 */
#include "tests/fuzz/fuzz.h"

#include "daemon/options.h"

#include <stdbool.h>

enum { WORDS_MAX = 128 };

static bool number_in_range(const void *value, uint64_t low, uint64_t high) {
        return *(const uint64_t *)value >= low && *(const uint64_t *)value <= high;
}

static bool not_a_number(const void *value, uint64_t low, uint64_t high) {
        (void)low;
        (void)high;
        return value != NULL;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
        static FILE *nowhere;
        char *text = malloc(size + 1), *words[WORDS_MAX + 2] = { (char []){ "chunkkvd" } }, *rest = text, *word;
        struct ckv_options options;
        int count = 1, r;

        if (!nowhere)
                nowhere = fopen("/dev/null", "w");
        fuzz_assert(text && nowhere);
        if (size)
                memcpy(text, data, size);
        text[size] = '\0';
        while (count < WORDS_MAX && (word = strsep(&rest, "\n")))
                words[count++] = word;
        ckv_options_init(&options);
        r = ckv_options_parse(&options, count, words, nowhere, nowhere);
        fuzz_assert(r == 0 || r == CKV_OPTIONS_E_DONE || r == CKV_OPTIONS_E_VERSION || r == CKV_OPTIONS_E_INVALID);
        if (r == 0) {
/* numbers lie within their limits, whatever the type of option they belong to */
#define IN_RANGE(value, low, high) _Generic((value), uint64_t: number_in_range, default: not_a_number)(&(value), low, high)
#define OPT(name, TYPE, value, min, max, unit, help) fuzz_assert(IN_RANGE(options.name, min, max));
#include "daemon/options.def"
#undef OPT
        }
        free(text);
        return 0;
}
