/*
 * The C client and a daemon whose device fails while rows move, on the stand-in
 * for the driver: the error says TORN_REPAIRABLE, the daemon ends, and the next
 * one, asked by chunkkv_repair(), goes on from the step that was reached.  Every
 * row of all planes is compared on the device.
 *
 * A device pointer of the stand-in is an address of this process.
 */
#include "base/macros.h"
#include "clients/c/include/chunkkv.h"
#include "kernels/cuda_api.h"
#include "tests/support_fake.h"
#include "tests/support_files.h"

#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { LAYERS = 2, ROWS = 128, DIM = 16, RUN = 4, RUNS = ROWS / RUN, KEPT = ROWS / 2, PLANE = ROWS * DIM, TIMEOUT_MS = 30000 };
enum { LOST = 75, PLANES = 2 * LAYERS, BYTES = PLANES * PLANE * (int)sizeof(float) };

static struct ckv_cuda cuda;
static char directory[SUPPORT_PATH_BYTES], endpoint[SUPPORT_PATH_BYTES + 8];
static pid_t daemon_pid;

/* chunkkvd-standin beside this program, whose @kernel-th kernel fails; NULL: none does */
static void daemon_start(const char *kernel) {
        char program[4096], library[4096], path[SUPPORT_PATH_BYTES + 8], *slash;
        pid_t parent = getpid();

        (void)snprintf(library, sizeof(library), "%s", support_fake_path());
        *strrchr(library, '/') = '\0';
        (void)snprintf(program, sizeof(program), "%s", library);
        slash = strrchr(program, '/');
        ck_assert_ptr_nonnull(slash);
        (void)snprintf(slash, sizeof(program) - (size_t)(slash - program), "/chunkkvd-standin");
        (void)snprintf(path, sizeof(path), "%s/log", directory);
        daemon_pid = fork();
        ck_assert_int_ge(daemon_pid, 0);
        if (daemon_pid == 0) {
                int log_fd = open(path, O_WRONLY | O_CREAT | O_APPEND, 0600);

                (void)prctl(PR_SET_PDEATHSIG, SIGTERM);
                if (getppid() != parent || log_fd < 0 || dup2(log_fd, STDERR_FILENO) < 0 ||
                    setenv("LD_LIBRARY_PATH", library, 1) < 0 ||
                    (kernel ? setenv("FAKECUDA_FAULT", kernel, 1) : unsetenv("FAKECUDA_FAULT")) < 0)
                        _exit(126);
                (void)execl(program, "chunkkvd", "--runtime-dir", directory, "--endpoint", "main", "--backend", "cuda", "--sandbox",
                            "off", (char *)NULL);
                _exit(127);
        }
}

