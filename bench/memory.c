/*
 * The most that this process held during plans beyond what it held before, as
 * the kernel counts it: not what the scratch says of itself, so that whatever is
 * taken elsewhere is in it, for selection, for tables and for answers.  All keys
 * are there already, because they were written.
 *
 * Each length has a device of its own: what is kept between jobs counts, and
 * that of the first job is there for the second.
 */
#include "bench/memory.h"

#include "bench/device.h"
#include "bench/linear.h"
#include "kernels/cpu_scratch.h"

#include <inttypes.h>
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { JOBS = 3 };

/* A field of /proc/self/status, in bytes */
static uint64_t status_bytes(const char *field) {
        FILE *status = fopen("/proc/self/status", "re");
        uint64_t kib = 0;
        char line[256];

        while (status && fgets(line, sizeof(line), status))
                if (strncmp(line, field, strlen(field)) == 0)
                        kib = strtoull(line + strlen(field), NULL, 10);
        if (status)
                (void)fclose(status);
        return 1024 * kib;
}

/* From here on the kernel counts the most that this process held anew. */
static void forget_peak(void) {
        FILE *refs = fopen("/proc/self/clear_refs", "we");

        if (!refs)
                return;
        (void)fputs("5", refs);
        (void)fclose(refs);
}

void bench_memory(const struct bench_case *c, uint32_t most, uint32_t threads, uint64_t scratch_bytes, const struct bench_pool *pool) {
        for (uint32_t tokens = most >> (BENCH_LENGTHS - 1); tokens <= most; tokens *= 2) {
                struct bench_problem problem;
                struct bench_device device;
                uint64_t held;

                if (!bench_device_open(NULL, threads, scratch_bytes, &device))
                        return;
                bench_problem_init(c, tokens, 1, pool, &problem);
                (void)malloc_trim(0);   /* or what shorter ones left behind would be taken for theirs */
                forget_peak();
                held = status_bytes("VmRSS:");
                for (uint32_t i = 0; i < JOBS; i++) {
                        struct ckv_job *job = bench_problem_job(&problem, i);

                        (void)bench_device_plan(&device, job);
                        (void)ckv_job_free(job);
                }
                (void)printf("{\"model\": \"%s\", \"what\": \"%s\", \"tokens\": %u, \"threads\": %u, \"scratch_bytes\": %" PRIu64
                             ", \"extra_bytes\": %" PRIu64 ", \"k_bytes\": %zu}\n", c->model, c->what, tokens, threads,
                             scratch_bytes ? scratch_bytes : CKV_CPU_SCRATCH_BYTES, status_bytes("VmHWM:") - held,
                             problem.layer_bytes);
                (void)fflush(stdout);
                bench_problem_deinit(&problem);
                bench_device_close(&device);
        }
}
