/*
 * Reading of safetensors files, for tests: the file is mapped, tensors are
 * pointers into it.  Eight bytes of header length, a JSON header, then data.
 */
#ifndef CKV_TESTS_SUPPORT_SAFETENSORS_H
#define CKV_TESTS_SUPPORT_SAFETENSORS_H

#include <stddef.h>
#include <stdint.h>

struct st_file {
        const uint8_t *map;             /* the whole file, read only */
        size_t size;
        const uint8_t *data;            /* first byte after the header */
        struct cJSON *header;
};

struct st_tensor {
        char dtype[8];                  /* "BF16", "F32", ... */
        size_t shape[4];                /* missing dimensions are 1 */
        size_t dims;                    /* given dimensions */
        const uint8_t *data;            /* borrowed from the file, row-major, any alignment */
        size_t bytes;
};

/* st_open() - map a file and parse its header. Return: 0, -errno, or -EBADMSG for what is no such file. */
int st_open(const char *path, struct st_file *ret_file);

/* st_close() - unmap; a zeroed struct is fine */
void st_close(struct st_file *file);

/* st_find() - a tensor by name. Return: 0, -ENOENT, or -EBADMSG if its extent is not inside the file. */
int st_find(const struct st_file *file, const char *name, struct st_tensor *ret_tensor);

/* test_data_path() - path of a file of tests/data: under CKV_TEST_DATA, else the repository root; static buffer */
const char *test_data_path(const char *name);

/* test_read_file() - a whole file as a string on the heap, NULL on failure */
char *test_read_file(const char *path);

#endif
