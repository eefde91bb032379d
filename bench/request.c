/*
 * chunkkv-bench-request: whole requests to a daemon, as an engine makes them.
 *
 *     chunkkv-bench-request ENDPOINT TOKENS KV_HEADS Q_HEADS DIMS DTYPE WINDOW CHUNK PROFILE PLACES [FILE]
 *
 * PLACES caches of one layer lie one behind the other in shared memory, so that
 * requests to one after the other find none of it in the CPU's caches.  FILE
 * holds K, V [TOKENS][KV_HEADS][DIMS] and queries [Q_HEADS][WINDOW][DIMS] for
 * the first of them; without it all are random.  A line on standard input is the
 * number of a place: that layer is compressed in place to a fifth, and a line
 * of JSON says how long it took, and with "+" behind the number which rows were
 * kept.  The caller sets the pace, because he has others to measure in between.
 */
#include "base/clock.h"
#include "base/macros.h"
#include "bench/must.h"
#include "bench/problem.h"
#include "clients/c/include/chunkkv.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PAGE_ROWS = 16, PLACES_MAX = 256, TIMEOUT_MSEC = 60000, KEPT_MILLIONTHS = 200000, ALIGN = 4096 };

struct target {
        uint32_t tokens, kv_heads, q_heads, dims, dtype, window, chunk, profile, places;
        uint64_t plane, queries, place;         /* bytes of K, of the queries, of all of a place */
        struct chunkkv_client *client;
        struct chunkkv_memory memory;
        uint32_t region, caches[PLACES_MAX];
};

static uint32_t element_bytes(const struct target *t) {
        return t->dtype == CHUNKKV_DTYPE_F32 ? 4 : 2;
}

static void connect_target(struct target *t, const char *endpoint) {
        const struct chunkkv_options options = { .endpoint = endpoint, .name = "chunkkv-bench" };
        struct chunkkv_region region = { .access = CHUNKKV_ACCESS_READ_WRITE };
        uint64_t row = (uint64_t)t->dims * element_bytes(t);
        struct chunkkv_error error;

        t->plane = row * t->kv_heads * t->tokens;
        t->queries = row * t->q_heads * t->window;
        t->place = (2 * t->plane + t->queries + ALIGN - 1) / ALIGN * ALIGN;
        must(chunkkv_connect(&options, &t->client, &error), "connect", &error);
        must(chunkkv_memory_create("bench", t->place * t->places, CHUNKKV_ACCESS_READ_WRITE, &t->memory, &error), "memory", &error);
        region.fd = t->memory.fd;
        must(chunkkv_region_register(t->client, &region, TIMEOUT_MSEC, &t->region, &error), "region", &error);
}

static struct chunkkv_plane plane_of(const struct target *t, uint32_t kind, uint64_t offset) {
        uint64_t element = element_bytes(t), head = t->dims * element, token = head * t->kv_heads;

        return (struct chunkkv_plane){
                .kind = kind, .dtype = t->dtype, .layer_count = 1, .region_id = t->region, .offset = offset,
                .layer_stride = t->plane, .block_stride = token * PAGE_ROWS, .head_stride = head,
                .token = { .tile = 1, .outer = token }, .dim = { .tile = 1, .outer = element },
        };
}

static void register_caches(struct target *t) {
        const uint32_t layer = 0;
        const struct chunkkv_group group = {
                .layers = &layer, .layer_count = 1, .kv_heads = t->kv_heads, .q_heads = t->q_heads, .head_dim_k = t->dims,
                .head_dim_v = t->dims, .tokens_per_block = PAGE_ROWS, .num_blocks = t->tokens / PAGE_ROWS,
        };
        struct chunkkv_error error;

        for (uint32_t i = 0; i < t->places; i++) {
                const struct chunkkv_plane planes[] = {
                        plane_of(t, CHUNKKV_PLANE_K, i * t->place), plane_of(t, CHUNKKV_PLANE_V, i * t->place + t->plane),
                };

                must(chunkkv_cache_register(t->client, &group, 1, planes, 2, TIMEOUT_MSEC, &t->caches[i], NULL, &error), "cache",
                     &error);
        }
}

static void fill_memory(struct target *t, const char *file) {
        struct bench_pool pool = { .bytes = t->memory.address, .size = t->memory.size };
        FILE *from = file ? fopen(file, "re") : NULL;

        bench_pool_fill(&pool, t->dtype == CHUNKKV_DTYPE_F32 ? CKV_DTYPE_F32 : CKV_DTYPE_BF16);
        if (file && (!from || fread(t->memory.address, 1, 2 * t->plane + t->queries, from) != 2 * t->plane + t->queries)) {
                (void)fprintf(stderr, "%s: not the tensors of this shape\n", file);
                exit(EXIT_FAILURE);
        }
        if (from)
                (void)fclose(from);
}

