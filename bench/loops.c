/*
 * Which loops belong to which code path, and which loads read fastest.
 */
#include "bench/loops.h"

#include "base/macros.h"

#include <string.h>

static const struct bench_loops *const all[] = {
        &bench_loops_scalar,
#if defined(__x86_64__)
        &bench_loops_avx2, &bench_loops_avx512, &bench_loops_avx512bf16, &bench_loops_amx,
#endif
};

const struct bench_loops *bench_loops_of(const char *path) {
        for (size_t i = 0; i < CKV_ARRAY_SIZE(all); i++)
                if (strcmp(all[i]->path, path) == 0)
                        return all[i];
        return NULL;
}

static uint64_t read_words(const void *from, size_t bytes) {
        const uint64_t *words = from;
        uint64_t a = 0, b = 0, c = 0, d = 0;

        for (size_t i = 0; i < bytes / sizeof(*words); i += 4) {
                a ^= words[i];
                b ^= words[i + 1];
                c ^= words[i + 2];
                d ^= words[i + 3];
        }
        return a ^ b ^ c ^ d;
}

uint64_t bench_read(const void *from, size_t bytes) {
#if defined(__x86_64__)
        __builtin_cpu_init();
        if (__builtin_cpu_supports("avx512f"))
                return bench_read_avx512(from, bytes);
        if (__builtin_cpu_supports("avx2"))
                return bench_read_avx2(from, bytes);
#endif
        return read_words(from, bytes);
}
