/* Reader of .npy files, NumPy's form for one array. */
#ifndef CKV_TOOLS_NPY_H
#define CKV_TOOLS_NPY_H

#include "tools/safetensors.h"

struct ckv_npy {
        struct ckv_tensor tensor;       /* dtype in the words of safetensors; the bytes are mapped */
        void *mapped;                   /* NULL = not open */
        size_t mapped_size;
};

/**
 * ckv_npy_open() - map a file and read its header
 * @path:    regular file of format 1.0, 2.0 or 3.0; float32 or float16, little-endian, in C order, or bfloat16 as
 *           two bytes without a type ("V2", as ml_dtypes saves it)
 * @integers_are_bf16: 16-bit integers are the bits of bfloat16
 * @name:    for the tensor, borrowed
 * @ret_npy: ends with ckv_npy_close()
 * @ret_why: on failure one sentence, without the path
 *
 * Return: 0 or -errno; -EBADMSG if it is no such file.
 */
int ckv_npy_open(const char *path, bool integers_are_bf16, const char *name, struct ckv_npy *ret_npy,
                 char ret_why[static CKV_SAFETENSORS_WHY]);

/**
 * ckv_npy_parse() - the same over bytes in memory
 * @bytes:      [size] borrowed
 * @ret_tensor: points into @bytes
 *
 * Return: 0 or -EBADMSG.
 */
int ckv_npy_parse(const uint8_t *bytes, uint64_t size, bool integers_are_bf16, const char *name,
                  struct ckv_tensor *ret_tensor, char ret_why[static CKV_SAFETENSORS_WHY]);

/* ckv_npy_close() - unmap; one that is not open is fine */
void ckv_npy_close(struct ckv_npy *npy);

#endif