static struct chunkkv_result *compress(const struct target *t, uint32_t place, double *ret_ms) {
        uint64_t row = (uint64_t)t->dims * element_bytes(t), start;
        const uint32_t blocks[] = { 0, t->tokens / PAGE_ROWS };
        const struct chunkkv_queries queries = {
                .data = { .region_id = t->region, .offset = place * t->place + 2 * t->plane, .size = t->queries },
                .dtype = t->dtype, .rows = t->window, .layer_stride = t->queries, .head_stride = row * t->window, .row_stride = row,
        };
        const struct chunkkv_policy policy = { .profile = t->profile, .window = t->window, .chunk = t->chunk };
        const struct chunkkv_group_job group = {
                .physical_len = t->tokens, .keep_ratio = KEPT_MILLIONTHS, .policies = &policy, .policy_count = 1,
                .table = { .form = CHUNKKV_TABLE_BLOCK_RUNS, .numbers = blocks, .count = CKV_ARRAY_SIZE(blocks) },
        };
        const struct chunkkv_job job = {
                .cache_id = t->caches[place], .mode = CHUNKKV_MODE_IN_PLACE, .groups = &group, .group_count = 1, .queries = &queries,
        };
        struct chunkkv_result *result;
        struct chunkkv_error error;

        start = ckv_now_nsec();
        must(chunkkv_compress(t->client, &job, TIMEOUT_MSEC, &result, &error), "compress", &error);
        *ret_ms = 1e-6 * (double)(ckv_now_nsec() - start);
        return result;
}

static void print_result(const struct chunkkv_result *result, double ms, bool runs) {
        const struct chunkkv_group_result *group = &result->groups[0];

        (void)printf("{\"request_ms\": %.4f, \"score_us\": %u, \"select_us\": %u, \"move_us\": %u, \"queue_us\": %u, \"total_us\": %u, "
                     "\"kept\": %u", ms, result->score_us, result->select_us, result->move_us, result->queue_us, result->total_us,
                     group->physical_len);
        if (runs && group->set_count > 0) {
                (void)printf(", \"runs\": [");
                for (size_t i = 0; i < group->sets[0].run_count; i++)
                        (void)printf("%s%u", i > 0 ? ", " : "", group->sets[0].runs[i]);
                (void)printf("]");
        }
        (void)printf("}\n");
        (void)fflush(stdout);
}

static bool parse(int argc, char **argv, struct target *ret_target) {
        uint32_t numbers[10] = { 0 };

        if (argc != 11 && argc != 12)
                return false;
        for (int i = 2; i < 11; i++)
                numbers[i - 2] = (uint32_t)strtoul(argv[i], NULL, 10);
        *ret_target = (struct target){
                .tokens = numbers[0], .kv_heads = numbers[1], .q_heads = numbers[2], .dims = numbers[3],
                .dtype = strcmp(argv[6], "f32") == 0 ? CHUNKKV_DTYPE_F32 : CHUNKKV_DTYPE_BF16, .window = numbers[5],
                .chunk = numbers[6],
                .profile = strcmp(argv[9], "kvpress") == 0 ? CHUNKKV_PROFILE_KVPRESS : CHUNKKV_PROFILE_DEFAULT, .places = numbers[8],
                .memory.fd = -1,
        };
        return ret_target->tokens > 0 && ret_target->tokens % PAGE_ROWS == 0 && ret_target->places > 0 &&
               ret_target->places <= PLACES_MAX;
}

int main(int argc, char **argv) {
        struct target target;
        char line[32];

        if (!parse(argc, argv, &target)) {
                (void)fprintf(stderr, "usage: chunkkv-bench-request ENDPOINT TOKENS KV_HEADS Q_HEADS DIMS DTYPE WINDOW CHUNK PROFILE "
                                      "PLACES [FILE]\n");
                return EXIT_FAILURE;
        }
        connect_target(&target, argv[1]);
        register_caches(&target);
        fill_memory(&target, argc == 12 ? argv[11] : NULL);
        (void)printf("{\"place_bytes\": %" PRIu64 "}\n", target.place);
        (void)fflush(stdout);
        while (fgets(line, sizeof(line), stdin)) {
                uint32_t place = (uint32_t)strtoul(line, NULL, 10) % target.places;
                double ms;
                struct chunkkv_result *result = compress(&target, place, &ms);

                print_result(result, ms, strchr(line, '+') != NULL);
                (void)chunkkv_result_free(result);
        }
        (void)chunkkv_close(target.client);
        chunkkv_memory_release(&target.memory);
        return EXIT_SUCCESS;
}
