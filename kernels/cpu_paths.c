/*
 * The ways through the scorers that were built for this machine's architecture,
 * and which of them CPU and system allow.
 *
 * A flag of the CPU is not enough: the system must save the registers when it
 * turns to another thread, which XCR0 tells, and for the tile registers of AMX
 * the kernel wants to be asked first (Linux 5.16; once a process, before any
 * thread has an alternate signal stack that would be too small for them).
 * Whatever is missing means the next path, never an error.
 */
#include "kernels/cpu_choice.h"

#include "base/macros.h"
#include "kernels/backend.h"

#include <stdio.h>

#if defined(__x86_64__)

#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

enum {
        REQ_XCOMP_PERM = 0x1023,        /* arch_prctl(2); newer than our headers */
        XFEATURE_TILE_DATA = 18,
        XCR0_TILES = 3 << 17,           /* configuration and data */
};

/* CPUID, leaf 7: tile registers, and products of bfloat16 in them */
#define LEAF7_EDX_AMX_BF16 (1U << 22)
#define LEAF7_EDX_AMX_TILE (1U << 24)

static bool has_f16c(void) {
        uint32_t a, b, c, d;

        return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
}

static bool has_avx2(void) {
        __builtin_cpu_init();
        return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c();
}

static bool has_avx512(void) {
        return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
               __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
}

static bool has_avx512bf16(void) {
        return has_avx512() && __builtin_cpu_supports("avx512bf16");
}

static bool has_tile_state(void) {
        uint32_t a, b, c, d, low, high;

        if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & bit_OSXSAVE))
                return false;
        __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
        return (low & XCR0_TILES) == XCR0_TILES;
}

static bool has_amx(void) {
        uint32_t a, b, c, d, needed = LEAF7_EDX_AMX_BF16 | LEAF7_EDX_AMX_TILE;

        return has_avx512() && __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d & needed) == needed && has_tile_state() &&
               syscall(SYS_arch_prctl, REQ_XCOMP_PERM, XFEATURE_TILE_DATA) == 0;
}

#endif

static bool always(void) {
        return true;
}

const struct ckv_cpu_path *ckv__cpu_paths(size_t *ret_count) {
        static const struct ckv_cpu_path paths[] = {
                { "scalar", &ckv__cpu_kernel_scalar, NULL, always },
#if defined(__x86_64__)
                { "avx2", &ckv__cpu_kernel_avx2, &ckv__cpu_window_avx2, has_avx2 },
                { "avx512", &ckv__cpu_kernel_avx512, &ckv__cpu_window_avx512, has_avx512 },
                { "avx512bf16", &ckv__cpu_kernel_avx512, &ckv__cpu_window_avx512bf16, has_avx512bf16 },
                { "amx", &ckv__cpu_kernel_avx512, &ckv__cpu_window_amx, has_amx },
#endif
        };

        *ret_count = CKV_ARRAY_SIZE(paths);
        return paths;
}

void ckv_cpu_path_names(char *ret_text, size_t size) {
        size_t count, used = 0;
        const struct ckv_cpu_path *paths = ckv__cpu_paths(&count);

        *ret_text = 0;
        for (size_t i = 0; i < count && used < size; i++)
                if (paths[i].usable())
                        used += (size_t)snprintf(ret_text + used, size - used, "%s%s", used ? ", " : "", paths[i].name);
}
