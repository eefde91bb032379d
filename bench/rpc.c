/*
 * chunkkv-bench-rpc: what a request to a daemon costs beside its kernels,
 * against the transport alone.
 *
 *     chunkkv-bench-rpc ENDPOINT [TRIPS]
 *
 * In turn, so that all have the same machine: one message of 256 bytes there
 * and back over ZeroMQ (DEALER and ROUTER, ipc), and one over a SOCK_SEQPACKET
 * pair, each with a process that does nothing else; a Ping to the daemon; and a
 * plan for 64 rows of one layer.  The first two together are the floor: a
 * request goes over ZeroMQ to the gate and over such a pair to the core.  The
 * overhead is the time of the plan, as the caller of the client library sees
 * it, less what the daemon says its scoring and selecting took.  Nobody is
 * pinned.
 *
 * Two lines of JSON: all figures, and the gated one.
 */
#include "base/clock.h"
#include "base/macros.h"
#include "bench/must.h"
#include "clients/c/include/chunkkv.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <zmq.h>

enum {
        TRIPS = 4000, TRIPS_MAX = 1000000, WARM_UP = 200, MESSAGE_BYTES = 256, TIMEOUT_MSEC = 10000,
        TOKENS = 64, DIMS = 64, Q_HEADS = 4, WINDOW = 8, ROW_BYTES = DIMS * 2, PLANE_BYTES = TOKENS * ROW_BYTES,
        QUERY_BYTES = Q_HEADS * WINDOW * ROW_BYTES,
};

enum series { ZMQ_TRIP, PAIR_TRIP, FLOOR, PING, PLAN, KERNELS, OVERHEAD, SERIES };
static const char *const names[SERIES] = { "zmq", "seqpacket", "floor", "ping", "plan", "kernels", "overhead" };

struct bench {
        char directory[32], address[64];
        void *context, *socket;
        int pair;
        pid_t zmq_child, pair_child;
        struct chunkkv_client *client;
        struct chunkkv_memory memory;
        uint32_t region, cache;
        double *us[SERIES];             /* [trips] */
};

static _Noreturn void fail(const char *what) {
        perror(what);
        exit(EXIT_FAILURE);
}

/* Whole messages, sender's name included, go back until one has a byte only. */
static _Noreturn void echo_zmq(const char *address) {
        void *context = zmq_ctx_new(), *socket = zmq_socket(context, ZMQ_ROUTER);
        size_t bytes = 0;

        if (!socket || zmq_bind(socket, address) < 0)
                _exit(EXIT_FAILURE);
        while (bytes != 1) {
                zmq_msg_t frame;
                int more;

                (void)zmq_msg_init(&frame);
                if (zmq_msg_recv(&frame, socket, 0) < 0)
                        _exit(EXIT_FAILURE);
                more = zmq_msg_more(&frame);
                bytes = more ? 0 : zmq_msg_size(&frame);
                if (zmq_msg_send(&frame, socket, more ? ZMQ_SNDMORE : 0) < 0)
                        _exit(EXIT_FAILURE);
        }
        (void)zmq_close(socket);
        (void)zmq_ctx_term(context);
        _exit(EXIT_SUCCESS);
}

static _Noreturn void echo_pair(int fd) {
        char message[MESSAGE_BYTES];
        ssize_t n;

        while ((n = recv(fd, message, sizeof(message), 0)) > 0)
                if (send(fd, message, (size_t)n, 0) != n)
                        _exit(EXIT_FAILURE);
        _exit(EXIT_SUCCESS);
}

/* Before there are threads */
static void start_echoes(struct bench *bench) {
        int pair[2];

        (void)snprintf(bench->directory, sizeof(bench->directory), "/tmp/chunkkv-rpc-XXXXXX");
        if (!mkdtemp(bench->directory) || socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair) < 0)
                fail("mkdtemp, socketpair");
        (void)snprintf(bench->address, sizeof(bench->address), "ipc://%s/zmq", bench->directory);
        bench->pair_child = fork();
        if (bench->pair_child == 0) {
                (void)ckv_close(pair[0]);
                echo_pair(pair[1]);
        }
        bench->zmq_child = fork();
        if (bench->zmq_child == 0) {
                (void)ckv_close(pair[0]);
                (void)ckv_close(pair[1]);
                echo_zmq(bench->address);
        }
        if (bench->pair_child < 0 || bench->zmq_child < 0)
                fail("fork");
        (void)ckv_close(pair[1]);
        bench->pair = pair[0];
        bench->context = zmq_ctx_new();
        bench->socket = bench->context ? zmq_socket(bench->context, ZMQ_DEALER) : NULL;
        if (!bench->socket || zmq_connect(bench->socket, bench->address) < 0)
                fail("ZeroMQ");
}

