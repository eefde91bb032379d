/*
 * Reader of safetensors files: a JSON header that names tensors, and their
 * bytes behind it.  Read only; the file stays mapped as long as the object.
 * (tools/compress.h writes them.)
 */
#ifndef CKV_TOOLS_SAFETENSORS_H
#define CKV_TOOLS_SAFETENSORS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define CKV_TENSOR_RANK_MAX 8
#define CKV_SAFETENSORS_WHY 256         /* bytes of a sentence about what is wrong */

struct ckv_tensor {
        const char *name;               /* borrowed from the file object */
        char dtype[12];                 /* "BF16", as the file says */
        uint32_t rank;
        uint64_t shape[CKV_TENSOR_RANK_MAX];
        const uint8_t *data;            /* [size] row-major, in the file's little-endian; not aligned */
        uint64_t size;                  /* bytes */
};

struct ckv_safetensors;

/**
 * ckv_safetensors_open() - map a file and read its header
 * @path:     regular file
 * @ret_file: ends with ckv_safetensors_close()
 * @ret_why:  on failure one sentence, without the path
 *
 * A file that is cut short by others while it is open ends the process with
 * SIGBUS when the missing part is read.
 *
 * Return: 0 or -errno; -EBADMSG if it is no well-formed safetensors file.
 */
int ckv_safetensors_open(const char *path, struct ckv_safetensors **ret_file, char ret_why[static CKV_SAFETENSORS_WHY]);

/**
 * ckv_safetensors_parse() - the same over bytes in memory
 * @bytes: [size] borrowed until ckv_safetensors_close()
 *
 * Return: 0, -EBADMSG or -ENOMEM.
 */
int ckv_safetensors_parse(const uint8_t *bytes, uint64_t size, struct ckv_safetensors **ret_file,
                          char ret_why[static CKV_SAFETENSORS_WHY]);

/**
 * ckv_safetensors_wrap() - tensors from elsewhere, as if they came out of a file without metadata
 * @tensors: [count] copied; names and bytes are borrowed until ckv_safetensors_close()
 *
 * Return: 0 or -ENOMEM.
 */
int ckv_safetensors_wrap(const struct ckv_tensor *tensors, size_t count, struct ckv_safetensors **ret_file);

/* ckv_safetensors_close() - unmap and free; NULL is fine. Return: NULL. */
struct ckv_safetensors *ckv_safetensors_close(struct ckv_safetensors *file);
void ckv_safetensors_closep(struct ckv_safetensors **file);

/* ckv_safetensors_find() - tensor of this name, borrowed, or NULL */
const struct ckv_tensor *ckv_safetensors_find(const struct ckv_safetensors *file, const char *name);
/* ckv_safetensors_count() - number of tensors */
size_t ckv_safetensors_count(const struct ckv_safetensors *file);
/* ckv_safetensors_at() - tensor @index in the order of names, borrowed */
const struct ckv_tensor *ckv_safetensors_at(const struct ckv_safetensors *file, size_t index);

/**
 * ckv_safetensors_metadata() - text @index of the metadata
 * @ret_key, @ret_value: borrowed from the file object
 *
 * Return: false past the last one.
 */
bool ckv_safetensors_metadata(const struct ckv_safetensors *file, size_t index, const char **ret_key,
                              const char **ret_value);

/* ckv_dtype_bytes() - size of an element of a dtype as the file names it; 0 = not known here */
uint32_t ckv_dtype_bytes(const char *dtype);

#endif
