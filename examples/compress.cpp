// A real cache, compressed in place from C++.  The file holds 8 layers of SmolLM2: keys, queries, values.
//      c++ -std=c++20 compress.cpp $(pkg-config --cflags --libs chunkkv) && ./a.out needle-1k.safetensors
#include <chunkkv.h>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <vector>

int main(int argc, char **argv) {
    std::ifstream file(argc == 2 ? argv[1] : "", std::ios::binary);
    uint64_t header = 0, wrong = 0;
    file.read(reinterpret_cast<char *>(&header), sizeof header).ignore(static_cast<std::streamsize>(header));
    const std::vector<char> before(std::istreambuf_iterator<char>(file), {});
    const chunkkv_shape shape = {.layers = 8, .rows = 1024, .kv_heads = 3, .q_heads = 9, .head_dim = 64,
        .query_rows = 64, .dtype = CHUNKKV_DTYPE_BF16, .key = 0, .value = 522240, .query = 393216,
        .layer_stride = 915456};
    chunkkv_client *client; chunkkv_dense kv; chunkkv_result *result; chunkkv_error error;
    auto check = [&](int r) { if (r) throw std::runtime_error(error.detail); };
    check(chunkkv_connect(nullptr, &client, &error));
    check(chunkkv_dense_create(client, &shape, &kv, &error));
    if (before.size() < kv.memory.size) {
        std::fprintf(stderr, "usage: %s FILE, a safetensors file of at least %zu bytes of tensors\n", argv[0], kv.memory.size);
        return 2;
    }
    std::memcpy(kv.memory.address, before.data(), kv.memory.size);
    check(chunkkv_dense_compress(client, &kv, CHUNKKV_MODE_IN_PLACE, shape.rows, 200000, &result, &error));
    std::vector<uint32_t> rows(result->groups->physical_len);
    for (uint32_t layer = 0; layer < shape.layers; layer++) {
        const chunkkv_set *set = chunkkv_set_find(result->groups, layer, 0);
        chunkkv_runs_to_rows(set->runs, set->run_count, rows.data(), rows.size());
        for (uint32_t i = 0; i < rows.size(); i++)
            wrong += std::memcmp(chunkkv_dense_row(&kv, CHUNKKV_PLANE_K, layer, i),
                                 &before[layer * shape.layer_stride + rows[i] * 384], 384) != 0;
    }
    std::printf("kept %zu of 1024 rows, digest %016lx, %lu wrong\n", rows.size(), result->groups->kept_digest, wrong);
    chunkkv_result_free(result), chunkkv_dense_release(client, &kv), chunkkv_close(client);
    return wrong != 0;
}
