/*
 * A real cache in the memory of a GPU, compressed in place from C: 8 layers of SmolLM2, keys, queries and values.  Nothing of
 * CUDA is needed to build this, and the driver alone to run it.
 *      cc compress_cuda.c $(pkg-config --cflags --libs chunkkv) && ./a.out needle-1k.safetensors 0.1 0.2 0.3
 */
#include <chunkkv.h>
#include <dlfcn.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
        LAYERS = 8, ROWS = 1024, KV_HEADS = 3, Q_HEADS = 9, DIMS = 64, QUERY_ROWS = 64, ROW_BYTES = KV_HEADS * DIMS * 2,
        QUERY = 393216, VALUE = 522240, LAYER = 915456, BYTES = LAYERS * LAYER, /* where the file has the tensors of a layer */
        TIMEOUT_MS = 120000,
};

/* The driver, by the names that its functions have inside: cuda.h says the same behind macros. */
#define DRIVER(FUNCTION) \
        FUNCTION(cuInit, (unsigned flags)) \
        FUNCTION(cuDriverGetVersion, (int *version)) \
        FUNCTION(cuDeviceGet, (int *device, int ordinal)) \
        FUNCTION(cuDeviceGetName, (char *name, int size, int device)) \
        FUNCTION(cuDevicePrimaryCtxRetain, (void **context, int device)) \
        FUNCTION(cuCtxSetCurrent, (void *context)) \
        FUNCTION(cuStreamCreateWithPriority, (void **stream, unsigned flags, int priority)) \
        FUNCTION(cuStreamSynchronize, (void *stream)) \
        FUNCTION(cuMemAlloc_v2, (unsigned long long *address, size_t size)) \
        FUNCTION(cuMemFree_v2, (unsigned long long address)) \
        FUNCTION(cuMemcpyHtoDAsync_v2, (unsigned long long to, const void *from, size_t size, void *stream)) \
        FUNCTION(cuMemcpyDtoHAsync_v2, (void *to, unsigned long long from, size_t size, void *stream))
static struct {
#define FUNCTION(name, arguments) int (*name) arguments;
        DRIVER(FUNCTION)
#undef FUNCTION
} cuda;

struct engine {
        void *stream;
        unsigned long long kv;          /* device memory, BYTES as they are in the file */
        char *before, *now;             /* host: as it was uploaded, and as it is now */
        struct chunkkv_client *client;
        struct chunkkv_device_memory exported;
        uint32_t region, cache;
};

static int failed(const char *what, int code) {
        (void)fprintf(stderr, "%s: error %d of the CUDA driver\n", what, code);
        return -1;
}

static int refused(const struct chunkkv_error *error) {
        char text[CHUNKKV_ERROR_TEXT];

        (void)chunkkv_error_format(error, text, sizeof(text));
        (void)fprintf(stderr, "%s\n", text);
        return -1;
}