static int daemon_wait(void) {
        int status = 0;

        ck_assert_int_eq(waitpid(daemon_pid, &status, 0), daemon_pid);
        return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

static void setup(void) {
        struct ckv_cuda_fault fault;
        CUcontext context;

        ck_assert_int_eq(ckv_cuda_load(support_fake_path(), 0, &cuda, &fault), 0);
        ck_assert_int_eq(cuda.cuDevicePrimaryCtxRetain(&context, 0), 0);
        ck_assert_int_eq(cuda.cuCtxSetCurrent(context), 0);
        support_dir_make(directory);
        (void)snprintf(endpoint, sizeof(endpoint), "%s/main", directory);
        daemon_start("2:719");
}

static void teardown(void) {
        (void)kill(daemon_pid, SIGTERM);
        (void)daemon_wait();
        support_dir_remove(directory);
        ckv_cuda_unload(&cuda);
}

/* A daemon that is starting refuses, or has no socket yet. */
static struct chunkkv_client *connected(bool no_roll_forward) {
        const struct chunkkv_options options = { .endpoint = endpoint, .timeout_ms = 500, .no_roll_forward = no_roll_forward };
        const struct timespec pause = { .tv_nsec = 20000000 };
        struct chunkkv_client *client;
        struct chunkkv_error error;

        for (int i = 0; i < 1000; i++) {
                if (chunkkv_connect(&options, &client, &error) == 0)
                        return client;
                (void)nanosleep(&pause, NULL);
        }
        ck_abort_msg("no daemon: %s", error.detail);
        return NULL;
}

struct cache {
        CUdeviceptr at;                 /* [LAYERS][K, V][ROWS][DIM] */
        float *values;                  /* the same, as the stand-in has it */
        uint32_t id, runs[RUNS];        /* RUN rows go, RUN stay */
        struct chunkkv_group_job group;
        struct chunkkv_job job;
};

static float value_of(int plane, int row, int dim) {
        return (float)(plane * PLANE + row * DIM + dim);
}

static void cache_open(struct chunkkv_client *client, struct cache *cache) {
        static const uint32_t numbers[LAYERS] = { 0, 1 }, block = 0;
        const struct chunkkv_group group = { .layers = numbers, .layer_count = LAYERS, .kv_heads = 1, .q_heads = 1,
                                             .head_dim_k = DIM, .head_dim_v = DIM, .tokens_per_block = ROWS, .num_blocks = 1 };
        struct chunkkv_plane planes[PLANES];
        struct chunkkv_device_memory memory;
        struct chunkkv_error error;
        uint32_t region;
        bool fast;

        ck_assert_int_eq(cuda.cuMemAlloc_v2(&cache->at, BYTES), 0);
        cache->values = (float *)(uintptr_t)cache->at;
        for (int i = 0; i < PLANES * PLANE; i++)
                cache->values[i] = (float)i;
        ck_assert_int_eq(chunkkv_device_export(cache->at, BYTES, &memory, &error), 0);
        ck_assert_msg(chunkkv_region_register_device(client, &memory, CHUNKKV_ACCESS_READ_WRITE, TIMEOUT_MS, &region, &error) == 0,
                      "%s: %s", error.field, error.detail);
        chunkkv_device_release(&memory);
        for (int i = 0; i < PLANES; i++)
                planes[i] = (struct chunkkv_plane){
                        .kind = i % 2 ? CHUNKKV_PLANE_V : CHUNKKV_PLANE_K, .dtype = CHUNKKV_DTYPE_F32,
                        .layer_first = numbers[i / 2], .layer_count = 1, .region_id = region,
                        .offset = (uint64_t)i * PLANE * sizeof(float),
                        .block_stride = PLANE * sizeof(float), .head_stride = DIM * sizeof(float),
                        .token = { .outer = DIM * sizeof(float) }, .dim = { .outer = sizeof(float) },
                };
        ck_assert_msg(chunkkv_cache_register(client, &group, 1, planes, PLANES, TIMEOUT_MS, &cache->id, &fast, &error) == 0,
                      "%s: %s", error.field, error.detail);
        for (int i = 0; i < RUNS; i++)
                cache->runs[i] = RUN;
        cache->group = (struct chunkkv_group_job){
                .physical_len = ROWS, .table = { .form = CHUNKKV_TABLE_BLOCKS, .numbers = &block, .count = 1 },
                .given_runs = cache->runs, .given_run_count = RUNS,
        };
        cache->job = (struct chunkkv_job){ .cache_id = cache->id, .mode = CHUNKKV_MODE_IN_PLACE, .groups = &cache->group,
                                           .group_count = 1 };
}

/* Return: rows that are not where they belong after the move */
static int rows_wrong(const struct cache *cache) {
        int wrong = 0;

        for (int plane = 0; plane < PLANES; plane++)
                for (int row = 0; row < KEPT; row++) {
                        int from = row / RUN * 2 * RUN + RUN + row % RUN;

                        wrong += cache->values[plane * PLANE + row * DIM] != value_of(plane, from, 0) ||
                                 cache->values[plane * PLANE + row * DIM + DIM - 1] != value_of(plane, from, DIM - 1);
                }
        return wrong;
}

/* With no_roll_forward and without: a device that fails is told in any case, and the move is left to chunkkv_repair(). */
START_TEST(a_torn_cache_is_repaired_when_asked) {
        struct chunkkv_result *result = NULL;
        struct chunkkv_client *client = connected(_i);
        struct chunkkv_error error;
        struct cache cache;

        cache_open(client, &cache);
        ck_assert_int_lt(chunkkv_compress(client, &cache.job, TIMEOUT_MS, &result, &error), 0);
        ck_assert_uint_eq(error.code, CHUNKKV_CODE_DEVICE_ERROR);
        ck_assert_int_eq(error.driver_code, 719);
        ck_assert_msg(error.cache == CHUNKKV_CACHE_TORN_REPAIRABLE, "cache %u: %s", error.cache, error.detail);
        ck_assert_uint_ne(error.request_id, 0);
        ck_assert_int_eq(daemon_wait(), LOST);
        /* one step was written and the other was not */
        ck_assert_int_gt(rows_wrong(&cache), 0);
        ck_assert(cache.values[0] != value_of(0, 0, 0));
        daemon_start(NULL);
        ck_assert_msg(chunkkv_repair(client, error.request_id, TIMEOUT_MS, &result, &error) == 0, "%s", error.detail);
        ck_assert(result->repaired);
        ck_assert_int_eq(rows_wrong(&cache), 0);
        result = chunkkv_result_free(result);
        client = chunkkv_close(client);
        ck_assert_int_eq(cuda.cuMemFree_v2(cache.at), 0);
}
END_TEST

int main(void) {
        Suite *suite = suite_create("cuda_client");
        TCase *tcase = tcase_create("with a daemon");
        SRunner *runner = srunner_create(suite);
        int failed;

        suite_add_tcase(suite, tcase);
        tcase_add_checked_fixture(tcase, setup, teardown);
        tcase_set_timeout(tcase, 100);
        tcase_add_loop_test(tcase, a_torn_cache_is_repaired_when_asked, 0, 2);
        srunner_run_all(runner, CK_NORMAL);
        failed = srunner_ntests_failed(runner);
        srunner_free(runner);
        return failed ? 1 : 0;
}
