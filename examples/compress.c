/*
 * A real cache, compressed in place from C.  The file holds 8 layers of SmolLM2: keys, queries, values.
 *      cc compress.c $(pkg-config --cflags --libs chunkkv) && ./a.out needle-1k.safetensors
 */
#include <chunkkv.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct chunkkv_shape shape = {
        .layers = 8, .rows = 1024, .kv_heads = 3, .q_heads = 9, .head_dim = 64, .query_rows = 64,
        .dtype = CHUNKKV_DTYPE_BF16, .key = 0, .value = 522240, .query = 393216, .layer_stride = 915456,
};
enum { ROW_BYTES = 3 * 64 * 2 };

/* The tensors of a safetensors file begin behind its header, whose length comes first. */
static int tensors_read(const char *path, void *to, size_t size) {
        FILE *file = fopen(path, "rb");
        uint64_t header;
        int ok;

        if (!file) {
                perror(path);
                return -1;
        }
        ok = fread(&header, sizeof(header), 1, file) == 1 && header < 1 << 30 &&
             fseek(file, (long)(sizeof(header) + header), SEEK_SET) == 0 && fread(to, size, 1, file) == 1;
        if (ferror(file))
                perror(path);
        else if (!ok)
                (void)fprintf(stderr, "%s: no safetensors file of at least %zu bytes of tensors\n", path, size);
        (void)fclose(file);
        return ok ? 0 : -1;
}

/* Rows of keys and values that are not those that the daemon says it kept. */
static unsigned wrong_rows(const struct chunkkv_dense *kv, const struct chunkkv_group_result *group,
                           const char *before) {
        uint32_t rows[1024];
        unsigned wrong = 0;

        for (uint32_t layer = 0; layer < shape.layers; layer++) {
                const struct chunkkv_set *set = chunkkv_set_find(group, layer, 0);
                const char *key = before + layer * shape.layer_stride + shape.key;
                const char *value = before + layer * shape.layer_stride + shape.value;
                size_t n = chunkkv_runs_to_rows(set->runs, set->run_count, rows, 1024);

                for (uint32_t i = 0; i < n; i++) {
                        const char *k = chunkkv_dense_row(kv, CHUNKKV_PLANE_K, layer, i);
                        const char *v = chunkkv_dense_row(kv, CHUNKKV_PLANE_V, layer, i);

                        wrong += memcmp(k, key + rows[i] * ROW_BYTES, ROW_BYTES) != 0;
                        wrong += memcmp(v, value + rows[i] * ROW_BYTES, ROW_BYTES) != 0;
                }
        }
        return wrong;
}

int main(int argc, char **argv) {
        struct chunkkv_client *client = NULL;
        struct chunkkv_result *result = NULL;
        struct chunkkv_dense kv = { 0 };
        struct chunkkv_error error;
        char text[CHUNKKV_ERROR_TEXT], *before = NULL;
        unsigned wrong = 1;

        if (argc != 2) {
                (void)fprintf(stderr, "usage: %s needle-1k.safetensors\n", argv[0]);
                return 2;
        }
        if (chunkkv_connect(NULL, &client, &error) || chunkkv_dense_create(client, &shape, &kv, &error))
                goto failed;
        before = malloc(kv.memory.size);
        if (!before || tensors_read(argv[1], kv.memory.address, kv.memory.size))
                goto end;
        memcpy(before, kv.memory.address, kv.memory.size);
        if (chunkkv_dense_compress(client, &kv, CHUNKKV_MODE_IN_PLACE, shape.rows, 200000, &result, &error))
                goto failed;
        wrong = wrong_rows(&kv, &result->groups[0], before);
        printf("kept %" PRIu32 " of 1024 rows, digest %016" PRIx64 ", %u wrong\n", result->groups[0].physical_len,
               result->groups[0].kept_digest, wrong);
        goto end;
failed:
        (void)chunkkv_error_format(&error, text, sizeof(text));
        (void)fprintf(stderr, "%s\n", text);
end:
        free(before);
        chunkkv_result_free(result);
        chunkkv_dense_release(client, &kv);
        chunkkv_close(client);
        return wrong != 0;
}
