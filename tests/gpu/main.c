/*
 * gpu-check ROW: one row of tests/gpu_check.sh.
 *
 *     gpu-check [--driver LIBCUDA] [--probes IMAGE] ROW [ARGUMENT]
 *
 * Exit status: 0, 1 if anything was wrong, or 3 where there is no driver or no GPU.
 */
#include "tests/gpu/gpu.h"

#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What every row begins with, and no more: tests/gpu_check.sh asks whether there is a GPU. */
static void row_open(struct gpu *gpu) {
        gpu_say("device: %s", gpu->name);
}

static const struct {
        const char *name;
        void (*run)(struct gpu *gpu);
} rows[] = {
        { "open", row_open }, { "info", gpu_row_info }, { "prims", gpu_row_prims }, { "conform", gpu_row_conform }, { "golden", gpu_row_golden },
        { "peaks", gpu_row_peaks }, { "request", gpu_row_request }, { "ipc", gpu_row_ipc }, { "codes", gpu_row_codes },
        { "order", gpu_row_order }, { "busy", gpu_row_busy }, { "users", gpu_row_users }, { "vmm", gpu_row_vmm },
        { "deaths", gpu_row_deaths },
};

/* What gpu_peer_start() starts. */
static const struct {
        const char *name;
        void (*run)(struct gpu *gpu, const char *argument);
} peers[] = {
        { "peer-export", gpu_peer_export }, { "peer-burn", gpu_peer_burn }, { "peer-look", gpu_peer_look },
        { "peer-write", gpu_peer_write }, { "peer-readonly", gpu_peer_readonly },
};

static int usage(void) {
        (void)fprintf(stderr, "usage: gpu-check [--driver LIBCUDA] [--probes IMAGE] ROW\nrows:");
        for (size_t i = 0; i < CKV_ARRAY_SIZE(rows); i++)
                (void)fprintf(stderr, " %s", rows[i].name);
        (void)fprintf(stderr, "\n");
        return 2;
}

int main(int argc, char *argv[]) {
        static const struct option options[] = {
                { "driver", required_argument, NULL, 'd' }, { "probes", required_argument, NULL, 'p' }, { NULL, 0, NULL, 0 },
        };
        const char *driver = NULL, *probes = NULL;
        struct gpu gpu;
        int code;

        while ((code = getopt_long(argc, argv, "", options, NULL)) != -1) {
                if (code == 'd' && !driver)
                        driver = optarg;
                else if (code == 'p' && !probes)
                        probes = optarg;
                else
                        return usage();
        }
        if (optind >= argc)
                return usage();
        gpu_open(driver, probes, &gpu);
        for (size_t i = 0; i < CKV_ARRAY_SIZE(peers); i++)
                if (strcmp(peers[i].name, argv[optind]) == 0) {
                        peers[i].run(&gpu, optind + 1 < argc ? argv[optind + 1] : "");
                        return gpu.failures ? EXIT_FAILURE : EXIT_SUCCESS;
                }
        for (size_t i = 0; i < CKV_ARRAY_SIZE(rows); i++)
                if (strcmp(rows[i].name, argv[optind]) == 0) {
                        rows[i].run(&gpu);
                        return gpu.failures ? EXIT_FAILURE : EXIT_SUCCESS;
                }
        return usage();
}