static int driver_load(void) {
        void *library = dlopen("libcuda.so.1", RTLD_NOW), *found;

        if (!library) {
                (void)fprintf(stderr, "there is no CUDA driver here: %s\n", dlerror());
                return -1;
        }
#define FUNCTION(name, arguments) \
        found = dlsym(library, #name); \
        if (!found) \
                return failed(#name, -1); \
        memcpy(&cuda.name, &found, sizeof(found));
        DRIVER(FUNCTION)
#undef FUNCTION
        return 0;
}

static int device_open(struct engine *engine) {
        char name[128] = "";
        int device, version, r = driver_load();
        void *context;

        if (r)
                return r;
        r = cuda.cuInit(0);
        if (r || (r = cuda.cuDriverGetVersion(&version)) || (r = cuda.cuDeviceGet(&device, 0)) ||
            (r = cuda.cuDeviceGetName(name, sizeof(name), device)) || (r = cuda.cuDevicePrimaryCtxRetain(&context, device)) ||
            (r = cuda.cuCtxSetCurrent(context)) || (r = cuda.cuStreamCreateWithPriority(&engine->stream, 1, 0)) ||
            (r = cuda.cuMemAlloc_v2(&engine->kv, BYTES)))
                return failed("no GPU to be used", r);
        printf("device: %s; driver of CUDA %d.%d; %d bytes of its memory are the cache\n", name, version / 1000,
               version % 1000 / 10, BYTES);
        return 0;
}

/* The tensors of a safetensors file begin behind its header, whose length comes first. */
static int tensors_read(struct engine *engine, const char *path) {
        FILE *file;
        uint64_t header;
        int ok;

        engine->before = malloc(BYTES);
        engine->now = malloc(BYTES);
        file = engine->before && engine->now ? fopen(path, "rb") : NULL;
        if (!file) {
                perror(path);
                return -1;
        }
        ok = fread(&header, sizeof(header), 1, file) == 1 && header < 1 << 30 &&
             fseek(file, (long)(sizeof(header) + header), SEEK_SET) == 0 && fread(engine->before, BYTES, 1, file) == 1;
        if (ferror(file))
                perror(path);
        else if (!ok)
                (void)fprintf(stderr, "%s: no safetensors file of at least %d bytes of tensors\n", path, BYTES);
        (void)fclose(file);
        return ok ? 0 : -1;
}

/* strtod alone would take "0.2x", "abc", "-1" and "nan". */
static int ratio_parse(const char *text, uint32_t *ret_millionths) {
        char *end;
        double value = strtod(text, &end);

        if (end == text || *end || text[strspn(text, "0123456789.")] || value < 1e-6 || value > 1) {
                (void)fprintf(stderr, "RATIO %s: must be a decimal number of at least 0.000001 and at most 1\n", text);
                return -1;
        }
        *ret_millionths = (uint32_t)(value * 1e6 + 0.5);
        return 0;
}

/* Export the allocation, let the daemon map it, and say what lies where. */
static int cache_register(struct engine *engine) {
        static const uint32_t layers[LAYERS] = { 0, 1, 2, 3, 4, 5, 6, 7 };
        const struct chunkkv_group group = {
                .layers = layers, .layer_count = LAYERS, .kv_heads = KV_HEADS, .q_heads = Q_HEADS, .head_dim_k = DIMS,
                .head_dim_v = DIMS, .tokens_per_block = 1, .num_blocks = ROWS,
        };
        struct chunkkv_plane planes[2] = {
                { .kind = CHUNKKV_PLANE_K, .dtype = CHUNKKV_DTYPE_BF16, .layer_count = LAYERS, .layer_stride = LAYER,
                  .block_stride = ROW_BYTES, .head_stride = DIMS * 2, .dim.outer = 2 },
        };
        struct chunkkv_error error;

        if (chunkkv_connect(NULL, &engine->client, &error) ||
            chunkkv_device_export(engine->kv, BYTES, &engine->exported, &error) ||
            chunkkv_region_register_device(engine->client, &engine->exported, CHUNKKV_ACCESS_READ_WRITE, TIMEOUT_MS,
                                           &engine->region, &error))
                return refused(&error);
        planes[0].region_id = engine->region;
        planes[1] = planes[0];
        planes[1].kind = CHUNKKV_PLANE_V;
        planes[1].offset = VALUE;
        return chunkkv_cache_register(engine->client, &group, 1, planes, 2, TIMEOUT_MS, &engine->cache, NULL, &error) ?
               refused(&error) : 0;
}

static int compress(const struct engine *engine, uint32_t keep_ratio, struct chunkkv_result **ret_result) {
        const uint32_t all[2] = { 0, ROWS };
        const struct chunkkv_policy policy = { .profile = CHUNKKV_PROFILE_DEFAULT };
        const struct chunkkv_queries queries = {
                .data = { .region_id = engine->region, .offset = QUERY, .size = BYTES - QUERY }, .dtype = CHUNKKV_DTYPE_BF16,
                .rows = QUERY_ROWS, .layer_stride = LAYER, .head_stride = DIMS * 2, .row_stride = Q_HEADS * DIMS * 2,
        };
        const struct chunkkv_group_job group = {
                .physical_len = ROWS, .table = { .form = CHUNKKV_TABLE_TOKEN_RUNS, .numbers = all, .count = 2 },
                .policies = &policy, .policy_count = 1, .keep_ratio = keep_ratio,
        };
        const struct chunkkv_job job = {
                .cache_id = engine->cache, .mode = CHUNKKV_MODE_IN_PLACE, .groups = &group, .group_count = 1, .queries = &queries,
        };
        struct chunkkv_error error;

        return chunkkv_compress(engine->client, &job, TIMEOUT_MS, ret_result, &error) ? refused(&error) : 0;
}

/* Rows of one plane, copied back from the device, that are not what the answer says; rows behind the kept ones must not move. */
static unsigned wrong_rows(const struct engine *engine, size_t plane, const uint32_t *kept, size_t count) {
        unsigned wrong = 0;

        for (size_t i = 0; i < ROWS; i++) {
                size_t from = i < count ? kept[i] : i;

                wrong += memcmp(engine->now + plane + i * ROW_BYTES, engine->before + plane + from * ROW_BYTES, ROW_BYTES) != 0;
        }
        return wrong;
}

static unsigned check(const struct engine *engine, const struct chunkkv_group_result *group) {
        uint32_t first, end, kept[ROWS];
        unsigned wrong = 0;

        for (uint32_t layer = 0; layer < LAYERS; layer++) {
                const struct chunkkv_set *set = chunkkv_set_find(group, layer, 0);
                size_t at = (size_t)layer * LAYER, count = chunkkv_runs_to_rows(set->runs, set->run_count, kept, ROWS);
                struct chunkkv_cursor cursor = { 0 };

                wrong += wrong_rows(engine, at, kept, count) + wrong_rows(engine, at + VALUE, kept, count);
                printf("  layer %" PRIu32 ":", layer);
                while (chunkkv_runs_next(set->runs, set->run_count, &cursor, &first, &end))
                        printf(" %" PRIu32 "-%" PRIu32, first, end);
                printf("\n");
        }
        return wrong;
}

/* Upload, compress, download, compare. Return: wrong rows, or -1. */
static int run(const struct engine *engine, uint32_t keep_ratio) {
        struct chunkkv_result *result = NULL;
        unsigned wrong;
        int r = cuda.cuMemcpyHtoDAsync_v2(engine->kv, engine->before, BYTES, engine->stream);

        /* what the daemon is to read must be there before it is asked */
        if (r || (r = cuda.cuStreamSynchronize(engine->stream)))
                return failed("upload", r);
        if (compress(engine, keep_ratio, &result))
                return -1;
        r = cuda.cuMemcpyDtoHAsync_v2(engine->now, engine->kv, BYTES, engine->stream);
        if (r || (r = cuda.cuStreamSynchronize(engine->stream))) {
                result = chunkkv_result_free(result);
                return failed("download", r);
        }
        printf("kept %" PRIu32 " of %d rows in %" PRIu32 " us, %" PRIu64 " bytes moved, first and end of each range:\n",
               result->groups[0].physical_len, ROWS, result->total_us, result->groups[0].bytes_moved);
        wrong = check(engine, &result->groups[0]);
        printf("  %u of %d rows on the device are not those that the answer names\n", wrong, 2 * LAYERS * ROWS);
        result = chunkkv_result_free(result);
        return (int)wrong;
}

int main(int argc, char **argv) {
        struct engine engine = { 0 };
        uint32_t ratio;
        int wrong = 0, r = -1;

        if (argc < 3) {
                (void)fprintf(stderr, "usage: %s needle-1k.safetensors RATIO...\n", argv[0]);
                return 2;
        }
        for (int i = 2; i < argc; i++)
                if (ratio_parse(argv[i], &ratio))
                        return 2;
        if (device_open(&engine) == 0 && tensors_read(&engine, argv[1]) == 0 && cache_register(&engine) == 0)
                for (int i = 2; i < argc && ratio_parse(argv[i], &ratio) == 0 && (r = run(&engine, ratio)) >= 0; i++)
                        wrong += r;
        chunkkv_device_release(&engine.exported);
        /* the daemon has let go of the memory once the session is over; only then may it be freed */
        chunkkv_close(engine.client);
        if (engine.kv)
                (void)cuda.cuMemFree_v2(engine.kv);
        free(engine.before);
        free(engine.now);
        return r < 0 || wrong != 0;
}
