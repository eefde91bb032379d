// The address examples of layouts.json in C++, by chunkkv_plane_offset() of the C library.
//   addresses layouts.json
#include <chunkkv.h>
#include <cjson/cJSON.h>

#include <fstream>
#include <iostream>
#include <iterator>
#include <memory>
#include <stdexcept>
#include <string>

static uint64_t number(const cJSON *object, const char *name) {
        const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, name);

        if (!cJSON_IsNumber(item))
                throw std::runtime_error(std::string("no number ") + name);
        return static_cast<uint64_t>(item->valuedouble); // below 2^53 in all examples: exact
}

static uint32_t small(const cJSON *object, const char *name) {
        return static_cast<uint32_t>(number(object, name));
}

static chunkkv_axis axis_of(const cJSON *plane, const char *name) {
        const cJSON *axis = cJSON_GetObjectItemCaseSensitive(plane, name);

        return { small(axis, "tile"), number(axis, "outer"), number(axis, "inner") };
}

static uint32_t kind_of(const cJSON *plane) {
        std::string kind = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(plane, "kind"));

        return kind == "K" ? CHUNKKV_PLANE_K : kind == "V" ? CHUNKKV_PLANE_V : CHUNKKV_PLANE_LATENT;
}

static int check_row(const cJSON *row) {
        const cJSON *shape = cJSON_GetObjectItemCaseSensitive(row, "group"), *example;
        chunkkv_group group{};
        int checked = 0;

        group.kv_heads = small(shape, "kv_heads");
        group.q_heads = small(shape, "q_heads");
        group.head_dim_k = small(shape, "head_dim_k");
        group.head_dim_v = small(shape, "head_dim_v");
        group.tokens_per_block = small(shape, "tokens_per_block");
        group.num_blocks = small(shape, "num_blocks");
        cJSON_ArrayForEach(example, cJSON_GetObjectItemCaseSensitive(row, "examples")) {
                const cJSON *p = cJSON_GetArrayItem(cJSON_GetObjectItemCaseSensitive(row, "planes"),
                                                    static_cast<int>(number(example, "plane")));
                chunkkv_plane plane{};
                chunkkv_error error{};
                uint64_t offset = 0;

                plane.kind = kind_of(p);
                plane.layer_first = small(p, "layer_first");
                plane.layer_count = small(p, "layer_count");
                plane.offset = number(p, "offset");
                plane.layer_stride = number(p, "layer_stride");
                plane.block_stride = number(p, "block_stride");
                plane.head_stride = number(p, "head_stride");
                plane.token = axis_of(p, "token");
                plane.dim = axis_of(p, "dim");
                if (chunkkv_plane_offset(&group, &plane, small(example, "layer"), small(example, "block"),
                                         small(example, "head"), small(example, "token"), small(example, "dim"),
                                         &offset, &error) || offset != number(example, "offset"))
                        throw std::runtime_error(std::string("wrong address, ") + error.detail);
                checked++;
        }
        return checked;
}

int main(int, char *argv[]) {
        std::ifstream file(argv[1]);
        std::string text{ std::istreambuf_iterator<char>(file), {} };
        std::unique_ptr<cJSON, decltype(&cJSON_Delete)> rows(cJSON_Parse(text.c_str()), cJSON_Delete);
        const cJSON *row;
        int checked = 0;

        try {
                cJSON_ArrayForEach(row, rows.get())
                        checked += check_row(row);
        } catch (const std::exception &wrong) {
                std::cerr << cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(row, "name")) << ": " << wrong.what() << "\n";
                return 1;
        }
        std::cout << checked << " addresses\n";
}
