/*
 * Lengths that double up to a million rows.  Memory is the most that
 * the process held during the plans beyond what it held before; all keys are
 * there already, because they were written.
 */
#include "bench/linear.h"

#include "bench/device.h"

#include <inttypes.h>
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LENGTHS = 4 };

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

void bench_linear(const struct bench_case *c, uint32_t most, uint32_t threads, uint32_t repeats, const struct bench_pool *pool) {
        for (uint32_t tokens = most >> (LENGTHS - 1); tokens <= most; tokens *= 2) {
                struct bench_series score = { 0 };
                struct bench_problem problem;
                struct bench_device device;     /* a new one: what it keeps between jobs counts for this length */
                uint64_t held;

                if (!bench_device_open(NULL, threads, &device))
                        return;
                bench_problem_init(c, tokens, 1, pool, &problem);
                (void)malloc_trim(0);   /* or what shorter ones left behind would be taken for theirs */
                forget_peak();
                held = status_bytes("VmRSS:");
                for (uint32_t i = 0; i < repeats; i++) {
                        struct ckv_job *job = bench_problem_job(&problem, i + 1);

                        bench_add(&score, bench_device_plan(&device, job).score);
                        (void)ckv_job_free(job);
                }
                (void)printf("{\"model\": \"%s\", \"what\": \"%s\", \"tokens\": %u, \"threads\": %u, \"score_ms\": %.4f, "
                             "\"spread\": %.4f, \"extra_bytes\": %" PRIu64 ", \"k_bytes\": %zu}\n",
                             c->model, c->what, tokens, threads, 1e3 * bench_median(&score), bench_spread(&score),
                             status_bytes("VmHWM:") - held, problem.layer_bytes);
                (void)fflush(stdout);
                bench_problem_deinit(&problem);
                bench_device_close(&device);
        }
}