static void stop_echoes(struct bench *bench) {
        char message = 0;

        (void)zmq_send(bench->socket, &message, 1, 0);
        (void)zmq_recv(bench->socket, &message, 1, 0);
        (void)zmq_close(bench->socket);
        (void)zmq_ctx_term(bench->context);
        (void)ckv_close(bench->pair);
        (void)waitpid(bench->zmq_child, NULL, 0);
        (void)waitpid(bench->pair_child, NULL, 0);
        (void)unlink(bench->address + strlen("ipc://"));
        (void)rmdir(bench->directory);
}

static void connect_daemon(struct bench *bench, const char *endpoint) {
        const struct chunkkv_options options = { .endpoint = endpoint, .name = "chunkkv-bench" };
        struct chunkkv_region region = { .access = CHUNKKV_ACCESS_READ_WRITE };
        const uint32_t layer = 0;
        const struct chunkkv_group group = {
                .layers = &layer, .layer_count = 1, .kv_heads = 1, .q_heads = Q_HEADS, .head_dim_k = DIMS, .head_dim_v = DIMS,
                .tokens_per_block = TOKENS, .num_blocks = 1,
        };
        struct chunkkv_plane planes[2] = {
                { .kind = CHUNKKV_PLANE_K }, { .kind = CHUNKKV_PLANE_V, .offset = PLANE_BYTES },
        };
        struct chunkkv_error error;

        must(chunkkv_connect(&options, &bench->client, &error), "connect", &error);
        must(chunkkv_memory_create("bench", 2 * PLANE_BYTES + QUERY_BYTES, CHUNKKV_ACCESS_READ_WRITE, &bench->memory, &error),
             "memory", &error);
        for (uint32_t i = 0; i < (2 * PLANE_BYTES + QUERY_BYTES) / 2; i++)
                ((uint16_t *)bench->memory.address)[i] = (uint16_t)(0x3f00 | (rand() & 0x80ff));        /* +-0.5 to 1, bfloat16 */
        region.fd = bench->memory.fd;
        must(chunkkv_region_register(bench->client, &region, TIMEOUT_MSEC, &bench->region, &error), "region", &error);
        for (uint32_t i = 0; i < 2; i++) {
                planes[i].dtype = CHUNKKV_DTYPE_BF16;
                planes[i].layer_count = 1;
                planes[i].region_id = bench->region;
                planes[i].layer_stride = planes[i].block_stride = planes[i].head_stride = PLANE_BYTES;
                planes[i].token = (struct chunkkv_axis){ .tile = 1, .outer = ROW_BYTES };
                planes[i].dim = (struct chunkkv_axis){ .tile = 1, .outer = 2 };
        }
        must(chunkkv_cache_register(bench->client, &group, 1, planes, 2, TIMEOUT_MSEC, &bench->cache, NULL, &error), "cache",
             &error);
}

static double microseconds_since(uint64_t start_nsec) {
        return 1e-3 * (double)(ckv_now_nsec() - start_nsec);
}

static double trip_zmq(const struct bench *bench) {
        char message[MESSAGE_BYTES] = { 0 };
        uint64_t start = ckv_now_nsec();

        if (zmq_send(bench->socket, message, sizeof(message), 0) < 0 || zmq_recv(bench->socket, message, sizeof(message), 0) < 0)
                fail("ZeroMQ");
        return microseconds_since(start);
}

static double trip_pair(const struct bench *bench) {
        char message[MESSAGE_BYTES] = { 0 };
        uint64_t start = ckv_now_nsec();

        if (send(bench->pair, message, sizeof(message), 0) < 0 || recv(bench->pair, message, sizeof(message), 0) <= 0)
                fail("socketpair");
        return microseconds_since(start);
}

static double trip_ping(const struct bench *bench) {
        uint64_t start = ckv_now_nsec();
        struct chunkkv_error error;
        struct chunkkv_pong pong;

        must(chunkkv_ping(bench->client, TIMEOUT_MSEC, &pong, &error), "ping", &error);
        return microseconds_since(start);
}

