/*
 * chunkkv-bench-rpc: what a request to a daemon costs beside its kernels,
 * against the transport alone.
 *
 *     chunkkv-bench-rpc ENDPOINT [TRIPS [PID...]]
 *
 * In turn, so that all have the same machine: one message of 256 bytes there
 * and back over ZeroMQ (DEALER and ROUTER, ipc), and one over a SOCK_SEQPACKET
 * pair, each with a process that does nothing else; a Ping to the daemon; and a
 * plan for 64 rows of one layer.  The first two together are the floor: a
 * request goes over ZeroMQ to the gate and over such a pair to the core.  The
 * overhead is the time of the plan, as the caller of the client library sees
 * it, less what the daemon says its scoring and selecting took.  Nobody is
 * pinned here: whoever wants all of it on one CPU starts it, and the daemon,
 * there.
 *
 * Then each kind of trip again, some hundreds in a row, for how often threads
 * were woken by one and how long they ran: of this program, of its echoes, and
 * of the processes PID, which are to be those of the daemon.
 *
 * Two lines of JSON: all figures, and the gated one.
 */
#include "base/clock.h"
#include "base/macros.h"
#include "bench/echo.h"
#include "bench/must.h"
#include "bench/wakeups.h"
#include "clients/c/include/chunkkv.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum {
        TRIPS = 4000, TRIPS_MAX = 1000000, WARM_UP = 200, COUNTED = 500, TIMEOUT_MSEC = 10000, PIDS_MAX = 16,
        TOKENS = 64, DIMS = 64, Q_HEADS = 4, WINDOW = 8, ROW_BYTES = DIMS * 2, PLANE_BYTES = TOKENS * ROW_BYTES,
        QUERY_BYTES = Q_HEADS * WINDOW * ROW_BYTES,
};

enum series { ZMQ_TRIP, PAIR_TRIP, PING, PLAN, TRIP_KINDS, FLOOR = TRIP_KINDS, KERNELS, OVERHEAD, SERIES };
static const char *const names[SERIES] = { "zmq", "seqpacket", "ping", "plan", "floor", "kernels", "overhead" };

/* What one trip makes of the processes that take part; nothing is known without the daemon's. */
struct cost {
        double sleeps, switches, run_us;
};

struct bench {
        struct bench_echoes echoes;
        struct chunkkv_client *client;
        struct chunkkv_memory memory;
        uint32_t region, cache;
        double *us[SERIES];             /* [trips] */
        pid_t pids[PIDS_MAX];           /* [pid_count] this one, its echoes, the daemon's */
        size_t pid_count;
        struct cost costs[TRIP_KINDS];
        bool counted;
};

static _Noreturn void fail(const char *what) {
        perror(what);
        exit(EXIT_FAILURE);
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
        uint64_t start = ckv_now_nsec();

        bench_echo_zmq(&bench->echoes);
        return microseconds_since(start);
}

