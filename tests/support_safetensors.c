/*
 * Just enough safetensors for the fixtures of tests/data: mapped, checked for
 * extents, never written.  JSON is cJSON's business, here and in the tests
 * that read golden files; the daemon itself links neither.
 */
#include "tests/support_safetensors.h"

#include "base/macros.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

int st_open(const char *path, struct st_file *ret_file) {
        _cleanup_close_ int fd = open(path, O_RDONLY | O_CLOEXEC);
        struct st_file file = { 0 };
        uint64_t header_bytes;
        struct stat st;
        void *map;

        if (fd < 0 || fstat(fd, &st) < 0)
                return -errno;
        file.size = (size_t)st.st_size;
        if (file.size < sizeof(header_bytes))
                return -EBADMSG;
        map = mmap(NULL, file.size, PROT_READ, MAP_PRIVATE, fd, 0);
        if (map == MAP_FAILED)
                return -errno;
        file.map = map;
        memcpy(&header_bytes, file.map, sizeof(header_bytes));
        if (header_bytes <= file.size - sizeof(header_bytes)) {
                file.data = file.map + sizeof(header_bytes) + header_bytes;
                file.header =
                        cJSON_ParseWithLength((const char *)file.map + sizeof(header_bytes), (size_t)header_bytes);
        }
        if (!file.header) {
                st_close(&file);
                return -EBADMSG;
        }
        *ret_file = file;
        return 0;
}

void st_close(struct st_file *file) {
        cJSON_Delete(file->header);
        if (file->map)
                (void)munmap((void *)(uintptr_t)file->map, file->size);
        *file = (struct st_file){ 0 };
}

int st_find(const struct st_file *file, const char *name, struct st_tensor *ret_tensor) {
        const cJSON *entry = cJSON_GetObjectItemCaseSensitive(file->header, name), *item;
        const cJSON *offsets = cJSON_GetObjectItemCaseSensitive(entry, "data_offsets");
        const char *dtype = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(entry, "dtype"));
        struct st_tensor tensor = { .shape = { 1, 1, 1, 1 } };
        size_t begin, end, available = file->size - (size_t)(file->data - file->map);

        if (!entry)
                return -ENOENT;
        if (!dtype || cJSON_GetArraySize(offsets) != 2)
                return -EBADMSG;
        (void)snprintf(tensor.dtype, sizeof(tensor.dtype), "%s", dtype);
        cJSON_ArrayForEach(item, cJSON_GetObjectItemCaseSensitive(entry, "shape")) {
                if (tensor.dims == CKV_ARRAY_SIZE(tensor.shape))
                        return -EBADMSG;
                tensor.shape[tensor.dims++] = (size_t)item->valuedouble;
        }
        begin = (size_t)cJSON_GetArrayItem(offsets, 0)->valuedouble;
        end = (size_t)cJSON_GetArrayItem(offsets, 1)->valuedouble;
        if (begin > end || end > available)
                return -EBADMSG;
        tensor.data = file->data + begin;
        tensor.bytes = end - begin;
        *ret_tensor = tensor;
        return 0;
}

const char *test_data_path(const char *name) {
        static char path[4096];
        const char *folder = getenv("CKV_TEST_DATA");

        (void)snprintf(path, sizeof(path), "%s/%s", folder ? folder : "tests/data", name);
        return path;
}

char *test_read_file(const char *path) {
        _cleanup_close_ int fd = open(path, O_RDONLY | O_CLOEXEC);
        _cleanup_free_ char *text = NULL;
        struct stat st;
        size_t done = 0;

        if (fd < 0 || fstat(fd, &st) < 0)
                return NULL;
        text = calloc((size_t)st.st_size + 1, 1);
        if (!text)
                return NULL;
        while (done < (size_t)st.st_size) {
                ssize_t n = read(fd, text + done, (size_t)st.st_size - done);

                if (n <= 0)
                        return NULL;
                done += (size_t)n;
        }
        return ckv_steal(&text);
}