static double trip_plan(const struct bench *bench, double *ret_kernels) {
        static const uint32_t blocks[] = { 0, 1 };
        const struct chunkkv_queries queries = {
                .data = { .region_id = bench->region, .offset = 2 * PLANE_BYTES, .size = QUERY_BYTES }, .dtype = CHUNKKV_DTYPE_BF16,
                .rows = WINDOW, .layer_stride = QUERY_BYTES, .head_stride = WINDOW * ROW_BYTES, .row_stride = ROW_BYTES,
        };
        const struct chunkkv_policy policy = { .window = WINDOW, .chunk = 8 };
        const struct chunkkv_group_job group = {
                .physical_len = TOKENS, .keep_ratio = 500000, .policies = &policy, .policy_count = 1,
                .table = { .form = CHUNKKV_TABLE_BLOCK_RUNS, .numbers = blocks, .count = CKV_ARRAY_SIZE(blocks) },
        };
        const struct chunkkv_job job = {
                .cache_id = bench->cache, .mode = CHUNKKV_MODE_PLAN, .groups = &group, .group_count = 1, .queries = &queries,
        };
        struct chunkkv_result *result;
        struct chunkkv_error error;
        uint64_t start = ckv_now_nsec();
        double us;

        must(chunkkv_compress(bench->client, &job, TIMEOUT_MSEC, &result, &error), "compress", &error);
        us = microseconds_since(start);
        *ret_kernels = result->score_us + result->select_us + result->move_us;
        (void)chunkkv_result_free(result);
        return us;
}

static int compare(const void *a, const void *b) {
        double x = *(const double *)a, y = *(const double *)b;

        return (x > y) - (x < y);
}

static void print(const struct bench *bench, uint32_t trips) {
        (void)printf("{\"what\": \"rpc\", \"trips\": %u, \"message_bytes\": %d", trips, MESSAGE_BYTES);
        for (enum series s = 0; s < SERIES; s++) {
                qsort(bench->us[s], trips, sizeof(*bench->us[s]), compare);
                (void)printf(", \"%s_us\": {\"p50\": %.1f, \"p90\": %.1f, \"p99\": %.1f}", names[s], bench->us[s][trips / 2],
                             bench->us[s][trips * 9 / 10], bench->us[s][trips * 99 / 100]);
        }
        (void)printf("}\n{\"rpc\": {\"p50_us\": %.1f, \"floor_p50_us\": %.1f, \"ratio\": %.3f, \"p99_ratio\": %.3f}}\n",
                     bench->us[OVERHEAD][trips / 2], bench->us[FLOOR][trips / 2], bench->us[OVERHEAD][trips / 2] / bench->us[FLOOR][trips / 2],
                     bench->us[OVERHEAD][trips * 99 / 100] / bench->us[FLOOR][trips * 99 / 100]);
}

int main(int argc, char **argv) {
        struct bench bench = { 0 };
        uint32_t trips = argc == 3 ? (uint32_t)strtoul(argv[2], NULL, 10) : TRIPS;

        if (argc < 2 || argc > 3 || trips < 1 || trips > TRIPS_MAX) {
                (void)fprintf(stderr, "usage: chunkkv-bench-rpc ENDPOINT [TRIPS]\n");
                return EXIT_FAILURE;
        }
        start_echoes(&bench);
        connect_daemon(&bench, argv[1]);
        for (enum series s = 0; s < SERIES; s++) {
                bench.us[s] = calloc(trips, sizeof(*bench.us[s]));
                if (!bench.us[s])
                        fail("calloc");
        }
        for (uint32_t i = 0; i < WARM_UP + trips; i++) {
                uint32_t at = i < WARM_UP ? 0 : i - WARM_UP;

                bench.us[ZMQ_TRIP][at] = trip_zmq(&bench);
                bench.us[PAIR_TRIP][at] = trip_pair(&bench);
                bench.us[PING][at] = trip_ping(&bench);
                bench.us[PLAN][at] = trip_plan(&bench, &bench.us[KERNELS][at]);
                bench.us[FLOOR][at] = bench.us[ZMQ_TRIP][at] + bench.us[PAIR_TRIP][at];
                bench.us[OVERHEAD][at] = bench.us[PLAN][at] - bench.us[KERNELS][at];
        }
        print(&bench, trips);
        for (enum series s = 0; s < SERIES; s++)
                free(bench.us[s]);
        (void)chunkkv_close(bench.client);
        chunkkv_memory_release(&bench.memory);
        stop_echoes(&bench);
        return EXIT_SUCCESS;
}