static double trip_pair(const struct bench *bench) {
        uint64_t start = ckv_now_nsec();

        bench_echo_pair(&bench->echoes);
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

static void trip(const struct bench *bench, enum series kind) {
        double kernels;

        if (kind == ZMQ_TRIP)
                (void)trip_zmq(bench);
        else if (kind == PAIR_TRIP)
                (void)trip_pair(bench);
        else if (kind == PING)
                (void)trip_ping(bench);
        else
                (void)trip_plan(bench, &kernels);
}

/* Trips of one kind after the other, so that all that happens meanwhile is theirs */
static void count_wakeups(struct bench *bench, uint32_t trips) {
        uint32_t count = CKV_MIN(trips, COUNTED);

        for (enum series kind = 0; kind < TRIP_KINDS; kind++) {
                struct bench_wakeups before, after;

                if (!bench_wakeups_of(bench->pids, bench->pid_count, &before))
                        return;
                for (uint32_t i = 0; i < count; i++)
                        trip(bench, kind);
                if (!bench_wakeups_of(bench->pids, bench->pid_count, &after))
                        return;
                bench->costs[kind].sleeps = (double)(after.sleeps - before.sleeps) / count;
                bench->costs[kind].switches = bench->costs[kind].sleeps + (double)(after.preemptions - before.preemptions) / count;
                bench->costs[kind].run_us = 1e-3 * (double)(after.run_nsec - before.run_nsec) / count;
        }
        bench->counted = true;
}

static int compare(const void *a, const void *b) {
        double x = *(const double *)a, y = *(const double *)b;

        return (x > y) - (x < y);
}

/* ", "x_name": number", null if nothing was counted */
static void print_count(const struct bench *bench, const char *name, const char *of, double number) {
        if (bench->counted)
                (void)printf(", \"%s%s\": %.1f", name, of, number);
        else
                (void)printf(", \"%s%s\": null", name, of);
}

static void print(const struct bench *bench, uint32_t trips) {
        const struct cost *costs = bench->costs;

        (void)printf("{\"what\": \"rpc\", \"trips\": %u, \"message_bytes\": %d", trips, BENCH_ECHO_BYTES);
        for (enum series s = 0; s < SERIES; s++) {
                qsort(bench->us[s], trips, sizeof(*bench->us[s]), compare);
                (void)printf(", \"%s_us\": {\"p50\": %.1f, \"p90\": %.1f, \"p99\": %.1f}", names[s], bench->us[s][trips / 2],
                             bench->us[s][trips * 9 / 10], bench->us[s][trips * 99 / 100]);
        }
        for (enum series s = 0; s < TRIP_KINDS; s++) {
                print_count(bench, names[s], "_wakeups", costs[s].sleeps);
                print_count(bench, names[s], "_switches", costs[s].switches);
                print_count(bench, names[s], "_run_us", costs[s].run_us);
        }
        (void)printf("}\n{\"rpc\": {\"p50_us\": %.1f, \"floor_p50_us\": %.1f, \"ratio\": %.3f, \"p99_ratio\": %.3f",
                     bench->us[OVERHEAD][trips / 2], bench->us[FLOOR][trips / 2], bench->us[OVERHEAD][trips / 2] / bench->us[FLOOR][trips / 2],
                     bench->us[OVERHEAD][trips * 99 / 100] / bench->us[FLOOR][trips * 99 / 100]);
        (void)printf(", \"zmq_p50_us\": %.1f, \"seqpacket_p50_us\": %.1f, \"kernels_p50_us\": %.1f", bench->us[ZMQ_TRIP][trips / 2],
                     bench->us[PAIR_TRIP][trips / 2], bench->us[KERNELS][trips / 2]);
        print_count(bench, "wakeups", "", costs[PLAN].sleeps);
        print_count(bench, "floor_wakeups", "", costs[ZMQ_TRIP].sleeps + costs[PAIR_TRIP].sleeps);
        print_count(bench, "switches", "", costs[PLAN].switches);
        print_count(bench, "floor_switches", "", costs[ZMQ_TRIP].switches + costs[PAIR_TRIP].switches);
        print_count(bench, "run_us", "", costs[PLAN].run_us);
        print_count(bench, "floor_run_us", "", costs[ZMQ_TRIP].run_us + costs[PAIR_TRIP].run_us);
        (void)printf("}}\n");
}

/* Return: false if the words are none of the usage */
static bool parse(int argc, char **argv, struct bench *ret_bench, uint32_t *ret_trips) {
        uint32_t trips = argc >= 3 ? (uint32_t)strtoul(argv[2], NULL, 10) : TRIPS;

        *ret_bench = (struct bench){ .pid_count = 1 + BENCH_ECHO_PROCESSES };
        for (int i = 3; i < argc && ret_bench->pid_count < PIDS_MAX; i++)
                ret_bench->pids[ret_bench->pid_count++] = (pid_t)strtol(argv[i], NULL, 10);
        *ret_trips = trips;
        return argc >= 2 && argc <= 3 + PIDS_MAX - 1 - BENCH_ECHO_PROCESSES && trips >= 1 && trips <= TRIPS_MAX;
}

int main(int argc, char **argv) {
        struct bench bench;
        uint32_t trips;

        if (!parse(argc, argv, &bench, &trips)) {
                (void)fprintf(stderr, "usage: chunkkv-bench-rpc ENDPOINT [TRIPS [PID...]]\n");
                return EXIT_FAILURE;
        }
        bench_echoes_start(&bench.echoes);
        bench.pids[0] = getpid();
        for (size_t i = 0; i < BENCH_ECHO_PROCESSES; i++)
                bench.pids[1 + i] = bench.echoes.processes[i];
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
        if (bench.pid_count > 1 + BENCH_ECHO_PROCESSES)
                count_wakeups(&bench, trips);
        print(&bench, trips);
        for (enum series s = 0; s < SERIES; s++)
                free(bench.us[s]);
        (void)chunkkv_close(bench.client);
        chunkkv_memory_release(&bench.memory);
        bench_echoes_close(&bench.echoes);
        return EXIT_SUCCESS;
}
