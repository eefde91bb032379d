/*
 * What a descriptor must be before tensors behind it may be mapped: a memfd
 * (or a file like one) on tmpfs or hugetlbfs, sealed so that it can neither
 * shrink nor grow, with all of its pages allocated.
 */
#ifndef CKV_IPC_MEMFD_H
#define CKV_IPC_MEMFD_H

#include <stdint.h>
#include <sys/types.h>

enum ckv_memfd_outcome {
        _CKV_MEMFD_E_SUCCESS,
        CKV_MEMFD_E_NOT_MEMFD,  /* not a regular file on tmpfs or hugetlbfs that can carry seals */
        CKV_MEMFD_E_NOT_SEALED, /* lacks SHRINK, GROW or SEAL, or has WRITE: see info.seals */
        CKV_MEMFD_E_SIZE,       /* its size is not the declared one: see info.size */
        CKV_MEMFD_E_SPARSE,     /* has holes: see info.allocated */
};

struct ckv_memfd_info {
        uint64_t size;          /* bytes, st_size */
        uint64_t allocated;     /* bytes of pages that exist, st_blocks * 512 */
        uint32_t seals;         /* F_SEAL_* */
        dev_t dev;              /* dev and ino together name the memory, whoever sent the descriptor */
        ino_t ino;
};

/**
 * ckv_memfd_check() - is this what protocol.md asks of an offered memfd?
 * @fd:            *NOT* consumed
 * @declared_size: bytes that the client said it has
 * @ret_info:      written whole on success and with NOT_SEALED, SIZE and SPARSE, not otherwise
 *
 * Never blocks, whatever the descriptor is. A page that is allocated now can be punched out later unless the file is
 * sealed FUTURE_WRITE as well, so callers that rely on it ask again.
 *
 * Return: 0, the first CKV_MEMFD_E_* that applies in the order above, or -errno.
 */
int ckv_memfd_check(int fd, uint64_t declared_size, struct ckv_memfd_info *ret_info);

#endif
