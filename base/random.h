/* Random bytes of the kernel: tokens, boot ids, the seed of hash tables. */
#ifndef CKV_BASE_RANDOM_H
#define CKV_BASE_RANDOM_H

#include <stddef.h>

/**
 * ckv_random() - fill memory with random bytes fit for secrets
 * @bytes: [n], written whole or, on failure, with anything
 *
 * Waits for the kernel's generator only in the first seconds after a boot.
 *
 * Return: 0 or -errno.
 */
int ckv_random(void *bytes, size_t n);

#endif
